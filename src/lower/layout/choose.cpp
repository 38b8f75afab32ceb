#include "lower/layout/choose.h"

#include <algorithm>
#include <functional>

#include "base/fail.h"
#include "lower/layout/memo_key.h"

namespace tessera {

uint32_t linear_in(const Op& op, uint32_t operands) {
  for (uint32_t set : op.linear) {
    if (set != 0 && (set & operands) == operands) return set;
  }
  return 0;
}

namespace {

using Dims = std::vector<std::vector<std::vector<int>>>;

/// Calls visit(layout, dim, index of the dim, factors) for every dim of every result, then of every
/// operand.
void each_dim(const OpSite& site, const std::function<void(const TensorLayout&, const Dim&, int,
                                                           const std::vector<int>&)>& visit) {
  auto all = [&](const Dims& operands, const std::vector<ValueType>& types,
                 const std::vector<TensorLayout>& layouts) {
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t d = 0; d < operands[i].size(); ++d) {
        visit(layouts[i], types[i].shape[static_cast<int>(d)], static_cast<int>(d), operands[i][d]);
      }
    }
  };
  all(site.space.out, site.call.out, site.result_layouts);
  all(site.space.in, site.call.in, site.in_layouts);
}

bool can_split(const OpSite& site, const RuleLayouts& rule_layouts, int factor) {
  const Role role = site.space.factors[factor].role;
  if (role == Role::whole || is_inside(role) || role == Role::related) return false;
  bool ok = true;
  each_dim(site, [&](const TensorLayout&, const Dim& dim, int, const std::vector<int>& factors) {
    if (std::find(factors.begin(), factors.end(), factor) == factors.end()) return;
    if (factors.size() > 1 && rule_layouts.has_padding(dim)) ok = false;
    if (factors[0] != factor) ok = false;  // a slice of a minor factor is not contiguous
  });
  // If a merged dim has the factor, no dim with it may have padding.
  bool merged = false, padded = false;
  each_dim(site, [&](const TensorLayout&, const Dim& dim, int, const std::vector<int>& factors) {
    if (std::find(factors.begin(), factors.end(), factor) == factors.end()) return;
    merged |= factors.size() > 1;
    padded |= rule_layouts.has_padding(dim);
  });
  return ok && !(merged && padded);
}

/// The factor to split when a dim of this one is split: for a related factor, the other side of its
/// relation.
int split_factor(const IndexSpace& space, int factor) {
  for (const Relation& r : space.relations) {
    if (space.factors[factor].role != Role::related) break;
    if (r.in == factor) return r.out;
    if (r.out == factor) return r.in;
  }
  return factor;
}

struct Candidates {
  int axis;
  std::vector<int> factors;  ///< in order of preference; -1 (none) last
};

std::vector<Candidates> candidates(const OpSite& site, const RuleLayouts& rule_layouts,
                                   const std::vector<int>& partial) {
  std::vector<Candidates> result;
  for (int axis = 0; axis < rule_layouts.mesh().rank(); ++axis) {
    if (rule_layouts.mesh().axes()[axis].size == 1) continue;
    Candidates c{axis, {}};
    if (std::find(partial.begin(), partial.end(), axis) == partial.end()) {
      std::vector<std::pair<int, int>>
          found;  // (rule order, factor): results first, each sorted by rule
      size_t sorted = 0;
      const size_t results = site.call.out.size();
      size_t seen = 0;
      each_dim(site, [&](const TensorLayout& layout, const Dim& dim, int d,
                         const std::vector<int>& factors) {
        size_t total = 0;
        for (size_t i = 0; i < results; ++i) total += site.space.out[i].size();
        if (seen++ == total) std::stable_sort(found.begin(), found.end()), sorted = found.size();
        if (factors.empty()) return;
        const auto& axes = layout.dims[d];
        const int factor = split_factor(site.space, factors[0]);
        if (std::find(axes.begin(), axes.end(), axis) == axes.end() ||
            !can_split(site, rule_layouts, factor))
          return;
        found.emplace_back(rule_layouts.rule_order(dim.name, axis), factor);
      });
      std::stable_sort(found.begin() + static_cast<std::ptrdiff_t>(sorted), found.end());
      for (const auto& [order, factor] : found) {
        if (std::find(c.factors.begin(), c.factors.end(), factor) == c.factors.end())
          c.factors.push_back(factor);
      }
    }
    c.factors.push_back(-1);
    result.push_back(std::move(c));
  }
  return result;
}

/// The axes of a factor, ordered as in the first layouts that have them.
std::vector<int> ordered_axes(const OpSite& site, int factor, const std::vector<int>& axes) {
  std::vector<int> result;
  if (axes.size() < 2) return axes;
  each_dim(site,
           [&](const TensorLayout& layout, const Dim&, int d, const std::vector<int>& factors) {
             if (factors.empty() || factors[0] != factor) return;
             for (int axis : layout.dims[d]) {
               if (std::find(axes.begin(), axes.end(), axis) != axes.end() &&
                   std::find(result.begin(), result.end(), axis) == result.end()) {
                 result.push_back(axis);
               }
             }
           });
  return result;
}

TensorLayout layout_of(const std::vector<std::vector<int>>& dims,
                       const std::vector<std::vector<int>>& splits) {
  TensorLayout layout;
  for (const auto& factors : dims)
    layout.dims.push_back(factors.empty() ? std::vector<int>{} : splits[factors[0]]);
  return layout;
}

/// Fills in the layouts. Returns false if a factor's size is not divisible by its axes.
bool derive(const OpSite& site, const RuleLayouts& rule_layouts, const std::vector<int>& partial,
            Choice& choice) {
  TensorLayout reduced;
  reduced.partial = partial;
  for (size_t f = 0; f < choice.splits.size(); ++f) {
    choice.splits[f] = ordered_axes(site, static_cast<int>(f), choice.splits[f]);
    int64_t size = padded_factor(site.call, site.space, rule_layouts, static_cast<int>(f));
    for (int axis : choice.splits[f]) {
      const int ranks = rule_layouts.mesh().axes()[axis].size;
      if (size % ranks) return false;
      size /= ranks;
    }
    const Factor& factor = site.space.factors[f];
    if (choice.splits[f].empty() || (factor.role != Role::reduce && factor.role != Role::lookup))
      continue;
    reduced.combiner = factor.combiner;
    reduced.partial.insert(reduced.partial.end(), choice.splits[f].begin(), choice.splits[f].end());
  }
  std::sort(reduced.partial.begin(), reduced.partial.end());
  for (size_t i = 0; i < site.call.in.size(); ++i) {
    TensorLayout layout = layout_of(site.space.in[i], choice.splits);
    if (layout.dims.empty()) layout.dims.resize(site.call.in[i].shape.rank());
    layout.partial = site.in_layouts[i].partial;
    layout.combiner = site.in_layouts[i].combiner;
    choice.in.push_back({std::move(layout), {}});
  }
  for (size_t i = 0; i < site.call.out.size(); ++i) {
    TensorLayout layout = layout_of(site.space.out[i], choice.splits);
    if (layout.dims.empty()) layout.dims.resize(site.call.out[i].shape.rank());
    layout.partial = reduced.partial;
    layout.combiner = reduced.combiner;
    choice.out.push_back(std::move(layout));
  }
  return true;
}

}  // namespace

int64_t padded_factor(const OpCall& call, const IndexSpace& space, const RuleLayouts& rule_layouts,
                      int factor) {
  int64_t size = space.factors[factor].size;
  bool merged = false;
  auto look = [&](const Dims& operands, const std::vector<ValueType>& types) {
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t d = 0; d < operands[i].size(); ++d) {
        const auto& factors = operands[i][d];
        if (std::find(factors.begin(), factors.end(), factor) == factors.end()) continue;
        merged |= factors.size() > 1;
        size = std::max(size, factors.size() == 1
                                  ? rule_layouts.padded(types[i].shape[static_cast<int>(d)])
                                  : size);
      }
    }
  };
  look(space.out, call.out);
  look(space.in, call.in);
  return merged ? space.factors[factor].size : size;
}

Choice choose(const OpSite& site, const RuleLayouts& rule_layouts, Resharder& resharder) {
  std::vector<int> partial;
  for (const TensorLayout& layout : site.in_layouts) {
    for (int axis : layout.partial) {
      if (std::find(partial.begin(), partial.end(), axis) == partial.end()) partial.push_back(axis);
    }
  }
  const std::vector<Candidates> axes = candidates(site, rule_layouts, partial);
  Choice best;
  bool found = false;
  std::vector<int> pick(axes.size(), 0);
  while (true) {
    Choice choice;
    choice.splits.resize(site.space.factors.size());
    for (size_t k = 0; k < axes.size(); ++k) {
      const int factor = axes[k].factors[pick[k]];
      if (factor >= 0) {
        choice.splits[factor].push_back(axes[k].axis);
      } else if (std::find(partial.begin(), partial.end(), axes[k].axis) == partial.end()) {
        ++choice.unused;
      }
    }
    if (!found || choice.unused <= best.unused) {
      if (derive(site, rule_layouts, partial, choice)) {
        for (size_t i = 0; i < site.call.in.size(); ++i) {
          choice.in[i] =
              place_operand(site.call, site.space, static_cast<int>(i), site.in_layouts[i],
                            choice.in[i].layout, choice.splits, rule_layouts, resharder);
          choice.cost += choice.in[i].bytes / site.readers[i];
          choice.latency += choice.in[i].latency / site.readers[i];
        }
        for (size_t i = 0; i < site.call.out.size(); ++i) {
          const ValueType& type = site.call.out[i];
          const Path& by_rules =
              resharder.path(type.shape, type.dtype, choice.out[i], site.result_layouts[i]);
          choice.cost += by_rules.bytes;
          choice.latency += by_rules.latency;
        }
        if (!found || choice.unused < best.unused || choice.cost < best.cost)
          best = std::move(choice), found = true;
      }
    }
    size_t k = axes.size();
    while (k > 0 && ++pick[k - 1] == static_cast<int>(axes[k - 1].factors.size())) pick[--k] = 0;
    if (k == 0) break;
  }
  TESSERA_CHECK(found, "[{}] has no way to be computed", site.call.op.name);
  return best;
}

namespace {
MemoKey key_of(const OpCall& call) {
  return MemoKey().add(&call.op).add(call.in).add(call.out).add(call.attrs);
}
}  // namespace

const IndexSpace& SplitChooser::space(const OpCall& call) {
  const MemoKey key = key_of(call);
  auto it = spaces_.find(key.text());
  if (it == spaces_.end()) it = spaces_.emplace(key.text(), index_space(call)).first;
  return it->second;
}

const Choice& SplitChooser::choice(const OpCall& call, const std::vector<TensorLayout>& in_layouts,
                                   const std::vector<TensorLayout>& result_layouts,
                                   const std::vector<int>& readers) {
  const MemoKey key = key_of(call).add(in_layouts).add(result_layouts).add(readers);
  auto it = choices_.find(key.text());
  if (it == choices_.end()) {
    const OpSite site{call, space(call), in_layouts, result_layouts, readers};
    it = choices_.emplace(key.text(), choose(site, rule_layouts_, resharder_)).first;
  }
  return it->second;
}

}  // namespace tessera
