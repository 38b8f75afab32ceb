// The definition of an operation. Every op declares its index space. The partitioner, the cost
// model, the tests and the planner read that declaration and never ask which op it is. See
// docs/how-to/adding-an-op.md.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/graph.h"
#include "tessera/host.h"

namespace tessera {

enum class PointwiseOp : uint8_t;  // the instruction of a pointwise op (program/instructions.h)
enum class KernelKind : uint8_t;   // a kernel of the library (program/kernels.h)
struct EmitCall;                   // argument of Op::emit (ir/emit.h)

struct ValueType {
  Shape shape;
  DType dtype = DType::float32;
  bool operator==(const ValueType&) const = default;
};

/// The role of a factor in its op (docs/explanation/who-decides-a-layout.md, "Ops and factors").
enum class Role : uint8_t {
  map,      ///< in inputs and result; slices are independent
  reduce,   ///< in inputs only; a split leaves the result partial under `combiner`
  fresh,    ///< in the result only; each rank makes its slice from its offset
  lookup,   ///< the dim that a gather indexes by value: if it is split, each rank looks up the rows
            ///< that it holds and the result is partial under `combiner`
  inside,   ///< of a composite: reductions in the body use it; to split it, the body must be
            ///< expanded
  routed,   ///< of a composite: the groups to which its rows are routed. If it is split, rows are
            ///< dispatched to the ranks of their groups, and results combined (Op::routing)
  whole,    ///< the op needs all of it: a split dim is gathered first, unless Op::sharded_body
            ///< applies
  related,  ///< tied to other factors by a Relation: each rank gets the interval that their slices
            ///< read
};

/// True for a factor that no split of the composite as one op can serve.
constexpr bool is_inside(Role role) { return role == Role::inside || role == Role::routed; }

struct Factor {
  std::string name;
  int64_t size = 1;
  Role role = Role::map;
  Combiner combiner = Combiner::sum;
};

/// Ties two or three factors (indices into IndexSpace::factors) by
///   in = stride * out + dilation * window - lo.
/// Either `in` or `out` has the role `related` and is a whole dim of one operand. The other factors
/// have their own roles and may be split: each rank then receives the interval of the related dim
/// that its slices read, from whichever ranks hold it. The op handles indices outside the dim (a
/// fill), unless the relation wraps: then `in` is the related factor and its index counts modulo
/// its size.
struct Relation {
  int in = -1, out = -1, window = -1;  ///< window < 0: no window, its index is 0
  int64_t stride = 1, dilation = 1, lo = 0;
  bool wraps = false;
};

/// The factors, and for each dim of each operand and result the factors (indices into `factors`,
/// major to minor) whose product it is.
struct IndexSpace {
  std::vector<Factor> factors;
  std::vector<std::vector<std::vector<int>>> in, out;
  std::vector<Relation> relations = {};
  /// True if operand and result have the same elements in row-major order. Elements that no split
  /// of a factor brings to the right rank may then be sent there individually.
  bool same_order = false;
};

/// One use of an op: the argument of its functions. `out` is empty in infer.
struct OpCall {
  const Op& op;
  const std::vector<ValueType>& in;
  const std::vector<ValueType>& out;
  const Attrs& attrs;
};

/// The argument of Op::gradient: forward operands and results, and one gradient per result (an
/// empty Tensor if none flows).
struct GradCall {
  Graph& graph;
  const Attrs& attrs;
  std::vector<Tensor> in, out, grads;
};

/// The rows of a composite that are routed to groups, as tokens are to experts. A row is one choice
/// of a token: an element of operand `index`, [tokens..., choices], int32, which names the row's
/// group. Operands with the dim `groups` are of the groups, others with the dim of the choices of
/// the rows, and the rest of the tokens, as the first one and the one result, which has its type.
struct Routing {
  std::string groups;   ///< the dim; its factor has the role `routed`
  size_t index = 1;     ///< the operand
  double capacity = 0;  ///< how many rows of a rank another rank has places for, as a multiple of
                        ///< the mean; 0: all. If a step has more, a Session repeats it with more
};

struct Op {
  std::string_view name;
  /// Result types. Throws usage errors; the caller adds op name, source line and scope.
  std::vector<ValueType> (*infer)(const OpCall& call) = nullptr;
  /// The index space. Null: one factor per dim name, `map` if it is in inputs and results,
  /// `reduce(combiner)` if only in inputs, `fresh` if only in results. Ignored for composites,
  /// whose index space follows from the body.
  IndexSpace (*factors)(const OpCall& call) = nullptr;
  Combiner combiner = Combiner::sum;
  /// Sets of operands (bit masks) in which the op is jointly linear with no constant term: add
  /// {0b11}, mul {0b01, 0b10}.
  std::array<uint32_t, 3> linear = {};
  /// Bit mask of operands whose padding must be zero whatever the roles are (indices of a gather).
  uint32_t zero_padding = 0;
  /// Gradients of the inputs, built from public ops; an empty Tensor where none flows. Null: no
  /// gradient (integer results, comparisons), or, for a composite, the gradient of its body. A
  /// gradient that goes through a user-defined op without either is a usage error.
  std::vector<Tensor> (*gradient)(const GradCall& call) = nullptr;
  /// Floating-point operations of the whole op. Null: one per element of the first result and of
  /// the inputs' factors.
  int64_t (*flops)(const OpCall& call) = nullptr;
  /// Composites: the definition, from simpler ops.
  std::vector<Tensor> (*body)(const std::vector<Tensor>& in, const Attrs& attrs) = nullptr;
  /// Composites whose rows are routed. The partitioner then makes their forms for split groups from
  /// `body_of_rows`, as no sharded_body can.
  Routing (*routing)(const Attrs& attrs) = nullptr;
  /// The body for rows that are elsewhere than `in` says: groups are the dim `groups`, the first
  /// result has the shape `out`, and the share `used` of the rows has a group here.
  std::vector<Tensor> (*body_of_rows)(const std::vector<Tensor>& in, const Attrs& attrs,
                                      const std::string& groups, const Shape& out,
                                      double used) = nullptr;
  /// Set if this composite is the gradient of another one with routed rows: it takes that one's
  /// operands and the gradient of its result, and gives those of its floating operands.
  const Op* gradient_of = nullptr;
  /// Pointwise ops: their instruction. `emit` fills in what it needs besides its operands.
  bool pointwise = false;
  PointwiseOp code = {};
  /// The result has the elements of operand 0, in another dtype or another order of dims. It
  /// prefers the dims that operand 0 prefers (Tensor::prefer).
  bool keeps_elements = false;
  /// True for cast: the result is operand 0 in another dtype. A widening cast counts as linear, so
  /// partial values may pass through it. A narrowing cast of a stored tensor is done before the
  /// tensor is communicated, so that fewer bytes are sent.
  bool converts = false;
  /// The result is operand 0, whose rows along the dim that the attribute "dim" names are there
  /// only up to a count: operand 1 (int32, with some of the other dims). The attribute "used"
  /// (float) is the share of the rows that is expected, for prices. Nothing is computed; what moves
  /// the result next may leave out the other rows. Example: ragged().
  bool counts_rows = false;
  /// User-defined ops: computes the op on one rank's slices. For a composite it replaces the body
  /// if no `inside` factor is split or padded. Only `infer` is needed besides it; see host.h.
  HostFunction host = nullptr;
  /// All other ops, and composites with a kernel of their own: the library kernel.
  KernelKind kernel = {};
  /// Fills in the step of `kernel`. Null: the kernel gets aligned views (see ir/emit.h).
  void (*emit)(EmitCall& call) = nullptr;
  /// An alternative to gathering a split dim that the op needs whole. `dim` of an operand is split
  /// into `slices` slices, one for each rank. Returns the results, built from simpler ops over [dim
  /// = slices, the rest], in a way that sends or keeps less than a gather; or nothing if there is
  /// no such way. For a composite, `dim` is an `inside` dim of the first operand, or a dim of
  /// another operand; then `like` is the dim of the first operand that the same ranks have slices
  /// of (else ""). Where a rule asks for equal work (`dim:axes*2`), `dim` is any dim of the first
  /// operand and `like` that of another operand which the same ranks have slices of, or `dim`
  /// itself: if the work grows along it, the results are made with the same work on each rank.
  /// Null: the dim is gathered, or the composite's body is used.
  std::vector<Tensor> (*sharded_body)(const OpCall& call, const std::vector<Tensor>& in,
                                      const std::string& dim, const std::string& like,
                                      int64_t slices) = nullptr;
  /// Composites with a kernel: whether that has the bits of the body under strict numerics, where a
  /// dim is summed in at most so many chunks. Null: never, so that the body is computed.
  bool (*in_order)(const OpCall& call, int64_t chunks) = nullptr;
  /// Strict numerics: the same from ops that each have one order of sums, or nothing if the op
  /// itself has one.
  std::vector<Tensor> (*ordered_body)(const OpCall& call, const std::vector<Tensor>& in) = nullptr;
  /// The kernel needs row-major operands without gaps.
  bool contiguous = false;
};

/// The index space of a call: declared, derived from the body, or by dim name.
IndexSpace index_space(const OpCall& call);
/// The index space by dim name, whatever the op declares. `factors` functions start from it.
IndexSpace index_space_by_name(const OpCall& call);

/// All ops of the library. Tests iterate over them.
const std::vector<const Op*>& all_ops();

}  // namespace tessera
