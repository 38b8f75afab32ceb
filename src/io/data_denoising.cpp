// Nothing random is stored: a position's number is mixed with that of its example for masked
// tokens, and the cuts between spans are the first elements of a computed permutation.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/mix.h"
#include "tessera/denoising_data.h"

namespace tessera {

namespace {

constexpr int64_t kMostText = int64_t{1} << 24;  // that text_length() tries

/// The number of the field of tokens.
int field_of_tokens(const DataSource* source, const std::string& name) {
  TESSERA_REQUIRE(source != nullptr,
                  "[data] no source of texts to corrupt; give one, as a TextData");
  std::vector<std::string> names;
  for (const DataField& field : source->fields()) {
    if (field.name == name && field.dtype == DType::int32 && field.dims.size() == 1)
      return static_cast<int>(names.size());
    names.push_back(
        fmt::format("{} ({}, {} dims)", field.name, to_string(field.dtype), field.dims.size()));
  }
  fail(ErrorKind::usage,
       "[data] the source has no field '{}' of tokens, int32 with 1 dim, but {}; name it in the "
       "option source",
       name, fmt::join(names, ", "));
}

void require_share(double share, const char* what) {
  TESSERA_REQUIRE(share >= 0 && share <= 1, "[data] {} {}; it is a share from 0 to 1", what, share);
}

void require_rounds(const DataSource& source, int64_t rounds) {
  TESSERA_REQUIRE(
      rounds >= 1 && rounds <= INT64_MAX / source.examples(),
      "[data] {} rounds of {} examples; there is at least 1, and at most 2^63 - 1 examples in "
      "all",
      rounds, source.examples());
}

/// In [0, 1).
double fraction_of(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

struct Spans {
  int64_t corrupt, count;
};

Spans spans_of(int64_t length, const SpanCorruptionOptions& o) {
  const auto rounded = [](double x) { return static_cast<int64_t>(std::nearbyint(x)); };
  const int64_t corrupt =
      std::clamp<int64_t>(rounded(static_cast<double>(length) * o.density), 1, length - 1);
  const int64_t count = rounded(static_cast<double>(corrupt) / o.mean_span);
  return {corrupt, std::clamp<int64_t>(count, 1, std::min(corrupt, length - corrupt))};
}

void require_spans(const SpanCorruptionOptions& o) {
  TESSERA_REQUIRE(o.density > 0 && o.density < 1,
                  "[data] a density of {} of corrupted tokens; it is above 0 and below 1",
                  o.density);
  TESSERA_REQUIRE(o.mean_span >= 1 && std::isfinite(o.mean_span),
                  "[data] spans of {} tokens on average; they have at least 1", o.mean_span);
}

/// The ends of `parts` parts of [0, n), none of which is empty.
std::vector<int64_t> random_ends(int64_t n, int64_t parts, uint64_t seed, int64_t example) {
  std::vector<int64_t> ends = {n};
  if (parts > 1) {
    const Permutation cuts(n - 1, seed, example);
    for (int64_t i = 0; i < parts - 1; ++i) ends.push_back(cuts(i) + 1);
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

}  // namespace

MaskedData::MaskedData(std::shared_ptr<const DataSource> source, const MaskingOptions& options)
    : source_(std::move(source)), options_(options) {
  const MaskingOptions& o = options_;
  const int tokens = field_of_tokens(source_.get(), o.source);
  require_share(o.share, "a share of chosen tokens of");
  require_share(o.masked, "a share of masked tokens of");
  require_share(o.random, "a share of random tokens of");
  TESSERA_REQUIRE(o.masked + o.random <= 1,
                  "[data] shares of masked and random tokens of {} and {}; their sum is at most 1",
                  o.masked, o.random);
  TESSERA_REQUIRE(
      o.mask_token >= 0 && o.mask_token < o.vocabulary && o.vocabulary <= int64_t{1} << 31,
      "[data] the mask {} of a vocabulary of {}; it is a token from 0, below the vocabulary "
      "(MaskingOptions::vocabulary, at most 2^31)",
      o.mask_token, o.vocabulary);
  require_rounds(*source_, o.rounds);
  const std::vector<DataField>& all = source_->fields();
  const std::vector<Dim>& dims = all[static_cast<size_t>(tokens)].dims;
  fields_ = {{o.inputs, DType::int32, dims},
             {o.targets, DType::int32, dims},
             {o.weights, DType::float32, dims}};
  from_ = {tokens, tokens, tokens};
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& name = all[i].name;
    if (name == o.weights) {
      TESSERA_REQUIRE(
          all[i].dtype == DType::float32 && all[i].dims == dims,
          "[data] the source's field '{}' is {} with {} dims; weights of its tokens are float32 "
          "with the dim of '{}', or have another name",
          name, to_string(all[i].dtype), all[i].dims.size(), o.source);
      of_weights_ = static_cast<int>(i);
    }
    if (name == o.segments && all[i].dtype == DType::int32 && all[i].dims == dims)
      of_segments_ = static_cast<int>(i);
    if (name == o.source || name == o.inputs || name == o.targets || name == o.weights) continue;
    fields_.push_back(all[i]);
    from_.push_back(static_cast<int>(i));
  }
}

/// A source weighs the token behind a position, so a token's weight is at the position before it.
std::vector<char> MaskedData::counted(int64_t of_source, int64_t offset, int64_t extent) const {
  std::vector<char> counts(static_cast<size_t>(extent), 1);
  if (of_weights_ < 0) return counts;
  const int64_t skipped = offset == 0 ? 0 : 1;
  const auto n = static_cast<size_t>(extent + skipped);
  const auto box = [&](void* data) {
    return DataBox{data, {offset - skipped}, {extent + skipped}, {1}};
  };
  std::vector<float> weights(n);
  std::vector<int32_t> segments(n, 0);
  source_->read(of_source, of_weights_, box(weights.data()));
  if (of_segments_ >= 0) source_->read(of_source, of_segments_, box(segments.data()));
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t at = i + static_cast<size_t>(skipped);
    counts[i] = at > 0 && weights[at - 1] != 0 && segments[at - 1] == segments[at] ? 1 : 0;
  }
  return counts;
}

void MaskedData::read(int64_t example, int field, const DataBox& box) const {
  const MaskingOptions& o = options_;
  const int64_t of_source = example % source_->examples();
  const int from = from_[static_cast<size_t>(field)];
  if (field == 1 || field > 2) return source_->read(of_source, from, box);
  std::vector<int32_t> tokens(static_cast<size_t>(box.extent[0]));
  source_->read(of_source, from, {tokens.data(), box.offset, box.extent, {1}});
  const std::vector<char> counts = counted(of_source, box.offset[0], box.extent[0]);
  const uint64_t stream = mix(o.seed) ^ mix(~static_cast<uint64_t>(example));
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const int32_t token = tokens[static_cast<size_t>(i)];
    const uint64_t choice = mix(stream + mix(static_cast<uint64_t>(box.offset[0] + i)));
    const bool chosen = fraction_of(choice) < o.share && counts[static_cast<size_t>(i)] != 0 &&
                        std::find(o.never.begin(), o.never.end(), token) == o.never.end();
    const int64_t to = i * box.strides[0];
    if (field == 2) {
      static_cast<float*>(box.data)[to] = chosen ? 1.0F : 0.0F;
      continue;
    }
    const uint64_t kind = mix(choice), other = mix(kind);
    int32_t seen = token;
    if (chosen && fraction_of(kind) < o.masked) {
      seen = o.mask_token;
    } else if (chosen && fraction_of(kind) < o.masked + o.random) {
      seen = static_cast<int32_t>(other % static_cast<uint64_t>(o.vocabulary));
    }
    static_cast<int32_t*>(box.data)[to] = seen;
  }
}

std::string MaskedData::fingerprint() const {
  const MaskingOptions& o = options_;
  return fmt::format("masked: {} of {}, {} and {} of {}, never {}, {}{} rounds, seed {}: {}",
                     o.mask_token, o.vocabulary, o.masked, o.random, o.share,
                     fmt::join(o.never, " "), of_weights_ < 0 ? "" : "by weights, ", o.rounds,
                     o.seed, source_->fingerprint());
}

SpanCorruptionData::SpanCorruptionData(std::shared_ptr<const DataSource> source,
                                       const SpanCorruptionOptions& options)
    : source_(std::move(source)), options_(options) {
  const SpanCorruptionOptions& o = options_;
  from_ = field_of_tokens(source_.get(), o.source);
  require_rounds(*source_, o.rounds);
  length_ = source_->fields()[static_cast<size_t>(from_)].dims[0].size;
  const auto [of_inputs, of_targets] = lengths(length_, o);
  const auto [corrupt, count] = spans_of(length_, o);
  corrupt_ = corrupt, spans_ = count;
  TESSERA_REQUIRE(
      o.first_sentinel >= count - 1 && o.end >= 0 && o.start >= 0,
      "[data] sentinels from {} down for {} spans, end {} and start {}; none is below 0",
      o.first_sentinel, count, o.end, o.start);
  const Dim inputs(o.inputs_dim, of_inputs), targets(o.targets_dim, of_targets);
  fields_ = {{o.inputs, DType::int32, {inputs}},
             {o.decoder_inputs, DType::int32, {targets}},
             {o.targets, DType::int32, {targets}}};
}

void SpanCorruptionData::read(int64_t example, int field, const DataBox& box) const {
  const SpanCorruptionOptions& o = options_;
  std::vector<int32_t> text(static_cast<size_t>(length_));
  source_->read(example % source_->examples(), from_, {text.data(), {0}, {length_}, {1}});
  const int64_t least = o.first_sentinel - (spans_ - 1);
  for (int64_t i = 0; i < length_; ++i) {
    const int32_t token = text[static_cast<size_t>(i)];
    if (token < least || token > o.first_sentinel) continue;
    fail(ErrorKind::io,
         "[data] token {} of a text is {}, one of its {} sentinels {} to {}; use a text of smaller "
         "tokens, or another first_sentinel",
         i, token, spans_, least, o.first_sentinel);
  }
  // The seeds of the two kinds of parts differ.
  const auto kept = random_ends(length_ - corrupt_, spans_, mix(o.seed), example);
  const auto lost = random_ends(corrupt_, spans_, ~mix(o.seed), example);
  std::vector<int32_t> made;
  if (field == 1) made.push_back(o.start);
  int64_t at = 0;
  for (size_t s = 0; s < kept.size(); ++s) {
    const int64_t span = kept[s] + (s == 0 ? 0 : lost[s - 1]), end = kept[s] + lost[s];
    const auto sentinel = static_cast<int32_t>(o.first_sentinel - static_cast<int64_t>(s));
    const auto tokens = text.begin();
    if (field == 0) made.insert(made.end(), tokens + at, tokens + span);
    made.push_back(sentinel);
    if (field != 0) made.insert(made.end(), tokens + span, tokens + end);
    at = end;
  }
  made.push_back(o.end);  // of the decoder's inputs it is behind the last one
  for (int64_t i = 0; i < box.extent[0]; ++i)
    static_cast<int32_t*>(box.data)[i * box.strides[0]] =
        made[static_cast<size_t>(box.offset[0] + i)];
}

std::string SpanCorruptionData::fingerprint() const {
  const SpanCorruptionOptions& o = options_;
  return fmt::format("spans: {} of {} tokens in {}, {} {} {}, {} rounds, seed {}: {}", corrupt_,
                     length_, spans_, o.first_sentinel, o.end, o.start, o.rounds, o.seed,
                     source_->fingerprint());
}

std::pair<int64_t, int64_t> SpanCorruptionData::lengths(int64_t length,
                                                        const SpanCorruptionOptions& options) {
  require_spans(options);
  TESSERA_REQUIRE(length >= 2, "[data] texts of {} token to corrupt spans of; they have at least 2",
                  length);
  const auto [corrupt, count] = spans_of(length, options);
  return {length - corrupt + count + 1, corrupt + count + 1};
}

int64_t SpanCorruptionData::text_length(int64_t inputs, const SpanCorruptionOptions& options) {
  require_spans(options);
  const auto fits = [&](int64_t length) { return lengths(length, options).first <= inputs; };
  TESSERA_REQUIRE(
      inputs >= 3 && inputs <= kMostText,
      "[data] inputs of {} tokens for a text with a span; they have at least 3, at most {}", inputs,
      kMostText);
  int64_t length = 2;
  while (length < kMostText && fits(length + 1)) ++length;
  return length;
}

}  // namespace tessera
