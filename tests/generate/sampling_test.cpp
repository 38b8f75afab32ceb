#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/generate.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

/// ln of 0.4, 0.3, 0.2, 0.1, in another order.
const std::vector<float> kLogits = {std::log(0.2f), std::log(0.4f), std::log(0.1f), std::log(0.3f)};

/// How often each token is chosen in `draws` places.
std::map<int32_t, double> shares(const Sampling& s, int draws = 4000,
                                 const std::vector<int32_t>& seen = {}) {
  std::map<int32_t, double> result;
  std::vector<int32_t> text = seen;
  for (int i = 0; i < draws; ++i) {
    result[sample_token(kLogits.data(), 4, text, s)] += 1.0 / draws;
    text.push_back(seen.empty() ? 3 : seen[0]);
  }
  return result;
}

std::set<int32_t> tokens_of(const Sampling& s) {
  std::set<int32_t> tokens;
  for (const auto& [token, share] : shares(s)) tokens.insert(token);
  return tokens;
}

TEST_CASE("sampling follows the distribution, as the temperature sharpens it", "[generate]") {
  const auto plain = shares({});
  const std::vector<double> want = {0.2, 0.4, 0.1, 0.3};
  for (int32_t t = 0; t < 4; ++t) CHECK(plain.at(t) == Approx(want[t]).margin(0.03));
  Sampling sharp;
  sharp.temperature = 0.5;  // squares: 0.04, 0.16, 0.01, 0.09
  const auto squared = shares(sharp);
  for (int32_t t = 0; t < 4; ++t)
    CHECK(squared.at(t) == Approx(want[t] * want[t] / 0.3).margin(0.03));
  Sampling greedy;
  greedy.temperature = 0;
  CHECK(tokens_of(greedy) == std::set<int32_t>{1});
  const std::vector<float> equal = {1, 2, 2};
  CHECK(sample_token(equal.data(), 3, {}, greedy) == 1);
}

TEST_CASE("top_k, top_p and min_p leave out the unlikely tokens", "[generate]") {
  const auto with = [](int64_t k, double p, double least) {
    Sampling s;
    s.top_k = k, s.top_p = p, s.min_p = least;
    return tokens_of(s);
  };
  CHECK(with(2, 1, 0) == std::set<int32_t>{1, 3});
  CHECK(with(1, 1, 0) == std::set<int32_t>{1});
  CHECK(with(9, 1, 0) == std::set<int32_t>{0, 1, 2, 3});
  CHECK(with(0, 0.1, 0) == std::set<int32_t>{1});
  CHECK(with(0, 0.69, 0) == std::set<int32_t>{1, 3});
  CHECK(with(0, 0.75, 0) == std::set<int32_t>{0, 1, 3});
  CHECK(with(0, 1, 0.6) == std::set<int32_t>{1, 3});
  CHECK(with(3, 0.95, 0.6) == std::set<int32_t>{1, 3});
}

TEST_CASE("the repetition penalty makes tokens of the text less likely", "[generate]") {
  Sampling s;
  s.repetition_penalty = 2;  // ln 0.4 becomes ln 0.16
  const auto got = shares(s, 4000, {1});
  CHECK(got.at(1) == Approx(0.16 / 0.76).margin(0.03));
  const std::vector<float> positive = {3, 4};
  s.temperature = 0;
  CHECK(sample_token(positive.data(), 2, {1}, s) == 0);
  CHECK(sample_token(positive.data(), 2, {}, s) == 1);
}

TEST_CASE("penalties count the tokens behind the prompt, and biases move logits", "[generate]") {
  Sampling s;
  s.temperature = 0;
  s.presence_penalty = 0.5;  // token 1 leads token 3 by ln(4/3) = 0.29
  CHECK(sample_token(kLogits.data(), 4, {1, 2}, s) == 3);
  s.penalties_from = 1;
  CHECK(sample_token(kLogits.data(), 4, {1, 2}, s) == 1);
  CHECK(sample_token(kLogits.data(), 4, {1, 2, 1}, s) == 3);
  s.presence_penalty = 0;
  s.frequency_penalty = 0.2;  // once is not enough
  CHECK(sample_token(kLogits.data(), 4, {1, 2, 1}, s) == 1);
  CHECK(sample_token(kLogits.data(), 4, {1, 1, 2, 1}, s) == 3);
  s.frequency_penalty = -0.5;
  CHECK(sample_token(kLogits.data(), 4, {1, 2, 2, 2, 2}, s) == 2);
  Sampling biased;
  biased.logit_bias = {{2, 100}, {9, 100}};
  CHECK(shares(biased, 50).at(2) == Approx(1));
}

TEST_CASE("a sample depends on seed, stream and place alone", "[generate]") {
  Sampling a, b, c;
  b.seed = 1, c.stream = 1;
  int differ_by_seed = 0, differ_by_stream = 0;
  std::vector<int32_t> text;
  for (int i = 0; i < 100; ++i) {
    const int32_t token = sample_token(kLogits.data(), 4, text, a);
    CHECK(sample_token(kLogits.data(), 4, text, a) == token);
    differ_by_seed += sample_token(kLogits.data(), 4, text, b) != token;
    differ_by_stream += sample_token(kLogits.data(), 4, text, c) != token;
    text.push_back(0);
  }
  CHECK(differ_by_seed > 30);
  CHECK(differ_by_stream > 30);
}

TEST_CASE("options of sampling out of range are usage errors", "[generate][errors]") {
  const auto refused = [](const std::function<void(Sampling&)>& set, const std::string& words) {
    Sampling s;
    set(s);
    expect_usage({"[sample]", words}, [&] { sample_token(kLogits.data(), 4, {}, s); });
  };
  refused([](Sampling& s) { s.temperature = -1; }, "temperature -1; it is 0 or more");
  refused([](Sampling& s) { s.top_k = -1; }, "top_k -1; it is 0 or more");
  refused([](Sampling& s) { s.top_p = 0; }, "top_p 0; it is above 0 and at most 1");
  refused([](Sampling& s) { s.min_p = 2; }, "min_p 2; it is from 0 to 1");
  refused([](Sampling& s) { s.repetition_penalty = 0; }, "repetition_penalty 0; it is above 0");
  refused([](Sampling& s) { s.presence_penalty = NAN; },
          "frequency_penalty 0 and presence_penalty");
  refused([](Sampling& s) { s.logit_bias = {{3, INFINITY}}; }, "logit_bias of token 3 is inf");
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  for (const double temperature : {0.0, 0.7}) {
    Sampling s;
    s.temperature = temperature;
    const auto fails = [&](std::vector<float> logits, const std::string& words) {
      expect_usage({"[sample] a logit for place 1 is " + words, "the parameters have values"},
                   [&] { sample_token(logits.data(), std::ssize(logits), {0}, s); });
    };
    fails({1, 3, nan}, "nan for token 2");
    fails({nan, 3, 2}, "nan for token 0");
    fails({1, inf, nan}, "inf for token 1");
    fails({-inf, -inf}, "-inf for all of the 2 tokens");
    const std::vector<float> some = {-inf, 2, -inf};
    CHECK(sample_token(some.data(), 3, {}, s) == 1);
  }
}

}  // namespace TESSERA_FILE
