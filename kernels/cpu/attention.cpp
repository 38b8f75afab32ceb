// Attention without stored logits (Vaswani et al. 2017, eq. 1; in blocks of rows as Rabe & Staats
// 2021). Operands are views over the same dims; all but length, memory_length and key_dim are
// loops. For each of their indices the queries are taken in blocks of rows whose logits stay in the
// second-level cache: a matrix product, softmax in place, a matrix product. The gradient computes
// the weights of a block again. With a causal mask a block sees only the keys up to its last row.
// Heads that share their keys follow each other, so that the sums of the keys' gradients are kept
// in the wider type until the last of them.
//
// Matrices that no BLAS call takes (narrow types, or no dense dim) are copied to the workspace
// first.
#include <algorithm>
#include <limits>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kBlockElements = 32768;  // of logits
constexpr int64_t kLeastRows = 8, kMostRows = 64, kMostCausalRows = 32;

/// Rows of logits are whole vectors: their loops have no rest.
int64_t whole_vectors(int64_t n) { return (n + kRowLanes - 1) / kRowLanes * kRowLanes; }

/// The sizes of a step and its workspace: a decision from views and attributes only.
struct Plan {
  explicit Plan(const Step& step)
      : length_dim(step.attrs.get<int64_t>("length")),
        memory_dim(step.attrs.get<int64_t>("memory_length")),
        key_dim(step.attrs.get<int64_t>("key_dim")),
        causal(step.attrs.get<int64_t>("causal") != 0),
        backward(step.out.size() > 1) {
    const View& q = step.in.at(0);
    length = q.sizes[length_dim];
    memory = step.in.at(1).sizes[memory_dim];
    width = q.sizes[key_dim];
    narrow = is_narrow(q.dtype);
    const int64_t most = causal ? kMostCausalRows : kMostRows;
    rows = std::clamp(kBlockElements / std::max<int64_t>(memory, 1), kLeastRows, most);
    rows = std::min(rows, std::max<int64_t>(length, 1));
    const int64_t element = q.dtype == DType::float64 ? 8 : 4;
    auto reserve = [&](int64_t elements) {
      const int64_t at = workspace;
      workspace += (elements * element + 63) / 64 * 64;
      return at;
    };
    logits = reserve(rows * whole_vectors(memory));
    if (backward) back = reserve(rows * whole_vectors(memory));
    for (size_t i = 0; i < step.in.size() + step.out.size(); ++i) {
      const View& v = i < step.in.size() ? step.in[i] : step.out[i - step.in.size()];
      const bool by_length = is_by_length(i);
      const int64_t n = by_length ? length : memory;
      const int64_t row = v.strides[by_length ? length_dim : memory_dim],
                    column = v.strides[key_dim];
      const bool fits =
          (column == 1 && (row >= width || n == 1)) || (row == 1 && (column >= n || width == 1));
      packed.push_back(narrow || !fits ? reserve(n * width) : -1);
    }
  }
  /// Operands: query, key, value, (gradient,) then results: of the query, (key, value).
  bool is_by_length(size_t operand) const {
    return backward ? operand == 0 || operand == 3 || operand == 4 : operand == 0 || operand == 3;
  }

  int64_t length_dim, memory_dim, key_dim;
  bool causal, backward, narrow = false;
  int64_t length = 0, memory = 0, width = 0, rows = 1;
  int64_t logits = 0, back = 0, workspace = 0;
  std::vector<int64_t> packed;  ///< offset in the workspace of each operand's copy, or -1
};

/// A matrix of positions x key_dim at one index of the loops.
template <class W>
struct Matrix {
  W* data = nullptr;
  int64_t row = 0, column = 0;
  W* at(int64_t i) const { return data + i * row; }
};

/// c[m, n] (+)= a[m, k] b[k, n].
template <class W>
void product(int64_t m, int64_t n, int64_t k, const W* a, int64_t a_row, int64_t a_column,
             const W* b, int64_t b_row, int64_t b_column, const Matrix<W>& c, bool overwrite) {
  if (m == 0 || n == 0) return;
  gemm(Gemm{m, n, k, a_row, a_column, b_row, b_column, c.row, c.column}, a, b, c.data, overwrite);
}

class Attention final : public Kernel {
 public:
  explicit Attention(const KernelArgs& args)
      : args_(args), plan_(*args.step), ops_(*usable_block_ops().back()) {
    use_one_blas_thread();
    args_in_ = args.in.size();
    std::vector<std::vector<int64_t>> strides;
    for (size_t i = 0; i < operands(); ++i) strides.push_back(operand(i).strides);
    loops_ = make_nest(args.in[0].sizes, strides);
    std::vector<int64_t> dims = {plan_.length_dim, plan_.memory_dim, plan_.key_dim};
    std::sort(dims.rbegin(), dims.rend());
    for (int64_t d : dims) loops_.remove_dim(static_cast<int>(d));
    for (size_t i = 0; i < operands(); ++i) add_copy(i);
    if (plan_.backward) move_shared_in();
    index_.resize(loops_.sizes.size());
    offsets_.resize(operands());
  }

  void run() override {
    if (args_.in[0].dtype == DType::float64) return run_as<double, double>();
    if (plan_.narrow)
      return with_narrow(args_.in[0].dtype, [&](auto x) { run_as<decltype(x), float>(); });
    run_as<float, float>();
  }

 private:
  size_t operands() const { return args_.in.size() + args_.out.size(); }
  const TensorArg& operand(size_t i) const {
    return i < args_in_ ? args_.in[i] : args_.out[i - args_in_];
  }

  void add_copy(size_t i) {
    const TensorArg& arg = operand(i);
    const int64_t n = plan_.is_by_length(i) ? plan_.length : plan_.memory;
    const int64_t row = arg.strides[plan_.is_by_length(i) ? plan_.length_dim : plan_.memory_dim],
                  column = arg.strides[plan_.key_dim];
    const std::vector<int64_t> sizes = {n, plan_.width}, dense = {plan_.width, 1},
                               own = {row, column};
    copies_.push_back(i < args_in_ ? StridedCopy(sizes, dense, own)
                                   : StridedCopy(sizes, own, dense));
  }

  template <class W>
  W* work(int64_t offset) const {
    return reinterpret_cast<W*>(static_cast<char*>(args_.workspace) + offset);
  }

  /// The loops that the gradients of key and value lack become the innermost ones.
  void move_shared_in() {
    const std::vector<int64_t>& stride = loops_.strides[args_in_ + 1];
    for (int d = 0, end = loops_.rank(); d < end;) {
      if (stride[d] != 0 || loops_.sizes[d] == 1) {
        ++d;
        continue;
      }
      std::vector<int64_t> of_operand;
      for (const std::vector<int64_t>& s : loops_.strides) of_operand.push_back(s[d]);
      const int64_t size = loops_.sizes[d];
      check(of_operand[args_in_ + 2] == 0, "attention shares keys, but not values");
      loops_.remove_dim(d);
      loops_.add_dim(size, of_operand);
      sharing_ *= size;
      --end;
    }
  }

  template <class T, class W>
  void run_as() {
    first_query_ = eval(args_, 0);
    first_key_ = eval(args_, 1);
    if (loops_.elements() == 0) return;
    std::fill(index_.begin(), index_.end(), 0);
    std::fill(offsets_.begin(), offsets_.end(), 0);
    for (int64_t sharer = 0;; sharer = (sharer + 1) % sharing_) {
      run_index<T, W>(sharer);
      int d = loops_.rank() - 1;
      for (; d >= 0; --d) {
        for (size_t i = 0; i < operands(); ++i) offsets_[i] += loops_.strides[i][d];
        if (++index_[d] < loops_.sizes[d]) break;
        for (size_t i = 0; i < operands(); ++i)
          offsets_[i] -= loops_.strides[i][d] * loops_.sizes[d];
        index_[d] = 0;
      }
      if (d < 0) return;
    }
  }

  template <class T, class W>
  Matrix<W> matrix(size_t i) {
    const TensorArg& arg = operand(i);
    T* from = static_cast<T*>(arg.data) + offsets_[i];
    if (plan_.packed[i] >= 0) {
      W* to = work<W>(plan_.packed[i]);
      if (i < args_in_) copies_[i].copy(to, static_cast<const T*>(from));
      return {to, plan_.width, 1};
    }
    if constexpr (std::is_same_v<T, W>) {
      const bool by_length = plan_.is_by_length(i);
      return {from, arg.strides[by_length ? plan_.length_dim : plan_.memory_dim],
              arg.strides[plan_.key_dim]};
    }
    fail(ErrorKind::internal, "a narrow operand of attention is not packed");
  }

  template <class T, class W>
  void keep(size_t i, const Matrix<W>& m) {
    if (plan_.packed[i] < 0) return;
    copies_[i].copy(static_cast<T*>(operand(i).data) + offsets_[i], static_cast<const W*>(m.data));
  }

  /// Keys that the rows [first, first + rows) see.
  int64_t seen(int64_t first, int64_t rows) const {
    if (!plan_.causal) return plan_.memory;
    return std::clamp<int64_t>(first_query_ + first + rows - first_key_, 0, plan_.memory);
  }

  template <class T, class W>
  void run_index(int64_t sharer) {
    const Matrix<W> q = matrix<T, W>(0), k = matrix<T, W>(1), v = matrix<T, W>(2);
    if (plan_.backward) return run_backward<T, W>(q, k, v, sharer);
    const Matrix<W> out = matrix<T, W>(3);
    for (int64_t i = 0; i < plan_.length; i += plan_.rows) {
      const int64_t rows = std::min(plan_.rows, plan_.length - i), keys = seen(i, rows);
      const Matrix<W> p = weights(q, k, i, rows, keys);
      product<W>(rows, plan_.width, keys, p.data, p.row, 1, v.data, v.row, v.column,
                 {out.at(i), out.row, out.column}, true);
    }
    keep<T>(3, out);
  }

  /// softmax(scale q k) of a block of rows, in the workspace.
  template <class W>
  Matrix<W> weights(const Matrix<W>& q, const Matrix<W>& k, int64_t i, int64_t rows,
                    int64_t keys) const {
    const Matrix<W> p{work<W>(plan_.logits), whole_vectors(keys), 1};
    product<W>(rows, keys, plan_.width, q.at(i), q.row, q.column, k.data, k.column, k.row, p, true);
    const double scale = args_.step->attrs.template get<double>("scale");
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = std::min(keys, seen(i + r, 1)), n = whole_vectors(visible);
      std::fill(p.at(r) + visible, p.at(r) + n, -std::numeric_limits<W>::infinity());
      if (n > 0) softmax(p.at(r), n, static_cast<W>(scale));
      std::fill(p.at(r) + n, p.at(r) + p.row, W(0));
    }
    return p;
  }

  void softmax(float* x, int64_t n, float scale) const { ops_.softmax_float(x, n, scale); }
  void softmax(double* x, int64_t n, double scale) const { ops_.softmax_double(x, n, scale); }
  void softmax_grad(const float* y, float* g, int64_t n, float scale) const {
    ops_.softmax_grad_float(y, g, n, scale);
  }
  void softmax_grad(const double* y, double* g, int64_t n, double scale) const {
    ops_.softmax_grad_double(y, g, n, scale);
  }

  template <class W>
  void clear(const Matrix<W>& m) const {
    for (int64_t i = 0; i < plan_.memory; ++i) {
      for (int64_t d = 0; d < plan_.width; ++d) m.at(i)[d * m.column] = W(0);
    }
  }

  template <class T, class W>
  void run_backward(const Matrix<W>& q, const Matrix<W>& k, const Matrix<W>& v, int64_t sharer) {
    const Matrix<W> g = matrix<T, W>(3), dq = matrix<T, W>(4), dk = matrix<T, W>(5),
                    dv = matrix<T, W>(6);
    if (sharer == 0) {
      clear(dk);
      clear(dv);
    }
    const double scale = args_.step->attrs.template get<double>("scale");
    for (int64_t i = 0; i < plan_.length; i += plan_.rows) {
      const int64_t rows = std::min(plan_.rows, plan_.length - i), keys = seen(i, rows);
      const Matrix<W> p = weights(q, k, i, rows, keys), ds{work<W>(plan_.back), p.row, 1};
      product<W>(rows, keys, plan_.width, g.at(i), g.row, g.column, v.data, v.column, v.row, ds,
                 true);
      for (int64_t r = 0; r < rows; ++r) {
        std::fill(ds.at(r) + keys, ds.at(r) + ds.row, W(0));
        softmax_grad(p.at(r), ds.at(r), ds.row, static_cast<W>(scale));
      }
      product<W>(rows, plan_.width, keys, ds.data, ds.row, 1, k.data, k.row, k.column,
                 {dq.at(i), dq.row, dq.column}, true);
      product<W>(keys, plan_.width, rows, ds.data, 1, ds.row, q.at(i), q.row, q.column, dk, false);
      product<W>(keys, plan_.width, rows, p.data, 1, p.row, g.at(i), g.row, g.column, dv, false);
    }
    keep<T>(4, dq);
    if (sharer < sharing_ - 1) return;
    keep<T>(5, dk);
    keep<T>(6, dv);
  }

  KernelArgs args_;
  Plan plan_;
  const BlockOps& ops_;
  size_t args_in_ = 0;
  Nest loops_;  ///< operands, then results
  std::vector<StridedCopy> copies_;
  int64_t sharing_ = 1;  ///< indices of the loops that add to one gradient of key and value
  std::vector<int64_t> index_, offsets_;
  int64_t first_query_ = 0, first_key_ = 0;
};

}  // namespace

int64_t attention_workspace(const Step& step) { return Plan(step).workspace; }

Sharing share_attention(const Step& step, int threads) {
  const Plan plan(step);
  const View& q = step.in.at(0);
  std::vector<char> loops(q.sizes.size(), 1);
  for (int64_t d : {plan.length_dim, plan.memory_dim, plan.key_dim})
    loops[static_cast<size_t>(d)] = 0;
  double work = static_cast<double>(plan.memory);
  for (size_t d = 0; d < loops.size(); ++d) {
    if (static_cast<int64_t>(d) != plan.memory_dim) work *= static_cast<double>(q.sizes[d]);
    for (const View& out : step.out) loops[d] = loops[d] && out.strides[d] != 0;
  }
  return {outermost_dim(step.out[0], loops, threads), work * (plan.backward ? 0.15 : 0.06)};
}

std::unique_ptr<Kernel> bind_attention(const KernelArgs& args) {
  return std::make_unique<Attention>(args);
}

}  // namespace tessera::cpu
