// The compute steps keep their order. A bucket (collectives that share a number) starts at one slot
// and is awaited at another; slot k is the point before compute step k. First every start moves up,
// as far as its operands allow and until enough computing hides the bucket (start_deadlines.h).
// Then every wait moves down to the first use of a result, from the last bucket to the first.
// Neither may raise the peak of live bytes. A loop's body is scheduled within its own peak first;
// then it may use as many bytes as the surrounding function has left below its peak. Collectives
// that start before the stores are also awaited before them. Compute steps attached to a bucket
// (bucket_attachments.h) move with it. A bucket does not start right before one over the same axes
// that a step waits for.
#include "lower/passes/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/fail.h"
#include "lower/passes/bucket.h"
#include "lower/passes/bucket_attachments.h"
#include "lower/passes/live_bytes.h"
#include "lower/passes/liveness.h"
#include "lower/passes/start_deadlines.h"

namespace tessera {

namespace {

constexpr double kFastLinks = 8;   ///< see fast_deadlines_
constexpr double kUsualLinks = 4;  ///< see hidden_by_
constexpr double kMargin = 2;      ///< by which a collective may take longer than its price
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

class Scheduler {
 public:
  /// `room`: live bytes allowed at any point.
  Scheduler(Program& program, Function& function, const StepPrices& prices, int64_t room)
      : program_(program),
        function_(function),
        prices_(prices),
        touches_(program.buffers.size()),
        using_(program.buffers.size()),
        live_ranges_(program.buffers.size()),
        outer_(function.outer.begin(), function.outer.end()),
        attachments_(find_bucket_attachments(program, function)),
        room_(room) {
    take_apart();
    find_live_ranges();
    find_deadlines();
  }

  void run() {
    move_all();
    if (function_.overlaps) overlap_iterations(kUnlimited);
    if (room_ > limit_) {
      limit_ = room_;
      move_all();
      if (function_.overlaps) overlap_iterations(room_);
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
    std::map<int, Step> feeders;  // by the buffer that they write
    for (size_t s = 0; s < function_.steps.size(); ++s) {
      Step& step = function_.steps[s];
      const int slot = static_cast<int>(compute_.size());
      if (static_cast<int>(s) == function_.first_update) stores_ = slot;
      if (step.kind == StepKind::compute && step.out.size() == 1 &&
          attachments_.fed.contains(step.out[0].buffer)) {
        feeders.emplace(step.out[0].buffer, std::move(step));
        continue;
      }
      if (step.kind == StepKind::compute && step.in.size() == 1 &&
          attachments_.followed.contains(step.in[0].buffer)) {
        const int number = using_[step.in[0].buffer].back();
        using_[step.out[0].buffer].push_back(number);
        buckets_[number].followers.push_back(std::move(step));
        continue;
      }
      if (step.kind == StepKind::compute) {
        for (const View& v : step.in) touches_[v.buffer].push_back({slot, false});
        for (const View& v : step.out) touches_[v.buffer].push_back({slot, true});
        compute_.push_back(std::move(step));
        continue;
      }
      auto [it, is_new] = of_number.emplace(step.number, static_cast<int>(buckets_.size()));
      if (is_new) buckets_.push_back({{}, {}, {}, {}, slot, slot});
      Bucket& bucket = buckets_[it->second];
      bucket.end = slot;
      if (step.kind == StepKind::wait) {
        bucket.wait = std::move(step);
        continue;
      }
      if (auto feeder = feeders.find(step.in[0].buffer); feeder != feeders.end())
        bucket.feeders.push_back(std::move(feeder->second));
      for (const View& v : step.in) using_[v.buffer].push_back(it->second);
      if (step.out[0].buffer != step.in[0].buffer) using_[step.out[0].buffer].push_back(it->second);
      bucket.members.push_back(std::move(step));
    }
    if (function_.first_update == static_cast<int>(function_.steps.size()))
      stores_ = static_cast<int>(compute_.size());
    for (const Bucket& e : buckets_)
      TESSERA_CHECK(e.end <= stores_, "bucket {} takes part in the stores", e.wait.number);
  }

  bool is_counted(int buffer) const {
    return buffer >= 0 && program_.buffers[buffer].arena == ArenaKind::transient &&
           !outer_.count(buffer);
  }

  void move_all() {
    for (size_t e = 0; e < buckets_.size(); ++e) hoist(static_cast<int>(e));
    for (size_t e = buckets_.size(); e-- > 0;) sink(static_cast<int>(e));
  }

  void find_live_ranges() {
    auto live = [&](int buffer, int first, int last) {
      if (!is_counted(buffer)) return;
      LiveRange& range = live_ranges_[buffer];
      range.first = range.first < 0 ? first : std::min(range.first, first);
      range.last = std::max(range.last, last);
    };
    for (size_t b = 0; b < touches_.size(); ++b) {
      if (!touches_[b].empty())
        live(static_cast<int>(b), 2 * touches_[b].front().step + 1,
             2 * touches_[b].back().step + 1);
    }
    for (const Bucket& e : buckets_) {
      for (const Step& step : e.members) {
        for (const View& v : step.in) live(v.buffer, 2 * e.start, 2 * e.end);
        live(step.out[0].buffer, 2 * e.start, 2 * e.end);
      }
      for (const Step& step : e.followers) live(step.out[0].buffer, 2 * e.end, 2 * e.end);
    }
    const int end = 2 * static_cast<int>(compute_.size());
    for (int port : function_.outputs) {
      const int buffer = program_.ports[port].view.buffer;
      if (live_ranges_[buffer].first >= 0) live(buffer, end, end);
    }
    std::vector<std::pair<LiveRange, int64_t>> all;
    for (size_t b = 0; b < live_ranges_.size(); ++b) {
      if (live_ranges_[b].first >= 0) all.emplace_back(live_ranges_[b], program_.buffers[b].bytes);
    }
    live_bytes_ = LiveBytes(compute_.size() + 1, all);
    for (int k = 0; k < static_cast<int>(compute_.size()); ++k) {
      for (const Function& body : compute_[k].body)
        live_bytes_.add(2 * k + 1, 2 * k + 1, peak_live_bytes(program_, body));
    }
    limit_ = live_bytes_.peak();
  }

  void find_deadlines() {
    for (const Step& step : compute_)
      work_.push_back(work_.back() + (prices_.seconds ? seconds_of(step) : work_of(step)));
    std::vector<Sent> sent;
    for (const Bucket& e : buckets_) {
      sent.push_back({e.members[0].axes, 0, work_[e.end]});
      for (const Step& step : e.members) sent.back().bytes += static_cast<double>(step.bytes);
    }
    fast_deadlines_ = start_deadlines(sent, work_.back() / kFastLinks);
    hidden_by_.clear();
    if (!prices_.seconds) {
      deadlines_ = start_deadlines(sent, work_.back());
      std::map<std::vector<int>, double> bytes;  // by axes
      for (const Sent& s : sent) bytes[s.axes] += s.bytes;
      for (const Sent& s : sent)
        hidden_by_.push_back(work_.back() * s.bytes / std::max(bytes[s.axes], 1.0) / kUsualLinks);
      return;
    }
    for (size_t e = 0; e < buckets_.size(); ++e) {
      hidden_by_.push_back(prices_.transfer * prices_.of_bucket(buckets_[e].members));
      sent[e].takes = kMargin * hidden_by_[e];
    }
    deadlines_ = latest_starts(sent);
  }

  double seconds_of(const Step& step) const {
    if (step.body.empty()) return prices_.seconds(step);
    double seconds = 0;
    for (const Function& body : step.body) {
      for (const Step& inner : body.steps) {
        if (inner.kind == StepKind::compute)
          seconds += static_cast<double>(step.loop.iterations) * seconds_of(inner);
      }
    }
    return seconds;
  }

  /// The transient buffers of a bucket's operands and results, each once.
  std::vector<int> buffers_of(const Bucket& e) const {
    std::vector<int> buffers;
    for (const Step& step : e.members) {
      for (const View& v : step.in) {
        if (is_counted(v.buffer)) buffers.push_back(v.buffer);
      }
      if (is_counted(step.out[0].buffer)) buffers.push_back(step.out[0].buffer);
    }
    std::sort(buffers.begin(), buffers.end());
    buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
    return buffers;
  }

  void hoist(int number) {
    Bucket& e = buckets_[number];
    int earliest = 0;
    auto after = [&](int buffer, bool only_writes) {
      for (const Touch& t : touches_[buffer]) {
        if (t.step < e.start && (t.writes || !only_writes))
          earliest = std::max(earliest, t.step + 1);
      }
      for (int other : using_[buffer]) {
        if (other < number && (!only_writes || buckets_[other].writes(buffer)))
          earliest = std::max(earliest, buckets_[other].end);
      }
    };
    for (const Step& step : e.members) {
      for (const View& v : step.in) after(v.buffer, true);
      after(step.out[0].buffer, false);
    }
    const auto enough =
        std::upper_bound(work_.begin(), work_.begin() + e.end + 1, deadlines_[number]);
    earliest = std::max(earliest, static_cast<int>(enough - work_.begin()) - 1);
    earliest = std::min(e.start, behind_urgent(number, earliest));
    const std::vector<int> buffers = buffers_of(e);
    std::vector<std::pair<int, int64_t>> ends;
    for (int b : buffers) ends.emplace_back(live_ranges_[b].first, program_.buffers[b].bytes);
    if (earliest < e.start)
      e.start = live_bytes_.extend(e.start, earliest, std::move(ends), limit_);
    for (int b : buffers) live_ranges_[b].first = std::min(live_ranges_[b].first, 2 * e.start);
  }

  /// What is sent over the same axes goes in the order of its starts. So a bucket must not start
  /// right before one whose result a step waits for: there must be work in between that hides it.
  int behind_urgent(int number, int earliest) const {
    if (function_.overlaps) return earliest;
    for (int other = 0; other < number; ++other) {
      const Bucket& u = buckets_[other];
      if (u.start <= earliest || u.start > buckets_[number].start ||
          u.members[0].axes != buckets_[number].members[0].axes)
        continue;
      const bool urgent = work_[latest_end(other)] - work_[u.start] < hidden_by_[other];
      if (urgent && work_[u.start] - work_[earliest] < hidden_by_[number]) earliest = u.start;
    }
    return earliest;
  }

  /// The slot of the first use of a result.
  int latest_end(int number) const {
    const Bucket& e = buckets_[number];
    int latest = stores_;
    auto before = [&](int buffer, bool only_writes) {
      for (const Touch& t : touches_[buffer]) {
        if (t.step >= e.end && (t.writes || !only_writes)) latest = std::min(latest, t.step);
      }
      for (int other : using_[buffer]) {
        if (other > number && (!only_writes || buckets_[other].writes(buffer)))
          latest = std::min(latest, buckets_[other].start);
      }
    };
    for (const Step& step : e.members) {
      for (const View& v : step.in) before(v.buffer, true);
      before(step.out[0].buffer, false);
    }
    for (const Step& step : e.followers) before(step.out[0].buffer, false);
    return latest;
  }

  void sink(int number) {
    Bucket& e = buckets_[number];
    const int latest = latest_end(number);
    const std::vector<int> buffers = buffers_of(e);
    std::vector<std::pair<int, int64_t>> ends;
    for (int b : buffers) ends.emplace_back(live_ranges_[b].last, program_.buffers[b].bytes);
    if (latest > e.end) e.end = live_bytes_.extend(e.end, latest, std::move(ends), limit_);
    for (int b : buffers) live_ranges_[b].last = std::max(live_ranges_[b].last, 2 * e.end);
    share_time_with_feeder(number);
  }

  /// If the bucket communicates the result of another bucket, gives each half of the time of both.
  /// At the end of an iteration the second bucket has the next iteration instead.
  void share_time_with_feeder(int number) {
    Bucket& e = buckets_[number];
    int feeder = -1;  // the last one that feeds it
    for (const Step& step : e.members) {
      for (const int other : using_[step.in[0].buffer]) {
        if (other < number && buckets_[other].writes(step.in[0].buffer))
          feeder = std::max(feeder, other);
      }
    }
    if (feeder < 0) return;
    const int half = (buckets_[feeder].start + e.end + 1) / 2;
    const int start = function_.overlaps && e.end == stores_ ? e.end : half;
    if (start > e.start && e.end > e.start) begin_at(e, start);
  }

  void begin_at(Bucket& e, int start) {
    for (const Step& step : e.members) {
      const int out = step.out[0].buffer;
      if (!is_counted(out) || out == step.in[0].buffer || live_ranges_[out].first != 2 * e.start)
        continue;
      live_bytes_.add(2 * e.start, 2 * start - 1, -program_.buffers[out].bytes);
      live_ranges_[out].first = 2 * start;
    }
    e.start = start;
  }

  // Prefetch across iterations. A bucket whose operands no iteration writes can start one iteration
  // early; one whose result no iteration reads can be awaited one iteration late. Its buffers are
  // then double-buffered, with at most `most` live bytes. Without a limit, a bucket that is the
  // same in every iteration (all parameters, in a loop over microbatches) starts early only if its
  // own iteration is too short to hide it even with links kFastLinks times as fast; otherwise all
  // parameters would exist twice.
  void overlap_iterations(int64_t most) {
    std::set<int> read, written;
    for (const Step& step : compute_) {
      for (const View& v : step.in) read.insert(v.buffer);
      for (const View& v : step.out) written.insert(v.buffer);
    }
    for (const Bucket& e : buckets_) {
      for (const Step& step : e.members) {
        for (const View& v : step.in) read.insert(v.buffer);
        written.insert(step.out[0].buffer);
      }
    }
    for (size_t number = 0; number < buckets_.size(); ++number) {
      Bucket& e = buckets_[number];
      if (e.early || e.late) continue;
      auto all = [&](auto&& holds) {
        return std::all_of(e.members.begin(), e.members.end(), [&](const Step& step) {
          return step.in.size() == 1 && holds(step.in[0].buffer, step.out[0].buffer);
        });
      };
      const bool pays = most < kUnlimited || fast_deadlines_[number] < 0 || e.moves_slices();
      const bool early = e.start == 0 && pays && all([&](int in, int out) {
                           const bool is_there = outer_.count(in) && !written.count(in);
                           return (is_there || attachments_.fed.contains(in)) && is_counted(out);
                         });
      const bool late = !early && e.end == stores_ && all([&](int in, int out) {
        const bool leaves = outer_.count(out) && !read.count(out);
        const bool is_followed = attachments_.followed.contains(out) &&
                                 &buckets_[using_[out].back()] == &e &&
                                 outer_.contains(e.followers.front().out[0].buffer);
        return (leaves || is_followed) && is_counted(in);
      });
      if (!early && !late) continue;
      std::set<int> twice;
      for (const Step& step : e.members) {
        const int in = step.in[0].buffer, out = step.out[0].buffer;
        if (late || attachments_.fed.contains(in)) twice.insert(in);
        if (early || attachments_.followed.contains(out)) twice.insert(out);
      }
      // They are alive throughout the iteration, twice.
      int64_t more = 0;
      for (const int b : twice)
        more += program_.buffers[b].alternates ? 0 : whole_room_of(program_.buffers[b]) * 2;
      if (more > most - live_bytes_.peak()) continue;
      live_bytes_.add_to_all(more);
      for (const int b : twice) program_.buffers[b].alternates = true;
      e.early = early;
      e.late = late;
    }
  }

  void put_together() {
    const int count = static_cast<int>(compute_.size());
    std::vector<std::vector<int>> at(count + 1);
    for (size_t e = 0; e < buckets_.size(); ++e) {
      at[buckets_[e].start].push_back(static_cast<int>(e));
      if (buckets_[e].end != buckets_[e].start) at[buckets_[e].end].push_back(static_cast<int>(e));
    }
    std::vector<Step> steps;
    for (int slot = 0; slot <= count; ++slot) {
      // In bucket order, because one may need the result of another.
      std::sort(at[slot].begin(), at[slot].end());
      auto start = [&](Bucket& e) {
        std::move(e.feeders.begin(), e.feeders.end(), std::back_inserter(steps));
        std::move(e.members.begin(), e.members.end(), std::back_inserter(steps));
      };
      auto await = [&](Bucket& e) {
        steps.push_back(std::move(e.wait));
        std::move(e.followers.begin(), e.followers.end(), std::back_inserter(steps));
      };
      for (int number : at[slot]) {
        if (buckets_[number].early && slot == 0) start(buckets_[number]);
      }
      if (slot == 0) function_.early = static_cast<int>(steps.size());
      for (int number : at[slot]) {
        Bucket& e = buckets_[number];
        if (e.start == slot && !e.early) start(e);
        if (e.end == slot && !e.late) await(e);
      }
      for (int number : at[slot]) {
        Bucket& e = buckets_[number];
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
  const StepPrices& prices_;
  std::vector<Step> compute_;
  std::vector<Bucket> buckets_;
  int stores_ = 0;  ///< slot of the first compute step that stores
  // By buffer: the compute steps and the buckets that touch it, and its live range.
  std::vector<std::vector<Touch>> touches_;
  std::vector<std::vector<int>> using_;
  std::vector<LiveRange> live_ranges_;  ///< in points: 2k is slot k, 2k + 1 is compute step k
  std::set<int> outer_;                 ///< buffers of the function around a loop's body
  const BucketAttachments attachments_;
  LiveBytes live_bytes_;
  /// Work before each compute step: seconds, or operations if there is no machine.
  std::vector<double> work_ = {0};
  std::vector<double> deadlines_;       ///< of the starts of buckets, in work
  std::vector<double> fast_deadlines_;  ///< the same with links kFastLinks times as fast
  /// Work that takes as long as a bucket. Without a machine: if links are kUsualLinks times as fast
  /// as those with which all of the function's work hides all that is sent over the axes.
  std::vector<double> hidden_by_;
  int64_t limit_ = 0;
  const int64_t room_;
};

}  // namespace

namespace {

void schedule(Program& program, Function& function, const StepPrices& prices, int64_t room) {
  const std::vector<int64_t> alive = live_bytes(program, function);
  room = std::max(room, *std::max_element(alive.begin(), alive.end()));
  for (size_t s = 0; s < function.steps.size(); ++s) {
    for (Function& body : function.steps[s].body)
      schedule(program, body, prices, room - alive[s] + peak_live_bytes(program, body));
  }
  Scheduler(program, function, prices, room).run();
}

}  // namespace

void schedule(Program& program, const StepPrices& prices) {
  for (Function& f : program.functions) schedule(program, f, prices, 0);
}

}  // namespace tessera
