// Models of Hugging Face against what transformers computes with them. tests/models holds a tiny
// random model of each family, and in expected.st inputs, logits and gradients of one step:
// benchmarks/peers/hugging_face/models.py made them.
#include "tessera/model_folder.h"

#include <cmath>
#include <filesystem>

#include "io/model_description.h"
#include "support/catch.h"
#include "support/io_folder.h"
#include "tessera/checkpoint.h"
#include "tessera/optim.h"
#include "tessera/storage.h"

namespace tessera {
namespace {

using test::Folder;
namespace fs = std::filesystem;

const std::string kModels = TESSERA_SOURCE_DIR "/tests/models/";
constexpr const char* kNames[] = {"llama", "llama-old", "mistral", "qwen2",
                                  "qwen3", "gpt2",      "gemma2",  "gemma3"};

struct Run {
  Array logits;
  double loss = 0;
  std::map<std::string, Array> gradients;  ///< by parameter
};

nn::TransformerOptions options_of(const ModelFolder& folder, bool scan) {
  nn::TransformerOptions o = folder.options();
  o.length = 40;
  o.batch = 2;
  o.scan = scan && o.are_layers_alike();
  return o;
}

/// One step of the model with the folder's weights.
Run run(const ModelFolder& folder, const nn::TransformerOptions& o, const std::string& mesh_text,
        const std::string& rules, const std::string& expected_path, bool fsdp = false) {
  const SafetensorsReader expected(expected_path);
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  const Minimized m = minimize(model.loss, 0.0, sgd());
  const Mesh mesh = Mesh::parse(mesh_text);
  Layout layout = Layout::parse(rules);
  if (fsdp) layout = Layout::parse(rules + ";" + storage_rules(g, mesh, layout, 3, "data"));
  FunctionSpec step{"step", {model.loss, model.logits}, true};
  for (const Tensor& t : m.gradients) step.outputs.push_back(t);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks, {mesh, layout, {step}, 0, 1});
  folder.load(session, o);
  for (const char* name : {"inputs", "targets"}) {
    Array array = expected.read(name);
    array.dims.clear();
    session.feed(name, array);
  }
  session.run("step");
  Run result{session.fetch(model.logits.name()), session.fetch_scalar(model.loss.name()), {}};
  for (const Tensor& p : g.parameters())
    result.gradients[p.name()] = session.fetch(p.name() + ".grad");
  return result;
}

/// The largest difference, in deviations of `b`.
double difference(const Array& a, const Array& b) {
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

/// |a - b| / |b| of the gradient of each tensor that transformers recorded; the largest.
double gradient_difference(const ModelFolder& folder, const nn::TransformerOptions& o,
                           const Run& ours, const std::string& expected_path, int& compared) {
  const SafetensorsReader expected(expected_path);
  const Family* family = nullptr;
  for (const Family* f : families()) {
    if (f->model_type == folder.family()) family = f;
  }
  double worst = 0;
  compared = 0;
  for (const MappedTensor& t : tensor_map(*family, o).tensors) {
    if (!expected.find("grad." + t.name)) continue;
    ++compared;
    const Array theirs = expected.read("grad." + t.name);
    REQUIRE(theirs.sizes == t.sizes);
    double apart = 0, size = 0;
    for (const TensorPart& part : t.parts) {
      const Array& mine = ours.gradients.at(part.parameter);
      Slice whole;
      whole.dims = mine.dims;
      whole.valid = mine.sizes;
      whole.offset.assign(mine.sizes.size(), 0);
      whole.strides.assign(mine.sizes.size(), 1);
      for (size_t d = mine.sizes.size(); d-- > 1;)
        whole.strides[d - 1] = whole.strides[d] * mine.sizes[d];
      visit_runs(part, whole, [&](int64_t offset, const int64_t* to, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const double a = mine.at(to[i]), b = theirs.at(offset + i);
          apart += (a - b) * (a - b);
          size += b * b;
        }
      });
    }
    INFO(folder.family() << " " << t.name);
    CHECK(size > 0);
    worst = std::max(worst, std::sqrt(apart / size));
  }
  return worst;
}

TEST_CASE("models of Hugging Face give the logits and gradients of transformers in every layout",
          "[model_folder]") {
  struct Case {
    const char *mesh, *rules;
    bool fsdp = false, scan = true;
  };
  const Case cases[] = {{"one:1", ""},
                        {"one:1", "", false, false},
                        {"model:2", "heads,ff,vocab:model"},
                        {"data:2", "batch:data", true},
                        {"model:2", "length:model"},
                        {"data:2;model:2", "batch:data;heads,ff,vocab:model", true}};
  for (const char* name : kNames) {
    const ModelFolder folder(kModels + name);
    const std::string expected = kModels + name + "/expected.st";
    const SafetensorsReader recorded(expected);
    const Array logits = recorded.read("logits");
    for (const Case& c : cases) {
      const nn::TransformerOptions o = options_of(folder, c.scan);
      const Run ours = run(folder, o, c.mesh, c.rules, expected, c.fsdp);
      INFO(name << " on " << c.mesh << " under '" << c.rules << "', fsdp " << c.fsdp << ", scan "
                << o.scan);
      CHECK(difference(ours.logits, logits) < 1e-4);
      CHECK(ours.loss == Approx(recorded.read("loss").at(0)).epsilon(1e-5));
      int compared = 0;
      CHECK(gradient_difference(folder, o, ours, expected, compared) < 1e-4);
      CHECK(compared >= 10);
    }
  }
}

}  // namespace
}  // namespace tessera
