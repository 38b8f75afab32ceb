#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"
#include "tessera/rounding.h"

namespace tessera::nn {

namespace {

constexpr std::string_view kAdapter = ".lora_a";

bool is_adapted(const std::string& layer, const std::string& target) {
  return glob_match(target, layer) || glob_match("*." + target, layer);
}

/// The matrices a and b of LoRA.
struct Adapter {
  Tensor a, b;
};
Adapter adapter(Tensor x, const std::string& name, const std::vector<std::string>& in,
                const Shape& a, const Shape& b, Loc at) {
  // Uniform in +-1 / sqrt(fan_in), as PEFT has it.
  const Initializer first =
      variance_scaling({.in = in,
                        .out = {},
                        .scale = 1.0 / 3,
                        .distribution = VarianceScaling::Distribution::uniform});
  return {parameter_for(x, name + ".lora_a", a, first, at),
          parameter_for(x, name + ".lora_b", b, zeros(), at)};
}

void require_options(const LoraOptions& o, Loc at) {
  TESSERA_REQUIRE(
      o.rank >= 0 && o.alpha > 0 && std::isfinite(o.alpha),
      "[lora] rank {} and alpha {}; a rank of 0 is no adaptation, and alpha is positive ({})",
      o.rank, o.alpha, where(at));
  TESSERA_REQUIRE(o.dropout >= 0 && o.dropout < 1,
                  "[lora] dropout {}; it is a rate from 0 to below 1 ({})", o.dropout, where(at));
}

/// (x a) b, scaled. `inner` are the dims of the result that w has.
Tensor adaptation(Tensor x, const std::string& name, const std::vector<std::string>& in,
                  const std::vector<Dim>& stacked, const std::vector<Dim>& inner,
                  const Shape& result, const LoraOptions& o, Loc at) {
  require_options(o, at);
  const Dim rank("rank", o.rank);
  std::vector<Dim> a = stacked, b = stacked, low;
  for (const std::string& d : in) a.push_back(x.dim(d));
  a.push_back(rank);
  b.push_back(rank);
  b.insert(b.end(), inner.begin(), inner.end());
  for (const Dim& d : x.shape().without(in)) low.push_back(d);
  low.push_back(rank);
  const Adapter made = adapter(x, name, in, Shape(a), Shape(b), at);
  if (o.dropout > 0) x = dropout(x, o.dropout, at);
  Tensor down = einsum({x, made.a}, Shape(low), at);
  return einsum({down, made.b}, result, at) * (o.alpha / static_cast<double>(o.rank));
}

}  // namespace

Tensor adapted(Tensor weights, Tensor x, const std::string& name,
               const std::vector<std::string>& in, const LoraOptions& o,
               const std::vector<std::string>& stacked, Loc at) {
  const std::string& scope = x.graph().scope();
  const std::string layer = scope.empty() ? name : scope + "." + name;
  if (!o.adapts(layer)) return weights;
  TESSERA_REQUIRE(
      o.dropout == 0,
      "[lora] dropout {} with '{}', whose product of LoRA is added to its weights before any x "
      "is multiplied; set the dropout to 0, or leave the layer out of the targets ({})",
      o.dropout, layer, where(at));
  const auto has = [](const std::vector<std::string>& names, const Dim& d) {
    return std::find(names.begin(), names.end(), d.name) != names.end();
  };
  std::vector<Dim> a, b;
  for (const Dim& d : weights.shape()) {
    if (has(stacked, d)) b.push_back(d);
  }
  a = b;
  b.emplace_back("rank", o.rank);
  for (const Dim& d : weights.shape()) {
    if (!has(stacked, d)) (has(in, d) ? a : b).push_back(d);
  }
  a.emplace_back("rank", o.rank);
  const Adapter made = adapter(x, name, in, Shape(a), Shape(b), at);
  return add(
      weights,
      einsum({made.a, made.b}, weights.shape(), at) * (o.alpha / static_cast<double>(o.rank)), at);
}

bool LoraOptions::adapts(const std::string& name) const {
  return rank > 0 && (targets.empty() ||
                      std::any_of(targets.begin(), targets.end(),
                                  [&](const std::string& t) { return is_adapted(name, t); }));
}

void require_adapted(Graph& g, const LoraOptions& o, const std::string& within, Loc at) {
  require_options(o, at);
  if (o.rank == 0) {
    TESSERA_REQUIRE(
        o.targets.empty(),
        "[lora] the targets {} and a rank of 0, which adapts nothing; give a rank, such as 8, or "
        "leave the targets out ({})",
        fmt::join(o.targets, ","), where(at));
    return;
  }
  std::set<std::string> kinds;  // "query" of dense layers
  std::vector<std::string> others, adapted;
  for (const Tensor& p : g.parameters()) {
    const std::string& name = p.name();
    if (!name.starts_with(within + ".")) continue;
    if (name.ends_with(kAdapter)) adapted.push_back(name.substr(0, name.size() - kAdapter.size()));
    const std::string owner = name.substr(0, name.rfind('.'));
    others.insert(others.end(), {name, owner});
    if (name.ends_with(".w")) kinds.insert(owner.substr(owner.rfind('.') + 1));
  }
  for (const std::string& target : o.targets) {
    const auto has = [&](const std::vector<std::string>& names) {
      return std::any_of(names.begin(), names.end(),
                         [&](const std::string& name) { return is_adapted(name, target); });
    };
    const bool is_matched = has(adapted);
    TESSERA_REQUIRE(
        is_matched || !has(others),
        "[lora] '{}' is no dense layer of a block, and others have no matrices of LoRA; leave "
        "it out ({})",
        target, where(at));
    TESSERA_REQUIRE(is_matched, "[lora] no dense layer of '{}' is called like '{}'{} ({})", within,
                    target, suggestion(target, {kinds.begin(), kinds.end()}), where(at));
  }
}

Tensor dense(Tensor x, const std::string& name, const std::vector<std::string>& in,
             const Shape& out, bool bias, double gain, Loc at) {
  DenseOptions options;
  options.bias = bias;
  options.gain = gain;
  return dense(x, name, in, out, options, at);
}

Tensor dense(Tensor x, const std::string& name, const std::vector<std::string>& in,
             const Shape& out, const DenseOptions& o, Loc at) {
  return on_behalf_of("dense", at, [&] {
    TESSERA_REQUIRE(is_floating(x.dtype()), "x is {}; it must be floating, use cast()",
                    to_string(x.dtype()));
    std::vector<Dim> stacked, weights, inner, result, biases;
    for (const std::string& d : o.stacked) stacked.push_back(x.dim(d));
    weights = biases = stacked;
    for (const std::string& d : in) weights.push_back(x.dim(d));
    for (const Dim& d : x.shape().without(in)) result.push_back(d);
    for (const Dim& d : out) {
      const bool clash = std::find(in.begin(), in.end(), d.name) != in.end();
      inner.push_back(clash ? d.renamed("_" + d.name) : d);
      weights.push_back(inner.back());
      result.push_back(inner.back());
      biases.push_back(d);
    }
    const Initializer init = o.init ? o.init : scaled_normal(in, o.gain);
    Tensor w = parameter_for(x, name + ".w", Shape(weights), init, at);
    Tensor y =
        o.float8 ? float8_matmul(x, w, Shape(result), at) : einsum({x, w}, Shape(result), at);
    const std::string& scope = x.graph().scope();
    if (o.lora.adapts(scope.empty() ? name : scope + "." + name))
      y = add(y, adaptation(x, name, in, stacked, inner, Shape(result), o.lora, at), at);
    for (size_t i = 0; i < inner.size(); ++i) {
      const Dim& d = out[static_cast<int>(i)];
      if (inner[i].name != d.name) y = rename(y, inner[i].name, d.name, at);
    }
    if (o.bias) y = add(y, parameter_for(x, name + ".b", Shape(biases), zeros(), at), at);
    for (const std::string& function : o.activations) y = activate(y, function, at);
    return y;
  });
}

Tensor dense_product(Tensor x, const std::string& name, const std::vector<std::string>& in,
                     const Shape& out, const std::vector<std::string>& activations,
                     const DenseOptions& o, Loc at) {
  return on_behalf_of("dense_product", at, [&] {
    TESSERA_REQUIRE(!activations.empty(),
                    "[dense_product] '{}' has no activations; \"linear\" is none ({})", name,
                    where(at));
    Tensor product;
    for (size_t i = 0; i < activations.size(); ++i) {
      const std::string part = activations.size() == 1 ? name : fmt::format("{}{}", name, i);
      Tensor factor = activate(dense(x, part, in, out, o, at), activations[i], at);
      product = product.empty() ? factor : mul(product, factor, at);
    }
    return product;
  });
}

Tensor feed_forward(Tensor x, const std::string& name, const std::string& dim, const Dim& hidden,
                    const FeedForwardOptions& o, Loc at) {
  return on_behalf_of("feed_forward", at, [&] {
    Scope scope(x.graph(), name);
    Tensor h = dense_product(x, "up", {dim}, Shape{hidden}, o.activations, o.dense, at);
    if (o.dropout != 0) h = dropout(h, o.dropout, at);
    return dense(h, "down", {hidden.name}, Shape{x.dim(dim)}, o.dense, at);
  });
}

Tensor conv_layer(Tensor x, const std::string& name, const Shape& window, const std::string& in,
                  const Dim& out, const ConvLayerOptions& o, Loc at) {
  return on_behalf_of("conv_layer", at, [&] {
    ConvOptions options = o.conv;
    std::vector<std::string> fan_in = {in};
    std::vector<Dim> dims;
    for (const Dim& d : window) {
      if (o.conv.dims.empty()) options.dims.push_back({d.name});
      dims.push_back(d.renamed("filter_" + d.name));
      fan_in.push_back(dims.back().name);
    }
    dims.push_back(x.dim(in));
    dims.push_back(out);
    const Initializer init = o.init ? o.init : scaled_normal(fan_in, o.gain);
    Tensor filter = parameter_for(x, name + ".w", Shape(dims), init, at);
    Tensor y = o.transposed ? conv_transpose(x, filter, options, at) : conv(x, filter, options, at);
    return o.bias ? add(y, parameter_for(x, name + ".b", Shape{out}, zeros(), at), at) : y;
  });
}

Tensor embedding(Tensor indices, const std::string& name, const Dim& vocab, const Shape& out,
                 const Initializer& init, DType dtype, Loc at) {
  return on_behalf_of("embedding", at, [&] {
    for (const Dim& d : out) {
      TESSERA_REQUIRE(!indices.shape().has(d.name) && d.name != vocab.name,
                      "dim '{}' of a row is also {}; rename() it there, or give the rows another",
                      d.name,
                      d.name == vocab.name ? "that of the table's rows"
                                           : "one of the indices " + indices.shape().to_string());
    }
    Tensor table = indices.graph().parameter(name + ".w", Shape{vocab}.united(out), init,
                                             stored_dtype(dtype), at);
    return read_as(gather(table, indices, vocab.name, OutOfRange::error, at), dtype);
  });
}

Tensor norm(Tensor x, const std::string& name, const std::string& dim, double eps, Loc at) {
  return on_behalf_of("norm", at, [&] {
    TESSERA_REQUIRE(eps >= 0, "[norm] eps {} is negative ({})", eps, where(at));
    Scope scope(x.graph(), name);
    const Shape shape{x.dim(dim)};
    Tensor scale = parameter_for(x, "scale", shape, ones(), at);
    return layer_norm(x, dim, scale, parameter_for(x, "bias", shape, zeros(), at), eps, at);
  });
}

Tensor rms_norm(Tensor x, const std::string& name, const std::string& dim, double eps, Loc at) {
  return on_behalf_of("rms_norm", at, [&] {
    TESSERA_REQUIRE(eps >= 0, "[rms_norm] eps {} is negative ({})", eps, where(at));
    Scope scope(x.graph(), name);
    return rms_norm(x, dim, parameter_for(x, "scale", Shape{x.dim(dim)}, ones(), at), eps, at);
  });
}

// max(x, 0) - x l + log(1 + e^-|x|) = softplus(x) - x l.
Tensor sigmoid_cross_entropy(Tensor logits, Tensor labels, Loc at) {
  return on_behalf_of("sigmoid_cross_entropy", at, [&] {
    const Shape &x = logits.shape(), &l = labels.shape();
    const bool same = x.without(l.names()).rank() == 0 && l.without(x.names()).rank() == 0;
    TESSERA_REQUIRE(
        same,
        "[sigmoid_cross_entropy] labels {} for logits {}; each logit has a label: the same "
        "dims, use broadcast() ({})",
        l.to_string(), x.to_string(), where(at));
    return sub(softplus(logits, at), mul(logits, labels, at), at);
  });
}

Tensor nonzero_weights(Tensor labels, DType dtype, int64_t padding, Loc at) {
  return on_behalf_of("nonzero_weights", at, [&] {
    Tensor none = constant(labels.graph(), static_cast<double>(padding), labels.dtype(), {}, at);
    return cast(not_equal(labels, none, at), dtype, at);
  });
}

Tensor smoothed(Tensor labels, const Dim& classes, double smoothing, DType dtype, Loc at) {
  return on_behalf_of("smoothed", at, [&] {
    TESSERA_REQUIRE(smoothing >= 0 && smoothing <= 1,
                    "[smoothed] smoothing {} is not in [0, 1] ({})", smoothing, where(at));
    const double rest = smoothing / static_cast<double>(std::max<int64_t>(classes.size - 1, 1));
    return one_hot(labels, classes, 1 - smoothing, rest, dtype, at);
  });
}

Tensor dropout_shared(Tensor x, double rate, const std::vector<std::string>& shared, Loc at) {
  return on_behalf_of("dropout_shared", at, [&] {
    for (const std::string& d : shared) x.dim(d);
    const Shape drawn = x.shape().without(shared);
    return mul(x, dropout(constant(x.graph(), 1, x.dtype(), drawn, at), rate, at), at);
  });
}

Tensor dropout_at(Tensor x, Tensor rate, Loc at) {
  return on_behalf_of("dropout_at", at, [&] {
    TESSERA_REQUIRE(is_floating(x.dtype()), "x is {}; it must be floating, use cast()",
                    to_string(x.dtype()));
    TESSERA_REQUIRE(is_floating(rate.dtype()) && rate.shape().rank() == 0,
                    "the rate is {} {}; it must be a floating scalar", to_string(rate.dtype()),
                    rate.shape().to_string());
    Tensor keep = 1.0 - read_as(rate, x.dtype());
    Tensor drawn = random_uniform(x.graph(), x.shape(), 0, 1, x.dtype(), at);
    return where(less(drawn, keep, at), x / keep, constant(x.graph(), 0, x.dtype()), at);
  });
}

Tensor jitter(Tensor x, double eps, Loc at) {
  return on_behalf_of("jitter", at, [&] {
    TESSERA_REQUIRE(eps >= 0, "[jitter] eps {} is negative ({})", eps, where(at));
    return mul(x, random_uniform(x.graph(), x.shape(), 1 - eps, 1 + eps, x.dtype(), at), at);
  });
}

}  // namespace tessera::nn
