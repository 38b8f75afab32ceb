// window and fold: every position before the dim, output index and window index have one input
// index, at which the elements after the dim are copied (window) or added (fold) as one row. Rows
// that are adjacent on both sides are moved as one. All three indices begin where this rank's
// slices do. Runs of rows are found once, for all positions before the dim, which threads share.
// Rows outside of the dim read the fill value and add to nothing; padding is left alone.

#include <algorithm>
#include <cstring>

#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

struct Relation : WindowSpec {
  explicit Relation(const KernelArgs& args) : WindowSpec(args.step->as<WindowSpec>()) {
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

  /// Rows from the first of `to` on have those from the first of `from` on; -1: outside.
  struct Run {
    int64_t from, to, rows;
  };
  /// For one position before the dim: all positions have the same.
  std::vector<Run> runs() const {
    std::vector<Run> runs;
    const int64_t first_o = std::max<int64_t>(0, -out_begin),
                  last_o = std::min(out_memory, out_size - out_begin),
                  last_k = std::min(window_memory, window_size - window_begin);
    for (int64_t o = first_o; o < last_o; ++o) {
      for (int64_t k = 0; k < last_k; ++k) {
        const int64_t from = place(o + out_begin, k + window_begin), to = o * window_memory + k;
        Run* last = runs.empty() ? nullptr : &runs.back();
        const bool follows = last != nullptr && to == last->to + last->rows &&
                             (last->from < 0 ? from < 0 : from == last->from + last->rows);
        if (follows) {
          ++last->rows;
        } else {
          runs.push_back({from, to, 1});
        }
      }
    }
    return runs;
  }

  int64_t begin, out_begin, window_begin;
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

/// What both kernels are: threads share the positions before the dim.
class Moved : public Kernel {
 public:
  explicit Moved(const KernelArgs& args)
      : in_(args.in.at(0)),
        out_(args.out.at(0)),
        relation_(args),
        runs_(relation_.runs()),
        pool_(args.pool) {}
  void run() override {
    if (pool_ == nullptr) return run_part(0, relation_.pre);
    pool_->run([this](int thread) {
      const int64_t threads = pool_->size();
      run_part(relation_.pre * thread / threads, relation_.pre * (thread + 1) / threads);
    });
  }

 protected:
  /// Positions before the dim from `begin` to `end`.
  virtual void run_part(int64_t begin, int64_t end) const = 0;
  /// Calls visit(offset with the dim or -1 if outside, offset with the windows, elements).
  template <class Visit>
  void each_run(int64_t begin, int64_t end, Visit visit) const {
    const Relation& r = relation_;
    for (int64_t p = begin; p < end; ++p) {
      const int64_t dim = p * r.memory * r.post,
                    windows = p * r.out_memory * r.window_memory * r.post;
      for (const Relation::Run& run : runs_)
        visit(run.from < 0 ? -1 : dim + run.from * r.post, windows + run.to * r.post,
              run.rows * r.post);
    }
  }

  TensorArg in_, out_;
  Relation relation_;
  std::vector<Relation::Run> runs_;
  ThreadPool* pool_;
};

class Window final : public Moved {
 public:
  using Moved::Moved;

 private:
  void run_part(int64_t begin, int64_t end) const override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T fill = fill_value<T>(relation_.fill);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      each_run(begin, end, [&](int64_t from, int64_t to, int64_t n) {
        if (from < 0) {
          std::fill(out + to, out + to + n, fill);
        } else {
          std::memcpy(out + to, in + from, static_cast<size_t>(n) * sizeof(T));
        }
      });
    });
  }
};

class Fold final : public Moved {
 public:
  using Moved::Moved;

 private:
  void run_part(int64_t begin, int64_t end) const override {
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* in = static_cast<const T*>(in_.data);
      T* out = static_cast<T*>(out_.data);
      const int64_t each = relation_.memory * relation_.post;
      std::fill(out + begin * each, out + end * each, T{});
      each_run(begin, end, [&](int64_t to, int64_t from, int64_t n) {
        for (int64_t i = 0; to >= 0 && i < n; ++i) {
          out[to + i] =
              store_as<T>(static_cast<Compute<T>>(load_as(out[to + i]) + load_as(in[from + i])));
        }
      });
    });
  }
};

}  // namespace

/// Of elements in the windows.
Sharing share_window(const Step& step, int) {
  if (step.order.is_strict()) return {};
  const auto& sizes = step.as<WindowSpec>();
  const int64_t n = sizes.pre * sizes.out_memory * sizes.window_memory * sizes.post;
  return {-1, sizes.pre < 2 ? 0 : 0.5 * static_cast<double>(n)};
}

std::unique_ptr<Kernel> bind_window(const KernelArgs& args) {
  return std::make_unique<Window>(args);
}
std::unique_ptr<Kernel> bind_fold(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_fold(args);
  return std::make_unique<Fold>(args);
}

int64_t fold_workspace(const Step& step) {
  return step.order.is_strict() ? ordered_fold_workspace(step) : 0;
}

}  // namespace tessera::cpu
