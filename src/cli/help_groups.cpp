// The groups of options in the help of commands that have many.
#include <algorithm>
#include <set>

#include "cli/flags.h"

namespace tessera::cli {

namespace {

struct Group {
  const char* heading;  ///< with an example
  std::set<std::string> options;
};

const Group kGroups[] = {
    {"Model, as in --set layers=4",
     {"set", "init", "trainable", "lora-rank", "lora-alpha", "lora-dropout", "lora-targets", "data",
      "tokenizer", "tokenizer-pattern", "special-token"}},
    {"Mesh and layout, as in --mesh \"data:2;model:2\" --layout \"batch:data;heads,ff:model\"",
     {"mesh", "layout", "threads", "timeout", "device", "machine", "plan-time", "tune", "overlap",
      "chunks"}},
    {"Training, as in --steps 200 --batch 16",
     {"steps", "batch", "dtype", "seed", "on-nonfinite", "check-replicas"}},
    {"Memory, as in --fsdp data --memory 16GB",
     {"zero", "over", "fsdp", "memory", "microbatch-size", "recompute", "offload"}},
    {"Checkpoints, as in --checkpoint out/run --save-every 100 --resume",
     {"checkpoint", "save-every", "save-retry", "keep", "keep-best", "staging", "resume",
      "allow-changes"}},
    {"Seeing, as in --log run.jsonl --profile",
     {"log", "quiet", "csv", "tensorboard", "profile", "watch", "dump", "dump-dir", "dump-every",
      "trace", "json", "sample-every", "sample-prompt", "tokens", "temperature", "top-k", "top-p",
      "min-p", "repetition-penalty"}}};

}  // namespace

void group_options(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (option->get_lnames().empty()) continue;
    for (const Group& group : kGroups) {
      if (group.options.contains(option->get_lnames().front())) option->group(group.heading);
    }
  }
}

}  // namespace tessera::cli
