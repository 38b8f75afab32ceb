// Sampling goes through tokens in the order of their ids: logits of two layouts differ in their
// last bits, and an order by probability would swap tokens that are equally likely.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/fail.h"
#include "generate/stepper.h"
#include "kernels/common/philox.h"
#include "tessera/generate.h"

namespace tessera {

namespace {

void require_in_range(const Sampling& s, Loc at) {
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  TESSERA_REQUIRE(positive(s.repetition_penalty),
                  "[sample] repetition_penalty {}; it is above 0, and 1 for none ({})",
                  s.repetition_penalty, where(at));
  TESSERA_REQUIRE(std::isfinite(s.frequency_penalty) && std::isfinite(s.presence_penalty),
                  "[sample] frequency_penalty {} and presence_penalty {}; both are numbers, and 0 "
                  "for none ({})",
                  s.frequency_penalty, s.presence_penalty, where(at));
  for (const auto& [token, bias] : s.logit_bias)
    TESSERA_REQUIRE(std::isfinite(bias),
                    "[sample] logit_bias of token {} is {}; it is a number ({})", token, bias,
                    where(at));
  TESSERA_REQUIRE(std::isfinite(s.temperature) && s.temperature >= 0,
                  "[sample] temperature {}; it is 0 or more ({})", s.temperature, where(at));
  TESSERA_REQUIRE(s.top_k >= 0, "[sample] top_k {}; it is 0 or more ({})", s.top_k, where(at));
  TESSERA_REQUIRE(s.top_p > 0 && s.top_p <= 1,
                  "[sample] top_p {}; it is above 0 and at most 1 ({})", s.top_p, where(at));
  TESSERA_REQUIRE(s.min_p >= 0 && s.min_p <= 1, "[sample] min_p {}; it is from 0 to 1 ({})",
                  s.min_p, where(at));
}

/// Uniform in [0, 1), with 53 bits.
double uniform(const Sampling& s, uint64_t place) {
  const PhiloxWords words = philox4x32(place, s.stream, s.seed);
  const uint64_t bits = (uint64_t{words.w[0]} << 32 | words.w[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

/// Leaves out all tokens but the k likeliest.
void keep_top_k(std::vector<double>& logits, int64_t k) {
  if (k == 0 || k >= std::ssize(logits)) return;
  std::vector<double> sorted = logits;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const double least = sorted[static_cast<size_t>(k - 1)];
  for (double& x : logits) x = x < least ? kImpossible : x;
}

/// Leaves out the tokens behind the likeliest that together have `share` of all.
void keep_top_p(std::vector<double>& weights, double share) {
  if (share >= 1) return;
  std::vector<double> sorted;
  double all = 0, sum = 0;
  for (const double w : weights) {
    if (w > 0) sorted.push_back(w);
    all += w;
  }
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double least = 0;
  for (size_t i = 0; i < sorted.size() && sum < share * all; ++i) sum += least = sorted[i];
  for (double& w : weights) w = w < least ? 0 : w;
}

}  // namespace

void require_numbers(const float* logits, int64_t vocabulary, const std::string& whose, Loc at) {
  const float* end = logits + vocabulary;
  const float* found =
      std::find_if(logits, end, [](float x) { return std::isnan(x) || x == HUGE_VALF; });
  TESSERA_REQUIRE(found == end,
                  "{} is {} for token {}; a logit is a number, or -inf for a token that cannot "
                  "come: the parameters have values that are not finite ({})",
                  whose, *found, found - logits, where(at));
  TESSERA_REQUIRE(
      std::any_of(logits, end, [](float x) { return std::isfinite(x); }),
      "{} is -inf for all of the {} tokens; the parameters have values that are not finite ({})",
      whose, vocabulary, where(at));
}

std::string logit_of(size_t prompt, size_t place) {
  return fmt::format("[generate] a logit of prompt {} for place {}", prompt, place);
}

int32_t sample_token(const float* logits, int64_t vocabulary, const std::vector<int32_t>& text,
                     const Sampling& s, Loc at) {
  require_in_range(s, at);
  require_numbers(logits, vocabulary, fmt::format("[sample] a logit for place {}", text.size()),
                  at);
  std::vector<double> x(logits, logits + vocabulary);
  if (s.repetition_penalty != 1) {
    for (const int32_t token : text) {
      if (token < 0 || token >= vocabulary) continue;
      const double raw = static_cast<double>(logits[token]);
      x[static_cast<size_t>(token)] =
          raw > 0 ? raw / s.repetition_penalty : raw * s.repetition_penalty;
    }
  }
  if (s.frequency_penalty != 0 || s.presence_penalty != 0) {
    std::map<int32_t, int64_t> counts;
    for (size_t i = static_cast<size_t>(std::max<int64_t>(0, s.penalties_from)); i < text.size();
         ++i)
      ++counts[text[i]];
    for (const auto& [token, count] : counts) {
      if (token >= 0 && token < vocabulary)
        x[static_cast<size_t>(token)] -=
            static_cast<double>(count) * s.frequency_penalty + s.presence_penalty;
    }
  }
  for (const auto& [token, bias] : s.logit_bias) {
    if (token >= 0 && token < vocabulary) x[static_cast<size_t>(token)] += bias;
  }
  const auto best = std::max_element(x.begin(), x.end());
  if (s.temperature == 0) return static_cast<int32_t>(best - x.begin());
  const double top = *best;
  keep_top_k(x, s.top_k);
  for (double& v : x) v = std::exp((v - top) / s.temperature);
  keep_top_p(x, s.top_p);
  double all = 0;
  for (double& w : x) all += w = w < s.min_p ? 0 : w;
  double left = uniform(s, text.size()) * all;
  int32_t chosen = static_cast<int32_t>(best - x.begin());
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] <= 0) continue;
    chosen = static_cast<int32_t>(i);
    left -= x[i];
    if (left < 0) break;
  }
  return chosen;
}

}  // namespace tessera
