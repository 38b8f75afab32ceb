// The operations. All take and return Tensors of one graph. Dims are matched by name, in any order.
// Every function throws a usage error that names the op, the culprit dim or dtype, the numbers and
// the caller's line. Operands must have equal dtypes: there is no implicit promotion, use cast().
// Integer tensors have no gradient. Where the result would have a dim of each of two tensors whose
// names are one letter apart and whose sizes are equal, one is misspelt: a usage error, in what a
// user writes.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <source_location>
#include <vector>

#include "tessera/graph.h"
#include "tessera/out_of_range.h"

namespace tessera {

/// A tensor and the source line that uses it. Overloaded operators take it to learn their caller.
struct At {
  At(Tensor tensor, Loc at = Loc::current()) : tensor(tensor), at(at) {}
  Tensor tensor;
  Loc at;
};

// ---------------------------------------------------------------------------------------- sources
/// A tensor filled with `value`. Throws a usage error for a finite number that `dtype` cannot hold.
Tensor constant(Graph& g, double value, DType dtype = DType::float32, const Shape& shape = {},
                Loc at = Loc::current());
/// The values of an array of the host: a table, a filter, a mask. Every rank holds its slice.
Tensor constant(Graph& g, const Array& values, Loc at = Loc::current());
/// 0 in every element, with the dims and dtype of x.
Tensor zeros_like(Tensor x, Loc at = Loc::current());
/// 1 in every element, with the dims and dtype of x.
Tensor ones_like(Tensor x, Loc at = Loc::current());
/// The index along `dim`: [dim], 0 .. size-1.
Tensor iota(Graph& g, const Dim& dim, DType dtype = DType::int32, Loc at = Loc::current());
/// The run-time size of `dim`, as a scalar. It differs from dim.size only if `dim` is bounded.
Tensor dim_size(Graph& g, const Dim& dim, DType dtype = DType::float32, Loc at = Loc::current());
/// Uniform in [lo, hi). Random numbers are a pure function of (seed, name of this node, step,
/// logical index), so they are the same under every layout, and others in each step and in each
/// iteration of a loop. dtype must be floating.
Tensor random_uniform(Graph& g, const Shape& shape, double lo = 0, double hi = 1,
                      DType dtype = DType::float32, Loc at = Loc::current());
/// Normal, by inverting the cumulative distribution function.
Tensor random_normal(Graph& g, const Shape& shape, double mean = 0, double stddev = 1,
                     DType dtype = DType::float32, Loc at = Loc::current());
/// Normal, truncated to two standard deviations of the parent distribution.
Tensor truncated_normal(Graph& g, const Shape& shape, double mean = 0, double stddev = 1,
                        DType dtype = DType::float32, Loc at = Loc::current());

// ------------------------------------------------------------------------ pointwise, one operand
// clang-format off
#define TESSERA_UNARY_OPS(X)                                                                \
  X(neg)                                                                                    \
  X(abs)                                                                                    \
  X(sign)                                                                                   \
  X(exp)                                                                                    \
  X(log) X(log1p) X(sqrt) X(rsqrt) X(reciprocal) X(square) X(sin) X(cos) X(tanh) X(sigmoid) \
      X(softplus) X(relu) X(gelu) X(silu) X(erf) X(erf_inv) X(floor) X(ceil) X(round)       \
          X(logical_not) X(is_finite)
// clang-format on
#define X(name) Tensor name(Tensor x, Loc at = Loc::current());
TESSERA_UNARY_OPS(X)
#undef X
Tensor is_nan(Tensor x, Loc at = Loc::current());
Tensor is_inf(Tensor x, Loc at = Loc::current());
Tensor gelu_grad(Tensor x, Loc at = Loc::current());  ///< derivative of gelu (the tanh form)
Tensor cast(Tensor x, DType dtype, Loc at = Loc::current());
Tensor leaky_relu(Tensor x, double alpha = 0.2, Loc at = Loc::current());
Tensor elu(Tensor x, Loc at = Loc::current());
Tensor selu(Tensor x, Loc at = Loc::current());
/// Applies a function by name: identity (or linear), relu, gelu, gelu_erf (x Phi(x) by erf), silu
/// (or swish), sigmoid, tanh, softplus, elu, selu, leaky_relu, square, exp. Throws a usage error
/// for another name.
Tensor activate(Tensor x, const std::string& function, Loc at = Loc::current());
/// min(max(x, lo), hi); NaN stays NaN. The gradient is zero below lo and above hi.
Tensor clip(Tensor x, double lo, double hi, Loc at = Loc::current());
/// x.
Tensor identity(Tensor x, Loc at = Loc::current());
/// x, as a constant for gradients: none goes through it.
Tensor stop_gradient(Tensor x, Loc at = Loc::current());
/// Zeroes each element with probability `rate` and divides the others by 1 - rate. Integers are not
/// divided.
Tensor dropout(Tensor x, double rate, Loc at = Loc::current());

// ----------------------------------------------------------------------- pointwise, two operands
// Broadcasting by name: if one operand's dims contain the other's in the same order, the result has
// its dims; else the first operand's dims, then those of the second that the first lacks. For
// integers, div, floor_div and mod by zero give zero on every device.
// clang-format off
#define TESSERA_BINARY_OPS(X)                                                       \
  X(add)                                                                            \
  X(sub)                                                                            \
  X(mul)                                                                            \
  X(div)                                                                            \
  X(floor_div) X(mod) X(pow) X(minimum) X(maximum) X(less) X(less_equal) X(greater) \
      X(greater_equal) X(equal) X(not_equal) X(logical_and) X(logical_or)
// clang-format on
#define X(name) Tensor name(Tensor a, Tensor b, Loc at = Loc::current());
TESSERA_BINARY_OPS(X)
#undef X
/// True where exactly one of two bool tensors is true.
Tensor logical_xor(Tensor a, Tensor b, Loc at = Loc::current());
/// condition ? a : b; condition is bool. The operand that is not chosen affects neither the value
/// nor the gradient: its gradient is 0 there. But that 0 is propagated further: the gradient of
/// where(x > 0, sqrt(x), 0) at x = 0 is 0 times infinity. Write sqrt(where(x > 0, x, 1)) instead.
Tensor where(Tensor condition, Tensor a, Tensor b, Loc at = Loc::current());

// ------------------------------------------------------------------------- products, reductions
/// Sum of products: sums over every dim that is not in `out`. Dims of `out` that no input has are
/// broadcast, unless the name is one letter from that of a summed dim. Throws a usage error for a
/// dim that one of several operands has alone and that is not in `out`: most often its name is
/// misspelt. If it is to be summed, reduce_sum() says so.
Tensor einsum(const std::vector<Tensor>& xs, const Shape& out, Loc at = Loc::current());
Tensor einsum(const std::vector<Tensor>& xs, std::initializer_list<Dim> out,
              Loc at = Loc::current());
/// Sums over every dim that occurs in at least two inputs. The result's dims are in order of first
/// appearance. Throws a usage error for an operand that shares no dim with the others: an outer
/// product names its result.
Tensor einsum(const std::vector<Tensor>& xs, Loc at = Loc::current());

/// Reductions over the named dims. Dims have at least one element, so no maximum is of nothing.
Tensor reduce_sum(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_mean(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_max(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_min(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_prod(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_any(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_all(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_logsumexp(Tensor x, const Axes& axes, Loc at = Loc::current());
/// Reductions over all dims, to a scalar.
Tensor sum_all(Tensor x, Loc at = Loc::current());
Tensor mean_all(Tensor x, Loc at = Loc::current());
/// Index (int32) of the largest or smallest element; of the first NaN, if there is one. Ties: the
/// lowest index.
Tensor argmax(Tensor x, const std::string& dim, Loc at = Loc::current());
Tensor argmin(Tensor x, const std::string& dim, Loc at = Loc::current());
struct TopK {
  Tensor values,
      indices;  ///< descending; dims of x without the reduced one, then k; indices are int32
};
/// The largest element and its index: top_k with k = 1, without the dim k.
TopK top_1(Tensor x, const std::string& dim, Loc at = Loc::current());
/// The k largest elements along `dim` in descending order. Ties: the lowest index first. k must not
/// exceed the size of `dim`. If it exceeds the run-time size of a bounded `dim`, the surplus values
/// are the dtype's minimum, with indices beyond the last element.
TopK top_k(Tensor x, const std::string& dim, const Dim& k, Loc at = Loc::current());
/// sort: the elements along `dim` in order; argsort: their indices (int32) in x. NaN counts as the
/// largest. Ties: the lowest index first.
Tensor sort(Tensor x, const std::string& dim, bool descending = false, Loc at = Loc::current());
Tensor argsort(Tensor x, const std::string& dim, bool descending = false, Loc at = Loc::current());
/// The element at position n (from 0) in descending or ascending order, without `dim`.
Tensor nth_largest(Tensor x, const std::string& dim, int64_t n, Loc at = Loc::current());
Tensor nth_smallest(Tensor x, const std::string& dim, int64_t n, Loc at = Loc::current());
/// Cumulative sums along `dim`. exclusive: without the element itself. reverse: from the end.
Tensor cumsum(Tensor x, const std::string& dim, bool exclusive = false, bool reverse = false,
              Loc at = Loc::current());

/// The linear recurrence y[t] = decay[t] y[t - 1] + x[t] along `dim`, with nothing before the first
/// element; reverse: y[t + 1] instead, from the end. x, decay: of one floating dtype; the result
/// has the dims of both. A decay of 0 begins anew, as packed documents do. States are kept in
/// float64. Where `dim` is split, ranks exchange one state and one decay for each slice. Diagonal
/// state spaces (Gu & Dao 2023, eq. 2a) and linear recurrent units (Orvieto et al. 2023) are of
/// this form.
Tensor linear_scan(Tensor x, Tensor decay, const std::string& dim, bool reverse = false,
                   Loc at = Loc::current());

struct Complex {
  Tensor re, im;
};
/// The discrete Fourier transform along `dim`: y[k] = sum over j of x[j] exp(-2 pi i j k / n). With
/// `inverse`: exp(+...), divided by n. An empty x.im is zero. If `dim` is bounded, n is the size of
/// the run, and the cost n^2.
Complex fft(const Complex& x, const std::string& dim, bool inverse = false,
            Loc at = Loc::current());

// ------------------------------------------------------------------------------------- composites
Tensor softmax(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor log_softmax(Tensor x, const Axes& axes, Loc at = Loc::current());
/// -log softmax(logits)[labels] + z_loss * logsumexp(logits)^2 for each example. Result: the dims
/// of logits without `classes`, float32 or float64. labels: int32 or int64 of those dims, or soft
/// labels with logits' dtype and dims.
Tensor cross_entropy(Tensor logits, Tensor labels, const std::string& classes, double z_loss = 0,
                     Loc at = Loc::current());
/// (x - mean) / sqrt(var + eps) * scale + bias over `dim`; scale and bias: [dim] (Ba et al. 2016,
/// eq. 4).
Tensor layer_norm(Tensor x, const std::string& dim, Tensor scale, Tensor bias, double eps = 1e-5,
                  Loc at = Loc::current());
/// x / sqrt(mean(x^2) + eps) * scale over `dim`; scale: [dim] (Zhang & Sennrich 2019).
Tensor rms_norm(Tensor x, const std::string& dim, Tensor scale, double eps = 1e-6,
                Loc at = Loc::current());

struct BatchNormed {
  Tensor y, mean, variance;  ///< the statistics in the dtype of scale
};
/// (x - mean) / sqrt(variance + eps) * scale + bias with the statistics of x itself over `axes`.
/// scale and bias: the other dims, float32 or float64.
BatchNormed batch_normed(Tensor x, Tensor scale, Tensor bias, const Axes& axes, double eps = 1e-3,
                         Loc at = Loc::current());

struct AttentionOptions {
  std::string length = "length";                ///< dim of query positions
  std::string memory_length = "memory_length";  ///< dim of key positions
  std::string key_dim = "d_head";               ///< the dim that query and key contract
  bool causal = false;                          ///< query i sees keys 0 .. i
  double scale = 0;    ///< factor of the logits; 0: 1 / sqrt(size of key_dim)
  double dropout = 0;  ///< dropout rate of the attention weights
  /// c: logits x become c tanh(x / c) (Gemma 2); 0: none.
  double soft_cap = 0;
  /// A query sees only keys at distances below this, at least 1: query i sees keys i - window + 1
  /// to i, and if it is not causal, to i + window - 1.
  std::optional<int64_t> window = {};
  /// For several documents packed into one row: a query sees only keys of its own segment. int32
  /// ids of queries [..., length] and keys [..., memory_length], with some of the query's dims;
  /// without ids of keys both have the same. Ids do not go back along a row. 0 is padding, at the
  /// end or the beginning of a row: it sees nothing, and no query sees it.
  Tensor segments = {}, memory_segments = {};
  /// Prefix language models (Raffel et al. 2020): with `causal`, every query also sees the first
  /// `prefix` keys, outside of its window, too. int32, with some of the query's dims except length
  /// and key_dim.
  Tensor prefix = {};
  /// Attention sinks (Xiao et al. 2024): one more logit for each head, of a key that all queries
  /// see and whose value is 0, so that the weights of a query sum to less than 1. Floating, with
  /// some of the query's dims except length and key_dim. The scale and the soft cap do not count
  /// for it.
  Tensor sinks = {};
  /// ALiBi (Press et al. 2022): the logit of query i and key j loses slopes * |i - j|, behind the
  /// soft cap. Floating, with some of the query's dims except length and key_dim. They are
  /// constants: no gradient flows to them.
  Tensor slopes = {};
  /// Biases by distance, which may be learned (Raffel et al. 2020): behind the soft cap, the logit
  /// of query i and key j gets entry m + i - j of 2 m + 1 entries, or the first or the last one
  /// where there is none. Floating, [entries], with some of the query's dims except length and
  /// key_dim. nn::relative_distances() makes those of T5.
  Tensor by_distance = {};
};
/// softmax(query . key * scale + mask) . value over memory_length (Vaswani et al. 2017, eq. 1).
/// query [..., length, key_dim]; key and value [..., memory_length, key_dim]; others match by name.
/// The value may have a dim of its own in place of key_dim, then the result's last. `mask`: empty,
/// or bool with some of the logits' dims, true where a query may look. Result: the dims that only
/// key, value or mask have, then query's. A query without a batch dim is shared by all examples.
///
/// What the options hide costs neither time nor memory where there is a kernel, while a mask stores
/// all logits. A query from which options and mask hide all keys gets zeros. Segments that go back
/// are an error at the end of the step where a kernel finds them in a rank's slice; elsewhere ids
/// are only compared.
Tensor attention(Tensor query, Tensor key, Tensor value, Tensor mask = {},
                 const AttentionOptions& options = {}, Loc at = Loc::current());

/// Attention over some of the keys, with what join() needs to combine such parts (online softmax,
/// Milakov & Gimelshein 2018).
struct AttentionPart {
  Tensor out;      ///< as attention() over these keys alone; zero where a query sees none of them
  Tensor log_sum;  ///< log of the sum of exp(logits), -1e30 where a query sees no key; query's
                   ///< shape without key_dim; float32 for 16-bit queries, else query's dtype
};
/// attention() without mask and dropout, over keys that are a part of all keys. `query_start` and
/// `key_start` are the positions of the first query and first key in the whole sequence, for causal
/// order and window: int32, with some of query's dims except length and key_dim. Keys at positions
/// from `memory_size` on are ignored.
AttentionPart attention_part(Tensor query, Tensor key, Tensor value, Tensor query_start,
                             Tensor key_start, int64_t memory_size,
                             const AttentionOptions& options = {}, Loc at = Loc::current());
/// Combines two parts of the keys for the same queries into one.
AttentionPart join(const AttentionPart& a, const AttentionPart& b);

// -------------------------------------------------------------------------------- indexed access
/// weights[indices] along `dim`. Result: the dims of indices, then those of weights without `dim`.
/// A dim that both have is matched, not repeated. indices: int32 or int64.
Tensor gather(Tensor weights, Tensor indices, const std::string& dim,
              OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// x[indices] along `dim` where the indices have that dim too, in any length: y[i, j] = x[i,
/// indices[i, j]], as torch.gather, numpy.take_along_axis. With argsort() it applies a permutation.
/// Result: the dims of indices, then those of x that they lack. indices: int32 or int64.
Tensor take_along(Tensor x, Tensor indices, const std::string& dim,
                  OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// Zeros of shape `out`, to which updates are added at indices along `dim`. Dims of updates that
/// `out` lacks are summed.
Tensor scatter_add(Tensor indices, Tensor updates, const Shape& out, const std::string& dim,
                   OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// Grouped matmuls: each row is multiplied by the matrix that its index chooses (JAX's ragged_dot;
/// rows need not be sorted). y[out] = sum of x * gather(w, indices, dim) over the dims that `out`
/// lacks; a row whose index is outside [0, size of `dim`) is zero. Example, rows [tokens, choices]:
/// x [tokens, d_model], w [experts, d_model, ff], indices [tokens, choices], `dim` "experts", out
/// [tokens, choices, ff]. The matrices are not copied, and only rows in the range cost time.
/// indices: int32 or int64; each of their dims is in x or `out`. `used`: the share of rows that are
/// expected to be in the range, for prices and counted operations.
Tensor grouped_dot(Tensor x, Tensor w, Tensor indices, const std::string& dim, const Shape& out,
                   double used = 1, Loc at = Loc::current());
/// The gradient of grouped_dot() for the matrices: `out` has `dim`, and y[dim = g] is the sum of
/// x * z over rows whose index is g, and over the other dims that `out` lacks. Each dim of the
/// indices is in x or z.
Tensor grouped_outer(Tensor x, Tensor z, Tensor indices, const std::string& dim, const Shape& out,
                     double used = 1, Loc at = Loc::current());
/// x with its elements at indices along `dim` replaced by `updates`. If several updates have the
/// same index, their sum is stored.
Tensor scatter(Tensor x, Tensor indices, Tensor updates, const std::string& dim,
               OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// Adds the dim `dim` to indices (int32 or int64): `on` where the index equals the position along
/// `dim`, else `off`. An index out of range gives only `off`.
Tensor one_hot(Tensor indices, const Dim& dim, double on = 1, double off = 0,
               DType dtype = DType::float32, Loc at = Loc::current());

// ---------------------------------------------------------------------------------- dims, shapes
/// The same elements in another order of dims.
Tensor transpose(Tensor x, const Shape& shape, Loc at = Loc::current());
/// Repeats x along the dims of `shape` that x lacks.
Tensor broadcast(Tensor x, const Shape& shape, Loc at = Loc::current());
/// The same elements in row-major order under other dims with the same number of elements.
Tensor reshape(Tensor x, const Shape& shape, Loc at = Loc::current());
/// The same tensor with dim `from` called `to`.
Tensor rename(Tensor x, const std::string& from, const std::string& to, Loc at = Loc::current());

// A bounded dim stays bounded where the result is as long as x (shift, sort, fft, conv with same
// padding and stride 1). In slice, pad, concat and reshape to a fixed size the result's dim is
// fixed: zeros (pad: `value`) stand for what the run does not have, and concat() puts each operand
// where those before it end. Other conv, conv_transpose, pooling, windows and the dynamic_ ops
// refuse a bounded dim: reshape() it to a dim of fixed size before.

/// Elements [begin, begin + size) of `dim`.
Tensor slice(Tensor x, const std::string& dim, int64_t begin, int64_t size,
             Loc at = Loc::current());
/// Puts `value` around x: `dim` gets before + size + after elements.
Tensor pad(Tensor x, const std::string& dim, int64_t before, int64_t after, double value = 0,
           Loc at = Loc::current());
/// y[i] = x[i - offset]. Elements from outside are zero, or wrap around.
Tensor shift(Tensor x, const std::string& dim, int64_t offset, bool wrap = false,
             Loc at = Loc::current());
/// y[i] = x[i - offset] for an offset computed by the graph: an int32 scalar, or int32 with some of
/// x's other dims (one offset for each row). Elements from outside are zero, or wrap around.
Tensor dynamic_shift(Tensor x, Tensor offset, const std::string& dim, bool wrap = false,
                     Loc at = Loc::current());
/// dynamic_slice: elements [begin, begin + size) of `dim`, with `begin` int32 as the offset of
/// dynamic_shift. It is clamped so that the slice lies inside x. dynamic_update: x with `update`
/// written at that place.
Tensor dynamic_slice(Tensor x, Tensor begin, const std::string& dim, int64_t size,
                     Loc at = Loc::current());
Tensor dynamic_update(Tensor x, Tensor update, Tensor begin, const std::string& dim,
                      Loc at = Loc::current());
struct WindowsOptions {
  int64_t stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  ///< elements added around x, which hold `fill`
  double fill = 0;
};
/// All windows along `dim`: y[o, k] = x[stride * o + dilation * k - before]. The size of `dim`
/// becomes the number of windows; the dim `window` follows it.
Tensor windows(Tensor x, const std::string& dim, const Dim& window,
               const WindowsOptions& options = {}, Loc at = Loc::current());
/// Extends each block of x[blocks, block] by the last `before` elements that precede it and the
/// first `after` elements that follow it, taken from as many neighbour blocks as needed: `block`
/// gets before + size + after elements. Elements from outside are zero, or wrap around. The dim
/// `blocks` may be split. conv and pooling do their own halo exchange.
Tensor halo_exchange(Tensor x, const std::string& blocks, const std::string& block, int64_t before,
                     int64_t after, bool wrap = false, Loc at = Loc::current());
/// Concatenates tensors that agree in all dims but `dim`.
Tensor concat(const std::vector<Tensor>& xs, const std::string& dim, Loc at = Loc::current());
/// The inverse of concat; the sizes must add up to the size of `dim`.
std::vector<Tensor> split(Tensor x, const std::string& dim, const std::vector<int64_t>& sizes,
                          Loc at = Loc::current());
/// stack: joins tensors of one shape along a new first dim. unstack: the inverse.
Tensor stack(const std::vector<Tensor>& xs, const std::string& dim, Loc at = Loc::current());
std::vector<Tensor> unstack(Tensor x, const std::string& dim, Loc at = Loc::current());

/// The windows of a spatial dim of n elements. same: ceil(n / stride) windows; the padding is split
/// between both sides, an odd element goes behind. valid: only windows that lie inside. given:
/// padding of `before` and `after`.
enum class Padding { same, valid, given };
/// One spatial dim of a convolution.
struct ConvDim {
  std::string dim;          ///< of x and of the result
  std::string filter = {};  ///< of the filter; "": "filter_" + dim
  int64_t stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  ///< zeros added around x, only with Padding::given
  int64_t size = 0;               ///< conv_transpose: size of the result; 0: the default
};
struct ConvOptions {
  std::vector<ConvDim> dims;  ///< one or more
  Padding padding = Padding::same;
  std::vector<std::string> groups = {};  ///< dims of x and filter that are not contracted
};
/// Convolution over any number of spatial dims (cross-correlation, as in all frameworks): y[o] =
/// sum over k and c of x[stride * o + dilation * k - before, c] * filter[k, c]. Contracts the
/// filter dims and every dim that x and filter share (input channels), except the groups. A group
/// dim gives a grouped convolution; with nothing else contracted it is depthwise. Result: x's other
/// dims, then the filter's (output channels).
Tensor conv(Tensor x, Tensor filter, const ConvOptions& options, Loc at = Loc::current());
/// The transpose of conv: conv's gradient with respect to x, for a filter whose input channels are
/// those of this result. Spatial size of the result: in * stride (same); (in - 1) * stride +
/// dilation * (filter - 1) + 1 (valid); that minus before + after (given); or ConvDim::size, if a
/// convolution of that size with these options has x's size.
Tensor conv_transpose(Tensor x, Tensor filter, const ConvOptions& options, Loc at = Loc::current());

struct Conv2dOptions {
  std::string height = "height", width = "width";  ///< dims of x
  std::string filter_height = "filter_height",
              filter_width = "filter_width";  ///< dims of the filter
  int64_t stride = 1;
  bool same = true;  ///< pad so that out = ceil(in / stride); false: Padding::valid
};
/// conv over two dims.
Tensor conv2d(Tensor x, Tensor filter, const Conv2dOptions& options = {}, Loc at = Loc::current());

/// One spatial dim of a pooling. Padding never is the maximum. It does not count in the mean,
/// unless `count_padding`: then it counts as zeros.
struct PoolDim {
  std::string dim;
  int64_t window = 2;
  int64_t stride = 0;  ///< 0: the window size
  int64_t dilation = 1;
  int64_t before = 0, after = 0;  ///< only with Padding::given; less than the span of a window
};
struct PoolOptions {
  std::vector<PoolDim> dims = {{"height"}, {"width"}};
  Padding padding = Padding::valid;
  bool count_padding = false;
};
Tensor max_pool(Tensor x, const PoolOptions& options = {}, Loc at = Loc::current());
Tensor avg_pool(Tensor x, const PoolOptions& options = {}, Loc at = Loc::current());

// ------------------------------------------------------------------------------------- inspection
/// Returns x. After every run of a function that computes x, CompileOptions::print is called with
/// one line: "label: x float32 [batch=4] min ... = [0.1, ...]". In a loop, a line for each
/// iteration that ran: "label: x [time 3] ...". The result need not be used.
Tensor print(Tensor x, const std::string& label = "", Loc at = Loc::current());
/// Returns x. If an element is not finite, a run of a function that computes x stores nothing and
/// throws a usage error that names label, node, step, first index and this line. In a loop the
/// index names the iteration too. The result need not be used. x must be floating.
Tensor check_finite(Tensor x, const std::string& label = "", Loc at = Loc::current());

// -------------------------------------------------------------------------------------- gradients
/// Returns the results of build(). Backward recomputes the intermediate values (with the same
/// random numbers) instead of keeping them from the forward pass: less memory, more arithmetic.
/// Values and gradients do not change.
std::vector<Tensor> recompute(Graph& g, const std::function<std::vector<Tensor>()>& build);
/// Returns build(xs). Its gradients with respect to xs are computed by `rule` from xs, the results
/// and their gradients. Throws a usage error if `build` reads anything else that has a gradient.
std::vector<Tensor> custom_gradient(
    const std::vector<Tensor>& xs,
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& build,
    const GradientRule& rule, Loc at = Loc::current());
/// Returns x. Scales the gradient that flows back down to a root mean square of at most `limit`.
Tensor clip_gradient(Tensor x, double limit, Loc at = Loc::current());
/// d sum(y) / d x for each x. If y does not depend on an x, its gradient is zeros.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs, Loc at = Loc::current());

/// Which values backward recomputes or gathers again. Both are globs of scopes. "attention",
/// "gpt.block1" and "block*" match a scope by its last name or its path. A name also matches itself
/// with a number appended: "block" matches block0, block1, ... Values never change.
struct GradientOptions {
  /// Values of matching scopes are not kept for backward. They are recomputed from the scope's
  /// inputs just before they are needed (Chen et al. 2016). If matches nest, the outermost scope
  /// counts.
  std::vector<std::string> recompute = {};
  /// What is all-gathered for nodes of matching scopes (parameters split by @params, split
  /// activations) is not kept for backward but gathered again (FSDP's reshard_after_forward).
  /// Recomputed scopes do so anyway.
  std::vector<std::string> reshard_after_forward = {};
};
/// Throws a usage error for a glob that matches no scope of the nodes before `y`.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs,
                              const GradientOptions& options, Loc at = Loc::current());

}  // namespace tessera

#include "tessera/operators.h"  // needs the functions above
