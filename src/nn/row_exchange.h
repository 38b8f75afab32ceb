// Rows that travel to the ranks which own what they chose, and back.
#pragma once

#include <string>
#include <vector>

#include "tessera/ops.h"
#include "tessera/ragged.h"

namespace tessera::nn {

/// How the ranks have slices of tokens: of `dims`, in the order of the ranks, so many `slices`. All
/// slices together are a dim called `name`. Ranks that exchange no rows have slices of `groups`.
struct RowSlices {
  std::string name;
  std::vector<std::string> dims;
  std::vector<int64_t> slices;
  std::vector<Dim> groups = {};  ///< the dims, and how many slices as size
  int64_t count() const;
};

/// Which of a rank's tokens: of `count` parts that are as even as can be, in their order.
struct TokenPart {
  int64_t number = 0, count = 1;
};

/// Tokens and experts are both in slices, one of each for a rank. Or ranks are in groups with all
/// slices of the experts each, and a rank has one slice of all tokens. A row is one choice of a
/// token. Each rank puts its rows for each owner, in the order of tokens and choices, into a block
/// with `places` places, and all_to_alls with counts move blocks to the owners and results back.
///
/// Dims: `tokens` [slices] of the tokens, `owners` [slices] of the experts, a place in a block. The
/// first is called as RowSlices says, the second like the experts. Behind the first are the groups.
/// What is made for tokens prefers `tokens`, and what arrives prefers `owners`.
///
/// An exchange may be for a part of each rank's tokens. Then the rows of another part can travel
/// while these are multiplied.
class RowExchange {
 public:
  /// indices [tokens..., choices], int32, without bounded dims; an index outside of `experts` is no
  /// row. `owners`: the number of slices of the experts. `bound`: the places of a block, as a
  /// multiple of the mean number of rows (Experts::row_bound, raised); 0: as many as a rank has
  /// rows, so that all of them may go to one owner.
  RowExchange(Tensor indices, const std::string& choices, const Dim& experts,
              const RowSlices& tokens, int64_t owners, double bound = 0, TokenPart part = {});

  /// The share of places that has a row if all owners get as many.
  double used() const { return used_; }
  /// The experts of a slice.
  const Dim& inner() const { return inner_; }

  /// [tokens, owners, place, rest]: for each row the element of its token in x [token dims...,
  /// rest]; zero in places without a row. At the owners.
  Tensor tokens_to_owners(Tensor x) const;
  /// [tokens, owners, place]: the same for what each choice has, [token dims..., choices].
  Tensor choices_to_owners(Tensor x) const;
  /// [tokens, owners, place], int32: the experts of the rows, in the owner's slice; -1 without a
  /// row. At the owners.
  Tensor indices_at_owners() const;
  /// y [tokens, owners, place, rest], the results of rows, at the tokens. y is zero in places
  /// without a row.
  Tensor to_tokens(Tensor y) const;
  /// The sum, for each token, of the results of its rows, which are at the tokens: [tokens, token,
  /// rest]; zero for tokens of other parts.
  Tensor sums_of_tokens(Tensor rows) const;
  /// Such sums as shape `to`, with the token dims and rest.
  Tensor by_tokens(Tensor sums, const Shape& to) const;

 private:
  Tensor by_slices(Tensor x, const Dim& last, double fill) const;
  Tensor to_owners(Tensor x, Tensor indices, const Dim& dim) const;

  Shape on_ranks(std::initializer_list<Dim> last) const;
  Shape of_slices(const Dim& last) const;
  Shape in_order(const Dim& last) const;

  Dim choices_, experts_;
  Shape tokens_;                     ///< token dims, first those in slices, those in groups next
  std::vector<Dim> slices_, parts_;  ///< of both: how many, and what is in one, with padding
  std::vector<Dim> groups_;
  Dim slice_, owner_, inner_, token_, row_, place_;
  int64_t first_row_ = 0;  ///< of the part
  double used_ = 1;
  Tensor like_;               ///< [slice], which it prefers
  Tensor local_;              ///< [slice, groups, row]: 1 + the expert in its slice
  Tensor row_of_, token_of_;  ///< [slice, groups, owner, place]; -1: none
  Tensor counts_;             ///< [slice, groups, owner]
};

}  // namespace tessera::nn
