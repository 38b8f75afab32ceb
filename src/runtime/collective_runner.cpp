#include "runtime/collective_runner.h"

#include "base/clock.h"
#include "base/fail.h"
#include "runtime/exchange.h"

namespace tessera {

Communicator& CollectiveRunner::group(const std::vector<int>& axes) {
  auto it = groups_.find(axes);
  if (it == groups_.end()) {
    const std::vector<int>& sizes = rank_.program.axis_sizes;
    int color = 0, key = 0;
    for (size_t a = 0; a < rank_.coordinates.size(); ++a) {
      const bool inside = std::find(axes.begin(), axes.end(), static_cast<int>(a)) != axes.end();
      if (!inside) color = color * sizes[a] + rank_.coordinates[a];
    }
    for (int axis : axes) key = key * sizes[axis] + rank_.coordinates[axis];
    it = groups_.emplace(axes, rank_.world.split(color, key)).first;
  }
  return *it->second;
}

Collective CollectiveRunner::describe(const Step& step) {
  Collective c;
  c.kind = step.collective;
  c.dtype = step.in[0].dtype;
  c.combiner = step.combiner;
  c.in = memory_.address(step.in[0]);
  c.out = memory_.address(step.out[0]);
  if (const auto* all = step.find<AllReduceSpec>()) c.count = all->count;
  if (const auto* blocks = step.find<BlocksSpec>()) {
    c.outer = blocks->outer;
    c.inner = blocks->inner;
  }
  if (const auto* blocks = step.find<AllToAllSpec>()) {
    c.pre = blocks->pre;
    c.s = blocks->s;
    c.mid = blocks->mid;
    c.c = blocks->c;
    c.post = blocks->post;
    c.split_first = blocks->split_first;
  }
  if (step.in.size() > 1) {
    TESSERA_CHECK(rank_.device.is_host(), "[all_to_all] {} cannot read counts",
                  rank_.device.name());
    c.counts = static_cast<const int32_t*>(memory_.address(step.in[1]));
    c.row = step.as<AllToAllSpec>().row;
  }
  c.site = {step.number, step.origin.name + " (" + step.origin.source + ")"};
  if (c.kind == CollectiveKind::exchange)
    plan_exchange(rank_.program, step, rank_.coordinates, rank_.scalars.data(),
                  group(step.axes).size(), c);
  return c;
}

BoundBucket& CollectiveRunner::bind(std::span<const Step> steps) {
  std::vector<Collective> collectives;
  for (const Step& step : steps) collectives.push_back(describe(step));
  Communicator& ranks = group(steps[0].axes);
  buckets_.push_back({rank_.device.prepare(ranks, collectives), steps});
  buckets_.back().counts = collectives[0].counts;
  buckets_.back().own = ranks.rank();
  buckets_.back().row_bytes = collectives[0].row * size_of(collectives[0].dtype);
  if (profile_) buckets_.back().timestamps.resize(BoundBucket::kKept);
  return buckets_.back();
}

void CollectiveRunner::start(BoundBucket& bucket) {
  const double begin = profile_ ? host_seconds() : 0;
  bucket.operation->start();
  in_flight_.push_back(&bucket);
  if (!profile_) return;
  for (int q = 0; bucket.counts != nullptr && q < group(bucket.steps[0].axes).size(); ++q)
    bucket.sent += q == bucket.own ? 0 : bucket.counts[q] * bucket.row_bytes;
  bucket.started = host_seconds();
  bucket.ended = 0;
  ++bucket.runs;
  bucket.now() = {bucket.started - begin, bucket.started, bucket.started};
}

void CollectiveRunner::wait(BoundBucket& bucket) {
  std::erase(in_flight_, &bucket);
  const double begin = host_seconds();
  if (profile_ && bucket.ended == 0 && bucket.operation->advance()) bucket.ended = begin;
  bucket.operation->wait();
  const double end = host_seconds();
  waited_ += end - begin;
  if (!profile_) return;
  bucket.now().arrived = begin;
  bucket.now().left = end;
  if (bucket.operation->is_in_background())
    bucket.hidden += (bucket.ended > 0 ? bucket.ended : begin) - bucket.started;
}

void CollectiveRunner::finish() {
  while (!in_flight_.empty()) wait(*in_flight_.front());
}

void CollectiveRunner::advance_all() {
  for (BoundBucket* bucket : in_flight_) {
    const bool complete = bucket->operation->advance();
    if (complete && profile_ && bucket->ended == 0) bucket->ended = host_seconds();
  }
}

double CollectiveRunner::hidden(const Step& first) const {
  double sum = 0;
  for (const BoundBucket& bucket : buckets_) sum += &bucket.steps[0] == &first ? bucket.hidden : 0;
  return sum;
}

int64_t CollectiveRunner::sent(const Step& first) const {
  int64_t sum = 0;
  for (const BoundBucket& bucket : buckets_) sum += &bucket.steps[0] == &first ? bucket.sent : 0;
  return sum;
}

std::vector<BucketTimestamps> CollectiveRunner::timestamps(const Step& first) const {
  std::vector<BucketTimestamps> all;
  for (const BoundBucket& bucket : buckets_) {
    if (&bucket.steps[0] == &first)
      all.insert(all.end(), bucket.timestamps.begin(), bucket.timestamps.begin() + bucket.kept());
  }
  return all;
}

double CollectiveRunner::runs_per_timestamp(const Step& first) const {
  int64_t runs = 0, kept = 0;
  for (const BoundBucket& bucket : buckets_) {
    if (&bucket.steps[0] != &first) continue;
    runs += bucket.runs;
    kept += bucket.kept();
  }
  return kept == 0 ? 0 : static_cast<double>(runs) / static_cast<double>(kept);
}

}  // namespace tessera
