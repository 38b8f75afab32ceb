// What a training step sends: nothing twice, and no more of a sum than its readers take.
#include <map>

#include "support/catch.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Bytes by kind of the function "f", and how many collectives there are.
struct Sent {
  std::map<std::string, int64_t> bytes;
  std::map<std::string, int> count;
};

Sent sent(const Graph& g, const std::string& mesh, const std::string& layout,
          const std::vector<Tensor>& outputs, bool updates) {
  CompileOptions options;
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  options.functions = {{"f", outputs, updates}};
  Sent sent;
  for (const FunctionReport& f : explain(g, options).functions) {
    if (f.name != "f") continue;
    for (const CollectiveReport& c : f.collectives) {
      sent.bytes[c.kind] += c.bytes;
      ++sent.count[c.kind];
    }
  }
  return sent;
}

const Dim batch("batch", 16), from("from", 8), to("to", 12);
constexpr int64_t kWeights = 8 * 12 * 4;  // bytes of the weights

/// One linear layer with Adam and clipping.
struct Linear {
  Graph g;
  Tensor loss;
  std::vector<Tensor> gradients;
  Linear() {
    Tensor x = g.input("x", {batch, from}, DType::float32);
    Tensor w = g.parameter("w", {from, to}, nn::scaled_normal({"from"}));
    loss = mean_all(square(einsum({x, w}, {batch, to}))).named("loss");
    gradients = minimize(loss, constant(g, 0.1), adam(), {1.0}).gradients;
  }
};

TEST_CASE("a gradient that only a split optimizer reads is reduce-scattered", "[communication]") {
  Linear m;
  const Sent split = sent(m.g, "p:4", "batch:p;@state from:p", {m.loss}, true);
  CHECK(split.bytes.at("reduce_scatter") == kWeights * 3 / 4);
  CHECK(split.bytes.at("all_gather") == kWeights * 3 / 4);  // of the new weights
  CHECK(split.bytes.at("all_reduce") < kWeights);           // scalars
  // What a run returns is whole.
  const Sent fetched = sent(m.g, "p:4", "batch:p;@state from:p", m.gradients, true);
  CHECK(fetched.count.count("reduce_scatter") == 0);
  CHECK(fetched.bytes.at("all_reduce") >= 2 * kWeights * 3 / 4);
}

TEST_CASE("a norm over a split dim sums twice forward and twice backward", "[communication]") {
  Graph g;
  Tensor x = g.parameter("x", {batch, from}, nn::normal(1));
  Tensor scale = g.parameter("scale", {from}, nn::ones()),
         bias = g.parameter("bias", {from}, nn::zeros());
  Tensor loss = sum_all(exp(layer_norm(x, "from", scale, bias))).named("loss");
  std::vector<Tensor> outputs = gradients(loss, {x, scale, bias});
  Sent both = sent(g, "p:4", "from:p", outputs, false);
  CHECK(both.count["all_reduce"] == 4);
  CHECK(both.bytes["all_reduce"] == 4 * 2 * 16 * 4 * 3 / 4);
}

TEST_CASE("a tensor that is read under two names is gathered once", "[communication]") {
  Graph g;
  const Dim length("length", 16), model("model", 256);
  Tensor x = g.input("x", {batch, length, model}, DType::float32);
  nn::MultiHeadOptions options;
  options.heads = 4;
  options.d_head = 64;
  // Queries read the stream by `length`, keys and values by `memory_length`.
  Tensor y = nn::self_attention(nn::norm(x, "norm", "model"), "attention", "model", options);
  Tensor loss = mean_all(square(y)).named("loss");
  // Megatron's sequence parallelism: the stream is split by length, projections by heads.
  const std::string layout = "heads:m; @/*norm*/ length:m";
  const int64_t stream = 16 * 16 * 256 * 4 / 2;  // bytes that each of two ranks lacks
  Sent forward = sent(g, "m:2", layout, {y}, false);
  CHECK(forward.count["all_gather"] == 1);
  CHECK(forward.bytes["all_gather"] == stream);
  minimize(loss, constant(g, 0.1), sgd());
  Sent step = sent(g, "m:2", layout, {loss}, true);
  CHECK(step.count["all_gather"] == 1);
  CHECK(step.count["reduce_scatter"] == 1);  // of the stream's gradient
  CHECK(step.bytes["reduce_scatter"] == stream);
}

TEST_CASE("what is made of nothing is made where it is needed", "[communication]") {
  Graph g;
  Tensor positions = iota(g, from, DType::float32);
  Tensor made = sort(positions, "from").named("made");
  Tensor computed = sort(exp(positions), "from").named("computed");
  CHECK(sent(g, "p:4", "from:p", {made}, false).bytes.empty());
  CHECK(sent(g, "p:4", "from:p", {computed}, false).count.at("all_gather") == 1);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
