// A small gpt that is fed and trained alike wherever it runs: on threads, under MPI, on one rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {

inline nn::GptOptions small_gpt(DType dtype) {
  nn::GptOptions o;
  o.layers = 2;
  o.d_model = 12;
  o.heads = 3;
  o.ff = 14;
  o.length = 6;
  o.vocab = 17;
  o.batch = 10;
  o.dtype = dtype;
  return o;
}

/// Tokens of step `step` for both inputs of a gpt; the targets are the inputs one place on.
inline void feed_tokens(Session& session, const nn::Model& model, int64_t step) {
  for (const Tensor& input : model.inputs) {
    const Shape& shape = input.shape();
    Array tokens(DType::int32, shape.names(), {shape[0].size, shape[1].size});
    const int64_t length = shape[1].size, shift = input.name() == "targets" ? 1 : 0;
    for (int64_t i = 0; i < tokens.elements(); ++i) {
      const int64_t at = step * 7 + i / length * 5 + i % length + shift;
      tokens.data<int32_t>()[i] = static_cast<int32_t>(at * at % 17);
    }
    session.feed(input.name(), tokens);
  }
}

struct GptOutcome {
  std::vector<double> losses;
  std::map<std::string, Array> stored;
  std::vector<std::string> fallbacks;
  std::string program;  ///< its text
};

/// Trains for `steps` with Adam and clipping. Collective over `ranks`.
inline GptOutcome train_gpt(const nn::GptOptions& size, Cluster& ranks, const Mesh& mesh,
                            const std::string& layout, int steps,
                            const std::string& device = "cpu") {
  Graph g;
  const nn::Model model = nn::gpt(g, size);
  MinimizeOptions options;
  options.clip = 1;
  minimize(model.loss, constant(g, 0.01, model.loss.dtype()), adam(), options);
  CompileOptions compile{mesh, Layout::parse(layout), {{"train", {model.loss}, true}}};
  compile.device = device;
  compile.guards = {model.loss.name()};
  Session session(g, ranks, compile);
  GptOutcome outcome;
  for (int step = 0; step < steps; ++step) {
    feed_tokens(session, model, step);
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(model.loss.name()));
  }
  outcome.fallbacks = session.fallbacks();
  outcome.program = session.program().text();
  for (const std::string& name : session.program().stored_names())
    outcome.stored[name] = session.fetch(name);
  return outcome;
}

inline GptOutcome train_small_gpt(Cluster& ranks, const Mesh& mesh, const std::string& layout,
                                  DType dtype, int steps, const std::string& device = "cpu",
                                  double dropout = 0) {
  nn::GptOptions size = small_gpt(dtype);
  size.dropout = dropout;
  return train_gpt(size, ranks, mesh, layout, steps, device);
}

}  // namespace tessera::test
