// Products of experts in loops over layers: forward keeps what backward would compute again.
#include "lower/passes/save_expert_activations.h"

#include "support/catch.h"
#include "support/check_equal.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

const Dim kLayers("layers", 3), kBatch("batch", 8), kLength("length", 4), kModel("d_model", 8),
    kFf("ff", 16), kExperts("experts", 4), kRouted("routed", 4), kChoices("choices", 2);

/// A residual layer of SwiGLU experts with a router. `read_as`: the type of the products.
Tensor layer(Tensor x, DType read_as) {
  Graph& g = x.graph();
  const Scope scope(g, "block");
  const auto matrix = [&](const char* name, const Shape& shape) {
    return cast(g.parameter(name, shape, nn::normal(0.5), x.dtype()), read_as);
  };
  const Tensor router = g.parameter("router", {kModel, kRouted}, nn::normal(0.5), x.dtype());
  const Tensor h = tanh(x);
  const Tensor logits = einsum({h, router}, {kBatch, kLength, kRouted});
  const TopK best = top_k(softmax(logits, "routed"), "routed", kChoices);
  nn::Experts w;
  w.activations = {"silu", "linear"};
  w.up = {matrix("gate", {kExperts, kModel, kFf}), matrix("up", {kExperts, kModel, kFf})};
  w.down = matrix("down", {kExperts, kFf, kModel});
  const Scope mlp(g, "mlp");
  const Tensor y = nn::experts(cast(h, read_as), best.indices, cast(best.values, read_as), w);
  return x + cast(y, x.dtype());
}

struct Experts {
  explicit Experts(bool unroll, const GradientOptions& gradient = {},
                   DType read_as = DType::float64) {
    Tensor x = sin(cast(iota(g, kBatch), DType::float64) + cast(iota(g, kLength), DType::float64) +
                   0.7 * cast(iota(g, kModel), DType::float64));
    const Tensor y = repeat(kLayers, x, [&](Tensor h) { return layer(h, read_as); }, {unroll});
    loss = mean_all(square(y - 1.0)).named("loss");
    minimize(loss, constant(g, 0.05, DType::float64), adam(), {.gradient = gradient});
  }
  CompileOptions options(const std::string& mesh = "x:1", const std::string& layout = "") const {
    return {Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss}, true}}};
  }
  Graph g;
  Tensor loss;
};

/// Grouped matmuls in a layer's forward and backward.
int products(const Experts& model, const std::string& kernel = "= grouped_dot(") {
  Cluster rank = Cluster::threads(1);
  const Session session(model.g, rank, model.options());
  const std::string text = session.program().text();
  int count = 0;
  for (size_t at = 0; (at = text.find(kernel, at)) != text.npos; ++at) ++count;
  return count;
}

Values train(const Experts& model, const std::string& mesh, const std::string& layout) {
  Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
  Session session(model.g, ranks, model.options(mesh, layout));
  for (int step = 0; step < 3; ++step) session.run("train");
  Values values = {{"loss", session.fetch("loss")}};
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

TEST_CASE("backward reads the products of experts that the loop of layers kept") {
  // Three forward. Backward: one for the hidden rows, two for the rows, and no gate and up again.
  CHECK(products(Experts(false)) == 6);
  CHECK(products(Experts(false), "= grouped_outer(") == 3);
  // Through casts of the weights and rows, too.
  CHECK(products(Experts(false, {}, DType::float32)) == 6);
}

TEST_CASE("products of experts that the model says are recomputed are not kept") {
  CHECK(products(Experts(false, {{"block"}, {}})) == 8);
  CHECK(products(Experts(false, {{"mlp"}, {}})) == 8);
}

TEST_CASE("layers of experts in a loop train as copies of them do") {
  const Values want = train(Experts(true), "x:1", "");
  const std::pair<const char*, const char*> layouts[] = {
      {"x:1", ""},        {"x:2", "batch:x"},         {"x:2", "batch,experts:x"},
      {"x:2", "ff:x"},    {"x:4", "batch,experts:x"}, {"x:2;y:2", "batch:x;experts:y"},
      {"x:2", "layers:x"}};
  for (const auto& [mesh, layout] : layouts) {
    INFO(mesh << " " << layout);
    check_equal(want, train(Experts(false), mesh, layout));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
