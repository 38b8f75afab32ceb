// The graph of decoding: the blocks of transformer(), with caches that are the state of the graph.
#include <algorithm>

#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"
#include "tessera/function_updates.h"
#include "tessera/loops.h"

namespace tessera::nn {

namespace {

/// Steps of both lengths share parameters and caches as microbatches do; there is no such dim.
constexpr const char* kNoDim = "_step";

void require_decodable(const TransformerOptions& o, const DecoderOptions& d, int64_t context) {
  require(d.rows >= 1 && d.chunk >= 1,
          "[decoder] {} rows and chunks of {} tokens; both are at least 1", d.rows, d.chunk);
  require(context >= 1, "[decoder] a context of {} tokens; it has at least 1", context);
  const int64_t rows = o.positions == 0 ? o.length : o.positions;
  require(!o.learned_positions || context <= rows,
          "[decoder] a context of {} tokens is more than the {} learned positions", context, rows);
  require(!d.scores || (d.choices >= 1 && d.choices <= o.vocab),
          "[decoder] {} choices of a vocabulary of {}; there is at least 1, and at most all",
          d.choices, o.vocab);
}

/// The graph of steps with `length` tokens of each row, beside those of other lengths: parameters
/// and caches are shared.
class StepBuilder {
 public:
  StepBuilder(Graph& g, const TransformerOptions& o, int64_t context, Tensor starts, Tensor counts,
              const Dim& length, std::vector<std::string> functions)
      : g_(g),
        o_(o),
        context_(context),
        starts_(starts),
        counts_(counts),
        batch_(starts.shape()[0]),
        length_(length),
        functions_(std::move(functions)) {}

  /// What the last norm gives, [batch, length, d_model].
  Tensor build(Tensor tokens) {
    positions_ = broadcast(starts_, {batch_, length_}) + iota(g_, length_);
    add_spans();
    const Dim vocab("vocab", o_.vocab), d_model("d_model", o_.d_model);
    embedding_ = g_.parameter("embedding", {vocab, d_model}, normal(0.02), stored_dtype(o_.dtype));
    Tensor x = embedded(g_, o_, tokens, embedding_, positions_);
    x = o_.scan ? looped(x) : unrolled(x);
    if (o_.placement != NormPlacement::after) x = norm(x, "norm", "d_model", o_.norm);
    head_ = head_weights(x, o_, embedding_);
    return x;
  }

  /// Of [..., d_model]; float32.
  Tensor logits(Tensor x) const { return read_as(logits_of(x, o_, head_), DType::float32); }

 private:
  int kind_of(int64_t layer) const {
    return o_.pattern[static_cast<size_t>(layer) % o_.pattern.size()];
  }

  void add_spans() {
    const DType exact = o_.dtype == DType::float64 ? DType::float64 : DType::float32;
    spans_.resize(o_.spans.size());
    slots_.resize(o_.spans.size());
    for (size_t k = 0; k < spans_.size(); ++k) {
      if (std::count(o_.pattern.begin(), o_.pattern.end(), static_cast<int>(k)) == 0) continue;
      const SpanOptions& span = o_.spans[k];
      if (span.rotary)
        spans_[k].rotary = rotary_table(g_, length_, {"d_head", o_.heads.d_head}, span.rotation,
                                        positions_, exact);
      const int64_t window = span.window < context_ ? span.window : 0;
      slots_[k] = cache_slots(starts_, counts_, length_, window > 0 ? window : context_, window);
    }
  }

  /// The dims of the keys or values of a layer.
  Shape cache_shape(const CacheSlots& slots) const {
    std::vector<Dim> dims = {batch_, Dim("memory_length", slots.slots)};
    for (const Dim& d : head_dims(o_.heads).key) dims.push_back(d);
    return Shape(dims);
  }

  void store(Tensor cache, Tensor tokens, const CacheSlots& slots) {
    Tensor value = cache_with(cache, tokens, slots);
    for (const std::string& function : functions_) update_in(function, cache, value);
  }

  Tensor unrolled(Tensor x) {
    for (int64_t i = 0; i < o_.layers; ++i) {
      const Scope scope(g_, "block", i, o_.layers);
      const auto kind = static_cast<size_t>(kind_of(i));
      const CacheSlots& slots = slots_[kind];
      const Shape shape = cache_shape(slots);
      LayerCache cache{&slots, g_.state("key_cache", shape, zeros(), o_.dtype),
                       g_.state("value_cache", shape, zeros(), o_.dtype)};
      x = block_of(x, o_, spans_[kind], &cache);
      store(cache.key, cache.new_key, slots);
      store(cache.value, cache.new_value, slots);
    }
    return x;
  }

  Tensor looped(Tensor x) {
    const auto kind = static_cast<size_t>(kind_of(0));
    const CacheSlots& slots = slots_[kind];
    const Dim layers("layers", o_.layers);
    const Shape shape = Shape{layers}.united(cache_shape(slots));
    Tensor keys = g_.state("key_cache", shape, zeros(), o_.dtype),
           values = g_.state("value_cache", shape, zeros(), o_.dtype);
    const IterationResults result =
        scan(g_, layers, {x}, {keys, values}, [&](const Iteration& iteration) {
          const Scope scope(g_, "block");
          LayerCache cache{&slots, iteration.slices[0], iteration.slices[1]};
          Tensor y = block_of(iteration.carries[0], o_, spans_[kind], &cache);
          return IterationResults{{y}, {cache.new_key, cache.new_value}};
        });
    store(keys, result.stacked[0], slots);
    store(values, result.stacked[1], slots);
    return result.carries[0];
  }

  Graph& g_;
  const TransformerOptions& o_;
  const int64_t context_;
  const Tensor starts_, counts_;
  const Dim batch_, length_;
  const std::vector<std::string> functions_;
  Tensor positions_, embedding_, head_;
  std::vector<SharedSpan> spans_;
  std::vector<CacheSlots> slots_;
};

/// Scores of all tokens of a chunk.
void add_scores(Decoder& d, Tensor all, int64_t choices) {
  d.log_probs = neg(cross_entropy(all, d.targets, "vocab")).named("log_probs");
  const TopK best = top_k(all, "vocab", Dim("choices", choices));
  d.best_tokens = best.indices.named("best_tokens");
  d.best_log_probs = sub(best.values, reduce_logsumexp(all, "vocab")).named("best_log_probs");
  d.score = {"score", {d.logits, d.log_probs, d.best_tokens, d.best_log_probs}, true};
}

}  // namespace

Decoder decoder(Graph& g, const TransformerOptions& options, const DecoderOptions& decoding) {
  TransformerOptions o = options;
  o.dropout = 0;
  const int64_t context = decoding.context == 0 ? o.length : decoding.context;
  require_fitting(o);
  require_decodable(o, decoding, context);
  const Dim batch("batch", decoding.rows), chunk("length", decoding.chunk), one("length", 1);
  Decoder d;
  d.tokens = g.input("tokens", {batch, chunk}, DType::int32);
  d.token = g.input("token", {batch}, DType::int32);
  d.starts = g.input("starts", {batch}, DType::int32);
  d.counts = g.input("counts", {batch}, DType::int32);
  if (decoding.scores) d.targets = g.input("targets", {batch, chunk}, DType::int32);
  const Scope scope(g, o.name);
  {
    const MicrobatchScope first(g, kNoDim, 2, 0);
    std::vector<std::string> functions = {"read"};
    if (decoding.scores) functions.emplace_back("score");
    StepBuilder step(g, o, context, d.starts, d.counts, chunk, functions);
    Tensor x = step.build(d.tokens);
    d.logits = step.logits(gather(x, maximum(d.counts - 1, 0), "length")).named("logits");
    if (decoding.scores) add_scores(d, step.logits(x), decoding.choices);
  }
  {
    const MicrobatchScope second(g, kNoDim, 2, 1);
    StepBuilder step(g, o, context, d.starts, d.counts, one, {"write"});
    Tensor x = step.build(broadcast(d.token, {batch, one}));
    d.next_logits = step.logits(reshape(x, x.shape().without({"length"}))).named("next_logits");
  }
  d.read = {"read", {d.logits}, true};
  d.write = {"write", {d.next_logits}, true};
  return d;
}

}  // namespace tessera::nn
