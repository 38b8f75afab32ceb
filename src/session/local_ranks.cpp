#include "session/local_ranks.h"

#include <algorithm>
#include <exception>

#include "base/fail.h"

namespace tessera {

LocalRanks::~LocalRanks() {
  for (auto& executor : executors_) {
    if (executor) executor->device().drain(failed_ || std::uncaught_exceptions() > 0);
  }
}

void LocalRanks::make(
    const std::function<std::unique_ptr<Executor>(int rank, Communicator& world)>& make) {
  cluster_.run([&](int rank, Communicator& world) { executors_[rank] = make(rank, world); });
}

void LocalRanks::require_usable() const {
  require(!failed_,
          "this session failed before and cannot run again; make a new one and load the last "
          "checkpoint");
}

void LocalRanks::on_all(const std::function<void(Executor&)>& work) {
  require_usable();
  try {
    cluster_.run([&](int rank, Communicator&) { work(*executors_[rank]); });
  } catch (...) {
    failed_ = true;
    cluster_.recover();
    throw;
  }
}

std::string LocalRanks::skipped() {
  if (!executors_[0]->skipped().skipped) return "";
  std::vector<double> positions;
  for (auto& executor : executors_)
    positions.push_back(static_cast<double>(executor->skipped().position));
  const std::vector<double> all = cluster_.gather(positions);
  const double first = *std::min_element(all.begin(), all.end());
  std::string mine;
  for (size_t r = 0; r < executors_.size() && mine.empty(); ++r) {
    if (positions[r] == first) mine = executors_[r]->skipped().message;
  }
  const std::string text = cluster_.first_text(mine);
  return text.empty() ? "an output that must be finite is not; nothing was stored" : text;
}

}  // namespace tessera
