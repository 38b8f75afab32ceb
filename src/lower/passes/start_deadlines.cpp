#include "lower/passes/start_deadlines.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace tessera {

double work_of(const Step& step) {
  constexpr double kOperations = 32;  ///< per byte
  double work = static_cast<double>(step.flops);
  for (const std::vector<View>* views : {&step.in, &step.out}) {
    for (const View& v : *views)
      work += kOperations * static_cast<double>(v.elements() * size_of(v.dtype));
  }
  for (const Function& body : step.body) {
    for (const Step& inner : body.steps)
      work += static_cast<double>(step.loop.iterations) * work_of(inner);
  }
  return work;
}

std::vector<double> latest_starts(const std::vector<Sent>& buckets) {
  std::map<std::vector<int>, double> next;  // by axes: the start of the bucket that comes next
  std::vector<size_t> order(buckets.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return buckets[x].needed > buckets[y].needed; });
  std::vector<double> starts(buckets.size(), 0);
  for (const size_t number : order) {
    const Sent& e = buckets[number];
    const auto it = next.try_emplace(e.axes, e.needed).first;
    it->second = starts[number] = std::min(it->second, e.needed) - e.takes;
  }
  return starts;
}

std::vector<double> start_deadlines(std::vector<Sent> buckets, double work) {
  std::map<std::vector<int>, double> bytes;  // by axes
  for (const Sent& e : buckets) bytes[e.axes] += e.bytes;
  for (Sent& e : buckets) e.takes = work * e.bytes / std::max(bytes[e.axes], 1.0);
  return latest_starts(buckets);
}

}  // namespace tessera
