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

class Router {
 public:
  Router(Tensor logits, const std::string& tokens, const std::string& experts,
         const RoutingOptions& o, Loc at)
      : g_(logits.graph()),
        o_(o),
        at_(at),
        tokens_(logits.dim(tokens)),
        experts_(logits.dim(experts)),
        logits_(open(checked(logits).dtype() == DType::float64 ? logits
                                                               : read_as(logits, DType::float32))),
        gates_(gates()),
        capacity_(capacity()) {
    require(o.choices >= 1 && o.choices <= experts_.size,
            "[route] {} choices of {} experts; a token has at least one, and as many as experts "
            "at most ({})",
            o.choices, experts_.size, where(at));
    require(o.threshold > 0 && o.sample >= 0,
            "[route] threshold {} and sample {}: the first is positive, the second not negative "
            "({})",
            o.threshold, o.sample, where(at));
    require(o.second_balance == 0 || o.choices > 1,
            "[route] second_balance {} with one choice; a second choice takes choices 2 ({})",
            o.second_balance, where(at));
    check_importance();
  }

  Routing run() {
    if (by_experts() || o_.gating == Gating::strongest) {
      choose_by_gate(by_experts());
    } else {
      choose_in_turn();
    }
    Routing r = routing_;
    Tensor z = square(reduce_logsumexp(logits_, experts_.name, at_), at_);
    if (Tensor counts = is_full())
      r.z = sum_all(mul(z, counts, at_), at_) / maximum(number(1), counted_tokens(counts), at_);
    else
      r.z = mean_all(z, at_);
    if (o_.overflow == Overflow::error) report(r);
    return r;
  }

 private:
  Tensor checked(Tensor logits) const {
    require(is_floating(logits.dtype()), "the logits are {}; they must be floating, use cast()",
            to_string(logits.dtype()));
    require(tokens_.name != experts_.name, "dim '{}' is both the tokens and the experts",
            tokens_.name);
    return logits;
  }

  bool by_experts() const { return o_.gating == Gating::experts_choose || competes(); }
  bool competes() const { return o_.gating == Gating::tokens_compete; }
  Tensor gates() const {
    if (!competes()) return softmax(logits_, experts_.name, at_);
    check_importance();
    Tensor none = constant(g_, -1e9, logits_.dtype(), {}, at_), x = logits_;
    if (o_.importance) x = where(o_.importance > 0.0, x, none, at_);
    return softmax(x, tokens_.name, at_);
  }

  void check_importance() const {
    if (!o_.importance) return;
    const Shape known = logits_.shape().without({experts_.name});
    for (const Dim& d : o_.importance.shape()) {
      require(known.has(d.name),
              "the importance {} has the dim '{}'; it has dims of {}, which are "
              "those of the logits without the experts",
              o_.importance.shape().to_string(), d.name, known.to_string());
    }
  }

  Dim capacity() const {
    require(o_.capacity.size() <= 1, "{} capacity dims; an expert has one", o_.capacity.size());
    require(o_.least_capacity >= 0 && o_.capacity_factor >= 0,
            "capacity_factor {} and least_capacity {}; neither is negative", o_.capacity_factor,
            o_.least_capacity);
    const Dim dim = o_.capacity.empty() ? usual_capacity() : o_.capacity.front();
    require(!logits_.shape().has(dim.name),
            "the capacity is dim '{}', which the logits {} have already; rename one of them",
            dim.name, logits_.shape().to_string());
    return dim;
  }

  Dim usual_capacity() const {
    const double all = static_cast<double>(tokens_.size),
                 even = all * o_.capacity_factor / static_cast<double>(experts_.size);
    auto places = static_cast<int64_t>(std::min(all, even));
    places = std::max(places, o_.least_capacity);
    require(places >= 1,
            "[route] capacity 0: {} tokens, {} experts, capacity_factor {} and least_capacity {}; "
            "an expert needs at least one place ({})",
            tokens_.size, experts_.size, o_.capacity_factor, o_.least_capacity, where(at_));
    return {"capacity", places};
  }

  Tensor number(double value) const { return constant(g_, value, gates_.dtype(), {}, at_); }
  Tensor real(Tensor flags) const { return cast(flags, gates_.dtype(), at_); }
  Tensor mask_of(Tensor index) const { return one_hot(index, experts_, 1, 0, gates_.dtype(), at_); }
  /// Sums over experts (flat) and over tokens (total).
  Tensor flat(Tensor x) const { return reduce_sum(x, experts_.name, at_); }
  Tensor total(Tensor x) const { return reduce_sum(x, tokens_.name, at_); }

  /// 1 for tokens with importance 1, with a first choice, with any choice; empty: all tokens.
  Tensor is_full() const { return o_.importance ? real(o_.importance >= 1.0) : Tensor(); }
  Tensor has_first() const { return o_.first_for_all ? has_any() : is_full(); }
  Tensor has_any() const { return o_.importance ? real(o_.importance > 0.0) : Tensor(); }

  Tensor first_choice() const {
    if (o_.sample == 0) return argmax(gates_, experts_.name, at_);
    return sampled(logits_, o_.sample);
  }
  Tensor sampled(Tensor logits, double temperature) const {
    Tensor drawn = random_uniform(g_, logits.shape(), 1e-9, 1, logits.dtype(), at_);
    return argmax(logits - log(neg(log(drawn, at_), at_), at_) * temperature, experts_.name, at_);
  }

  /// The logits with the best expert masked out for some tokens; with second_sample, all but a
  /// sampled one.
  Tensor open(Tensor logits) const {
    require(o_.second_place >= 0 && o_.second_place <= 1 && o_.second_sample >= 0,
            "second_place {} and second_sample {}; the first is a probability, the second not "
            "negative",
            o_.second_place, o_.second_sample);
    if (o_.second_place == 0) return logits;
    require(!by_experts() && experts_.size > 1,
            "second_place {} of {} experts, {}; it needs two experts, and tokens that choose "
            "theirs",
            o_.second_place, experts_.size,
            by_experts() ? "which choose their tokens" : "one of them the best");
    const auto mask = [&](Tensor index) {
      return one_hot(index, experts_, 1, 0, logits.dtype(), at_) > 0.0;
    };
    Tensor none = constant(g_, -1e9, logits.dtype(), {}, at_);
    Tensor others = where(mask(argmax(logits, experts_.name, at_)), none, logits, at_);
    if (o_.second_sample > 0)
      others = where(mask(sampled(others, o_.second_sample)), others, none, at_);
    if (o_.second_place == 1) return others;
    Tensor drawn =
        random_uniform(g_, logits.shape().without({experts_.name}), 0, 1, logits.dtype(), at_);
    return where(drawn < o_.second_place, others, logits, at_);
  }

  struct Choice {
    Tensor wanted;  ///< [..., tokens, experts]: 1 at the chosen expert
    Tensor mask;    ///< the same, 0 if the choice does not count
    Tensor gate;    ///< [..., tokens]
  };

  std::vector<Choice> choices() const {
    std::vector<Choice> result;
    Tensor left = gates_, sum;
    for (int64_t i = 0; i < o_.choices; ++i) {
      Tensor index = i == 0 ? first_choice() : argmax(left, experts_.name, at_);
      Tensor mask = mask_of(index), counts = i == 0 ? has_first() : has_any();
      if (counts) mask = mul(mask, counts, at_);
      Tensor gate = flat(mul(gates_, mask, at_));
      left = where(mask > 0.0, number(-1), left, at_);
      sum = sum ? add(sum, gate, at_) : gate;
      result.push_back({mask, mask, gate});
    }
    if (o_.renormalize && o_.choices > 1) {
      for (Choice& c : result) c.gate = c.gate / (sum + 1e-9);
    }
    for (size_t i = 1; i < result.size(); ++i) result[i].mask = counted(result[i]);
    return result;
  }

  /// The mask of a further choice, reduced to where the policy Further counts it.
  Tensor counted(const Choice& c) const {
    if (o_.further == Further::all) return c.mask;
    if (o_.further == Further::none) return c.mask * 0.0;
    Tensor least = number(o_.threshold);
    if (o_.further == Further::random)
      least = random_uniform(g_, c.gate.shape(), 0, o_.threshold, gates_.dtype(), at_);
    return mul(c.mask, real(greater(c.gate, least, at_)), at_);
  }

  void add_places(Tensor placed, Tensor gate) {
    Tensor weighted = mul(placed, gate, at_);
    routing_.dispatch = routing_.dispatch ? add(routing_.dispatch, placed, at_) : placed;
    routing_.combine = routing_.combine ? add(routing_.combine, weighted, at_) : weighted;
  }

  void choose_in_turn() {
    const std::vector<Choice> all = choices();
    balance(all);
    Tensor before, routed, dropped, chosen;
    for (const Choice& c : all) {
      Tensor mask = c.mask;
      if (o_.gating == Gating::rescue && routed) mask = mul(mask, 1.0 - routed, at_);
      Tensor place = cumsum(mask, tokens_.name, true, false, at_);
      if (before) place = add(place, before, at_);
      Tensor index = cast(flat(mul(place, mask, at_)), DType::int32, at_);
      Tensor slot = one_hot(index, capacity_, 1, 0, gates_.dtype(), at_);
      Tensor kept = reduce_sum(slot, capacity_.name, at_);
      Tensor in_place = mul(mask, kept, at_), count = total(in_place);
      add_places(mul(mask, slot, at_), c.gate);
      before = before ? add(before, count, at_) : count;
      chosen = chosen ? add(chosen, total(mask), at_) : total(mask);
      Tensor found = flat(in_place);
      routed = routed ? add(routed, found, at_) : found;
      Tensor lost = sum_all(sub(flat(mask), found, at_), at_);
      dropped = dropped ? add(dropped, lost, at_) : lost;
    }
    if (o_.gating == Gating::rescue) {  // here a choice without a place is followed by another
      Tensor first = has_any();
      Tensor wanted = first ? sum_all(first, at_) : tokens_in_all(routed);
      dropped = sub(wanted, sum_all(routed, at_), at_);
    }
    routing_.dropped = dropped;
    routing_.load = reduce_max(chosen, chosen.shape().names(), at_);
  }

  Tensor tokens_in_all(Tensor like) const {
    return sum_all(broadcast(number(1), like.shape(), at_), at_);
  }

  /// Each expert takes the tokens with the highest gates, of all tokens or of those that chose it.
  void choose_by_gate(bool of_all) {
    const std::vector<Choice> all = of_all ? std::vector<Choice>() : choices();
    Tensor mask = of_all ? Tensor() : all[0].mask, counts = has_any();
    Tensor scores = mask ? mul(gates_, mask, at_) : gates_;
    if (of_all && counts) scores = mul(scores, counts, at_);
    routing_.balance = competes() ? balance_of_tokens() : number(0);
    if (mask) balance(all);
    require(!capacity_.is_bounded || capacity_.size <= tokens_.size,
            "[route] capacity {} for {} tokens; experts cannot choose more than there are ({})",
            capacity_.size, tokens_.size, where(at_));
    if (capacity_.size > tokens_.size) capacity_.size = tokens_.size;
    const TopK best = top_k(scores, tokens_.name, capacity_, at_);
    Tensor taken = real(best.values > 0.0);
    Tensor placed = mul(one_hot(best.indices, tokens_, 1, 0, gates_.dtype(), at_), taken, at_);
    std::vector<Dim> dims = gates_.shape().dims();
    dims.push_back(capacity_);
    routing_.dispatch = transpose(placed, Shape(dims), at_);
    Tensor places = reduce_sum(routing_.dispatch, {experts_.name.c_str(), capacity_.name.c_str()});
    routing_.combine = mul(routing_.dispatch, gates_, at_);
    if (competes()) routing_.combine = routing_.combine / maximum(places, number(1), at_);
    Tensor found = real(places > 0.0), wanted = mask ? flat(mask) : counts;
    routing_.dropped =
        sub(wanted ? sum_all(wanted, at_) : tokens_in_all(found), sum_all(found), at_);
    Tensor chosen = mask ? total(mask) : total(flat(routing_.dispatch));
    routing_.load = reduce_max(chosen, chosen.shape().names(), at_);
  }

  /// experts^2 times the mean over groups and experts of (share of tokens) * (mean gate).
  Tensor product_of_shares(Tensor chosen, Tensor gates) const {
    const double squared = static_cast<double>(experts_.size * experts_.size);
    Tensor share = reduce_mean(chosen, tokens_.name, at_);
    return mean_all(mul(share, reduce_mean(gates, tokens_.name, at_), at_), at_) * squared;
  }
  void balance(const std::vector<Choice>& choices) {
    Tensor proxy = gates_, counts = is_full(), wanted = choices[0].wanted;
    if (counts) proxy = mul(proxy, counts, at_);
    if (o_.gating == Gating::rescue) {
      for (size_t i = 1; i < choices.size(); ++i) wanted = add(wanted, choices[i].wanted, at_);
      wanted = wanted * (1 / static_cast<double>(choices.size()));
    }
    routing_.balance = product_of_shares(wanted, proxy);
    if (o_.second_balance == 0) return;
    Tensor left = mul(gates_, 1.0 - choices[0].wanted, at_);
    left = left / (flat(left) + 1e-9);
    Tensor second = product_of_shares(choices[1].wanted, left);
    routing_.balance = add(routing_.balance, second * o_.second_balance, at_);
  }
  /// 1 if every token has the same mean gate, one over the number of tokens.
  Tensor balance_of_tokens() const {
    Tensor mean = reduce_mean(gates_, experts_.name, at_), counts = is_full();
    Tensor size = number(static_cast<double>(tokens_.size));
    if (counts) {
      mean = mul(mean, counts, at_);
      size = reduce_sum(broadcast(cast(o_.importance, gates_.dtype(), at_), mean.shape(), at_),
                        tokens_.name, at_);
    }
    return mean_all(mul(square(mean, at_), size, at_), at_) * static_cast<double>(tokens_.size);
  }
  Tensor counted_tokens(Tensor counts) const {
    return sum_all(broadcast(counts, logits_.shape().without({experts_.name}), at_), at_);
  }

  /// Multiplies the routing tensors by a number that is infinite if a token was dropped, so that
  /// check_finite() keeps the run from storing what depends on them.
  void report(Routing& r) const {
    Tensor fine = where(r.dropped > 0.0, number(INFINITY), number(1), at_);
    const std::string label = fmt::format("more tokens than the {} places '{}' of an expert hold",
                                          capacity_.size, capacity_.name);
    fine = check_finite(fine, label, at_);
    for (Tensor* t : {&r.dispatch, &r.combine, &r.dropped, &r.load}) *t = mul(*t, fine, at_);
  }

  Graph& g_;
  const RoutingOptions& o_;
  Loc at_;
  Dim tokens_, experts_;
  Tensor logits_, gates_;
  Dim capacity_;
  Routing routing_;
};

}  // namespace

Routing route(Tensor logits, const std::string& tokens, const std::string& experts,
              const RoutingOptions& options, Loc at) {
  return on_behalf_of(
      "route", at, [&]() -> Routing { return Router(logits, tokens, experts, options, at).run(); });
}

}  // namespace tessera::nn
