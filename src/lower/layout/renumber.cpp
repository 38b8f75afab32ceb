#include "lower/layout/renumber.h"

#include <algorithm>

namespace tessera {

bool nests(const IndexSpace& space) {
  return std::all_of(space.factors.begin(), space.factors.end(),
                     [](const Factor& f) { return f.role == Role::map; });
}

bool better_renumbered(const OpCall& call, const IndexSpace& space, const TensorLayout& now,
                       const TensorLayout& by_rules, const Choice& choice,
                       const RuleLayouts& rule_layouts) {
  if (!space.same_order || !now.partial.empty()) return false;
  bool bounded = false, padded = false;
  for (const Shape* shape : {&call.in[0].shape, &call.out[0].shape}) {
    for (const Dim& d : *shape) bounded |= d.is_bounded, padded |= rule_layouts.has_padding(d);
  }
  const bool needed = padded && !nests(space);
  if (bounded || (choice.cost == 0 && !needed)) return false;
  const int64_t bytes =
      mean_renumbered(numbering_of(rule_layouts, call.in[0].shape, now),
                      numbering_of(rule_layouts, call.out[0].shape, by_rules),
                      sizes_of_axes(rule_layouts.mesh()), size_of(call.in[0].dtype));
  return needed || bytes < choice.cost - choice.latency;
}

}  // namespace tessera
