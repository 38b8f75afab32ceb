// The Program: the printable tree of steps that every rank runs, and the only data that the compile
// half and the run half share. One Program serves all ranks: values that differ between ranks are
// IntExprs of the rank's mesh coordinates.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "program/instructions.h"
#include "program/kernels.h"
#include "program/pipeline_table.h"
#include "program/specs.h"
#include "tessera/attrs.h"
#include "tessera/collectives.h"
#include "tessera/dtype.h"
#include "tessera/host.h"

namespace tessera {

/// clamp(floor((constant + sum_k axis_terms[k].second * coordinate(axis_terms[k].first)
///              + scalar_factor * scalars[scalar]) / divisor) mod modulus, lo, hi), where scalar <
///              0 and modulus 0 mean none. With a table, the entry of that number.
struct AffineExpr {
  int64_t constant = 0;
  std::vector<std::pair<int, int64_t>> axis_terms;  ///< (mesh axis, factor)
  int scalar = -1;                                  ///< index of a run-time scalar
  int64_t scalar_factor = 1;
  int64_t divisor = 1;
  int64_t modulus = 0;
  int64_t lo = std::numeric_limits<int64_t>::min(), hi = std::numeric_limits<int64_t>::max();
  /// What ranks work on where that is no formula. The host evaluates such an expression: of loops,
  /// and of collectives, which are bound for each iteration.
  std::shared_ptr<const std::vector<int64_t>> table = {};

  /// Evaluates for a rank. coordinates: one per mesh axis. scalars: the run-time scalars.
  int64_t eval(std::span<const int> coordinates, const int64_t* scalars) const;
  bool depends_on_scalars() const { return scalar >= 0; }
  std::string to_string() const;
  bool operator==(const AffineExpr& other) const;
};

/// Persistent memory keeps its content between runs and functions (parameters, state, inputs).
/// Transient memory is reused within one run. Offloaded memory is persistent host memory that steps
/// read and write in place (optimizer state).
enum class ArenaKind : uint8_t { persistent, transient, offloaded };
const char* to_string(ArenaKind arena);

struct Buffer {
  std::string name;  ///< the tensor's name in the model
  ArenaKind arena = ArenaKind::transient;
  int64_t bytes = 0;
  int64_t offset = 0;       ///< bytes from the arena's base, a multiple of 64; set by plan_memory
  bool alternates = false;  ///< in a loop: two copies, for even and for odd iterations
};

/// A strided window of a buffer. Sizes and strides are in elements; stride 0 repeats.
struct View {
  int buffer = -1;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  AffineExpr shift;  ///< offset to add, by the rank's coordinates: a slice

  int64_t elements() const;
  /// Row-major without gaps.
  bool is_contiguous() const;
  bool operator==(const View&) const = default;
};

// ------------------------------------------------------------------------------ pointwise programs

/// Each instruction (program/instructions.h) defines one register; the register's number is the
/// instruction's position. The result type is Instr::dtype. Arithmetic is done in that type; 16-bit
/// types are computed in float32 and rounded after every instruction, so fusion never changes a
/// result. Comparisons and logical operations yield bool.
const char* to_string(PointwiseOp code);

struct Instr {
  PointwiseOp code = PointwiseOp::copy;
  DType dtype = DType::float32;  ///< of the result
  int a = -1, b = -1, c = -1;    ///< operand registers
  int slot = -1;                 ///< load: input number; index, mask: output dim
  int expr =
      -1;  ///< index, value, mask: number of an AffineExpr of the step. random: number of the
           ///< first of 2 + 2*rank exprs: seed, stream, then per output dim (offset, stride):
           ///< logical index = sum_d (offset_d + local_d) * stride_d; the Philox counter is
           ///< (index / 4 as 64 bits, stream as 64 bits), key = seed, word = index % 4
  double imm = 0;
  bool operator==(const Instr&) const = default;
};

struct PointwiseProgram;
/// The dim along which the row instructions of a step reduce, or -1 if there are none.
int row_dim(const PointwiseProgram& program);

/// Register `outputs[k]` is stored to output k of the step. All output views have the same sizes,
/// the iteration space. Input views have these sizes too, with stride 0 along broadcast dims.
struct PointwiseProgram {
  std::vector<Instr> code;
  std::vector<int> outputs;
  bool operator==(const PointwiseProgram&) const = default;
};

// ------------------------------------------------------------------------------------------- steps

/// The source of a step and the reason for it: for explain, errors and traces.
struct Origin {
  std::string name;    ///< tensor or node with its scopes: "gpt.block3.attention.logits"
  std::string source;  ///< "model.cpp:41"
  std::string reason;  ///< for collectives and masks: the layout rule that requires it
};

/// The user-defined op that a step of kernel `host` calls. `dims`: name and local size of each
/// factor of the index space. The step's exprs are their offsets and extents, two per factor.
/// Printed without the function's address. A step without a kernel has the op that no device can
/// compute.
struct HostStep {
  HostFunction function = nullptr;
  std::string op;
  std::vector<std::pair<std::string, int64_t>> dims;
  Attrs attrs = {};  ///< of the op's node, for its function
};

enum class StepKind : uint8_t { compute, collective, wait };

struct Function;

/// Of a loop that is a share of a tick of a pipeline: which of its iterations runs in which tick.
/// They are microbatches, or what is sent. A loop over the layers of a stage runs as a whole.
struct PipelineShare {
  /// What a stage does with its layers; the iteration is the microbatch. none: transfers, and what
  /// all stages compute together.
  StageWork work = StageWork::none;
  int axis = -1;  ///< the mesh axis whose ranks are stages; -1: all run the same iteration
  int tick = -1;  ///< the scalar that counts ticks
  int64_t ticks = 0;
  /// [tick, stage], or [tick] without an axis: the iteration that runs, or -1.
  std::shared_ptr<const std::vector<int64_t>> table = {};
  /// Of a share that only sends, and of the one that awaits it in the same tick or later: a number
  /// that both have, from 1 on.
  int send_id = 0, recv_id = 0;

  /// The iteration that a stage runs in a tick, or -1.
  int64_t iteration(int64_t in_tick, int64_t stage) const;
  std::string to_string() const;
};

/// The loop of a compute step of kernel `loop`: repeats Step::body with the scalar `counter` from 0
/// to iterations - 1, or in reverse.
struct LoopStep {
  int64_t iterations = 0;
  int counter = -1;
  bool reverse = false;
  std::vector<View> condition = {};  ///< a bool read before each iteration, which runs if it is
                                     ///< true; empty: every iteration runs
  /// Of layers in stages: the counter of a rank's first iteration. Those from `end` on, on any
  /// rank, are padding and do not run; -1: there are no stages.
  AffineExpr first = {};
  int64_t end = -1;
  std::optional<PipelineShare> share = {};
  int stage_axis = -1;  ///< of a loop over the ticks of a pipeline: the mesh axis of its stages
};

/// The counters [first, second) of the iterations that a rank runs. scalars: the run-time scalars.
std::pair<int64_t, int64_t> counters_of(const LoopStep& loop, std::span<const int> coordinates,
                                        const int64_t* scalars);

/// compute: `kernel` reads `in` and writes `out`. collective: starts `collective` over the ranks
/// that differ in `axes` (major to minor: the group's rank order); the `wait` step with the same
/// `number` completes it. Adjacent collectives with the same number and axes form one exchange:
/// they start together and share one wait.
struct Step {
  StepKind kind = StepKind::compute;
  KernelKind kernel = KernelKind::none;
  CollectiveKind collective = CollectiveKind::exchange;
  std::vector<View> in, out;
  StepSpec spec = {};
  SumOrder order = {};  ///< of the sums of a kernel under strict numerics
  std::vector<AffineExpr> exprs;
  PointwiseProgram pointwise;
  HostStep host;
  LoopStep loop;
  std::vector<Function> body;  ///< one for a loop; outer buffers that it uses are in `in`, those it
                               ///< writes also in `out`
  std::vector<int> axes;
  Combiner combiner = Combiner::sum;
  int number = -1;          ///< of a collective
  int workspace = -1;       ///< buffer, or none
  int64_t flops = 0;        ///< per rank
  int64_t bytes = 0;        ///< collective: sent by one rank
  int64_t max_bytes = 0;    ///< the same by the rank that sends most, on which it depends how long
                            ///< an exchange takes; 0: all ranks send as much
  std::vector<int> unused;  ///< mesh axes along which ranks do redundant compute
  Origin origin;

  /// The spec of type T, which the step's kernel or collective has.
  template <class T>
  const T& as() const {
    return std::get<T>(spec);
  }
  template <class T>
  T& as() {
    return std::get<T>(spec);
  }
  /// The spec if it has type T, else null.
  template <class T>
  const T* find() const {
    return std::get_if<T>(&spec);
  }
};

/// The name of a step in texts and reports: "matmul", "all_reduce", "wait".
std::string name_of(const Step& step);
bool is_collective(const Step& step, CollectiveKind kind);
/// True for a contraction with sums of an operand.
bool has_sums(const Step& step);
/// The operand of a collective whose bytes bytes_sent() counts.
const View& counted_operand(const Step& step);

/// Where a named tensor is stored on the ranks, for feeds, fetches and checkpoints.
struct Port {
  std::string name;
  View view;                           ///< the local slice, contiguous
  std::vector<std::string> dims;       ///< dim names
  std::vector<int64_t> sizes;          ///< logical sizes; the bound of a bounded dim
  std::vector<int> scalars;            ///< per dim: run-time scalar with its size, or -1
  std::vector<std::vector<int>> axes;  ///< per dim: mesh axes, major to minor
};

/// user: one that the model asked for. init: gives stored tensors their first values. body: of a
/// loop.
enum class FunctionKind : uint8_t { user, init, body };

struct Function {
  std::string name;
  std::vector<Step> steps;
  std::vector<int> inputs, outputs;  ///< ports
  bool updates = false;              ///< has updates of stored tensors: a training step
  int first_update = 0;              ///< index of the first step that stores updates
  /// Loop body: the buffers that also exist before and after an iteration.
  std::vector<int> outer = {};
  /// Loop body with overlap between iterations: the first `early` steps start exchanges and run in
  /// the previous iteration; the last `late` steps before first_update are waits and run in the
  /// next iteration.
  bool overlaps = false;
  int early = 0, late = 0;
  FunctionKind kind = FunctionKind::user;
  /// Of strict numerics: other numbers of microbatches give other bits.
  bool by_microbatches = false;
};

/// All functions and loop bodies. A body comes before the function that contains it.
std::vector<Function*> all_functions(std::vector<Function>& functions);
/// Visits all views of a step and of its loop bodies.
void visit_views(Step& step, const std::function<void(View&)>& visit);
void visit_views(const Step& step, const std::function<void(const View&)>& visit);
/// Replaces the buffer numbers in the loop bodies of a step.
void rename_in_bodies(Step& step, const std::function<void(int& buffer)>& rename);

struct Program {
  std::vector<std::string> axis_names;
  std::vector<int> axis_sizes;
  std::vector<Buffer> buffers;
  std::vector<Port> ports;
  std::vector<int> stored;           ///< ports of parameters and state
  std::vector<std::string> scalars;  ///< names of run-time scalars; number 0 is "step"
  std::vector<Function> functions;
  int64_t persistent_bytes = 0, transient_bytes = 0, offloaded_bytes = 0;

  /// The index of the function called `name`. Throws a usage error with the nearest name.
  int function(const std::string& name) const;
};

/// The Program as text, one line per step: what ranks agree on. Diffs and the hash use it; see
/// program/text.h.
std::string to_string(const Program& program);
std::string to_string(const Program& program, const Step& step);
/// 64-bit FNV-1a of to_string(program). Runs are refused unless it is equal on all ranks.
uint64_t hash(const Program& program);

}  // namespace tessera
