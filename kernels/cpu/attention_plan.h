// Which operands attention on the CPU copies, and where. Decided from views and attributes only.
//
// Copied to the workspace are matrices that BLAS cannot take (16-bit types, or no dense dim), and
// those that many blocks of queries read: into dense rows (a model's rows are interleaved by head,
// thousands of bytes apart, which wastes cache lines) or, if a product reads them transposed, into
// dense columns.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/tables.h"
#include "program/attention_step.h"

namespace tessera::cpu {

/// Rows of logits are padded to whole vectors, so that their loops have no remainder.
inline int64_t whole_vectors(int64_t n) { return (n + kRowLanes - 1) / kRowLanes * kRowLanes; }

struct AttentionPlan {
  explicit AttentionPlan(const Step& step) : AttentionPlan(step, AttentionStep(step)) {}

  enum class Operand { by_length, by_memory, row, start, ids, by_distance, unused };
  enum class Form { any, rows_of_many, columns };
  /// One use of an operand.
  struct Used {
    size_t operand = 0;
    Form form = Form::any;
    int64_t copy = -1;  ///< offset of its copy in the workspace; -1: not copied
  };

  bool is_matrix(size_t i) const {
    return operands[i] == Operand::by_length || operands[i] == Operand::by_memory;
  }
  int64_t positions(size_t i) const { return operands[i] == Operand::by_length ? length : memory; }
  int64_t position_dim(size_t i) const {
    return operands[i] == Operand::by_length ? length_dim : memory_dim;
  }
  /// Whether an operand has the width of the values.
  bool is_of_values(size_t i) const {
    return i == 2 || i == (backward ? first_result + 2 : first_result) || (backward && i == 3);
  }
  int64_t width_of(size_t i) const { return is_of_values(i) ? value_width : width; }
  int64_t column_dim(size_t i) const { return is_of_values(i) ? value_dim : key_dim; }
  /// Column stride of a copy in dense columns: a vector more than its length, to avoid powers of
  /// two.
  int64_t column_stride(const Used& m) const { return positions(m.operand) + kRowLanes; }

  int64_t length_dim, memory_dim, key_dim, value_dim;
  bool causal, backward, narrow = false;
  size_t starts;  ///< position operands: 0 none, 1 that of the first query, 2 that of the first key
                  ///< too
  int64_t length = 0, memory = 0, rows = 1;
  int64_t width = 0, value_width = 0;  ///< of queries and keys; of values and results
  AttentionMask mask;                  ///< what positions hide
  double soft_cap = 0;                 ///< 0: none
  bool segments = false;               ///< the last two operands are ids of queries and keys
  bool slopes = false;                 ///< the one before them and the biases: that of distances
  int64_t entries_dim = -1;            ///< -1: no biases by distance
  int64_t entries = 0;                 ///< of biases by distance, the operand before the segments
  double dropout = 0;                  ///< 0: none
  int64_t most_rows = 1;               ///< of a block of queries that see few keys
  int64_t capacity = 0;                ///< logits of a block
  int64_t logits = 0, back = 0, workspace = 0;
  int64_t squashed = 0;  ///< with a soft cap: one row of logits
  int64_t spans = 0;     ///< with segments: for each query its first key, and the end of its keys
  int64_t biases = 0;    ///< the entries of a head, in units of products, from keys behind on
  int64_t sums = 0;      ///< of a gradient: that of each entry, float64, in the same order
  int64_t bits = 0, kept = 0;  ///< with dropout, of a row: random bits, int64; factors of weights
  /// Query, key, value; for a gradient also the result's gradient, the result, log_sum and
  /// (gradient times result); perhaps the positions of first query and first key; perhaps
  /// slopes; perhaps biases by distance; perhaps the segments. Then the results: output and
  /// log_sum, or the gradients of query, key and value, and perhaps of the biases.
  std::vector<Operand> operands;
  size_t first_result = 0;
  std::vector<Used> matrices;  ///< one per operand; for a gradient also the keys transposed

 private:
  AttentionPlan(const Step& step, const AttentionStep& attention);
  void list_operands();
  void choose_forms();
  bool is_copied(const Step& step, const Used& m) const;
};

}  // namespace tessera::cpu
