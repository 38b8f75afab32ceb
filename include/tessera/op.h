// What an operation is. Every op declares its index space; the partitioner, the cost model, the
// tests and the planner read the declaration and never ask which op they look at. See
// docs/how-to/adding-an-op.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/graph.h"
#include "tessera/host.h"

namespace tessera {

enum class Code : uint8_t;        // the instruction of a pointwise op (program/instructions.h)
enum class KernelKind : uint8_t;  // a kernel of the library (program/kernels.h)
struct EmitCall;                  // what Op::emit sees (ir/emit.h)

struct ValueType {
  Shape shape;
  DType dtype = DType::float32;
  bool operator==(const ValueType&) const = default;
};

/// What a factor is to its op (see docs/explanation/who-decides-a-layout.md, "Ops and factors").
enum class Role : uint8_t {
  map,      ///< in inputs and result; slices are independent
  reduce,   ///< in inputs only; a split leaves the result partial under `combiner`
  fresh,    ///< in the result only; each rank makes its slice from its offset
  lookup,   ///< indexed by value: a split masks what is elsewhere; in the result of a gather:
            ///< partial(sum); the indexed dim of a scatter's result stays complete
  inside,   ///< of a composite: used by reductions inside the body; a split needs the body expanded
  whole,    ///< the op needs all of it; where it is split it is gathered, but see Op::by_slices
  related,  ///< tied to other factors by an index relation: a rank needs the interval that their
            ///< slices lead to, and has it brought
};

struct Factor {
  std::string name;
  int64_t size = 1;
  Role role = Role::map;
  Combiner combiner = Combiner::sum;
};

/// Two or three factors, indices into IndexSpace::factors, tied by
///   in = stride * out + dilation * window - lo.
/// One of `in` and `out` has the role `related`; it is a whole dim of one operand. The others have
/// roles of their own and may be split: each rank then gets the interval of the related dim that
/// its slices touch, from wherever it lies. What is outside the dim is the op's to deal with (a
/// fill), unless the relation wraps: then in counts modulo its size, and it is `in` that is
/// related.
struct Relation {
  int in = -1, out = -1, window = -1;  ///< window < 0: its index is 0
  int64_t stride = 1, dilation = 1, lo = 0;
  bool wraps = false;
};

/// Per operand and dim, the factors (indices into `factors`, major to minor) whose product the dim
/// is.
struct IndexSpace {
  std::vector<Factor> factors;
  std::vector<std::vector<std::vector<int>>> in, out;
  std::vector<Relation> relations = {};
  /// Operand and result have the same elements in row-major order: what no split of a factor brings
  /// to where it belongs may also be sent there element by element.
  bool same_order = false;
};

/// One use of an op, as its functions see it. `out` is empty in infer.
struct OpCall {
  const Op& op;
  const std::vector<ValueType>& in;
  const std::vector<ValueType>& out;
  const Attrs& attrs;
};

/// What Op::gradient sees: the forward operands and results, and one gradient per result (empty if
/// none flows).
struct GradCall {
  Graph& graph;
  const Attrs& attrs;
  std::vector<Tensor> in, out, grads;
};

struct Op {
  std::string_view name;
  /// The result types. Throws usage errors; the caller adds op name, source line and scope.
  std::vector<ValueType> (*infer)(const OpCall& call) = nullptr;
  /// The index space; null: one factor per dim name, `map` where it is in inputs and results,
  /// `reduce(combiner)` in inputs only, `fresh` in results only. Ignored for composites: theirs
  /// follows from the body.
  IndexSpace (*factors)(const OpCall& call) = nullptr;
  Combiner combiner = Combiner::sum;
  /// Sets of operands (bit masks) in which the op is jointly linear with no constant: add {0b11},
  /// mul {0b01, 0b10}.
  std::array<uint32_t, 3> linear = {};
  /// Operands whose padding must be zero whatever the roles say (indices of a gather).
  uint32_t zero_padding = 0;
  /// Gradients of the inputs, built from public ops; an empty Tensor where none flows. Null: no
  /// gradient (integer results, comparisons), or, for a composite, that of the body.
  std::vector<Tensor> (*gradient)(const GradCall& call) = nullptr;
  /// Floating-point operations of the whole op; null: one per element of the first result and of
  /// the inputs' factors.
  int64_t (*flops)(const OpCall& call) = nullptr;
  /// Composites: the definition, from plainer ops.
  std::vector<Tensor> (*body)(const std::vector<Tensor>& in, const Attrs& attrs) = nullptr;
  /// Pointwise ops: the instruction, and where it needs more than its operands, how it is filled
  /// in.
  bool pointwise = false;
  Code code = {};
  /// The result is operand 0 in another dtype (cast). Where that is wider, the op is linear, and a
  /// partial operand may pass; where it is narrower, a stored tensor is sent after it, not before.
  bool converts = false;
  /// An op of a user's own that is not a composite, or the whole of one that is (used where no
  /// `inside` factor is split or padded): what computes it on a rank's slices. Nothing else is
  /// needed but `infer`; see host.h.
  HostFunction host = nullptr;
  /// Everything else: the kernel of the library that computes it; a composite that has one, too.
  KernelKind kernel = {};
  /// Fills in the step of `kernel`. Null: it gets aligned views (see ir/emit.h).
  void (*emit)(EmitCall& call) = nullptr;
  /// Where the op needs `dim` of an operand whole and `slices` ranks have a slice of it each: the
  /// results from plainer ops, over [dim = slices, the rest], that send or keep less than gathering
  /// it; or nothing, if they would not. Of a composite: a dim of the first operand that is
  /// `inside`, or one of another operand where the same ranks have slices of a dim of the first,
  /// `like` (else
  /// ""). Null: the dim is gathered, or the composite's body is taken.
  std::vector<Tensor> (*by_slices)(const OpCall& call, const std::vector<Tensor>& in,
                                   const std::string& dim, const std::string& like,
                                   int64_t slices) = nullptr;
  /// Its kernel needs row-major operands without gaps.
  bool contiguous = false;
};

/// The index space of a call: declared, derived from the body, or by name.
IndexSpace index_space(const OpCall& call);
/// The index space by name, whatever the op declares: what a `factors` function starts from.
IndexSpace index_space_by_name(const OpCall& call);

/// All ops of the library: what tests iterate over.
const std::vector<const Op*>& all_ops();

}  // namespace tessera
