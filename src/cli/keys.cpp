// The configuration keys that all models have.
#include <algorithm>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/pipeline_schedules.h"

namespace tessera::cli {

namespace {

std::string schedule_help() {
  std::string text = "Order in which the stages of layers:pipe take microbatches.";
  for (const PipelineSchedule& s : pipeline_schedules())
    text += fmt::format(" {}: {}.", s.name, s.description);
  return text;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const PipelineSchedule& s : pipeline_schedules()) names.push_back(s.name);
  return names;
}

std::vector<ConfigKey> common_keys() {
  return {
      {"train.batch", "16", "Number of examples in a step, over all ranks.",
       KeyRange::whole(1, 1e9)},
      {"train.microbatches", "1",
       "Number of equal microbatches of the batch, whose gradients are accumulated. auto takes the "
       "fewest that fit --memory.",
       KeyRange::whole(1, 1e9, {"auto"})},
      {"train.steps", "200", "Number of steps to train.", KeyRange::whole(1)},
      {"train.lr", "1e-3", "Peak learning rate.", KeyRange::number(0)},
      {"train.schedule", "cosine", "Schedule of the learning rate.",
       KeyRange::one_of({"constant", "linear", "cosine", "rsqrt"})},
      {"train.warmup", "20", "Number of steps in which the rate rises linearly.",
       KeyRange::whole(0)},
      {"train.start", "0", "Learning rate at the beginning of that rise, as a share of lr.",
       KeyRange::number(0, 1)},
      {"train.flat", "0", "For rsqrt: the step at which decay begins (at least warmup).",
       KeyRange::whole(0)},
      {"train.floor", "0.1", "Learning rate at the end of linear and cosine, as a share of lr.",
       KeyRange::number(0, 1)},
      {"train.cooldown", "0",
       "Share of the steps, the last ones, in which the rate falls linearly to 0.",
       KeyRange::number(0, 1)},
      {"train.optimizer", "adamw",
       "Optimizer: adamw, adam, adam_uncorrected, adafactor, lamb, lion, momentum, sgd or muon, "
       "which is adamw for all but the matrices of the blocks."},
      {"train.trainable", "",
       "Parameters that are trained, as names and globs; the others are constants. Empty: all, or "
       "with model.lora_rank those of LoRA, which are trained in any case."},
      {"train.ema", "0",
       "Decay of a moving average of the parameters, such as 0.999, which is then evaluated in "
       "their place. 0 keeps none.",
       KeyRange::number(0, 0.9999999)},
      {"train.patience", "0",
       "Number of evaluations in a row without a lower loss after which training stops. 0 never "
       "stops early.",
       KeyRange::whole(0, 1e6)},
      {"train.rates", "", "Factors of lr for single parameters: glob=factor, glob=factor."},
      {"train.weight_decay", "0.1",
       "Weight decay of parameters with two dims or more that are not called b, bias or scale: "
       "explain --parameters shows which.",
       KeyRange::number(0)},
      {"train.recompute", "none",
       "Scopes that backward recomputes: none, attention, block, names and globs, or auto (with "
       "--memory)."},
      {"train.reshard_after_forward", "none",
       "Scopes whose gathered parameters are freed after forward and gathered once more for "
       "backward: none, or names and globs."},
      {"train.clip", "1", "Largest global gradient norm. 0 does not clip.", KeyRange::number(0)},
      {"train.on_spike", "warn",
       "What happens at a step whose loss or gradient norm is far above those of the steps before: "
       "warn says so; skip leaves its update out; rollback goes back to the last checkpoint of "
       "--save-every and leaves out the batches since then.",
       KeyRange::one_of({"warn", "skip", "rollback"})},
      {"train.seed", "0", "Seed of initial values, dropout and the order of data."},
      {"train.dtype", "float32",
       "Dtype of activations: float32, bfloat16, float16, float64, or float8, which is bfloat16 "
       "with 8-bit matmuls where the model has them.",
       KeyRange::one_of({"float32", "bfloat16", "float16", "float64", "float8"})},
      {"train.parameters", "float32",
       "Dtype in which parameters are stored: float32, or bfloat16 or float16 without a float32 "
       "copy."},
      {"train.rounding", "nearest", "Rounding of 16-bit parameters after an update.",
       KeyRange::one_of({"nearest", "stochastic"})},
      {"train.grad_reduce_dtype", "computed",
       "Dtype in which gradients are reduced across ranks. float32 takes twice the bytes of 16-bit "
       "gradients and rounds nothing between ranks; computed is their own dtype.",
       KeyRange::one_of({"computed", "float32"})},
      {"train.grad_reduce", "step",
       "When gradients are reduced across ranks: once a step, and whole until then; or after every "
       "microbatch, so that a rank keeps only its shard.",
       KeyRange::one_of({"step", "microbatch"})},
      {"train.pipeline_schedule", "1f1b", schedule_help(), KeyRange::one_of(schedule_names())},
      {"train.matmul_precision", "float32",
       "Precision of float32 matmuls on a GPU: tf32 rounds their operands to 10 bits of mantissa.",
       KeyRange::one_of({"float32", "tf32"})},
      {"train.numerics", "default",
       "Order of sums. With strict it is one, so that losses, gradients and parameters are equal "
       "bit "
       "for bit on every layout and mesh; strict:C cuts a summed dim into at most C chunks, 16 by "
       "default. See docs/explanation/strict-numerics.md."},
      {"train.offload", "none", "Whether optimizer state is kept in host memory: state keeps it.",
       KeyRange::one_of({"none", "state"})},
      {"train.overlap", "on",
       "Whether communication overlaps compute. With off a rank waits for every collective where "
       "it starts.",
       KeyRange::one_of({"on", "off"})},
      {"train.chunks", "auto",
       "Number of chunks a matmul is split into so that its collective overlaps its compute, and "
       "of parts of a rank's tokens whose rows travel to experts in turn. auto takes what pays on "
       "--machine.",
       KeyRange::whole(1, 1e6, {"auto"})},
      {"train.loss_scale", "auto",
       "Loss scale of float16: none, or the first one, such as 65536. auto is that for float16."},
      {"train.threads", "0",
       "Number of threads that share the kernels of a rank. 0 divides the cores of the host among "
       "its ranks.",
       KeyRange::whole(0, kMostThreads)},
      {"train.eval_every", "0", "Number of steps between evaluations. 0 evaluates at the end only.",
       KeyRange::whole(0)},
      {"data.path", "",
       "File or folder of the data: text, a corpus (CORPUS.idx), tokens of llm.c, or a blend of "
       "several, as 0.7:a.idx,0.3:b.idx; in TOML also a table of weights by file."},
      {"data.token_bytes", "1",
       "Number of bytes of a token in a file without a header: 1 is text, 2 and 4 are "
       "little-endian uint16 and uint32.",
       KeyRange::one_of({"1", "2", "4"})},
      {"data.packed", "false",
       "Whether tokens see only their own document: its positions begin at 0, and what follows its "
       "last token does not count. It needs a corpus that says where documents begin. Always true "
       "of FILE.jsonl.",
       KeyRange::one_of({"false", "true"})},
      {"data.tokenizer", "",
       "Tokenizer of FILE.jsonl: a file, or a folder with one. A folder's model has its own."},
      {"data.too_long", "error",
       "What happens to a sample of FILE.jsonl that is longer than an example: error, skip it, or "
       "truncate its end.",
       KeyRange::one_of({"error", "skip", "truncate"})},
      {"data.held_out", "0.1", "Share of the text that is only evaluated. 0 evaluates nothing.",
       KeyRange::number(0, 0.99)},
      {"layout.mesh", "", "Axes of the mesh and their sizes, as in data:2;model:2."},
      {"layout.rules", "", "Rules of the layout: which dims are split over which axes."}};
}

}  // namespace

Config default_config(const ModelSpec& spec) {
  std::vector<ConfigKey> keys = {{"model.name", spec.name, "Name of the model."}};
  keys.insert(keys.end(), spec.keys.begin(), spec.keys.end());
  for (ConfigKey& k : common_keys()) {
    for (const ConfigKey& own : spec.keys) {
      TESSERA_REQUIRE(own.name != k.name,
                      "model '{}' has a key '{}', as all models have; give its own another name",
                      spec.name, k.name);
    }
    keys.push_back(std::move(k));
  }
  for (ConfigKey& key : keys) {
    const auto own = spec.defaults.find(key.name);
    if (own != spec.defaults.end()) key.value = own->second;
  }
  // A table has one place in a file, and a model may have keys of any.
  const auto table = [](const ConfigKey& key) {
    static const std::vector<std::string> tables = {"model", "train", "data", "layout"};
    return std::find(tables.begin(), tables.end(), key.name.substr(0, key.name.find('.')));
  };
  std::stable_sort(keys.begin(), keys.end(),
                   [&](const ConfigKey& a, const ConfigKey& b) { return table(a) < table(b); });
  return Config(keys);
}

}  // namespace tessera::cli
