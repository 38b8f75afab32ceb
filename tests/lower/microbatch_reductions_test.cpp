// Gradients of microbatches are added up on each rank and reduced once a step, whatever computes
// them; and every collective of a step has a reason.
#include <map>

#include "support/catch.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"
#include "tessera/nn_moe.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Build = std::function<Tensor(Graph&, int64_t batch)>;

std::vector<CollectiveReport> collectives_of(const Build& build, int64_t microbatches,
                                             const std::string& mesh, const std::string& layout) {
  Graph g;
  const Minimized step = minimize_in_microbatches(
      g, "batch", microbatches, [&] { return Loss(build(g, 16 / microbatches)); },
      constant(g, 0.01), adam());
  const CompileOptions options{
      Mesh::parse(mesh), Layout::parse(layout), {{"train", {step.loss}, true}}};
  return explain(g, options).functions.back().collectives;
}

/// A gpt changed by `change`.
Build gpt_with(const std::function<void(nn::GptOptions&)>& change) {
  return [change](Graph& g, int64_t batch) {
    nn::GptOptions o = small_gpt(DType::float32);
    o.batch = batch;
    change(o);
    return nn::gpt(g, o).loss;
  };
}

/// Tokens that choose 2 of 4 experts.
Tensor expert_loss(Graph& g, int64_t batch) {
  const Dim tokens("batch", batch), model("model", 8), ff("ff", 6), experts("experts", 4);
  const auto parameter = [&](const char* name, const Shape& dims) {
    return g.parameter(name, dims, nn::normal(0.5));
  };
  Tensor x = g.input("x", {tokens, model}, DType::float32);
  Tensor logits = einsum({x, parameter("router", {model, experts})}, {tokens, experts});
  const nn::Routing routing = nn::choose(logits, "batch", "experts");
  nn::Experts weights;
  weights.up = {parameter("up", {experts, model, ff})};
  weights.down = parameter("down", {experts, ff, model});
  return mean_all(square(nn::experts(x, routing.indices, routing.gates, weights)));
}

const std::map<std::string, Build>& models() {
  static const std::map<std::string, Build> models = {
      {"float32", gpt_with([](nn::GptOptions&) {})},
      {"bfloat16", gpt_with([](nn::GptOptions& o) { o.dtype = DType::bfloat16; })},
      {"layers in a loop", gpt_with([](nn::GptOptions& o) {
         o.dtype = DType::bfloat16;
         o.scan = true;
       })},
      {"float8", gpt_with([](nn::GptOptions& o) {
         o.dtype = DType::bfloat16;
         o.float8 = true;
       })},
      {"loss by blocks", gpt_with([](nn::GptOptions& o) { o.loss_blocks = 3; })},
      {"experts", expert_loss}};
  return models;
}

TEST_CASE("sums over ranks are as many with 4 microbatches as with 2", "[communication]") {
  for (const auto& [name, build] : models()) {
    const auto sums = [&](int64_t microbatches, const char* layout) {
      std::map<std::string, int64_t> times;
      for (const CollectiveReport& c : collectives_of(build, microbatches, "data:2", layout)) {
        const bool sums = c.kind == "all_reduce" || c.kind == "reduce_scatter";
        // Of float8: the largest element of a microbatch, by which it is scaled.
        if (sums && c.rule.find("(max over") == std::string::npos)
          times[c.kind + " " + c.tensor] += c.times;
      }
      return times;
    };
    for (const char* layout : {"batch:data", "batch:data;@state d_model?,model?:data"}) {
      INFO(name << ", " << layout);
      const std::map<std::string, int64_t> two = sums(2, layout);
      CHECK(!two.empty());
      CHECK(two == sums(4, layout));
      for (const auto& [what, times] : two) {
        INFO(what);
        CHECK(times == 1);
      }
    }
  }
}

TEST_CASE("every collective of a step has a reason", "[communication]") {
  for (const auto& [name, build] : models()) {
    for (const int64_t microbatches : {1, 2}) {
      for (const char* layout : {"batch:a+b", "batch:a;heads?,ff,vocab?:b", "batch:a;length?:b",
                                 "batch:a;@params d_model?,model?:b", "batch:a;experts?:b"}) {
        INFO(name << ", " << microbatches << " microbatches, " << layout);
        for (const CollectiveReport& c : collectives_of(build, microbatches, "a:2;b:2", layout)) {
          INFO(c.kind << " of " << c.tensor << " over " << c.axes);
          CHECK(c.rule != "");
        }
      }
    }
  }
}

TEST_CASE("what stages sum has a reason", "[communication][pipeline]") {
  const Build tied = gpt_with([](nn::GptOptions& o) {
    o.scan = true;
    o.tied = true;
  });
  for (const CollectiveReport& c :
       collectives_of(tied, 4, "pipe:2;data:2", "layers,vocab:pipe;batch:data")) {
    INFO(c.kind << " of " << c.tensor << " over " << c.axes);
    CHECK(c.rule != "");
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
