#include "tessera/optim.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/fail.h"
#include "optim/state.h"
#include "tessera/loops.h"
#include "tessera/op.h"

namespace tessera {

namespace optim {

Initializer zeros() {
  return [](Graph& g, const Shape& shape, DType dtype) { return constant(g, 0, dtype, shape); };
}

Tensor state_of(Tensor parameter, const char* what) {
  return state_of(parameter, what, parameter.shape());
}
Tensor state_of(Tensor parameter, const char* what, const Shape& shape) {
  Graph& g = parameter.graph();
  return g.state(what, shape, zeros(), wide(parameter).dtype());
}

Tensor wide(Tensor stored) {
  return is_narrow(stored.dtype()) ? cast(stored, DType::float32) : stored;
}

Tensor as_dtype_of(Tensor scalar, Tensor like) {
  return scalar.dtype() == like.dtype() ? scalar : cast(scalar, like.dtype());
}

// With u = -t log(beta) and h = tanh(u / 2), beta^t = exp(-u) = (1 - h) / (1 + h), so this is
// (1 + h) / (2 h): no digits cancel where beta^t is near 1.
Tensor bias_correction(Tensor t, double beta) {
  if (beta == 0) return constant(t.graph(), 1, t.dtype());
  const Tensor h = tanh(t * (-std::log(beta) / 2));
  return (h + 1.0) / (h * 2.0);
}

namespace {

/// Whether a glob names a parameter, or the one that it is a part of: "*.qkv.weight" names
/// "b.0.qkv.weight.part2", and not "b.0.qkv.weight.parted".
bool names(const std::string& glob, const std::string& parameter) {
  if (glob_match(glob, parameter)) return true;
  const std::string ending = ".part";
  const size_t end = parameter.find_last_not_of("0123456789") + 1;
  return end < parameter.size() && parameter.substr(0, end).ends_with(ending) &&
         glob_match(glob, parameter.substr(0, end - ending.size()));
}

}  // namespace

bool any_match(const std::vector<std::string>& globs, Tensor parameter) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& g) { return names(g, parameter.name()); });
}

void require_in(const char* optimizer, const char* option, double value, double least, double below,
                Loc at) {
  const std::string range = std::isfinite(below) ? fmt::format("in [{}, {})", least, below)
                                                 : fmt::format("at least {}", least);
  TESSERA_REQUIRE(value >= least && value < below, "[{}] {} is {}; it must be {} ({})", optimizer,
                  option, value, range, where(at));
}

void require_matches(Graph& g, const char* optimizer, const char* option,
                     const std::vector<std::string>& globs, Loc at) {
  std::vector<std::string> known;
  for (const Tensor& parameter : g.parameters()) known.push_back(parameter.name());
  for (const std::string& glob : globs) {
    const bool matches = std::any_of(known.begin(), known.end(),
                                     [&](const std::string& name) { return names(glob, name); });
    TESSERA_REQUIRE(matches, "[{}] {}: no parameter is named like '{}'{} ({})", optimizer, option,
                    glob, suggestion(glob, known), where(at));
  }
}

double decay_of(Tensor parameter, double weight_decay, const std::vector<std::string>& no_decay,
                bool all) {
  Graph& g = parameter.graph();
  const std::string name = parameter.name(), last = name.substr(name.rfind('.') + 1);
  const int rank = parameter.shape().rank() - g.find_stored(parameter.id())->layers;
  const bool is_matrix = rank >= 2 && last != "b" && last != "bias" && last != "scale";
  const double decay = (all || is_matrix) && !any_match(no_decay, parameter) ? weight_decay : 0;
  g.note_weight_decay(parameter, decay);
  return decay;
}

}  // namespace optim

namespace {

Tensor decayed_gradient(Tensor p, Tensor g, double weight_decay) {
  const double decay = optim::decay_of(p, weight_decay);
  return decay == 0 ? g : g + optim::wide(p) * decay;
}

}  // namespace

Optimizer sgd(double weight_decay) {
  TESSERA_REQUIRE(weight_decay >= 0, "[sgd] weight_decay is {}; it must be at least 0",
                  weight_decay);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor) {
    g.update(p, optim::wide(p) - decayed_gradient(p, grad, weight_decay) * lr);
  };
}

Optimizer momentum(double mu, double weight_decay, Loc at) {
  return momentum({.mu = mu, .weight_decay = weight_decay}, at);
}

Optimizer momentum(const MomentumOptions& o, Loc at) {
  optim::require_in("momentum", "mu", o.mu, 0, 1, at);
  optim::require_in("momentum", "weight_decay", o.weight_decay, 0, INFINITY, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor) {
    Tensor v = optim::state_of(p, "velocity"), change = decayed_gradient(p, grad, o.weight_decay);
    Tensor next = v * o.mu + (o.rate_in_velocity ? change * lr : change);
    g.update(v, next);
    g.update(p, optim::wide(p) - (o.rate_in_velocity ? next : next * lr));
  };
}

Optimizer with_rates(const Optimizer& optimizer, const std::vector<Rate>& rates, Loc at) {
  TESSERA_REQUIRE(static_cast<bool>(optimizer),
                  "[with_rates] the optimizer is an empty function ({})", where(at));
  std::vector<std::string> globs;
  for (const Rate& rate : rates) {
    TESSERA_REQUIRE(std::isfinite(rate.factor),
                    "[with_rates] the factor of '{}' is {}; it is finite ({})", rate.glob,
                    rate.factor, where(at));
    globs.push_back(rate.glob);
  }
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    optim::require_matches(g, "with_rates", "glob", globs, at);
    const Rate* found = nullptr;
    for (const Rate& rate : rates) {
      if (found == nullptr && optim::any_match({rate.glob}, p)) found = &rate;
    }
    Tensor own = lr;
    if (found != nullptr && found->factor != 1) own = own * found->factor;
    if (found != nullptr && !found->tensor.empty())
      own = own * optim::as_dtype_of(found->tensor, lr);
    optimizer(g, p, grad, own, step);
  };
}

Optimizer with_average(const Optimizer& optimizer, double decay, Loc at) {
  TESSERA_REQUIRE(static_cast<bool>(optimizer),
                  "[with_average] the optimizer is an empty function ({})", where(at));
  optim::require_in("with_average", "decay", decay, 0, 1, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    optimizer(g, p, grad, lr, step);
    for (size_t i = 0; i < g.updates().size(); ++i) {
      const Update update = g.updates()[i];
      if (update.stored != p.id()) continue;
      Tensor average = optim::state_of(p, "ema"), next = optim::wide(Tensor(&g, update.value));
      Tensor share = cast(step > 1.0, next.dtype()) * decay;
      g.update(average, average * share + next * (1.0 - share));
      return;
    }
  };
}

namespace {

Tensor global_norm(Graph& g, const std::vector<Tensor>& parameters,
                   const std::vector<Tensor>& grads) {
  Tensor squares;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Tensor grad = grads[i];
    const Scope own(g, parameters[i].name());
    PreferScope prefer(g, grad);
    Tensor square_sum =
        sum_all(square(is_narrow(grad.dtype()) ? cast(grad, DType::float32) : grad));
    squares = squares.empty() ? square_sum : squares + square_sum;
  }
  return sqrt(squares).uniquely_named("gradient_norm");
}

/// Clips the gradients and updates the parameters.
void update_parameters(Graph& g, const std::vector<Tensor>& parameters,
                       const std::vector<Tensor>& grads, Tensor norm, Tensor lr,
                       const Optimizer& optimizer, const MinimizeOptions& options, Loc at) {
  Tensor count = g.state("step", {}, optim::zeros(), DType::int64, at);  // float32 ends at 2^24
  Tensor next = count + 1.0;
  g.update(count, next);
  const Tensor step = cast(next, DType::float32);
  Tensor factor;
  if (options.clip > 0)
    factor = minimum(options.clip / (norm + 1e-6), constant(g, 1, norm.dtype()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Scope own(g, parameters[i].name());
    PreferScope prefer(g, parameters[i]);
    Tensor grad = optim::wide(grads[i]);
    if (!factor.empty()) grad = grad * optim::as_dtype_of(factor, grad);
    optimizer(g, parameters[i], grad, optim::as_dtype_of(lr, grad), step);
  }
}

/// Loss scaling in a training step.
class Scaling {
 public:
  Scaling(Graph& g, const LossScale& options) : graph_(g), options_(options) {
    if (options.initial == 0) return;
    const LossScale& o = options;
    TESSERA_REQUIRE(
        o.initial > 0 && o.grow_after >= 1 && o.least > 0 && o.least <= o.most,
        "[minimize] a loss scale of {} between {} and {} that grows after {} steps; all must "
        "be positive",
        o.initial, o.least, o.most, o.grow_after);
    PurposeScope purpose(g, Purpose::state);
    Scope scope(g, "optimizer");
    scale = number("loss_scale", o.initial);
    good_ = number("good_steps", 0);
    skipped = number("skipped_steps", 0);
  }

  Tensor scaled(Tensor loss, Loc at) const {
    if (scale.empty()) return loss;
    TESSERA_REQUIRE(
        !is_narrow(loss.dtype()),
        "[minimize] the loss is {}, which cannot hold a scaled one; cast it to float32 before "
        "its mean is taken ({})",
        to_string(loss.dtype()), where(at));
    return loss * optim::as_dtype_of(scale, loss);
  }

  void unscale(const std::vector<Tensor>& parameters, std::vector<Tensor>& grads, Loc at) const {
    for (size_t i = 0; !scale.empty() && i < grads.size(); ++i) {
      TESSERA_REQUIRE(
          grads[i].dtype() != DType::float16,
          "[minimize] loss scaling needs '{}' in float32, to hold its gradient without the "
          "scale; store it so and cast it where it is used ({})",
          parameters[i].name(), where(at));
      grads[i] = grads[i].uniquely_named(parameters[i].name() + ".grad_scaled");
      graph_.mark_gradient(grads[i]);
      grads[i] = grads[i] * optim::as_dtype_of(1.0 / scale, grads[i]);
    }
  }

  /// Updates the scale. Returns whether the norm is finite, so that this step may update
  /// parameters.
  Tensor after(Tensor norm) const {
    Tensor finite = is_finite(norm), next = good_ + 1.0, none = constant(graph_, 0);
    Tensor grows = next >= static_cast<double>(options_.grow_after);
    Tensor larger = minimum(scale * 2.0, constant(graph_, options_.most));
    Tensor smaller = maximum(scale * 0.5, constant(graph_, options_.least));
    graph_.update(scale, where(finite, where(grows, larger, scale), smaller));
    graph_.update(good_, where(logical_and(finite, logical_not(grows)), next, none));
    graph_.update(skipped, where(finite, skipped, skipped + 1.0));
    return finite;
  }

  Tensor scale, skipped;

 private:
  Tensor number(const char* name, double first) {
    return graph_.state(
        name, {},
        [first](Graph& g, const Shape& shape, DType dtype) {
          return constant(g, first, dtype, shape);
        },
        DType::float32);
  }
  Graph& graph_;
  LossScale options_;
  Tensor good_;
};

Minimized apply(Graph& g, const std::vector<Tensor>& parameters, std::vector<Tensor> grads,
                Tensor lr, const Scaling& scaling, const Optimizer& optimizer,
                const MinimizeOptions& options, Loc at) {
  scaling.unscale(parameters, grads, at);
  std::set<int> named;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!named.insert(grads[i].id()).second) grads[i] = identity(grads[i], at);
    grads[i] = grads[i].uniquely_named(parameters[i].name() + ".grad");
    g.mark_gradient(grads[i]);
  }
  PurposeScope purpose(g, Purpose::state);
  Scope scope(g, "optimizer");
  Tensor norm = global_norm(g, parameters, grads);
  if (!scaling.scale.empty()) {
    UpdateScope only(g, scaling.after(norm));
    update_parameters(g, parameters, grads, norm, lr, optimizer, options, at);
  } else {
    update_parameters(g, parameters, grads, norm, lr, optimizer, options, at);
  }
  return {norm, std::move(grads), {}, scaling.scale, scaling.skipped};
}

/// The parameters that are trained.
std::vector<Tensor> parameters_of(Graph& g, const char* op, const MinimizeOptions& options,
                                  Loc at) {
  std::vector<Tensor> parameters = g.parameters();
  TESSERA_REQUIRE(!parameters.empty(), "[{}] the model has no parameters ({})", op, where(at));
  if (!options.trainable.empty()) {
    optim::require_matches(g, op, "trainable", options.trainable, at);
    std::erase_if(parameters,
                  [&](const Tensor& p) { return !optim::any_match(options.trainable, p); });
  }
  for (const Tensor& p : parameters) {
    TESSERA_REQUIRE(
        is_floating(p.dtype()),
        "[{}] parameter '{}' ({}) is {} and has no gradient; make it with Graph::state(), or "
        "store it floating and cast it where it is used ({})",
        op, p.name(), g.producer(p.id()).at.to_string(), to_string(p.dtype()), where(at));
  }
  return parameters;
}

void check_step(Tensor lr, const Optimizer& optimizer, const MinimizeOptions& options) {
  TESSERA_REQUIRE(static_cast<bool>(optimizer),
                  "the optimizer is an empty function; take one of optim.h, such as adam()");
  TESSERA_REQUIRE(is_floating(lr.dtype()) && lr.shape().rank() == 0,
                  "the learning rate is {} {}; it must be a floating scalar", to_string(lr.dtype()),
                  lr.shape().to_string());
  TESSERA_REQUIRE(options.clip >= 0, "clip {} is negative; 0 is no clipping", options.clip);
}

}  // namespace

namespace {
void require_scalar(const char* op, const std::string& what, Tensor x, Loc at) {
  TESSERA_REQUIRE(x.shape().rank() == 0, "[{}] {} is {}; it must be a scalar ({})", op, what,
                  x.shape().to_string(), where(at));
}

/// " (train.cpp:7)", or "" if the library itself made the call: no user wrote that line.
std::string users_line(Loc at) { return is_of_library(at) ? "" : " (" + where(at) + ")"; }

/// Throws a usage error for a loss or metric that has no mean; the line is that of the tensor, too.
void require_mean(const char* op, const std::string& what, Tensor x, Loc at) {
  TESSERA_REQUIRE(
      is_floating(x.dtype()),
      "[{}] {} '{}' ({}) is {}, which has neither a mean nor a gradient; cast() it to a "
      "floating type{}",
      op, what, x.name(), x.graph().producer(x.id()).at.to_string(), to_string(x.dtype()),
      users_line(at));
}

void check_loss(const char* op, const Loss& loss, Loc at) {
  require_mean(op, "the loss", loss.value, at);
  if (!loss.weight.empty()) {
    require_scalar(op, "the loss has a weight, and", loss.value, at);
    require_scalar(op, "the weight of the loss", loss.weight, at);
  }
  std::set<std::string> names;
  for (const Metric& m : loss.metrics) {
    TESSERA_REQUIRE(!m.value.empty(), "[{}] metric '{}' has no value ({})", op, m.name, where(at));
    TESSERA_REQUIRE(names.insert(m.name).second, "[{}] two metrics are named '{}' ({})", op, m.name,
                    where(at));
    const std::string what = fmt::format("metric '{}'", m.name);
    require_scalar(op, what, m.value, at);
    require_mean(op, fmt::format("metric '{}',", m.name), m.value, at);
    if (!m.weight.empty()) require_scalar(op, "the weight of " + what, m.weight, at);
  }
}

/// Throws a usage error if no gradient reaches a parameter: gradients() makes zeros for these.
void require_trains(const char* op, Tensor loss, const std::vector<Tensor>& grads,
                    const std::vector<Tensor>& parameters, Loc at) {
  const auto is_zero = [](Tensor x) {
    const Node& made = x.graph().producer(x.id());
    return std::string_view(made.op->name) == "constant" && made.attrs.get<double>("value") == 0;
  };
  TESSERA_REQUIRE(
      !std::all_of(grads.begin(), grads.end(), is_zero),
      "[{}] the loss '{}' ({}) depends on none of the {} parameters, such as '{}', so nothing "
      "would be trained; make it of what they compute, without stop_gradient() and integers in "
      "between{}",
      op, loss.name(), loss.graph().producer(loss.id()).at.to_string(), parameters.size(),
      parameters[0].name(), users_line(at));
}

/// 1 / weight, in the dtype of `like` or wider; 1 for a weight of 0, as its sum is 0 too.
Tensor inverse_weight(Tensor weight, Tensor like) {
  const Tensor w = optim::as_dtype_of(stop_gradient(weight), optim::wide(like));
  return 1.0 / where(equal(w, 0.0), 1.0, w);
}

Tensor over_weight(Tensor sum, Tensor weight) {
  return weight.empty() ? sum : optim::wide(sum) * inverse_weight(weight, sum);
}

/// True if it or one of its metrics has no weight, so that it is a mean.
bool is_divided(const Loss& loss) {
  return loss.weight.empty() ||
         std::ranges::any_of(loss.metrics, [](const Metric& m) { return m.weight.empty(); });
}

/// What one of `parts` microbatches adds to a mean: its share, or its sum and weight.
void add_terms(Tensor value, Tensor weight, int64_t parts, std::vector<Tensor>& terms) {
  terms.push_back(weight.empty() ? value * (1.0 / static_cast<double>(parts)) : value);
  if (!weight.empty()) terms.push_back(stop_gradient(weight));
}
/// The sum and weight of all microbatches of the terms from `next` on, which it moves behind them.
Metric next_sum(const std::string& name, bool is_weighted, const std::vector<Tensor>& sums,
                size_t& next) {
  Metric result{name, sums[next++]};
  if (is_weighted) result.weight = sums[next++];
  return result;
}
}  // namespace

Minimized minimize(const Loss& loss, Tensor lr, const Optimizer& optimizer,
                   const MinimizeOptions& options, Loc at) {
  Graph& g = on_behalf_of("minimize", at, [&]() -> Graph& { return loss.value.graph(); });
  check_loss("minimize", loss, at);
  on_behalf_of("minimize", at, [&] { check_step(lr, optimizer, options); });
  const std::vector<Tensor> parameters = parameters_of(g, "minimize", options, at);
  const Scaling scaling(g, options.loss_scale);
  const Tensor mean = over_weight(loss.value, loss.weight);
  std::vector<Tensor> grads = on_behalf_of("minimize", at, [&] {
    return gradients(scaling.scaled(mean, at), parameters, options.gradient, at);
  });
  require_trains("minimize", loss.value, grads, parameters, at);
  Minimized result = apply(g, parameters, std::move(grads), lr, scaling, optimizer, options, at);
  result.loss = loss.weight.empty() ? mean : mean.uniquely_named("mean_loss");
  for (const Metric& m : loss.metrics)
    result.metrics.push_back({m.name, over_weight(m.value, m.weight)});
  result.outputs = loss.outputs;
  return result;
}

Minimized minimize(const Loss& loss, double lr, const Optimizer& optimizer,
                   const MinimizeOptions& options, Loc at) {
  Tensor rate = on_behalf_of(
      "minimize", at, [&] { return constant(loss.value.graph(), lr, DType::float32, {}, at); });
  return minimize(loss, rate, optimizer, options, at);
}

Minimized minimize_in_microbatches(Graph& g, const std::string& dim, int64_t parts,
                                   const std::function<Loss()>& loss, Tensor lr,
                                   const Optimizer& optimizer, const MinimizeOptions& options,
                                   Loc at) {
  const char* op = "minimize_in_microbatches";
  TESSERA_REQUIRE(parts >= 1, "[{}] {} microbatches of '{}'; there is at least one ({})", op, parts,
                  dim, where(at));
  TESSERA_REQUIRE(static_cast<bool>(loss), "[{}] the loss is an empty function ({})", op,
                  where(at));
  on_behalf_of(op, at, [&] { check_step(lr, optimizer, options); });
  size_t parameters = 0;
  std::optional<Loss> last;
  const Scaling scaling(g, options.loss_scale);
  const auto one_part = [&] {
    last = loss();
    TESSERA_REQUIRE(last->value.shape().rank() == 0,
                    "[{}] the loss of a microbatch is {}; it must be a scalar ({})", op,
                    last->value.shape().to_string(), where(at));
    check_loss(op, *last, at);
    std::vector<Tensor> terms;
    add_terms(last->value, last->weight, parts, terms);
    for (const Metric& m : last->metrics) add_terms(m.value, m.weight, parts, terms);
    const std::vector<Tensor> trained = parameters_of(g, op, options, at);
    std::vector<Tensor> made =
        gradients(scaling.scaled(terms[0], at), trained, options.gradient, at);
    require_trains(op, last->value, made, trained, at);
    TESSERA_REQUIRE(parameters == 0 || parameters == made.size(),
                    "[{}] microbatch 0 has {} parameters, a later one {}; build all alike ({})", op,
                    parameters, made.size(), where(at));
    parameters = made.size();
    made.insert(made.end(), terms.begin(), terms.end());
    return IterationResults{{}, last->outputs, made, is_divided(*last)};
  };
  IterationResults all = over_microbatches(g, dim, parts, one_part, options.loop, at);
  std::vector<Tensor>& sums = all.sums;
  size_t next = parameters;
  const Metric total = next_sum("loss", !last->weight.empty(), sums, next);
  std::vector<Metric> metrics;
  for (const Metric& m : last->metrics) {
    const Metric sum = next_sum(m.name, !m.weight.empty(), sums, next);
    metrics.push_back({m.name, over_weight(sum.value, sum.weight)});
  }
  sums.resize(parameters);
  for (Tensor& grad : sums) {
    if (!total.weight.empty())
      grad = grad * optim::as_dtype_of(inverse_weight(total.weight, grad), grad);
  }
  Minimized result = apply(g, parameters_of(g, op, options, at), std::move(sums), lr, scaling,
                           optimizer, options, at);
  result.loss = over_weight(total.value, total.weight).uniquely_named("mean_loss");
  result.metrics = std::move(metrics);
  result.outputs = std::move(all.stacked);
  return result;
}

namespace {
/// The rate before cooldown, as a fraction of lr.
double without_cooldown(const Schedule& o, double step) {
  const double rise = static_cast<double>(o.warmup);
  if (step < rise) return o.start + (1 - o.start) * (step + 1) / rise;
  if (o.kind == "constant") return 1;
  if (o.kind == "rsqrt") {
    const double from = std::max({rise, static_cast<double>(o.flat), 1.0});
    return std::sqrt(from / std::max(step, from));
  }
  const double span = std::max<double>(1, static_cast<double>(o.steps) - rise);
  const double done = std::min(1.0, (step - rise) / span);
  if (o.kind == "linear") return 1 - (1 - o.floor) * done;
  return o.floor + (1 - o.floor) * 0.5 * (1 + std::cos(M_PI * done));
}
}  // namespace

double Schedule::at(int64_t step) const {
  TESSERA_REQUIRE(step >= 0, "[Schedule] step {}; steps are counted from 0", step);
  TESSERA_REQUIRE(lr >= 0 && std::isfinite(lr), "[Schedule] lr {}; it is finite and not negative",
                  lr);
  const std::vector<std::string> kinds = {"constant", "linear", "cosine", "rsqrt"};
  TESSERA_REQUIRE(std::find(kinds.begin(), kinds.end(), kind) != kinds.end(),
                  "unknown schedule '{}'{}", kind, suggestion(kind, kinds));
  for (const auto& [name, share] :
       {std::pair("start", start), {"floor", floor}, {"cooldown", cooldown}})
    TESSERA_REQUIRE(share >= 0 && share <= 1, "[Schedule] {} {}; it is a share, from 0 to 1", name,
                    share);
  TESSERA_REQUIRE(
      warmup >= 0 && flat >= 0 && steps >= 1,
      "[Schedule] warmup {}, flat {} and steps {}; the first two are not negative, the last is "
      "at least 1",
      warmup, flat, steps);
  const double s = static_cast<double>(step), all = static_cast<double>(steps);
  const double last = all * cooldown;  // steps of the cooldown
  const double cooled = last > 0 ? std::clamp((all - s) / last, 0.0, 1.0) : 1.0;
  return lr * without_cooldown(*this, s) * cooled;
}

}  // namespace tessera
