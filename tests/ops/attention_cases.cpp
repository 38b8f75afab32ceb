#include "ops/attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "gpu/given_kernel.h"
#include "kernels/common/philox.h"

namespace tessera::test {

namespace {

constexpr double kScale = 0.25;
constexpr int kLength = 2, kMemory = 3, kWidth = 4, kEntries = 5;  // dims; before: heads, group
constexpr int64_t kSeed = 77, kStream = 5, kFirstBit = 2, kFirstStride = 1000003;
constexpr int64_t kGroupBits = 1000000, kQueryBits = 1001;

double number_of(const unsigned char* at, DType type) {
  if (type == DType::float32) {
    float x;
    std::memcpy(&x, at, sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return type == DType::bfloat16 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
}

void put_number(float x, DType type, unsigned char* at) {
  if (type == DType::float32) {
    std::memcpy(at, &x, sizeof(x));
    return;
  }
  const uint16_t bits = type == DType::bfloat16 ? to_bfloat16(x).bits : to_float16(x).bits;
  std::memcpy(at, &bits, sizeof(bits));
}

/// Half a unit in the last place, or what sums in float32 lose.
double unit_of(DType type) {
  return type == DType::bfloat16 ? 0x1p-7 : type == DType::float16 ? 0x1p-10 : 0x1p-18;
}

}  // namespace

std::string AttentionCase::name() const {
  return fmt::format(
      "{} width {} length {} memory {} causal {} heads {} group {} lie {} from {}, {} of {} "
      "window {} segments {} soft cap {} slope {} entries {} dropout {}",
      to_string(type), width, length, memory, causal, heads, group, static_cast<int>(lie),
      first_query, first_key, all_keys, window, segments, soft_cap, slope, entries, dropout);
}

AttentionRun::AttentionRun(const AttentionCase& c)
    : case_(c),
      q_(make(true, true, 1)),
      k_(make(false, false, 2)),
      v_(make(false, false, 3)),
      grad_(make(true, true, 4)),
      out_(make(true, true, 0)),
      dq_(make(true, true, 0)),
      dk_(make(false, false, 0)),
      dv_(make(false, false, 0)) {
  const auto rows = static_cast<size_t>(c.heads * c.group * c.length);
  log_sum_.resize(rows);
  given_log_sum_.resize(rows);
  product_.resize(rows);
  for (size_t i = 0; i < rows; ++i) product_[i] = 0.25f * static_cast<float>(i % 5) - 0.5f;
  start_[0] = static_cast<int32_t>(c.first_query);
  start_[1] = static_cast<int32_t>(c.first_key);
  add(forward_args_, false);
  forward_ = step(false, forward_args_);
  forward_args_.step = &forward_;
  sources_ = cuda::generate_attention(forward_args_);
  forward_sources_ = sources_.size();
  const auto reserve = [&](const Step& step) {
    const auto bytes = static_cast<size_t>(cuda::attention_gpu_workspace(step));
    workspace_.resize(std::max(workspace_.size(), (bytes + 7) / 8));
    forward_args_.workspace = backward_args_.workspace = workspace_.data();
  };
  reserve(forward_);
  if (c.width > 128) return;
  add(backward_args_, true);
  backward_ = step(true, backward_args_);
  backward_args_.step = &backward_;
  reserve(backward_);
  for (cuda::Source& s : cuda::generate_attention_grad(backward_args_))
    sources_.push_back(std::move(s));
}

AttentionRun::Matrix AttentionRun::make(bool by_query, bool grouped, unsigned seed) const {
  const int64_t rows = by_query ? case_.length : case_.memory, width = case_.width;
  const int64_t group = grouped ? case_.group : 1;
  Matrix m;
  m.by_query = by_query;
  m.column = 1;
  m.row = width + (case_.lie == Lie::odd ? 1 : 0);
  m.offset = case_.lie == Lie::odd ? 1 : 0;
  m.of_group = rows * m.row;
  m.head = group * m.of_group;
  if (case_.lie == Lie::rows_first) {
    m.of_group = width;
    m.head = group * width;
    m.row = case_.heads * m.head;
  }
  if (case_.lie == Lie::columns_last) {
    m.row = 1;
    m.column = rows;
  }
  if (!grouped) m.of_group = 0;
  const auto item = static_cast<size_t>(size_of(case_.type));
  m.bytes.resize(item *
                 static_cast<size_t>(m.offset + case_.heads * group * rows * (width + m.offset)));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t at = 0; at < m.bytes.size(); at += item)
    put_number(seed == 0 ? NAN : normal(random), case_.type, &m.bytes[at]);
  return m;
}

double AttentionRun::at(const Matrix& m, int64_t h, int64_t g, int64_t row, int64_t column) const {
  const int64_t i = m.offset + h * m.head + g * m.of_group + row * m.row + column * m.column;
  return number_of(&m.bytes.at(static_cast<size_t>(i * size_of(case_.type))), case_.type);
}

TensorArg AttentionRun::argument(Matrix& m) const {
  const AttentionCase& c = case_;
  return {m.bytes.data() + m.offset * size_of(c.type),
          c.type,
          {c.heads, c.group, m.by_query ? c.length : 1, m.by_query ? 1 : c.memory, c.width},
          {m.head, m.of_group, m.by_query ? m.row : 0, m.by_query ? 0 : m.row, m.column}};
}

TensorArg AttentionRun::numbers(std::vector<float>& values) const {
  const AttentionCase& c = case_;
  return {values.data(),
          DType::float32,
          {c.heads, c.group, c.length, 1, 1},
          {c.group * c.length, c.length, 1, 0, 0}};
}

/// Ids differ between heads, in two orders of memory.
TensorArg AttentionRun::argument(std::vector<int32_t>& ids, bool by_query) const {
  const AttentionCase& c = case_;
  const int64_t first = by_query ? c.first_query : c.first_key;
  const int64_t rows = by_query ? c.length : c.memory;
  ids.clear();
  if (by_query) {
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) ids.push_back(segment(h, first + i));
    }
    return {ids.data(), DType::int32, {c.heads, c.group, rows, 1, 1}, {rows, 0, 1, 0, 0}};
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < c.heads; ++h) ids.push_back(segment(h, first + i));
  }
  return {ids.data(), DType::int32, {c.heads, c.group, 1, rows, 1}, {1, 0, 0, c.heads, 0}};
}

/// Documents of equal length, the second number left out, with padding at both ends.
int32_t AttentionRun::segment(int64_t head, int64_t position) const {
  const int64_t all =
      std::max({case_.length + case_.first_query, case_.memory + case_.first_key, case_.all_keys});
  const int64_t begin = 2 * head, end = all - all / 10;
  if (position < begin || position >= end) return 0;
  const int64_t id = 1 + (position - begin) * case_.segments / std::max<int64_t>(end - begin, 1);
  return static_cast<int32_t>(id > 1 ? id + 1 : id);
}

bool AttentionRun::sees(int64_t head, int64_t query, int64_t key) const {
  const AttentionCase& c = case_;
  const int64_t at = c.first_query + query, from = c.first_key + key;
  if (c.all_keys != 0 && from >= c.all_keys) return false;
  if (c.causal && at < from) return false;
  if (c.window > 0 && std::abs(at - from) >= c.window) return false;
  return c.segments == 0 || (segment(head, at) != 0 && segment(head, at) == segment(head, from));
}

void AttentionRun::add(KernelArgs& args, bool backward) {
  args.in = {argument(q_), argument(k_), argument(v_)};
  if (backward)
    args.in.insert(args.in.end(),
                   {argument(grad_), argument(out_), numbers(given_log_sum_), numbers(product_)});
  for (int i = 0; case_.all_keys != 0 && i < 2; ++i) {
    args.in.push_back(
        {&start_[i], DType::int32, {case_.heads, case_.group, 1, 1, 1}, {0, 0, 0, 0, 0}});
  }
  if (case_.slope > 0) {
    slopes_.clear();
    for (int64_t i = 1; i <= case_.heads * case_.group; ++i)
      slopes_.push_back(static_cast<float>(case_.slope * static_cast<double>(i)));
    args.in.push_back({slopes_.data(),
                       DType::float32,
                       {case_.heads, case_.group, 1, 1, 1},
                       {case_.group, 1, 0, 0, 0}});
  }
  const int64_t heads = case_.heads * case_.group;
  if (case_.entries > 0) {
    entries_.clear();
    for (int64_t i = 0; i < case_.entries * heads; ++i)
      entries_.push_back(std::sin(static_cast<float>(i)));
    args.in.push_back({entries_.data(),
                       DType::float32,
                       {case_.heads, case_.group, 1, 1, 1},
                       {case_.group, 1, 0, 0, 0}});
  }
  if (case_.segments > 0)
    args.in.insert(args.in.end(), {argument(query_ids_, true), argument(key_ids_, false)});
  if (backward)
    args.out = {argument(dq_), argument(dk_), argument(dv_)};
  else
    args.out = {argument(out_), numbers(log_sum_)};
  if (case_.entries == 0) return;
  if (backward) {
    of_entries_.assign(static_cast<size_t>(heads * case_.entries), NAN);
    args.out.push_back({of_entries_.data(),
                        DType::float32,
                        {case_.heads, case_.group, 1, 1, 1},
                        {case_.group * case_.entries, case_.entries, 0, 0, 0}});
  }
  add_dim_of_entries(args);
}

/// The entries are the dim behind the others, of all operands.
void AttentionRun::add_dim_of_entries(KernelArgs& args) {
  for (std::vector<TensorArg>* all : {&args.in, &args.out}) {
    for (TensorArg& arg : *all) {
      const bool is_entries = arg.data == entries_.data(), is_grad = arg.data == of_entries_.data();
      arg.sizes.push_back(case_.entries);
      arg.strides.push_back(is_entries ? case_.heads * case_.group : is_grad ? 1 : 0);
    }
  }
}

/// The factor of a weight.
double AttentionRun::keeps(int64_t head, int64_t query, int64_t key) const {
  if (case_.dropout == 0) return 1;
  const auto bit =
      static_cast<uint64_t>(kFirstBit * kFirstStride + head * kGroupBits +
                            (case_.first_query + query) * kQueryBits + case_.first_key + key);
  const uint32_t word = philox4x32(bit >> 2, kStream, kSeed).w[bit & 3];
  const double uniform = (static_cast<double>(word >> 9) + 0.5) / (1 << 23);
  return uniform < 1 - case_.dropout ? 1 / (1 - case_.dropout) : 0;
}

Step AttentionRun::step(bool backward, const KernelArgs& args) const {
  Step s;
  const bool part = case_.all_keys != 0;
  s.kernel = backward ? KernelKind::attention_grad
             : part   ? KernelKind::attention_part
                      : KernelKind::attention;
  AttentionSpec& spec = s.spec.emplace<AttentionSpec>();
  spec.length = kLength;
  spec.memory_length = kMemory;
  spec.key_dim = kWidth;
  spec.causal = case_.causal;
  spec.scale = kScale;
  if (part) spec.memory = case_.all_keys;
  if (case_.window > 0) spec.window = case_.window;
  spec.segments = case_.segments > 0;
  if (case_.soft_cap > 0) spec.soft_cap = case_.soft_cap;
  spec.slopes = case_.slope > 0;
  if (case_.entries > 0) spec.by_distance = kEntries;
  s.exprs.resize(2);
  if (case_.dropout > 0) {
    spec.dropout = case_.dropout;
    std::vector<int64_t> strides = {case_.group * kGroupBits, kGroupBits, kQueryBits, 1, 0};
    if (case_.entries > 0) strides.push_back(0);
    spec.drawn_strides = strides;
    for (const int64_t x : {kSeed, kStream, kFirstBit, kFirstStride}) {
      s.exprs.emplace_back();
      s.exprs.back().constant = x;
    }
  }
  if (!part) {
    s.exprs[0].constant = case_.first_query;
    s.exprs[1].constant = case_.first_key;
  }
  for (const TensorArg& a : args.in) s.in.push_back({-1, a.dtype, a.sizes, a.strides, 0, {}});
  for (const TensorArg& a : args.out) s.out.push_back({-1, a.dtype, a.sizes, a.strides, 0, {}});
  return s;
}

/// The result of one query, and what it adds to the gradients.
void AttentionRun::add_row(Expected& e, int64_t h, int64_t g, int64_t query) const {
  const AttentionCase& c = case_;
  std::vector<int64_t> keys;
  const int64_t head = h * c.group + g, most = c.entries / 2;
  const auto entry = [&](int64_t key) {
    return std::clamp(c.first_query + query - c.first_key - key, -most, most) + most;
  };
  std::vector<double> logits, slopes, back;
  double sum = 0;
  for (int64_t key = 0; key < c.memory; ++key) {
    if (!sees(h, query, key)) continue;
    double logit = 0, b = 0;
    for (int64_t d = 0; d < c.width; ++d) {
      logit += at(q_, h, g, query, d) * at(k_, h, g, key, d) * kScale;
      b += at(grad_, h, g, query, d) * at(v_, h, g, key, d);
    }
    const double t = c.soft_cap > 0 ? std::tanh(logit / c.soft_cap) : 0;
    if (c.soft_cap > 0) logit = c.soft_cap * t;
    logit -= c.slope * static_cast<double>(h * c.group + g + 1) *
             static_cast<double>(std::abs(c.first_query + query - c.first_key - key));
    if (c.entries > 0)
      logit += entries_.at(static_cast<size_t>(entry(key) * c.heads * c.group + head));
    keys.push_back(key);
    logits.push_back(logit);
    slopes.push_back(1 - t * t);
    back.push_back(b);
    sum += std::exp(logit);
  }
  const auto row = static_cast<size_t>((h * c.group + g) * c.length + query);
  e.log_sum[row] = keys.empty() ? -1e30 : std::log(sum);
  // The gradient is given the sums of a whole where other keys had as much weight as these.
  for (size_t i = 0; i < keys.size(); ++i) {
    const double share = std::exp(logits[i]) / sum, weight = share / 2,
                 keep = keeps(head, query, keys[i]);
    const double of_logit = weight * (keep * back[i] - product_[row]),
                 slope = of_logit * slopes[i] * kScale;
    if (c.entries > 0)
      e.of_entries[static_cast<size_t>(head * c.entries + entry(keys[i]))] += of_logit;
    for (int64_t d = 0; d < c.width; ++d) {
      const size_t of_query = row * static_cast<size_t>(c.width) + static_cast<size_t>(d);
      const auto of_key = static_cast<size_t>((h * c.memory + keys[i]) * c.width + d);
      e.out[of_query] += keep * share * at(v_, h, g, keys[i], d);
      e.dq[of_query] += slope * at(k_, h, g, keys[i], d);
      e.dk[of_key] += slope * at(q_, h, g, query, d);
      e.dv[of_key] += keep * weight * at(grad_, h, g, query, d);
    }
  }
}

AttentionRun::Expected AttentionRun::expect() {
  const AttentionCase& c = case_;
  const auto queries = static_cast<size_t>(c.heads * c.group * c.length * c.width),
             keys = static_cast<size_t>(c.heads * c.memory * c.width);
  Expected e;
  e.out.resize(queries);
  e.dq.resize(queries);
  e.dk.resize(keys);
  e.dv.resize(keys);
  e.log_sum.resize(log_sum_.size());
  e.of_entries.resize(of_entries_.size());
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t g = 0; g < c.group; ++g) {
      for (int64_t query = 0; query < c.length; ++query) add_row(e, h, g, query);
    }
  }
  for (size_t i = 0; i < log_sum_.size(); ++i)
    given_log_sum_[i] = static_cast<float>(e.log_sum[i] + std::log(2.0));
  return e;
}

/// Sums of squares: rounding weights, their gradients and the result once each comes to about a
/// quarter of a unit in the last place; the worst element may be off by a few units of the
/// greatest.
std::string AttentionRun::compare(const char* what, const Matrix& got,
                                  const std::vector<double>& expected, int64_t group) const {
  const AttentionCase& c = case_;
  const int64_t rows = got.by_query ? c.length : c.memory;
  double error = 0, norm = 0, worst = 0, greatest = 0;
  size_t i = 0;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t d = 0; d < c.width; ++d, ++i) {
          const double x = at(got, h, g, row, d), off = std::abs(x - expected[i]);
          if (!(off <= 1e30)) return fmt::format("\n{}: {} has {}", c.name(), what, x);
          error += off * off;
          norm += expected[i] * expected[i];
          worst = std::max(worst, off);
          greatest = std::max(greatest, std::abs(expected[i]));
        }
      }
    }
  }
  const double unit = unit_of(c.type);
  const double floor = 1e-3 * std::sqrt(static_cast<double>(i));
  const bool good = std::sqrt(error) <= unit / 2 * (std::sqrt(norm) + floor) &&
                    worst <= 2 * unit * (greatest + 1e-3);
  return good ? ""
              : fmt::format("\n{}: {} is off by {:.3g} of {:.3g}, worst {:.3g} of {:.3g}", c.name(),
                            what, std::sqrt(error), std::sqrt(norm), worst, greatest);
}

std::string AttentionRun::errors(KernelsAs as) {
  std::vector<const HostKernel*> kernels;
  for (const cuda::Source& s : sources_) announce_host_kernel(s.text, as);
  for (const cuda::Source& s : sources_) kernels.push_back(&host_kernel(s.text, as));
  return errors(kernels);
}

std::string AttentionRun::errors(const std::vector<const HostKernel*>& kernels) {
  const Expected e = expect();
  for (size_t s = 0; s < sources_.size(); ++s) {
    const GivenKernel g(sources_[s], s < forward_sources_ ? forward_args_ : backward_args_);
    kernels.at(s)->run(g.words.data(), sources_[s].blocks, sources_[s].threads, &g.memory);
    if (g.fault->step != 0) return fmt::format("\n{}: the segments go back", case_.name());
  }
  std::string errors = compare("out", out_, e.out, case_.group);
  for (size_t i = 0; i < log_sum_.size(); ++i) {
    if (!(std::abs(log_sum_[i] - e.log_sum[i]) <= 1e-5 * (1 + std::abs(e.log_sum[i]))))
      errors +=
          fmt::format("\n{}: log_sum {} is {}, not {}", case_.name(), i, log_sum_[i], e.log_sum[i]);
  }
  if (sources_.size() == forward_sources_) return errors;
  for (size_t i = 0; i < of_entries_.size(); ++i) {
    if (!(std::abs(of_entries_[i] - e.of_entries[i]) <= 1e-4 * (1 + std::abs(e.of_entries[i]))))
      errors += fmt::format("\n{}: of entry {} is {}, not {}", case_.name(), i, of_entries_[i],
                            e.of_entries[i]);
  }
  return errors + compare("dq", dq_, e.dq, case_.group) + compare("dk", dk_, e.dk, 1) +
         compare("dv", dv_, e.dv, 1);
}

}  // namespace tessera::test
