// A collective is built of messages from one rank to one other, each in pairs and in the order of
// rank: reduce_scatter sends everyone its block, all_gather sends everyone the own one, all_reduce
// does first the one and then the other. A message waits in the mailbox of its receiver, by group
// and sender; nobody waits to send.
#include "support/counted_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/fail.h"

namespace tessera::test {

using Message = std::vector<char>;

class CountedTraffic {
 public:
  explicit CountedTraffic(int ranks) : memory(static_cast<size_t>(ranks)) {}

  struct Channel {
    int group, from, to;
    auto operator<=>(const Channel&) const = default;
  };

  void send(const Channel& channel, Message message) {
    std::lock_guard lock(mutex);
    mail_[channel].push_back(std::move(message));
    news.notify_all();
  }
  Message receive(const Channel& channel, double seconds) {
    std::unique_lock lock(mutex);
    std::deque<Message>& box = mail_[channel];
    const bool came = news.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return !box.empty() || !failure.empty(); });
    if (box.empty() && !failure.empty()) throw PeerFailure(ErrorKind::comm, failure);
    TESSERA_CHECK(came, "rank {} heard nothing of rank {}", channel.to, channel.from);
    Message message = std::move(box.front());
    box.pop_front();
    return message;
  }

  std::mutex mutex;
  std::condition_variable news;
  std::string failure;
  std::map<std::tuple<int, int, int>, int> groups;  // (parent, split, color) -> group
  std::map<CountedCall, Counted> counted;
  std::vector<std::vector<CountedWorld::Memory>> memory;

 private:
  std::map<Channel, std::deque<Message>> mail_;
};

namespace {

using Traffic = std::shared_ptr<CountedTraffic>;

/// A rank's place in a group, and how it talks to the others there.
struct Seat {
  Traffic traffic;
  int group = 0;
  std::vector<int> ranks;  ///< of the world
  int me = 0;
  double seconds = 120;

  int size() const { return static_cast<int>(ranks.size()); }
  void send(int to, Message message) const {
    traffic->send({group, ranks[static_cast<size_t>(me)], ranks[static_cast<size_t>(to)]},
                  std::move(message));
  }
  Message receive(int from) const {
    return traffic->receive(
        {group, ranks[static_cast<size_t>(from)], ranks[static_cast<size_t>(me)]}, seconds);
  }
  /// Everyone gets what `part` gives for it; what everyone sent, in order of rank. The bytes that
  /// went to others are added to `sent`.
  template <class Part>
  std::vector<Message> trade(const Part& part, int64_t& sent) const {
    std::vector<Message> got(ranks.size());
    for (int q = 0; q < size(); ++q) {
      Message message = part(q);
      if (q == me) {
        got[static_cast<size_t>(q)] = std::move(message);
      } else {
        sent += std::ssize(message);
        send(q, std::move(message));
      }
    }
    for (int q = 0; q < size(); ++q) {
      if (q != me) got[static_cast<size_t>(q)] = receive(q);
    }
    return got;
  }
};

/// The elements of `in` that go to rank q, or of `out` that come from it, as visit(element) in the
/// order in which they travel.
template <class Visit>
void each_element(const Collective& c, int ranks, int q, bool outgoing, const Visit& visit) {
  const auto runs = [&](const std::vector<Run>& list) {
    for (const Run& run : list) {
      for (int64_t i = 0; i < run.length; ++i) visit(run.offset + i);
    }
  };
  switch (c.kind) {
    case CollectiveKind::reduce_scatter:
      for (int64_t o = 0; o < c.outer; ++o) {
        for (int64_t i = 0; i < c.inner; ++i) visit((o * ranks + q) * c.inner + i);
      }
      return;
    case CollectiveKind::all_gather:
      for (int64_t o = 0; o < c.outer; ++o) {
        for (int64_t i = 0; i < c.inner; ++i)
          visit(outgoing ? o * c.inner + i : (o * ranks + q) * c.inner + i);
      }
      return;
    case CollectiveKind::all_to_all: {
      // One of the two dims has the factor of the ranks: the first on the way out if split_first.
      const bool at_first = outgoing == c.split_first;
      const int64_t first = c.split_first ? c.s : c.c, second = c.split_first ? c.c : c.s;
      for (int64_t a = 0; a < c.pre; ++a) {
        for (int64_t i = 0; i < first; ++i) {
          for (int64_t b = 0; b < c.mid; ++b) {
            for (int64_t j = 0; j < second; ++j) {
              for (int64_t z = 0; z < c.post; ++z) {
                const int64_t row = at_first ? (a * ranks + q) * first + i : a * first + i;
                const int64_t place = (row * c.mid + b) * (at_first ? 1 : ranks);
                visit(((place + (at_first ? 0 : q)) * second + j) * c.post + z);
              }
            }
          }
        }
      }
      return;
    }
    case CollectiveKind::exchange:
      return runs(outgoing ? c.send[static_cast<size_t>(q)] : c.recv[static_cast<size_t>(q)]);
    default: {  // all_reduce: share q of the elements
      for (int64_t i = c.count * q / ranks; i < c.count * (q + 1) / ranks; ++i) visit(i);
      return;
    }
  }
}

Message packed_for(const Collective& c, const void* memory, int ranks, int q) {
  const auto bytes = static_cast<int64_t>(size_of(c.dtype));
  Message message;
  each_element(c, ranks, q, true, [&](int64_t element) {
    const char* const at = static_cast<const char*>(memory) + element * bytes;
    message.insert(message.end(), at, at + bytes);
  });
  return message;
}

void unpack_from(const Collective& c, const Message& message, int ranks, int q) {
  const auto bytes = static_cast<size_t>(size_of(c.dtype));
  size_t at = 0;
  each_element(c, ranks, q, false, [&](int64_t element) {
    TESSERA_CHECK(at + bytes <= message.size(), "[{}] a message of {} bytes is too short",
                  to_string(c.kind), message.size());
    std::memcpy(static_cast<char*>(c.out) + static_cast<size_t>(element) * bytes,
                message.data() + at, bytes);
    at += bytes;
  });
  TESSERA_CHECK(at == message.size(), "[{}] a message of {} bytes where {} are wanted",
                to_string(c.kind), message.size(), at);
}

/// What all ranks have of this rank's share, combined.
Message combined(const Collective& c, const std::vector<Message>& parts) {
  std::vector<const void*> inputs;
  for (const Message& part : parts) inputs.push_back(part.data());
  Message result(parts[0].size());
  local_reduce(inputs.data(), static_cast<int>(parts.size()), result.data(),
               std::ssize(result) / static_cast<int64_t>(size_of(c.dtype)), c.dtype, c.combiner);
  return result;
}

/// The rows of a block that are counted, and a block of them with zeros behind.
Message rows_for(const Collective& c, int q) {
  const auto bytes = static_cast<int64_t>(size_of(c.dtype));
  const char* const block = static_cast<const char*>(c.in) + q * c.post * bytes;
  return Message(block, block + c.counts[q] * c.row * bytes);
}
void keep_rows(const Collective& c, const Message& rows, int q) {
  const auto bytes = static_cast<size_t>(c.post) * static_cast<size_t>(size_of(c.dtype));
  TESSERA_CHECK(rows.size() <= bytes, "{} bytes of rows in a block of {}", rows.size(), bytes);
  char* const block = static_cast<char*>(c.out) + static_cast<size_t>(q) * bytes;
  std::fill(std::copy(rows.begin(), rows.end(), block), block + bytes, '\0');
}

/// Runs one collective; the bytes that this rank sends to others are added, by phase.
void perform(const Seat& seat, const Collective& c, int64_t (&sent)[2]) {
  const int ranks = seat.size();
  const auto mine = [&](int q) { return packed_for(c, c.in, ranks, q); };
  const auto keep = [&](const std::vector<Message>& got) {
    for (int q = 0; q < ranks; ++q) unpack_from(c, got[static_cast<size_t>(q)], ranks, q);
  };
  switch (c.kind) {
    case CollectiveKind::barrier:
      seat.trade([](int) { return Message(); }, sent[0]);
      return;
    case CollectiveKind::broadcast: {
      const auto bytes = c.count * static_cast<int64_t>(size_of(c.dtype));
      char* const data = static_cast<char*>(c.out);
      const auto got = seat.trade(
          [&](int q) {
            return seat.me == c.root && q != c.root ? Message(data, data + bytes) : Message();
          },
          sent[0]);
      if (seat.me != c.root && bytes > 0)
        std::memcpy(data, got[static_cast<size_t>(c.root)].data(), static_cast<size_t>(bytes));
      return;
    }
    case CollectiveKind::reduce_scatter: {
      const Message sum = combined(c, seat.trade(mine, sent[0]));
      if (!sum.empty()) std::memcpy(c.out, sum.data(), sum.size());
      return;
    }
    case CollectiveKind::all_reduce: {
      const Message sum = combined(c, seat.trade(mine, sent[0]));
      keep(seat.trade([&](int) { return sum; }, sent[1]));
      return;
    }
    default:
      if (c.counts == nullptr) return keep(seat.trade(mine, sent[0]));
      const auto got = seat.trade([&](int q) { return rows_for(c, q); }, sent[0]);
      for (int q = 0; q < ranks; ++q) keep_rows(c, got[static_cast<size_t>(q)], q);
  }
}

class CountedOperation final : public Operation {
 public:
  CountedOperation(Seat seat, std::vector<Collective> collectives)
      : seat_(std::move(seat)), collectives_(std::move(collectives)) {}

  void start() override {
    TESSERA_CHECK(!started_, "started twice without a wait");
    started_ = true;
  }
  void wait() override {
    TESSERA_CHECK(started_, "waited for without a start");
    started_ = false;
    for (size_t m = 0; m < collectives_.size(); ++m) {
      const Collective& c = collectives_[m];
      int64_t sent[2] = {};
      perform(seat_, c, sent);
      if (c.site.number < 0) continue;  // ranks agree on something: no step of the Program
      std::lock_guard lock(seat_.traffic->mutex);
      Counted& counted = seat_.traffic->counted[{c.kind, c.site.text, c.site.number, m}];
      counted.bytes[0] += sent[0];
      counted.bytes[1] += sent[1];
      if (seat_.ranks[static_cast<size_t>(seat_.me)] != 0) continue;
      ++counted.runs;
      counted.group = seat_.ranks;
    }
    // Nobody may touch its operands before all have what they want of them: they have, as messages.
  }

 private:
  Seat seat_;
  std::vector<Collective> collectives_;
  bool started_ = false;
};

class CountedCommunicator final : public Communicator {
 public:
  explicit CountedCommunicator(Seat seat)
      : Communicator(seat.me, seat.size()), seat_(std::move(seat)) {}

  const char* backend() const override { return "counted"; }
  void fail(const std::string& message) override {
    std::lock_guard lock(seat_.traffic->mutex);
    if (seat_.traffic->failure.empty()) seat_.traffic->failure = message;
    seat_.traffic->news.notify_all();
  }

 protected:
  std::unique_ptr<Operation> do_prepare(const std::vector<Collective>& collectives) override {
    return std::make_unique<CountedOperation>(seat_, collectives);
  }
  std::unique_ptr<Communicator> do_split(int color, int key) override {
    struct Wish {
      int color, key, place;
    } const mine{color, key, seat_.me};
    int64_t ignored = 0;
    const auto got = seat_.trade(
        [&](int) {
          Message message(sizeof(Wish));
          std::memcpy(message.data(), &mine, sizeof(Wish));
          return message;
        },
        ignored);
    std::map<std::pair<int, int>, int> members;  // (key, place) -> rank of the world
    for (const Message& message : got) {
      Wish wish{};
      std::memcpy(&wish, message.data(), sizeof(Wish));
      if (wish.color == color)
        members[{wish.key, wish.place}] = seat_.ranks[static_cast<size_t>(wish.place)];
    }
    Seat seat = seat_;
    seat.ranks.clear();
    for (const auto& [order, rank] : members) {
      if (order == std::pair{key, seat_.me}) seat.me = seat.size();
      seat.ranks.push_back(rank);
    }
    std::lock_guard lock(seat_.traffic->mutex);
    auto& groups = seat_.traffic->groups;
    const int next = static_cast<int>(groups.size()) + 1;
    seat.group = groups.emplace(std::tuple{seat_.group, splits_++, color}, next).first->second;
    return std::make_unique<CountedCommunicator>(std::move(seat));
  }
  void* do_allocate(int64_t bytes) override {
    constexpr int64_t kAlignment = 64;
    auto block = std::make_unique<char[]>(static_cast<size_t>(bytes + kAlignment));
    void* memory = block.get();
    auto space = static_cast<size_t>(bytes + kAlignment);
    memory = std::align(kAlignment, static_cast<size_t>(bytes), memory, space);
    blocks_.push_back(std::move(block));
    std::lock_guard lock(seat_.traffic->mutex);
    seat_.traffic->memory[static_cast<size_t>(seat_.ranks[static_cast<size_t>(seat_.me)])]
        .push_back({static_cast<unsigned char*>(memory), bytes});
    return memory;
  }

 private:
  Seat seat_;
  int splits_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

}  // namespace

CountedWorld::CountedWorld(int ranks) : traffic_(std::make_shared<CountedTraffic>(ranks)) {}
CountedWorld::~CountedWorld() = default;

std::vector<std::unique_ptr<Communicator>> CountedWorld::communicators() {
  Seat seat;
  seat.traffic = traffic_;
  for (size_t r = 0; r < traffic_->memory.size(); ++r) seat.ranks.push_back(static_cast<int>(r));
  std::vector<std::unique_ptr<Communicator>> all;
  for (seat.me = 0; seat.me < seat.size(); ++seat.me)
    all.push_back(std::make_unique<CountedCommunicator>(seat));
  return all;
}

std::map<CountedCall, Counted> CountedWorld::counted() const {
  std::lock_guard lock(traffic_->mutex);
  return traffic_->counted;
}

void CountedWorld::clear() {
  std::lock_guard lock(traffic_->mutex);
  traffic_->counted.clear();
}

std::vector<CountedWorld::Memory> CountedWorld::memory(int rank) const {
  std::lock_guard lock(traffic_->mutex);
  return traffic_->memory[static_cast<size_t>(rank)];
}

}  // namespace tessera::test
