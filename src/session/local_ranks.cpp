#include "session/local_ranks.h"

#include <algorithm>
#include <exception>

#include "base/fail.h"
#include "session/cluster_internals.h"

namespace tessera {

LocalRanks::~LocalRanks() {
  for (auto& executor : executors_) {
    if (executor) executor->device().drain(failed_ || std::uncaught_exceptions() > 0);
  }
  executors_.clear();
  if (failed_) cluster_.recover();  // from what it had in flight
}

void LocalRanks::make(
    const std::function<std::unique_ptr<Executor>(int rank, Communicator& world)>& make) {
  try {
    cluster_.run([&](int rank, Communicator& world) { executors_[rank] = make(rank, world); });
  } catch (const NotRun&) {
    throw;
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void LocalRanks::require_usable() const {
  TESSERA_REQUIRE(
      !failed_,
      "this session failed before and cannot run again; make a new one and load the last "
      "checkpoint");
}

void LocalRanks::on_all(const std::function<void(Executor&)>& work,
                        const std::function<void()>& meanwhile) {
  require_usable();
  try {
    ClusterInternals::run(
        cluster_, [&](int rank, Communicator&) { work(*executors_[rank]); }, meanwhile);
  } catch (const NotRun&) {
    throw;
  } catch (...) {
    failed_ = true;
    cluster_.recover();
    throw;
  }
}

Executor::Stopped LocalRanks::stopped() {
  using By = Executor::Stopped::By;
  Executor::Stopped result = executors_[0]->stopped();
  if (result.by == By::nothing || result.by == By::check || result.by == By::interrupt)
    return result;
  std::vector<double> positions;
  for (auto& executor : executors_)
    positions.push_back(static_cast<double>(executor->stopped().position));
  const std::vector<double> all = cluster_.gather(positions);
  const double first = *std::min_element(all.begin(), all.end());
  std::string mine;
  for (size_t r = 0; r < executors_.size() && mine.empty(); ++r) {
    if (positions[r] == first) mine = executors_[r]->stopped().message;
  }
  result.message = cluster_.first_text(mine);
  if (result.message.empty())
    result.message =
        "an output that must be finite is not, but no single result is; nothing was "
        "stored";
  if (result.by != By::guard && result.before_stores) result.message += "; nothing was stored";
  failed_ = !result.before_stores;
  return result;
}

}  // namespace tessera
