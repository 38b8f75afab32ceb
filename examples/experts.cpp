// A language model whose feed-forward layers are mixtures of experts, for the command line:
//   example_experts train experts --data data/moby-dick.txt --mesh "data:2;expert:2"
//   example_experts verify experts --mesh "data:2;expert:2" --dtype bfloat16

#include "tessera/cli.h"
#include "tessera/tessera.h"
using namespace tessera;

namespace {

nn::Model build(Graph& g, const Config& c, int64_t size, bool partial) {
  const Dim batch = nn::batch_dim(size, partial), length("length", c.integer("model.length"));
  const Dim vocab("vocab", 256), d_model("d_model", c.integer("model.d_model"));
  const DType dtype = parse_dtype(c.text("train.dtype").c_str());
  const DType stored = dtype == DType::float64 ? dtype : DType::float32;
  Tensor inputs = g.input("inputs", {batch, length}, DType::int32);
  Tensor targets = g.input("targets", {batch, length}, DType::int32);
  Tensor x = nn::embedding(inputs, "embedding", vocab, {d_model}, nn::normal(0.02), stored);
  x = cast(x + g.parameter("position", {length, d_model}, nn::normal(0.02), stored), dtype);

  nn::MultiHeadOptions attention;
  attention.heads = 4;
  attention.d_head = d_model.size / 4;
  attention.attention.causal = true;
  nn::MoeOptions experts;
  experts.experts = Dim("experts", c.integer("model.experts"));
  experts.hidden = Dim("ff", c.integer("model.ff"));
  experts.expert.activations = {"silu", "linear"};  // SwiGLU
  experts.routing.choices = c.integer("model.choices");
  experts.dispatch_capacity = c.number("model.dispatch_capacity");
  Tensor balance, load;
  const int64_t layers = c.integer("model.layers");
  for (int64_t i = 0; i < layers; ++i) {
    const Scope scope(g, "block", i, layers);
    x = x + nn::self_attention(nn::norm(x, "norm1", "d_model"), "attention", "d_model", attention);
    const nn::Moe moe = nn::moe(nn::norm(x, "norm2", "d_model"), "moe", "d_model", experts);
    x = x + moe.y;
    balance = i == 0 ? moe.loss : balance + moe.loss;
    load = i == 0 ? moe.routing.load : load + moe.routing.load;
  }
  nn::Model model;
  model.logits = nn::dense(nn::norm(x, "norm", "d_model"), "head", {"d_model"}, {vocab}, false, 0.5)
                     .named("logits");
  Tensor loss = mean_all(cross_entropy(model.logits, targets, "vocab"));
  model.loss = (loss + cast(balance, loss.dtype())).named("loss");
  model.inputs = {inputs, targets};
  // In the log: the choices of the busiest expert, in terms of the mean, over all layers.
  const double mean = static_cast<double>(size * length.size * experts.routing.choices) /
                      static_cast<double>(experts.experts.size);
  model.metrics = {{"load", load.named("load") / (mean * static_cast<double>(layers))}};
  return model;
}

ModelSpec experts() {
  ModelSpec spec;
  spec.name = "experts";
  spec.help = "A decoder language model with mixtures of experts.";
  spec.keys = {{"model.layers", "2", "Number of blocks."},
               {"model.d_model", "64", "Width of the residual stream."},
               {"model.ff", "128", "Width of an expert."},
               {"model.experts", "4", "Number of experts."},
               {"model.choices", "2", "Experts for each token."},
               {"model.dispatch_capacity", "2",
                "Places for the rows that a rank gets from another, as a multiple of their mean."},
               {"model.length", "64", "Number of tokens in an example."}};
  spec.build = build;
  spec.data = [](const Config& c, bool held_out) -> std::unique_ptr<DataSource> {
    TextOptions o;
    o.length = c.integer("model.length");
    o.vocabulary = 256;
    (held_out ? o.first : o.last) = 0.9;
    return std::make_unique<TextData>(c.text("data.path"), o);
  };
  spec.tokens = [](const Config& c) { return c.integer("model.length"); };
  spec.tiny = {
      {"model.d_model", "16"}, {"model.ff", "12"}, {"model.length", "8"}, {"train.batch", "8"}};
  spec.layout = "batch:data+expert;experts:expert";
  spec.documented = {"batch,experts:expert", "batch:data;experts:expert",
                     "batch:data+expert;experts:expert", "batch,experts:expert;ff,heads:model"};
  return spec;
}

}  // namespace

int main(int argc, char** argv) { return run_cli(argc, argv, {experts()}); }
