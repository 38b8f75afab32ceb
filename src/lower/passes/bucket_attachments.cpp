#include "lower/passes/bucket_attachments.h"

#include <algorithm>
#include <vector>

namespace tessera {

namespace {

/// How often each buffer is touched before the stores. In a loop's body the stores count too,
/// because the next iteration reads what they write.
struct Counts {
  explicit Counts(size_t buffers)
      : written(buffers), computed_from(buffers), sent(buffers), received(buffers) {}
  std::vector<int> written, computed_from, sent, received;
};

void add(const std::vector<View>& views, std::vector<int>& counts) {
  for (const View& v : views) {
    if (v.buffer >= 0) ++counts[static_cast<size_t>(v.buffer)];
  }
}

Counts count(const Program& program, const Function& function) {
  Counts counts(program.buffers.size());
  for (size_t s = 0; s < function.steps.size(); ++s) {
    const Step& step = function.steps[s];
    if (step.kind == StepKind::wait) continue;
    const bool computes = step.kind == StepKind::compute;
    if (computes) {
      add(step.in, counts.computed_from);
    } else {
      add({step.in[0]}, counts.sent);
      add({step.in.begin() + 1, step.in.end()}, counts.computed_from);  // counts of rows
      add(step.out, counts.received);
    }
    if (static_cast<int>(s) < function.first_update || !function.outer.empty())
      add(step.out, counts.written);
  }
  return counts;
}

}  // namespace

BucketAttachments find_bucket_attachments(const Program& program, const Function& function) {
  const Counts counts = count(program, function);
  const auto is_outer = [&](int buffer) {
    return std::binary_search(function.outer.begin(), function.outer.end(), buffer);
  };
  const auto is_own = [&](int buffer) {
    return buffer >= 0 && program.buffers[buffer].arena == ArenaKind::transient &&
           !is_outer(buffer);
  };
  BucketAttachments attachments;
  for (int s = 0; s < function.first_update; ++s) {
    const Step& step = function.steps[s];
    if (step.kind != StepKind::compute || !step.body.empty() || step.out.size() != 1) continue;
    const int out = step.out[0].buffer;
    if (out < 0 || counts.written[out] != 1) continue;
    const bool leaves = counts.computed_from[out] == 0 && counts.sent[out] == 0;
    const bool is_of_fixed = std::all_of(step.in.begin(), step.in.end(), [&](const View& v) {
      return v.buffer >= 0 && !is_own(v.buffer) && counts.written[v.buffer] == 0;
    });
    if (is_of_fixed && is_own(out) && counts.computed_from[out] == 0 && counts.sent[out] == 1)
      attachments.fed.insert(out);
    if (step.in.size() != 1 || !(is_own(out) || (is_outer(out) && leaves))) continue;
    const int in = step.in[0].buffer;
    // Buckets write it one after the other. The first may work in place, on the result of a step.
    const int in_place = counts.sent[in] - (counts.received[in] - 1);
    if (is_own(in) && counts.computed_from[in] == 1 && counts.received[in] >= 1 &&
        (in_place == 0 || in_place == 1) && counts.written[in] == counts.received[in] + in_place)
      attachments.followed.insert(in);
  }
  return attachments;
}

}  // namespace tessera
