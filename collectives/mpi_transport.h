// Messages between processes: the few parts of MPI that Tessera uses, without MPI's header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// One turn of a wait that has lasted `waited` seconds: first yields, then sleeps for a fraction of
/// that time, at most 1 ms; earlier and longer if ranks share processors.
void wait_briefly(double waited, bool crowded);

/// A duplicated MPI communicator. Its ranks are MPI's or, with `by_host`, renumbered so that those
/// of a host are consecutive, whatever the launcher chose; rank 0 stays. Nothing here blocks longer
/// than told.
class Wire {
 public:
  /// `comm` points to an MPI_Comm. Collective; throws comm after `seconds`.
  Wire(const void* comm, double seconds, bool by_host = false);
  ~Wire();
  Wire(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t largest_tag() const { return largest_tag_; }
  /// The most bytes of one message with `rank`; larger transfers are split.
  int64_t part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  /// Sets part(rank). Both ranks must call it with the same number, before they make Transfers; 0:
  /// no change.
  void limit_part(int rank, int64_t bytes);
  /// `bytes` of every rank to all, in rank order. Collective; for set-up.
  void all_gather(const void* mine, int64_t bytes, void* all, double seconds);
  /// Tells `ranks` that the world failed. Gives the network a moment; never waits for an answer.
  void send_failure(const std::string& message, const std::vector<int>& ranks);
  /// The rank and message of a failure that arrived; reported once.
  bool receive_failure(int& rank, std::string& message);
  /// From here on nothing is called that could wait for peers, not even at exit.
  void abandon();

  struct Handles;
  Handles& handles() { return *handles_; }

 private:
  void order_by_host(double seconds);
  std::unique_ptr<Handles> handles_;
  int rank_ = 0, size_ = 1;
  int64_t largest_tag_ = 0;
  std::vector<int64_t> parts_;
};

/// Sends and receives with fixed addresses, started and completed together, many times.
class Transfers {
 public:
  explicit Transfers(Wire& wire);
  ~Transfers();
  Transfers(Transfers&&) noexcept;

  /// Any number of bytes; both sides must give the same number.
  void send(int rank, int tag, const void* data, int64_t bytes);
  void receive(int rank, int tag, void* data, int64_t bytes);
  void start();
  /// True if all are complete. Throws comm if MPI reports an error.
  bool test();
  /// The ranks whose messages have not arrived; if there are none, those that have not received
  /// ours.
  const std::vector<int>& outstanding();

 private:
  struct State;
  Wire* wire_;
  std::unique_ptr<State> state_;
};

/// True if several threads may call MPI.
bool allows_threads();
/// The largest message that this process sends eagerly over TCP; 0 if unknown, or if the hosts may
/// have another network. A larger message (rendezvous protocol) waits for an answer, which queues
/// after whatever the receiver is sending: two ranks that send each other much at the same time
/// would take turns instead of using both directions.
int64_t unasked_bytes();
/// Initializes MPI if nobody has. Throws a usage error if it has been finalized.
void ensure_mpi();
/// The address of the handle MPI_COMM_WORLD.
const void* mpi_comm_world();

}  // namespace tessera
