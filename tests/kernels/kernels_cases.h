// Tensors for kernel tests: any dtype and strides, filled with reproducible values, read as double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "base/float16.h"
#include "kernels/common/kernel.h"
#include "kernels/common/pointwise.h"

namespace tessera::test {

using Sizes = std::vector<int64_t>;

inline Sizes dense_strides(const Sizes& sizes) {
  Sizes s(sizes.size(), 1);
  for (int d = static_cast<int>(sizes.size()) - 2; d >= 0; --d) s[d] = s[d + 1] * sizes[d + 1];
  return s;
}

/// A tensor in its own memory, with a margin that must stay untouched.
struct Box {
  DType dtype = DType::float32;
  Sizes sizes, strides;
  std::vector<char> memory;

  Box() = default;
  Box(DType t, Sizes n, Sizes s = {}) : dtype(t), sizes(std::move(n)), strides(std::move(s)) {
    if (strides.empty()) strides = dense_strides(sizes);
    int64_t extent = 1;
    for (size_t d = 0; d < sizes.size(); ++d)
      extent += std::max<int64_t>(0, sizes[d] - 1) * strides[d];
    memory.assign(static_cast<size_t>((extent + 8) * size_of(t)), 0);
  }
  int64_t elements() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
  }
  View view() const {
    View v;
    v.dtype = dtype;
    v.sizes = sizes;
    v.strides = strides;
    return v;
  }
  TensorArg arg() { return TensorArg{memory.data(), dtype, sizes, strides}; }

  int64_t offset(const Sizes& index) const {
    return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
  }
  double get(const Sizes& index) const {
    const char* p = memory.data() + offset(index) * size_of(dtype);
    auto as = [&](auto x) {
      std::memcpy(&x, p, sizeof x);
      return x;
    };
    switch (dtype) {
      case DType::float32:
        return as(float{});
      case DType::float64:
        return as(double{});
      case DType::bfloat16:
        return to_float(as(BFloat16{}));
      case DType::float16:
        return to_float(as(Float16{}));
      case DType::int32:
        return as(int32_t{});
      case DType::int64:
        return static_cast<double>(as(int64_t{}));
      default:
        return as(uint8_t{});
    }
  }
  void set(const Sizes& index, double v) {
    char* p = memory.data() + offset(index) * size_of(dtype);
    auto put = [&](auto x) { std::memcpy(p, &x, sizeof x); };
    switch (dtype) {
      case DType::float32:
        return put(static_cast<float>(v));
      case DType::float64:
        return put(v);
      case DType::bfloat16:
        return put(to_bfloat16(static_cast<float>(v)));
      case DType::float16:
        return put(to_float16(static_cast<float>(v)));
      case DType::int32:
        return put(static_cast<int32_t>(v));
      case DType::int64:
        return put(static_cast<int64_t>(v));
      default:
        return put(static_cast<uint8_t>(v));
    }
  }
};

/// body(index) for every index below `sizes`.
inline void each(const Sizes& sizes, const std::function<void(const Sizes&)>& body) {
  Sizes index(sizes.size(), 0);
  for (int64_t s : sizes) {
    if (s == 0) return;
  }
  while (true) {
    body(index);
    int d = static_cast<int>(sizes.size()) - 1;
    for (; d >= 0 && ++index[d] == sizes[d]; --d) index[d] = 0;
    if (d < 0) return;
  }
}

/// Integers for integer types (0 and 1 for bool), else normal numbers.
inline void fill_random(Box& box, unsigned seed, double scale = 1.0) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, scale);
  each(box.sizes, [&](const Sizes& i) {
    if (is_floating(box.dtype)) return box.set(i, normal(engine));
    const int range = box.dtype == DType::bool_ ? 2 : 7;
    const int low = box.dtype == DType::int32 || box.dtype == DType::int64 ? -3 : 0;
    box.set(i, static_cast<int>(engine() % range) + low);
  });
}

/// The strides of `sizes` laid out in memory in the order `order` (slowest first).
inline Sizes permuted_strides(const Sizes& sizes, const std::vector<int>& order) {
  Sizes s(sizes.size());
  int64_t stride = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    s[*it] = stride;
    stride *= sizes[*it];
  }
  return s;
}

/// Binds and runs a kernel once; returns the data fault.
inline DataFault run_kernel(
    KernelKind kind, Step step, std::vector<Box*> in, std::vector<Box*> out,
    const std::function<std::unique_ptr<Kernel>(const KernelArgs&)>& bind = {}) {
  KernelArgs args;
  DataFault fault;
  const int64_t scalars[1] = {5};
  const int coordinates[1] = {0};
  for (Box* b : in) step.in.push_back(b->view()), args.in.push_back(b->arg());
  for (Box* b : out) step.out.push_back(b->view()), args.out.push_back(b->arg());
  const KernelEntry* entry = find_cpu_kernel(kind);
  std::vector<char> workspace(
      static_cast<size_t>(entry->workspace_bytes != nullptr ? entry->workspace_bytes(step) : 0) +
      64);
  args.step = &step;
  args.coordinates = coordinates;
  args.scalars = scalars;
  args.workspace =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  args.fault = &fault;
  (bind ? bind(args) : entry->bind(args))->run();
  return fault;
}

inline AffineExpr number(int64_t value) {
  AffineExpr e;
  e.constant = value;
  return e;
}

inline double tolerance(DType t) {
  switch (t) {
    case DType::float32:
      return 2e-6;
    case DType::float64:
      return 1e-13;
    case DType::bfloat16:
      return 1.0 / 128;
    case DType::float16:
      return 1.0 / 1024;
    default:
      return 0;
  }
}

/// Equal within the tolerance of the dtype, relative to `scale`; NaN equals NaN.
inline bool close(double x, double y, DType t, double scale) {
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  return x == y || std::abs(x - y) <= tolerance(t) * std::max(scale, std::abs(y));
}

}  // namespace tessera::test
