// A blend has a fixed number of examples of each part, one range of numbers behind the other. The
// Batcher's permutation of all numbers mixes them: every window of steps has each part's share, as
// a random sample has it.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.h"
#include "tessera/data.h"

namespace tessera {

namespace {

constexpr double kMostExamples = 1e15;

bool equal(const DataField& a, const DataField& b) {
  return a.name == b.name && a.dtype == b.dtype && a.dims == b.dims;
}

void require_parts(const std::vector<BlendPart>& parts) {
  TESSERA_REQUIRE(!parts.empty(), "[data] a blend of nothing; it has at least 1 part");
  for (const BlendPart& part : parts) {
    TESSERA_REQUIRE(
        part.weight > 0 && std::isfinite(part.weight),
        "[data] '{}' has weight {} in a blend; a weight is a number above 0 (leave out what is "
        "not wanted)",
        part.name, part.weight);
    const auto& fields = part.source->fields();
    const auto& first = parts[0].source->fields();
    TESSERA_REQUIRE(
        std::equal(fields.begin(), fields.end(), first.begin(), first.end(), equal),
        "[data] '{}' and '{}' of a blend have different fields; open them with the same options",
        parts[0].name, part.name);
  }
}

/// i * n / k, where the product may need 128 bits. 0 <= i < k.
int64_t spread(int64_t i, int64_t n, int64_t k) {
  return static_cast<int64_t>(static_cast<__int128>(i) * n / k);
}

}  // namespace

BlendData::BlendData(std::vector<BlendPart> parts, bool repeat) : parts_(std::move(parts)) {
  require_parts(parts_);
  double sum = 0;
  for (const BlendPart& part : parts_) sum += part.weight;
  double total = repeat ? 0 : kMostExamples;
  for (const BlendPart& part : parts_) {
    const double whole = static_cast<double>(part.source->examples()) * sum / part.weight;
    TESSERA_REQUIRE(
        !repeat || whole <= kMostExamples,
        "[data] '{}' has weight {} of {} in a blend: {} examples until each of its {} came; "
        "give it more weight",
        part.name, part.weight, sum, whole, part.source->examples());
    total = repeat ? std::max(total, whole) : std::min(total, whole);
  }
  begins_ = {0};
  for (const BlendPart& part : parts_) {
    const int64_t all = part.source->examples();
    const auto share = static_cast<int64_t>(std::llround(total * part.weight / sum));
    const int64_t count = repeat ? std::max(all, share) : std::clamp<int64_t>(share, 1, all);
    begins_.push_back(begins_.back() + count);
  }
}

BlendData::Place BlendData::place(int64_t example) const {
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), example);
  const auto part = static_cast<size_t>(next - begins_.begin()) - 1;
  const int64_t i = example - begins_[part], count = begins_[part + 1] - begins_[part];
  const int64_t all = parts_[part].source->examples(), whole = count / all * all;
  // Whole passes, then a part of one that is spread over the source.
  const int64_t at = i < whole ? i % all : spread(i - whole, all, count - whole);
  return {static_cast<int64_t>(part), at};
}

void BlendData::read(int64_t example, int field, const DataBox& box) const {
  const Place from = place(example);
  parts_[static_cast<size_t>(from.part)].source->read(from.example, field, box);
}

std::string BlendData::fingerprint() const {
  std::string text = "blend";
  for (size_t i = 0; i < parts_.size(); ++i)
    text += fmt::format("; {} of weight {}: {}", begins_[i + 1] - begins_[i], parts_[i].weight,
                        parts_[i].source->fingerprint());
  return text;
}

std::string BlendData::warning() const {
  for (const auto& part : parts_)
    if (std::string text = part.source->warning(); !text.empty()) return text;
  return "";
}

}  // namespace tessera
