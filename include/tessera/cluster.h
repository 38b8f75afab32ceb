// The ranks that run a Program: threads of this process, or processes of an MPI job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class Communicator;

/// A Cluster must outlive its Sessions, which keep its address: it is moved before they are made,
/// or never. A Cluster and all of its Sessions are used by one thread at a time. A second one that
/// runs something meanwhile gets a usage error, as do methods of a Cluster that was moved from.
///
/// Every wait is bounded by the time-out. If a thread rank stays in one step for longer (a kernel
/// or an op of the user's hangs), run() throws a comm error that names the step. A thread cannot be
/// ended from outside: it is abandoned with the memory that it uses, and so are this Cluster and
/// its Sessions. If it ever leaves its step it sleeps until the process ends. A single rank is the
/// calling thread itself, which nothing can make return; see activity().
///
/// If a Cluster goes while an exception unwinds the stack, its peers fail at once, as with fail().
class Cluster {
 public:
  /// Ranks are `ranks` threads of this process. Needs no libraries; the reference for all backends.
  static Cluster threads(int ranks);
  /// One rank per process of MPI_COMM_WORLD. Throws unsupported if MPI cannot be used here.
  static Cluster mpi();
  /// mpi() under a launcher (mpirun, srun), else threads(ranks). Throws a usage error if the
  /// launcher announces more ranks than MPI sees, and if it announces any but MPI cannot be used
  /// here.
  static Cluster from_environment(int ranks = 1);
  /// Adopts a communicator of the host program; `comm` points to an MPI_Comm. Call the typed
  /// function of tessera/interop/mpi.h instead.
  static Cluster adopt_mpi(const void* comm);
  /// Ranks over communicators of Tessera's own type: one for this process, or those of all ranks of
  /// the group, in order of rank; these ranks will be threads of this process.
  static Cluster adopt(std::vector<std::unique_ptr<Communicator>> worlds);
  static Cluster adopt(std::unique_ptr<Communicator> world);

  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;
  ~Cluster();

  /// Total number of ranks.
  int size() const;
  /// Ranks in this process: size() for threads, 1 under MPI.
  int local_ranks() const;
  /// True in the process of rank 0, which prints.
  bool is_root() const;
  /// "threads" or "mpi".
  std::string backend() const;
  /// Timeout in seconds of every wait; the error names the missing ranks. Applies to Sessions made
  /// later.
  void set_timeout(double seconds);

  /// What a local rank is doing.
  struct Activity {
    int rank = 0;        ///< of all ranks
    std::string step;    ///< "[matmul] gpt.block3.mlp (model.cpp:41)"; "" between steps
    double seconds = 0;  ///< in this step, to some milliseconds
    bool waits = false;  ///< the step waits for peers
    int thread = 0;      ///< the system's number of its thread (gettid); 0: it has not run yet
  };
  /// What the local ranks are doing now, in order of rank. Any thread may call it at any time while
  /// the Cluster lives. For programs that watch themselves. Local.
  std::vector<Activity> activity() const;

  /// Runs `work` on all local ranks at once, each with its communicator, and waits. If some fail,
  /// all peers are told, and the first failure is thrown.
  void run(const std::function<void(int local_rank, Communicator& world)>& work);
  /// Tells all other processes that this one fails: their waits throw `message`. Never waits.
  void fail(const std::string& message);
  /// Makes the Cluster usable for other Sessions after a run of one Session failed. Only if all
  /// ranks are threads of this process, which have all left the run; else does nothing.
  void recover();
  /// The host name of each rank. Collective.
  std::vector<std::string> hosts();
  /// Gathers numbers of all ranks, in order of rank. `mine`: those of the local ranks, the same
  /// count for each. Repeated calls with the same count are cheap. Collective.
  std::vector<double> gather(const std::vector<double>& mine);
  /// The first non-empty text in order of rank, or "". One text per process. Collective.
  std::string first_text(const std::string& mine);
  /// Something that all ranks must have equal, such as {"train.lr", "0.001"}.
  using Fact = std::pair<std::string, std::string>;
  /// Throws a usage error in every process if a fact is not the same in all of them: its name, two
  /// ranks and their values. Collective.
  void require_same(const std::vector<Fact>& facts);

 private:
  struct State;
  struct Release {
    void operator()(State* state) const;
  };
  friend struct ClusterInternals;
  explicit Cluster(std::unique_ptr<State, Release> state);
  std::unique_ptr<State, Release> state_;
};

/// The number of ranks that a launcher announces in the environment (Open MPI, PMI, PMIx, Slurm
/// steps), or 0 for none.
int launched_ranks();

}  // namespace tessera
