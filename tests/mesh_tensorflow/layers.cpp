// The layers of mesh_tensorflow_layers.h.
#include "mesh_tensorflow/layers.h"

namespace tessera::test {

namespace {

using Names = std::vector<std::string>;
const Dim model("model", 6), ff("ff", 8);

void add_dense(MtfRows& rows) {
  rows["dense"] = [](const MtfInputs& x) {
    nn::DenseOptions o;
    o.activations = {"tanh"};
    return nn::dense(x("x"), "layer", {"length", "model"}, {ff, Dim("heads", 2)}, o);
  };
  rows["dense_to_its_own_dim"] = [](const MtfInputs& x) {
    return nn::dense(x("x"), "layer", {"model"}, Shape{model}, false);
  };
  rows["dense_of_experts"] = [](const MtfInputs& x) {
    nn::DenseOptions o;
    o.stacked = {"heads"};
    return nn::dense(x("x"), "layer", {"model"}, Shape{ff}, o);
  };
  const auto product = [&](const std::string& name, const Names& activations) {
    rows[name] = [=](const MtfInputs& x) {
      return nn::dense_product(x("x"), "layer", {"model"}, Shape{ff}, activations);
    };
  };
  product("glu", {"sigmoid", "linear"});
  product("geglu", {"gelu", "linear"});
  product("swiglu", {"swish", "linear"});
  product("reglu", {"relu", "linear"});
  product("product_of_three", {"tanh", "softplus", "elu"});
  const auto feed_forward = [&](const std::string& name, const Names& activations) {
    rows[name] = [=](const MtfInputs& x) {
      nn::FeedForwardOptions o;
      o.activations = activations;
      o.dense.bias = false;
      return nn::feed_forward(x("x"), "layer", "model", ff, o);
    };
  };
  feed_forward("dense_relu_dense", {"relu"});
  feed_forward("gated_feed_forward", {"gelu", "linear"});
}

void add_norms(MtfRows& rows) {
  rows["layer_norm"] = [](const MtfInputs& x) { return nn::norm(x("x"), "layer", "model", 1e-6); };
  rows["true_layer_norm"] = rows["layer_norm"];
  rows["rms_norm"] = [](const MtfInputs& x) { return nn::rms_norm(x("x"), "layer", "model"); };
  for (bool training : {true, false}) {
    rows[training ? "batch_norm_training" : "batch_norm_inference"] = [=](const MtfInputs& x) {
      nn::BatchNormOptions o;
      o.training = training;
      o.momentum = 0.7;
      return nn::batch_norm(x("x"), "layer", "model", o);
    };
    rows[training ? "batch_norm_of_two_dims_training" : "batch_norm_of_two_dims_inference"] =
        [=](const MtfInputs& x) {
          return nn::batch_norm(x("x"), "layer", {"length", "model"},
                                {.training = training, .momentum = 0.7});
        };
  }
}

void add_losses(MtfRows& rows) {
  for (const char* kind : {"cross_entropy", "cross_entropy_soft"}) {
    rows[kind] = [](const MtfInputs& x) { return cross_entropy(x("logits"), x("labels"), "ff"); };
    rows[std::string(kind) + "_z"] = [](const MtfInputs& x) {
      return cross_entropy(x("logits"), x("labels"), "ff", 1e-2);
    };
  }
  rows["sigmoid_cross_entropy"] = [](const MtfInputs& x) {
    return nn::sigmoid_cross_entropy(x("logits"), x("labels"));
  };
  rows["weights_nonzero"] = [](const MtfInputs& x) { return nn::nonzero_weights(x("labels")); };
}

/// Products of the deviations of all pairs of `dim`, over the product of their norms.
Tensor correlation(Tensor x, const std::string& dim) {
  Tensor off = x - reduce_mean(x, Axes(x.shape().without({dim}).names()));
  Tensor a = rename(off, dim, dim + "_1"), b = rename(off, dim, dim + "_2");
  const auto norm = [&](Tensor t, const std::string& d) {
    return sqrt(reduce_sum(square(t), Axes(t.shape().without({d}).names())));
  };
  return einsum({a, b}) / (norm(a, dim + "_1") * norm(b, dim + "_2"));
}

void add_others(MtfRows& rows) {
  rows["embedding"] = [](const MtfInputs& x) {
    return nn::embedding(x("tokens"), "layer", Dim("vocab", 7), Shape{model});
  };
  rows["clip_gradient"] = [](const MtfInputs& x) { return nn::clip_gradient(x("x"), 0.05); };
  rows["clip_gradient_far"] = [](const MtfInputs& x) { return nn::clip_gradient(x("x"), 50); };
  rows["corr"] = [](const MtfInputs& x) { return correlation(x("x"), "model"); };
  rows["compress_mean"] = [](const MtfInputs& x) { return nn::compress_mean(x("x"), "length", 3); };
  rows["reversible_half_residual"] = [](const MtfInputs& x) {
    nn::DenseOptions o;
    o.activations = {"tanh"};
    o.bias = false;
    Tensor f = nn::dense(x("x2"), "f", {"model"}, Shape{model}, o);
    return MtfResults({{"same", x("x2")}, {"changed", x("x1") + f}});
  };
  rows["sinusoids"] = [](const MtfInputs& x) {
    return nn::sinusoids(x.graph, Dim("length", 9), Dim("model", 8));
  };
  // Sums over the parts, not means: what Mesh TensorFlow's models divide themselves.
  rows["microbatches"] = [](const MtfInputs& x) {
    const std::vector<Tensor> sums = sum_over_microbatches(x.graph, "batch", 4, [&] {
      const Dim batch("batch", 2);
      Graph& g = x.graph;
      Tensor examples = g.input("x", {batch, Dim("model", 3)}, DType::float32);
      nn::DenseOptions o;
      o.activations = {"tanh"};
      Tensor y = nn::dense(examples, "layer", {"model"}, Shape{Dim("out", 2)}, o);
      Tensor loss = mean_all(square(y) * g.input("weight", Shape{batch}, DType::float32));
      const std::vector<Tensor> grads = gradients(loss, g.parameters());
      return std::vector<Tensor>{loss, grads[0], grads[1]};
    });
    return MtfResults(
        {{"loss", sums[0]}, {"kernel_gradient", sums[1]}, {"bias_gradient", sums[2]}});
  };
}

}  // namespace

void add_mtf_layers(MtfRows& rows) {
  add_dense(rows);
  add_norms(rows);
  add_losses(rows);
  add_others(rows);
}

}  // namespace tessera::test
