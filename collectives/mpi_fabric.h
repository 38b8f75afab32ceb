// One process's view of an MPI world: which ranks share its host, and their memory.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "collectives/mpi_api.h"
#include "collectives/peer_group.h"
#include "collectives/progress.h"

namespace tessera {

class MpiFabric final : public Fabric, public std::enable_shared_from_this<MpiFabric> {
 public:
  /// Collective over `wire`.
  static std::shared_ptr<MpiFabric> make(std::unique_ptr<Wire> wire, const MpiOptions& options,
                                         double seconds);
  ~MpiFabric() override;

  const char* name() const override { return "mpi"; }
  void* map(int64_t bytes) override;
  void unmap(void* memory) noexcept override;
  bool visible(const void* memory, int64_t bytes) const override;
  Token token(const void* memory) const override;
  void* resolve(int rank, const Token& token) override;
  Status* status(int rank) override;
  Alarm& alarm() override { return *alarm_; }
  bool alive(int rank) override;
  bool crowded() const override { return crowded_; }
  void poll() override;
  void raise(const std::string& message) override;
  void failed() override { wire_->abandon(); }
  std::string whereabouts(int rank) override;
  std::string place(int rank) const override { return " on " + host_names_[rank]; }
  /// Notes that these ranks took part in `call`. Of ranks on other hosts nothing else is known.
  void heard(const std::vector<int>& ranks, const std::shared_ptr<const Call>& call);

  Wire& wire() { return *wire_; }
  /// Drives messages: MPI moves them only inside its own calls.
  Progress& progress() { return *progress_; }
  /// True if all these ranks see each other's memory.
  bool together(const std::vector<int>& ranks) const;
  /// The first message tag that this rank has not used; see MessageCommunicator.
  int64_t next_tag = 1;

 private:
  struct Introduction;
  struct Segment {
    int64_t bytes = 0;
    int fd = -1;
    int64_t serial = 0;
  };
  struct Import {
    char* base = nullptr;
    int64_t bytes = 0, serial = -1;
  };
  struct Control {  ///< the start of every rank's memory
    std::atomic<uint64_t> cookie{0};
    Status status;
    Alarm alarm;
  };
  explicit MpiFabric(std::unique_ptr<Wire> wire);
  void introduce(const MpiOptions& options, double seconds);
  bool meet_neighbours(const std::vector<Introduction>& all);
  char* import(int rank, const Token& token);

  std::unique_ptr<Wire> wire_;
  std::unique_ptr<Progress> progress_;
  std::map<const char*, Segment> segments_;
  int64_t serial_ = 0;
  std::map<std::pair<int, int64_t>, Import> imports_;
  std::vector<int64_t> pids_;
  std::vector<std::string> host_names_;
  std::vector<int> hosts_;  ///< by rank: a number for its host, equal only if memory is shared
  std::vector<Control*> controls_;
  Control* control_ = nullptr;
  Alarm* alarm_ = nullptr;
  bool crowded_ = true;
  bool one_host_ = false;
  int polls_ = 0;
  std::vector<std::shared_ptr<const Call>> heard_;
};

/// The world's Communicator, for one host or several. Collective.
std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiFabric> fabric,
                                                    double seconds);

}  // namespace tessera
