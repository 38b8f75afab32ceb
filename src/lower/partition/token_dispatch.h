// Dispatch of tokens' rows to the ranks of their groups, and combination of the results.
#pragma once

#include <string>
#include <vector>

#include "lower/partition/token_slices.h"
#include "tessera/ops.h"

namespace tessera {

/// Which of a rank's tokens: of `count` chunks that are as even as can be, in their order.
struct DispatchChunk {
  int64_t number = 0, count = 1;
};

/// Tokens and groups are both in slices, one of each for a rank. Or several sets of ranks have all
/// slices of the groups each, and a rank has one slice of all tokens. A row is one choice of a
/// token. Each rank puts its rows for each owner, in the order of tokens and choices, into a block
/// with `places` places, and all_to_alls with counts move blocks to the owners and results back.
///
/// Dims: `tokens` [slices] of the tokens, `owners` [slices] of the groups, a place in a block. The
/// first is called as TokenSlices says, the second like the groups. Behind the first are the slices
/// of other ranks. What is made for tokens prefers `tokens`, and what arrives prefers `owners`.
class TokenDispatch {
 public:
  /// indices [tokens..., choices], int32, without bounded dims; an index outside of `groups` is no
  /// row. `owners`: the number of slices of the groups. `capacity`: the places of a block, as a
  /// multiple of the mean number of rows; 0: as many as a rank has rows, so that all of them may go
  /// to one owner.
  TokenDispatch(Tensor indices, const std::string& choices, const Dim& groups,
                const TokenSlices& tokens, int64_t owners, double capacity, DispatchChunk chunk);

  /// The share of places that has a row if all owners get as many.
  double used() const { return used_; }
  /// The groups of a slice.
  const Dim& inner() const { return inner_; }

  /// [tokens, owners, place, rest]: for each row the element of its token in x [token dims...,
  /// rest]; zero in places without a row. At the owners.
  Tensor tokens_to_owners(Tensor x) const;
  /// [tokens, owners, place]: the same for what each choice has, [token dims..., choices].
  Tensor choices_to_owners(Tensor x) const;
  /// [tokens, owners, place], int32: the groups of the rows, in the owner's slice; -1 without a
  /// row. At the owners.
  Tensor indices_at_owners() const;
  /// y [tokens, owners, place, rest], the results of rows, at the tokens. y is zero in places
  /// without a row.
  Tensor to_tokens(Tensor y) const;
  /// The sum, for each token, of the results of its rows, which are at the tokens: [tokens, token,
  /// rest]; zero for tokens of other chunks.
  Tensor combined(Tensor rows) const;
  /// Such sums as shape `to`, with the token dims and rest.
  Tensor by_tokens(Tensor sums, const Shape& to) const;

 private:
  Tensor in_slices(Tensor x, const Dim& last, double fill) const;
  Tensor to_owners(Tensor x, Tensor indices, const Dim& dim) const;

  Shape on_ranks(std::initializer_list<Dim> last) const;
  Shape of_slices(const Dim& last) const;
  Shape in_order(const Dim& last) const;

  Dim choices_;
  Shape tokens_;                     ///< token dims, first those in slices, those of others next
  std::vector<Dim> slices_, parts_;  ///< of both: how many, and what is in one, with padding
  std::vector<Dim> others_;
  Dim slice_, owner_, inner_, token_, row_, place_;
  int64_t first_row_ = 0;  ///< of the chunk
  double used_ = 1;
  Tensor like_;               ///< [slice], which it prefers
  Tensor local_;              ///< [slice, others, row]: 1 + the group in its slice
  Tensor row_of_, token_of_;  ///< [slice, others, owner, place]; -1: none
  Tensor counts_;             ///< [slice, others, owner]
};

}  // namespace tessera
