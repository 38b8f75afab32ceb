// The keys of a configuration that all models have.
#include "cli/commands.h"

namespace tessera::cli {

namespace {

std::vector<ConfigKey> common_keys() {
  return {
      {"train.batch", "16", "examples of a step, over all ranks", KeyRange::whole(1, 1e9)},
      {"train.microbatches", "1",
       "equal parts of the batch, worked off one after the other; auto: the fewest that fit",
       KeyRange::whole(1, 1e9, {"auto"})},
      {"train.steps", "200", "steps", KeyRange::whole(1)},
      {"train.lr", "1e-3", "peak learning rate", KeyRange::number(0)},
      {"train.schedule", "cosine", "constant | linear | cosine | rsqrt",
       KeyRange::one_of({"constant", "linear", "cosine", "rsqrt"})},
      {"train.warmup", "20", "steps of linear rise", KeyRange::whole(0)},
      {"train.start", "0", "of the rise, as a share of lr", KeyRange::number(0, 1)},
      {"train.flat", "0", "steps, from which a rate that falls by rsqrt does so: at least warmup",
       KeyRange::whole(0)},
      {"train.floor", "0.1", "where linear and cosine end, as a share of lr",
       KeyRange::number(0, 1)},
      {"train.cooldown", "0",
       "share of the steps, the last ones, in which the rate falls to 0 in a straight line",
       KeyRange::number(0, 1)},
      {"train.optimizer", "adamw",
       "adamw | adam | adam_uncorrected | adafactor | lamb | lion | momentum | sgd"},
      {"train.rates", "", "of single parameters, times lr: glob=factor, ..."},
      {"train.weight_decay", "0.1", "of parameters with two dims or more", KeyRange::number(0)},
      {"train.recompute", "none",
       "scopes that backward computes again: none | attention | block | names and globs | auto"},
      {"train.regather", "none", "scopes whose gathers backward makes again: none | names"},
      {"train.clip", "1", "greatest global gradient norm; 0: no clipping", KeyRange::number(0)},
      {"train.seed", "0", "of initial values, dropout and the order of data"},
      {"train.dtype", "float32",
       "of activations: float32 | bfloat16 | float16 | float64; float8: bfloat16, with products in "
       "8 bits where the model has them"},
      {"train.parameters", "float32",
       "what parameters are stored in: float32; bfloat16 | float16: with no float32 copy"},
      {"train.rounding", "nearest",
       "of parameters in 16 bits after an update: nearest | stochastic"},
      {"train.sums", "computed",
       "what gradients are added over ranks in: computed, as they are; float32: widened before"},
      {"train.reduce", "step",
       "when gradients of a batch in parts are added over ranks: once a step, kept whole till "
       "then; "
       "part: in each part, kept in slices where state or gradients are"},
      {"train.products", "float32",
       "of float32 on a card: float32; tf32: operands are rounded to 10 bits of mantissa"},
      {"train.offload", "none", "state: optimizer state is kept in memory of the host"},
      {"train.overlap", "on", "off: every collective is awaited where it starts"},
      {"train.chunks", "auto",
       "of a product whose operand or result is collected: a number; auto: what pays on --machine",
       KeyRange::whole(1, 1e6, {"auto"})},
      {"train.loss_scale", "auto",
       "of float16: none, or the first one, such as 65536; auto: that, in float16"},
      {"train.threads", "0", "that share the kernels of a rank; 0: the cores over the ranks",
       KeyRange::whole(0, kMostThreads)},
      {"train.eval_every", "0", "steps between evaluations; 0: only at the end",
       KeyRange::whole(0)},
      {"data.path", "", "a file or folder"},
      {"data.held_out", "0.1", "share of the text that is only evaluated; 0: no evaluation",
       KeyRange::number(0, 0.99)},
      {"layout.mesh", "", "axes and sizes"},
      {"layout.rules", "", "which dims are split over which axes"}};
}

}  // namespace

Config default_config(const ModelSpec& spec) {
  std::vector<ConfigKey> keys = {{"model.name", spec.name, "which model"}};
  keys.insert(keys.end(), spec.keys.begin(), spec.keys.end());
  for (ConfigKey& k : common_keys()) keys.push_back(std::move(k));
  return Config(keys);
}

}  // namespace tessera::cli
