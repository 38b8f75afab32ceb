// Masked tokens and corrupted spans: what is made of a text, and that it depends on nothing else.
#include "tessera/denoising_data.h"

#include <algorithm>
#include <memory>

#include "io/corpus_files.h"
#include "support/io_folder.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::Ints;
using test::read_field;
using Floats = std::vector<float>;

/// Tokens from 100 on that differ within an example; in a field "kept", 7 everywhere.
class Texts : public DataSource {
 public:
  Texts(int64_t count, int64_t length, DType dtype = DType::int32) : count_(count) {
    fields_ = {{"kept", DType::int32, {Dim("length", length)}},
               {"inputs", dtype, {Dim("length", length)}}};
  }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return count_; }
  void read(int64_t example, int field, const DataBox& box) const override {
    for (int64_t i = 0; i < box.extent[0]; ++i)
      static_cast<int32_t*>(box.data)[i * box.strides[0]] =
          field == 0 ? 7 : static_cast<int32_t>(100 + example + box.offset[0] + i);
  }

 private:
  int64_t count_;
  std::vector<DataField> fields_;
};

std::shared_ptr<const DataSource> texts(int64_t count, int64_t length) {
  return std::make_shared<Texts>(count, length);
}

MaskingOptions masking(int64_t vocabulary = 30000) {
  MaskingOptions o;
  o.mask_token = 3;
  o.vocabulary = vocabulary;
  return o;
}

SpanCorruptionOptions spans() {
  SpanCorruptionOptions o;
  o.first_sentinel = 99;
  return o;
}

/// A field of an example, read in slices of 5 that go backwards.
Ints in_slices(const DataSource& data, int64_t example, const std::string& name, int64_t length) {
  Ints all(static_cast<size_t>(length));
  for (int64_t from = (length - 1) / 5 * 5; from >= 0; from -= 5) {
    const Ints part =
        read_field<int32_t>(data, example, name, from, std::min<int64_t>(5, length - from));
    std::copy(part.begin(), part.end(), all.begin() + from);
  }
  return all;
}

TEST_CASE("masked tokens: a share is chosen, most of them become the mask", "[corpus][fast]") {
  const int64_t length = 20000;
  const MaskedData data(texts(2, length), masking());
  REQUIRE(data.fields().size() == 4);
  CHECK(data.fields()[3].name == "kept");
  CHECK(read_field<int32_t>(data, 0, "kept") == Ints(static_cast<size_t>(length), 7));
  const Ints inputs = read_field<int32_t>(data, 0, "inputs");
  const Ints targets = read_field<int32_t>(data, 0, "targets");
  const Floats weights = read_field<float>(data, 0, "weights");
  CHECK(targets == read_field<int32_t>(*texts(2, length), 0, "inputs"));
  double chosen = 0, masked = 0, same = 0, wrong = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    chosen += weights[i];
    if (weights[i] == 0) {
      wrong += inputs[i] != targets[i];
    } else {
      wrong += weights[i] != 1 || inputs[i] < 0 || inputs[i] >= 30000;
      masked += inputs[i] == 3;
      same += inputs[i] == targets[i];
    }
  }
  CHECK(wrong == 0);
  CHECK(std::abs(chosen / length - 0.15) < 0.01);  // four deviations
  CHECK(std::abs(masked / chosen - 0.8) < 0.03);
  CHECK(std::abs(same / chosen - 0.1) < 0.023);
}

TEST_CASE("masked tokens are a function of seed, example and round", "[corpus][fast]") {
  const int64_t length = 203;
  MaskingOptions o = masking();
  o.rounds = 2;
  const MaskedData data(texts(3, length), o);
  CHECK(data.examples() == 6);
  const Ints first = read_field<int32_t>(data, 1, "inputs");
  CHECK(first == in_slices(data, 1, "inputs", length));
  CHECK(first == read_field<int32_t>(MaskedData(texts(3, length), o), 1, "inputs"));
  CHECK(read_field<int32_t>(data, 1, "targets") == read_field<int32_t>(data, 4, "targets"));
  CHECK(first != read_field<int32_t>(data, 4, "inputs"));
  CHECK(read_field<float>(data, 1, "weights") != read_field<float>(data, 2, "weights"));
  o.seed = 1;
  const MaskedData other(texts(3, length), o);
  CHECK(first != read_field<int32_t>(other, 1, "inputs"));
  CHECK(data.fingerprint() != other.fingerprint());
}

TEST_CASE("special tokens are never masked", "[corpus][fast]") {
  MaskingOptions o = masking();
  o.share = 1, o.never = {100, 104};
  const MaskedData data(texts(1, 6), o);
  CHECK(read_field<float>(data, 0, "weights") == Floats{0, 1, 1, 1, 0, 1});
  o.masked = 1, o.random = 0;
  CHECK(read_field<int32_t>(MaskedData(texts(1, 6), o), 0, "inputs") == Ints{100, 3, 3, 3, 104, 3});
}

/// Two samples and padding, packed: their prompts have the tokens 10 and 11, 20; their answers 12
/// and 13, 21 and 22. A weight is that of the next token, as SftData has it.
class Samples : public DataSource {
 public:
  explicit Samples(DType weights = DType::float32) {
    const std::vector<Dim> dims = {Dim("length", 8)};
    fields_ = {{"inputs", DType::int32, dims},
               {"segments", DType::int32, dims},
               {"weights", weights, dims}};
  }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return 1; }
  void read(int64_t, int field, const DataBox& box) const override {
    const int32_t tokens[] = {10, 11, 12, 13, 20, 21, 22, 0}, segments[] = {1, 1, 1, 1, 2, 2, 2, 0};
    const float weights[] = {0, 1, 1, 1, 1, 1, 1, 0};
    for (int64_t i = 0; i < box.extent[0]; ++i) {
      const int64_t at = box.offset[0] + i, to = i * box.strides[0];
      if (field == 2)
        static_cast<float*>(box.data)[to] = weights[at];
      else
        static_cast<int32_t*>(box.data)[to] = field == 0 ? tokens[at] : segments[at];
    }
  }

 private:
  std::vector<DataField> fields_;
};

TEST_CASE("prompts and padding are never masked", "[corpus][fast]") {
  const Folder f;
  MaskingOptions o = masking();
  o.share = 1, o.masked = 1, o.random = 0;
  const MaskedData data(std::make_shared<Samples>(), o);
  CHECK(read_field<float>(data, 0, "weights") == Floats{0, 0, 1, 1, 0, 1, 1, 0});
  CHECK(read_field<int32_t>(data, 0, "inputs") == Ints{10, 11, 3, 3, 20, 3, 3, 0});
  CHECK(read_field<int32_t>(data, 0, "targets") == Ints{10, 11, 12, 13, 20, 21, 22, 0});
  CHECK(in_slices(data, 0, "inputs", 8) == read_field<int32_t>(data, 0, "inputs"));
  CHECK(data.fields().size() == 4);  // with segments
  CHECK(f.error([&] { MaskedData(std::make_shared<Samples>(DType::int32), o); }) ==
        "usage [data] the source's field 'weights' is int32 with 1 dims; weights of its tokens are "
        "float32 with the dim of 'inputs', or have another name");
}

TEST_CASE("corrupted spans: inputs and targets together are the text", "[corpus][fast]") {
  const int64_t length = 41;
  SpanCorruptionOptions o = spans();
  o.density = 0.3, o.rounds = 3, o.end = 1, o.start = 0;  // 12 tokens in 4 spans
  const SpanCorruptionData data(texts(5, length), o);
  REQUIRE(data.examples() == 15);
  std::vector<Ints> seen;
  for (int64_t example = 0; example < data.examples(); ++example) {
    const Ints inputs = read_field<int32_t>(data, example, "inputs");
    const Ints targets = read_field<int32_t>(data, example, "targets");
    REQUIRE(inputs.size() == 34);
    REQUIRE(targets.size() == 17);
    CHECK(inputs == in_slices(data, example, "inputs", 34));
    CHECK(targets == in_slices(data, example, "targets", 17));
    Ints shifted = {0};
    shifted.insert(shifted.end(), targets.begin(), targets.end() - 1);
    CHECK(read_field<int32_t>(data, example, "decoder_inputs") == shifted);
    CHECK(inputs.front() >= 100);  // a text begins outside of a span
    CHECK(inputs.back() == 1);
    CHECK(targets.back() == 1);
    Ints text, sentinels;
    for (const int32_t token : inputs) {
      if (token == 1) break;
      if (token >= 100) {
        text.push_back(token);
        continue;
      }
      sentinels.push_back(token);
      auto at = std::find(targets.begin(), targets.end(), token);
      REQUIRE(at != targets.end());
      const size_t before = text.size();
      for (++at; *at >= 100; ++at) text.push_back(*at);
      CHECK(text.size() > before);
    }
    CHECK(sentinels == Ints{99, 98, 97, 96});
    CHECK(text == read_field<int32_t>(*texts(5, length), example % 5, "inputs"));
    CHECK(std::find(seen.begin(), seen.end(), inputs) == seen.end());
    seen.push_back(inputs);
  }
  o.seed = 1;
  const SpanCorruptionData other(texts(5, length), o);
  CHECK(read_field<int32_t>(other, 0, "inputs") != seen[0]);
  CHECK(other.fingerprint() != data.fingerprint());
}

TEST_CASE("corrupted spans have the sizes of T5", "[corpus][fast]") {
  CHECK(SpanCorruptionData::text_length(512, spans()) == 568);
  const SpanCorruptionData data(texts(1, 568), spans());
  CHECK(data.fields()[0].dims == std::vector{Dim("length", 512)});
  CHECK(data.fields()[1].dims == std::vector{Dim("target_length", 114)});
  CHECK(data.fields()[2].dims == std::vector{Dim("target_length", 114)});
  const SpanCorruptionData least(texts(1, 2), spans());
  CHECK(read_field<int32_t>(least, 0, "inputs") == Ints{100, 99, 1});
  CHECK(read_field<int32_t>(least, 0, "targets") == Ints{99, 101, 1});
}

TEST_CASE("errors of masked tokens and corrupted spans", "[corpus][errors]") {
  const Folder f;
  const auto masked = [&](auto change, std::shared_ptr<const DataSource> source) {
    return f.error([&] {
      MaskingOptions o = masking(10);
      change(o);
      MaskedData(std::move(source), o);
    });
  };
  const auto error = [&](auto change) { return masked(change, texts(2, 4)); };
  CHECK(masked([](auto&) {}, nullptr) ==
        "usage [data] no source of texts to corrupt; give one, as a TextData");
  CHECK(error([](auto& o) { o.source = "text"; }) ==
        "usage [data] the source has no field 'text' of tokens, int32 with 1 dim, but kept (int32, "
        "1 dims), inputs (int32, 1 dims); name it in the option source");
  CHECK(masked([](auto&) {}, std::make_shared<Texts>(1, 4, DType::float32)) ==
        "usage [data] the source has no field 'inputs' of tokens, int32 with 1 dim, but kept "
        "(int32, 1 dims), inputs (float32, 1 dims); name it in the option source");
  CHECK(error([](auto& o) { o.share = 1.5; }) ==
        "usage [data] a share of chosen tokens of 1.5; it is a share from 0 to 1");
  CHECK(error([](auto& o) { o.masked = -1; }) ==
        "usage [data] a share of masked tokens of -1; it is a share from 0 to 1");
  CHECK(error([](auto& o) { o.random = 0.5; }) ==
        "usage [data] shares of masked and random tokens of 0.8 and 0.5; their sum is at most 1");
  CHECK(
      error([](auto& o) { o.mask_token = 10; }) ==
      "usage [data] the mask 10 of a vocabulary of 10; it is a token from 0, below the vocabulary "
      "(MaskingOptions::vocabulary, at most 2^31)");
  CHECK(error([](auto& o) { o.rounds = 0; }) ==
        "usage [data] 0 rounds of 2 examples; there is at least 1, and at most 2^63 - 1 examples "
        "in all");
  const auto corrupted = [&](auto change, int64_t length = 40) {
    return f.error([&] {
      SpanCorruptionOptions o = spans();
      change(o);
      SpanCorruptionData(texts(2, length), o);
    });
  };
  CHECK(corrupted([](auto& o) { o.density = 1; }) ==
        "usage [data] a density of 1 of corrupted tokens; it is above 0 and below 1");
  CHECK(corrupted([](auto& o) { o.mean_span = 0.5; }) ==
        "usage [data] spans of 0.5 tokens on average; they have at least 1");
  CHECK(corrupted([](auto&) {}, 1) ==
        "usage [data] texts of 1 token to corrupt spans of; they have at least 2");
  CHECK(corrupted([](auto& o) { o.first_sentinel = 0; }) ==
        "usage [data] sentinels from 0 down for 2 spans, end 1 and start 0; none is below 0");
  CHECK(f.error([] { SpanCorruptionData::text_length(2, spans()); }) ==
        "usage [data] inputs of 2 tokens for a text with a span; they have at least 3, at most "
        "16777216");
  CHECK(f.error([] {
    SpanCorruptionOptions o = spans();
    o.first_sentinel = 104;
    const SpanCorruptionData data(texts(1, 40), o);
    read_field<int32_t>(data, 0, "inputs");
  }) == "io [data] token 3 of a text is 103, one of its 2 sentinels 103 to 104; use a text of "
        "smaller tokens, or another first_sentinel");
}

}  // namespace TESSERA_FILE
}  // namespace tessera
