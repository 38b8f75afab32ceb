// Flags that several commands take, in groups. A command's flags derive from the groups that it
// takes, so that it can read no other.
#pragma once

#include "cli/flag.h"
#include "tessera/generate.h"

namespace tessera::cli {

inline constexpr int64_t kMostThreads = 1024;       ///< per rank
inline constexpr int64_t kMostKept = 1'000'000;     ///< checkpoints
inline constexpr int64_t kMostDevices = 1'000'000;  ///< per plan
inline constexpr int64_t kMostRows = 65536;         ///< texts at a time

/// Groups of the help of a command with many flags.
inline constexpr const char* kModelHeading = "Model, as in --set layers=4";
inline constexpr const char* kMeshHeading =
    "Mesh and layout, as in --mesh \"data:2;model:2\" --layout \"batch:data;heads,ff:model\"";
inline constexpr const char* kTrainingHeading = "Training, as in --steps 200 --batch 16";
inline constexpr const char* kMemoryHeading = "Memory, as in --fsdp data --memory 16GB";
inline constexpr const char* kCheckpointsHeading =
    "Checkpoints, as in --checkpoint out/run --save-every 100 --resume";
inline constexpr const char* kSeeingHeading = "Seeing, as in --log run.jsonl --profile";

/// Of a model that is run or lowered, but for its name and layout.
struct JobFlags : Invocation {
  std::vector<std::string> sets;  ///< key=value
  std::string mesh, device;       ///< empty: as in the configuration
  int64_t threads = -1;
  double timeout = 120;
  void declare(FlagTable& table);
};

struct MachineFlag {
  std::string machine;  ///< name or file of a profile
  void declare(FlagTable& table);
};

/// Of a model with its layout, and what the planner needs for `auto`.
struct ModelFlags : JobFlags, MachineFlag {
  std::string model;                   ///< a model's name, a TOML file or a folder
  std::string layout;                  ///< empty: as in the configuration
  std::optional<double> plan_seconds;  ///< limit of the planner's search
  int64_t zero = 0;                    ///< ZeRO stage 1, 2 or 3 over the axes `over`
  std::string over, fsdp;              ///< axes
  std::string memory;                  ///< limit per rank, with a unit
  std::string microbatch_size;         ///< a number or auto
  std::vector<std::string> trainable;  ///< globs
  std::vector<std::string> keys;       ///< key=value of flags, set after `sets` and never swept
  int64_t staging_bytes = 0;  ///< no flag: most bytes of a rank's save beside the run; 0: no save

  ModelFlags() = default;
  /// Of a command whose model and layout are no flags.
  ModelFlags(const JobFlags& job, const std::string& name, const std::string& rules)
      : JobFlags(job), model(name), layout(rules) {}
  void declare(FlagTable& table);
};

/// --html of `html`.
Flag html_flag(std::string& html);
struct JsonFlag {
  std::string json;  ///< file
  void declare(FlagTable& table);
};
/// --json and --html.
struct ReportFlags : JsonFlag {
  std::string html;  ///< file
  void declare(FlagTable& table);
};

struct TokenizerFlags {
  std::string tokenizer, pattern;    ///< path; pattern of a tiktoken file
  std::vector<std::string> special;  ///< further special tokens of a tiktoken file
  void declare(FlagTable& table, bool required = false);
};

/// How new tokens are chosen.
struct SamplingFlags {
  std::optional<int64_t> tokens;  ///< most new ones
  Sampling sampling = {.temperature = 0.8};
  /// usual: the number of new tokens without --tokens.
  void declare(FlagTable& table, int64_t usual);
};

/// What writes texts: a model, its parameters, its tokenizer and the rows of a batch.
struct WriterFlags : ModelFlags, TokenizerFlags {
  std::string checkpoint;  ///< directory
  int64_t rows = 8;        ///< texts at a time
  void declare(FlagTable& table);
};

/// --layout of `layout`. "" becomes ";", the layout without rules, as no layout means the
/// configuration's.
Flag layout_flag(std::string& layout, Ranks ranks, const char* help);
/// Flags that set keys in `sets`, or in ModelFlags::keys.
Flag data_flag(std::vector<std::string>& keys);
Flag init_flag(std::vector<std::string>& keys);
Flag batch_flag(std::vector<std::string>& sets);
Flag recompute_flag(std::vector<std::string>& sets);
Flag dtype_flag(std::vector<std::string>& sets,
                const char* help =
                    "Dtype of activations: float32, float64, bfloat16, float16 or "
                    "float8.");

}  // namespace tessera::cli
