// Grouped products. The positions of rows are sorted by group (counted, stable). Then each group is
// a matrix product, in chunks of rows: rows are packed, multiplied, and written or added where they
// belong. Rows that are added to one are added in the order of groups. A group without rows costs
// grouped_dot nothing; grouped_outer gives it zeros. 16-bit operands are packed as float32, and
// rounded once.
#include "kernels/common/grouped.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/indexed.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tables.h"
#include "program/grouped_kinds.h"

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
        whole_z_(make_nest(z_.sizes, {z_.strides})) {
    use_one_blas_thread();
    Nest m = plan_.inner;
    for (int d = 0; d < plan_.outer.rank(); ++d) {
      std::vector<int64_t> strides;
      for (const auto& s : plan_.outer.strides) strides.push_back(s[d]);
      m.add_dim(plan_.outer.sizes[d], strides);
    }
    const std::vector<int64_t> dense = dense_strides(m.sizes);
    to_m_ = StridedCopy(m.sizes, m.strides[kM], dense);
    from_m_ = StridedCopy(m.sizes, dense, m.strides[kM]);
    row_.strides.resize(2);
    const std::vector<int64_t> packed = dense_strides(plan_.outer.sizes);
    for (int d = 0; d < plan_.outer.rank(); ++d)
      row_.add_dim(plan_.outer.sizes[d], {plan_.outer.strides[kTo][d], packed[d]});
    row_.merge();
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
    check(args.workspace != nullptr, "a grouped product needs {} bytes of workspace",
          plan_.at.bytes);
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

  template <class T, class W>
  void run_as() {
    W* to = nullptr;
    if constexpr (std::is_same_v<T, W>) to = static_cast<W*>(z_.data);
    if (plan_.sums > 0) to = work<W>(plan_.at.sums);
    if (plan_.adds) {
      if (plan_.sums > 0) {
        std::fill(to, to + plan_.sums, W(0));
      } else {
        for_each<1>(whole_z_, whole_z_.rank(), [&](const auto& at) { to[at[0]] = W(0); });
      }
    }
    for_each<kGroupedOperands>(plan_.batch, plan_.batch.rank(), [&](const auto& at) {
      const T* x = static_cast<const T*>(x_.data) + at[kX];
      T* z = static_cast<T*>(z_.data) + at[kZ];
      T* m = static_cast<T*>(m_.data) + at[kM];
      indices_.dtype == DType::int64 ? sort<T, int64_t>(at[kIndices], z)
                                     : sort<T, int32_t>(at[kIndices], z);
      for (int64_t g = 0, begin = 0; g < plan_.groups; begin = work<int64_t>(plan_.at.ends)[g++]) {
        const int32_t* rows = work<int32_t>(plan_.at.order) + begin;
        const int64_t count = work<int64_t>(plan_.at.ends)[g] - begin;
        T* matrix = m + g * plan_.group_stride;
        if (!plan_.is_dot) {
          outer<T, W>(x, z, matrix, rows, count);
        } else if (count > 0) {
          dot<T, W>(x, matrix, to == nullptr ? nullptr : to + at[kTo], z, rows, count);
        }
      }
    });
    if (plan_.sums > 0) round_.copy(static_cast<T*>(z_.data), static_cast<const W*>(to));
  }

  /// Positions by group, and where each group ends. Zeroes rows without a group.
  template <class T, class Index>
  void sort(int64_t at, T* z) {
    const Index* indices = static_cast<const Index*>(indices_.data) + at;
    int64_t* ends = work<int64_t>(plan_.at.ends);
    int32_t* order = work<int32_t>(plan_.at.order);
    const auto group = [&](Index i) -> int64_t {
      const int64_t g = static_cast<int64_t>(i) - first_;
      return i >= 0 && i < extent_ && g >= 0 && g < plan_.groups ? g : -1;
    };
    std::fill(ends, ends + plan_.groups, 0);
    const bool zeroes = plan_.is_dot && !plan_.adds;
    for_each<kGroupedOperands>(plan_.positions, plan_.positions.rank(), [&](const auto& p) {
      const int64_t g = group(indices[p[kIndices]]);
      if (g >= 0) {
        ++ends[g];
      } else if (zeroes) {
        for_each<kGroupedOperands>(plan_.outer, plan_.outer.rank(),
                                   [&](const auto& o) { z[p[kZ] + o[kZ]] = T{}; });
      }
    });
    for (int64_t g = 0, start = 0; g < plan_.groups; ++g) {
      const int64_t count = ends[g];
      ends[g] = start;
      start += count;
    }
    int32_t position = 0;
    for_each<kGroupedOperands>(plan_.positions, plan_.positions.rank(), [&](const auto& p) {
      const int64_t g = group(indices[p[kIndices]]);
      if (g >= 0) order[ends[g]++] = position;
      ++position;
    });
  }

  template <class T, class W>
  void dot(const T* x, const T* matrix, W* to, T* z, const int32_t* rows, int64_t count) {
    const W* b = work<W>(plan_.at.m);
    Gemm gemm_of{1, plan_.n, plan_.k, plan_.k, 1, plan_.n, 1, plan_.n, 1};
    if (plan_.plain) {
      if constexpr (std::is_same_v<T, W>) b = matrix;
      gemm_of.b_row = plan_.m_row;
      gemm_of.b_column = plan_.m_column;
    } else {
      from_m_.copy(work<W>(plan_.at.m), matrix);
    }
    each_chunk(rows, count, [&](const int32_t* chunk, int64_t n) {
      W* a = work<W>(plan_.at.x);
      W* c = work<W>(plan_.at.z);
      for (int64_t r = 0; r < n; ++r) pack_x_.copy(a + r * plan_.k, x + plan_.offset(chunk[r], kX));
      gemm_of.m = n;
      gemm(gemm_of, a, b, c, true);
      for (int64_t r = 0; r < n; ++r) {
        const W* from = c + r * plan_.n;
        if (plan_.adds) {
          add_row(to + plan_.offset(chunk[r], kTo), from);
        } else {
          write_row(z + plan_.offset(chunk[r], kZ), from);
        }
      }
    });
  }

  template <class T, class W>
  void outer(const T* x, const T* z, T* matrix, const int32_t* rows, int64_t count) {
    Gemm gemm_of{plan_.k, plan_.n, 1, 1, plan_.k, plan_.n, 1, plan_.n, 1};
    W* c = work<W>(plan_.at.m);
    if (plan_.plain) {
      if constexpr (std::is_same_v<T, W>) c = matrix;
      gemm_of.c_row = plan_.m_row;
      gemm_of.c_column = plan_.m_column;
    }
    if (count == 0) {
      for_each<kGroupedOperands>(plan_.inner, plan_.inner.rank(), [&](const auto& i) {
        for_each<kGroupedOperands>(plan_.outer, plan_.outer.rank(),
                                   [&](const auto& o) { matrix[i[kM] + o[kM]] = T{}; });
      });
      return;
    }
    bool first = true;
    each_chunk(rows, count, [&](const int32_t* chunk, int64_t n) {
      W* a = work<W>(plan_.at.x);
      W* b = work<W>(plan_.at.z);
      for (int64_t r = 0; r < n; ++r) {
        pack_x_.copy(a + r * plan_.k, x + plan_.offset(chunk[r], kX));
        pack_z_.copy(b + r * plan_.n, z + plan_.offset(chunk[r], kZ));
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
  StridedCopy pack_x_, pack_z_, to_m_, from_m_, round_;
  Nest whole_z_, row_;  ///< all of Z; a row of Z: operands kTo, packed
};

}  // namespace

int64_t grouped_workspace(const Step& step) { return plan_grouped(step).at.bytes; }

/// By columns of the result's rows or matrices: every thread sorts all rows.
Sharing share_grouped(const Step& step, int threads) {
  const auto& kinds = step.attrs.get<std::vector<int64_t>>("kinds");
  const View& out = step.out.at(0);
  std::vector<char> allowed;
  for (const int64_t kind : kinds) allowed.push_back(kind == kGroupInner || kind == kGroupOuter);
  const double per_row = 0.015 * step.attrs.get<double>("used");
  double products = 1;
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] != kGroupIndexed)
      products *= static_cast<double>(
          std::max({step.in[0].sizes[d], step.in[1].sizes[d], out.sizes[d], step.in[2].sizes[d]}));
  }
  return {outermost_dim(out, allowed, threads), products * per_row};
}

std::unique_ptr<Kernel> bind_grouped_dot(const KernelArgs& args) {
  return std::make_unique<Grouped>(args);
}
std::unique_ptr<Kernel> bind_grouped_outer(const KernelArgs& args) {
  return std::make_unique<Grouped>(args);
}

}  // namespace tessera::cpu
