// window and fold: for every place before the dim, output index and window index there is one input
// index, at which the elements behind the dim are copied (window) or added (fold) as one row. Rows
// outside read the fill and add to nothing.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/tables.h"
#include "kernels/cpu/types.h"

namespace tessera::cpu {
namespace {

struct Relation {
  explicit Relation(const Attrs& a)
      : pre(a.get<int64_t>("pre")),
        post(a.get<int64_t>("post")),
        size(a.get<int64_t>("size")),
        memory(a.get<int64_t>("memory")),
        out_size(a.get<int64_t>("out_size")),
        out_memory(a.get<int64_t>("out_memory")),
        window_size(a.get<int64_t>("window_size")),
        window_memory(a.get<int64_t>("window_memory")),
        stride(a.get<int64_t>("stride")),
        dilation(a.get<int64_t>("dilation")),
        lo(a.get<int64_t>("lo")),
        wrap(a.get<int64_t>("wrap") != 0),
        fill(a.get<double>("fill")) {}

  /// Calls visit(offset with the dim, or -1 if outside; offset with the windows) for each row.
  template <class Visit>
  void each_row(Visit visit) const {
    for (int64_t p = 0; p < pre; ++p) {
      for (int64_t o = 0; o < out_size; ++o) {
        for (int64_t k = 0; k < window_size; ++k) {
          int64_t i = stride * o + dilation * k - lo;
          if (wrap) i = (i % size + size) % size;
          const int64_t windowed = ((p * out_memory + o) * window_memory + k) * post;
          visit(i < 0 || i >= size ? -1 : (p * memory + i) * post, windowed);
        }
      }
    }
  }

  int64_t pre, post, size, memory, out_size, out_memory, window_size, window_memory, stride,
      dilation, lo;
  bool wrap;
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
      : in_(args.in.at(0)), out_(args.out.at(0)), relation_(args.step->attrs) {}
  void run() override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T fill = fill_value<T>(relation_.fill);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      relation_.each_row([&](int64_t from, int64_t to) {
        if (from < 0) {
          std::fill(out + to, out + to + relation_.post, fill);
        } else {
          std::memcpy(out + to, in + from, static_cast<size_t>(relation_.post) * sizeof(T));
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
      : in_(args.in.at(0)), out_(args.out.at(0)), relation_(args.step->attrs) {}
  void run() override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      std::fill(out, out + relation_.pre * relation_.memory * relation_.post, T{});
      relation_.each_row([&](int64_t to, int64_t from) {
        for (int64_t i = 0; to >= 0 && i < relation_.post; ++i) {
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
