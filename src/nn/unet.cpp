// The channel dims `filters` and `filters2` alternate: a convolution contracts one and makes the
// other. With an even number of convolutions a level begins and ends with `filters`.
#include <cmath>

#include "base/fail.h"
#include "tessera/nn.h"

namespace tessera::nn {

namespace {

class Unet {
 public:
  Unet(Graph& g, const UnetOptions& o) : g_(g), o_(o) {
    TESSERA_REQUIRE(o.spatial.size() == 2 || o.spatial.size() == 3,
                    "[unet] {} spatial dims; there are two or three", o.spatial.size());
    TESSERA_REQUIRE(o.levels >= 1 && o.convolutions >= 1 && o.filters >= 1,
                    "[unet] {} levels of {} convolutions with {} filters; each is at least 1",
                    o.levels, o.convolutions, o.filters);
    TESSERA_REQUIRE(static_cast<int64_t>(o.class_weights.size()) == o.classes,
                    "[unet] {} class weights for {} classes", o.class_weights.size(), o.classes);
    for (const Dim& d : o.spatial) {
      const int64_t multiple = int64_t{1} << (o.levels - 1);
      TESSERA_REQUIRE(d.size % multiple == 0,
                      "[unet] dim '{}' of size {} cannot be halved {} times; take a multiple of {}",
                      d.name, d.size, o.levels - 1, multiple);
    }
  }

  Model build() {
    std::vector<Dim> dims = {Dim("batch", o_.batch)};
    dims.insert(dims.end(), o_.spatial.begin(), o_.spatial.end());
    const Tensor labels = g_.input("labels", Shape(dims), DType::int32);
    dims.emplace_back("channels", o_.channels);
    const Tensor images = g_.input("images", Shape(dims), o_.dtype);
    Scope scope(g_, "unet");
    Tensor x = images;
    channel_ = "channels";
    std::vector<Tensor> aside;
    for (int64_t level = 0; level < o_.levels; ++level) {
      x = block(x, fmt::format("down{}", level), o_.filters << level);
      if (level + 1 == o_.levels) break;
      aside.push_back(x);
      PoolOptions halves{{}};
      for (const Dim& d : o_.spatial) halves.dims.push_back({d.name});
      x = max_pool(x, halves);
    }
    for (int64_t level = o_.levels - 1; level-- > 0;) {
      x = up(x, fmt::format("up{}", level), o_.filters << level, aside[static_cast<size_t>(level)]);
    }
    const Tensor logits =
        dense(x, "head", {channel_}, Shape{Dim("classes", o_.classes)}).named("logits");
    return {loss(logits, labels), logits, {images, labels}};
  }

 private:
  std::string next_channel() const { return channel_ == "filters" ? "filters2" : "filters"; }

  Tensor filter(const std::string& name, int64_t window, const Dim& in, const Dim& out) {
    std::vector<Dim> dims;
    std::vector<std::string> fan_in = {in.name};
    for (const Dim& d : o_.spatial) {
      dims.emplace_back("filter_" + d.name, window);
      fan_in.push_back(dims.back().name);
    }
    dims.push_back(in);
    dims.push_back(out);
    return g_.parameter(name, Shape(dims), scaled_normal(fan_in, 1.4), o_.dtype);
  }

  ConvOptions options(int64_t stride) const {
    ConvOptions result;
    for (const Dim& d : o_.spatial) result.dims.push_back({d.name, "", stride});
    return result;
  }

  /// Convolutions of size 3, each with norm, leaky relu and dropout.
  Tensor block(Tensor x, const std::string& name, int64_t filters) {
    Scope scope(g_, name);
    for (int64_t c = 0; c < o_.convolutions; ++c) {
      Scope inner(g_, fmt::format("conv{}", c));
      const Dim out(next_channel(), filters);
      x = conv(x, filter("filter", 3, x.dim(channel_), out), options(1));
      channel_ = out.name;
      x = leaky_relu(batch_norm(x, "norm", channel_, {.training = o_.training}), 0.1);
      if (o_.training && o_.dropout > 0) x = dropout(x, o_.dropout);
    }
    return x;
  }

  /// Doubles the spatial sizes and concatenates `aside`, the activations saved on the way down.
  Tensor up(Tensor x, const std::string& name, int64_t filters, Tensor aside) {
    {
      Scope scope(g_, name);
      const Dim out(next_channel(), filters);
      x = conv_transpose(x, filter("filter", 2, x.dim(channel_), out), options(2));
      const std::string had = aside.shape().has(out.name) ? out.name : channel_;
      channel_ = out.name;
      if (had != channel_) aside = rename(aside, had, channel_);
    }
    return block(concat({x, aside}, channel_), name + "_block", filters);
  }

  /// The weighted mean of the cross-entropy, plus `dice` times the dice loss.
  Tensor loss(Tensor logits, Tensor labels) {
    const Dim classes("classes", o_.classes);
    const Tensor hot = one_hot(labels, classes, 1, 0, o_.dtype);
    Tensor weights = constant(g_, 0, o_.dtype, {classes});
    for (int64_t c = 0; c < o_.classes; ++c) {
      const Tensor at = constant(g_, static_cast<double>(c), DType::int32);
      weights =
          weights + one_hot(at, classes, o_.class_weights[static_cast<size_t>(c)], 0, o_.dtype);
    }
    const Tensor weight = einsum({hot, weights}, labels.shape());
    Tensor loss = mean_all(weight * cross_entropy(logits, labels, "classes"));
    if (o_.dice > 0) {
      const Tensor share = softmax(logits, "classes");
      const Axes places(labels.shape().names());
      // relu: not below 0 anyway. A sum that is divided by another one is exchanged after it; this
      // one then goes along with it.
      const Tensor both = relu(reduce_sum(share * hot, places)),
                   all = reduce_sum(share, places) + reduce_sum(hot, places);
      loss = loss + (1.0 - mean_all((both * 2.0 + o_.dice_eps) / (all + o_.dice_eps))) * o_.dice;
    }
    return loss.named("loss");
  }

  Graph& g_;
  const UnetOptions& o_;
  std::string channel_;
};

}  // namespace

Tensor batch_norm(Tensor x, const std::string& name, const Axes& channels,
                  const BatchNormOptions& o, Loc at) {
  return on_behalf_of("batch_norm", at, [&]() -> Tensor {
    Graph& g = x.graph();
    TESSERA_REQUIRE(
        o.eps >= 0 && o.momentum >= 0 && o.momentum <= 1,
        "[batch_norm] eps {} and momentum {}: the first is not negative, the second in [0, 1] "
        "({})",
        o.eps, o.momentum, where(at));
    Scope scope(g, name);
    std::vector<Dim> dims;
    for (const std::string& d : channels.names()) dims.push_back(x.dim(d));
    const Shape shape(dims);
    TESSERA_REQUIRE(
        shape.rank() < x.shape().rank(),
        "[batch_norm] all dims of x {} are channels; the statistics are taken over the others, "
        "of which there is at least one ({})",
        x.shape().to_string(), where(at));
    const DType stored = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    auto as_x = [&](Tensor t) { return t.dtype() == x.dtype() ? t : cast(t, x.dtype(), at); };
    const Tensor scale = g.parameter("scale", shape, ones(), stored, at),
                 bias = g.parameter("bias", shape, zeros(), stored, at);
    const Tensor mean = g.state("mean", shape, zeros(), stored, at),
                 variance = g.state("variance", shape, ones(), stored, at);
    if (o.training) {
      const Axes others(x.shape().without(channels.names()).names());
      const BatchNormed normed = batch_normed(x, scale, bias, others, o.eps, at);
      auto follow = [&](Tensor running, Tensor now) {
        g.update(running, running * o.momentum + stop_gradient(now, at) * (1 - o.momentum), at);
      };
      follow(mean, normed.mean);
      follow(variance, normed.variance);
      return normed.y;
    }
    const Tensor factor = mul(rsqrt(as_x(variance) + o.eps, at), as_x(scale), at);
    return add(mul(sub(x, as_x(mean), at), factor, at), as_x(bias), at);
  });
}

Model unet(Graph& g, const UnetOptions& options) { return Unet(g, options).build(); }

}  // namespace tessera::nn
