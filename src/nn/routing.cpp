// A token's place at an expert is the number of tokens before it that chose the same expert: an
// exclusive cumulative sum. Choices are placed in turn, later ones after all earlier ones. The
// one_hot of a place beyond the capacity is all zero, which drops the token.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "nn/stored.h"
#include "tessera/nn_moe.h"

namespace tessera::nn {

namespace {

constexpr double kNever = -1e9;    ///< the score of an expert that is not chosen
constexpr double kNoGate = -1e30;  ///< the logarithm of a gate that does not count

/// What routing depends on: the logits [..., tokens, experts] and the gates that follow from them.
class Gates {
 public:
  Gates(Tensor given, const std::string& token_dim, const std::string& expert_dim,
        const RoutingOptions& o, Loc at)
      : g(given.graph()),
        o(o),
        at(at),
        tokens(given.dim(token_dim)),
        experts(given.dim(expert_dim)),
        logits(open(checked(given).dtype() == DType::float64 ? given
                                                             : read_as(given, DType::float32))),
        gates(make_gates()),
        scores(make_scores()) {}

  Graph& g;
  const RoutingOptions& o;
  Loc at;
  Dim tokens, experts;
  Tensor logits, gates;
  /// The gates, with the bias, rounded to 16 bits, by which choices are made. Gates that are equal
  /// but for the order in which a layout sums are equal here, and the lower index wins under every
  /// layout. kNever for experts that are not in the best groups.
  Tensor scores;

  bool by_experts() const { return o.gating == Gating::experts_choose || competes(); }
  bool competes() const { return o.gating == Gating::tokens_compete; }
  Tensor number(double value) const { return constant(g, value, gates.dtype(), {}, at); }
  /// What gates are the exponentials of, up to a factor for each token: gates vanish, these do not.
  /// Not where tokens compete.
  Tensor log_gates() const {
    return o.scores == Scores::softmax ? logits : neg(softplus(neg(logits, at), at), at);
  }
  /// The gates with a sum of 1.
  Tensor shares() const {
    return o.scores == Scores::softmax ? gates : softmax(log_gates(), experts.name, at);
  }
  /// The same of all experts but those of a mask.
  Tensor shares_without(Tensor mask) const {
    return softmax(where(mask > 0.0, number(kNoGate), log_gates(), at), experts.name, at);
  }
  Tensor real(Tensor flags) const { return cast(flags, gates.dtype(), at); }
  Tensor mask_of(Tensor index) const { return one_hot(index, experts, 1, 0, gates.dtype(), at); }
  /// Sums over experts (flat) and over tokens (total).
  Tensor flat(Tensor x) const { return reduce_sum(x, experts.name, at); }
  Tensor total(Tensor x) const { return reduce_sum(x, tokens.name, at); }

  /// 1 for tokens with importance 1, with a first choice, with any choice; empty: all tokens.
  Tensor is_full() const { return o.importance.empty() ? Tensor() : real(o.importance >= 1.0); }
  Tensor has_first() const { return o.first_for_all ? has_any() : is_full(); }
  Tensor has_any() const { return o.importance.empty() ? Tensor() : real(o.importance > 0.0); }

  Tensor first_choice() const {
    if (o.sample == 0) return argmax(scores, experts.name, at);
    return sampled(logits, o.sample);
  }
  Tensor sampled(Tensor logits, double temperature) const {
    Tensor drawn = random_uniform(g, logits.shape(), 1e-9, 1, logits.dtype(), at);
    return argmax(logits - log(neg(log(drawn, at), at), at) * temperature, experts.name, at);
  }

  Tensor counted_tokens(Tensor counts) const {
    return sum_all(broadcast(counts, logits.shape().without({experts.name}), at), at);
  }

  void check_importance() const {
    if (o.importance.empty()) return;
    const Shape known = logits.shape().without({experts.name});
    for (const Dim& d : o.importance.shape()) {
      TESSERA_REQUIRE(known.has(d.name),
                      "the importance {} has the dim '{}'; it has dims of {}, which are "
                      "those of the logits without the experts",
                      o.importance.shape().to_string(), d.name, known.to_string());
    }
  }

 private:
  /// x (2^s + 1) minus the difference of that and x is x rounded to s bits less (Veltkamp 1968).
  Tensor rounded(Tensor x) const {
    const int dropped = x.dtype() == DType::float64 ? 53 - 16 : 24 - 16;
    const Tensor wide = mul(x, number(std::ldexp(1.0, dropped) + 1), at);
    return sub(wide, sub(wide, x, at), at);
  }

  Tensor make_scores() const {
    TESSERA_REQUIRE(o.bias.empty() || o.bias.shape() == Shape{experts},
                    "the bias is {}; it has the dim of the experts, {}",
                    o.bias.empty() ? "" : o.bias.shape().to_string(), Shape{experts}.to_string());
    TESSERA_REQUIRE(
        o.bias.empty() || (!by_experts() && o.gating != Gating::strongest),
        "a bias where experts choose tokens; a place goes to gates above 0, so leave it empty");
    Tensor x = gates;
    if (!o.bias.empty()) x = add(x, stop_gradient(read_as(o.bias, x.dtype()), at), at);
    x = rounded(x);
    return o.groups == 1 ? x : in_best_groups(x);
  }

  Tensor in_best_groups(Tensor x) const {
    const int64_t each = o.groups > 0 ? experts.size / o.groups : 0;
    TESSERA_REQUIRE(
        o.groups > 0 && each * o.groups == experts.size,
        "{} groups of {} experts; groups are of equal size, so their number divides that of "
        "the experts",
        o.groups, experts.size);
    TESSERA_REQUIRE(o.best_groups >= 1 && o.best_groups <= o.groups,
                    "best_groups is {}; a token chooses in 1 to {} groups, as there are {}",
                    o.best_groups, o.groups, o.groups);
    TESSERA_REQUIRE(
        each * o.best_groups >= o.choices,
        "a token has {} choices, but its best_groups {} of {} groups have {} experts; give "
        "more best_groups, or fewer choices",
        o.choices, o.best_groups, o.groups, each * o.best_groups);
    const Dim group(experts.name + "/groups", o.groups), inner(experts.name + "/inner", each);
    const Shape others = x.shape().without({experts.name}), flat_shape = others.united({experts}),
                apart = others.united({group, inner});
    const Dim two("two", std::min<int64_t>(2, each)), best("best", o.best_groups);
    const Tensor in_order = x.shape() == flat_shape ? x : transpose(x, flat_shape, at);
    const Tensor of_groups =
        reduce_sum(top_k(reshape(in_order, apart, at), inner.name, two, at).values, two.name, at);
    const Tensor chosen = top_k(of_groups, group.name, best, at).indices;
    const Tensor taken = reduce_sum(one_hot(chosen, group, 1, 0, x.dtype(), at), best.name, at);
    const Tensor mask = reshape(broadcast(taken, apart, at), flat_shape, at);
    return where(mask > 0.0, in_order, number(kNever), at);
  }

  Tensor checked(Tensor given) const {
    TESSERA_REQUIRE(is_floating(given.dtype()),
                    "the logits are {}; they must be floating, use cast()",
                    to_string(given.dtype()));
    TESSERA_REQUIRE(tokens.name != experts.name, "dim '{}' is both the tokens and the experts",
                    tokens.name);
    return given;
  }

  Tensor make_gates() const {
    if (!competes()) {
      return o.scores == Scores::softmax ? softmax(logits, experts.name, at) : sigmoid(logits, at);
    }
    TESSERA_REQUIRE(o.scores == Scores::softmax,
                    "tokens compete by a softmax of their own; leave scores at softmax");
    check_importance();
    Tensor none = constant(g, kNever, logits.dtype(), {}, at), x = logits;
    if (!o.importance.empty()) x = where(o.importance > 0.0, x, none, at);
    return softmax(x, tokens.name, at);
  }

  /// The logits with the best expert masked out for some tokens; with second_sample, all but a
  /// sampled one.
  Tensor open(Tensor given) const {
    TESSERA_REQUIRE(
        o.second_place >= 0 && o.second_place <= 1 && o.second_sample >= 0,
        "second_place {} and second_sample {}; the first is a probability, the second not "
        "negative",
        o.second_place, o.second_sample);
    if (o.second_place == 0) return given;
    TESSERA_REQUIRE(
        !by_experts() && experts.size > 1,
        "second_place {} of {} experts, {}; it needs two experts, and tokens that choose "
        "theirs",
        o.second_place, experts.size,
        by_experts() ? "which choose their tokens" : "one of them the best");
    const auto mask = [&](Tensor index) {
      return one_hot(index, experts, 1, 0, given.dtype(), at) > 0.0;
    };
    Tensor none = constant(g, kNever, given.dtype(), {}, at);
    Tensor others = where(mask(argmax(given, experts.name, at)), none, given, at);
    if (o.second_sample > 0)
      others = where(mask(sampled(others, o.second_sample)), others, none, at);
    if (o.second_place == 1) return others;
    Tensor drawn =
        random_uniform(g, given.shape().without({experts.name}), 0, 1, given.dtype(), at);
    return where(drawn < o.second_place, others, given, at);
  }
};

struct Choice {
  Tensor index;   ///< [..., tokens]
  Tensor wanted;  ///< [..., tokens, experts]: 1 at the chosen expert
  Tensor mask;    ///< the same, 0 if the choice does not count
  Tensor gate;    ///< [..., tokens]
};

/// The load balancing losses.
class Balance {
 public:
  explicit Balance(const Gates& gates) : s_(gates) {}
  Tensor of(const std::vector<Choice>& choices) const {
    Tensor proxy = s_.shares(), counts = s_.is_full(), wanted = choices[0].wanted;
    if (!counts.empty()) proxy = mul(proxy, counts, s_.at);
    if (s_.o.gating == Gating::rescue) {
      for (size_t i = 1; i < choices.size(); ++i) wanted = add(wanted, choices[i].wanted, s_.at);
      wanted = wanted * (1 / static_cast<double>(choices.size()));
    }
    Tensor first = product_of_shares(wanted, proxy);
    if (s_.o.second_balance == 0) return first;
    Tensor second = product_of_shares(choices[1].wanted, s_.shares_without(choices[0].wanted));
    return add(first, second * s_.o.second_balance, s_.at);
  }
  /// 1 if every token has the same mean gate, one over the number of tokens.
  Tensor of_tokens() const {
    Tensor mean = reduce_mean(s_.gates, s_.experts.name, s_.at), counts = s_.is_full();
    Tensor size = s_.number(static_cast<double>(s_.tokens.size));
    if (!counts.empty()) {
      mean = mul(mean, counts, s_.at);
      size =
          reduce_sum(broadcast(cast(s_.o.importance, s_.gates.dtype(), s_.at), mean.shape(), s_.at),
                     s_.tokens.name, s_.at);
    }
    return mean_all(mul(square(mean, s_.at), size, s_.at), s_.at) *
           static_cast<double>(s_.tokens.size);
  }

 private:
  /// experts^2 times the mean over groups and experts of (share of tokens) * (mean gate).
  Tensor product_of_shares(Tensor chosen, Tensor gates) const {
    const double squared = static_cast<double>(s_.experts.size * s_.experts.size);
    Tensor share = reduce_mean(chosen, s_.tokens.name, s_.at);
    return mean_all(mul(share, reduce_mean(gates, s_.tokens.name, s_.at), s_.at), s_.at) * squared;
  }

  const Gates& s_;
};

/// Gives every token its places at experts.
class Router {
 public:
  Router(Tensor logits, const std::string& tokens, const std::string& experts,
         const RoutingOptions& o, bool drops, Loc at)
      : s_(logits, tokens, experts, o, at), capacity_(drops ? capacity() : Dim("capacity", 1)) {
    TESSERA_REQUIRE(
        o.choices >= 1 && o.choices <= s_.experts.size,
        "[route] {} choices of {} experts; a token has at least one, and as many as experts "
        "at most ({})",
        o.choices, s_.experts.size, where(at));
    TESSERA_REQUIRE(
        o.threshold > 0 && o.sample >= 0,
        "[route] threshold {} and sample {}: the first is positive, the second not negative "
        "({})",
        o.threshold, o.sample, where(at));
    TESSERA_REQUIRE(
        o.second_balance == 0 || o.choices > 1,
        "[route] second_balance {} with one choice; a second choice takes choices 2 ({})",
        o.second_balance, where(at));
    s_.check_importance();
  }

  Routing run() {
    if (s_.by_experts() || s_.o.gating == Gating::strongest) {
      choose_by_gate(s_.by_experts());
    } else {
      choose_in_turn();
    }
    add_z();
    if (s_.o.overflow == Overflow::error) report(routing_);
    return routing_;
  }

  /// Without a capacity.
  Routing choose() {
    TESSERA_REQUIRE(s_.o.gating == Gating::tokens_choose,
                    "[choose] the gating has a capacity; only tokens that choose go without ({})",
                    where(s_.at));
    const Dim dim("choices", s_.o.choices);
    TESSERA_REQUIRE(!s_.logits.shape().has(dim.name),
                    "[choose] the logits {} have the dim '{}'; rename it",
                    s_.logits.shape().to_string(), dim.name);
    const bool plain = s_.o.sample == 0 && s_.o.further == Further::all &&
                       s_.o.importance.empty() && s_.o.second_balance == 0;
    plain ? choose_best(dim) : choose_each(dim);
    Tensor ones = broadcast(s_.number(1), routing_.indices.shape(), s_.at);
    routing_.loads = scatter_add(routing_.indices, ones, Shape{s_.experts}, s_.experts.name,
                                 OutOfRange::drop, s_.at);
    routing_.load = reduce_max(routing_.loads, s_.experts.name, s_.at);
    routing_.dropped = s_.number(0);
    add_z();
    return routing_;
  }

 private:
  /// The best experts of each token at once.
  void choose_best(const Dim& dim) {
    Tensor best = top_k(s_.scores, s_.experts.name, dim, s_.at).indices;
    Tensor first =
        reshape(slice(best, dim.name, 0, 1, s_.at), best.shape().without({dim.name}), s_.at);
    Tensor mask = s_.mask_of(first);
    routing_.balance = Balance(s_).of({{first, mask, mask, {}}});
    const bool renormalize = s_.o.renormalize && dim.size > 1;
    Tensor gates = gather(renormalize ? s_.log_gates() : s_.gates, best, s_.experts.name,
                          OutOfRange::error, s_.at);
    if (renormalize) gates = softmax(gates, dim.name, s_.at);
    routing_.indices = best;
    routing_.gates = s_.o.scale == 1 ? gates : gates * s_.o.scale;
  }

  /// One choice after the other, of which some do not count.
  void choose_each(const Dim& dim) {
    const std::vector<Choice> all = choices();
    routing_.balance = Balance(s_).of(all);
    std::vector<Tensor> indices, gates;
    const Tensor none = constant(s_.g, -1, DType::int32, {}, s_.at);
    for (const Choice& c : all) {
      const Tensor counts = s_.flat(c.mask);
      std::vector<Dim> dims = c.index.shape().dims();
      dims.emplace_back(dim.name, 1);
      indices.push_back(reshape(where(counts > 0.0, c.index, none, s_.at), Shape(dims), s_.at));
      gates.push_back(reshape(mul(c.gate, counts, s_.at), Shape(dims), s_.at));
    }
    routing_.indices = concat(indices, dim.name, s_.at);
    routing_.gates = concat(gates, dim.name, s_.at);
  }

  void add_z() {
    Tensor z = square(reduce_logsumexp(s_.logits, s_.experts.name, s_.at), s_.at);
    if (Tensor counts = s_.is_full(); !counts.empty())
      routing_.z = sum_all(mul(z, counts, s_.at), s_.at) /
                   maximum(s_.number(1), s_.counted_tokens(counts), s_.at);
    else
      routing_.z = mean_all(z, s_.at);
  }

  Dim capacity() const {
    TESSERA_REQUIRE(s_.o.capacity.size() <= 1, "{} capacity dims; an expert has one",
                    s_.o.capacity.size());
    TESSERA_REQUIRE(s_.o.least_capacity >= 0 && s_.o.capacity_factor >= 0,
                    "capacity_factor {} and least_capacity {}; neither is negative",
                    s_.o.capacity_factor, s_.o.least_capacity);
    const Dim dim = s_.o.capacity.empty() ? usual_capacity() : s_.o.capacity.front();
    TESSERA_REQUIRE(
        !s_.logits.shape().has(dim.name),
        "the capacity is dim '{}', which the logits {} have already; rename one of them", dim.name,
        s_.logits.shape().to_string());
    return dim;
  }

  Dim usual_capacity() const {
    const bool several = s_.o.capacity_per_choice &&
                         (s_.o.gating == Gating::tokens_choose || s_.o.gating == Gating::rescue);
    const double all = static_cast<double>(s_.tokens.size),
                 choices = several ? static_cast<double>(s_.o.choices) : 1,
                 even = all * choices * s_.o.capacity_factor / static_cast<double>(s_.experts.size);
    auto places = static_cast<int64_t>(std::min(all, even));
    places = std::max(places, s_.o.least_capacity);
    TESSERA_REQUIRE(
        places >= 1,
        "[route] capacity 0: {} tokens, {} experts, capacity_factor {} and least_capacity {}; "
        "an expert needs at least one place ({})",
        s_.tokens.size, s_.experts.size, s_.o.capacity_factor, s_.o.least_capacity, where(s_.at));
    return {"capacity", places};
  }

  std::vector<Choice> choices() const {
    std::vector<Choice> result;
    Tensor left = s_.scores;
    for (int64_t i = 0; i < s_.o.choices; ++i) {
      Tensor index = i == 0 ? s_.first_choice() : argmax(left, s_.experts.name, s_.at);
      Tensor mask = s_.mask_of(index), counts = i == 0 ? s_.has_first() : s_.has_any();
      if (!counts.empty()) mask = mul(mask, counts, s_.at);
      Tensor gate = s_.flat(mul(s_.gates, mask, s_.at));
      left = where(mask > 0.0, s_.number(kNever), left, s_.at);
      result.push_back({index, mask, mask, gate});
    }
    if (s_.o.renormalize && s_.o.choices > 1) renormalize(result);
    for (size_t i = 1; i < result.size(); ++i) result[i].mask = counted(result[i]);
    if (s_.o.scale != 1) {
      for (Choice& c : result) c.gate = c.gate * s_.o.scale;
    }
    return result;
  }

  /// Gates with a sum of 1 over the choices that count, or 0 where none does.
  void renormalize(std::vector<Choice>& all) const {
    const Tensor logs = s_.log_gates();
    std::vector<Tensor> own;
    Tensor most, sum;
    for (const Choice& c : all) {
      const Tensor of_expert = s_.flat(where(c.wanted > 0.0, logs, s_.number(0), s_.at));
      own.push_back(where(s_.flat(c.mask) > 0.0, of_expert, s_.number(kNoGate), s_.at));
      most = most.empty() ? own.back() : maximum(most, own.back(), s_.at);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].gate = mul(exp(sub(own[i], stop_gradient(most, s_.at), s_.at), s_.at),
                        s_.flat(all[i].mask), s_.at);
      sum = sum.empty() ? all[i].gate : add(sum, all[i].gate, s_.at);
    }
    sum = where(sum > 0.0, sum, s_.number(1), s_.at);
    for (Choice& c : all) c.gate = div(c.gate, sum, s_.at);
  }

  /// The mask of a further choice, reduced to where the policy Further counts it.
  Tensor counted(const Choice& c) const {
    if (s_.o.further == Further::all) return c.mask;
    if (s_.o.further == Further::none) return c.mask * 0.0;
    Tensor least = s_.number(s_.o.threshold);
    if (s_.o.further == Further::random)
      least = random_uniform(s_.g, c.gate.shape(), 0, s_.o.threshold, s_.gates.dtype(), s_.at);
    return mul(c.mask, s_.real(greater(c.gate, least, s_.at)), s_.at);
  }

  void add_places(Tensor placed, Tensor gate) {
    Tensor weighted = mul(placed, gate, s_.at);
    routing_.dispatch = routing_.dispatch.empty() ? placed : add(routing_.dispatch, placed, s_.at);
    routing_.combine = routing_.combine.empty() ? weighted : add(routing_.combine, weighted, s_.at);
  }

  void choose_in_turn() {
    const std::vector<Choice> all = choices();
    routing_.balance = Balance(s_).of(all);
    Tensor before, routed, dropped, chosen;
    for (const Choice& c : all) {
      Tensor mask = c.mask;
      if (s_.o.gating == Gating::rescue && !routed.empty()) mask = mul(mask, 1.0 - routed, s_.at);
      Tensor place = cumsum(mask, s_.tokens.name, true, false, s_.at);
      if (!before.empty()) place = add(place, before, s_.at);
      Tensor index = cast(s_.flat(mul(place, mask, s_.at)), DType::int32, s_.at);
      Tensor slot = one_hot(index, capacity_, 1, 0, s_.gates.dtype(), s_.at);
      Tensor kept = reduce_sum(slot, capacity_.name, s_.at);
      Tensor in_place = mul(mask, kept, s_.at), count = s_.total(in_place);
      add_places(mul(mask, slot, s_.at), c.gate);
      before = before.empty() ? count : add(before, count, s_.at);
      chosen = chosen.empty() ? s_.total(mask) : add(chosen, s_.total(mask), s_.at);
      Tensor found = s_.flat(in_place);
      routed = routed.empty() ? found : add(routed, found, s_.at);
      Tensor lost = sum_all(sub(s_.flat(mask), found, s_.at), s_.at);
      dropped = dropped.empty() ? lost : add(dropped, lost, s_.at);
    }
    if (s_.o.gating == Gating::rescue) {  // a choice that found no place was followed by another
      Tensor first = s_.has_any();
      Tensor wanted = first.empty() ? tokens_in_all(routed) : sum_all(first, s_.at);
      dropped = sub(wanted, sum_all(routed, s_.at), s_.at);
    }
    routing_.dropped = dropped;
    routing_.load = reduce_max(chosen, chosen.shape().names(), s_.at);
  }

  Tensor tokens_in_all(Tensor like) const {
    return sum_all(broadcast(s_.number(1), like.shape(), s_.at), s_.at);
  }

  /// Each expert takes the tokens with the highest gates, of all tokens or of those that chose it.
  void choose_by_gate(bool of_all) {
    const std::vector<Choice> all = of_all ? std::vector<Choice>() : choices();
    Tensor mask = of_all ? Tensor() : all[0].mask, counts = s_.has_any();
    Tensor scores = mask.empty() ? s_.scores : mul(s_.scores, mask, s_.at);
    if (of_all && !counts.empty()) scores = mul(scores, counts, s_.at);
    routing_.balance = s_.competes() ? Balance(s_).of_tokens() : s_.number(0);
    if (!mask.empty()) routing_.balance = Balance(s_).of(all);
    TESSERA_REQUIRE(
        !capacity_.is_bounded || capacity_.size <= s_.tokens.size,
        "[route] capacity {} for {} tokens; experts cannot choose more than there are ({})",
        capacity_.size, s_.tokens.size, where(s_.at));
    if (capacity_.size > s_.tokens.size) capacity_.size = s_.tokens.size;
    const TopK best = top_k(scores, s_.tokens.name, capacity_, s_.at);
    Tensor taken = s_.real(best.values > 0.0);
    Tensor placed =
        mul(one_hot(best.indices, s_.tokens, 1, 0, s_.gates.dtype(), s_.at), taken, s_.at);
    std::vector<Dim> dims = s_.gates.shape().dims();
    dims.push_back(capacity_);
    routing_.dispatch = transpose(placed, Shape(dims), s_.at);
    Tensor places =
        reduce_sum(routing_.dispatch, {s_.experts.name.c_str(), capacity_.name.c_str()});
    routing_.combine = mul(routing_.dispatch, s_.gates, s_.at);
    if (s_.competes()) routing_.combine = routing_.combine / maximum(places, s_.number(1), s_.at);
    Tensor found = s_.real(places > 0.0), wanted = mask.empty() ? counts : s_.flat(mask);
    routing_.dropped =
        sub(wanted.empty() ? tokens_in_all(found) : sum_all(wanted, s_.at), sum_all(found), s_.at);
    Tensor chosen = mask.empty() ? s_.total(s_.flat(routing_.dispatch)) : s_.total(mask);
    routing_.load = reduce_max(chosen, chosen.shape().names(), s_.at);
  }

  /// Multiplies the routing tensors by a number that is infinite if a token was dropped, so that
  /// check_finite() keeps the run from storing what depends on them.
  void report(Routing& r) const {
    Tensor fine = where(r.dropped > 0.0, s_.number(INFINITY), s_.number(1), s_.at);
    const std::string label = fmt::format(
        "more tokens than the {} places '{}' of an expert hold; a larger capacity_factor or "
        "capacity has more places, and Overflow::count drops tokens",
        capacity_.size, capacity_.name);
    fine = check_finite(fine, label, s_.at);
    for (Tensor* t : {&r.dispatch, &r.combine, &r.dropped, &r.load}) *t = mul(*t, fine, s_.at);
  }

  Gates s_;
  Dim capacity_;
  Routing routing_;
};

}  // namespace

Routing route(Tensor logits, const std::string& tokens, const std::string& experts,
              const RoutingOptions& options, Loc at) {
  return on_behalf_of("route", at, [&]() -> Routing {
    return Router(logits, tokens, experts, options, true, at).run();
  });
}

Routing choose(Tensor logits, const std::string& tokens, const std::string& experts,
               const RoutingOptions& options, Loc at) {
  return on_behalf_of("choose", at, [&]() -> Routing {
    return Router(logits, tokens, experts, options, false, at).choose();
  });
}

}  // namespace tessera::nn
