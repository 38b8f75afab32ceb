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
  TESSERA_REQUIRE(
      o.causal,
      "[decoder] '{}' is an encoder: it fills in tokens of a text, and writes none; take a "
      "causal model",
      o.name);
  TESSERA_REQUIRE(
      d.source >= 0 && (d.source == 0 || o.encoder_layers > 0),
      "[decoder] sources of {} tokens, for {} layers of an encoder; there are 0 or more, and "
      "none without an encoder",
      d.source, o.encoder_layers);
  TESSERA_REQUIRE(d.rows >= 1 && d.chunk >= 1,
                  "[decoder] {} rows and chunks of {} tokens; both are at least 1", d.rows,
                  d.chunk);
  TESSERA_REQUIRE(d.segment >= 1, "[decoder] segments of {} tokens; the first has at least 1",
                  d.segment);
  TESSERA_REQUIRE(context >= 1, "[decoder] a context of {} tokens; it has at least 1", context);
  const int64_t rows = o.positions == 0 ? o.length : o.positions;
  TESSERA_REQUIRE(!o.learned_positions || context <= rows,
                  "[decoder] a context of {} tokens is more than the {} learned positions", context,
                  rows);
  TESSERA_REQUIRE(
      !d.scores || (d.choices >= 1 && d.choices <= o.vocab),
      "[decoder] {} choices of a vocabulary of {}; there is at least 1, and at most all", d.choices,
      o.vocab);
}

/// Where the segments of a cache end: the last one is no small rest.
std::vector<int64_t> ends_of(int64_t context, int64_t first) {
  std::vector<int64_t> ends;
  for (int64_t end = first; end <= context - context / 4; end *= 2) ends.push_back(end);
  ends.push_back(context);
  return ends;
}

/// The graph of steps with `length` tokens of each row, beside those of other lengths: parameters
/// and caches are shared. `ends`: of the segments of the caches that these steps need.
class StepBuilder {
 public:
  StepBuilder(Graph& g, const TransformerOptions& o, int64_t context, bool as_trained,
              std::vector<int64_t> ends, const Dim& batch, const Dim& source)
      : g_(g),
        o_(o),
        context_(context),
        as_trained_(as_trained),
        ends_(std::move(ends)),
        batch_(batch),
        source_(source.renamed("memory_length")) {
    const Dim vocab("vocab", o.vocab), d_model("d_model", o.d_model);
    embedding_ = g.parameter("embedding", {vocab, d_model}, normal(0.02), stored_dtype(o.dtype));
  }

  /// What the last norm gives for `tokens` [batch, length], [batch, length, d_model]. The caches
  /// are updated in `functions`.
  Tensor build(Tensor tokens, Tensor starts, Tensor counts, std::vector<std::string> functions) {
    functions_ = std::move(functions);
    const Dim length = tokens.shape()[1];
    Tensor positions = broadcast(starts, {batch_, length}) + iota(g_, length);
    add_spans(starts, counts, length, positions);
    if (o_.encoder_layers > 0)
      is_source_ = g_.state("is_source", {batch_, source_}, zeros(), DType::int32);
    Tensor x = embedded(g_, o_, tokens, embedding_, positions);
    for (const LayerRun& run : layer_runs(o_)) x = run.is_loop ? looped(x, run) : single(x, run);
    if (o_.placement != NormPlacement::after) x = norm(x, "norm", "d_model", o_.norm);
    head_ = head_weights(x, o_, embedding_);
    return x;
  }

  /// Of [..., d_model]; float32.
  Tensor logits(Tensor x) const { return read_as(logits_of(x, o_, head_), DType::float32); }

  /// Stores what cross-attention reads of the sources, in rows with a count. After build().
  void encode(Tensor sources, Tensor counts) {
    functions_ = {"encode"};
    Tensor memory = encoded(g_, o_, sources, embedding_, tokens_below(counts, sources.shape()[1]));
    const auto replace = [&](Tensor stored, Tensor value) {
      Tensor is_new = greater(counts, constant(g_, 0, DType::int32));
      store(stored, where(broadcast(is_new, stored.shape()), value, stored));
    };
    const auto replace_both = [&](const KeyValue& old, const KeyValue& fresh) {
      replace(old.key, fresh.key);
      replace(old.value, fresh.value);
    };
    const auto of_layer = [&] {
      const Scope scope(g_, "cross");
      return cross_keys(memory, o_);
    };
    const std::vector<LayerRun> runs = layer_runs(o_);
    for (size_t r = 0; r < runs.size(); ++r) {
      if (runs[r].is_loop) {
        const auto body = [&](const Iteration&) {
          const Scope scope(g_, runs[r].block);
          const KeyValue fresh = of_layer();
          return IterationResults{{}, {fresh.key, fresh.value}};
        };
        const IterationResults all =
            scan(g_, Dim("layers", runs[r].count), {}, {}, body, {.own_parameters = true});
        replace_both(memories_[r], {all.stacked[0], all.stacked[1]});
      } else {
        const Scope scope(g_, "block", runs[r].first, o_.layers);
        replace_both(memories_[r], of_layer());
      }
    }
    replace(is_source_, tokens_below(counts, source_));
  }

  /// Makes the function "reorder" of the caches that build() has made.
  void reorder(Tensor parents) {
    functions_ = {"reorder"};
    for (const Tensor& cache : caches_) {
      Tensor moved = gather(rename(cache, "batch", "rows"), parents, "rows");
      store(cache, moved.shape() == cache.shape() ? moved : transpose(moved, cache.shape()));
    }
  }

 private:
  /// int32 [batch, along]: 1 for the first `counts` places, else 0.
  Tensor tokens_below(Tensor counts, const Dim& along) {
    Tensor places = broadcast(iota(g_, along, DType::int32), {batch_, along});
    return cast(less(places, broadcast(counts, {batch_, along})), DType::int32);
  }

  void add_spans(Tensor starts, Tensor counts, const Dim& length, Tensor positions) {
    Tensor table;
    if (o_.relative_buckets > 0) table = relative_table(g_, o_);
    spans_.assign(o_.spans.size(), {});
    slots_.assign(o_.spans.size(), {});
    for (size_t k = 0; k < spans_.size(); ++k) {
      if (std::count(o_.pattern.begin(), o_.pattern.end(), static_cast<int>(k)) == 0) continue;
      const SpanOptions& span = o_.spans[k];
      spans_[k] = placed_span(g_, o_, span, length, positions);
      const int64_t window = span.window < context_ ? span.window : 0;
      slots_[k] = window > 0 && !as_trained_
                      ? cache_slots(starts, counts, length, window, window, {window}, false)
                      : cache_slots(starts, counts, length, context_, window, ends_, as_trained_);
      if (table.empty()) continue;
      for (CacheSegment& s : slots_[k].segments) s.bias_of_seen = bias_of(table, s.behind);
      slots_[k].bias_of_inside = bias_of(table, slots_[k].back);
    }
  }

  Tensor bias_of(Tensor table, Tensor distance) {
    Tensor bucket = bucket_of(distance, {o_.relative_buckets, o_.relative_distance, false});
    return gather(table, bucket, "relative_buckets");
  }

  /// Keys and values of a layer, or of all of a loop. `end` is of the names.
  KeyValue cache(const std::string& prefix, const Dim& memory, const LayerRun& run,
                 const std::string& end = {}) {
    std::vector<Dim> dims;
    if (run.is_loop) dims.emplace_back("layers", run.count);
    dims.insert(dims.end(), {batch_, memory});
    const auto state = [&](const char* name, const Shape& of_token) {
      return g_.state(prefix + name + end, Shape(dims).united(of_token), zeros(), o_.dtype);
    };
    const CachedDims kept = cached_dims(o_.heads, as_trained_);
    Tensor key = state("key_cache", kept.key);
    return {key, state("value_cache", kept.value)};
  }

  void store(Tensor cache, Tensor value) {
    for (const std::string& function : functions_) update_in(function, cache, value);
  }

  std::vector<KeyValue> segments(const std::string& prefix, const CacheSlots& slots,
                                 const LayerRun& run) {
    std::vector<KeyValue> all;
    for (const CacheSegment& s : slots.segments)
      all.push_back(cache(prefix, {"memory_length", s.size}, run,
                          s.first == 0 ? "" : "_from_" + std::to_string(s.first)));
    return all;
  }

  /// Stores the tokens of a step in a cache.
  void add_tokens(const std::vector<KeyValue>& kept, const KeyValue& tokens,
                  const CacheSlots& slots) {
    for (size_t i = 0; i < kept.size(); ++i) {
      const CacheSegment& segment = slots.segments[i];
      const auto all = [&](Tensor old, Tensor fresh) {
        return slots.as_trained ? fresh : cache_with(old, fresh, segment, slots.length);
      };
      store(kept[i].key, all(kept[i].key, tokens.key));
      store(kept[i].value, all(kept[i].value, tokens.value));
      caches_.insert(caches_.end(), {kept[i].key, kept[i].value});
    }
  }

  Tensor single(Tensor x, const LayerRun& run) {
    const Scope scope(g_, "block", run.first, o_.layers);
    const auto kind = static_cast<size_t>(o_.kind_of(run.first));
    const CacheSlots& slots = slots_[kind];
    const std::vector<KeyValue> own = segments("", slots, run);
    LayerCache layer{&slots, own};
    if (o_.encoder_layers > 0) {
      layer.memory = memories_.emplace_back(cache("cross_", source_, run));
      layer.is_source = is_source_;
    }
    x = block_of(x, o_, spans_[kind], &layer);
    add_tokens(own, {layer.new_key, layer.new_value}, slots);
    return x;
  }

  Tensor looped(Tensor x, const LayerRun& run) {
    const auto kind = static_cast<size_t>(o_.kind_of(run.first));
    const CacheSlots& slots = slots_[kind];
    const std::string prefix = run.block + ".";
    const std::vector<KeyValue> own = segments(prefix, slots, run);
    std::vector<Tensor> sliced;
    for (const KeyValue& each : own) sliced.insert(sliced.end(), {each.key, each.value});
    if (o_.encoder_layers > 0) {
      const KeyValue& memory = memories_.emplace_back(cache(prefix + "cross_", source_, run));
      sliced.insert(sliced.end(), {memory.key, memory.value});
    }
    const auto body = [&](const Iteration& iteration) {
      const Scope scope(g_, run.block);
      const std::vector<Tensor>& slices = iteration.slices;
      LayerCache layer{&slots};
      for (size_t i = 0; i < own.size(); ++i)
        layer.kept.push_back({slices[2 * i], slices[2 * i + 1]});
      if (o_.encoder_layers > 0) {
        layer.memory = {slices[2 * own.size()], slices[2 * own.size() + 1]};
        layer.is_source = is_source_;
      }
      Tensor y = block_of(iteration.carries[0], o_, spans_[kind], &layer);
      return IterationResults{{y}, {layer.new_key, layer.new_value}};
    };
    const IterationResults result =
        scan(g_, Dim("layers", run.count), {x}, sliced, body, {.own_parameters = true});
    add_tokens(own, {result.stacked[0], result.stacked[1]}, slots);
    return result.carries[0];
  }

  Graph& g_;
  const TransformerOptions& o_;
  const int64_t context_;
  const bool as_trained_;
  const std::vector<int64_t> ends_;
  const Dim batch_, source_;
  std::vector<std::string> functions_;
  Tensor embedding_, head_;
  Tensor is_source_;                ///< int32 [batch, memory_length], as LayerCache has it
  std::vector<KeyValue> memories_;  ///< of each of layer_runs()
  std::vector<SharedSpan> spans_;
  std::vector<CacheSlots> slots_;
  std::vector<Tensor> caches_;
};

/// Scores of all tokens of a chunk. `end` is of the names.
void add_scores(DecoderStep& s, Tensor all, Tensor targets, int64_t choices,
                const std::string& end) {
  s.log_probs = neg(cross_entropy(all, targets, "vocab")).named("log_probs" + end);
  const TopK best = top_k(all, "vocab", Dim("choices", choices));
  s.best_tokens = best.indices.named("best_tokens" + end);
  const Tensor top = reduce_max(all, "vocab");
  s.best_log_probs = sub(sub(best.values, top), reduce_logsumexp(sub(all, top), "vocab"))
                         .named("best_log_probs" + end);
  s.score = {"score" + end, {s.logits, s.log_probs, s.best_tokens, s.best_log_probs}, true};
}

}  // namespace

Decoder decoder(Graph& g, const TransformerOptions& options, const DecoderOptions& decoding) {
  TransformerOptions o = options;
  o.dropout = o.lora.dropout = 0;
  const int64_t context = decoding.context == 0 ? o.length : decoding.context;
  require_fitting(o);
  require_decodable(o, decoding, context);
  // Named as in training, so that its layouts fit.
  const std::string length = o.encoder_layers > 0 ? "target_length" : "length";
  const Dim batch("batch", decoding.rows), chunk(length, decoding.chunk), one(length, 1);
  const Dim source("length", decoding.source == 0 ? o.length : decoding.source);
  Decoder d;
  d.tokens = g.input("tokens", {batch, chunk}, DType::int32);
  d.token = g.input("token", {batch}, DType::int32);
  d.starts = g.input("starts", {batch}, DType::int32);
  d.counts = g.input("counts", {batch}, DType::int32);
  if (decoding.scores) d.targets = g.input("targets", {batch, chunk}, DType::int32);
  if (decoding.reorders) d.parents = g.input("parents", {batch}, DType::int32);
  if (o.encoder_layers > 0) {
    d.sources = g.input("sources", {batch, source}, DType::int32);
    d.source_counts = g.input("source_counts", {batch}, DType::int32);
  }
  const Scope scope(g, o.name);
  const std::vector<int64_t> ends =
      decoding.as_trained ? std::vector<int64_t>{context} : ends_of(context, decoding.segment);
  d.steps.resize(ends.size());
  const int64_t graphs = 2 * std::ssize(ends);
  // The first to be built, which makes the caches, is the one for all of them.
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t level = ends.size() - 1 - i;
    DecoderStep& made = d.steps[level];
    made.context = ends[level];
    const std::string end = i == 0 ? "" : "_" + std::to_string(made.context);
    const std::vector<int64_t> needed(ends.begin(), ends.end() - static_cast<std::ptrdiff_t>(i));
    const auto index = 2 * static_cast<int64_t>(i);
    {
      const MicrobatchScope first(g, kNoDim, graphs, index);
      std::vector<std::string> functions = {"read" + end};
      if (decoding.scores) functions.emplace_back("score" + end);
      StepBuilder step(g, o, context, decoding.as_trained, needed, batch, source);
      Tensor x = step.build(d.tokens, d.starts, d.counts, functions);
      made.logits = step.logits(gather(x, maximum(d.counts - 1, 0), length)).named("logits" + end);
      if (decoding.scores) add_scores(made, step.logits(x), d.targets, decoding.choices, end);
      if (decoding.reorders && i == 0) step.reorder(d.parents);
      if (o.encoder_layers > 0 && i == 0) step.encode(d.sources, d.source_counts);
    }
    const MicrobatchScope second(g, kNoDim, graphs, index + 1);
    StepBuilder step(g, o, context, decoding.as_trained, needed, batch, source);
    Tensor x = step.build(broadcast(d.token, {batch, one}), d.starts, d.counts, {"write" + end});
    made.next_logits =
        step.logits(reshape(x, x.shape().without({length}))).named("next_logits" + end);
    made.read = {"read" + end, {made.logits}, true};
    made.write = {"write" + end, {made.next_logits}, true};
  }
  if (o.encoder_layers > 0) d.encode = {"encode", {}, true};
  if (decoding.reorders) d.reorder = {"reorder", {}, true};
  return d;
}

const DecoderStep& Decoder::step_for(int64_t context) const {
  for (const DecoderStep& step : steps) {
    if (context <= step.context) return step;
  }
  fail(ErrorKind::usage, "[decoder] rows of {} tokens; the context has {}", context,
       steps.back().context);
}

}  // namespace tessera::nn
