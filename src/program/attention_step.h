// What the attributes and operands of an attention step say (kernels attention, attention_part and
// attention_grad).
#pragma once

#include "program/program.h"
#include "program/sight.h"

namespace tessera {

struct AttentionStep {
  explicit AttentionStep(const Step& step);

  size_t length_dim, memory_dim, key_dim;  ///< of the views
  size_t value_dim;  ///< of the values and the result, in place of key_dim; or the same
  bool backward;
  Sight sight;
  double scale;
  double soft_cap;      ///< 0: none
  bool has_segments;    ///< the last two inputs are the segments of queries and keys
  bool has_slopes;      ///< the input before them is that of the slopes of distances
  size_t starts;        ///< the first input that is a position
  size_t start_inputs;  ///< 0: none; 1: that of the first query; 2: and that of the first key
  size_t slopes() const { return starts + start_inputs; }  ///< the input
};

}  // namespace tessera
