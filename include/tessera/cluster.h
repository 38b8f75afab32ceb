// The ranks that run a Program: threads of this process, or processes of an MPI job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class Communicator;

/// A Cluster outlives its Sessions. All of its methods are called by one thread at a time.
class Cluster {
 public:
  /// `ranks` threads of this process: needs nothing and is the reference for every other backend.
  static Cluster threads(int ranks);
  /// One rank per process of MPI_COMM_WORLD. Throws unsupported if this build has no MPI.
  static Cluster mpi();
  /// mpi() under a launcher (mpirun, srun), else threads(ranks). Throws a usage error where a
  /// launcher announces more ranks than MPI sees, and where it announces any and this build has no
  /// MPI.
  static Cluster from_environment(int ranks = 1);
  /// Adopts a communicator of the host program, `comm` pointing to an MPI_Comm: call the typed
  /// function of tessera/interop/mpi.h.
  static Cluster adopt_mpi(const void* comm);
  /// Ranks over communicators of Tessera's own kind: the one of this process, or those of all ranks
  /// of the group, which will be threads of it, in order of rank.
  static Cluster adopt(std::vector<std::unique_ptr<Communicator>> worlds);
  static Cluster adopt(std::unique_ptr<Communicator> world);

  Cluster(Cluster&&) noexcept;
  Cluster& operator=(Cluster&&) noexcept;
  ~Cluster();

  /// Ranks in all.
  int size() const;
  /// Ranks in this process: size() for threads, 1 under MPI.
  int local_ranks() const;
  /// True in the process that has rank 0: the one that prints.
  bool is_root() const;
  /// "threads" or "mpi".
  std::string backend() const;
  /// Seconds that a wait may last before the missing ranks are named; for Sessions made later.
  void set_timeout(double seconds);

  /// Runs `work` on every local rank at once, each with its communicator, and waits. If some fail,
  /// all peers are told, and the failure that came first is thrown.
  void run(const std::function<void(int local_rank, Communicator& world)>& work);
  /// Tells all other processes that this one fails: what they wait for throws `message`. Never
  /// waits.
  void fail(const std::string& message);
  /// After a run that failed inside the operations of one Session: others go on. Only where all
  /// ranks are threads of this process, which then have all left it; else does nothing.
  void recover();
  /// The host of each rank. Collective.
  std::vector<std::string> hosts();
  /// The numbers of all ranks, rank by rank: `mine` are those of the local ranks, equally many of
  /// each. Cheap from the second call with as many on. Collective.
  std::vector<double> gather(const std::vector<double>& mine);
  /// The first text, in order of rank, that is not empty; "" if all are. One text a process.
  /// Collective.
  std::string first_text(const std::string& mine);
  /// Something that all ranks must have equal, such as {"train.lr", "0.001"}.
  using Fact = std::pair<std::string, std::string>;
  /// Throws a usage error in every process if a fact is not the same in all of them: its name, two
  /// ranks and their values. Collective.
  void require_same(const std::vector<Fact>& facts);

 private:
  struct State;
  explicit Cluster(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The number of ranks that a launcher announces in the environment (Open MPI, PMI, PMIx, Slurm
/// steps), or 0 for none.
int launched_ranks();

}  // namespace tessera
