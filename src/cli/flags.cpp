#include "cli/flags.h"

#include <fmt/format.h>

namespace tessera::cli {

namespace {
constexpr int64_t kMostNewTokens = 100'000'000;
}  // namespace

void JobFlags::declare(FlagTable& table) {
  table.add(kModelHeading,
            {{"--set KEY=VALUE", &sets, kIsKey,
              "Sets configuration keys: --set layers=4 lr=3e-4. A key may be short where only one "
              "table has it. tessera info --keys lists them."}});
  table.add(
      kMeshHeading,
      {{"--mesh AXES", &mesh, kIsKey,
        "Axes of the mesh and their sizes: \"data:2;model:2\". The default is data:N, where N is "
        "the number of ranks that were started."},
       {"--threads", &threads, kIsKey,
        "Number of threads that share the kernels of a rank (train.threads). 0 divides the cores "
        "of the host among its ranks.",
        whole_number(0, kMostThreads)},
       {"--timeout", &timeout, kAgree,
        "Seconds to wait for another rank before an error names it (120).", finite_number(0)},
       {"--device DEVICE",
        &device,
        {"what it resolves to is compared, as a fact of the job"},
        "Where the ranks compute: cpu (default), cuda, cuda:share (processes may share a GPU) or "
        "auto. A prediction for a --machine of GPUs is for cuda by default."}});
}

void MachineFlag::declare(FlagTable& table) {
  table.add(kMeshHeading,
            {{"--machine MACHINE", &machine, kOfRoot,
              "Machine profile that times are predicted with, for the planner too: a100-80gb, "
              "h100, h200 or another name, or a TOML file. The default is what tessera calibrate "
              "measured here, if it did."}});
}

void ModelFlags::declare(FlagTable& table) {
  table.add({{"model",
              &model,
              {"its name and keys are compared"},
              "Name of a model (gpt, mlp or cnn), a TOML file with the tables model, train, data "
              "and layout, a folder of Hugging Face with config.json, or a program of PyTorch, "
              "FILE.pt2.",
              {},
              true}});
  JobFlags::declare(table);
  table.add(kMeshHeading,
            {layout_flag(layout, kIsKey,
                         "Rules of the layout: \"batch:data;heads,ff,vocab:model\", or @FILE. The "
                         "planner chooses the axes of names:auto, or of all names with auto alone. "
                         "\"\": nothing is split."),
             {"--plan-time", &plan_seconds, kOfRoot, "Seconds that the planner may search (10)."}});
  MachineFlag::declare(table);
  table.add(
      kMemoryHeading,
      {{"--zero", &zero, kIsKey,
        "Shards what is stored over the axis of --over: 1 optimizer state, 2 gradients too, 3 "
        "parameters too. It adds rules to the layout, which is printed."},
       {"--over AXIS", &over, kIsKey, "Axis of the mesh that --zero shards over."},
       {"--memory BYTES",
        &memory,
        {"the keys that it chooses are compared"},
        "Memory limit of a rank, such as 16GB. A job that does not fit is refused, and the error "
        "says what would help. train.recompute=auto recomputes only as much as needed."},
       {"--microbatch-size N|auto", &microbatch_size, kIsKey,
        "Number of examples that a data rank computes at a time; gradients are accumulated over "
        "the batch. auto takes the largest that fits --memory."},
       {"--fsdp AXIS", &fsdp, kIsKey, "The same as --zero 3 --over AXIS."}});
  table.add(
      kModelHeading,
      {{"--loss LOSS", SetsKey{&sets, "model.loss"}, kIsKey,
        "The loss of a program of PyTorch: an output, or \"cross_entropy(logits, labels, "
        "shift=1)\"."},
       {"--dims NAMES", SetsKey{&sets, "model.dims"}, kIsKey,
        "Names of dims of a program of PyTorch: \"tokens: batch length\", or @FILE."},
       {"--trainable GLOB", Each{&trainable}, kIsKey,
        "Parameters that are trained, as globs (train.trainable): \"*.norm*.scale\". The others "
        "are constants. May be repeated."},
       {"--lora-rank R", SetsKey{&sets, "model.lora_rank"}, kIsKey,
        "Adds matrices of LoRA of this rank to the dense layers of the blocks, and trains only "
        "them."},
       {"--lora-alpha ALPHA", SetsKey{&sets, "model.lora_alpha"}, kIsKey,
        "Scale of these matrices, divided by the rank (16)."},
       {"--lora-dropout RATE", SetsKey{&sets, "model.lora_dropout"}, kIsKey,
        "Rate of dropout in front of these matrices (0)."},
       {"--lora-targets GLOBS", SetsKey{&sets, "model.lora_targets"}, kIsKey,
        "The dense layers with LoRA, by the ends of their names: query,value,mlp.*."}});
}

void JsonFlag::declare(FlagTable& table) {
  table.add(kSeeingHeading,
            {{"--json FILE", &json, kOfRoot, "Also writes the report to FILE as JSON."}});
}

Flag html_flag(std::string& html) {
  return {"--html FILE", &html, kOfRoot, "Also writes the report to FILE as a page for a browser."};
}

void ReportFlags::declare(FlagTable& table) {
  table.add({html_flag(html)});
  JsonFlag::declare(table);
}

void TokenizerFlags::declare(FlagTable& table, bool required) {
  table.add(
      kModelHeading,
      {{"--tokenizer PATH",
        &tokenizer,
        kAgree,
        "Tokenizer: tokenizer.json, tekken.json, a SentencePiece model, a tiktoken file, or a "
        "folder with one.",
        {},
        required},
       {"--tokenizer-pattern PATTERN", &pattern, kAgree,
        "How a tiktoken file cuts text: gpt2, cl100k, o200k, llama3, llama4, qwen, or a regular "
        "expression."},
       {"--special-token NAME", Each{&special}, kAgree,
        "A further special token of a tiktoken file; may be repeated."}});
}

void SamplingFlags::declare(FlagTable& table, int64_t usual) {
  table.add(
      kSeeingHeading,
      {{"--tokens", &tokens, kAgree,
        fmt::format("Most tokens to write ({}). With a tokenizer its end-of-text token ends the "
                    "text.",
                    usual),
        whole_number(0, kMostNewTokens)},
       {"--temperature", &sampling.temperature, kAgree,
        "Temperature of sampling (0.8). 0 takes the likeliest token.", finite_number(0)},
       {"--top-k", &sampling.top_k, kAgree,
        "Samples from so many likeliest tokens only (0: from all).", whole_number(0)},
       {"--top-p", &sampling.top_p, kAgree,
        "Samples from the fewest likeliest tokens that have this probability together (1)."},
       {"--min-p", &sampling.min_p, kAgree,
        "Samples from tokens with at least this share of the likeliest one's probability (0)."},
       {"--repetition-penalty", &sampling.repetition_penalty, kAgree,
        "Makes tokens less likely that the text has already, if above 1 (1)."}});
}

void WriterFlags::declare(FlagTable& table) {
  ModelFlags::declare(table);
  table.add({{"--checkpoint DIR", &checkpoint, kAgree,
              "Directory of checkpoints. Without it the weights of a folder write, with its "
              "tokenizer."}});
  TokenizerFlags::declare(table);
  table.add({{"--rows", &rows, kAgree, "Texts that are written at a time (8).",
              whole_number(1, kMostRows)}});
}

Flag layout_flag(std::string& layout, Ranks ranks, const char* help) {
  const Check named = [](std::string& text) -> std::string {
    if (text.empty()) text = ";";
    return "";
  };
  return {"--layout RULES", &layout, ranks, help, named};
}

Flag data_flag(std::vector<std::string>& keys) {
  return {"--data PATH",
          SetsKey{&keys, "data.path"},
          {"the data are compared by their content"},
          "File or folder of the data, or a blend: 0.7:a.idx,0.3:b.idx (data.path)."};
}

Flag init_flag(std::vector<std::string>& keys) {
  return {"--init weights|random", SetsKey{&keys, "model.init"}, kIsKey,
          "What a folder's model starts from: its weights (default), or random values."};
}

Flag batch_flag(std::vector<std::string>& sets) {
  return {"--batch N", SetsKey{&sets, "train.batch"}, kIsKey,
          "Number of examples in a step, over all ranks."};
}

Flag recompute_flag(std::vector<std::string>& sets) {
  return {"--recompute SCOPES", SetsKey{&sets, "train.recompute"}, kIsKey,
          "Scopes that backward recomputes instead of keeping their values: none, attention, "
          "block, or names and globs joined by commas."};
}

Flag dtype_flag(std::vector<std::string>& sets, const char* help) {
  return {"--dtype DTYPE", SetsKey{&sets, "train.dtype"}, kIsKey, help};
}

}  // namespace tessera::cli
