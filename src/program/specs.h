// What a step has besides operands, expressions and instructions: one struct a kernel or
// collective. fields() of a struct calls f(name, member) for each member, or f(name, member,
// absent) for one that most steps do not need; the Program's text is written and read by it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "program/sum_order.h"
#include "tessera/out_of_range.h"

namespace tessera {

// -------------------------------------------------------------------------------------------- dims

/// The dims of a contraction's views.
namespace matmul_kinds {
enum DimKind : int64_t {
  kBatch,   ///< of both operands and the result
  kRow,     ///< of the first operand and the result
  kColumn,  ///< of the second operand and the result
  kSum,     ///< contracted
};
}  // namespace matmul_kinds

/// The dims of a grouped matmul's views. A row of X [position, inner] is multiplied by the matrix
/// M [group, inner, outer] of its group, which gives a row of Z [position, outer]. grouped_dot has
/// the operands X, M, indices and the result Z, grouped_outer X, Z, indices and M.
enum GroupedKind : int64_t {
  kGroupBatch,     ///< of rows and matrices
  kGroupPosition,  ///< of rows
  kGroupInner,
  kGroupOuter,
  kGroupIndexed,  ///< of matrices: the indices choose among them
};

/// A convolution's dims that are not spatial, and its operand that is the result.
namespace conv_kinds {
enum DimKind : int64_t {
  kGroup,    ///< of x, filter and y
  kImages,   ///< of x and y
  kInputs,   ///< of x and filter
  kOutputs,  ///< of filter and y
};
enum Result : int64_t { kOfY, kOfX, kOfFilter };
}  // namespace conv_kinds

// ----------------------------------------------------------------------------------------- kernels

struct MatmulSpec {
  std::vector<matmul_kinds::DimKind> kinds;  ///< per dim of the views
  std::vector<int64_t> float8 = {};  ///< the operands' formats, of enum Float8; empty: their dtypes
  int64_t sums = -1;  ///< the operand whose sums over the contracted dims are the second result

  static void fields(auto& s, auto&& f) {
    f("float8", s.float8, {});
    f("kinds", s.kinds);
    f("sums", s.sums, -1);
  }
  bool operator==(const MatmulSpec&) const = default;
};

/// A pointwise step that is the same for several tensors: inputs that are scalars, then those of
/// each tensor; the results of each tensor.
struct TensorGroup {
  int64_t tensors = 1;

  static void fields(auto& s, auto&& f) { f("tensors", s.tensors); }
  bool operator==(const TensorGroup&) const = default;
};

/// A pointwise step over rows whose last results are sums over blocks of rows.
struct ColumnSums {
  int64_t column_sums = 0;  ///< results

  static void fields(auto& s, auto&& f) { f("column_sums", s.column_sums); }
  bool operator==(const ColumnSums&) const = default;
};

struct FillSpec {
  double value = 0;

  static void fields(auto& s, auto&& f) { f("value", s.value); }
  bool operator==(const FillSpec&) const = default;
};

/// gather and scatter_add. Expressions: first index on this rank, and number of indices of all.
struct IndexedSpec {
  std::vector<int64_t> strides;  ///< of the table, along the dims of the other operand
  int64_t stride = 1;            ///< of the table, along the indexed dim
  int64_t size = 0;              ///< of the table's slice, along the indexed dim
  OutOfRange out_of_range = OutOfRange::error;
  int64_t bound = -1;  ///< that a count has exceeded if an index is out of range; -1: an index is
  int64_t capacity = -1;  ///< the same of a dispatch, which a variant of the Program has more of

  static void fields(auto& s, auto&& f) {
    f("bound", s.bound, -1);
    f("capacity", s.capacity, -1);
    f("out_of_range", s.out_of_range);
    f("size", s.size);
    f("stride", s.stride);
    f("strides", s.strides);
  }
  bool operator==(const IndexedSpec&) const = default;
};

/// grouped_dot and grouped_outer. Expressions: as IndexedSpec, of the groups.
struct GroupedSpec {
  std::vector<GroupedKind> kinds;  ///< per dim of the views
  double expected_fill = 1;        ///< share of the positions that rows are expected at

  static void fields(auto& s, auto&& f) {
    f("expected_fill", s.expected_fill);
    f("kinds", s.kinds);
  }
  bool operator==(const GroupedSpec&) const = default;
};

/// tree_sum: the places of its operand in the order in which they are pushed, and how often the two
/// sums on top of the stack are then joined (program/sum_order.h).
struct TreeSumSpec {
  std::vector<int64_t> places, joins;

  static void fields(auto& s, auto&& f) {
    f("joins", s.joins);
    f("places", s.places);
  }
  bool operator==(const TreeSumSpec&) const = default;
};

/// cumsum, and other kernels that go along a dim. With a second operand, the decays, it is a
/// linear_scan.
struct ScanSpec {
  int64_t dim = 0;  ///< of the views
  bool exclusive = false, reverse = false;
  double decay = 1;  ///< of an op whose decay is one number, as in the manual's; else 1

  static void fields(auto& s, auto&& f) {
    f("decay", s.decay, 1);
    f("dim", s.dim);
    f("exclusive", s.exclusive);
    f("reverse", s.reverse);
  }
  bool operator==(const ScanSpec&) const = default;
};

/// arg_reduce and top_k. Expression: the index of the dim's first element on this rank.
struct ArgReduceSpec {
  int64_t dim = 0;        ///< of the views
  bool smallest = false;  ///< of top_k

  static void fields(auto& s, auto&& f) {
    f("dim", s.dim);
    f("smallest", s.smallest, false);
  }
  bool operator==(const ArgReduceSpec&) const = default;
};

/// window and fold: in = stride * out + dilation * k - lo along one dim, with `pre` elements before
/// and `post` after it. `size`, `out_size` and `window_size` are global; `..memory` are those of
/// this rank's slices. Expressions: the first index of in, out and k here.
struct WindowSpec {
  int64_t pre = 1, post = 1, size = 1, memory = 1, out_size = 1, out_memory = 1, window_size = 1,
          window_memory = 1, stride = 1, dilation = 1, lo = 0;
  bool wrap = false;
  double fill = 0;  ///< of elements that are outside

  static void fields(auto& s, auto&& f) {
    f("dilation", s.dilation);
    f("fill", s.fill);
    f("lo", s.lo);
    f("memory", s.memory);
    f("out_memory", s.out_memory);
    f("out_size", s.out_size);
    f("post", s.post);
    f("pre", s.pre);
    f("size", s.size);
    f("stride", s.stride);
    f("window_memory", s.window_memory);
    f("window_size", s.window_size);
    f("wrap", s.wrap);
  }
  bool operator==(const WindowSpec&) const = default;
};

/// The views' dims are those of `kinds`, then the spatial ones. The lists are per spatial dim, as
/// WindowSpec's numbers; so are the expressions, three for each.
struct ConvSpec {
  conv_kinds::Result result = conv_kinds::kOfY;
  std::vector<conv_kinds::DimKind> kinds;
  std::vector<int64_t> in_sizes, out_sizes, window_sizes, strides, dilations, los;

  static void fields(auto& s, auto&& f) {
    f("dilations", s.dilations);
    f("in_sizes", s.in_sizes);
    f("kinds", s.kinds);
    f("los", s.los);
    f("out_sizes", s.out_sizes);
    f("result", s.result);
    f("strides", s.strides);
    f("window_sizes", s.window_sizes);
  }
  bool operator==(const ConvSpec&) const = default;
};

/// attention, attention_part and attention_grad; see program/attention_step.h. Expressions: the
/// position of the first query and key here, then those of AttentionBits.
struct AttentionSpec {
  int64_t length = 0, memory_length = 0, key_dim = 0;  ///< dims of the views
  int64_t value_dim = -1;  ///< of the values and the result, in place of key_dim; -1: the same
  bool causal = false;
  double scale = 1;
  int64_t window = 0;                  ///< 0: none
  int64_t memory = 0;                  ///< keys that all queries see
  double soft_cap = 0;                 ///< 0: none
  double dropout = 0;                  ///< 0: none
  std::vector<int64_t> drawn_strides;  ///< of AttentionBits
  bool segments = false;               ///< the last two inputs are the segments of queries and keys
  bool slopes = false;                 ///< an input has slopes of distances
  int64_t by_distance = -1;  ///< dim of the views of biases by distance; -1: there are none
  double visible = -1;       ///< share of the pairs that is computed; -1: what `causal` leaves
  bool own_dot = false;      ///< attention_grad computes the sums of gradients times results itself

  static void fields(auto& s, auto&& f) {
    f("by_distance", s.by_distance, -1);
    f("causal", s.causal);
    f("drawn_strides", s.drawn_strides, {});
    f("dropout", s.dropout, 0);
    f("key_dim", s.key_dim);
    f("length", s.length);
    f("memory", s.memory, 0);
    f("memory_length", s.memory_length);
    f("own_dot", s.own_dot, false);
    f("scale", s.scale);
    f("segments", s.segments, false);
    f("slopes", s.slopes, false);
    f("soft_cap", s.soft_cap, 0);
    f("value_dim", s.value_dim, -1);
    f("visible", s.visible, -1);
    f("window", s.window, 0);
  }
  bool operator==(const AttentionSpec&) const = default;
};

// ------------------------------------------------------------------------------------- collectives

/// Elements, as in the struct Collective of collectives/communicator.h.
struct AllReduceSpec {
  int64_t count = 0;

  static void fields(auto& s, auto&& f) { f("count", s.count); }
  bool operator==(const AllReduceSpec&) const = default;
};

/// all_gather and reduce_scatter.
struct BlocksSpec {
  int64_t outer = 1, inner = 1;

  static void fields(auto& s, auto&& f) {
    f("inner", s.inner);
    f("outer", s.outer);
  }
  bool operator==(const BlocksSpec&) const = default;
};

struct AllToAllSpec {
  int64_t pre = 1, s = 1, mid = 1, c = 1, post = 1;
  bool split_first = true;
  int64_t row = 0;           ///< elements of a row, if the second input has counts of rows
  double expected_fill = 1;  ///< share of the rows that is expected to be there

  static void fields(auto& s, auto&& f) {
    f("c", s.c);
    f("expected_fill", s.expected_fill, 1);
    f("mid", s.mid);
    f("post", s.post);
    f("pre", s.pre);
    f("row", s.row, 0);
    f("s", s.s);
    f("split_first", s.split_first);
  }
  bool operator==(const AllToAllSpec&) const = default;
};

/// An exchange between two slicings of one tensor; see program/slicing.h. The intervals are the
/// target's; their begins are the step's expressions.
struct ReslicingSpec {
  struct Interval {
    int64_t dim = 0, size = 0, extent = 0;
    bool wraps = false;
    bool operator==(const Interval&) const = default;
  };
  std::vector<int64_t> sizes;  ///< padded
  std::vector<std::vector<int>> from, to;
  std::vector<Interval> intervals = {};

  static void fields(auto& s, auto&& f) {
    f("from", s.from);
    f("intervals", s.intervals, {});
    f("sizes", s.sizes);
    f("to", s.to);
  }
  bool operator==(const ReslicingSpec&) const = default;
};

/// An exchange between two shapes; see program/renumbering.h.
struct RenumberingSpec {
  std::vector<int64_t> sizes, extents;  ///< padded, and logical
  std::vector<std::vector<int>> from;
  std::vector<int64_t> to_sizes, to_extents;
  std::vector<std::vector<int>> to;
  int turns = -1, to_turns = -1;

  static void fields(auto& s, auto&& f) {
    f("extents", s.extents);
    f("from", s.from);
    f("sizes", s.sizes);
    f("to", s.to);
    f("to_extents", s.to_extents);
    f("to_sizes", s.to_sizes);
    f("to_turns", s.to_turns, -1);
    f("turns", s.turns, -1);
  }
  bool operator==(const RenumberingSpec&) const = default;
};

using StepSpec = std::variant<std::monostate, MatmulSpec, TensorGroup, ColumnSums, FillSpec,
                              IndexedSpec, GroupedSpec, TreeSumSpec, ScanSpec, ArgReduceSpec,
                              WindowSpec, ConvSpec, AttentionSpec, AllReduceSpec, BlocksSpec,
                              AllToAllSpec, ReslicingSpec, RenumberingSpec>;

/// " kinds=[row, sum, column]"; empty without members.
std::string to_string(const StepSpec& spec);
std::string to_string(const SumOrder& order);

}  // namespace tessera
