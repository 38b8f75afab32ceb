// Texts of kernels that add in the canonical order (kernels/cuda/ordered_sum.h). A rank's subtrees
// are summed by one launch each, of one text: their sizes and places are arguments.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/codegen.h"
#include "program/sum_order.h"

namespace tessera::cuda {

inline constexpr const char* kOrderedHeader = "kernels/cuda/ordered_sum.h";

/// The terms of a rank's subtrees, one for each place of the result (program/sum_order.h).
class OrderedTerms {
 public:
  explicit OrderedTerms(const KernelArgs& args);

  size_t places() const { return boxes_.size(); }
  int dims() const { return static_cast<int>(along_.size()); }
  /// The type of a term's number.
  const char* type() const { return type_; }
  /// Levels of the tree, and at least one.
  int depth() const;
  /// Terms and leaves of a place.
  int64_t count(size_t place) const;
  int64_t leaves(size_t place) const;
  /// What no rank has more of.
  int64_t most() const;
  int64_t most_leaves() const;

  /// Declares `terms` of a place.
  std::string declaration(Arguments& arguments, size_t place) const;
  /// What the indices "k" of a term and `more` give along these strides, by dim of the views.
  std::string offset(Arguments& arguments, size_t place, const std::vector<int64_t>& strides,
                     int64_t more = 0) const;
  /// The smallest step that is not 0 from a term to one beside it; a large number if there is none.
  int64_t densest(const std::vector<int64_t>& strides) const;
  /// The offset of a place in the result: "" or " + n".
  std::string place_offset(Arguments& arguments, size_t place) const;

 private:
  struct Box {
    std::vector<int64_t> n, first;  ///< terms and the first index here, of each summed dim
  };
  SumOrder order_;
  std::vector<SumOrder::Along> along_;  ///< without dims of one element
  std::vector<Box> boxes_;
  const char* type_ = "int";
};

/// Most terms of a rank, and most leaves, from a step alone.
int64_t most_ordered_terms(const SumOrder& order);
int64_t most_ordered_leaves(const SumOrder& order);

/// The template arguments of ordered_product() for a product of this size.
struct OrderedTile {
  int rows = 4, columns = 4;  ///< of a thread
  OrderedTile(int64_t rows, int64_t columns, int depth, DType dtype);
  int64_t high() const { return 16 * rows; }
  int64_t wide() const { return 16 * columns; }
};

}  // namespace tessera::cuda
