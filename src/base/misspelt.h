// Dims of two tensors that are one letter apart.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/dim.h"

namespace tessera {

/// The first dim of `a` that `b` lacks and dim of `b` that `a` lacks which have one size and nearly
/// one name (is_near): one of them is misspelt more often than both are meant. No two dims that
/// `meant` names are such a pair.
std::optional<std::pair<Dim, Dim>> misspelt_pair(const Shape& a, const Shape& b,
                                                 const std::vector<std::string>& meant = {});
/// Throws a usage error if there is such a pair, for operands of which the result has all dims.
void require_no_misspelling(const Shape& a, const Shape& b,
                            const std::vector<std::string>& meant = {});

}  // namespace tessera
