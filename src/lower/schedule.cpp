// The compute steps keep their order. An exchange (collectives that share a number) starts at a
// slot and is awaited at a slot, slot k being the moment before compute step k. First every start
// moves up as far as its operands allow and computing is to hide it, then, from the last exchange
// to the first, every wait moves down to the first use of a result; both only while no moment gets
// more bytes than the fullest moment had before. The trips of a loop may use what the function
// around it has at its fullest moment, once they are arranged within what they had. What is
// computed before the stores stays awaited before them. Compute steps that are helpers of an
// exchange (helpers.h) go where it goes.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/fail.h"
#include "lower/ahead.h"
#include "lower/exchange.h"
#include "lower/helpers.h"
#include "lower/lives.h"
#include "lower/moments.h"
#include "lower/passes.h"

namespace tessera {

namespace {

constexpr double kHurry = 8;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

class Scheduler {
 public:
  /// room: bytes that may be alive at a moment.
  Scheduler(Program& program, Function& function, int64_t room)
      : program_(program),
        function_(function),
        touches_(program.buffers.size()),
        using_(program.buffers.size()),
        lives_(program.buffers.size()),
        outer_(function.outer.begin(), function.outer.end()),
        helpers_(find_helpers(program, function)),
        room_(room) {
    take_apart();
    find_lives();
    find_starts();
  }

  void run() {
    move_all();
    if (function_.overlaps) overlap_trips(kUnlimited);
    if (room_ > limit_) {
      limit_ = room_;
      move_all();
      if (function_.overlaps) overlap_trips(room_);
    }
    put_together();
  }

 private:
  struct Touch {
    int step;  ///< compute step
    bool writes;
  };

  void take_apart() {
    std::map<int, int> of_number;
    std::map<int, Step> feeders;  // by the buffer that they make
    for (size_t s = 0; s < function_.steps.size(); ++s) {
      Step& step = function_.steps[s];
      const int slot = static_cast<int>(compute_.size());
      if (static_cast<int>(s) == function_.first_update) stores_ = slot;
      if (step.kind == StepKind::compute && step.out.size() == 1 &&
          helpers_.fed.contains(step.out[0].buffer)) {
        feeders.emplace(step.out[0].buffer, std::move(step));
        continue;
      }
      if (step.kind == StepKind::compute && step.in.size() == 1 &&
          helpers_.followed.contains(step.in[0].buffer)) {
        const int number = using_[step.in[0].buffer].back();
        using_[step.out[0].buffer].push_back(number);
        exchanges_[number].followers.push_back(std::move(step));
        continue;
      }
      if (step.kind == StepKind::compute) {
        for (const View& v : step.in) touches_[v.buffer].push_back({slot, false});
        for (const View& v : step.out) touches_[v.buffer].push_back({slot, true});
        compute_.push_back(std::move(step));
        continue;
      }
      auto [it, is_new] = of_number.emplace(step.number, static_cast<int>(exchanges_.size()));
      if (is_new) exchanges_.push_back({{}, {}, {}, {}, slot, slot});
      Exchange& exchange = exchanges_[it->second];
      exchange.end = slot;
      if (step.kind == StepKind::wait) {
        exchange.wait = std::move(step);
        continue;
      }
      if (auto feeder = feeders.find(step.in[0].buffer); feeder != feeders.end())
        exchange.feeders.push_back(std::move(feeder->second));
      using_[step.in[0].buffer].push_back(it->second);
      if (step.out[0].buffer != step.in[0].buffer) using_[step.out[0].buffer].push_back(it->second);
      exchange.members.push_back(std::move(step));
    }
    if (function_.first_update == static_cast<int>(function_.steps.size()))
      stores_ = static_cast<int>(compute_.size());
    for (const Exchange& e : exchanges_)
      check(e.end <= stores_, "exchange {} takes part in the stores", e.wait.number);
  }

  bool is_counted(int buffer) const {
    return buffer >= 0 && program_.buffers[buffer].arena == ArenaKind::transient &&
           !outer_.count(buffer);
  }

  void move_all() {
    for (size_t e = 0; e < exchanges_.size(); ++e) hoist(static_cast<int>(e));
    for (size_t e = exchanges_.size(); e-- > 0;) sink(static_cast<int>(e));
  }

  void find_lives() {
    auto live = [&](int buffer, int first, int last) {
      if (!is_counted(buffer)) return;
      Life& life = lives_[buffer];
      life.first = life.first < 0 ? first : std::min(life.first, first);
      life.last = std::max(life.last, last);
    };
    for (size_t b = 0; b < touches_.size(); ++b) {
      if (!touches_[b].empty())
        live(static_cast<int>(b), 2 * touches_[b].front().step + 1,
             2 * touches_[b].back().step + 1);
    }
    for (const Exchange& e : exchanges_) {
      for (const Step& step : e.members) {
        live(step.in[0].buffer, 2 * e.start, 2 * e.end);
        live(step.out[0].buffer, 2 * e.start, 2 * e.end);
      }
      for (const Step& step : e.followers) live(step.out[0].buffer, 2 * e.end, 2 * e.end);
    }
    const int end = 2 * static_cast<int>(compute_.size());
    for (int port : function_.outputs) {
      const int buffer = program_.ports[port].view.buffer;
      if (lives_[buffer].first >= 0) live(buffer, end, end);
    }
    std::vector<std::pair<Life, int64_t>> all;
    for (size_t b = 0; b < lives_.size(); ++b) {
      if (lives_[b].first >= 0) all.emplace_back(lives_[b], program_.buffers[b].bytes);
    }
    moments_ = Moments(compute_.size() + 1, all);
    for (int k = 0; k < static_cast<int>(compute_.size()); ++k) {
      for (const Function& body : compute_[k].body)
        moments_.add(2 * k + 1, 2 * k + 1, most_alive(program_, body));
    }
    limit_ = moments_.most();
  }

  void find_starts() {
    for (const Step& step : compute_) work_.push_back(work_.back() + work_of(step));
    std::vector<Sent> sent;
    for (const Exchange& e : exchanges_) {
      sent.push_back({e.members[0].axes, 0, work_[e.end]});
      for (const Step& step : e.members) sent.back().bytes += static_cast<double>(step.bytes);
    }
    starts_ = latest_starts(sent, work_.back());
    hurried_ = latest_starts(sent, work_.back() / kHurry);
  }

  /// The counted operands and results of an exchange, each once.
  std::vector<int> buffers_of(const Exchange& e) const {
    std::vector<int> buffers;
    for (const Step& step : e.members) {
      for (int buffer : {step.in[0].buffer, step.out[0].buffer}) {
        if (is_counted(buffer)) buffers.push_back(buffer);
      }
    }
    std::sort(buffers.begin(), buffers.end());
    buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
    return buffers;
  }

  void hoist(int number) {
    Exchange& e = exchanges_[number];
    int earliest = 0;
    auto after = [&](int buffer, bool only_writes) {
      for (const Touch& t : touches_[buffer]) {
        if (t.step < e.start && (t.writes || !only_writes))
          earliest = std::max(earliest, t.step + 1);
      }
      for (int other : using_[buffer]) {
        if (other < number && (!only_writes || exchanges_[other].writes(buffer)))
          earliest = std::max(earliest, exchanges_[other].end);
      }
    };
    for (const Step& step : e.members) {
      after(step.in[0].buffer, true);
      after(step.out[0].buffer, false);
    }
    const auto enough = std::upper_bound(work_.begin(), work_.begin() + e.end + 1, starts_[number]);
    earliest = std::max(earliest, static_cast<int>(enough - work_.begin()) - 1);
    const std::vector<int> buffers = buffers_of(e);
    std::vector<std::pair<int, int64_t>> ends;
    for (int b : buffers) ends.emplace_back(lives_[b].first, program_.buffers[b].bytes);
    if (earliest < e.start) e.start = moments_.go(e.start, earliest, std::move(ends), limit_);
    for (int b : buffers) lives_[b].first = std::min(lives_[b].first, 2 * e.start);
  }

  void sink(int number) {
    Exchange& e = exchanges_[number];
    int latest = stores_;
    auto before = [&](int buffer, bool only_writes) {
      for (const Touch& t : touches_[buffer]) {
        if (t.step >= e.end && (t.writes || !only_writes)) latest = std::min(latest, t.step);
      }
      for (int other : using_[buffer]) {
        if (other > number && (!only_writes || exchanges_[other].writes(buffer)))
          latest = std::min(latest, exchanges_[other].start);
      }
    };
    for (const Step& step : e.members) {
      before(step.in[0].buffer, true);
      before(step.out[0].buffer, false);
    }
    for (const Step& step : e.followers) before(step.out[0].buffer, false);
    const std::vector<int> buffers = buffers_of(e);
    std::vector<std::pair<int, int64_t>> ends;
    for (int b : buffers) ends.emplace_back(lives_[b].last, program_.buffers[b].bytes);
    if (latest > e.end) e.end = moments_.go(e.end, latest, std::move(ends), limit_);
    for (int b : buffers) lives_[b].last = std::max(lives_[b].last, 2 * e.end);
    give_way(number);
  }

  /// An exchange of what another one brings leaves that one time: both get half of what there is;
  /// at the end of a trip the second has the next one.
  void give_way(int number) {
    Exchange& e = exchanges_[number];
    int feeder = -1;  // the last one
    for (const Step& step : e.members) {
      for (const int other : using_[step.in[0].buffer]) {
        if (other < number && exchanges_[other].writes(step.in[0].buffer))
          feeder = std::max(feeder, other);
      }
    }
    if (feeder < 0) return;
    const int half = (exchanges_[feeder].start + e.end + 1) / 2;
    const int start = function_.overlaps && e.end == stores_ ? e.end : half;
    if (start > e.start && e.end > e.start) begin_at(e, start);
  }

  void begin_at(Exchange& e, int start) {
    for (const Step& step : e.members) {
      const int out = step.out[0].buffer;
      if (!is_counted(out) || out == step.in[0].buffer || lives_[out].first != 2 * e.start)
        continue;
      moments_.add(2 * e.start, 2 * start - 1, -program_.buffers[out].bytes);
      lives_[out].first = 2 * start;
    }
    e.start = start;
  }

  // An exchange of a trip that only reads what no trip writes can start a trip early, one whose
  // result no trip reads can end a trip late, if that takes no more than `most` bytes: what it
  // shares with its own trip is there twice. Without a limit what is the same in every trip, as all
  // parameters are in one for a part of the batch, starts early only if its own trip would have too
  // little to compute even if exchanges were kHurry times as fast: else all would be there twice.
  void overlap_trips(int64_t most) {
    std::set<int> read, written;
    for (const Step& step : compute_) {
      for (const View& v : step.in) read.insert(v.buffer);
      for (const View& v : step.out) written.insert(v.buffer);
    }
    for (const Exchange& e : exchanges_) {
      for (const Step& step : e.members) {
        read.insert(step.in[0].buffer);
        written.insert(step.out[0].buffer);
      }
    }
    for (size_t number = 0; number < exchanges_.size(); ++number) {
      Exchange& e = exchanges_[number];
      if (e.early || e.late) continue;
      auto all = [&](auto&& holds) {
        return std::all_of(e.members.begin(), e.members.end(), [&](const Step& step) {
          return holds(step.in[0].buffer, step.out[0].buffer);
        });
      };
      const bool pays = most < kUnlimited || hurried_[number] < 0 || e.moves_slices();
      const bool early = e.start == 0 && pays && all([&](int in, int out) {
                           const bool is_there = outer_.count(in) && !written.count(in);
                           return (is_there || helpers_.fed.contains(in)) && is_counted(out);
                         });
      const bool late = !early && e.end == stores_ && all([&](int in, int out) {
        const bool leaves = outer_.count(out) && !read.count(out);
        const bool is_followed = helpers_.followed.contains(out) &&
                                 &exchanges_[using_[out].back()] == &e &&
                                 outer_.contains(e.followers.front().out[0].buffer);
        return (leaves || is_followed) && is_counted(in);
      });
      if (!early && !late) continue;
      std::set<int> twice;
      for (const Step& step : e.members) {
        const int in = step.in[0].buffer, out = step.out[0].buffer;
        if (late || helpers_.fed.contains(in)) twice.insert(in);
        if (early || helpers_.followed.contains(out)) twice.insert(out);
      }
      // Alive through the trip, and that twice.
      int64_t more = 0;
      for (const int b : twice)
        more += program_.buffers[b].alternates ? 0 : whole_room_of(program_.buffers[b]) * 2;
      if (more > most - moments_.most()) continue;
      moments_.add_to_all(more);
      for (const int b : twice) program_.buffers[b].alternates = true;
      e.early = early;
      e.late = late;
    }
  }

  void put_together() {
    const int count = static_cast<int>(compute_.size());
    std::vector<std::vector<int>> at(count + 1);
    for (size_t e = 0; e < exchanges_.size(); ++e) {
      at[exchanges_[e].start].push_back(static_cast<int>(e));
      if (exchanges_[e].end != exchanges_[e].start)
        at[exchanges_[e].end].push_back(static_cast<int>(e));
    }
    std::vector<Step> steps;
    for (int slot = 0; slot <= count; ++slot) {
      // In the order of the exchanges: one that needs the result of another comes after it.
      std::sort(at[slot].begin(), at[slot].end());
      auto start = [&](Exchange& e) {
        std::move(e.feeders.begin(), e.feeders.end(), std::back_inserter(steps));
        std::move(e.members.begin(), e.members.end(), std::back_inserter(steps));
      };
      auto await = [&](Exchange& e) {
        steps.push_back(std::move(e.wait));
        std::move(e.followers.begin(), e.followers.end(), std::back_inserter(steps));
      };
      for (int number : at[slot]) {
        if (exchanges_[number].early && slot == 0) start(exchanges_[number]);
      }
      if (slot == 0) function_.early = static_cast<int>(steps.size());
      for (int number : at[slot]) {
        Exchange& e = exchanges_[number];
        if (e.start == slot && !e.early) start(e);
        if (e.end == slot && !e.late) await(e);
      }
      for (int number : at[slot]) {
        Exchange& e = exchanges_[number];
        if (!e.late || e.end != slot) continue;
        function_.late += 1 + static_cast<int>(e.followers.size());
        await(e);
      }
      if (slot == stores_) function_.first_update = static_cast<int>(steps.size());
      if (slot < count) steps.push_back(std::move(compute_[slot]));
    }
    function_.steps = std::move(steps);
  }

  Program& program_;
  Function& function_;
  std::vector<Step> compute_;
  std::vector<Exchange> exchanges_;
  int stores_ = 0;  ///< the first compute step that stores
  // By buffer: the compute steps that touch it, the exchanges that do, its life.
  std::vector<std::vector<Touch>> touches_;
  std::vector<std::vector<int>> using_;
  std::vector<Life> lives_;  ///< in moments: 2k is slot k, 2k + 1 is compute step k
  std::set<int> outer_;      ///< buffers that are not the function's alone
  const Helpers helpers_;
  Moments moments_;
  std::vector<double> work_ = {0};  ///< before each compute step
  std::vector<double> starts_;      ///< of exchanges, in terms of work
  std::vector<double> hurried_;     ///< the same if exchanges were kHurry times as fast
  int64_t limit_ = 0;
  const int64_t room_;
};

}  // namespace

namespace {

void schedule(Program& program, Function& function, int64_t room) {
  const std::vector<int64_t> alive = bytes_alive(program, function);
  room = std::max(room, *std::max_element(alive.begin(), alive.end()));
  for (size_t s = 0; s < function.steps.size(); ++s) {
    for (Function& body : function.steps[s].body)
      schedule(program, body, room - alive[s] + most_alive(program, body));
  }
  Scheduler(program, function, room).run();
}

}  // namespace

void schedule(Program& program) {
  for (Function& f : program.functions) schedule(program, f, 0);
}

}  // namespace tessera
