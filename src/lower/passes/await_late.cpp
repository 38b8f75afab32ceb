#include "lower/passes/await_late.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// Takes the waits of a share, unless it computes with what it has awaited.
std::vector<Step> take_waits(Function& share) {
  std::vector<Step> waits;
  const auto is_wait = [](const Step& step) { return step.kind == StepKind::wait; };
  const auto computes = [](const Step& step) { return step.kind == StepKind::compute; };
  const auto first_wait = std::find_if(share.steps.begin(), share.steps.end(), is_wait);
  if (std::any_of(first_wait, share.steps.end(), computes)) return waits;
  const auto is_start = [](const Step& step) { return step.kind != StepKind::wait; };
  const auto first = std::stable_partition(share.steps.begin(), share.steps.end(), is_start);
  waits.assign(std::make_move_iterator(first), std::make_move_iterator(share.steps.end()));
  share.steps.erase(first, share.steps.end());
  share.first_update = static_cast<int>(share.steps.size());
  return waits;
}

void await_late(Function& function) {
  std::map<int, std::vector<Step>> waits;  // of shares that send, by their number
  for (Step& step : function.steps) {
    if (step.body.empty()) continue;
    Function& body = step.body[0];
    const std::optional<PipelineShare>& share = step.loop.share;
    if (share && share->send_id > 0) waits[share->send_id] = take_waits(body);
    if (share && share->recv_id > 0) {
      const auto sent = std::exchange(waits[share->recv_id], {});
      body.steps.insert(body.steps.begin(), sent.begin(), sent.end());
      body.first_update += static_cast<int>(sent.size());
    }
    await_late(body);
  }
}

}  // namespace

void await_late(Program& program) {
  for (Function& function : program.functions) await_late(function);
}

}  // namespace tessera
