// A group of ranks that communicate: the contract between the executor and the backends.
//
// One Communicator object belongs to one rank (a thread of this process, or a process). All ranks
// of the group must make the same calls in the same order ("collectively"). A collective is
// *prepared* once, with its fixed addresses, then started and awaited many times. Everything that
// does not depend on data (peer addresses, packing tables, requests) is done in prepare().
//
// Determinism: every reduction combines the operands in rank order (((r0 + r1) + r2) + ...):
// float32 and float64 in their own type, bfloat16 and float16 in float32 with one rounding at the
// end. All ranks get the same bits. Backends that reduce themselves (threads, shared memory) agree
// bitwise with each other.
//
// Failure: every wait is bounded by the time-out (seconds; default 120). When it runs out, or when
// a peer called fail(), the call throws Error(comm). The message names this rank, the call (number
// and CallSite text) and either the missing ranks, with the last call each was seen at, or the
// failing peer and *its* message. After that every call of the group throws at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/collectives.h"
#include "tessera/dtype.h"

namespace tessera {

/// Where a collective comes from; used in messages only. The text must outlive the operation.
struct CallSite {
  int64_t number = -1;    ///< position in the Program, equal on all ranks
  std::string text = {};  ///< tensor, model scope and source line
};

/// Elements [offset, offset + length) of a buffer.
struct Run {
  int64_t offset = 0, length = 0;
};

/// One collective with its operands. Shapes are row-major and contiguous; P is the group's size, r
/// this rank. Counts are elements and may be 0. `in` and `out` must not overlap, except that
/// all_reduce may have in == out.
///   all_reduce      in [count]                  out [count]
///   reduce_scatter  in [outer, P, inner]        out [outer, inner]     out = combined in[:, r, :]
///   all_gather      in [outer, inner]           out [outer, P, inner]  out[:, p, :] = in of rank p
///   all_to_all      split_first:  in [pre, P, s, mid, c, post]   out [pre, s, mid, P, c, post]
///                   otherwise:    in [pre, c, mid, P, s, post]   out [pre, P, c, mid, s, post]
///                   (the dim of local size P*s becomes s here, the dim of local size c becomes
///                   P*c; block q of the split dim goes to rank q; rank p's block arrives at p of
///                   the other dim)
///                   With `counts`, a block is rows of `row` elements, of which the first
///                   counts[q] go to rank q; a result's rows behind those that came are zero. Then
///                   pre, s, mid and c are 1.
///   exchange        the elements of `in` listed in send[q] go, in order, to the places in rank q's
///                   `out` that its recv[r] lists; send[r] and recv[r] are a local copy. Both
///                   totals must be equal.
///   broadcast       out [count] of rank `root` is copied to `out` of all others; `in` is unused
///   barrier         no operands
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  DType dtype = DType::float32;
  Combiner combiner = Combiner::sum;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  int64_t outer = 1, inner = 1;
  int64_t pre = 1, s = 1, mid = 1, c = 1, post = 1;
  bool split_first = true;
  int root = 0;
  /// all_to_all: how many rows of each block are sent, by rank, in [0, post / row]. Read in
  /// start(). Null: all of them.
  const int32_t* counts = nullptr;
  int64_t row = 1;  ///< elements; divides post
  std::vector<std::vector<Run>> send, recv;
  CallSite site;
};

/// One or several prepared collectives. start() and wait() alternate; operands may only be touched
/// before start() and after wait(). When wait() returns, `out` is complete and no peer reads `in`
/// any more. start() only waits for a rank that is several generations behind. Several operations,
/// of one group or of several, may be in flight; all ranks must wait for them in the same order.
/// The operands must outlive the operation, and the Communicator too.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  virtual void wait() = 0;
  /// Between start() and wait(): makes progress without blocking. Returns true if nothing is left
  /// to send or receive. Not collective.
  virtual bool advance() { return false; }
  /// True if data moves between start() and wait().
  virtual bool is_in_background() const { return false; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "threads" or "mpi": for reports.
  virtual const char* backend() const = 0;

  /// Prepares a collective. Collective. Throws a usage error for a dtype that the combiner does not
  /// support (any/all need bool or uint8; sum and prod do not take bool), a bad root, negative
  /// counts, and operands that are null or overlap. Throws comm if the ranks prepare different
  /// collectives.
  std::unique_ptr<Operation> prepare(const Collective& collective);
  /// Several independent collectives as one operation: the ranks synchronize once for all. No
  /// written operand may overlap an operand of another. Throws a usage error for an empty list, and
  /// for a broadcast, a barrier or a collective with counts among several.
  std::unique_ptr<Operation> prepare(const std::vector<Collective>& collectives);
  /// prepare(), start() and wait() in one: for set-up, tests and rare transfers.
  void run(const Collective& collective);
  void barrier(const CallSite& site = {});
  /// Whether `mine` is true on every rank; `what` is for messages. Collective.
  bool on_all(bool mine, const std::string& what);

  /// Ranks that pass the same color form a group, ordered by (key, rank). Collective.
  std::unique_ptr<Communicator> split(int color, int key);

  /// Zeroed memory, aligned to 64 bytes, that peers on the same host can read directly; sizes may
  /// differ between ranks. Freed with the Communicator. Operations accept any memory but are faster
  /// with this.
  void* allocate(int64_t bytes);

  /// The time-out of a wait in seconds, for this communicator and those split from it later.
  void set_timeout(double seconds);
  double timeout() const { return timeout_; }

  /// Tells all peers (also of other groups of the same world) that this rank fails with `message`;
  /// their present and later calls throw it. Never blocks.
  virtual void fail(const std::string& message) = 0;
  /// After a failure, when no rank is inside a call: makes later calls work again in groups that
  /// were not inside one. Only for ranks that are threads. Elsewhere it does nothing, since no rank
  /// can know this of the others.
  virtual void recover() {}

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual std::unique_ptr<Operation> do_prepare(const std::vector<Collective>& collectives) = 0;
  void check_operands(const Collective& collective) const;
  virtual std::unique_ptr<Communicator> do_split(int color, int key) = 0;
  virtual void* do_allocate(int64_t bytes) = 0;

  int rank_, size_;
  double timeout_ = 120.0;
};

/// Makes a world of `size` ranks that are threads of this process; element r is for rank r's
/// thread. An element must be used by one thread at a time, not necessarily always the same one.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size);

/// True if ranks can be processes: MPI's plug-in opens (collectives/mpi_api.h says why not).
bool have_mpi();
struct MpiOptions {
  /// Ranks of one host read each other's memory. If false, or if the system does not allow it (say,
  /// one container per rank), they send messages like ranks of different hosts.
  bool share_memory = true;
  /// For tests: if n > 0, every n consecutive ranks act as a host of their own.
  int ranks_per_host = 0;
};
/// This process's rank of a duplicate of MPI_COMM_WORLD, renumbered so that the ranks of a host are
/// consecutive, whatever the launcher's placement (--map-by node, -m cyclic). Initializes MPI
/// (THREAD_MULTIPLE if possible) if nobody has. Only then does it finalize MPI at exit, and only if
/// no call failed (it would hang). Throws unsupported unless have_mpi().
std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options = {});
/// The same for a duplicate of the host program's communicator; `comm` points to an MPI_Comm.
std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options = {});

/// Combines `inputs` (one buffer of `count` elements per rank, in rank order) elementwise into
/// `out`, which may be one of them. This function alone defines the order of sums.
void local_reduce(const void* const* inputs, int ranks, void* out, int64_t count, DType dtype,
                  Combiner combiner);

}  // namespace tessera
