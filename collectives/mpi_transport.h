// Messages between processes: the little of MPI that Tessera uses, without its header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// One turn of a wait that has lasted `waited` seconds: yields at first, then sleeps for a part of
/// that time, at most 1 ms; sooner and for longer where ranks share processors.
void wait_briefly(double waited, bool crowded);

/// A duplicated MPI communicator. Ranks are its ranks, or, `by_host`, numbered so that those of a
/// host follow each other, whatever order the launcher chose; rank 0 stays. Nothing here blocks for
/// longer than told.
class Wire {
 public:
  /// `comm` points to an MPI_Comm. Collective; throws comm after `seconds`.
  Wire(const void* comm, double seconds, bool by_host = false);
  ~Wire();
  Wire(const Wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t largest_tag() const { return largest_tag_; }
  /// What is more goes to `rank`, and comes from it, in several messages.
  int64_t part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  /// Both ranks call it with the same number of bytes, before there are Transfers; 0: no change.
  void limit_part(int rank, int64_t bytes);
  /// `bytes` of every rank to all, in order of rank. Collective; for set-up.
  void all_gather(const void* mine, int64_t bytes, void* all, double seconds);
  /// Tells `ranks` that the world failed; gives the network a moment, never waits for an answer.
  void send_failure(const std::string& message, const std::vector<int>& ranks);
  /// The rank and the message of a failure that arrived, once.
  bool receive_failure(int& rank, std::string& message);
  /// After this nothing that could wait for peers is called any more, not even at exit.
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

/// Sends and receives with fixed addresses that are started and completed together, many times.
class Transfers {
 public:
  explicit Transfers(Wire& wire);
  ~Transfers();
  Transfers(Transfers&&) noexcept;

  /// Any number of bytes; both sides name the same number.
  void send(int rank, int tag, const void* data, int64_t bytes);
  void receive(int rank, int tag, void* data, int64_t bytes);
  void start();
  /// True once all are complete. Throws comm if MPI reports an error.
  bool test();
  /// The ranks that owe us a message; if there are none, those that have not taken ours.
  const std::vector<int>& outstanding();

 private:
  struct State;
  Wire* wire_;
  std::unique_ptr<State> state_;
};

/// True if several threads may call MPI.
bool allows_threads();
/// The largest message that this process sends over TCP without asking its receiver first; 0 where
/// another network than TCP may join the hosts, or nobody knows. A larger one waits for an answer
/// that travels behind whatever the receiver is sending: two ranks that send each other much at
/// almost the same time would take turns instead of using both directions of their link.
int64_t unasked_bytes();
/// True once MPI is initialized, by us if need be; throws comm if it has been finalized.
void ensure_mpi();
/// The address of MPI_COMM_WORLD's handle.
const void* mpi_comm_world();

}  // namespace tessera
