#include "lower/ahead.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace tessera {

double work_of(const Step& step) {
  constexpr double kOperations = 32;  ///< of a byte
  double work = static_cast<double>(step.flops);
  for (const std::vector<View>* views : {&step.in, &step.out}) {
    for (const View& v : *views)
      work += kOperations * static_cast<double>(v.elements() * size_of(v.dtype));
  }
  for (const Function& body : step.body) {
    for (const Step& inner : body.steps)
      work += static_cast<double>(step.loop.trips) * work_of(inner);
  }
  return work;
}

std::vector<double> latest_starts(const std::vector<Sent>& exchanges, double work) {
  std::map<std::vector<int>, double> bytes, next;  // by axes; the start of the one needed next
  for (const Sent& e : exchanges) bytes[e.axes] += e.bytes;
  std::vector<size_t> order(exchanges.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return exchanges[x].needed > exchanges[y].needed; });
  std::vector<double> starts(exchanges.size(), 0);
  for (const size_t number : order) {
    const Sent& e = exchanges[number];
    const double share = work * e.bytes / std::max(bytes[e.axes], 1.0);
    const auto it = next.try_emplace(e.axes, e.needed).first;
    it->second = starts[number] = std::min(it->second, e.needed) - share;
  }
  return starts;
}

}  // namespace tessera
