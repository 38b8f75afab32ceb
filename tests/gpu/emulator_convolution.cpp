// Loops over dense operands in the layout that was said.
#include "gpu/emulator_convolution.h"

#include "base/float16.h"
#include "gpu/emulator_blas.h"

namespace tessera::test {

namespace {

/// Where an element of x or y, or of the filter, lies.
struct Places {
  int64_t channels, rows, columns;
  bool last;
  int64_t at(int64_t n, int64_t c, int64_t i, int64_t j) const {
    return last ? ((n * rows + i) * columns + j) * channels + c
                : ((n * channels + c) * rows + i) * columns + j;
  }
  int64_t bytes(int64_t n, DType t) const { return n * channels * rows * columns * size_of(t); }
};

struct Sizes {
  Places x, filter, y;
};

Sizes sizes_of(const CudaConv& c) {
  const auto &h = c.dims[0], &w = c.dims[1];
  return {{c.groups * c.inputs, h.in, w.in, c.channels_last},
          {c.inputs, h.window, w.window, c.channels_last},
          {c.groups * c.outputs, h.out, w.out, c.channels_last}};
}

/// Calls f(x, filter, y) with the places of every product that is summed.
template <class F>
void for_products(const CudaConv& c, F f) {
  const Sizes s = sizes_of(c);
  const auto &h = c.dims[0], &w = c.dims[1];
  for (int64_t n = 0; n < c.images; ++n) {
    for (int64_t k = 0; k < c.groups * c.outputs; ++k) {
      for (int64_t i = 0; i < c.inputs; ++i) {
        for (int64_t at = 0; at < h.out * w.out * h.window * w.window; ++at) {
          const int64_t q = at % w.out, p = at / w.out % h.out;
          const int64_t v = at / (w.out * h.out) % w.window, u = at / (w.out * h.out * w.window);
          const int64_t row = p * h.stride + u * h.dilation - h.pad,
                        column = q * w.stride + v * w.dilation - w.pad;
          if (row < 0 || row >= h.in || column < 0 || column >= w.in) continue;
          const int64_t input = k / c.outputs * c.inputs + i;
          f(s.x.at(n, input, row, column), s.filter.at(k, i, u, v), s.y.at(n, k, p, q));
        }
      }
    }
  }
}

/// Rounded to tf32, which has 10 bits of fraction, where that is allowed.
template <class T>
float wide(T x, bool tf32) {
  if constexpr (std::is_same_v<T, float>) {
    if (!tf32) return x;
    const uint32_t bits = bits_as<uint32_t>(x);
    return bits_as<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
  } else {
    return to_float(x);
  }
}

template <class T>
void convolve(const CudaConv& c, const void* first, const void* second, void* result,
              int64_t results) {
  const T *a = static_cast<const T*>(first), *b = static_cast<const T*>(second);
  std::vector<float> sums(static_cast<size_t>(results));
  for_products(c, [&](int64_t x, int64_t filter, int64_t y) {
    const int64_t to = c.result == 0 ? y : c.result == 1 ? x : filter;
    const int64_t from = c.result == 1 ? y : x, other = c.result == 2 ? y : filter;
    sums[static_cast<size_t>(to)] += wide(a[from], c.tf32) * wide(b[other], c.tf32);
  });
  for (size_t k = 0; k < sums.size(); ++k) {
    T& to = static_cast<T*>(result)[k];
    if constexpr (std::is_same_v<T, float>)
      to = sums[k];
    else
      to = narrowed(sums[k], T{});
  }
}

}  // namespace

CudaConvolution EmulatedConvolution::prepare(const CudaConv& conv) {
  return reinterpret_cast<CudaConvolution>(new CudaConv(conv));
}

void EmulatedConvolution::run(CudaConvolution convolution, const void* first, const void* second,
                              void* result, void* workspace, CudaStream stream) {
  const CudaConv c = *reinterpret_cast<CudaConv*>(convolution);
  ++state_.counts.convolutions;
  const Sizes s = sizes_of(c);
  const int64_t x = s.x.bytes(c.images, c.dtype), y = s.y.bytes(c.images, c.dtype),
                filter = s.filter.bytes(c.groups * c.outputs, c.dtype);
  const int64_t bytes = c.result == 0 ? y : c.result == 1 ? x : filter;
  EmulatorState::Work work{"convolution", {}, {}, {}};
  work.reads = {{first, c.result == 1 ? y : x}, {second, c.result == 2 ? y : filter}};
  work.writes = {{result, bytes}, {workspace, EmulatedBlas::kWorkspace}};
  work.run = [=] {
    const int64_t results = bytes / size_of(c.dtype);
    if (c.dtype == DType::float32) return convolve<float>(c, first, second, result, results);
    c.dtype == DType::float16 ? convolve<Float16>(c, first, second, result, results)
                              : convolve<BFloat16>(c, first, second, result, results);
  };
  state_.submit(stream, std::move(work));
}

void EmulatedConvolution::release(CudaConvolution convolution) {
  delete reinterpret_cast<CudaConv*>(convolution);
}

}  // namespace tessera::test
