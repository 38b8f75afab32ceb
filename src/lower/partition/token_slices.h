// Which slices of the tokens the ranks have that exchange rows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lower/layout/rule_layouts.h"
#include "tessera/op.h"

namespace tessera {

/// How the ranks have slices of tokens: of `dims`, in the order of the ranks, so many `slices`. All
/// slices together are a dim called `name`. Ranks that exchange no rows have slices of `others`.
struct TokenSlices {
  std::string name;
  std::vector<std::string> dims;
  std::vector<int64_t> slices;
  std::vector<Dim> others = {};  ///< the dims, and how many slices as size
  int64_t count() const;
};

/// The dims of the indices that the tokens lack.
Shape choices_of(const Shape& tokens, const Shape& indices);

/// How the ranks along `axes`, which split the groups, have slices of the tokens, if dispatching
/// rows sends less than gathering tokens does; else nothing. `split`: the axes of each dim of the
/// first operand, which has the tokens.
std::optional<TokenSlices> token_slices(const OpCall& call,
                                        const std::vector<std::vector<int>>& split,
                                        const std::vector<int>& axes,
                                        const RuleLayouts& rule_layouts, int chunks);

}  // namespace tessera
