// Losses.
#include <algorithm>
#include <cmath>

#include "pytorch/aten.h"
#include "tessera/nn_layers.h"

namespace tessera::pytorch {

namespace {

enum class Reduction { none, mean, sum };

Tensor reduced(const Tensor& x, int64_t reduction) {
  if (static_cast<Reduction>(reduction) == Reduction::none) return x;
  return static_cast<Reduction>(reduction) == Reduction::mean ? mean_all(x) : sum_all(x);
}

/// -sum of labels log softmax(logits), whose labels are probabilities of the classes in axis 1.
std::vector<Value> soft_cross_entropy(Call& c, Value logits, Value labels) {
  const int64_t reduction = c.whole("reduction", 1);
  const double smoothing = c.number("label_smoothing", 0);
  if (logits.axes.size() > 2) logits = channels_last(c, logits), labels = channels_last(c, labels);
  const bool keeps = static_cast<Reduction>(reduction) == Reduction::none;
  return {
      c.joined(keeps ? "...c,...c->..." : "...c,...c->", {logits, labels}, [&](const Joined& j) {
        const Axes classes(names_of(j.of('c')));
        Tensor y = Call::having(j.x[1], j.of('c'));
        if (smoothing > 0)
          y = y * (1 - smoothing) + smoothing / static_cast<double>(merged(j.of('c')).size);
        const Tensor loss =
            neg(reduce_sum(y * log_softmax(Call::having(j.x[0], j.of('c')), classes), classes));
        return tessera::cast(reduced(loss, reduction), c.dtype());
      })};
}

std::vector<Value> cross_entropy_rule(Call& c) {
  Value logits = c.value("self");
  const Value labels = c.value("target");
  if (c.is_given("weight")) c.refuse("weighs classes, which Tessera does not know");
  if (is_floating(labels.dtype)) return soft_cross_entropy(c, logits, labels);
  if (logits.axes.size() > 2) logits = channels_last(c, logits);
  const int64_t ignored = c.whole("ignore_index", -100), reduction = c.whole("reduction", 1);
  const double smoothing = c.number("label_smoothing", 0);
  const bool keeps = static_cast<Reduction>(reduction) == Reduction::none;
  return {c.joined(keeps ? "...c,...->..." : "...c,...->", {logits, labels}, [&](const Joined& j) {
    const Dim classes = merged(j.of('c'));
    std::vector<Dim> rows;
    for (const auto& [label, dims] : j.dims)
      if (label != 'c') rows.insert(rows.end(), dims.begin(), dims.end());
    const Tensor x = merge(Call::having(j.x[0], j.of('c')), j.of('c'), classes);
    const Tensor all = Call::having(j.x[1], rows);
    const Tensor counts = not_equal(all, static_cast<double>(ignored));
    const Tensor safe = where(counts, all, 0.0);
    Tensor loss =
        smoothing == 0
            ? cross_entropy(x, safe, classes.name)
            : cross_entropy(x,
                            nn::smoothed(safe, classes,
                                         smoothing * static_cast<double>(classes.size - 1) /
                                             static_cast<double>(classes.size),
                                         x.dtype()),
                            classes.name);
    loss = where(counts, loss, 0.0);
    if (keeps) return tessera::cast(loss, c.dtype());
    const Tensor total = sum_all(loss);
    if (static_cast<Reduction>(reduction) == Reduction::sum) return tessera::cast(total, c.dtype());
    return tessera::cast(total / sum_all(tessera::cast(counts, loss.dtype())), c.dtype());
  })};
}

/// Of classes that are the last axis; with a shift, label i + shift belongs to logits i along
/// axis 1.
std::vector<Value> next_token_loss(Call& c) {
  const Value logits = c.value("self"), labels = c.value("target");
  const int64_t shifted = c.whole("shift", 0);
  return {c.joined("...c,...->", {logits, labels}, [&](const Joined& j) {
    const Dim classes = merged(j.of('c'));
    const Tensor x = merge(Call::having(j.x[0], j.of('c')), j.of('c'), classes);
    if (shifted == 0)
      return tessera::cast(mean_all(cross_entropy(x, j.x[1], classes.name)), c.dtype());
    if (labels.axes.size() < 2 || c.dims(labels.axes[1]).size() != 1)
      c.refuse("shifts labels that have no positions");
    const std::vector<Dim> along = j.dims.at(1 - static_cast<int>(labels.axes.size()) + 0);
    const Dim length = along.at(0);
    const Tensor next = shift(j.x[1], length.name, -shifted);
    const Tensor counts = less(iota(c.graph(), length), static_cast<double>(length.size - shifted));
    const Tensor losses = where(counts, cross_entropy(x, next, classes.name), 0.0);
    return tessera::cast(mean_all(losses) * (static_cast<double>(length.size) /
                                             static_cast<double>(length.size - shifted)),
                         c.dtype());
  })};
}

/// Elements of `self` and `target`, and of `weight` if there is one, by the reduction.
Value element_loss(Call& c, const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
  std::vector<Value> xs = {c.value("self"), c.value("target")};
  if (c.is_given("weight")) xs.push_back(c.value("weight"));
  const Value y = c.pointwise(xs, c.dtype(), [&](const auto& x) {
    const Tensor loss = f(x[0], x[1]);
    return x.size() > 2 ? loss * x[2] : loss;
  });
  const int64_t reduction = c.whole("reduction", 1);
  if (static_cast<Reduction>(reduction) == Reduction::none) return y;
  return c.made({}, [&] { return reduced(c.full(y), reduction); });
}

template <auto f>
std::vector<Value> elementwise(Call& c) {
  return {element_loss(c, f)};
}

/// Squares up to `delta`, which is `beta` for smooth_l1, and straight lines beyond.
std::vector<Value> smooth_error(Call& c) {
  const bool smooth = c.is_given("beta") || c.node().target.find("smooth") != std::string::npos;
  const double bend = c.number(smooth ? "beta" : "delta", 1);
  return {element_loss(c, [&](const Tensor& a, const Tensor& b) {
    const Tensor d = abs(a - b);
    if (bend == 0) return d;
    const Tensor near = square(d) * (smooth ? 0.5 / bend : 0.5);
    return where(less(d, bend), near, (d - bend / 2) * (smooth ? 1 : bend));
  })};
}

std::vector<Value> divergence(Call& c) {
  const bool logarithms = c.flag("log_target", false);
  return {element_loss(c, [&](const Tensor& x, const Tensor& target) {
    if (logarithms) return exp(target) * (target - x);
    const Tensor none = equal(target, 0.0);
    return where(none, 0.0, target * (log(where(none, 1.0, target)) - x));
  })};
}

std::vector<Value> sigmoid_loss(Call& c) {
  const std::optional<Value> positive = c.find("pos_weight");
  if (positive) c.refuse("weighs positive labels, which Tessera does not know");
  return {element_loss(c, [](const Tensor& x, const Tensor& y) {
    return maximum(x, zeros_like(x)) - x * y + log1p(exp(neg(abs(x))));
  })};
}

/// Of log probabilities.
std::vector<Value> negative_log_likelihood(Call& c) {
  Value x = c.value("self");
  const Value labels = c.value("target");
  if (c.is_given("weight")) c.refuse("weighs classes, which Tessera does not know");
  if (x.axes.size() > 2) x = channels_last(c, x);
  const int64_t ignored = c.whole("ignore_index", -100), reduction = c.whole("reduction", 1);
  const bool keeps = static_cast<Reduction>(reduction) == Reduction::none;
  return {c.joined(keeps ? "...c,...->..." : "...c,...->", {x, labels}, [&](const Joined& j) {
    const Dim classes = merged(j.of('c'));
    std::vector<Dim> rows;
    for (const auto& [label, dims] : j.dims)
      if (label != 'c') rows.insert(rows.end(), dims.begin(), dims.end());
    const Tensor all = Call::having(j.x[1], rows);
    const Tensor counts = not_equal(all, static_cast<double>(ignored));
    const Tensor t = merge(Call::having(j.x[0], j.of('c')), j.of('c'), classes);
    const Tensor loss = where(counts, neg(gather(t, where(counts, all, 0.0), classes.name)), 0.0);
    if (keeps) return loss;
    const Tensor total = sum_all(loss);
    if (static_cast<Reduction>(reduction) == Reduction::sum) return total;
    return total / sum_all(tessera::cast(counts, loss.dtype()));
  })};
}

/// a b / (|a| |b|) along an axis.
std::vector<Value> cosine(Call& c) {
  const Value a = c.value("x1"), b = c.value("x2");
  const double eps = c.number("eps", 1e-8);
  const size_t rank = std::max(a.axes.size(), b.axes.size()), d = c.axis("dim", rank, 1);
  std::string all;
  for (size_t i = 0; i < rank; ++i) all += static_cast<char>('a' + i);
  const std::string out = all.substr(0, d) + all.substr(d + 1);
  const auto labels = [&](const Value& x) { return all.substr(rank - x.axes.size()); };
  return {c.joined(labels(a) + "," + labels(b) + "->" + out, {a, b}, [&](const Joined& j) {
    const std::vector<Dim> over = j.of(all[d]);
    const Tensor x = Call::having(j.x[0], over), y = Call::having(j.x[1], over);
    const Axes axes(names_of(over));
    const auto size = [&](const Tensor& t) {
      return sqrt(maximum(reduce_sum(square(t), axes), eps * eps));
    };
    return reduce_sum(x * y, axes) / (size(x) * size(y));
  })};
}

#define LOSS(...) \
  elementwise<[](const Tensor& x, const Tensor& y) -> Tensor { return __VA_ARGS__; }>

const Row kLosses[] = {
    {"cross_entropy_loss.default", cross_entropy_rule},
    {"tessera.cross_entropy", next_token_loss},
    {"nll_loss.default nll_loss_nd.default", negative_log_likelihood},
    {"mse_loss.default", LOSS(square(x - y))},
    {"l1_loss.default", LOSS(abs(x - y))},
    {"smooth_l1_loss.default huber_loss.default", smooth_error},
    {"binary_cross_entropy.default",
     LOSS(neg(y* maximum(log(x), -100.0) + (1.0 - y) * maximum(log(1.0 - x), -100.0)))},
    {"binary_cross_entropy_with_logits.default", sigmoid_loss},
    {"kl_div.default", divergence},
    {"cosine_similarity.default", cosine},
};

}  // namespace

std::span<const Row> loss_rows() { return kLosses; }

}  // namespace tessera::pytorch
