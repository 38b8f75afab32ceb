#include "session/port_slices.h"

#include <algorithm>
#include <cstring>

namespace tessera {

namespace {

int64_t bytes_of(const Port& port) { return port.view.elements() * size_of(port.view.dtype); }

}  // namespace

const std::vector<Slice>& PortSlices::slices(int port) {
  std::vector<Slice>& all = slices_[port];
  if (!all.empty()) return all;
  const Port& p = program_.ports[port];
  for (size_t r = 0; r < ranks_.size(); ++r)
    all.push_back(slice_of(program_, p, ranks_[r], scalars_));
  if (ranks_.on_host()) return all;
  mirrors_[port].resize(ranks_.size());
  for (size_t r = 0; r < all.size(); ++r) {
    mirrors_[port][r].resize(static_cast<size_t>(bytes_of(p)));
    all[r].data = mirrors_[port][r].data();
  }
  return all;
}

const std::vector<Slice>& PortSlices::read(int port) {
  const std::vector<Slice>& all = slices(port);
  const Port& p = program_.ports[port];
  for (size_t r = 0; r < all.size() && !ranks_.on_host(); ++r)
    ranks_[r].device().read(all[r].data, ranks_[r].data(p), bytes_of(p));
  return all;
}

void PortSlices::write(int port) {
  const std::vector<Slice>& all = slices(port);
  const Port& p = program_.ports[port];
  for (size_t r = 0; r < all.size() && !ranks_.on_host(); ++r)
    ranks_[r].device().write(ranks_[r].data(p), all[r].data, bytes_of(p));
}

void PortSlices::fill(int port, const std::function<void(const Slice&)>& fill) {
  for (const Slice& slice : slices(port)) {
    std::memset(slice.data, 0, static_cast<size_t>(bytes_of(program_.ports[port])));
    fill(slice);
  }
  write(port);
}

const Slice* PortSlices::whole(int port) {
  const std::vector<Slice>& all = read(port);
  const auto& axes = program_.ports[port].axes;
  const bool is_split = std::any_of(axes.begin(), axes.end(), [](auto& a) { return !a.empty(); });
  return is_split ? nullptr : &all[0];
}

void PortSlices::resize() {
  for (auto& slices : slices_) slices.clear();
}

}  // namespace tessera
