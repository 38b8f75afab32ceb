// Rotary positions by a table of cos and sin. The partner of each element is found by shifts: a
// pair's first element takes the one `apart` behind it, its second the one `apart` before it, and
// elements that are not rotated have cos 1 and sin 0.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/fail.h"
#include "nn/stored.h"
#include "tessera/nn_transformer.h"

namespace tessera::nn {

namespace {

int64_t rotated_elements(const RotaryOptions& o, int64_t size, Loc at) {
  const double wanted = o.share * static_cast<double>(size);
  const auto n = static_cast<int64_t>(wanted);
  TESSERA_REQUIRE(
      o.share > 0 && o.share <= 1 && n >= 2 && n % 2 == 0,
      "[rotary] a share {} of {} elements is {}; pairs need an even number from 2 to {} ({})",
      o.share, size, wanted, size, where(at));
  return n;
}

void require_scaling(const RotaryOptions& o, Loc at) {
  const RotaryScaling& s = o.scaling;
  TESSERA_REQUIRE(o.base > 0 && std::isfinite(o.base),
                  "[rotary] base {}; it must be positive and finite ({})", o.base, where(at));
  TESSERA_REQUIRE(s.factor > 0 && std::isfinite(s.factor) && s.original_length > 0,
                  "[rotary] scaling by factor {} from length {}; both are positive ({})", s.factor,
                  s.original_length, where(at));
  TESSERA_REQUIRE(
      s.kind != RotaryScaling::Kind::llama3 ||
          (s.low_frequency > 0 && s.high_frequency > s.low_frequency),
      "[rotary] llama3 scaling from low_frequency {} to high_frequency {}; the second is "
      "larger, the first positive ({})",
      s.low_frequency, s.high_frequency, where(at));
  TESSERA_REQUIRE(
      s.kind != RotaryScaling::Kind::yarn || (s.beta_slow > 0 && s.beta_fast > s.beta_slow),
      "[rotary] yarn scaling from beta_slow {} to beta_fast {}; the second is larger, the "
      "first positive ({})",
      s.beta_slow, s.beta_fast, where(at));
}

double llama3_rate(double f, const RotaryScaling& s) {
  const double wave = 2 * std::numbers::pi / f;
  if (wave < s.original_length / s.high_frequency) return f;
  if (wave > s.original_length / s.low_frequency) return f / s.factor;
  const double smooth =
      (s.original_length / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return (1 - smooth) * f / s.factor + smooth * f;
}

/// The pair (a fraction) that turns `turns` times in the original length.
double pair_of_turns(double turns, const RotaryOptions& o, double size) {
  return size * std::log(o.scaling.original_length / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(o.base));
}

void scale_by_yarn(std::vector<double>& rates, const RotaryOptions& o, double size) {
  const RotaryScaling& s = o.scaling;
  double low = pair_of_turns(s.beta_fast, o, size), high = pair_of_turns(s.beta_slow, o, size);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rates.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    rates[i] = rates[i] / s.factor * ramp + rates[i] * (1 - ramp);
  }
}

double table_factor(const RotaryScaling& s) {
  if (s.kind != RotaryScaling::Kind::yarn) return 1;
  if (s.attention_factor != 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1;
}

}  // namespace

std::vector<double> rotary_rates(const RotaryOptions& o, int64_t size, Loc at) {
  require_scaling(o, at);
  const auto n = static_cast<double>(rotated_elements(o, size, at));
  std::vector<double> rates;
  for (double i = 0; i < n / 2; ++i) rates.push_back(std::pow(o.base, -2 * i / n));
  for (double& f : rates) {
    if (o.scaling.kind == RotaryScaling::Kind::linear) f /= o.scaling.factor;
    if (o.scaling.kind == RotaryScaling::Kind::llama3) f = llama3_rate(f, o.scaling);
  }
  if (o.scaling.kind == RotaryScaling::Kind::yarn) scale_by_yarn(rates, o, n);
  return rates;
}

RotaryTable rotary_table(Graph& g, const Dim& length, const Dim& depth, const RotaryOptions& o,
                         Tensor positions, DType dtype, Loc at) {
  return on_behalf_of("rotary_table", at, [&] {
    const std::vector<double> pairs = rotary_rates(o, depth.size, at);
    const auto half = std::ssize(pairs);
    std::vector<float> rates(static_cast<size_t>(depth.size)), signs(rates.size());
    for (int64_t i = 0; i < 2 * half; ++i) {
      const int64_t pair = o.interleaved ? i / 2 : i % half;
      const bool is_second = o.interleaved ? i % 2 == 1 : i >= half;
      rates[static_cast<size_t>(i)] = static_cast<float>(pairs[static_cast<size_t>(pair)]);
      signs[static_cast<size_t>(i)] = is_second ? 1 : -1;
    }
    const double factor = table_factor(o.scaling);
    const auto along_depth = [&](const std::vector<float>& values) {
      return read_as(constant(g, Array::of<float>({depth}, values), at), dtype, at);
    };
    Tensor position = positions.empty() ? iota(g, length, DType::int32, at) : positions;
    Tensor angle = mul(cast(position, dtype, at), along_depth(rates), at);
    Tensor sin_of = mul(sin(angle, at), along_depth(signs), at), cos_of = cos(angle, at);
    RotaryTable table;
    table.cos = factor == 1 ? cos_of : cos_of * factor;
    table.sin = factor == 1 ? sin_of : sin_of * factor;
    table.apart = o.interleaved ? 1 : half;
    return table;
  });
}

Tensor rotary(Tensor x, const std::string& depth, const RotaryTable& table, Loc at) {
  return on_behalf_of("rotary", at, [&] {
    Graph& g = x.graph();
    const Dim dim = x.dim(depth);
    TESSERA_REQUIRE(table.cos.shape().has(depth) && table.cos.dim(depth).size == dim.size,
                    "the table {} is not for heads of the dim '{}' with {} elements",
                    table.cos.shape().to_string(), depth, dim.size);
    const DType exact = table.cos.dtype();
    Tensor partner;
    if (2 * table.apart == dim.size) {
      partner = shift(x, depth, table.apart, true, at);
    } else {
      Tensor index = iota(g, dim, DType::int32, at);
      Tensor is_first = table.apart == 1 ? equal(mod(index, 2.0), constant(g, 0, DType::int32), at)
                                         : index < static_cast<double>(table.apart);
      partner = where(is_first, shift(x, depth, -table.apart, false, at),
                      shift(x, depth, table.apart, false, at), at);
    }
    Tensor turned =
        add(mul(read_as(x, exact), table.cos, at), mul(read_as(partner, exact), table.sin, at), at);
    return read_as(turned, x.dtype());
  });
}

}  // namespace tessera::nn
