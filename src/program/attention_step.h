// What the attributes and operands of an attention step say (kernels attention, attention_part and
// attention_grad).
#pragma once

#include "program/attention_mask.h"
#include "program/program.h"

namespace tessera {

struct AttentionStep {
  explicit AttentionStep(const Step& step);

  size_t length_dim, memory_dim, key_dim;  ///< of the views
  size_t value_dim;  ///< of the values and the result, in place of key_dim; or the same
  bool backward;
  AttentionMask mask;
  double scale;
  double soft_cap;      ///< 0: none
  double dropout;       ///< 0: none
  bool has_segments;    ///< the last two inputs are the segments of queries and keys
  bool has_slopes;      ///< the input before them and the entries is that of slopes of distances
  int entries_dim;      ///< of the views; -1: there are no biases by distance
  size_t starts;        ///< the first input that is a position
  size_t start_inputs;  ///< 0: none; 1: that of the first query; 2: and that of the first key
  bool has_entries() const { return entries_dim >= 0; }    ///< the input before the segments
  size_t slopes() const { return starts + start_inputs; }  ///< the input
  size_t entries() const { return slopes() + (has_slopes ? 1 : 0); }
  /// Whether the loops over batch and heads have this dim of the views.
  bool is_loop(size_t dim) const;

 private:
  AttentionStep(const Step& step, const AttentionSpec& spec);
};

/// The random bits of dropout. The bit of query and key at positions i and j, at an index of the
/// loops, is number offset + index * strides + i * strides[length] + j * strides[memory_length].
struct AttentionBits {
  explicit AttentionBits(const Step& step)
      : strides(step.as<AttentionSpec>().drawn_strides),
        pairs((static_cast<int>(step.order.is_strict() ? step.order.expr : step.exprs.size()) -
               kFirst) /
              2) {}
  static constexpr int kSeed = 2, kStream = 3, kFirst = 4;  ///< expressions of the step
  std::vector<int64_t> strides;                             ///< by dim of the views
  int pairs;  ///< from kFirst on: the offset is the sum of their products
  /// A bit whose upper 23 of 32 bits, as a number, are below this stays.
  static uint32_t limit(double rate);
};

}  // namespace tessera
