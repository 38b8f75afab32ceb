// A group of ranks that communicate: the contract between the executor and the backends.
//
// One Communicator object belongs to one rank (a thread of this process or a process). All ranks of
// the group make the same calls in the same order ("collectively"). A collective is *prepared*
// once, with its fixed addresses, and then started and waited for many times: whatever does not
// depend on data (peer addresses, packing tables, requests) is done in prepare().
//
// Determinism: every reduction combines the operands in the order of rank (((r0 + r1) + r2) + ...),
// float32 and float64 in their own type, bfloat16 and float16 in float32 with one rounding at the
// end; the result has the same bits on every rank. Backends that reduce themselves (threads, shared
// windows) agree bit for bit with each other.
//
// Failure: every wait is bounded by the time-out (seconds; default 120). When it runs out, or when
// a peer called fail(), the call throws Error(comm); the message names this rank, the call (number
// and CallSite text) and either the ranks that did not arrive, with the last call each was seen at,
// or the failing peer and *its* message. After that every call of the group throws at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/collectives.h"
#include "tessera/dtype.h"

namespace tessera {

/// Where a collective comes from; only messages use it. The text outlives the operation.
struct CallSite {
  int64_t number = -1;    ///< position in the Program, equal on all ranks
  std::string text = {};  ///< tensor, model scope and source line
};

/// Elements [offset, offset + length) of a buffer.
struct Run {
  int64_t offset = 0, length = 0;
};

/// One collective with its operands. Shapes are row-major and contiguous; P is the group's size, r
/// this rank. Counts are elements and may be 0. `in` and `out` do not overlap, except that
/// all_reduce may have in == out.
///   all_reduce      in [count]                  out [count]
///   reduce_scatter  in [outer, P, inner]        out [outer, inner]     out = combined in[:, r, :]
///   all_gather      in [outer, inner]           out [outer, P, inner]  out[:, p, :] = in of rank p
///   all_to_all      split_first:  in [pre, P, s, mid, c, post]   out [pre, s, mid, P, c, post]
///                   otherwise:    in [pre, c, mid, P, s, post]   out [pre, P, c, mid, s, post]
///                   (the dim of local size P*s becomes s here, the dim of local size c becomes
///                   P*c; block q of the split dim goes to rank q, that of rank p lands at p of the
///                   other)
///   exchange        the elements of in listed in send[q] go, in order, to the places of out that
///   rank
///                   q lists in its recv[r]; send[r] and recv[r] are a local copy. Equal totals.
///   broadcast       out [count] of rank `root` is copied to out of all the others; in is unused
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
  std::vector<std::vector<Run>> send, recv;
  CallSite site;
};

/// One or several prepared collectives. start() and wait() alternate; operands may be touched only
/// before start() and after wait(). wait() returns when `out` is complete and no peer reads `in`
/// any more; start() waits at most for a rank that is several generations behind. Several
/// operations, of one group or of several, may be in flight at once; all ranks wait for them in the
/// same order. An operation must not outlive its Communicator, nor its operands the operation.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  virtual void wait() = 0;
  /// Between start() and wait(): does what can be done without waiting. True once nothing is left
  /// to be sent or received. Local.
  virtual bool advance() { return false; }
  /// True if something moves between start() and wait().
  virtual bool is_in_background() const { return false; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "threads" or "mpi": for reports.
  virtual const char* backend() const = 0;

  /// Prepares a collective. Collective itself. Throws usage errors for a dtype that the combiner
  /// does not take (any/all need bool or uint8; sum and prod do not take bool), a bad root,
  /// negative counts and operands that are null or overlap; and comm if the ranks prepare different
  /// collectives.
  std::unique_ptr<Operation> prepare(const Collective& collective);
  /// Several independent collectives as one operation: the ranks meet once for all of them. No
  /// operand overlaps one of another that is written. Throws usage errors for an empty list and for
  /// a broadcast or barrier among several.
  std::unique_ptr<Operation> prepare(const std::vector<Collective>& collectives);
  /// prepare, start and wait in one: for set-up, tests and rare transfers.
  void run(const Collective& collective);
  void barrier(const CallSite& site = {});

  /// Ranks that pass the same color form a group, ordered by (key, rank). Collective.
  std::unique_ptr<Communicator> split(int color, int key);

  /// Memory that peers of one host may read directly, zeroed, aligned to 64 bytes; sizes may
  /// differ. Freed with the Communicator. Operations work on any memory, faster on this.
  void* allocate(int64_t bytes);

  /// Seconds that a wait may last, for this communicator and those split from it later.
  void set_timeout(double seconds);
  double timeout() const { return timeout_; }

  /// Tells all peers (also of other groups of the same world) that this rank fails with `message`;
  /// their present and later calls throw it. Never waits.
  virtual void fail(const std::string& message) = 0;
  /// After a failure, once no rank is inside a call: later calls of groups that were not inside one
  /// work again. Of ranks that are threads; elsewhere, where no rank can know that of the others,
  /// it does nothing.
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

/// Makes a world of `size` ranks that are threads of this process: element r is for rank r's
/// thread. Every element may be used by one thread at a time; they need not be the same threads
/// throughout.
std::vector<std::unique_ptr<Communicator>> make_local_world(int size);

/// True if this build has MPI.
bool have_mpi();
struct MpiOptions {
  /// Ranks of one host read each other's memory. If false, or where the system does not let them
  /// (say, one container per rank), they send messages as ranks of different hosts do.
  bool share_memory = true;
  /// For tests: if n > 0, every n consecutive ranks pretend to be a host of their own.
  int ranks_per_host = 0;
};
/// This process's rank of MPI_COMM_WORLD, duplicated, and numbered so that the ranks of a host
/// follow each other, whatever the launcher's placement (--map-by node, -m cyclic). Initializes MPI
/// (THREAD_MULTIPLE if it can) if nobody has, and finalizes it at exit only then, and only if no
/// call failed (it would hang). Throws unsupported if built without MPI.
std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options = {});
/// The same for a communicator of the host program, `comm` pointing to an MPI_Comm, duplicated.
std::unique_ptr<Communicator> adopt_mpi(const void* comm, const MpiOptions& options = {});

/// Combines `inputs` (one buffer of `count` elements per rank, in rank order) elementwise into out.
/// out may be any of the inputs. The one definition of the order of sums.
void local_reduce(const void* const* inputs, int ranks, void* out, int64_t count, DType dtype,
                  Combiner combiner);

}  // namespace tessera
