// The collectives of a function are visited in order. A collective joins the last bucket of its
// kind and axes if the bucket stays small enough and one of these holds:
//   No step has read a result of the bucket yet. Then the bucket moves down to this collective.
//   Example: gradients, which are read at the end.
//   The operand of the collective was ready where the bucket stands. Then it joins the bucket
//   there, earlier than written. Example: parameters that are gathered.
// A step that only casts what one collective sends, or what it received, moves with the bucket
// (bucket_attachments.h), so it keeps nothing apart. What gathers parameters and what sends other
// things have buckets of their own: else each activation that is sent would close a bucket. So may
// results that a step needs at once: they do not wait for gradients.
// The size limit is a share of all bytes of that kind, because one bucket of everything could not
// overlap with anything. S bytes take T seconds to send, and starting a bucket takes t. With
// buckets of s bytes the cost is (S / s) t for the starts plus (s / S) T for the last bucket, which
// cannot be hidden. It is least for s = S sqrt(t / T). Without a machine s = S / 8, at most
// bucket_bytes. A bucket below 1 MiB is not worth its wait. In a loop's body this limit holds for
// parameters and for gradients that leave it, and S counts all layers of a loop over layers; other
// collectives have at most bucket_bytes. Members stay separate steps, so that reports name each;
// they share a number and a wait.
#include "lower/passes/bucket_collectives.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "lower/passes/bucket_attachments.h"
#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fill_waits.h"

namespace tessera {

namespace {

constexpr int64_t kBuckets = 8, kMuch = 1 << 20;

int64_t bytes_of(const View& view) { return view.elements() * size_of(view.dtype); }

class Buckets {
 public:
  /// `iterations`: of the loop, if the function is a loop's body; else 1.
  Buckets(const Program& program, Function& function, int64_t iterations, int64_t bucket_bytes,
          const StepPrices& prices, bool awaited_apart)
      : steps_(function.steps),
        outer_(function.outer.begin(), function.outer.end()),
        iterations_(iterations),
        bucket_bytes_(bucket_bytes),
        prices_(prices),
        awaited_apart_(awaited_apart),
        attachments_(find_bucket_attachments(program, function)),
        attached_(function.steps.size(), 0),
        feeder_of_(program.buffers.size(), -1),
        follower_of_(feeder_of_),
        is_read_(program.buffers.size(), 0),
        is_written_(is_read_),
        result_of_(feeder_of_),
        operand_of_(result_of_),
        written_(result_of_),
        touched_(program.buffers.size(), 0) {}

  void run(Function& function) {
    for (size_t s = 0; s < steps_.size(); ++s)
      note(static_cast<int>(s), !outer_.empty() || static_cast<int>(s) < function.first_update);
    std::map<Kind, std::pair<Step, int64_t>> all;  // an example of the kind, bytes of all
    for (size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      if (step.kind != StepKind::collective) continue;
      const Kind kind = kind_of(static_cast<int>(s));
      if (outer_.empty() || std::get<Role>(kind) < Role::awaited)
        all.try_emplace(kind, step, 0).first->second.second += larger(step) * times(step);
    }
    for (const auto& [key, kind] : all) most_bytes_[key] = most_of(kind.first, kind.second);
    for (size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      if (step.kind == StepKind::wait) continue;
      if (step.kind == StepKind::collective) {
        place(static_cast<int>(s));
        continue;
      }
      if (attach(static_cast<int>(s))) {
        attached_[s] = 1;
        continue;
      }
      for (const View& v : step.in) touch(v.buffer, -1);
      for (const View& v : step.out) touch(v.buffer, static_cast<int>(s));
    }
    rewrite(function);
  }

 private:
  struct Bucket {
    int at = -1;  ///< the step after which it stands
    bool read = false;
    int64_t bytes = 0;
    std::vector<int> members;
    std::vector<int> followers;  ///< compute steps that read a result, right after the wait
  };
  enum class Role {
    parameter,  ///< sends what no step writes, or one that moves with the bucket
    gradient,   ///< leaves a loop's body: no step reads the result
    awaited,    ///< is needed at once: never starts behind what is not
    other
  };
  using Kind = std::tuple<CollectiveKind, std::vector<int>, Role>;

  /// `counts`: whether what the step writes may be read by a collective.
  void note(int s, bool counts) {
    const Step& step = steps_[s];
    if (step.kind == StepKind::wait) return;
    for (const View& v : step.in) is_read_[v.buffer] = 1;
    for (const View& v : step.out) is_written_[v.buffer] |= counts;
    if (step.kind != StepKind::compute) return;
    if (is_kernel(step)) last_kernel_ = s;
    if (step.out.size() != 1) return;
    if (attachments_.fed.contains(step.out[0].buffer)) feeder_of_[step.out[0].buffer] = s;
    if (step.in.size() == 1 && attachments_.followed.contains(step.in[0].buffer))
      follower_of_[step.in[0].buffer] = s;
  }

  /// Whether a step reads the result before the next kernel, and kernels come after it.
  bool is_awaited(int s) const {
    if (!awaited_apart_ || !outer_.empty()) return false;
    const int result = steps_[s].out[0].buffer;
    for (int next = s + 1; next < last_kernel_; ++next) {
      const Step& step = steps_[next];
      if (step.kind != StepKind::compute) continue;
      if (std::any_of(step.in.begin(), step.in.end(),
                      [&](const View& v) { return v.buffer == result; }))
        return true;
      if (is_kernel(step)) return false;
    }
    return false;
  }

  Kind kind_of(int s) const {
    const Step& step = steps_[s];
    const int from = step.in[0].buffer, to = step.out[0].buffer;
    const bool is_fixed = feeder_of_[from] >= 0 || is_written_[from] == 0;
    const int left = follower_of_[to] >= 0 ? steps_[follower_of_[to]].out[0].buffer : to;
    const bool leaves = outer_.contains(left) && is_read_[left] == 0;
    const Role role = is_fixed        ? Role::parameter
                      : leaves        ? Role::gradient
                      : is_awaited(s) ? Role::awaited
                                      : Role::other;
    return {step.collective, step.axes, role};
  }

  /// How many different tensors the collective moves, as the loop goes on: one layer after another
  /// in a loop over layers, but the same ones in each microbatch.
  int64_t times(const Step& step) const {
    const int feeder = feeder_of_[step.in[0].buffer], follower = follower_of_[step.out[0].buffer];
    const auto varies = [](const std::vector<View>& views) {
      return std::any_of(views.begin(), views.end(),
                         [](const View& v) { return v.shift.depends_on_scalars(); });
    };
    return varies(feeder >= 0 ? steps_[feeder].in : step.in) ||
                   varies(follower >= 0 ? steps_[follower].out : step.out)
               ? iterations_
               : 1;
  }

  static int64_t larger(const Step& step) {
    return std::max(bytes_of(step.in[0]), bytes_of(step.out[0]));
  }

  /// The size limit of a bucket, if collectives like this one move `all` bytes together.
  int64_t most_of(const Step& like, int64_t all) const {
    if (!prices_.seconds || bucket_bytes_ == 0)
      return std::min(bucket_bytes_, std::max(all / kBuckets, kMuch));
    const double start = prices_.of_bytes(like, 0), transfer = prices_.of_bytes(like, all) - start;
    if (transfer <= start) return all;
    return std::max(kMuch,
                    static_cast<int64_t>(static_cast<double>(all) * std::sqrt(start / transfer)));
  }

  int64_t most_bytes(const Kind& key) const {
    const auto found = most_bytes_.find(key);
    return found == most_bytes_.end() ? bucket_bytes_ : found->second;
  }

  /// From here on the bucket cannot move down.
  void fix(int bucket) {
    if (bucket >= 0) buckets_[bucket].read = true;
  }

  void touch(int buffer, int written_at) {
    fix(result_of_[buffer]);
    if (written_at >= 0) {
      fix(operand_of_[buffer]);
      written_[buffer] = written_at;
    }
    touched_[buffer] = 1;
  }

  /// Whether the step moves with a bucket: the one that sends its result, or whose result it reads.
  bool attach(int s) {
    const Step& step = steps_[s];
    if (step.out.size() != 1) return false;
    const int out = step.out[0].buffer;
    if (feeder_of_[out] == s) {
      touched_[out] = 1;
      return true;
    }
    if (step.in.size() != 1 || follower_of_[step.in[0].buffer] != s) return false;
    const int bucket = result_of_[step.in[0].buffer];
    buckets_[bucket].followers.push_back(s);
    result_of_[out] = bucket;
    touched_[out] = 1;
    return true;
  }

  /// The step after which a buffer holds what the present step reads.
  int ready(int buffer) const {
    return result_of_[buffer] >= 0 ? buckets_[result_of_[buffer]].at : written_[buffer];
  }

  void place(int s) {
    const Step& step = steps_[s];
    const int64_t bytes = larger(step);
    for (const View& v : step.in) touch(v.buffer, -1);
    if (step.in.size() > 1) {  // counted rows: an operation of their own
      buckets_.push_back({s, true, bytes, {s}, {}});
      result_of_[step.out[0].buffer] = static_cast<int>(buckets_.size()) - 1;
      touched_[step.out[0].buffer] = 1;
      return;
    }
    const Kind key = kind_of(s);
    auto last = last_.find(key);
    const bool fits =
        last != last_.end() && buckets_[last->second].bytes + bytes <= most_bytes(key);
    const bool fresh = touched_[step.out[0].buffer] == 0;
    const bool joins =
        fits && fresh &&
        (!buckets_[last->second].read || ready(step.in[0].buffer) < buckets_[last->second].at);
    if (!joins) {
      buckets_.push_back({s, false, 0, {}, {}});
      last = last_.insert_or_assign(key, static_cast<int>(buckets_.size()) - 1).first;
    }
    Bucket& bucket = buckets_[last->second];
    if (!bucket.read) bucket.at = s;
    bucket.bytes += bytes;
    bucket.members.push_back(s);
    result_of_[step.out[0].buffer] = last->second;
    operand_of_[step.in[0].buffer] = last->second;
    touched_[step.out[0].buffer] = 1;
  }

  void rewrite(Function& function) {
    std::map<int, const Bucket*> at;
    for (const Bucket& e : buckets_) at[e.at] = &e;
    std::vector<Step> result;
    int first_update = 0;
    for (int s = 0; s <= static_cast<int>(steps_.size()); ++s) {
      if (s == function.first_update) first_update = static_cast<int>(result.size());
      if (s == static_cast<int>(steps_.size())) break;
      if (steps_[s].kind == StepKind::compute && attached_[s] == 0)
        result.push_back(std::move(steps_[s]));
      if (auto it = at.find(s); it != at.end()) add(*it->second, result);
    }
    function.first_update = first_update;
    steps_ = std::move(result);
  }

  void add(const Bucket& bucket, std::vector<Step>& result) {
    Step wait;
    wait.kind = StepKind::wait;
    wait.number = steps_[bucket.members[0]].number;
    for (int member : bucket.members) {
      const int feeder = feeder_of_[steps_[member].in[0].buffer];
      if (feeder >= 0) result.push_back(std::move(steps_[feeder]));
    }
    for (int member : bucket.members) {
      result.push_back(std::move(steps_[member]));
      result.back().number = wait.number;
    }
    result.push_back(std::move(wait));
    for (int follower : bucket.followers) result.push_back(std::move(steps_[follower]));
  }

  std::vector<Step>& steps_;
  const std::set<int> outer_;
  const int64_t iterations_, bucket_bytes_;
  const StepPrices& prices_;
  const bool awaited_apart_;
  const BucketAttachments attachments_;
  int last_kernel_ = -1;                ///< step
  std::vector<char> attached_;          ///< by step: whether it moves with a bucket
  std::map<Kind, int64_t> most_bytes_;  ///< by kind: operand or result bytes of a bucket at most
  std::vector<Bucket> buckets_;
  std::map<Kind, int> last_;
  // By buffer: the step that writes it for a bucket, the one that reads it from a bucket, or -1.
  std::vector<int> feeder_of_, follower_of_;
  std::vector<char> is_read_, is_written_;  ///< by buffer: in the function
  // By buffer: the bucket of which it is a result, the one of which it is an operand, the last
  // compute step that writes it (-1: none), and whether any step has touched it.
  std::vector<int> result_of_, operand_of_, written_;
  std::vector<char> touched_;
};

/// Lets an all_reduce write its result over its operand if nothing else reads that later.
class InPlace {
 public:
  InPlace(Program& program, Function& function)
      : program_(program),
        steps_(function.steps),
        uses_(program.buffers.size()),
        renamed_(program.buffers.size(), -1) {
    const int end = static_cast<int>(steps_.size());
    for (int s = 0; s < end; ++s) {
      for (const auto* views : {&steps_[s].in, &steps_[s].out}) {
        for (const View& v : *views) uses_[v.buffer].push_back(s);
      }
    }
    for (const Port& port : program.ports) uses_[port.view.buffer].push_back(end);
    for (const int b : function.outer) uses_[b].push_back(end);
    outer_.insert(function.outer.begin(), function.outer.end());
  }

  void run() {
    int begin = 0;  // first step of the bucket
    for (int s = 0; s < static_cast<int>(steps_.size()); ++s) {
      Step& step = steps_[s];
      for (auto* views : {&step.in, &step.out}) {
        for (View& v : *views) rename(v.buffer);
      }
      rename_in_bodies(step, [&](int& buffer) { rename(buffer); });
      if (s == 0 || steps_[s - 1].kind != StepKind::collective) begin = s;
      if (is_collective(step, CollectiveKind::all_reduce) && may(step, s, begin)) {
        const int in = step.in[0].buffer, out = step.out[0].buffer;
        renamed_[out] = in;
        uses_[in] = std::move(uses_[out]);
        step.out[0].buffer = in;
      }
    }
    for (Port& port : program_.ports) rename(port.view.buffer);
  }

 private:
  bool is_own(const View& v) const {
    return program_.buffers[v.buffer].arena == ArenaKind::transient && is_whole(program_, v);
  }

  bool may(const Step& step, int s, int begin) const {
    const View &in = step.in[0], &out = step.out[0];
    if (in.buffer == out.buffer || !is_own(in) || !is_own(out)) return false;
    if (outer_.count(out.buffer)) return false;
    const std::vector<int>& uses = uses_[in.buffer];
    return *std::lower_bound(uses.begin(), uses.end(), begin) == s && uses.back() == s;
  }

  void rename(int& buffer) const {
    if (renamed_[buffer] >= 0) buffer = renamed_[buffer];
  }

  Program& program_;
  std::vector<Step>& steps_;
  std::vector<std::vector<int>> uses_;  ///< by buffer: steps that touch it; the end for a port
  std::vector<int> renamed_;            ///< by buffer: the one that replaces it, or -1
  std::set<int> outer_;                 ///< buffers of the function around a loop's body
};

}  // namespace

void bucket_collectives(Program& program, int64_t bucket_bytes, const StepPrices& prices,
                        bool awaited_apart) {
  std::map<const Function*, int64_t> iterations;
  for (const Function* f : all_functions(program.functions)) {
    for (const Step& step : f->steps) {
      for (const Function& body : step.body) iterations[&body] = step.loop.iterations;
    }
  }
  for (Function* f : all_functions(program.functions)) {
    const auto loop = iterations.find(f);
    const int64_t times = loop == iterations.end() ? 1 : loop->second;
    Buckets(program, *f, times, bucket_bytes, prices, awaited_apart).run(*f);
    InPlace(program, *f).run();
  }
  drop_unused_buffers(program);
}

}  // namespace tessera
