// Ranks that can address each other's memory: threads of a process, or processes of a host that map
// the same pages. A Fabric is one rank's view of them; a Rendezvous synchronizes a group of them.
// Everything else here lies in memory that all of them see.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/communicator.h"

namespace tessera {

/// Text of up to Bytes - 1 characters. A reader may see a mixture while it is written, but never
/// reads out of bounds.
template <int Bytes>
class SharedText {
 public:
  void store(std::string_view text) {
    for (size_t at = 0; at < Bytes; at += 8) {
      uint64_t word = 0;
      if (at < text.size())
        std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
      if (at == Bytes - 8) word &= ~(uint64_t{0xff} << 56);
      words_[at / 8].store(word, std::memory_order_relaxed);
      if (at >= text.size()) return;
    }
  }
  std::string load() const {
    char text[Bytes + 1] = {};
    for (size_t i = 0; i < Bytes / 8; ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(text + 8 * i, &word, 8);
    }
    return text;
  }

 private:
  std::atomic<uint64_t> words_[Bytes / 8];
};

/// Counts arrivals modulo 2^32. Ranks can sleep until enough have arrived.
struct alignas(64) Gate {
  std::atomic<uint32_t> count{0};
  std::atomic<uint32_t> sleepers{0};
};

/// One rank's counters for a Rendezvous. They only count up, so a cell can be reused while a slow
/// peer still reads it.
struct Cell {
  Gate started, finished;  ///< those of the group's rank 0 are used by all; in a stream, each
                           ///< rank's by itself
  alignas(64) std::atomic<uint32_t> began{0}, ended{0};  ///< arrivals of this rank
  std::atomic<uint32_t> busy{0};  ///< this rank may be accessing operands of peers
};

/// The last collective that a rank started.
struct alignas(64) Status {
  std::atomic<int64_t> number{0};
  std::atomic<uint32_t> kind{0};  ///< 1 + CollectiveKind; 0: none yet
  std::atomic<uint32_t> preparing{0};
  SharedText<176> text;
};

/// The first failure of the world, seen by all ranks of a host. state: 0 none, 1 being written, 2
/// set.
struct alignas(64) Alarm {
  std::atomic<uint32_t> state{0};
  std::atomic<int32_t> rank{-1};
  SharedText<2048> text;
};

/// An address in a rank's memory in a form that its peers can resolve; the Fabric defines the form.
struct Token {
  int64_t segment = -1, serial = 0, bytes = 0, offset = 0;
};

/// A collective as error messages name it.
struct Call {
  CollectiveKind kind = CollectiveKind::barrier;
  bool preparing = false;
  CallSite site = {};
};
/// "[all_reduce] call 12 (loss, model.cpp:41)".
std::string describe(const Call& call);

class Fabric;

/// Cells and blocks of memory that peers can resolve, recycled. They live as long as the world: a
/// slow peer may look at a cell after its owner is through with it.
class CellPool {
 public:
  using Block = std::pair<void*, int64_t>;
  using Goal = std::pair<const Gate*, uint32_t>;

  explicit CellPool(Fabric& fabric) : fabric_(fabric) {}
  Cell* take_cell();
  /// At least `bytes`.
  void* take(int64_t bytes);
  /// Makes them free once each gate has counted to its goal.
  void retire(Cell* cell, std::vector<Block> blocks, std::vector<Goal> goals);

 private:
  struct Retired {
    Cell* cell;
    std::vector<Block> blocks;
    std::vector<Goal> goals;
  };
  void sweep();
  void* carve(int64_t bytes);

  Fabric& fabric_;
  char* slab_ = nullptr;
  int64_t slab_left_ = 0;
  std::vector<Cell*> cells_;
  std::vector<std::vector<void*>> blocks_ = std::vector<std::vector<void*>>(64);  // by log2 of size
  std::vector<Retired> retired_;
};

/// One rank's view of the world. Used by one thread at a time.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual const char* name() const = 0;
  int rank() const { return rank_; }

  /// Zeroed memory, aligned to 64 bytes, that peers can resolve; valid until unmap() or the end.
  virtual void* map(int64_t bytes) = 0;
  virtual void unmap(void* memory) noexcept = 0;
  /// True if peers can resolve all of [memory, memory + bytes).
  virtual bool visible(const void* memory, int64_t bytes) const = 0;
  virtual Token token(const void* memory) const = 0;
  virtual void* resolve(int rank, const Token& token) = 0;
  /// The status of a rank whose memory is visible here; null for others.
  virtual Status* status(int rank) = 0;
  virtual Alarm& alarm() = 0;
  /// False if that rank's process is known to have ended.
  virtual bool alive(int rank) = 0;
  /// True if this host has more ranks than processors: spinning would slow others down.
  virtual bool crowded() const = 0;
  /// Looks for news from other hosts. Cheap; called now and then during waits.
  virtual void poll() {}
  /// Tells the world that this rank fails. The first failure's message stays.
  virtual void raise(const std::string& message);
  /// Clears the alarm. Requires that no rank waits any more.
  virtual void recover() {}

  /// Called when this rank learns that the world has failed.
  virtual void failed() {}

  /// Throws the world's failure, if there is one.
  void check(const Call& call) {
    if (alarm().state.load(std::memory_order_acquire) != 0) throw_failure(call);
  }
  void note(const Call& call);
  /// "rank 3 on node7 (last seen at call 11, [all_gather])".
  virtual std::string whereabouts(int rank);
  /// " on node7"; "" if all ranks are threads of one process.
  virtual std::string place(int) const { return ""; }
  /// Raises the alarm that `missing` ranks did not arrive within `seconds`, and throws.
  [[noreturn]] void throw_timeout(const Call& call, double seconds,
                                  const std::vector<int>& missing);
  /// Does that at once if the process of one of `missing` is known to have ended.
  void check_alive(const Call& call, const std::vector<int>& missing);

  CellPool& pool() { return pool_; }

 protected:
  explicit Fabric(int rank) : rank_(rank) {}

 private:
  [[noreturn]] void throw_failure(const Call& call);
  /// Raises the alarm and throws. If another rank was first, throws that rank's message.
  [[noreturn]] void give_up(const Call& call, const std::string& message);

  int rank_;
  CellPool pool_{*this};
};

/// A reusable barrier of a group, in two phases. Each generation is
///   begin()  what I published is ready    await_begin()  everybody's is
///   end()    I no longer read any peer    await_end()    nobody reads me any more
/// Everything written before begin() (end()) is visible after await_begin() (await_end()).
///
/// In a stream, a rank only waits for the ranks that it reads, in await_begin(). It publishes to
/// several places in turn; the next one is free after await_free(). So a rank may be as many
/// generations ahead of its readers as it has places.
class Rendezvous {
 public:
  /// What other ranks need to connect to this rank; passed to them by other means.
  struct Ticket {
    Token cell;
    uint32_t began = 0, ended = 0, started = 0, finished = 0;
  };

  /// `ranks` are the world ranks of the group, `me` the index of this one.
  Rendezvous(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;

  Ticket ticket() const;
  void connect(const std::vector<Ticket>& tickets);
  /// Before the first generation, by all ranks: makes it a stream, in which this rank reads
  /// `sources` and publishes in `places` places to `readers` (indices in the group).
  void make_stream(std::vector<int> sources, std::vector<int> readers, uint32_t places);
  /// Memory that is recycled when all ranks have left the last generation.
  void* hold(int64_t bytes);

  /// In a stream: to be called before publishing the next generation.
  void await_free(const Call& call, double seconds);
  void begin();
  void await_begin(const Call& call, double seconds);
  void end();
  void await_end(const Call& call, double seconds);
  /// The number of generations begun.
  uint32_t generation() const { return generation_; }
  bool in_flight() const { return begun_; }

  /// enter() and leave() surround every access to operands of peers. enter() throws if the world
  /// has failed. After a failure, quiesce() waits until no rank of the group is inside, at most for
  /// the time of a copy.
  void enter(const Call& call);
  void leave();
  void quiesce() noexcept;

 private:
  /// Which gate a rank waits at, and for which count.
  struct Wait {
    Gate& gate;
    uint32_t target;
    bool entry;     ///< waits for begin(), else for end()
    int peer = -1;  ///< in a stream: index of the rank waited for
  };
  void await(const Wait& wait, const Call& call, double seconds);
  const std::vector<int>& missing(const Wait& wait);
  /// The count that a rank of a stream was last seen at; saves reading its cell.
  struct Peer {
    int index = 0;
    uint32_t seen = 0;
  };
  void await_peer(Peer& peer, uint32_t generation, bool entry, const Call& call, double seconds);

  std::shared_ptr<Fabric> fabric_;
  std::vector<int> ranks_;
  int me_;
  Cell* own_;
  std::vector<Cell*> cells_;
  std::vector<Ticket> tickets_;
  std::vector<int> missing_;  ///< result of missing(); avoids allocation in long waits
  std::vector<CellPool::Block> held_;
  bool stream_ = false;
  std::vector<Peer> sources_, readers_;
  uint32_t places_ = 1;
  uint32_t generation_ = 0;
  bool begun_ = false;
  int spins_ = 0;  ///< how long spinning has paid recently
};

}  // namespace tessera
