// Attention and its gradient with the bits of their definitions under strict numerics
// (ops/attention.cpp, ops/attention_grad.cpp), without storing all logits: every product is a tile
// of ordered_gemm.h, and every other number is computed by the operations of the definition, one
// after the other. So a rank that has all keys uses it, and one that has not computes the
// definition, with the same bits.
//
// As many queries as a tile has columns are taken at a time. All logits of a query are there at
// once, in a column: rows are keys. A key that no query of the group sees is left out, since its
// weight is 0 and adds nothing, unless a number is not finite. The gradients of key and value are
// sums over queries: of a block of groups that is a subtree of that sum, and whose weights fit into
// the second cache. Subtrees of blocks, and of heads that share keys, are joined in memory.
#include <bit>
#include <cmath>

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/ordered_product.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kMostColumns = 64;          ///< of a tile
constexpr int64_t kWeightsOfBlock = 1 << 17;  ///< of a gradient

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t chunk_along(const SumOrder& order, int64_t dim) {
  for (const SumOrder::Along& a : order.along) {
    if (a.dim == dim) return a.chunk;
  }
  fail(ErrorKind::internal, "attention has no chunks of dim {}", dim);
}

/// Elements [begin, end) of a dim in chunks.
class Leaves {
 public:
  Leaves(int64_t begin, int64_t end, int64_t chunk) {
    std::vector<uint64_t> numbers;
    for (int64_t at = begin; at < end;) {
      numbers.push_back(static_cast<uint64_t>(at / chunk));
      at = std::min(end, (at / chunk + 1) * chunk);
      ends_.push_back(at - begin);
    }
    joins_ = joins_of(numbers);
  }
  OrderedTerms terms(bool is_complete) const { return {ends_, joins_, is_complete}; }
  bool empty() const { return ends_.empty(); }

 private:
  std::vector<int64_t> ends_, joins_;
};

/// Sizes, and where the workspace has what; offsets in elements of the type of sums.
struct OrderedAttentionPlan {
  OrderedAttentionPlan(const AttentionPlan& plan, const Step& step);

  int64_t tile_rows, columns;
  int64_t keys;                                       ///< in whole tiles
  int64_t of_width, of_length, of_memory, of_values;  ///< chunks
  int64_t block = 0, stride = 0;         ///< queries of a block; elements of a row of its weights
  int64_t blocks = 1;                    ///< of all queries
  std::vector<int64_t> joins = {};       ///< after each block, of all heads that share keys
  int64_t key_rows = 0, value_rows = 0;  ///< tiles of keys [key][column of the operand]
  int64_t key_across = 0, value_across = 0;     ///< tiles of columns [column][key]
  int64_t queries = 0, grads = 0;               ///< of a group [column][query]
  int64_t weights = 0, back = 0;                ///< of a group [key][query]
  int64_t squashed = 0, kept = 0;               ///< the same, with a soft cap and dropout
  int64_t across = 0, stack = 0;                ///< results of a group; open subtrees of a tile
  int64_t all_weights = 0, all_back = 0;        ///< of a block [key][query]
  int64_t query_columns = 0, grad_columns = 0;  ///< of a block, tiles [query][column]
  int64_t sums = 0;                             ///< open subtrees of the gradients of key and value
  int64_t sum_size = 0, of_value = 0;           ///< of one of them; where the values' begins
  int64_t bytes = 0;                            ///< the plan's workspace included
};

OrderedAttentionPlan::OrderedAttentionPlan(const AttentionPlan& plan, const Step& step)
    : of_width(chunk_along(step.order, plan.key_dim)),
      of_length(plan.backward ? chunk_along(step.order, plan.length_dim) : 1),
      of_memory(chunk_along(step.order, plan.memory_dim)),
      of_values(plan.backward ? chunk_along(step.order, plan.value_dim) : 1) {
  const bool wide = step.in.at(0).dtype == DType::float64;
  const auto set = [&](const auto& tile) { tile_rows = tile.rows, columns = tile.columns; };
  if (wide) {
    set(best_tile<double>());
  } else {
    set(best_tile<float>());
  }
  const int64_t element = wide ? 8 : 4;
  int64_t elements = round_up(plan.workspace, 64) / element;
  const auto reserve = [&](int64_t n) {
    const int64_t at = elements;
    elements += round_up(n, 16);
    return at;
  };
  const auto rows = [&](int64_t n) { return round_up(n, tile_rows); };
  keys = rows(plan.memory);
  key_rows = reserve(keys * plan.width);
  queries = reserve(plan.width * columns);
  weights = reserve(keys * columns);
  across = reserve(rows(std::max(plan.width, plan.value_width)) * columns);
  stack = reserve(kDeepest * tile_rows * columns);
  if (plan.soft_cap > 0) squashed = reserve(keys * columns);
  if (plan.dropout > 0) kept = reserve(keys * columns);
  if (!plan.backward) {
    value_across = reserve(rows(plan.value_width) * plan.memory);
  } else {
    value_rows = reserve(keys * plan.value_width);
    key_across = reserve(rows(plan.width) * plan.memory);
    grads = reserve(plan.value_width * columns);
    back = reserve(keys * columns);
    block = of_length;
    while (block < plan.length && 2 * block * plan.memory <= kWeightsOfBlock) block *= 2;
    block = std::min(block, plan.length);
    blocks = block == 0 ? 0 : (plan.length + block - 1) / block;
    stride = round_up(block, columns) + 16;  // no power of two
    all_weights = reserve(keys * stride);
    all_back = reserve(keys * stride);
    query_columns = reserve(round_up(plan.width, columns) * block);
    grad_columns = reserve(round_up(plan.value_width, columns) * block);
    // The heads that share keys are the outer dims of the sum, in the order of the loops.
    std::vector<uint64_t> prefixes = {0}, numbers;
    const View &q = step.in.at(0), &dk = step.out.at(1);
    const AttentionStep attention(step);
    for (size_t d = 0; d < q.sizes.size(); ++d) {
      if (!attention.is_loop(d) || dk.strides[d] != 0 || q.sizes[d] == 1) continue;
      std::vector<uint64_t> next;
      for (const uint64_t prefix : prefixes) {
        for (int64_t i = 0; i < q.sizes[d]; ++i)
          next.push_back(prefix << std::bit_width(static_cast<uint64_t>(q.sizes[d] - 1)) |
                         static_cast<uint64_t>(i));
      }
      prefixes = std::move(next);
    }
    const uint64_t chunks = static_cast<uint64_t>((plan.length + of_length - 1) / of_length);
    for (const uint64_t prefix : prefixes) {
      for (int64_t b = 0; b < blocks; ++b)
        numbers.push_back(prefix << std::bit_width(chunks - 1) |
                          static_cast<uint64_t>(b * block / of_length));
    }
    joins = joins_of(numbers);
    of_value = plan.memory * plan.width;
    sum_size = of_value + plan.memory * plan.value_width;
    sums = reserve(depth_of(joins) * sum_size);
  }
  bytes = elements * element;
}

/// Writes lines of terms as panels [group of unit lines][term][unit], with zeros behind the last
/// line. line, term: strides.
template <class T, class W>
void pack_lines(const T* from, int64_t line, int64_t term, int64_t lines, int64_t terms,
                int64_t unit, W* to) {
  for (int64_t g = 0; g < lines; g += unit, to += terms * unit) {
    const int64_t n = std::min(unit, lines - g);
    const T* x = from + g * line;
    if (n < unit) std::fill(to, to + terms * unit, W(0));
    if constexpr (std::is_same_v<T, W>) {
      if (line == 1) {
        for (int64_t k = 0; k < terms; ++k)
          std::memcpy(to + k * unit, x + k * term, static_cast<size_t>(n) * sizeof(W));
        continue;
      }
    }
    int64_t done = 0;
    if constexpr (std::is_same_v<T, float>) {
      for (; term == 1 && done + 4 <= n; done += 4) {
        const float* four[4];
        for (int64_t i = 0; i < 4; ++i) four[i] = x + (done + i) * line;
        transpose_lines(four, terms, to + done, unit);
      }
    }
    for (int64_t i = done; i < n; ++i) {
      for (int64_t k = 0; k < terms; ++k) to[k * unit + i] = load_as(x[i * line + k * term]);
    }
  }
}

/// Writes [column][query] as rows of queries.
template <class T, class W>
void store_across(const W* from, int64_t unit, int64_t queries, int64_t columns, T* to, int64_t row,
                  int64_t column) {
  int64_t done = 0;
  if constexpr (std::is_same_v<T, float>) {
    for (; column == 1 && done + 4 <= columns; done += 4) {
      const float* four[4];
      for (int64_t i = 0; i < 4; ++i) four[i] = from + (done + i) * unit;
      transpose_lines(four, queries, to + done, row);
    }
  }
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t i = done; i < columns; ++i)
      to[q * row + i * column] = store_as<T>(from[i * unit + q]);
  }
}

template <class W>
bool all_finite(const W* x, int64_t n) {
  return best_ordered<W>().columns.is_finite(x, n);
}

class OrderedAttention final : public AttentionLoops<OrderedAttention> {
 public:
  explicit OrderedAttention(const KernelArgs& args)
      : AttentionLoops(args),
        at_(plan_, *args.step),
        key_leaves_(0, plan_.width, at_.of_width),
        value_leaves_(0, plan_.value_width, at_.of_values) {
    const DType dtype = plan_.narrow ? DType::float32 : args.in[0].dtype;
    const auto find = [&](PointwiseOp op) { return ops_.find(op, dtype, dtype); };
    exp_ = find(PointwiseOp::exp), log_ = find(PointwiseOp::log), tanh_ = find(PointwiseOp::tanh);
    TESSERA_CHECK(at_.columns <= kMostColumns && at_.tile_rows <= kMostRows, "a tile of {} x {}",
                  at_.tile_rows, at_.columns);
  }

 private:
  friend AttentionLoops<OrderedAttention>;

  /// Queries [first, first + size), and the keys that one of them sees, in whole tiles.
  struct Group {
    int64_t first = 0, size = 0, begin = 0, end = 0;
    int64_t keys = 0;  ///< from `begin` on that exist
  };
  /// One number for each query of a group.
  template <class W>
  struct Numbers {
    alignas(64) W of[kMostColumns];
  };

  void begin() { packed_ = {-1, -1}; }

  template <class W>
  W* at(int64_t offset) const {
    return static_cast<W*>(args_.workspace) + offset;
  }
  template <class T>
  const T* input(size_t i) const {
    return static_cast<const T*>(args_.in[i].data) + offsets_[i];
  }
  int64_t row_of(size_t i) const { return operand(i).strides[plan_.position_dim(i)]; }
  int64_t column_of(size_t i) const { return operand(i).strides[plan_.column_dim(i)]; }
  void apply(BlockFn f, const void* x, void* out, int64_t n) const {
    BlockArgs args;
    args.a = x;
    args.out = out;
    args.n = n;
    f(args);
  }

  template <class T, class W>
  void run_index(int64_t sharer) {
    if (const std::pair at = {offsets_[1], offsets_[2]}; packed_ != at) {
      pack_keys<T, W>();
      packed_ = at;
    }
    if (plan_.backward) return run_backward<T, W>(sharer);
    const Matrix<W> log_sum = row<W>(args_in_ + 1);
    for (int64_t first = 0; first < plan_.length; first += at_.columns) {
      Numbers<W> begin, end, most, sum, logs;
      const Group g = group<T, W>(first, begin.of, end.of);
      logits<T, W>(g, begin.of, end.of, most.of);
      W* x = at<W>(at_.weights);
      const Leaves leaves(g.begin, g.begin + g.keys, at_.of_memory);
      const OrderedTerms terms = leaves.terms(true);
      const OrderedColumns<W>& columns = best_ordered<W>().columns;
      columns.subtract(x, g.keys, most.of);
      apply(exp_, x, x, g.keys * at_.columns);
      columns.sum(terms, x, sum.of);
      bool sees[kMostColumns];
      for (int64_t q = 0; q < at_.columns; ++q) {
        sees[q] = begin.of[q] < end.of[q] && (sum.of[q] > 0 || !may_hide_all());
        // Nothing is left of what is divided by infinity: queries that see no key.
        if (!sees[q])
          sum.of[q] = begin.of[q] < end.of[q] ? W(1) : std::numeric_limits<W>::infinity();
      }
      apply(log_, sum.of, logs.of, at_.columns);
      columns.divide(x, g.keys, sum.of);
      if (drawn_) {
        draw_group<W>(g, begin.of, end.of);
        drop(g, x);
      }
      round_as<T>(x, g.keys * at_.columns);
      for (int64_t q = 0; q < g.size; ++q)
        *log_sum.at(first + q) = sees[q] ? most.of[q] + logs.of[q] : W(kNothing);
      store_product<T, W>(at_.value_across, plan_.value_width, leaves, terms, x, g, args_in_);
    }
  }

  bool may_hide_all() const { return plan_.mask.window > 0 || plan_.segments || plan_.starts > 0; }

  template <class T, class W>
  void pack_keys() {
    pack_lines(input<T>(1), row_of(1), column_of(1), plan_.memory, plan_.width, at_.tile_rows,
               at<W>(at_.key_rows));
    if (plan_.backward) {
      pack_lines(input<T>(2), row_of(2), column_of(2), plan_.memory, plan_.value_width,
                 at_.tile_rows, at<W>(at_.value_rows));
      pack_lines(input<T>(1), column_of(1), row_of(1), plan_.width, plan_.memory, at_.tile_rows,
                 at<W>(at_.key_across));
    } else {
      pack_lines(input<T>(2), column_of(2), row_of(2), plan_.value_width, plan_.memory,
                 at_.tile_rows, at<W>(at_.value_across));
    }
    keys_are_finite_ =
        all_finite(at<W>(at_.key_rows), at_.keys * plan_.width) &&
        (plan_.backward ? all_finite(at<W>(at_.value_rows), at_.keys * plan_.value_width)
                        : all_finite(at<W>(at_.value_across),
                                     round_up(plan_.value_width, at_.tile_rows) * plan_.memory));
  }

  /// The group from `first` on, its operands packed. begin, end: of each column, from the group's
  /// first key on.
  template <class T, class W>
  Group group(int64_t first, W* begin, W* end) const {
    Group g{first, std::min(at_.columns, plan_.length - first), plan_.memory, 0, 0};
    pack_lines(input<T>(0) + first * row_of(0), row_of(0), column_of(0), g.size, plan_.width,
               at_.columns, at<W>(at_.queries));
    bool finite = keys_are_finite_;
    if (plan_.backward) {
      pack_lines(input<T>(3) + first * row_of(3), row_of(3), column_of(3), g.size,
                 plan_.value_width, at_.columns, at<W>(at_.grads));
      finite = finite && all_finite(at<W>(at_.queries), plan_.width * at_.columns) &&
               all_finite(at<W>(at_.grads), plan_.value_width * at_.columns);
      for (int64_t q = 0; q < g.size; ++q)
        finite = finite && std::isfinite(*row<W>(6).at(first + q));
    }
    Span spans[kMostColumns];
    for (int64_t q = 0; q < g.size; ++q) {
      const Span keys = spans[q] = seen(first + q);
      if (keys.size() == 0) continue;
      g.begin = std::min<int64_t>(g.begin, keys.begin);
      g.end = std::max<int64_t>(g.end, keys.end);
    }
    if (!finite) g.begin = 0, g.end = plan_.memory;
    if (g.begin >= g.end) g.begin = g.end = 0;
    g.begin = g.begin / at_.tile_rows * at_.tile_rows;
    g.end = round_up(g.end, at_.tile_rows);
    g.keys = std::min(g.end, plan_.memory) - g.begin;
    for (int64_t q = 0; q < at_.columns; ++q) {
      const bool sees = q < g.size && spans[q].size() > 0;
      begin[q] = sees ? static_cast<W>(spans[q].begin - g.begin) : W(0);
      end[q] = sees ? static_cast<W>(spans[q].end - g.begin) : W(0);
    }
    return g;
  }

  /// Products of tiles of keys with the columns of the group, rounded as an einsum's result.
  template <class T, class W>
  void products(const Group& g, int64_t rows, int64_t columns, int64_t width, const Leaves& leaves,
                W* x) const {
    const OrderedTerms terms = leaves.terms(true);
    W* out[kMostRows];
    for (int64_t k = g.begin; k < g.end; k += at_.tile_rows) {
      for (int64_t r = 0; r < at_.tile_rows; ++r) out[r] = x + (k - g.begin + r) * at_.columns;
      best_tile<W>().run(terms, at<W>(rows) + k * width, at<W>(columns), at<W>(at_.stack), out);
    }
    if constexpr (std::is_same_v<T, BFloat16>) round_as<T>(x, g.keys * at_.columns);
  }

  template <class T, class W>
  static void round_as(W* x, int64_t n) {
    if constexpr (!std::is_same_v<T, W>) {
      for (int64_t i = 0; i < n; ++i) x[i] = load_as(store_as<T>(x[i]));
    }
  }

  /// Logits of the group in `weights`, most: the largest of each query.
  template <class T, class W>
  void logits(const Group& g, const W* begin, const W* end, W* most) const {
    W* x = at<W>(at_.weights);
    products<T, W>(g, at_.key_rows, at_.queries, plan_.width, key_leaves_, x);
    W scale = this->scale<W>();
    if (plan_.soft_cap > 0) {
      W* t = at<W>(at_.squashed);
      const W cap = static_cast<W>(plan_.soft_cap);
      const int64_t n = g.keys * at_.columns;
      for (int64_t i = 0; i < n; ++i) x[i] = x[i] * scale / cap;
      apply(tanh_, x, t, n);
      for (int64_t i = 0; i < n; ++i) x[i] = t[i] * cap;
      scale = 1;
    }
    if (plan_.slopes || plan_.entries > 0) {
      for (int64_t k = 0; k < g.keys; ++k) bias(x + k * at_.columns, g, k, scale);
      scale = 1;
    }
    best_ordered<W>().columns.mask(x, g.keys, scale, begin, end, W(kNothing), most);
  }

  /// A row of products of key `k` of the group becomes scaled and has its biases by position.
  template <class W>
  void bias(W* x, const Group& g, int64_t k, W scale) const {
    const W* slope_at =
        plan_.slopes ? static_cast<const W*>(operand(slopes()).data) + offsets_[slopes()] : nullptr;
    const W* entry_at = plan_.entries > 0
                            ? static_cast<const W*>(operand(entries()).data) + offsets_[entries()]
                            : nullptr;
    const int64_t stride =
        entry_at ? operand(entries()).strides[static_cast<size_t>(plan_.entries_dim)] : 0;
    const int64_t half = plan_.entries / 2;
    const int64_t behind = first_query_ + g.first - first_key_ - g.begin - k;  // of column 0
    for (int64_t q = 0; q < at_.columns; ++q) {
      W sum = slope_at ? -(*slope_at * std::abs(static_cast<W>(behind + q))) : W(0);
      if (entry_at) {
        const W own = entry_at[(std::clamp(behind + q, -half, half) + half) * stride];
        sum = slope_at ? sum + own : own;
      }
      const W scaled = x[q] * scale;
      x[q] = scaled + sum;
    }
  }

  /// The factors of the weights of the group [key][query], 0 for keys that a query does not see.
  template <class W>
  void draw_group(const Group& g, const W* begin, const W* end) const {
    W* kept = at<W>(at_.kept);
    std::fill(kept, kept + g.keys * at_.columns, W(0));
    for (int64_t q = 0; q < g.size; ++q) {
      const Span keys{static_cast<int64_t>(begin[q]), static_cast<int64_t>(end[q])};
      const W* own = draw<W>(keys, g.first + q, g.begin);
      for (int64_t k = keys.begin; k < keys.end; ++k) kept[k * at_.columns + q] = own[k];
    }
  }

  /// x by those factors.
  template <class W>
  void drop(const Group& g, W* x) const {
    const W* kept = at<W>(at_.kept);
    for (int64_t i = 0; i < g.keys * at_.columns; ++i) x[i] = kept[i] == 0 ? W(0) : x[i] * kept[i];
  }

  /// Operand `result` of the group: the product of tiles of columns [column][key] and the keys'
  /// numbers x.
  template <class T, class W>
  void store_product(int64_t across, int64_t width, const Leaves& leaves, const OrderedTerms& terms,
                     const W* x, const Group& g, size_t result) const {
    W* to = at<W>(at_.across);
    W* out[kMostRows];
    for (int64_t c = 0; c < width; c += at_.tile_rows) {
      for (int64_t r = 0; r < at_.tile_rows; ++r) out[r] = to + (c + r) * at_.columns;
      if (leaves.empty()) {
        std::fill(out[0], out[0] + at_.tile_rows * at_.columns, W(0));
        continue;
      }
      best_tile<W>().run(terms, at<W>(across) + c * plan_.memory + g.begin * at_.tile_rows, x,
                         at<W>(at_.stack), out);
    }
    T* data = static_cast<T*>(operand(result).data) + offsets_[result];
    store_across(to, at_.columns, g.size, width, data + g.first * row_of(result), row_of(result),
                 column_of(result));
  }

  template <class T, class W>
  void run_backward(int64_t sharer) {
    if (sharer == 0) open_ = 0;
    for (int64_t b = 0; b < at_.blocks; ++b) {
      const int64_t first = b * at_.block, size = std::min(at_.block, plan_.length - first);
      std::vector<Group> groups;
      for (int64_t q = first; q < first + size; q += at_.columns)
        groups.push_back(gradient_of_group<T, W>(q, q - first));
      W* sum = at<W>(at_.sums) + open_++ * at_.sum_size;
      sum_over_queries<T, W>(0, at_.query_columns, plan_.width, at_.all_back, groups, first, size,
                             sum);
      sum_over_queries<T, W>(3, at_.grad_columns, plan_.value_width, at_.all_weights, groups, first,
                             size, sum + at_.of_value);
      for (int64_t join = at_.joins[static_cast<size_t>(sharer * at_.blocks + b)]; join > 0;
           --join, --open_, sum -= at_.sum_size) {
        W* __restrict to = sum - at_.sum_size;
        for (int64_t i = 0; i < at_.sum_size; ++i) to[i] += sum[i];
      }
    }
    if (sharer < sharing_ - 1) return;
    const W* from = at<W>(at_.sums);
    store_sums<T>(args_in_ + 1, from, plan_.width);
    store_sums<T>(args_in_ + 2, from + at_.of_value, plan_.value_width);
  }

  template <class T, class W>
  void store_sums(size_t result, const W* from, int64_t width) const {
    T* to = static_cast<T*>(operand(result).data) + offsets_[result];
    const int64_t row = row_of(result), column = column_of(result);
    for (int64_t k = 0; k < plan_.memory; ++k) {
      for (int64_t c = 0; c < width; ++c)
        to[k * row + c * column] =
            store_as<T>((at_.blocks == 0 ? W(0) : from[k * width + c]) + W(0));
    }
  }

  /// The gradients of the queries of a group. What those of keys and values need goes to column
  /// `column` of the block's weights.
  template <class T, class W>
  Group gradient_of_group(int64_t first, int64_t column) const {
    Numbers<W> begin, end, most, log_sum, inner;
    const Group g = group<T, W>(first, begin.of, end.of);
    W *x = at<W>(at_.weights), *d = at<W>(at_.back);
    const int64_t n = g.keys * at_.columns;
    const OrderedColumns<W>& columns = best_ordered<W>().columns;
    logits<T, W>(g, begin.of, end.of, most.of);
    products<T, W>(g, at_.value_rows, at_.grads, plan_.value_width, value_leaves_, d);
    bool hides = true;  // exp() of hidden logits is 0
    for (int64_t q = 0; q < at_.columns; ++q) {
      const bool sees = begin.of[q] < end.of[q];
      log_sum.of[q] = sees ? *row<W>(5).at(first + q) : W(0);
      inner.of[q] = q < g.size ? *row<W>(6).at(first + q) : W(0);
      hides = hides && std::abs(log_sum.of[q]) < -kNothing / 2;
    }
    columns.subtract(x, g.keys, log_sum.of);
    apply(exp_, x, x, n);
    if (!hides) columns.mask(x, g.keys, W(1), begin.of, end.of, W(0), most.of);
    if (drawn_) {
      draw_group<W>(g, begin.of, end.of);
      drop(g, d);
    }
    const W scale = this->scale<W>();
    columns.gradient(x, d, g.keys, inner.of, plan_.soft_cap > 0 ? W(1) : scale);
    if (plan_.soft_cap > 0) {
      const W* t = at<W>(at_.squashed);
      for (int64_t i = 0; i < n; ++i) {
        const W square = t[i] * t[i], slope = W(1) - square;
        d[i] = d[i] * slope * scale;
      }
    }
    if (drawn_) drop(g, x);
    round_as<T>(d, n);
    round_as<T>(x, n);
    const size_t bytes = static_cast<size_t>(at_.columns) * sizeof(W);
    for (int64_t k = 0; k < g.keys; ++k) {
      const int64_t to = (g.begin + k) * at_.stride + column;
      std::memcpy(at<W>(at_.all_weights) + to, x + k * at_.columns, bytes);
      std::memcpy(at<W>(at_.all_back) + to, d + k * at_.columns, bytes);
    }
    const Leaves leaves(g.begin, g.begin + g.keys, at_.of_memory);
    store_product<T, W>(at_.key_across, plan_.width, leaves, leaves.terms(true), d, g, args_in_);
    return g;
  }

  /// sum [key][column of operand i]: over the queries of a block, of their numbers by key.
  template <class T, class W>
  void sum_over_queries(size_t i, int64_t packed, int64_t width, int64_t by_key,
                        const std::vector<Group>& groups, int64_t first, int64_t size,
                        W* sum) const {
    pack_lines(input<T>(i) + first * row_of(i), column_of(i), row_of(i), width, size, at_.columns,
               at<W>(packed));
    W *of_key = at<W>(by_key), *tile = at<W>(at_.across);
    for (int64_t k = 0; k < at_.keys; k += at_.tile_rows) {
      const int64_t rows = std::min(at_.tile_rows, plan_.memory - k);
      int64_t begin = size, end = 0;
      for (const Group& g : groups) {
        if (k < g.begin || k >= g.end) continue;
        begin = std::min(begin, g.first - first);
        end = g.first - first + g.size;
      }
      for (const Group& g : groups) {  // in between
        if (k >= g.begin && k < g.end) continue;
        for (int64_t r = 0; r < rows && g.first - first > begin && g.first - first < end; ++r) {
          W* at = of_key + (k + r) * at_.stride + g.first - first;
          std::fill(at, at + g.size, W(0));
        }
      }
      if (begin >= end) {
        std::fill(sum + k * width, sum + (k + rows) * width, W(0));
        continue;
      }
      const Leaves leaves(first + begin, first + end, at_.of_length);
      const W* lines[kMostRows];
      for (int64_t r = 0; r < at_.tile_rows; ++r)
        lines[r] = of_key + (k + std::min(r, rows - 1)) * at_.stride + begin;
      for (int64_t c = 0; c < width; c += at_.columns) {
        const int64_t here = std::min(at_.columns, width - c);
        const bool in_place = here == at_.columns && rows == at_.tile_rows;
        W* out[kMostRows];
        for (int64_t r = 0; r < at_.tile_rows; ++r)
          out[r] = in_place ? sum + (k + r) * width + c : tile + r * at_.columns;
        best_tile<W>().run_strided(leaves.terms(false), lines, 1,
                                   at<W>(packed) + c * size + begin * at_.columns, at<W>(at_.stack),
                                   out);
        for (int64_t r = 0; r < rows && !in_place; ++r)
          std::copy(out[r], out[r] + here, sum + (k + r) * width + c);
      }
    }
  }

  static constexpr int64_t kMostRows = 16;  ///< of a tile
  OrderedAttentionPlan at_;
  Leaves key_leaves_, value_leaves_;
  BlockFn exp_ = nullptr, log_ = nullptr, tanh_ = nullptr;
  std::pair<int64_t, int64_t> packed_ = {-1, -1};  ///< offsets of the keys and values that are
  bool keys_are_finite_ = true;
  int64_t open_ = 0;  ///< subtrees of the gradients of key and value
};

}  // namespace

int64_t ordered_attention_workspace(const Step& step) {
  return OrderedAttentionPlan(AttentionPlan(step), step).bytes;
}

std::unique_ptr<Kernel> bind_ordered_attention(const KernelArgs& args) {
  return std::make_unique<OrderedAttention>(args);
}

}  // namespace tessera::cpu
