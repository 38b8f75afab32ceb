// Small models as the planner builds them.
#pragma once

#include <memory>

#include "tessera/plan.h"
#include "tessera/tessera.h"

namespace tessera::test {

inline PlanStep gpt_step(const PlanBuild& build, nn::GptOptions o) {
  o.layers = build.layers;
  const auto graph = std::make_shared<Graph>();
  const Tensor lr = graph->input("lr", {}, DType::float32);
  MinimizeOptions options;
  if (build.recompute != "none") options.gradient.recompute = {build.recompute};
  if (build.reshard_after_forward != "none")
    options.gradient.reshard_after_forward = {build.reshard_after_forward};
  const Minimized m = minimize(nn::gpt(*graph, o).loss, lr, adam({}), options);
  return {graph, {{"train", {m.loss}, true}}};
}

inline nn::GptOptions options_of(int64_t d_model, int64_t length) {
  nn::GptOptions o;
  o.d_model = d_model;
  o.heads = 8;
  o.ff = 4 * d_model;
  o.length = length;
  o.vocab = 512;
  o.batch = 16;
  o.dtype = DType::bfloat16;
  return o;
}

inline PlanModel gpt_model(int64_t layers, const nn::GptOptions& o) {
  PlanModel model;
  model.name = "gpt";
  model.layers = layers;
  model.build = [o](const PlanBuild& build) { return gpt_step(build, o); };
  return model;
}

/// The same, that may be trained in microbatches.
inline PlanModel gpt_in_parts(int64_t layers, const nn::GptOptions& options) {
  PlanModel model = gpt_model(layers, options);
  model.build = [options](const PlanBuild& build) {
    const auto graph = std::make_shared<Graph>();
    const Tensor lr = graph->input("lr", {}, DType::float32);
    nn::GptOptions o = options;
    o.layers = build.layers;
    o.batch /= build.microbatches;
    const auto part = [&] { return nn::gpt(*graph, o).loss; };
    const Minimized m =
        build.microbatches == 1
            ? minimize(part(), lr, adam({}), {})
            : minimize_in_microbatches(*graph, "batch", build.microbatches, part, lr, adam({}), {});
    return PlanStep{graph, {{"train", {m.loss}, true}}};
  };
  return model;
}

inline const Machine& a100() {
  static const Machine machine = Machine::load("a100-80gb");
  return machine;
}

}  // namespace tessera::test
