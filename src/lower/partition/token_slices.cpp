#include "lower/partition/token_slices.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

/// Which dims have the slices of tokens, for ranks in their order, and how many. One dim may have
/// more slices than there are ranks along `axes`: then those with equal other coordinates have
/// consecutive ones. A dim "" is for ranks that have the same slices. Nothing if they are in
/// another order, or if no dim is in slices.
std::optional<TokenSlices> slices_along(const Shape& shape,
                                        const std::vector<std::vector<int>>& split,
                                        const std::vector<int>& axes, const RuleLayouts& rules) {
  TokenSlices tokens;
  const auto add = [&](const std::string& dim, const std::vector<int>& own) {
    tokens.dims.push_back(dim);
    tokens.slices.push_back(rules.slices_of(own));
  };
  size_t done = 0;
  for (size_t d = 0; d < split.size() && done == 0; ++d) {
    if (split[d].size() <= axes.size() ||
        !std::equal(axes.rbegin(), axes.rend(), split[d].rbegin()))
      continue;
    add(shape[static_cast<int>(d)].name, split[d]);
    done = axes.size();
  }
  while (done < axes.size()) {
    const auto has = [&](const std::vector<int>& own) {
      return std::find(own.begin(), own.end(), axes[done]) != own.end();
    };
    const auto dim = std::find_if(split.begin(), split.end(), has);
    if (dim == split.end()) {
      add("", {axes[done]});
      ++done;
      continue;
    }
    const auto next = axes.begin() + static_cast<std::ptrdiff_t>(done);
    if (dim->size() > axes.size() - done || !std::equal(dim->begin(), dim->end(), next)) return {};
    add(shape[static_cast<int>(dim - split.begin())].name, *dim);
    done += dim->size();
  }
  bool any = false;
  for (size_t i = 0; i < tokens.dims.size(); ++i) {
    if (tokens.dims[i].empty()) continue;
    any = true;
    if (!rules.is_split_once(tokens.dims[i], tokens.slices[i])) return {};
  }
  if (!any) return {};
  return tokens;
}

/// The token dims of which only other ranks than those along `axes` have slices.
std::vector<Dim> slices_of_others(const Shape& shape, const Shape& tokens,
                                  const std::vector<std::vector<int>>& split,
                                  const std::vector<int>& axes, const RuleLayouts& rules) {
  std::vector<Dim> others;
  for (size_t d = 0; d < split.size(); ++d) {
    const std::string& dim = shape[static_cast<int>(d)].name;
    const int64_t slices = rules.slices_of(split[d]);
    const bool meets = std::find_first_of(split[d].begin(), split[d].end(), axes.begin(),
                                          axes.end()) != split[d].end();
    if (!split[d].empty() && !meets && rules.is_split_once(dim, slices) && tokens.has(dim))
      others.emplace_back(dim, slices);
  }
  return others;
}

/// Gives slices of a token dim to ranks that have the same slices, of which there are `copies`:
/// further slices of the dim before if it is large enough, else of a dim without slices.
void add_slices(const Shape& free, TokenSlices& tokens, size_t at) {
  const int64_t copies = tokens.slices[at];
  if (at > 0 && !tokens.dims[at - 1].empty()) {
    const int64_t all = tokens.slices[at - 1] * copies;
    if (free.dim(tokens.dims[at - 1]).size % all == 0) {
      tokens.slices[at - 1] = all;
      tokens.dims.erase(tokens.dims.begin() + static_cast<std::ptrdiff_t>(at));
      tokens.slices.erase(tokens.slices.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
  }
  Dim best("", 0);
  const auto is_even = [&](const Dim& d) { return d.size % copies == 0; };
  for (const Dim& d : free.without(tokens.dims)) {
    if (best.size == 0 || std::pair(is_even(d), d.size) > std::pair(is_even(best), best.size))
      best = d;
  }
  tokens.dims[at] = best.name;
}

/// Whether rows can be dispatched, and it sends less than to gather tokens. It does if a token has
/// fewer choices than there are slices. With as many it sends as much, and of more than two slices
/// needs room for fewer rows, or can be done in chunks. Dims with a size of the run are not
/// dispatched.
bool dispatches(const Shape& x, const Shape& indices, int64_t slices, int chunks) {
  const Shape choices = choices_of(x, indices);
  if (choices.rank() != 1 || x.rank() != indices.rank()) return false;  // no choice for each token
  if (std::any_of(indices.begin(), indices.end(), [](const Dim& d) { return d.is_bounded; }))
    return false;
  const int64_t most = choices.elements();
  return most < slices || (most == slices && (slices > 2 || chunks > 1));
}

}  // namespace

int64_t TokenSlices::count() const {
  return std::accumulate(slices.begin(), slices.end(), int64_t{1}, std::multiplies<>());
}

Shape choices_of(const Shape& tokens, const Shape& indices) {
  return indices.without(tokens.names());
}

std::optional<TokenSlices> token_slices(const OpCall& call,
                                        const std::vector<std::vector<int>>& split,
                                        const std::vector<int>& axes,
                                        const RuleLayouts& rule_layouts, int chunks) {
  const Routing routing = call.op.routing(call.attrs);
  const Shape &x = call.in[0].shape, &indices = call.in[routing.index].shape;
  if (!dispatches(x, indices, rule_layouts.slices_of(axes), chunks)) return {};
  std::optional<TokenSlices> found = slices_along(x, split, axes, rule_layouts);
  if (!found) return {};
  found->name = found->dims.size() == 1 ? found->dims[0] : RuleLayouts::sources_of(routing.groups);
  const Shape tokens = indices.without(choices_of(x, indices).names());
  found->others = slices_of_others(x, tokens, split, axes, rule_layouts);
  const Shape free = tokens.without(Shape(found->others).names());
  for (size_t i = found->dims.size(); i-- > 0;) {
    if (found->dims[i].empty()) add_slices(free, *found, i);
  }
  const auto is_token = [&](const std::string& dim) { return indices.has(dim); };
  if (!std::all_of(found->dims.begin(), found->dims.end(), is_token)) return {};
  return found;
}

}  // namespace tessera
