// Rows of the layers: their parameters are operands like any other.
#include <cmath>

#include "ops/op_cases.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Wholes = std::vector<Whole>;

const Dim batch("batch", 3), length("length", 4), model("model", 5), ff("ff", 6),
    experts("experts", 2);
const std::vector<std::string> kSplits = {"batch", "length", "model", "ff", "experts"};

CaseInput x_in() { return real("x", {batch, length, model}); }

OpCase layer(const std::string& name, std::vector<CaseInput> in,
             const std::function<Tensor(const Tensors&)>& build) {
  return {name, std::move(in), kSplits,
          [build](Graph&, const Tensors& x) -> Tensors { return {build(x)}; }};
}

/// A function of each element of the first operand.
OpCase each_element(const std::string& name, const std::function<Tensor(Tensor)>& build,
                    double (*expected)(double)) {
  OpCase row = layer(name, {real("x", {batch, model}, -3, 3)},
                     [=](const Tensors& x) { return build(x[0]); });
  row.expect = [=](const Wholes& in) {
    Whole out = in[0];
    for (double& v : out.data) v = expected(v);
    return out;
  };
  return row;
}

void add_dense(std::vector<OpCase>& rows) {
  OpCase dense = layer("dense", {x_in()}, [](const Tensors& x) {
    return nn::dense(x[0], "layer", {"length", "model"}, {ff, Dim("out", 2)});
  });
  dense.expect = [](const Wholes& in) {
    Whole y = brute_einsum({in[0], in[1]}, Whole({"batch", "ff", "out"}, {3, 6, 2}));
    for (int64_t i = 0; i < y.elements(); ++i) y.data[i] += in[2].data[i % 12];
    return y;
  };
  rows.push_back(dense);
  rows.push_back(layer("dense_to_its_own_dim", {x_in()}, [](const Tensors& x) {
    nn::DenseOptions o;
    o.activations = {"tanh"};
    return nn::dense(x[0], "layer", {"model"}, {Dim("model", 3)}, o);
  }));
  rows.push_back(
      layer("dense_of_experts", {real("x", {experts, batch, model})}, [](const Tensors& x) {
        nn::DenseOptions o;
        o.stacked = {"experts"};
        return nn::dense(x[0], "layer", {"model"}, {ff}, o);
      }));
  rows.push_back(layer("dense_with_lora", {x_in()}, [](const Tensors& x) {
    nn::DenseOptions o;
    o.lora = {.rank = 2, .alpha = 3};
    return nn::dense(x[0], "layer", {"length", "model"}, {ff, Dim("model", 3)}, o);
  }));
  rows.push_back(layer("dense_of_experts_with_lora", {real("x", {experts, batch, model})},
                       [](const Tensors& x) {
                         nn::DenseOptions o;
                         o.stacked = {"experts"};
                         o.lora = {.rank = 2, .targets = {"layer"}};
                         return nn::dense(x[0], "layer", {"model"}, {ff}, o);
                       }));
  rows.push_back(layer("dense_product", {x_in()}, [](const Tensors& x) {
    return nn::dense_product(x[0], "layer", {"model"}, {ff}, {"silu", "linear"});
  }));
  rows.push_back(layer("feed_forward", {x_in()}, [](const Tensors& x) {
    return nn::feed_forward(x[0], "layer", "model", ff, {.activations = {"gelu"}});
  }));
  // Weights of unit variance, scaled where they are used.
  rows.push_back(layer("dense_of_unit_variance", {x_in(), parameter(real("w", {model, ff}))},
                       [](const Tensors& x) {
                         return einsum({x[0], x[1]}, {batch, length, ff}) / std::sqrt(5.0);
                       }));
}

void add_others(std::vector<OpCase>& rows) {
  const CaseInput image =
      real("x", {Dim("batch", 2), Dim("height", 5), Dim("width", 4), Dim("model", 2)});
  for (bool transposed : {false, true}) {
    rows.push_back(
        layer(transposed ? "conv_transpose_layer" : "conv_layer", {image}, [=](const Tensors& x) {
          nn::ConvLayerOptions o;
          o.transposed = transposed;
          const Shape window{Dim("height", 3), Dim("width", 2)};
          return nn::conv_layer(x[0], "layer", window, "model", Dim("ff", 3), o);
        }));
    rows.back().splits = {"batch", "height", "width", "model", "ff"};
  }
  rows.push_back(layer("embedding",
                       {integers("tokens", {batch, length}, 0, 6), real("x", Shape{model})},
                       [](const Tensors& x) {
                         const Dim vocab("vocab", 7);
                         return x[1] * nn::embedding(x[0], "table", vocab, Shape{model},
                                                     nn::normal(1), x[1].dtype());
                       }));
  rows.back().splits.push_back("vocab");
  rows.push_back(layer("rms_norm_layer", {x_in()},
                       [](const Tensors& x) { return nn::rms_norm(x[0], "norm", "model"); }));
  rows.push_back(
      layer("norm", {x_in()}, [](const Tensors& x) { return nn::norm(x[0], "norm", "model"); }));
  // One half of the pair gets a function of the other: y = (x2, x1 + f(x2)) (RevNet).
  rows.push_back({"reversible_half_residual",
                  {real("x1", {batch, model}), real("x2", {batch, model})},
                  kSplits,
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {x[1], x[0] + nn::feed_forward(x[1], "f", "model", ff)};
                  }});
}

void add_losses(std::vector<OpCase>& rows) {
  const CaseInput logits = real("logits", {batch, model}, -40, 40);
  OpCase sigmoid =
      layer("sigmoid_cross_entropy", {logits, constant_of(real("labels", {batch, model}, 0, 1))},
            [](const Tensors& x) { return nn::sigmoid_cross_entropy(x[0], x[1]); });
  sigmoid.expect = [](const Wholes& in) {
    Whole out = in[0];
    for (int64_t i = 0; i < out.elements(); ++i) {
      const double x = in[0].data[i];
      out.data[i] = std::max(x, 0.0) - x * in[1].data[i] + std::log1p(std::exp(-std::abs(x)));
    }
    return out;
  };
  rows.push_back(sigmoid);
  OpCase weights = layer("nonzero_weights", {integers("labels", {batch, length}, 0, 2)},
                         [](const Tensors& x) { return nn::nonzero_weights(x[0]); });
  weights.expect = [](const Wholes& in) {
    Whole out = in[0];
    for (double& v : out.data) v = v != 0;
    return out;
  };
  rows.push_back(weights);
  OpCase smooth = layer("smoothed", {integers("labels", {batch}, 0, 4)},
                        [](const Tensors& x) { return nn::smoothed(x[0], model, 0.2); });
  smooth.expect = [](const Wholes& in) {
    Whole out({"batch", "model"}, {3, 5});
    for (int64_t i = 0; i < 15; ++i)
      out.data[i] = in[0].data[i / 5] == double(i % 5) ? 1 - 0.2 : 0.2 / 4;
    return out;
  };
  smooth.tolerance64 = 1e-7;  // the result is float32
  rows.push_back(smooth);
}

void add_activations(std::vector<OpCase>& rows) {
  rows.push_back(each_element(
      "activate_swish", [](Tensor x) { return nn::activate(x, "swish"); },
      [](double x) { return x / (1 + std::exp(-x)); }));
  rows.push_back(each_element(
      "activate_leaky_relu", [](Tensor x) { return nn::activate(x, "leaky_relu"); },
      [](double x) { return x > 0 ? x : 0.2 * x; }));
  const auto random = [&](const std::string& name, const std::function<Tensor(Tensor)>& build) {
    OpCase row = layer(name, {x_in()}, [=](const Tensors& x) { return build(x[0]); });
    row.random = true;
    rows.push_back(row);
  };
  random("dropout_shared", [](Tensor x) { return nn::dropout_shared(x, 0.3, {"length"}); });
  random("dropout_at",
         [](Tensor x) { return nn::dropout_at(x, constant(x.graph(), 0.3, x.dtype())); });
  random("jitter", [](Tensor x) { return nn::jitter(x, 0.1); });
  OpCase clipped = layer("clip_gradient", {x_in()},
                         [](const Tensors& x) { return nn::clip_gradient(x[0], 0.01); });
  clipped.has_gradient = false;  // not that of its value, on purpose
  rows.push_back(clipped);
}

}  // namespace

std::vector<OpCase> layer_cases() {
  std::vector<OpCase> rows;
  add_dense(rows);
  add_others(rows);
  add_losses(rows);
  add_activations(rows);
  return rows;
}

}  // namespace tessera::test
