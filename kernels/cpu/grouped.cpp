// Grouped matmuls. The positions of rows are sorted by group (counted, stable). Then each group is
// a matmul, in chunks of rows: rows are multiplied where they are (row_gemm.h), or packed,
// multiplied, and written or added where they belong. Rows that are added to one are added in the
// order of groups. A group without rows costs grouped_dot nothing; grouped_outer gives it zeros.
// 16-bit operands are packed as float32, and rounded once.
//
// Threads take tasks: a chunk of a group, a group of grouped_outer, or a block of positions whose
// rows of the result no other block adds to. What a task is depends on sizes and indices alone.
#include "kernels/common/grouped.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/common/indexed.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/row_gemm.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/thread_pool.h"
#include "program/specs.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

class Grouped final : public Kernel {
 public:
  explicit Grouped(const KernelArgs& args)
      : args_(args),
        plan_(plan_grouped(*args.step)),
        x_(args.in.at(0)),
        m_(plan_.is_dot ? args.in.at(1) : args.out.at(0)),
        z_(plan_.is_dot ? args.out.at(0) : args.in.at(1)),
        indices_(args.in.at(2)),
        pack_x_(packing(plan_.inner, kX)),
        pack_z_(packing(plan_.outer, kZ)),
        clear_z_(z_.sizes, z_.strides, std::vector<int64_t>(z_.sizes.size(), 0)),
        clears_blocks_(
            std::count(plan_.batch.strides[kZ].begin(), plan_.batch.strides[kZ].end(), 0) == 0) {
    Nest m = plan_.inner;
    for (int d = 0; d < plan_.outer.rank(); ++d) {
      std::vector<int64_t> strides;
      for (const auto& s : plan_.outer.strides) strides.push_back(s[d]);
      m.add_dim(plan_.outer.sizes[d], strides);
    }
    const std::vector<int64_t> dense = dense_strides(m.sizes);
    to_m_ = StridedCopy(m.sizes, m.strides[kM], dense);
    from_m_ = StridedCopy(m.sizes, dense, m.strides[kM]);
    clear_m_ = StridedCopy(m.sizes, m.strides[kM], std::vector<int64_t>(m.sizes.size(), 0));
    row_.strides.resize(2);
    const std::vector<int64_t> packed = dense_strides(plan_.outer.sizes);
    for (int d = 0; d < plan_.outer.rank(); ++d)
      row_.add_dim(plan_.outer.sizes[d], {plan_.outer.strides[kTo][d], packed[d]});
    row_.merge();
    const auto is_dense = [](const Nest& row, GroupedOperand operand) {
      return row.rank() == 1 && row.strides[operand].back() == 1;
    };
    keeps_rows_ = plan_.is_dot && plan_.plain && plan_.sums == 0 && z_.dtype == DType::float32 &&
                  (plan_.m_row == 1 || plan_.m_column == 1) && is_dense(plan_.inner, kX) &&
                  is_dense(plan_.outer, kTo);
    if (plan_.sums > 0) {
      std::vector<int64_t> sizes, z, to;
      for (const Nest* nest : {&plan_.batch, &plan_.positions, &plan_.outer}) {
        for (int d = 0; d < nest->rank(); ++d) {
          if (nest->strides[kZ][d] == 0) continue;
          sizes.push_back(nest->sizes[d]);
          z.push_back(nest->strides[kZ][d]);
          to.push_back(nest->strides[kTo][d]);
        }
      }
      round_ = StridedCopy(sizes, z, to);
    }
    TESSERA_CHECK(args.workspace != nullptr, "a grouped matmul needs {} bytes of workspace",
                  plan_.at.bytes);
    tasks_.reserve(static_cast<size_t>(plan_.groups + plan_.rows / plan_.chunk + plan_.blocks));
  }

  void run() override {
    first_ = eval(args_, 0);
    extent_ = eval(args_, 1);
    if (z_.dtype == DType::float64) return run_as<double, double>();
    if (is_narrow(z_.dtype))
      return with_narrow(z_.dtype, [&](auto x) { run_as<decltype(x), float>(); });
    run_as<float, float>();
  }

 private:
  static std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
    return strides;
  }
  /// Copies one row of an operand to dense memory.
  static StridedCopy packing(const Nest& row, GroupedOperand operand) {
    return {row.sizes, dense_strides(row.sizes), row.strides[operand]};
  }

  template <class W>
  W* work(int64_t at) const {
    return reinterpret_cast<W*>(static_cast<char*>(args_.workspace) + at);
  }

  /// Memory of the step, or of one of its threads.
  template <class W>
  W* own(int thread, int64_t at) const {
    return work<W>(at + thread * plan_.thread_bytes());
  }

  /// Operands at one index of the batch dims.
  template <class T, class W>
  struct Batch {
    const T* x;
    T *z, *m;
    W* to;  ///< what rows are added to
  };

  /// Rows of one group, of which the first is the first of `rows`; of a block: all groups.
  struct Task {
    int64_t group, count;
    const int32_t* rows;
  };

  template <class T, class W>
  void run_as() {
    W* to = nullptr;
    if constexpr (std::is_same_v<T, W>) to = static_cast<W*>(z_.data);
    if (plan_.sums > 0) to = work<W>(plan_.at.sums);
    if (plan_.adds && !clears_blocks_) {
      const W zero{};
      if (plan_.sums > 0) {
        std::fill(to, to + plan_.sums, zero);
      } else {
        clear_z_.copy(to, &zero);
      }
    }
    for_each<kGroupedOperands>(plan_.batch, plan_.batch.rank(), [&](const auto& at) {
      const Batch<T, W> batch{static_cast<const T*>(x_.data) + at[kX],
                              static_cast<T*>(z_.data) + at[kZ], static_cast<T*>(m_.data) + at[kM],
                              to == nullptr ? nullptr : to + at[kTo]};
      indices_.dtype == DType::int64 ? sort<T, int64_t>(at[kIndices], batch.z)
                                     : sort<T, int32_t>(at[kIndices], batch.z);
      list_tasks();
      share([&](const Task& task, int thread) { run_task(batch, task, thread); });
    });
    if (plan_.sums > 0) round_.copy(static_cast<T*>(z_.data), static_cast<const W*>(to));
  }

  /// Of sorted positions. Large groups come first, so that threads end at nearly one time.
  void list_tasks() {
    tasks_.clear();
    const int64_t* ends = work<int64_t>(plan_.at.ends);
    const int32_t* order = work<int32_t>(plan_.at.order);
    if (plan_.adds) {
      for (int64_t block = 0; block < plan_.blocks; ++block) tasks_.push_back({block, 0, order});
      return;
    }
    for (int64_t g = 0, begin = 0; g < plan_.groups; begin = ends[g++]) {
      const int64_t count = ends[g] - begin;
      if (!plan_.is_dot) {
        tasks_.push_back({g, count, order + begin});
      } else {
        each_chunk(order + begin, count, [&](const int32_t* rows, int64_t n) {
          tasks_.push_back({g, n, rows});
        });
      }
    }
    if (plan_.is_dot) return;
    std::sort(tasks_.begin(), tasks_.end(), [](const Task& a, const Task& b) {
      return a.count != b.count ? a.count > b.count : a.group < b.group;
    });
  }

  /// Calls body(task, thread) for each task.
  template <class Body>
  void share(Body&& body) {
    if (args_.pool == nullptr) {
      for (const Task& task : tasks_) body(task, 0);
      return;
    }
    std::atomic<size_t> next = 0;
    args_.pool->run([&](int thread) {
      for (size_t i = next++; i < tasks_.size(); i = next++) body(tasks_[i], thread);
    });
  }

  template <class T, class W>
  void run_task(const Batch<T, W>& batch, const Task& task, int thread) const {
    if (!plan_.is_dot) return outer(batch, task, thread);
    if (!plan_.adds) return dot(batch, task, thread);
    if (clears_blocks_) {
      const int64_t end = plan_.first_of(task.group + 1);
      for (int64_t p = plan_.first_of(task.group); p < end; p += plan_.together)
        clear_row(batch.to + plan_.offset(p, kTo));
    }
    const int64_t* ends = work<int64_t>(plan_.at.ends);
    for (int64_t i = task.group * plan_.groups; i < (task.group + 1) * plan_.groups; ++i) {
      const int64_t begin = i == 0 ? 0 : ends[i - 1], group = i - task.group * plan_.groups;
      each_chunk(task.rows + begin, ends[i] - begin, [&](const int32_t* rows, int64_t n) {
        dot(batch, {group, n, rows}, thread);
      });
    }
  }

  /// Positions by block and group, and where each of these ends. Zeroes rows without a group.
  template <class T, class Index>
  void sort(int64_t at, T* z) {
    const Index* indices = static_cast<const Index*>(indices_.data) + at;
    int64_t* ends = work<int64_t>(plan_.at.ends);
    int32_t* order = work<int32_t>(plan_.at.order);
    const auto group = [&](Index i) -> int64_t {
      const int64_t g = static_cast<int64_t>(i) - first_;
      return i >= 0 && i < extent_ && g >= 0 && g < plan_.groups ? g : -1;
    };
    /// Calls visit(position, offsets, the counts of its block).
    const auto each_position = [&](auto&& visit) {
      int64_t position = 0, block = 0, end = plan_.first_of(1);
      for_each<kGroupedOperands>(plan_.positions, plan_.positions.rank(), [&](const auto& p) {
        while (position == end) end = plan_.first_of(++block + 1);
        visit(position++, p, ends + block * plan_.groups);
      });
    };
    const int64_t counts = plan_.blocks * plan_.groups;
    std::fill(ends, ends + counts, 0);
    const bool zeroes = plan_.is_dot && !plan_.adds;
    each_position([&](int64_t, const auto& p, int64_t* of_block) {
      const int64_t g = group(indices[p[kIndices]]);
      if (g >= 0) {
        ++of_block[g];
      } else if (zeroes) {
        clear_row(z + p[kZ]);
      }
    });
    for (int64_t i = 0, start = 0; i < counts; ++i) {
      const int64_t count = ends[i];
      ends[i] = start;
      start += count;
    }
    each_position([&](int64_t position, const auto& p, int64_t* of_block) {
      const int64_t g = group(indices[p[kIndices]]);
      if (g >= 0) order[of_block[g]++] = static_cast<int32_t>(position);
    });
  }

  template <class T, class W>
  void dot(const Batch<T, W>& batch, const Task& task, int thread) const {
    const T* matrix = batch.m + task.group * plan_.group_stride;
    if constexpr (std::is_same_v<T, float>) {
      if (keeps_rows_ && is_for_row_gemm(task.count, plan_.n, plan_.k))
        return dot_in_place(batch.x, matrix, plan_.adds ? batch.to : batch.z, task);
    }
    const W* b = own<W>(thread, plan_.at.m);
    Gemm gemm_of{task.count, plan_.n, plan_.k, plan_.k, 1, plan_.n, 1, plan_.n, 1};
    if (plan_.plain) {
      if constexpr (std::is_same_v<T, W>) b = matrix;
      gemm_of.b_row = plan_.m_row;
      gemm_of.b_column = plan_.m_column;
    } else {
      from_m_.copy(own<W>(thread, plan_.at.m), matrix);
    }
    W *a = own<W>(thread, plan_.at.x), *c = own<W>(thread, plan_.at.z);
    for (int64_t r = 0; r < task.count; ++r)
      pack_x_.copy(a + r * plan_.k, batch.x + plan_.offset(task.rows[r], kX));
    gemm(gemm_of, a, b, c, true);
    for (int64_t r = 0; r < task.count; ++r) {
      const W* from = c + r * plan_.n;
      if (plan_.adds) {
        add_row(batch.to + plan_.offset(task.rows[r], kTo), from);
      } else {
        write_row(batch.z + plan_.offset(task.rows[r], kZ), from);
      }
    }
  }

  void dot_in_place(const float* x, const float* matrix, float* z, const Task& task) const {
    constexpr int64_t kRows = 256;
    const float* from[kRows];
    float* to[kRows];
    for (int64_t first = 0; first < task.count; first += kRows) {
      const int64_t count = std::min(kRows, task.count - first);
      for (int64_t r = 0; r < count; ++r) {
        from[r] = x + plan_.offset(task.rows[first + r], kX);
        to[r] = z + plan_.offset(task.rows[first + r], plan_.adds ? kTo : kZ);
      }
      row_gemm(
          {count, plan_.n, plan_.k, from, matrix, plan_.m_row, plan_.m_column, to, !plan_.adds});
    }
  }

  template <class T, class W>
  void outer(const Batch<T, W>& batch, const Task& task, int thread) const {
    T* matrix = batch.m + task.group * plan_.group_stride;
    if (task.count == 0) {
      const T zero{};
      return clear_m_.copy(matrix, &zero);
    }
    Gemm gemm_of{plan_.k, plan_.n, 1, 1, plan_.k, plan_.n, 1, plan_.n, 1};
    W* c = own<W>(thread, plan_.at.m);
    if (plan_.plain) {
      if constexpr (std::is_same_v<T, W>) c = matrix;
      gemm_of.c_row = plan_.m_row;
      gemm_of.c_column = plan_.m_column;
    }
    bool first = true;
    each_chunk(task.rows, task.count, [&](const int32_t* chunk, int64_t n) {
      W *a = own<W>(thread, plan_.at.x), *b = own<W>(thread, plan_.at.z);
      for (int64_t r = 0; r < n; ++r) {
        pack_x_.copy(a + r * plan_.k, batch.x + plan_.offset(chunk[r], kX));
        pack_z_.copy(b + r * plan_.n, batch.z + plan_.offset(chunk[r], kZ));
      }
      gemm_of.k = n;
      gemm(gemm_of, a, b, c, first);
      first = false;
    });
    if (!plan_.plain) to_m_.copy(matrix, static_cast<const W*>(c));
  }

  /// Chunks of nearly equal length.
  template <class Body>
  void each_chunk(const int32_t* rows, int64_t count, Body&& body) const {
    const int64_t chunks = (count + plan_.chunk - 1) / plan_.chunk;
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t from = count * c / chunks, to = count * (c + 1) / chunks;
      body(rows + from, to - from);
    }
  }

  template <class T, class W>
  void write_row(T* to, const W* from) const {
    each_run([&](int64_t t, int64_t f, int64_t n, int64_t st, int64_t sf) {
      copy_row(to + t, st, from + f, sf, n);
    });
  }

  template <class T>
  void clear_row(T* to) const {
    each_run([&](int64_t t, int64_t, int64_t n, int64_t st, int64_t) {
      const T zero{};
      copy_row(to + t, st, &zero, 0, n);
    });
  }

  template <class W>
  void add_row(W* to, const W* from) const {
    each_run([&](int64_t t, int64_t f, int64_t n, int64_t st, int64_t sf) {
      if (st == 1 && sf == 1) {
        for (int64_t i = 0; i < n; ++i) to[t + i] += from[f + i];
      } else {
        for (int64_t i = 0; i < n; ++i) to[t + i * st] += from[f + i * sf];
      }
    });
  }

  template <class Body>
  void each_run(Body&& body) const {
    const int rank = row_.rank();
    if (rank == 0) return body(0, 0, 1, 1, 1);
    for_each<2>(row_, rank - 1, [&](const auto& at) {
      body(at[0], at[1], row_.sizes.back(), row_.strides[0].back(), row_.strides[1].back());
    });
  }

  KernelArgs args_;
  GroupedPlan plan_;
  TensorArg x_, m_, z_, indices_;
  int64_t first_ = 0, extent_ = 0;
  StridedCopy pack_x_, pack_z_, to_m_, from_m_, clear_m_, clear_z_, round_;
  bool keeps_rows_ = false;  ///< rows of X and Z are dense, and M is a matrix
  bool clears_blocks_;       ///< no two batch elements add to one row of Z
  Nest row_;                 ///< of Z: operands kTo, packed
  std::vector<Task> tasks_;
};

}  // namespace

int64_t grouped_workspace(const Step& step) {
  return step.order.is_strict() ? ordered_grouped_workspace(step) : plan_grouped(step).at.bytes;
}

/// By tasks, if there are enough of them. Else by columns of the result's rows or matrices: every
/// part sorts and packs all rows.
Sharing share_grouped(const Step& step, int threads) {
  const GroupedPlan plan = plan_grouped(step);
  const auto& kinds = step.as<GroupedSpec>().kinds;
  const View& out = step.out.at(0);
  const double rows = static_cast<double>(plan.rows) * step.as<GroupedSpec>().expected_fill;
  const double products = rows * static_cast<double>(plan.batch.elements() * plan.k * plan.n);
  const double ns = 0.015 * products;
  if (step.order.is_strict()) {
    std::vector<char> any;
    for (const int64_t kind : kinds) any.push_back(kind != kGroupIndexed);
    return {outermost_dim(out, any, threads), ns};
  }
  const double groups = std::min(static_cast<double>(plan.groups), rows);
  double tasks = static_cast<double>(plan.blocks);
  if (!plan.adds) tasks = plan.is_dot ? groups + rows / static_cast<double>(plan.chunk) : groups;
  constexpr double kLeastTasks = 8, kLeastBlocks = 2;
  if (tasks >= (plan.adds ? kLeastBlocks : kLeastTasks)) return {-1, ns, plan.thread_bytes()};
  std::vector<char> allowed;
  for (const int64_t kind : kinds) allowed.push_back(kind == kGroupInner || kind == kGroupOuter);
  const int dim = outermost_dim(out, allowed, kTypicalThreads);
  const int64_t columns = dim < 0 ? 1 : out.sizes[static_cast<size_t>(dim)];
  return {dim, ns, plan.thread_bytes(), parts_of_matmul(columns, ns)};
}

std::unique_ptr<Kernel> bind_grouped_dot(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_grouped(args);
  return std::make_unique<Grouped>(args);
}
std::unique_ptr<Kernel> bind_grouped_outer(const KernelArgs& args) {
  return bind_grouped_dot(args);
}

}  // namespace tessera::cpu
