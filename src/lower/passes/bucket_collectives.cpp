// The collectives of a function are visited in order. A collective joins the last bucket of its
// kind and axes if the bucket stays small enough and one of these holds:
//   No step has read a result of the bucket yet. Then the bucket moves down to this collective.
//   Example: gradients, which are read at the end.
//   The operand of the collective was ready where the bucket stands. Then it joins the bucket
//   there, earlier than written. Example: parameters that are gathered.
// The size limit is a share of all bytes of that kind, because one bucket of everything could not
// overlap with anything. S bytes take T seconds to send, and starting a bucket takes t. With
// buckets of s bytes the cost is (S / s) t for the starts plus (s / S) T for the last bucket, which
// cannot be hidden. It is least for s = S sqrt(t / T). Without a machine s = S / 8, at most
// bucket_bytes. A bucket below 1 MiB is not worth its wait. In a loop's body this limit holds for
// loop-invariant operands; other collectives overlap with the next iteration. Members stay separate
// steps, so that reports name each; they share a number and a wait.
#include "lower/passes/bucket_collectives.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lower/passes/drop_unused_buffers.h"

namespace tessera {

namespace {

constexpr int64_t kBuckets = 8, kMuch = 1 << 20;

int64_t bytes_of(const View& view) { return view.elements() * size_of(view.dtype); }

class Buckets {
 public:
  Buckets(const Program& program, Function& function, int64_t bucket_bytes,
          const StepPrices& prices)
      : steps_(function.steps),
        bucket_bytes_(bucket_bytes),
        prices_(prices),
        result_of_(program.buffers.size(), -1),
        operand_of_(result_of_),
        written_(result_of_),
        touched_(program.buffers.size(), 0) {}

  void run(Function& function) {
    std::map<Kind, std::pair<Step, int64_t>> all;  // an example of the kind, bytes of all
    const std::set<int> outer(function.outer.begin(), function.outer.end());
    for (const Step& step : steps_) {
      if (step.kind != StepKind::collective) continue;
      const View& from = step.in[0];
      if (outer.empty() || (outer.contains(from.buffer) && !from.shift.depends_on_scalars()))
        all.try_emplace({step.collective, step.axes}, step, 0).first->second.second += larger(step);
    }
    for (const auto& [key, kind] : all) most_bytes_[key] = most_of(kind.first, kind.second);
    for (size_t s = 0; s < steps_.size(); ++s) {
      const Step& step = steps_[s];
      if (step.kind == StepKind::wait) continue;
      if (step.kind == StepKind::collective) {
        place(static_cast<int>(s));
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
  };
  using Kind = std::pair<CollectiveKind, std::vector<int>>;

  static int64_t larger(const Step& step) {
    return std::max(bytes_of(step.in[0]), bytes_of(step.out[0]));
  }

  double seconds(Step like, int64_t bytes) const {
    View& view = like.in[0];
    view.dtype = DType::uint8;
    view.sizes = {bytes};
    view.strides = {1};
    like.out[0] = view;
    like.bytes = bytes;
    return prices_.seconds(like);
  }

  /// The size limit of a bucket, if collectives like this one move `all` bytes together.
  int64_t most_of(const Step& like, int64_t all) const {
    if (!prices_.seconds || bucket_bytes_ == 0)
      return std::min(bucket_bytes_, std::max(all / kBuckets, kMuch));
    const double start = seconds(like, 0), transfer = seconds(like, all) - start;
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

  /// The step after which a buffer holds what the present step reads.
  int ready(int buffer) const {
    return result_of_[buffer] >= 0 ? buckets_[result_of_[buffer]].at : written_[buffer];
  }

  void place(int s) {
    const Step& step = steps_[s];
    const int64_t bytes = larger(step);
    for (const View& v : step.in) touch(v.buffer, -1);
    if (step.in.size() > 1) {  // counted rows: an operation of their own
      buckets_.push_back({s, true, bytes, {s}});
      result_of_[step.out[0].buffer] = static_cast<int>(buckets_.size()) - 1;
      touched_[step.out[0].buffer] = 1;
      return;
    }
    const Kind key{step.collective, step.axes};
    auto last = last_.find(key);
    const bool fits =
        last != last_.end() && buckets_[last->second].bytes + bytes <= most_bytes(key);
    const bool fresh = touched_[step.out[0].buffer] == 0;
    const bool joins =
        fits && fresh &&
        (!buckets_[last->second].read || ready(step.in[0].buffer) < buckets_[last->second].at);
    if (!joins) {
      buckets_.push_back({s, false, 0, {}});
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
      if (steps_[s].kind == StepKind::compute) result.push_back(std::move(steps_[s]));
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
      result.push_back(std::move(steps_[member]));
      result.back().number = wait.number;
    }
    result.push_back(std::move(wait));
  }

  std::vector<Step>& steps_;
  const int64_t bucket_bytes_;
  const StepPrices& prices_;
  std::map<Kind, int64_t> most_bytes_;  ///< by kind: operand or result bytes of a bucket at most
  std::vector<Bucket> buckets_;
  std::map<Kind, int> last_;
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
  bool is_whole(const View& view) const {
    const Buffer& buffer = program_.buffers[view.buffer];
    return buffer.arena == ArenaKind::transient && view.offset == 0 && view.shift == IntExpr{} &&
           view.is_contiguous() && bytes_of(view) == buffer.bytes;
  }

  bool may(const Step& step, int s, int begin) const {
    const View &in = step.in[0], &out = step.out[0];
    if (in.buffer == out.buffer || !is_whole(in) || !is_whole(out)) return false;
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

void bucket_collectives(Program& program, int64_t bucket_bytes, const StepPrices& prices) {
  for (Function* f : all_functions(program.functions)) {
    Buckets(program, *f, bucket_bytes, prices).run(*f);
    InPlace(program, *f).run();
  }
  drop_unused_buffers(program);
}

}  // namespace tessera
