// The few parts of MPI that Tessera uses, without MPI's header: messages between processes.
// libtessera_mpi.so implements them (mpi_plugin.cpp). It is opened when ranks are processes, so
// that nothing else needs an MPI to be there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// Sends and receives with fixed addresses, started and completed together, many times.
class Transfers {
 public:
  virtual ~Transfers() = default;
  /// Any number of bytes; both sides must give the same number.
  virtual void send(int rank, int tag, const void* data, int64_t bytes) = 0;
  virtual void receive(int rank, int tag, void* data, int64_t bytes) = 0;
  virtual void start() = 0;
  /// True if all are complete. Throws comm if MPI reports an error.
  virtual bool test() = 0;
  /// The ranks whose messages have not arrived; if there are none, those that have not received
  /// ours.
  virtual const std::vector<int>& outstanding() = 0;
};

/// A duplicated MPI communicator. Nothing here blocks longer than told.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int64_t largest_tag() const = 0;
  /// Sets the most bytes of one message with `rank`; larger transfers are split. Both ranks must
  /// call it with the same number, before they make Transfers; 0: no change.
  virtual void limit_part(int rank, int64_t bytes) = 0;
  /// None yet. Must not outlive the Wire.
  virtual std::unique_ptr<Transfers> transfers() = 0;
  /// `bytes` of every rank to all, in rank order. Collective; for set-up.
  virtual void all_gather(const void* mine, int64_t bytes, void* all, double seconds) = 0;
  /// Tells `ranks` that the world failed. Gives the network a moment; never waits for an answer.
  virtual void send_failure(const std::string& message, const std::vector<int>& ranks) = 0;
  /// The rank and message of a failure that arrived; reported once.
  virtual bool receive_failure(int& rank, std::string& message) = 0;
  /// From here on nothing is called that could wait for peers, not even at exit.
  virtual void abandon() = 0;
};

/// MPI in this process.
class MpiApi {
 public:
  virtual ~MpiApi() = default;
  /// "MPI 3.1 (Open MPI v4.1.4)".
  virtual std::string version() const = 0;
  /// What MPI_Get_library_version says.
  virtual std::string library() const = 0;
  /// Initializes MPI if nobody has. Throws a usage error if it has been finalized.
  virtual void ensure() = 0;
  /// The address of the handle MPI_COMM_WORLD.
  virtual const void* world() const = 0;
  /// Duplicates the communicator whose handle is at `comm`. Its ranks are MPI's or, with `by_host`,
  /// renumbered so that those of a host are consecutive, whatever the launcher chose; rank 0 stays.
  /// Collective; throws comm after `seconds`.
  virtual std::unique_ptr<Wire> duplicate(const void* comm, double seconds, bool by_host) = 0;
  /// True if several threads may call MPI.
  virtual bool allows_threads() const = 0;
  /// The largest message that this process sends eagerly over TCP; 0 if unknown, or if the hosts
  /// may have another network. A larger message (rendezvous protocol) waits for an answer, which
  /// queues after whatever the receiver is sending: two ranks that send each other much at the same
  /// time would take turns instead of using both directions.
  virtual int64_t unasked_bytes() const = 0;
};

/// Loads libtessera_mpi.so at the first call. Throws unsupported with the reason and a remedy: it
/// is not there, its MPI is not, or another MPI is in its place.
MpiApi& mpi_api();
/// Why mpi_api() throws, or "".
std::string why_no_mpi();

/// What libtessera_mpi.so exports as "tessera_mpi_open". Returns MPI, or null and sets `why`.
using MpiOpen = MpiApi* (*)(std::string& why);

}  // namespace tessera
