// Runs a folder of Hugging Face on the inputs that are recorded beside it.
#pragma once

#include <cmath>
#include <map>

#include "support/catch.h"
#include "tessera/model_folder.h"
#include "tessera/optim.h"
#include "tessera/safetensors.h"
#include "tessera/storage.h"

namespace tessera::test {

/// tests/models: benchmarks/peers/hugging_face/models.py made them. expected.st has inputs, logits
/// and gradients of one step.
inline const std::string kModels = TESSERA_SOURCE_DIR "/tests/models/";

struct Run {
  Array logits;
  double loss = 0;
  std::map<std::string, Array> gradients;  ///< by parameter
};

inline nn::TransformerOptions options_of(const ModelFolder& folder, bool scan) {
  nn::TransformerOptions o = folder.options();
  o.batch = 2;
  o.scan = scan && o.can_scan();
  if (o.image.classes > 0) return o;
  o.length = 40;
  o.target_length = o.encoder_layers > 0 ? 24 : 0;
  return o;
}

/// One step of the model with the folder's weights.
inline Run run_model(const ModelFolder& folder, const nn::TransformerOptions& o,
                     const std::string& mesh_text, const std::string& rules,
                     const std::string& expected_path, bool fsdp = false) {
  const SafetensorsReader expected(expected_path);
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  const Minimized m = minimize(model.to_minimize(), 0.0, sgd());
  const Mesh mesh = Mesh::parse(mesh_text);
  Layout layout = Layout::parse(rules);
  if (fsdp) layout = Layout::parse(rules + ";" + storage_rules(g, mesh, layout, 3, "data"));
  FunctionSpec step{"step", {m.loss, model.logits}, true};
  for (const Tensor& t : m.gradients) step.outputs.push_back(t);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks, {mesh, layout, {step}, 0, 1});
  folder.load(session, o);
  for (const Tensor& input : model.inputs) {
    Array array = expected.read(input.name());
    array.dims.clear();
    session.feed(input.name(), array);
  }
  session.run("step");
  Run result{session.fetch(model.logits.name()), session.fetch_scalar(m.loss.name()), {}};
  for (const Tensor& p : g.parameters())
    result.gradients[p.name()] = session.fetch(p.name() + ".grad");
  return result;
}

/// The largest difference, in deviations of `b`.
inline double difference(const Array& a, const Array& b) {
  double worst = 0, sum = 0, squares = 0;
  const auto n = static_cast<double>(b.elements());
  for (int64_t i = 0; i < b.elements(); ++i) {
    const double d = std::abs(a.at(i) - b.at(i));
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
    sum += b.at(i);
    squares += b.at(i) * b.at(i);
  }
  return worst / std::sqrt(squares / n - sum / n * sum / n);
}

}  // namespace tessera::test
