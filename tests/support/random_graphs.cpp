// A pool of floating tensors grows by one with each step. Names of dims fix their sizes, whatever
// made them, so that any two tensors of the pool fit together. Orders of dims, of lists and of
// operands are drawn. In a mixed graph each step computes in a dtype of its own.
#include "support/random_graphs.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "ir/source_ops.h"
#include "ops/sum_to.h"
#include "tessera/nn.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace {

constexpr int kKinds = 20;
constexpr int kMaxRank = 4;
constexpr int64_t kMaxElements = 700;

class Builder {
 public:
  Builder(const Recipe& recipe, RandomModel& model)
      : recipe_(recipe),
        model_(model),
        g_(model.graph),
        base_(recipe.mixed && recipe.data_seed % 4 < 2 ? DType::float32 : DType::float64),
        type_(base_),
        data_(recipe.data_seed) {
    for (size_t i = 0; i < recipe.sizes.size(); ++i) {
      dims_.emplace_back(std::string(1, static_cast<char>('p' + i)), recipe.sizes[i]);
      if (recipe.run_sizes[i][0] == 0) continue;
      dims_[i].is_bounded = true;
      for (size_t r : {0, 1}) model.sizes[r][dims_[i].name] = recipe.run_sizes[i][r];
    }
    pool_.push_back(input({dims_[0], dims_[1]}));
    pool_.push_back(input({dims_[2], dims_[0]}));
    pool_.push_back(parameter({dims_[1], dims_[2]}));
    pool_.push_back(parameter({dims_[2]}));
  }

  void run() {
    for (const RecipeStep& step : recipe_.steps) {
      draws_ = step.draws;
      next_ = 0;
      type_ = drawn_type();
      Tensor result = bounded_again(apply(step.kind));
      if (result.shape().rank() <= kMaxRank && result.shape().elements() <= kMaxElements)
        pool_.push_back(result);
    }
    finish();
  }

 private:
  uint32_t draw(size_t below) {
    return next_ < draws_.size() ? draws_[next_++] % static_cast<uint32_t>(below) : 0;
  }
  /// Of 16 bits only where what two layouts round apart decides nothing: a gradient has jumps.
  DType drawn_type() {
    if (!recipe_.mixed) return base_;
    const bool can_be_short = recipe_.strict_chunks > 0 || recipe_.training == 0;
    const DType types[] = {base_, DType::float32, can_be_short ? DType::bfloat16 : base_};
    return types[draw(std::size(types))];
  }
  Tensor as(Tensor x, DType dtype) { return x.dtype() == dtype ? x : cast(x, dtype); }
  template <class T>
  std::vector<T> shuffled(std::vector<T> list) {
    for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[draw(i)]);
    return list;
  }
  Shape shuffled(const Shape& shape) { return Shape(shuffled(shape.dims())); }
  Tensor turned(Tensor x) { return draw(2) ? transpose(x, shuffled(x.shape())) : x; }
  Tensor any() {
    return turned(as(pool_[pool_.size() - 1 - draw(std::min<size_t>(pool_.size(), 6))], type_));
  }
  const Dim& any_dim() { return dims_[draw(dims_.size())]; }

  double uniform(double lo, double hi) {
    return lo + (hi - lo) * static_cast<double>(data_() >> 11) * 0x1p-53;
  }
  Whole values(const Shape& shape, double lo, double hi) {
    std::vector<int64_t> sizes;
    for (const Dim& d : shape) sizes.push_back(d.size);
    Whole whole(shape.names(), sizes);
    for (double& x : whole.data) x = uniform(lo, hi);
    return whole;
  }
  Tensor input(const Shape& shape) {
    Tensor t = g_.input(fmt::format("x{}", model_.fed.size()), shape, base_);
    model_.fed.emplace_back(t, values(shape, -1, 1));
    return t;
  }
  Tensor indices(const Shape& shape, const Dim& into) {
    int64_t below = into.size;
    for (const auto& sizes : model_.sizes) {
      if (into.is_bounded) below = std::min(below, sizes.at(into.name));
    }
    const DType dtype = recipe_.mixed && draw(2) ? DType::int64 : DType::int32;
    Tensor t = g_.input(fmt::format("i{}", model_.fed.size()), shape, dtype);
    Whole whole = values(shape, 0, static_cast<double>(below));
    for (double& x : whole.data) x = std::floor(x);
    model_.fed.emplace_back(t, whole);
    return t;
  }
  /// Without the bounded dims, which stored tensors cannot have.
  Tensor parameter(const Shape& wanted) {
    std::vector<Dim> dims;
    for (const Dim& d : wanted) {
      if (!d.is_bounded) dims.push_back(d);
    }
    const Shape shape = shuffled(Shape(dims));
    Tensor t = g_.parameter(fmt::format("w{}", model_.stored.size()), shape, nn::zeros(), base_);
    model_.stored.emplace_back(t, values(shape, -1, 1));
    return as(t, type_);
  }

  /// Some of the names, at least `least`, in any order.
  std::vector<std::string> some(const std::vector<std::string>& names, size_t least = 1) {
    std::vector<std::string> chosen;
    for (const std::string& name : names) {
      if (draw(2)) chosen.push_back(name);
    }
    for (size_t i = 0; chosen.size() < least && i < names.size(); ++i) {
      if (std::find(chosen.begin(), chosen.end(), names[i]) == chosen.end())
        chosen.push_back(names[i]);
    }
    return shuffled(chosen);
  }
  Shape some_dims(const Shape& shape, size_t least = 0) {
    std::vector<Dim> dims;
    for (const std::string& name : some(shape.names(), least)) dims.push_back(shape.dim(name));
    return Shape(dims);
  }

  /// Some ops make a fixed dim of a bounded one. It is cut to the size of the run, so that any two
  /// tensors still fit together.
  Tensor bounded_again(Tensor x) const {
    std::vector<Dim> dims = x.shape().dims();
    for (Dim& d : dims) d.is_bounded |= model_.sizes[0].contains(d.name);
    return Shape(dims) == x.shape() ? x : reshape(x, Shape(dims));
  }

  Tensor unary(Tensor x) {
    switch (draw(14)) {
      case 0:
        return tanh(x);
      case 1:
        return sigmoid(x);
      case 2:
        return sin(x);
      case 3:
        return cos(x);
      case 4:
        return exp(tanh(x));
      case 5:
        return -x;
      case 6:
        return square(tanh(x));
      case 7:
        return softplus(x);
      case 8:
        return gelu(x);
      case 9:
        return relu(x + 0.1);
      case 10:
        return log(square(x) + 1.5);
      case 11:
        return rsqrt(square(x) + 0.5);
      case 12:
        return clip(x, -0.7, 0.6);
      default:
        return elu(x);
    }
  }

  Tensor binary(Tensor a, Tensor b) {
    if (a.shape().united(b.shape()).rank() > kMaxRank) return unary(a);
    switch (draw(8)) {
      case 0:
        return a + b;
      case 1:
        return a - b;
      case 2:
        return tanh(a) * b;
      case 3:
        return a / (square(b) + 1.0);
      case 4:
        return maximum(a, b);
      case 5:
        return minimum(a, b);
      case 6:
        return where(a > b, sin(a), b);
      default:
        return a + b * 0.5;
    }
  }

  Tensor product(Tensor a, Tensor b) {
    const Shape all = a.shape().united(b.shape());
    if (all.elements() > 4 * kMaxElements) return unary(a);
    const Shape out = some_dims(all);
    const double n = static_cast<double>(all.elements()) / static_cast<double>(out.elements());
    return sum_of_products(shuffled(std::vector{a, b}), out) * (1 / std::sqrt(n));
  }

  Tensor reduction(Tensor x) {
    if (x.shape().rank() == 0) return unary(x);
    const Axes axes(some(x.shape().names()));
    switch (draw(6)) {
      case 0:
        return reduce_sum(x, axes) * 0.3;
      case 1:
        return reduce_mean(x, axes);
      case 2:
        return reduce_max(x, axes);
      case 3:
        return reduce_min(x, axes);
      case 4:
        return reduce_logsumexp(x, axes);
      default:
        return reduce_prod(sigmoid(x) + 0.5, axes);
    }
  }

  Tensor normalization(Tensor x) {
    if (x.shape().rank() == 0) return unary(x);
    const std::vector<std::string> axes = some(x.shape().names());
    const Dim dim = x.dim(axes[0]);
    switch (dim.is_bounded ? draw(2) : draw(4)) {
      case 0:
        return softmax(x, axes);
      case 1:
        return log_softmax(x, axes);
      case 2:
        return layer_norm(x, dim.name, parameter({dim}), parameter({dim}), 0.1);
      default:
        return rms_norm(x, dim.name, parameter({dim}), 0.1);
    }
  }

  Tensor moved(Tensor x) {
    const Dim& extra = any_dim();
    switch (draw(4)) {
      case 0:
        return x.shape().has(extra.name) ? transpose(x, shuffled(x.shape()))
                                         : broadcast(x, shuffled(x.shape().united({extra})));
      case 1:
        return transpose(x, shuffled(x.shape()));
      case 2:
        return x.shape().rank() ? x.prefer(x.shape()[static_cast<int>(draw(x.shape().rank()))].name)
                                : x;
      default:
        return reshaped(x);
    }
  }
  /// Renames a dim, or merges two neighbours; the new name tells the size.
  Tensor reshaped(Tensor x) {
    if (x.shape().rank() == 0) return x;
    std::vector<Dim> dims = x.shape().dims();
    const size_t d = draw(dims.size());
    const bool merge = d + 1 < dims.size() && draw(2);
    Dim made = dims[d].renamed(dims[d].name + "1");
    if (merge) {
      made = Dim(dims[d].name + dims[d + 1].name, dims[d].size * dims[d + 1].size);
      made.is_bounded = dims[d].is_bounded && !dims[d + 1].is_bounded;
    }
    if (made.is_bounded) {
      for (auto& sizes : model_.sizes)
        sizes[made.name] = sizes.at(dims[d].name) * (merge ? dims[d + 1].size : 1);
    }
    if (x.shape().has(made.name)) return unary(x);
    const std::vector<Dim> before = dims;
    if (merge) dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(d) + 1);
    dims[d] = made;
    Tensor y = reshape(x, Shape(dims));
    return draw(2) ? y : reshape(sin(y), Shape(before));
  }

  Tensor indexed(Tensor x) {
    if (x.shape().rank() == 0) return unary(x);
    const Dim dim = x.shape()[static_cast<int>(draw(x.shape().rank()))];
    if (draw(2)) {
      std::vector<Dim> dims;
      for (const Dim& d : some_dims(Shape(dims_))) {
        if (d.name != dim.name && dims.size() < 2) dims.push_back(d);
      }
      return gather(x, indices(Shape(dims), dim), dim.name);
    }
    const Dim& row = any_dim();
    if (x.shape().has(row.name))
      return cross_entropy(x, indices(x.shape().without({dim.name}), dim), dim.name);
    Tensor at = indices(some_dims(x.shape()), row);
    std::vector<Dim> out = some_dims(x.shape()).dims();
    out.insert(out.begin() + draw(out.size() + 1), row);
    return scatter_add(at, x, Shape(out), row.name) * 0.5;
  }

  Tensor source(Tensor x) {
    const Dim& dim = any_dim();
    switch (draw(3)) {
      case 0:
        return x.shape().rank() < kMaxRank ? x + iota(g_, dim, type_) * 0.1 : x;
      case 1:
        return x.shape().rank() < kMaxRank ? x * constant(g_, 0.7, type_, {dim}) : x;
      default:
        return x * dim_size(g_, dim, type_) * 0.2;
    }
  }

  Tensor layer(Tensor x) {
    const Dim& out = any_dim();
    std::vector<Dim> dims = some_dims(x.shape(), 1).dims();
    if (!Shape(dims).has(out.name)) dims.push_back(out);
    return product(x, parameter(Shape(dims)));
  }

  /// Integers of one of two dtypes, and bools, that come back as a factor or a choice.
  Tensor whole_numbers(Tensor x) {
    const Dim& dim = any_dim();
    if (x.shape().rank() == 0 || x.shape().united({dim}).rank() > kMaxRank) return unary(x);
    const DType dtype = draw(2) ? DType::int32 : DType::int64;
    const std::string own = x.shape()[static_cast<int>(draw(x.shape().rank()))].name;
    Tensor n;
    switch (draw(4)) {
      case 0:
        n = cast(x > constant(g_, 0.05, type_), dtype);
        break;
      case 1:
        n = type_ == DType::bfloat16 ? iota(g_, dim, dtype) : cast(argmax(x, own), dtype);
        break;
      case 2:
        n = iota(g_, dim, dtype);
        break;
      default:
        n = as(indices(some_dims(x.shape()), dim), dtype);
    }
    n = turned(n);
    const Tensor three = constant(g_, 3, dtype), at = iota(g_, dim, dtype);
    switch (draw(7)) {
      case 0:
        n = n * n - three;
        break;
      case 1:
        n = maximum(n, at);
        break;
      case 2:
        n = reduce_sum(n + at, Axes(some((n + at).shape().names())));
        break;
      case 3:
        n = cumsum(n + at, dim.name, draw(2) == 1, draw(2) == 1);
        break;
      case 4:
        n = mod(n * three, at + three);
        break;
      case 5:
        n = reduce_max(n + at, Axes(some((n + at).shape().names())));
        break;
      default:
        n = where(logical_or(n > at, logical_not(n > constant(g_, 1, dtype))), n, -n);
    }
    n = turned(n);
    if (draw(2)) return x * as(n, type_) * 0.2;
    return where(logical_and(as(n, DType::bool_), at > n), x, sin(x));
  }

  Tensor apply(int kind) {
    Tensor x = any();
    switch (kind % kKinds) {
      case 0:
        return unary(x);
      case 1:
      case 2:
        return binary(x, any());
      case 3:
      case 4:
        return product(x, any());
      case 5:
        return reduction(x);
      case 6:
        return normalization(x);
      case 7:
        return moved(x);
      case 8:
        return indexed(x);
      case 9:
        return source(x);
      case 10:
        return layer(x);
      case 11:
      case 12:
        return ordered(x, [this](size_t below) { return draw(below); });
      case 13:
      case 14:
        return windowed(
            x, [this](size_t below) { return draw(below); },
            [this](const Shape& shape) { return parameter(shape); });
      case 15:
      case 16:
        return attended(
            x, [this](size_t below) { return draw(below); },
            [this](const Shape& shape) { return parameter(shape); });
      case 17:
      case 18:
        return whole_numbers(x);
      default:
        return unary(binary(x, x));
    }
  }

  void finish() {
    type_ = base_;
    const size_t n = pool_.size();
    model_.outputs = {identity(pool_[n - 1]),
                      identity(pool_[n - 2])};  // never a stored tensor itself
    Tensor loss =
        mean_all(sin(as(pool_[n - 1], base_))) + mean_all(square(as(pool_[n - 2], base_))) * 0.5;
    const std::vector<Tensor> parameters = g_.parameters();
    if (recipe_.training >= 2 && !parameters.empty())  // minimize() wants a loss that trains one
      loss = loss + mean_all(square(parameters[0])) * 0.1;
    loss = loss.named("loss");
    model_.outputs.push_back(loss);
    if (recipe_.training == 1) {
      std::vector<Tensor> wrt;
      for (auto* list : {&model_.fed, &model_.stored}) {
        for (const auto& [tensor, value] : *list) {
          if (tensor.dtype() == base_) wrt.push_back(tensor);
        }
      }
      for (Tensor t : gradients(loss, wrt)) model_.outputs.push_back(t);
    }
    if (recipe_.training < 2) return;
    const Optimizer optimizer = recipe_.training == 2   ? sgd(0.1)
                                : recipe_.training == 3 ? momentum()
                                                        : adam({.weight_decay = 0.1});
    MinimizeOptions options;
    options.clip = recipe_.training == 4 ? 0.05 : 0;
    const Minimized minimized = minimize(loss, constant(g_, 0.1, base_), optimizer, options);
    model_.outputs.push_back(minimized.gradient_norm);
    for (size_t i = model_.stored.size(); i < g_.stored().size(); ++i) {
      Tensor state(&g_, g_.stored()[i].value);
      const bool is_step = state.dtype() == DType::int64;
      states_.emplace_back(state, is_step ? Whole({}, {}, 3) : values(state.shape(), 0.1, 1));
    }
    model_.stored.insert(model_.stored.end(), states_.begin(), states_.end());
  }

  const Recipe& recipe_;
  RandomModel& model_;
  Graph& g_;
  const DType base_;  ///< of what is fed and stored
  DType type_;        ///< in which a step computes
  std::mt19937_64 data_;
  std::vector<Dim> dims_;
  std::vector<Tensor> pool_;
  std::vector<std::pair<Tensor, Whole>> states_;
  std::vector<uint32_t> draws_;
  size_t next_ = 0;
};

}  // namespace

void build(const Recipe& recipe, RandomModel& model) {
  Builder(recipe, model).run();
  for (const auto& [name, size] : model.sizes[0]) {
    const auto& nodes = model.graph.nodes();
    const bool is_own = name.size() == 1;  // others follow
    const auto has = [&](const Node& node) {
      return (node.attrs.has("bounded") && shape_of(node.attrs).has(name)) ||
             model.graph.value(node.out[0]).shape.has(name);
    };
    if (is_own && std::any_of(nodes.begin(), nodes.end(), has)) model.bounded.push_back(name);
  }
}

Recipe draw_recipe(std::mt19937_64& random) {
  Recipe recipe;
  const size_t dims = 3 + random() % 3, steps = 3 + random() % 8;
  const int64_t sizes[] = {1, 2, 3, 4,
                           4, 5, 6, 6};  // uneven ones, and some that merge without padding
  for (size_t i = 0; i < dims; ++i) recipe.sizes.push_back(sizes[random() % std::size(sizes)]);
  for (size_t i = 0; i < steps; ++i) {
    RecipeStep step{static_cast<int>(random() % kKinds), {}};
    for (int k = 0; k < 48; ++k) step.draws.push_back(static_cast<uint32_t>(random() >> 32));
    recipe.steps.push_back(std::move(step));
  }
  recipe.training = static_cast<int>(random() % 5);
  recipe.data_seed = random();
  recipe.run_sizes.resize(dims);
  if (random() % 2) return recipe;
  for (size_t i = 0; i < dims; ++i) {
    if (i == 1 || i == 2 || random() % 3 == 0) continue;  // those of parameters are fixed
    for (int64_t& size : recipe.run_sizes[i])
      size = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(recipe.sizes[i]));
  }
  return recipe;
}

std::string draw_mesh(std::mt19937_64& random) {
  static const char* meshes[] = {"x:2",     "x:3",         "x:4",    "x:2;y:2",
                                 "x:2;y:3", "x:2;y:2;z:2", "x:1;y:2"};
  return meshes[random() % std::size(meshes)];
}

}  // namespace tessera::test
