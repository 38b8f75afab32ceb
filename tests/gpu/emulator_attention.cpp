// Loops over operands where it was said that they lie.
#include "gpu/emulator_attention.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/float16.h"

namespace tessera::test {

namespace {

using Strides = CudaAttend::Strides;

int64_t place(const Strides& s, int64_t batch, int64_t head, int64_t position) {
  return batch * s.batch + head * s.head + position * s.position;
}

/// The bytes from the first to the last element of a tensor.
CudaRange range_of(const void* first, const Strides& s, int64_t batch, int64_t heads,
                   int64_t positions, int64_t width, int64_t element) {
  const int64_t last =
      (batch - 1) * s.batch + (heads - 1) * s.head + (positions - 1) * s.position + width;
  return {first, last * element};
}

template <class T>
class Attention {
 public:
  Attention(const CudaAttend& a, const CudaAttendOperands& o)
      : a_(a), o_(o), logits_(static_cast<size_t>(a.keys)) {}

  void run() {
    const int64_t shares = a_.heads / a_.key_heads;
    for (int64_t b = 0; b < a_.batch; ++b) {
      for (int64_t k = 0; k < a_.key_heads; ++k) {
        const auto count = static_cast<size_t>(a_.keys * a_.width);
        key_grad_.assign(count, 0);
        value_grad_.assign(count, 0);
        for (int64_t h = k * shares; h < (k + 1) * shares; ++h) {
          for (int64_t i = 0; i < a_.queries; ++i)
            a_.backward ? backward(b, h, k, i) : forward(b, h, k, i);
        }
        if (!a_.backward) continue;
        for (int64_t j = 0; j < a_.keys; ++j) {
          store(o_.key_grad, place(a_.key_grad, b, k, j), &key_grad_[first(j)]);
          store(o_.value_grad, place(a_.value_grad, b, k, j), &value_grad_[first(j)]);
        }
      }
    }
  }

 private:
  size_t first(int64_t key) const { return static_cast<size_t>(key * a_.width); }
  int64_t seen(int64_t query) const { return a_.causal ? std::min(query + 1, a_.keys) : a_.keys; }
  static float get(const void* from, int64_t at) {
    return to_float(static_cast<const T*>(from)[at]);
  }
  void store(void* to, int64_t at, const double* row) const {
    for (int64_t d = 0; d < a_.width; ++d)
      static_cast<T*>(to)[at + d] = narrowed(static_cast<float>(row[d]), T{});
  }
  double dot(const void* a, int64_t at, const void* b, int64_t other) const {
    double sum = 0;
    for (int64_t d = 0; d < a_.width; ++d) sum += get(a, at + d) * get(b, other + d);
    return sum;
  }
  void take_logits(int64_t b, int64_t h, int64_t k, int64_t i) {
    for (int64_t j = 0; j < seen(i); ++j)
      logits_[static_cast<size_t>(j)] =
          a_.scale * dot(o_.query, place(a_.query, b, h, i), o_.key, place(a_.key, b, k, j));
  }
  float& log_sum(int64_t b, int64_t h, int64_t i) {
    return static_cast<float*>(o_.log_sum)[place(a_.log_sum, b, h, i)];
  }

  void forward(int64_t b, int64_t h, int64_t k, int64_t i) {
    take_logits(b, h, k, i);
    const auto last = logits_.begin() + seen(i);
    const double most = *std::max_element(logits_.begin(), last);
    double sum = 0;
    for (auto logit = logits_.begin(); logit != last; ++logit) sum += std::exp(*logit - most);
    log_sum(b, h, i) = static_cast<float>(most + std::log(sum));
    std::vector<double> row(static_cast<size_t>(a_.width));
    for (int64_t j = 0; j < seen(i); ++j) {
      const double share = std::exp(logits_[static_cast<size_t>(j)] - most) / sum;
      const int64_t value = place(a_.value, b, k, j);
      for (size_t d = 0; d < row.size(); ++d)
        row[d] += share * get(o_.value, value + static_cast<int64_t>(d));
    }
    store(o_.out, place(a_.out, b, h, i), row.data());
  }

  void backward(int64_t b, int64_t h, int64_t k, int64_t i) {
    take_logits(b, h, k, i);
    const int64_t grad = place(a_.grad, b, h, i), query = place(a_.query, b, h, i);
    const double mean = dot(o_.grad, grad, o_.out, place(a_.out, b, h, i));
    std::vector<double> row(static_cast<size_t>(a_.width));
    for (int64_t j = 0; j < seen(i); ++j) {
      const double share = std::exp(logits_[static_cast<size_t>(j)] - log_sum(b, h, i));
      const int64_t key = place(a_.key, b, k, j);
      const double by_share = dot(o_.grad, grad, o_.value, place(a_.value, b, k, j));
      const double by_logit = share * (by_share - mean) * a_.scale;
      for (size_t d = 0; d < row.size(); ++d) {
        const auto at = static_cast<int64_t>(d);
        row[d] += by_logit * get(o_.key, key + at);
        key_grad_[first(j) + d] += by_logit * get(o_.query, query + at);
        value_grad_[first(j) + d] += share * get(o_.grad, grad + at);
      }
    }
    store(o_.query_grad, place(a_.query_grad, b, h, i), row.data());
  }

  const CudaAttend a_;
  const CudaAttendOperands o_;
  std::vector<double> logits_, key_grad_, value_grad_;
};

}  // namespace

CudaAttention EmulatedAttention::prepare(const CudaAttend& attend, int64_t workspace,
                                         std::string& why) {
  const int64_t wanted = state_.settings.attention_bytes;
  why = fmt::format("the emulator wants {} bytes, not {}", wanted, workspace);
  if (workspace < wanted) return nullptr;
  return reinterpret_cast<CudaAttention>(new CudaAttend(attend));
}

void EmulatedAttention::run(CudaAttention attention, const CudaAttendOperands& o, void* workspace,
                            CudaStream stream) {
  const CudaAttend a = *reinterpret_cast<CudaAttend*>(attention);
  TESSERA_CHECK(reinterpret_cast<uintptr_t>(workspace) % 256 == 0,
                "a workspace at no multiple of 256");
  ++state_.counts.attentions;
  EmulatorState::Work work{"attention", {}, {}, {}};
  const auto of_queries = [&](const void* at, const Strides& s) {
    return range_of(at, s, a.batch, a.heads, a.queries, a.width, size_of(a.dtype));
  };
  const auto of_keys = [&](const void* at, const Strides& s) {
    return range_of(at, s, a.batch, a.key_heads, a.keys, a.width, size_of(a.dtype));
  };
  const CudaRange out = of_queries(o.out, a.out),
                  log_sums = range_of(o.log_sum, a.log_sum, a.batch, a.heads, a.queries, 1,
                                      size_of(DType::float32));
  work.reads = {of_queries(o.query, a.query), of_keys(o.key, a.key), of_keys(o.value, a.value)};
  work.writes = {{workspace, state_.settings.attention_bytes}};
  if (a.backward) {
    for (const CudaRange& read : {out, log_sums, of_queries(o.grad, a.grad)})
      work.reads.push_back(read);
    for (const CudaRange& write :
         {of_queries(o.query_grad, a.query_grad), of_keys(o.key_grad, a.key_grad),
          of_keys(o.value_grad, a.value_grad)})
      work.writes.push_back(write);
  } else {
    work.writes.push_back(out);
    work.writes.push_back(log_sums);
  }
  work.run = [=] {
    a.dtype == DType::float16 ? Attention<Float16>(a, o).run() : Attention<BFloat16>(a, o).run();
  };
  state_.submit(stream, std::move(work));
}

void EmulatedAttention::release(CudaAttention attention) {
  delete reinterpret_cast<CudaAttend*>(attention);
}

}  // namespace tessera::test
