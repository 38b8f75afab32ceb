// Gradient accumulation: global batch = microbatch size x data ranks x number of microbatches.
#include <algorithm>
#include <charconv>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/compile_options.h"

namespace tessera::cli {

namespace {

constexpr const char* kAuto = "auto";

std::string factors(int64_t microbatch, int64_t ranks, int64_t count) {
  return fmt::format("{} in a microbatch x {} data {} x {} accumulated", microbatch, ranks,
                     ranks == 1 ? "rank" : "ranks", count);
}

}  // namespace

int64_t data_ranks(const Job& job) {
  int64_t ranks = 1;
  for (const LayoutRule& rule : job.layout.rules()) {
    if (rule.dim != "batch" || rule.purpose != Purpose::none || !rule.scope.empty()) continue;
    ranks = 1;
    for (const std::string& axis : rule.axes) {
      const int at = job.mesh.find(axis);
      if (at >= 0) ranks *= job.mesh.axes()[static_cast<size_t>(at)].size;
    }
  }
  return ranks;
}

void set_microbatch_size(const std::string& text, Job& job) {
  if (text.empty()) return;
  const std::string before = job.config.text("train.microbatches");
  if (text == kAuto) return job.config.set("train.microbatches", kAuto);
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  TESSERA_REQUIRE(error == std::errc() && end == text.data() + text.size() && size >= 1,
                  "--microbatch-size '{}' is neither a number of examples nor auto", text);
  const int64_t batch = job.config.integer("train.batch"), ranks = data_ranks(job);
  const int64_t at_once = size * ranks;
  if (batch % at_once != 0 || batch == 0) {
    const int64_t below = batch / at_once * at_once;
    fail(ErrorKind::usage,
         "train.batch {} is not a multiple of --microbatch-size {} x {} data ranks = {}; the "
         "nearest {} {}",
         batch, size, ranks, at_once,
         below > 0 ? fmt::format("batches are {} and", below) : "batch is", below + at_once);
  }
  const int64_t count = batch / at_once;
  TESSERA_REQUIRE(
      before == "1" || before == fmt::format("{}", count),
      "--microbatch-size {} makes of train.batch {} = {}, but train.microbatches is {}; give "
      "one of the two",
      size, batch, factors(size, ranks, count), before);
  job.config.set("train.microbatches", fmt::format("{}", count));
}

std::vector<int64_t> microbatch_counts(const Job& job) {
  const int64_t batch = job.config.integer("train.batch"), ranks = data_ranks(job);
  const int64_t own = batch % ranks == 0 ? batch / ranks : batch;
  const int64_t chunks = strict_chunks_of(job.config);
  std::vector<int64_t> counts;
  for (int64_t count = 1; count <= own; ++count) {
    const bool changes_bits = chunks > 0 && subtree_microbatches(batch, count, chunks) != count;
    if (own % count == 0 && !changes_bits) counts.push_back(count);
  }
  return counts.empty() ? std::vector<int64_t>{1} : counts;
}

std::string batch_text(const Job& job) {
  const int64_t batch = job.config.integer("train.batch"), ranks = data_ranks(job);
  const int64_t asked = job.config.integer("train.microbatches"),
                count = microbatches_of(job.config);
  const std::string why =
      asked == count ? "" : fmt::format("; {} microbatches would change bits", asked);
  if (batch % (ranks * count) == 0)
    return fmt::format("{} examples = {}{}", batch, factors(batch / ranks / count, ranks, count),
                       why);
  return fmt::format("{} examples = {} x {} accumulated, unevenly over {} data ranks{}", batch,
                     batch / count, count, ranks, why);
}

}  // namespace tessera::cli
