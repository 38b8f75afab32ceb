// Prompts and answers for a model with an encoder. An example takes samples as long as both their
// sides fit.
#include "base/crc32c.h"
#include "base/fail.h"
#include "io/sft_samples.h"
#include "tessera/sft_data.h"

namespace tessera {

namespace {

/// Fields, in their order.
enum Field { kInputs, kSegments, kDecoderInputs, kTargets, kDecoderSegments, kWeights };

}  // namespace

PairData::PairData(const std::string& path, const std::string& tokenizer_path,
                   const PairOptions& options)
    : options_(options) {
  TESSERA_REQUIRE(
      options.length >= 1 && options.target_length >= 1,
      "[data] examples of prompts of {} tokens and answers of {}; they have at least 1 token",
      options.length, options.target_length);
  TESSERA_REQUIRE(options.first >= 0 && options.first < options.last && options.last <= 1,
                  "[data] the part {} to {} of the samples; it needs 0 <= first < last <= 1",
                  options.first, options.last);
  const Tokenizer tokenizer = load_fitting_tokenizer(tokenizer_path, options.vocabulary);
  for_each_sample(path, [&](const nlohmann::json& json, const std::string& where) {
    Sample sample;
    tokenizer.encode_to(sample_text(json, "prompt", where), sample.prompt,
                        {.special_in_text = false});
    tokenizer.encode_to(sample_text(json, "completion", where), sample.answer,
                        {.special_in_text = false});
    require_keys(json, {"prompt", "completion"}, "the sample", where);
    if (sample.answer.empty())
      fail(ErrorKind::io, "[data] {}: the completion is empty; nothing is learnt from it", where);
    sample.prompt.push_back(options.end);
    sample.answer.push_back(options.end);
    if (make_fit(sample, where)) {
      samples_.push_back(std::move(sample));
    } else {
      ++left_out_;
    }
  });
  const auto [first, last] =
      part_of_samples(path, std::ssize(samples_), left_out_, options.first, options.last);
  samples_ = {std::make_move_iterator(samples_.begin() + first),
              std::make_move_iterator(samples_.begin() + last)};
  pack();
  const std::vector<Dim> read = {Dim("length", options.length)},
                         written = {Dim("target_length", options.target_length)};
  fields_ = {{"inputs", DType::int32, read},
             {"segments", DType::int32, read},
             {"decoder_inputs", DType::int32, written},
             {"targets", DType::int32, written},
             {"decoder_segments", DType::int32, written},
             {"weights", DType::float32, written}};
}

/// False: the sample is left out.
bool PairData::make_fit(Sample& sample, const std::string& where) const {
  const int64_t prompt = std::ssize(sample.prompt), answer = std::ssize(sample.answer);
  if (prompt <= options_.length && answer <= options_.target_length) return true;
  if (options_.too_long == SftOptions::TooLong::error)
    fail(ErrorKind::io,
         "[data] {}: the prompt has {} tokens and the completion {}, with their ends, but an "
         "example "
         "has {} and {}; make them longer, or say what to do with data.too_long=skip or truncate",
         where, prompt, answer, options_.length, options_.target_length);
  if (options_.too_long == SftOptions::TooLong::skip) return false;
  if (prompt > options_.length) {
    sample.prompt.resize(static_cast<size_t>(options_.length));
    sample.prompt.back() = options_.end;
  }
  if (answer > options_.target_length)
    sample.answer.resize(static_cast<size_t>(options_.target_length));
  return true;
}

void PairData::pack() {
  uint32_t sum = 0;
  int64_t reads = 0, writes = 0;  // what is left of an example
  for (int64_t i = 0; i < std::ssize(samples_); ++i) {
    const Sample& s = samples_[static_cast<size_t>(i)];
    if (examples_.empty() || std::ssize(s.prompt) > reads || std::ssize(s.answer) > writes) {
      examples_.push_back({i, 0});
      reads = options_.length, writes = options_.target_length;
    }
    ++examples_.back().samples;
    reads -= std::ssize(s.prompt), writes -= std::ssize(s.answer);
    for (const std::vector<int32_t>* tokens : {&s.prompt, &s.answer}) {
      const auto size = static_cast<uint64_t>(tokens->size());
      sum = crc32c(&size, sizeof(size), sum);
      sum = crc32c(tokens->data(), tokens->size() * sizeof(int32_t), sum);
    }
  }
  fingerprint_ = fmt::format("{} pairs, checksum {:08x}, examples of {} and {}", samples_.size(),
                             sum, options_.length, options_.target_length);
}

std::string PairData::fingerprint() const { return fingerprint_; }

void PairData::read(int64_t example, int field, const DataBox& box) const {
  const Example& e = examples_[static_cast<size_t>(example)];
  const bool is_prompt = field == kInputs || field == kSegments;
  const auto tokens_of = [&](int64_t sample) -> const std::vector<int32_t>& {
    const Sample& s = samples_[static_cast<size_t>(sample)];
    return is_prompt ? s.prompt : s.answer;
  };
  const int64_t last = e.first_sample + e.samples;
  int64_t sample = e.first_sample, begin = 0;  // of this sample, in places of the example
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const int64_t at = box.offset[0] + i;
    while (sample < last && at - begin >= std::ssize(tokens_of(sample)))
      begin += std::ssize(tokens_of(sample++));
    const auto p = static_cast<size_t>(at - begin);  // in the sample
    if (field == kWeights) {
      static_cast<float*>(box.data)[i * box.strides[0]] = sample < last ? 1.0F : 0.0F;
      continue;
    }
    int32_t value = 0;
    if (sample < last) {
      const std::vector<int32_t>& tokens = tokens_of(sample);
      if (field == kInputs || field == kTargets) value = tokens[p];
      if (field == kDecoderInputs) value = p == 0 ? options_.start : tokens[p - 1];
      if (field == kSegments || field == kDecoderSegments)
        value = static_cast<int32_t>(sample - e.first_sample + 1);
    }
    static_cast<int32_t*>(box.data)[i * box.strides[0]] = value;
  }
}

}  // namespace tessera
