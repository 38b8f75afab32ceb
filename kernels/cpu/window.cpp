// window and fold: every position before the dim, output index and window index have one input
// index, at which the elements after the dim are copied (window) or added (fold) as one row. Rows
// that are adjacent on both sides are moved as one. All three indices begin where this rank's
// slices do. Rows outside of the dim read the fill value and add to nothing; padding is left alone.
#include "kernels/common/window.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

struct Relation : WindowSizes {
  explicit Relation(const KernelArgs& args) : WindowSizes(args.step->attrs) {
    fill = args.step->attrs.get<double>("fill");
    begin = eval(args, 0);
    out_begin = eval(args, 1);
    window_begin = eval(args, 2);
  }

  /// Where row stride * o + dilation * k - lo is in the slice; -1 if it is outside of the dim or
  /// (fold) of the slice.
  int64_t place(int64_t o, int64_t k) const {
    const int64_t i = stride * o + dilation * k - lo;
    int64_t at = i - begin;
    if (wrap) at = (at % size + size) % size;
    const bool inside = (wrap || (i >= 0 && i < size)) && at >= 0 && at < memory;
    return inside ? at : -1;
  }

  /// Calls visit(offset with the dim or -1 if outside, offset with the windows, rows).
  template <class Visit>
  void each_run(Visit visit) const {
    const int64_t first_o = std::max<int64_t>(0, -out_begin),
                  last_o = std::min(out_memory, out_size - out_begin),
                  last_k = std::min(window_memory, window_size - window_begin);
    for (int64_t p = 0; p < pre; ++p) {
      int64_t from = 0, to = 0, rows = 0;
      auto flush = [&] {
        if (rows > 0) visit(from < 0 ? -1 : (p * memory + from) * post, to * post, rows);
      };
      for (int64_t o = first_o; o < last_o; ++o) {
        for (int64_t k = 0; k < last_k; ++k) {
          const int64_t at = place(o + out_begin, k + window_begin);
          const int64_t windowed = (p * out_memory + o) * window_memory + k;
          const bool follows =
              rows > 0 && windowed == to + rows && (from < 0 ? at < 0 : at == from + rows);
          if (!follows) {
            flush();
            from = at, to = windowed, rows = 0;
          }
          ++rows;
        }
      }
      flush();
    }
  }

  int64_t begin, out_begin, window_begin;
  double fill;
};

template <class T>
T fill_value(double fill) {
  if constexpr (std::is_integral_v<T>) {
    if (fill <= static_cast<double>(std::numeric_limits<T>::min()))
      return std::numeric_limits<T>::min();
    if (fill >= static_cast<double>(std::numeric_limits<T>::max()))
      return std::numeric_limits<T>::max();
    return static_cast<T>(fill);
  } else {
    return store_as<T>(static_cast<Compute<T>>(fill));
  }
}

class Window final : public Kernel {
 public:
  explicit Window(const KernelArgs& args)
      : in_(args.in.at(0)), out_(args.out.at(0)), relation_(args) {}
  void run() override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T fill = fill_value<T>(relation_.fill);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      relation_.each_run([&](int64_t from, int64_t to, int64_t rows) {
        const int64_t n = rows * relation_.post;
        if (from < 0) {
          std::fill(out + to, out + to + n, fill);
        } else {
          std::memcpy(out + to, in + from, static_cast<size_t>(n) * sizeof(T));
        }
      });
    });
  }

 private:
  TensorArg in_, out_;
  Relation relation_;
};

class Fold final : public Kernel {
 public:
  explicit Fold(const KernelArgs& args)
      : in_(args.in.at(0)), out_(args.out.at(0)), relation_(args) {}
  void run() override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      std::fill(out, out + relation_.pre * relation_.memory * relation_.post, T{});
      relation_.each_run([&](int64_t to, int64_t from, int64_t rows) {
        const int64_t n = to < 0 ? 0 : rows * relation_.post;
        for (int64_t i = 0; i < n; ++i) {
          out[to + i] =
              store_as<T>(static_cast<Compute<T>>(load_as(out[to + i]) + load_as(in[from + i])));
        }
      });
    });
  }

 private:
  TensorArg in_, out_;
  Relation relation_;
};

}  // namespace

std::unique_ptr<Kernel> bind_window(const KernelArgs& args) {
  return std::make_unique<Window>(args);
}
std::unique_ptr<Kernel> bind_fold(const KernelArgs& args) { return std::make_unique<Fold>(args); }

}  // namespace tessera::cpu
