// The operations. All take and return Tensors of one graph; dims are matched by name, whatever
// their order. Every function throws a usage error that names the op, the culprit dim or dtype, the
// numbers and the caller's line. Operands have equal dtypes (there is no implicit promotion; use
// cast). Integer tensors have no gradient.
#pragma once

#include <functional>
#include <initializer_list>
#include <source_location>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// A tensor and the line that uses it: how overloaded operators learn their caller.
struct At {
  At(Tensor tensor, Loc at = Loc::current()) : tensor(tensor), at(at) {}
  Tensor tensor;
  Loc at;
};

// ---------------------------------------------------------------------------------------- sources
/// A tensor filled with `value`.
Tensor constant(Graph& g, double value, DType dtype = DType::float32, const Shape& shape = {},
                Loc at = Loc::current());
/// The index along `dim`: [dim], 0 .. size-1.
Tensor iota(Graph& g, const Dim& dim, DType dtype = DType::int32, Loc at = Loc::current());
/// The actual size of `dim`, a scalar (the run's size where the dim is bounded).
Tensor dim_size(Graph& g, const Dim& dim, DType dtype = DType::float32, Loc at = Loc::current());
/// Random numbers are a pure function of (seed, name of this node, step, logical index): the same
/// under every layout, and drawn as a floating type. Uniform in [lo, hi).
Tensor random_uniform(Graph& g, const Shape& shape, double lo = 0, double hi = 1,
                      DType dtype = DType::float32, Loc at = Loc::current());
/// Normal by the inverse distribution function.
Tensor random_normal(Graph& g, const Shape& shape, double mean = 0, double stddev = 1,
                     DType dtype = DType::float32, Loc at = Loc::current());
/// Normal, cut to two standard deviations (of the parent distribution).
Tensor truncated_normal(Graph& g, const Shape& shape, double mean = 0, double stddev = 1,
                        DType dtype = DType::float32, Loc at = Loc::current());

// ----------------------------------------------------------------------------- pointwise, one
// operand
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
/// min(max(x, lo), hi), NaN where x is; the gradient is zero below lo and above hi.
Tensor clip(Tensor x, double lo, double hi, Loc at = Loc::current());
Tensor identity(Tensor x, Loc at = Loc::current());
Tensor stop_gradient(Tensor x, Loc at = Loc::current());
/// x with each element zeroed with probability `rate` and the rest divided by 1 - rate; integers
/// are not divided.
Tensor dropout(Tensor x, double rate, Loc at = Loc::current());

// ---------------------------------------------------------------------------- pointwise, two
// operands Broadcasting by name: the result has the dims of the operand that contains the other's,
// else those of the first followed by those of the second that it lacks. Integers divided by zero
// give zero, by div, floor_div and mod alike: no device stops there, and none is asked to.
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
/// Of two bool tensors: exactly one is true.
Tensor logical_xor(Tensor a, Tensor b, Loc at = Loc::current());
/// condition ? a : b; an operand that is not chosen leaves nothing in the value and gets the
/// gradient 0. What made it goes on with that 0: the gradient of where(x > 0, sqrt(x), 0) at 0 is 0
/// times infinity, that of sqrt(where(x > 0, x, 1)) is not. condition is bool.
Tensor where(Tensor condition, Tensor a, Tensor b, Loc at = Loc::current());

// ------------------------------------------------------------------------------- products,
// reductions
/// Sum of products over every dim that is not in `out`; dims of `out` in no input broadcast.
Tensor einsum(const std::vector<Tensor>& xs, const Shape& out, Loc at = Loc::current());
Tensor einsum(const std::vector<Tensor>& xs, std::initializer_list<Dim> out,
              Loc at = Loc::current());
/// Reduces every dim that occurs in at least two inputs; the result's dims in order of first
/// appearance.
Tensor einsum(const std::vector<Tensor>& xs, Loc at = Loc::current());

/// Reductions over the named dims. Empty maxima are impossible: dims have at least one element.
Tensor reduce_sum(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_mean(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_max(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_min(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_prod(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_any(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_all(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor reduce_logsumexp(Tensor x, const Axes& axes, Loc at = Loc::current());
/// The reductions over all dims: a scalar.
Tensor sum_all(Tensor x, Loc at = Loc::current());
Tensor mean_all(Tensor x, Loc at = Loc::current());
/// Index (int32) of the largest or smallest element, NaN as the largest; the lowest index at ties.
Tensor argmax(Tensor x, const std::string& dim, Loc at = Loc::current());
Tensor argmin(Tensor x, const std::string& dim, Loc at = Loc::current());
struct TopK {
  Tensor values,
      indices;  ///< x's dims without the reduced one, then k; descending; indices are int32
};
/// The largest element and its index, without a k.
TopK top_1(Tensor x, const std::string& dim, Loc at = Loc::current());
/// The k largest elements along `dim`; at ties the lowest index comes first.
TopK top_k(Tensor x, const std::string& dim, const Dim& k, Loc at = Loc::current());
/// The elements along `dim` (not bounded) in order, NaN as the largest; at ties the lowest index
/// first; and where they were (int32).
Tensor sort(Tensor x, const std::string& dim, bool descending = false, Loc at = Loc::current());
Tensor argsort(Tensor x, const std::string& dim, bool descending = false, Loc at = Loc::current());
/// The element with n (from 0) larger or smaller ones before it.
Tensor nth_largest(Tensor x, const std::string& dim, int64_t n, Loc at = Loc::current());
Tensor nth_smallest(Tensor x, const std::string& dim, int64_t n, Loc at = Loc::current());
/// Running sums along `dim`.
Tensor cumsum(Tensor x, const std::string& dim, bool exclusive = false, bool reverse = false,
              Loc at = Loc::current());

struct Complex {
  Tensor re, im;
};
/// The discrete Fourier transform along `dim`, sum over j of x[j] exp(-2 pi i j k / n); `inverse`:
/// with exp(+...) / n. x.im may be empty: zero.
Complex fft(const Complex& x, const std::string& dim, bool inverse = false,
            Loc at = Loc::current());

// ------------------------------------------------------------------------------------------
// composites
Tensor softmax(Tensor x, const Axes& axes, Loc at = Loc::current());
Tensor log_softmax(Tensor x, const Axes& axes, Loc at = Loc::current());
/// -log softmax(logits)[labels] + z_loss * logsumexp(logits)^2, per example: the dims of logits
/// without `classes`. labels: int32 or int64, those dims; or soft labels in logits' dtype and dims.
Tensor cross_entropy(Tensor logits, Tensor labels, const std::string& classes, double z_loss = 0,
                     Loc at = Loc::current());
/// (x - mean) / sqrt(var + eps) * scale + bias over `dim`; scale and bias: [dim] (Ba et al. 2016,
/// eq. 4).
Tensor layer_norm(Tensor x, const std::string& dim, Tensor scale, Tensor bias, double eps = 1e-5,
                  Loc at = Loc::current());
/// x / sqrt(mean(x^2) + eps) * scale (Zhang & Sennrich 2019).
Tensor rms_norm(Tensor x, const std::string& dim, Tensor scale, double eps = 1e-6,
                Loc at = Loc::current());

struct AttentionOptions {
  std::string length = "length";                ///< query position
  std::string memory_length = "memory_length";  ///< key position
  std::string key_dim = "d_head";               ///< contracted dim of query and key
  bool causal = false;                          ///< query i sees keys 0 .. i
  double scale = 0;                             ///< of the logits; 0: 1 / sqrt(key_dim)
  double dropout = 0;                           ///< on the weights
};
/// softmax(query . key * scale + mask) . value over memory_length (Vaswani et al. 2017, eq. 1).
/// query [..., length, key_dim], key and value [..., memory_length, key_dim], any further dims
/// (batch, heads) by name. `mask` may be empty; bool, true where a query may look; some of the dims
/// of the logits. The result has query's shape, after the dims that only key, value or mask have:
/// queries without a batch are every example's.
Tensor attention(Tensor query, Tensor key, Tensor value, Tensor mask = {},
                 const AttentionOptions& options = {}, Loc at = Loc::current());

/// Attention of queries to a part of the keys, and what joins such parts (Milakov & Gimelshein
/// 2018).
struct AttentionPart {
  Tensor out;      ///< as of attention over these keys alone; zero where a query sees none of them
  Tensor log_sum;  ///< query's shape without key_dim, in its dtype or float32 if that is narrower:
                   ///< logarithm of the sum of exp(logits); -1e30 where a query sees none
};
/// As attention, without mask and dropout. `query_start` and `key_start` (int32, some of the
/// query's dims besides length and key_dim) are the positions of the first query and the first key
/// in the whole, for the causal mask; keys at `memory_size` and beyond are not there.
AttentionPart attention_part(Tensor query, Tensor key, Tensor value, Tensor query_start,
                             Tensor key_start, int64_t memory_size,
                             const AttentionOptions& options = {}, Loc at = Loc::current());
/// The parts `a` and `b` of the same queries as one.
AttentionPart join(const AttentionPart& a, const AttentionPart& b);

// -------------------------------------------------------------------------------------- indexed
// access
/// What happens to an index outside [0, size): an error at the end of the step that names node and
/// index; the result is zero; the update is dropped (as zero); or the index is clamped.
enum class OutOfRange { error, zero, drop, clamp };
/// weights[indices] along `dim`: dims of indices, then those of weights without `dim`; dims of one
/// name are shared.
Tensor gather(Tensor weights, Tensor indices, const std::string& dim,
              OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// Zeros of shape `out` plus updates at indices along `dim`; the rest of updates' dims that `out`
/// lacks are summed.
Tensor scatter_add(Tensor indices, Tensor updates, const Shape& out, const std::string& dim,
                   OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// x with `updates` at indices along `dim` instead of what was there. Where several have one index,
/// their sum.
Tensor scatter(Tensor x, Tensor indices, Tensor updates, const std::string& dim,
               OutOfRange out_of_range = OutOfRange::error, Loc at = Loc::current());
/// `on` where the index (int32 or int64) equals the position along `dim`, which the indices lack,
/// else `off`; all off for an index out of range.
Tensor one_hot(Tensor indices, const Dim& dim, double on = 1, double off = 0,
               DType dtype = DType::float32, Loc at = Loc::current());

// ---------------------------------------------------------------------------------------- dims,
// shapes
/// The same elements in another order of dims.
Tensor transpose(Tensor x, const Shape& shape, Loc at = Loc::current());
/// Repeats along the dims of `shape` that x lacks.
Tensor broadcast(Tensor x, const Shape& shape, Loc at = Loc::current());
/// The same elements in row-major order under other dims; the number of elements agrees.
Tensor reshape(Tensor x, const Shape& shape, Loc at = Loc::current());
/// The same tensor with dim `from` called `to`.
Tensor rename(Tensor x, const std::string& from, const std::string& to, Loc at = Loc::current());

/// Elements [begin, begin + size) of `dim`.
Tensor slice(Tensor x, const std::string& dim, int64_t begin, int64_t size,
             Loc at = Loc::current());
/// `value` before and after: dim gets size + before + after elements.
Tensor pad(Tensor x, const std::string& dim, int64_t before, int64_t after, double value = 0,
           Loc at = Loc::current());
/// y[i] = x[i - offset]; what comes from outside is zero, or wraps around.
Tensor shift(Tensor x, const std::string& dim, int64_t offset, bool wrap = false,
             Loc at = Loc::current());
/// y[i] = x[i - offset] for an int32 scalar (or one of some of x's other dims, each row with its
/// own); what comes from outside is zero, or wraps around.
Tensor dynamic_shift(Tensor x, Tensor offset, const std::string& dim, bool wrap = false,
                     Loc at = Loc::current());
/// Elements [begin, begin + size) of `dim` for an int32 `begin` as in dynamic_shift, moved inside
/// where it leads outside; and x with `update` in their place.
Tensor dynamic_slice(Tensor x, Tensor begin, const std::string& dim, int64_t size,
                     Loc at = Loc::current());
Tensor dynamic_update(Tensor x, Tensor update, Tensor begin, const std::string& dim,
                      Loc at = Loc::current());
struct WindowsOptions {
  int64_t stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  ///< places around x, which hold `fill`
  double fill = 0;
};
/// All windows along `dim`: y[o, k] = x[stride * o + dilation * k - before]. `dim` gets as many
/// elements as there are windows, and `window` stands behind it.
Tensor windows(Tensor x, const std::string& dim, const Dim& window,
               const WindowsOptions& options = {}, Loc at = Loc::current());
/// x[blocks, block] with each block between the last `before` elements of what precedes it and the
/// first `after` of what follows, from as many blocks as it takes: dim `block` gets before + size +
/// after elements. What comes from outside is zero, or wraps around. The blocks may be split; for a
/// dim without blocks, conv and pooling have halos of their own.
Tensor halo_exchange(Tensor x, const std::string& blocks, const std::string& block, int64_t before,
                     int64_t after, bool wrap = false, Loc at = Loc::current());
/// Tensors that agree in all dims but `dim`, one behind the other.
Tensor concat(const std::vector<Tensor>& xs, const std::string& dim, Loc at = Loc::current());
/// The inverse of concat; the sizes add up to dim's.
std::vector<Tensor> split(Tensor x, const std::string& dim, const std::vector<int64_t>& sizes,
                          Loc at = Loc::current());
/// Tensors of one shape along a new first dim, and the inverse.
Tensor stack(const std::vector<Tensor>& xs, const std::string& dim, Loc at = Loc::current());
std::vector<Tensor> unstack(Tensor x, const std::string& dim, Loc at = Loc::current());

/// Which windows a spatial dim of n elements has: `same` ceil(n / stride) of them, padded on both
/// sides, one more behind if uneven; `valid` only those that lie inside; `given` what `before` and
/// `after` say.
enum class Padding { same, valid, given };
/// One spatial dim of a convolution.
struct ConvDim {
  std::string dim;          ///< of x and of the result
  std::string filter = {};  ///< of the filter; "": "filter_" and `dim`
  int64_t stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  ///< zeros around x, with Padding::given
  int64_t size = 0;               ///< conv_transpose: of the result; 0: the usual one
};
struct ConvOptions {
  std::vector<ConvDim> dims;  ///< one or more
  Padding padding = Padding::same;
  std::vector<std::string> groups = {};  ///< dims of x and filter that the result keeps
};
/// Convolution over any number of spatial dims (cross-correlation, as in every framework):
///   y[o] = sum over k and c of x[stride * o + dilation * k - before, c] * filter[k, c].
/// Contracts the filter dims and every dim that x and filter share (the input channels) but for the
/// groups: with a group dim the convolution is grouped, with nothing contracted depthwise. The
/// result has x's other dims, then the filter's (the output channels).
Tensor conv(Tensor x, Tensor filter, const ConvOptions& options, Loc at = Loc::current());
/// The transpose of conv: what its gradient by x is, with a filter whose input channels are those
/// of this result. The result's spatial size is in * stride (same), (in - 1) * stride + dilation *
/// (filter - 1) + 1 (valid), that minus before + after (given), or the size given, of which a
/// convolution with these options must have x's size.
Tensor conv_transpose(Tensor x, Tensor filter, const ConvOptions& options, Loc at = Loc::current());

struct Conv2dOptions {
  std::string height = "height", width = "width";  ///< dims of x
  std::string filter_height = "filter_height",
              filter_width = "filter_width";  ///< dims of the filter
  int64_t stride = 1;
  bool same = true;  ///< pad so that out = ceil(in / stride); else only whole windows
};
/// conv over two dims.
Tensor conv2d(Tensor x, Tensor filter, const Conv2dOptions& options = {}, Loc at = Loc::current());

/// One spatial dim of a pooling. What lies outside of x is never the maximum and counts for nothing
/// in the mean, but with `count_padding`, where it counts as zeros.
struct PoolDim {
  std::string dim;
  int64_t window = 2;
  int64_t stride = 0;  ///< 0: the window
  int64_t dilation = 1;
  int64_t before = 0, after = 0;  ///< with Padding::given; less than what the window spans
};
struct PoolOptions {
  std::vector<PoolDim> dims = {{"height"}, {"width"}};
  Padding padding = Padding::valid;
  bool count_padding = false;
};
Tensor max_pool(Tensor x, const PoolOptions& options = {}, Loc at = Loc::current());
Tensor avg_pool(Tensor x, const PoolOptions& options = {}, Loc at = Loc::current());

// ----------------------------------------------------------------------------------------- seeing
// inside
/// x, which CompileOptions::print gets as one line, "label: x float32 [batch=4] min ... = [0.1,
/// ...]", after every run of a function that computes x. The result need not be used.
Tensor print(Tensor x, const std::string& label = "", Loc at = Loc::current());
/// x. A run of a function that computes x stores nothing and throws a usage error that names label,
/// node, step, first index and this line if an element is not finite. The result need not be used.
Tensor check_finite(Tensor x, const std::string& label = "", Loc at = Loc::current());

// -------------------------------------------------------------------------------------------
// gradients
/// What `build` makes. When a gradient needs what was computed in between, it is recomputed
/// (with the same random numbers) instead of being kept from the forward pass: less memory for more
/// arithmetic. Values and gradients are those without it.
std::vector<Tensor> recompute(Graph& g, const std::function<std::vector<Tensor>()>& build);
/// build(xs), whose gradients by xs are what `rule` makes of xs, the results and their gradients.
/// Throws a usage error if `build` reads anything else that has a gradient.
std::vector<Tensor> custom_gradient(
    const std::vector<Tensor>& xs,
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& build,
    const GradientRule& rule, Loc at = Loc::current());
/// d sum(y) / d x for each x, with y's gradient 1. An x that y does not depend on gets zeros.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs, Loc at = Loc::current());

/// What backward recomputes instead of keeping it from forward to backward. Both are globs of
/// scopes: "attention", "gpt.block1", "block*" match a scope by its last name or its path, and a
/// name matches itself with a number behind it ("block": block0, block1, ...). Values never change.
struct GradientOptions {
  /// The values made in such a scope are recomputed, from what the scope reads, just
  /// before they are needed (Chen et al. 2016); nested matches: the outermost scope.
  std::vector<std::string> recompute = {};
  /// What gathers move for the nodes of such a scope (parameters split by @params, split
  /// activations) is not kept for their gradients but gathered a second time. Recomputed scopes do
  /// so anyway.
  std::vector<std::string> reshard_after_forward = {};
};
/// Throws a usage error for a glob that matches no scope of the nodes before `y`.
std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs,
                              const GradientOptions& options, Loc at = Loc::current());

}  // namespace tessera

#include "tessera/operators.h"  // which takes the functions above
