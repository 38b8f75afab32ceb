// What attention on the CPU copies, and where: a decision from views and attributes only.
//
// Matrices that no BLAS call takes (narrow types, or no dense dim) are copied to the workspace; so
// are those that many blocks of queries read, into dense rows (heads lie between those of a model,
// thousands of bytes apart, which share few lines of a cache) or, where a product reads them
// across, into dense columns.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

/// Rows of logits are whole vectors: their loops have no rest.
inline int64_t whole_vectors(int64_t n) { return (n + kRowLanes - 1) / kRowLanes * kRowLanes; }

struct AttentionPlan {
  explicit AttentionPlan(const Step& step);

  enum class Operand { by_length, by_memory, row, start, unused };
  enum class Form { any, rows_of_many, columns };
  /// One use of an operand.
  struct Used {
    size_t operand = 0;
    Form form = Form::any;
    int64_t copy = -1;  ///< its offset in the workspace, or there is none
  };

  bool is_matrix(size_t i) const {
    return operands[i] == Operand::by_length || operands[i] == Operand::by_memory;
  }
  int64_t positions(size_t i) const { return operands[i] == Operand::by_length ? length : memory; }
  int64_t position_dim(size_t i) const {
    return operands[i] == Operand::by_length ? length_dim : memory_dim;
  }
  /// The column stride of a dense copy: a vector more than its length, to avoid powers of two.
  int64_t column_stride(const Used& m) const { return positions(m.operand) + kRowLanes; }

  int64_t length_dim, memory_dim, key_dim;
  bool causal, backward, narrow = false;
  size_t starts;  ///< positions that are given: none, of the first query, or of both
  int64_t length = 0, memory = 0, width = 0, rows = 1;
  int64_t all_keys = -1;  ///< keys from there on are nobody's; -1: all are there
  int64_t logits = 0, back = 0, workspace = 0;
  /// Query, key, value, of a gradient (result's gradient, result, logarithm of the sum, gradient
  /// times result), perhaps first query and first key; then the results: the logarithm of the sum
  /// last, or the gradients of query, key and value.
  std::vector<Operand> operands;
  size_t first_result = 0;
  std::vector<Used> matrices;  ///< of each operand; of a gradient then the keys across

 private:
  void list_operands();
  void choose_forms();
  bool is_copied(const Step& step, const Used& m) const;
};

}  // namespace tessera::cpu
