// Attention without storing all logits (Vaswani et al. 2017, eq. 1; in blocks of rows as Rabe &
// Staats 2021). Operands are views over the same dims; all dims but length, memory_length,
// key_dim and that of the values are loops. For each of their indices the queries are taken in
// blocks of rows whose logits stay in the L2 cache: a matmul, softmax in place, a matrix
// product. The gradient recomputes the weights of a block from log_sum (Dao et al. 2022, algorithm
// 4). Causal order, window and segments leave each query an interval of the keys, and a block reads
// only those that its rows see. With a window or segments a block takes as many rows as its logits
// have room for, and ends where the next row shares no key with it. attention_plan.h decides which
// operands are copied first. Heads that share keys (GQA) are processed one after the other, so that
// the sums of the keys' gradients stay in the wider type until the last of them.
//
// If a rank has a part of the queries or keys, the positions of its first ones are operands.
//
// A row of biases by distance is a stretch of the entries, with the first and the last one repeated
// at its ends, and so is a row of their gradients. Dropout draws the random bits of a row where it
// needs them, those of the op dropout.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/strided_copy.h"

namespace tessera::cpu {
namespace {

/// c[m, n] (+)= a[m, k] b[k, n]. A block without keys has k = 0.
template <class W>
void product(int64_t m, int64_t n, int64_t k, const W* a, int64_t a_row, int64_t a_column,
             const W* b, int64_t b_row, int64_t b_column, const Matrix<W>& c, bool overwrite) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; overwrite && i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) c.at(i)[j * c.column] = W(0);
    }
    return;
  }
  gemm(Gemm{m, n, k, a_row, a_column, b_row, b_column, c.row, c.column}, a, b, c.data, overwrite);
}

/// Rows of queries, and the keys that at least one of them sees.
struct Block {
  int64_t first = 0, rows = 0;
  Span keys;
};

class Attention final : public AttentionLoops<Attention> {
 public:
  explicit Attention(const KernelArgs& args) : AttentionLoops(args) {
    const DType dtype = plan_.narrow ? DType::float32 : args.in[0].dtype;
    tanh_ = ops_.find(PointwiseOp::tanh, dtype, dtype);
    for (const AttentionPlan::Used& m : plan_.matrices)
      copies_.push_back(m.copy < 0 ? Copy{} : copy_of(m));
  }

 private:
  friend AttentionLoops<Attention>;

  void begin() {
    for (Copy& c : copies_) c.offset = -1;
  }

  struct Copy {
    StridedCopy copy;
    int64_t row = 0, column = 0;  ///< strides in the workspace
    int64_t offset = -1;          ///< of the operand's elements
  };
  Copy copy_of(const AttentionPlan::Used& m) const {
    const TensorArg& arg = operand(m.operand);
    const bool across = m.form == AttentionPlan::Form::columns;
    const std::vector<int64_t> own = {arg.strides[plan_.position_dim(m.operand)],
                                      arg.strides[plan_.column_dim(m.operand)]};
    const int64_t width = plan_.width_of(m.operand);
    const std::vector<int64_t> sizes = {plan_.positions(m.operand), width},
                               dense = {across ? 1 : width, across ? plan_.column_stride(m) : 1};
    const bool read = m.operand < args_in_;
    return {read ? StridedCopy(sizes, dense, own) : StridedCopy(sizes, own, dense), dense[0],
            dense[1]};
  }

  /// Matrix `i` of the plan at the present loop index.
  template <class T, class W>
  Matrix<W> matrix(size_t i) {
    const AttentionPlan::Used& used = plan_.matrices[i];
    const TensorArg& arg = operand(used.operand);
    const int64_t offset = offsets_[used.operand];
    T* from = static_cast<T*>(arg.data) + offset;
    if (used.copy >= 0) {
      W* to = work<W>(used.copy);
      Copy& c = copies_[i];
      if (used.operand < args_in_ && c.offset != offset) {
        c.copy.copy(to, static_cast<const T*>(from));
        c.offset = offset;
      }
      return {to, c.row, c.column};
    }
    if constexpr (std::is_same_v<T, W>) {
      return {from, arg.strides[plan_.position_dim(used.operand)],
              arg.strides[plan_.column_dim(used.operand)]};
    }
    fail(ErrorKind::internal, "a narrow operand of attention is not packed");
  }

  template <class T, class W>
  void keep(size_t i, const Matrix<W>& m) {
    if (plan_.matrices[i].copy < 0) return;
    copies_[i].copy.copy(static_cast<T*>(operand(i).data) + offsets_[i],
                         static_cast<const W*>(m.data));
  }

  /// The block of queries from `first` on.
  Block block(int64_t first) const {
    const bool limited = plan_.mask.window > 0 || plan_.segments;
    const int64_t most = std::min(limited ? plan_.most_rows : plan_.rows, plan_.length - first);
    Block b{first, 0, {}};
    if (!limited) return {first, most, {0, seen(first + most - 1).end}};
    for (; b.rows < most; ++b.rows) {
      const Span own = seen(first + b.rows);
      Span all = b.keys;
      if (all.size() == 0) {
        all = own;
      } else if (own.size() > 0) {
        if (own.begin >= all.end || own.end <= all.begin) break;
        all = {std::min(all.begin, own.begin), std::max(all.end, own.end)};
      }
      if (b.rows > 0 && (b.rows + 1) * whole_vectors(all.size()) > plan_.capacity) break;
      b.keys = all;
    }
    return b;
  }

  template <class T, class W>
  void run_index(int64_t sharer) {
    const Matrix<W> q = matrix<T, W>(0), k = matrix<T, W>(1), v = matrix<T, W>(2);
    if (plan_.backward) return run_backward<T, W>(q, k, v, sharer);
    const Matrix<W> out = matrix<T, W>(args_in_);
    const Matrix<W> log_sum = row<W>(args_in_ + 1);
    const W factor = this->factor<W>(), hidden = hidden_product(factor),
            slope = this->slope(factor);
    if (plan_.entries > 0) load_biases(factor);
    for (Block b; b.first < plan_.length; b.first += b.rows) {
      b = block(b.first);
      const int64_t i = b.first;
      const Matrix<W> p = products(q, k, b);
      for (int64_t r = 0; r < b.rows; ++r) {
        const Row<W> row = this->row_of(p, b, r);
        if (plan_.soft_cap > 0) squash(p.at(r), row.keys);
        if (plan_.slopes) lower(p.at(r), row.keys, i + r, b.keys.begin, slope);
        if (plan_.entries > 0) bias(p.at(r), row.keys, i + r, b.keys.begin);
        hide(row, hidden);
        *log_sum.at(i + r) = row.n > 0 ? softmax(row.x, row.n, factor) : W(kNothing);
        clear_rest(row, p.at(r), p.row);
        if (drawn_) multiply(p.at(r), draw<W>(row.keys, i + r, b.keys.begin), row.keys);
      }
      product<W>(b.rows, plan_.value_width, b.keys.size(), p.data, p.row, 1, v.at(b.keys.begin),
                 v.row, v.column, {out.at(i), out.row, out.column}, true);
    }
    keep<T>(args_in_, out);
  }

  /// What a logit is of its product, or of its tanh if there is a soft cap.
  template <class W>
  W factor() const {
    return plan_.soft_cap > 0 ? static_cast<W>(plan_.soft_cap) : scale<W>();
  }

  /// A product x for which exp(factor x) is 0.
  template <class W>
  static W hidden_product(W factor) {
    return std::copysign(std::numeric_limits<W>::infinity(), -factor);
  }
  /// q k of a block, in the workspace.
  template <class W>
  Matrix<W> products(const Matrix<W>& q, const Matrix<W>& k, const Block& b) const {
    const Matrix<W> p{work<W>(plan_.logits), whole_vectors(b.keys.size()), 1};
    product<W>(b.rows, b.keys.size(), plan_.width, q.at(b.first), q.row, q.column,
               k.at(b.keys.begin), k.column, k.row, p, true);
    return p;
  }

  /// The whole vectors of a row of products with the keys that the query sees.
  template <class W>
  struct Row {
    W* x = nullptr;
    int64_t n = 0;
    Span keys;      ///< in the row of the block
    int64_t first;  ///< of x in the row of the block
  };
  template <class W>
  Row<W> row_of(const Matrix<W>& p, const Block& b, int64_t r) const {
    const Span own = seen(b.first + r);
    if (own.size() == 0) return {p.at(r), 0, {}, 0};
    const Span keys{own.begin - b.keys.begin, own.end - b.keys.begin};
    const int64_t first = keys.begin / kRowLanes * kRowLanes;
    return {p.at(r) + first, whole_vectors(keys.end) - first, keys, first};
  }
  /// Gives the keys in these vectors that the query does not see no weight.
  template <class W>
  static void hide(const Row<W>& row, W hidden) {
    std::fill(row.x, row.x + (row.keys.begin - row.first), hidden);
    std::fill(row.x + (row.keys.end - row.first), row.x + row.n, hidden);
  }
  /// 0 for all other keys of the block.
  template <class W>
  static void clear_rest(const Row<W>& row, W* x, int64_t all) {
    std::fill(x, x + row.first, W(0));
    std::fill(x + row.first + row.n, x + all, W(0));
  }

  /// Products x of these keys become tanh(scale x / soft cap), which the workspace keeps.
  template <class W>
  void squash(W* x, const Span& keys) const {
    const W scale = static_cast<W>(this->scale<double>() / plan_.soft_cap);
    W* kept = work<W>(plan_.squashed);
    for (int64_t j = keys.begin; j < keys.end; ++j) kept[j] = scale * x[j];
    BlockArgs args;
    args.a = kept + keys.begin;
    args.out = x + keys.begin;
    args.n = keys.size();
    tanh_(args);
    if (plan_.backward) std::copy(x + keys.begin, x + keys.end, kept + keys.begin);
  }
  /// The gradient of soft cap times tanh becomes that of the scaled product.
  template <class W>
  void unsquash(W* gradient, const Span& keys) const {
    const W scale = static_cast<W>(this->scale<double>() / plan_.soft_cap);
    const W* kept = work<W>(plan_.squashed);
    for (int64_t j = keys.begin; j < keys.end; ++j)
      gradient[j] *= scale * (W(1) - kept[j] * kept[j]);
  }

  /// What a product loses for each position between query and key.
  template <class W>
  W slope(W factor) const {
    if (!plan_.slopes) return 0;
    return static_cast<const W*>(operand(slopes()).data)[offsets_[slopes()]] / factor;
  }
  /// Products x of query `query` with these keys lose their distance times `slope`. Key 0 of x is
  /// the key `first` of this rank.
  template <class W>
  void lower(W* x, const Span& keys, int64_t query, int64_t first, W slope) const {
    const W ahead = static_cast<W>(first_key_ + first - first_query_ - query);
    for (int64_t j = keys.begin; j < keys.end; ++j)
      x[j] -= slope * std::abs(ahead + static_cast<W>(j));
  }

  /// The entries of the present head in units of products, the last one first: a key further on has
  /// a later one.
  template <class W>
  void load_biases(W factor) const {
    const TensorArg& arg = operand(entries());
    const W* from = static_cast<const W*>(arg.data) + offsets_[entries()];
    const int64_t stride = arg.strides[static_cast<size_t>(plan_.entries_dim)];
    W* to = work<W>(plan_.biases);
    for (int64_t t = 0; t < plan_.entries; ++t)
      to[t] = from[(plan_.entries - 1 - t) * stride] / factor;
    if (plan_.backward) {
      double* sums = work<double>(plan_.sums);
      std::fill(sums, sums + plan_.entries, 0.0);
    }
  }
  /// Where a query's keys, with key 0 the key `first` of this rank, leave the first of those
  /// entries, and where they reach the last one: key j has entry j + shift in between.
  struct Stretch {
    int64_t shift;
    PositionRange between;
  };
  Stretch stretch(const Span& keys, int64_t query, int64_t first) const {
    const int64_t shift = plan_.entries / 2 + first_key_ + first - first_query_ - query;
    const auto place = [&](int64_t j) { return std::clamp<int64_t>(j, keys.begin, keys.end); };
    return {shift, {place(-shift), place(plan_.entries - 1 - shift)}};
  }
  template <class W>
  void bias(W* x, const Span& keys, int64_t query, int64_t first) const {
    const auto [shift, between] = stretch(keys, query, first);
    const W* biases = work<W>(plan_.biases);
    for (int64_t j = keys.begin; j < between.begin; ++j) x[j] += biases[0];
    for (int64_t j = between.begin; j < between.end; ++j) x[j] += biases[j + shift];
    for (int64_t j = between.end; j < keys.end; ++j) x[j] += biases[plan_.entries - 1];
  }
  /// In several sums, which vectors hold.
  template <class W>
  static double total(const W* x, const W* end) {
    constexpr int kLanes = 16;
    W lanes[kLanes] = {};
    for (; end - x >= kLanes; x += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[lane];
    }
    double sum = 0;
    for (const W lane : lanes) sum += lane;
    for (; x < end; ++x) sum += *x;
    return sum;
  }
  /// Adds the gradients of a row's products to those of the entries.
  template <class W>
  void add_to_entries(const W* gradient, const Span& keys, int64_t query, int64_t first) const {
    const auto [shift, between] = stretch(keys, query, first);
    double* sums = work<double>(plan_.sums);
    sums[0] += total(gradient + keys.begin, gradient + between.begin);
    for (int64_t j = between.begin; j < between.end; ++j) sums[j + shift] += gradient[j];
    sums[plan_.entries - 1] += total(gradient + between.end, gradient + keys.end);
  }
  template <class W>
  void store_entries(size_t i, W factor) const {
    const TensorArg& arg = operand(i);
    W* to = static_cast<W*>(arg.data) + offsets_[i];
    const int64_t stride = arg.strides[static_cast<size_t>(plan_.entries_dim)];
    const double* sums = work<double>(plan_.sums);
    for (int64_t t = 0; t < plan_.entries; ++t)
      to[(plan_.entries - 1 - t) * stride] = static_cast<W>(sums[t] / factor);
  }

  template <class W>
  static void multiply(W* x, const W* by, const Span& keys) {
    for (int64_t j = keys.begin; j < keys.end; ++j) x[j] *= by[j];
  }

  float softmax(float* x, int64_t n, float s) const { return ops_.softmax_float(x, n, s); }
  double softmax(double* x, int64_t n, double s) const { return ops_.softmax_double(x, n, s); }
  void weigh(float* x, float* g, int64_t n, float s, float log_sum, float inner) const {
    ops_.attention_grad_float(x, g, n, s, log_sum, inner);
  }
  void weigh(double* x, double* g, int64_t n, double s, double log_sum, double inner) const {
    ops_.attention_grad_double(x, g, n, s, log_sum, inner);
  }

  template <class W>
  void clear(const Matrix<W>& m, int64_t width) const {
    for (int64_t i = 0; i < plan_.memory; ++i) {
      for (int64_t d = 0; d < width; ++d) m.at(i)[d * m.column] = W(0);
    }
  }

  template <class T, class W>
  void run_backward(const Matrix<W>& q, const Matrix<W>& k, const Matrix<W>& v, int64_t sharer) {
    const size_t out = plan_.first_result;
    const Matrix<W> across = matrix<T, W>(plan_.matrices.size() - 1), g = matrix<T, W>(3),
                    dq = matrix<T, W>(out), dk = matrix<T, W>(out + 1), dv = matrix<T, W>(out + 2),
                    log_sum = row<W>(5), inner = row<W>(6);
    if (sharer == 0) {
      clear(dk, plan_.width);
      clear(dv, plan_.value_width);
    }
    const W factor = this->factor<W>(), hidden = hidden_product(factor),
            slope = this->slope(factor);
    if (plan_.entries > 0) load_biases(factor);
    for (Block b; b.first < plan_.length; b.first += b.rows) {
      b = block(b.first);
      const int64_t i = b.first, rows = b.rows, first = b.keys.begin, keys = b.keys.size();
      const Matrix<W> p = products(q, across, b), ds{work<W>(plan_.back), p.row, 1};
      product<W>(rows, keys, plan_.value_width, g.at(i), g.row, g.column, v.at(first), v.column,
                 v.row, ds, true);
      for (int64_t r = 0; r < rows; ++r) {
        const Row<W> row = this->row_of(p, b, r);
        if (plan_.soft_cap > 0) squash(p.at(r), row.keys);
        if (plan_.slopes) lower(p.at(r), row.keys, i + r, first, slope);
        if (plan_.entries > 0) bias(p.at(r), row.keys, i + r, first);
        hide(row, hidden);
        const W* kept = drawn_ ? draw<W>(row.keys, i + r, first) : nullptr;
        if (kept) multiply(ds.at(r), kept, row.keys);
        std::fill(ds.at(r) + keys, ds.at(r) + ds.row, W(0));
        if (row.n > 0)
          weigh(row.x, ds.at(r) + row.first, row.n, factor, *log_sum.at(i + r), *inner.at(i + r));
        if (plan_.entries > 0) add_to_entries(ds.at(r), row.keys, i + r, first);
        if (kept) multiply(p.at(r), kept, row.keys);
        if (plan_.soft_cap > 0) unsquash(ds.at(r), row.keys);
        clear_rest(row, p.at(r), p.row);
        clear_rest(row, ds.at(r), ds.row);
      }
      product<W>(rows, plan_.width, keys, ds.data, ds.row, 1, k.at(first), k.row, k.column,
                 {dq.at(i), dq.row, dq.column}, true);
      product<W>(keys, plan_.width, rows, ds.data, 1, ds.row, q.at(i), q.row, q.column,
                 {dk.at(first), dk.row, dk.column}, false);
      product<W>(keys, plan_.value_width, rows, p.data, 1, p.row, g.at(i), g.row, g.column,
                 {dv.at(first), dv.row, dv.column}, false);
    }
    keep<T>(out, dq);
    if (plan_.entries > 0) store_entries(out + 3, factor);
    if (sharer < sharing_ - 1) return;
    keep<T>(out + 1, dk);
    keep<T>(out + 2, dv);
  }

  std::vector<Copy> copies_;  ///< of the plan's matrices
  BlockFn tanh_ = nullptr;
};

}  // namespace

int64_t attention_workspace(const Step& step) {
  return step.order.is_strict() ? ordered_attention_workspace(step) : AttentionPlan(step).workspace;
}

Sharing share_attention(const Step& step, int threads) {
  const AttentionPlan plan(step);
  const View& q = step.in.at(0);
  std::vector<char> loops(q.sizes.size(), 1);
  const AttentionStep attention(step);
  for (size_t d = 0; d < loops.size(); ++d) loops[d] = attention.is_loop(d);
  double work = static_cast<double>(plan.memory * plan.length) *
                static_cast<double>(plan.width + plan.value_width) / 2;
  for (size_t d = 0; d < loops.size(); ++d) {
    if (loops[d] != 0) work *= static_cast<double>(q.sizes[d]);
    for (const View& out : step.out) loops[d] = loops[d] && out.strides[d] != 0;
  }
  return {outermost_dim(step.out[0], loops, threads), work * (plan.backward ? 0.15 : 0.06)};
}

std::unique_ptr<Kernel> bind_attention(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_attention(args);
  return std::make_unique<Attention>(args);
}

}  // namespace tessera::cpu
