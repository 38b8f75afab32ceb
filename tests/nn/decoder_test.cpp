// nn::decoder() against nn::transformer(): the logits of each position, however a text is cut into
// steps, for all kinds of layers and under layouts.
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/nn_transformer.h"
#include "tessera/tessera.h"

using namespace tessera;
using nn::DecoderOptions;
using nn::TransformerOptions;
using test::expect_usage;

namespace TESSERA_FILE {

constexpr int64_t kContext = 12, kVocab = 11;

/// Small and with all kinds of heads; `window` is that of every second layer.
TransformerOptions llama_like(int64_t window = 0) {
  TransformerOptions o;
  o.name = "m";
  o.layers = 2, o.d_model = 12, o.vocab = kVocab, o.length = kContext, o.batch = 1;
  o.heads.count = 6, o.heads.key_heads = 3, o.heads.d_head = 4;
  o.mlp.ff = 16, o.mlp.gated = true, o.mlp.activation = nn::Activation::silu;
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.spans[0].rotary = true;
  o.tied = true;
  if (window > 0) {
    o.spans.push_back(o.spans[0]);
    o.spans[1].window = window;
    o.spans[1].rotation.base = 100;
    o.pattern = {1, 0};
  }
  return o;
}

TransformerOptions gpt_like() {
  TransformerOptions o = llama_like();
  o.heads.key_heads = 0;
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = true;
  o.norm.kind = nn::NormOptions::Kind::layer;
  o.mlp.gated = false, o.mlp.bias = true;
  o.spans[0].rotary = false;
  o.learned_positions = true;
  o.tied = false;
  return o;
}

/// Caps, sinks, norms of the heads, norms on both sides, one key head, experts.
TransformerOptions gemma_like() {
  TransformerOptions o = llama_like(4);
  o.heads.key_heads = 1;
  o.heads.soft_cap = 3, o.logits_cap = 5, o.heads.norm = true, o.heads.scale = 0.7;
  o.heads.sinks = true;
  o.norm.one_plus = true;
  o.placement = nn::NormPlacement::both;
  o.embedding_scale = 3;
  o.mlp.experts = 3;
  return o;
}

/// Latent attention, and experts beside a shared one in the layers with a window.
TransformerOptions latent_like(int64_t query_rank) {
  TransformerOptions o = llama_like(4);
  o.heads.key_heads = 0, o.heads.d_head = 7, o.heads.scale = 0.5;
  o.heads.latent = {.rank = 8, .query_rank = query_rank, .d_rotary = 4, .d_value = 5};
  o.spans[1].mlp = nn::MlpLayerOptions{.ff = 6, .gated = true, .experts = 6, .choices = 3};
  nn::MlpLayerOptions& experts = *o.spans[1].mlp;
  experts.scores = nn::Scores::sigmoid, experts.scale = 2.5, experts.choice_bias = true;
  experts.groups = 3, experts.best_groups = 2, experts.shared_ff = 8;
  return o;
}

/// Relative biases, and an encoder of three layers.
TransformerOptions t5_like() {
  TransformerOptions o = llama_like();
  o.spans[0].rotary = false;
  o.heads.key_heads = 0, o.heads.scale = 1;
  o.relative_buckets = 8, o.relative_distance = 6;
  o.encoder_layers = 3, o.target_length = kContext;
  return o;
}

/// Attention is far from uniform: parameters are larger than at the start of training.
void enlarge(Session& session, Graph& g) {
  for (const Tensor& p : g.parameters()) {
    Array values = session.fetch(p.name());
    const bool is_scale = p.name().ends_with("scale");
    for (int64_t i = 0; i < values.elements(); ++i) {
      float& x = values.data<float>()[i];
      x = is_scale ? x * 1.5f + 0.1f * static_cast<float>(i % 3)
                   : x * (x < 0.1f && x > -0.1f ? 20 : 2);
    }
    session.assign(p.name(), values);
  }
}

std::vector<int32_t> text_of(int64_t row, int64_t size) {
  std::vector<int32_t> text;
  for (int64_t i = 0; i < size; ++i)
    text.push_back(static_cast<int32_t>((i * i * 3 + i * row * 5 + row) % kVocab));
  return text;
}

struct Case {
  const char* mesh;
  const char* layout;
};
const std::vector<Case> kCases = {{"a:1", ""},
                                  {"data:1;model:2", "heads,ff,vocab:model"},
                                  {"data:2;model:2", "batch:data;heads,ff,vocab:model"},
                                  {"data:2", "batch:data;@params d_model:data"},
                                  {"a:2", "length,target_length?,memory_length:a"}};

CompileOptions on(const Case& c, std::vector<FunctionSpec> functions) {
  return {Mesh::parse(c.mesh), Layout::parse(c.layout), std::move(functions), 3, 1};
}

/// The logits [context, vocab] of a text, with an encoder of what it answers to.
std::vector<double> whole(TransformerOptions o, const std::vector<int32_t>& text,
                          const std::vector<int32_t>& source = {}) {
  const bool has_encoder = o.encoder_layers > 0;
  const int64_t length = o.length;
  if (has_encoder) o.length = std::ssize(source);
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  Cluster ranks = Cluster::threads(1);
  Session session(g, ranks, on(kCases[0], {{"f", {model.logits}}}));
  enlarge(session, g);
  const auto feed = [&](const char* name, const char* dim, int64_t size,
                        const std::vector<int32_t>& tokens) {
    Array array(DType::int32, {"batch", dim}, {1, size});
    std::copy(tokens.begin(), tokens.end(), array.data<int32_t>());
    session.feed(name, array);
  };
  if (has_encoder) {
    feed("inputs", "length", o.length, source);
    feed("decoder_inputs", "target_length", length, text);
  } else {
    feed("inputs", "length", length, text);
  }
  session.run("f");
  const Array logits = session.fetch(model.logits.name());
  std::vector<double> all;
  for (int64_t i = 0; i < logits.elements(); ++i) all.push_back(logits.at(i));
  return all;
}

struct Row {
  std::vector<int32_t> text;
  std::vector<double> want;
  int64_t done = 0;
};

/// Feeds `counts` tokens of each row, and checks the logits of the last one.
void step(Session& session, const nn::Decoder& d, std::vector<Row>& rows,
          const std::vector<int64_t>& counts) {
  // T5 does not scale its logits, so that the rounding of an attention's sums counts for more.
  const double margin = d.encode.name.empty() ? 1e-4 : 3e-4;
  const bool reads = *std::max_element(counts.begin(), counts.end()) > 1;
  const auto n = std::ssize(rows);
  const int64_t length = reads ? d.tokens.shape()[1].size : 1;
  Array tokens(DType::int32, {"batch", d.tokens.shape()[1].name}, {n, length}),
      starts(DType::int32, {"batch"}, {n}), used = starts, token = starts;
  for (int64_t r = 0; r < n; ++r) {
    Row& row = rows[static_cast<size_t>(r)];
    const int64_t count = counts[static_cast<size_t>(r)];
    for (int64_t i = 0; i < count; ++i)
      tokens.data<int32_t>()[r * length + i] = row.text[static_cast<size_t>(row.done + i)];
    token.data<int32_t>()[r] = tokens.data<int32_t>()[r * length];
    starts.data<int32_t>()[r] = static_cast<int32_t>(row.done);
    used.data<int32_t>()[r] = static_cast<int32_t>(count);
    row.done += count;
  }
  reads ? session.feed("tokens", tokens) : session.feed("token", token);
  session.feed("starts", starts);
  session.feed("counts", used);
  int64_t context = 0;
  for (const Row& row : rows) context = std::max(context, row.done);
  const nn::DecoderStep& of = d.step_for(context);
  session.run((reads ? of.read : of.write).name);
  const Array logits = session.fetch((reads ? of.logits : of.next_logits).name());
  for (int64_t r = 0; r < n; ++r) {
    const Row& row = rows[static_cast<size_t>(r)];
    if (counts[static_cast<size_t>(r)] == 0) continue;
    for (int64_t v = 0; v < kVocab; ++v) {
      INFO("row " << r << " after " << row.done << " tokens, logit " << v);
      CHECK(logits.at(r * kVocab + v) ==
            Approx(row.want[static_cast<size_t>((row.done - 1) * kVocab + v)]).margin(margin));
    }
  }
}

/// Of different lengths.
std::vector<int32_t> source_of(int64_t row) { return text_of(row + 5, 3 + row * 5 % 8); }

/// Gives rows new sources: -1 keeps that of a row.
void encode(Session& session, const std::vector<int64_t>& sources) {
  const auto n = std::ssize(sources);
  Array tokens(DType::int32, {"batch", "length"}, {n, kContext}),
      counts(DType::int32, {"batch"}, {n});
  for (int64_t r = 0; r < n; ++r) {
    const int64_t number = sources[static_cast<size_t>(r)];
    const std::vector<int32_t> source = number < 0 ? std::vector<int32_t>() : source_of(number);
    std::copy(source.begin(), source.end(), tokens.data<int32_t>() + r * kContext);
    counts.data<int32_t>()[r] = static_cast<int32_t>(source.size());
  }
  session.feed("sources", tokens);
  session.feed("source_counts", counts);
  session.run("encode");
}

std::vector<FunctionSpec> reads_and_writes(const nn::Decoder& d) {
  std::vector<FunctionSpec> functions;
  for (const nn::DecoderStep& step : d.steps)
    functions.insert(functions.end(), {step.read, step.write});
  return functions;
}

/// The caches have segments of 3, 3 and 6 tokens, or are whole.
void check(const TransformerOptions& o, const Case& c, int64_t segment = 3) {
  INFO(c.mesh << " " << c.layout << (o.scan ? " scan" : "") << " " << segment);
  Graph g;
  DecoderOptions decoding;
  decoding.rows = 3, decoding.chunk = 5, decoding.segment = segment;
  const nn::Decoder d = nn::decoder(g, o, decoding);
  const Mesh mesh = Mesh::parse(c.mesh);
  Cluster ranks = Cluster::threads(static_cast<int>(mesh.size()));
  std::vector<FunctionSpec> functions = reads_and_writes(d);
  if (o.encoder_layers > 0) functions.push_back(d.encode);
  Session session(g, ranks, on(c, functions));
  enlarge(session, g);
  std::vector<Row> rows;
  for (int64_t r = 0; r < 3; ++r) {
    rows.push_back({text_of(r, kContext), {}});
    rows.back().want = whole(o, rows.back().text, source_of(r));
  }
  if (o.encoder_layers > 0) encode(session, {0, 1, 2});
  // Rows wait, and are at different places.
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {5, 2, 0}, {1, 1, 1}, {1, 5, 2}, {0, 1, 1}, {5, 1, 5}, {0, 1, 1}, {0, 1, 1}})
    step(session, d, rows, counts);
  // A new text in a row that had another.
  rows[1].done = 0;
  rows[1].text = rows[2].text;
  rows[1].want = whole(o, rows[1].text, source_of(4));
  if (o.encoder_layers > 0) encode(session, {-1, 4, -1});
  step(session, d, rows, {0, 3, 0});
  step(session, d, rows, {0, 1, 1});
}

TEST_CASE("a decoder gives the logits of the transformer, under any layout", "[decoder]") {
  for (const Case& c : kCases) {
    check(llama_like(), c);
    check(llama_like(), c, kContext);
    check(llama_like(3), c);
  }
}

TEST_CASE("a decoder has learned positions, biases, caps, norms, one key head and experts",
          "[decoder]") {
  for (const size_t c : {0, 2}) {
    check(gpt_like(), kCases[c]);
    check(gemma_like(), kCases[c]);
  }
  TransformerOptions looped = llama_like();
  looped.scan = true;
  check(looped, kCases[0]);
  check(looped, kCases[2]);
}

TEST_CASE("a decoder keeps latents, and no keys and values of heads", "[decoder]") {
  for (const Case& c : kCases) {
    check(latent_like(0), c);
    check(latent_like(5), c);
  }
  TransformerOptions looped = latent_like(5);
  looped.spans = {looped.spans[1]};
  looped.pattern = {0};
  looped.scan = true;
  check(looped, kCases[0]);
  TransformerOptions runs = latent_like(5);
  runs.layers = 3, runs.pattern = {1, 0, 0};
  runs.scan = true;
  check(runs, kCases[0]);
  check(runs, kCases[2]);
  Graph g;
  DecoderOptions decoding;
  decoding.rows = 2;
  nn::decoder(g, latent_like(5), decoding);
  CHECK(g.find("m.block0.key_cache").shape().to_string() ==
        "[batch=2, memory_length=4, d_rotary=4]");
  CHECK(g.find("m.block1.value_cache").shape().to_string() ==
        "[batch=2, memory_length=12, d_latent=8]");
}

TEST_CASE("a decoder attends to what its encoder made of each row's source", "[decoder]") {
  for (const Case& c : kCases) check(t5_like(), c);
  TransformerOptions looped = t5_like();
  looped.scan = true;
  check(looped, kCases[0]);
  check(looped, kCases[2]);
}

TEST_CASE("rows of a decoder go on with the tokens of others", "[decoder]") {
  for (const bool scan : {false, true}) {
    TransformerOptions o = llama_like();
    o.scan = scan;
    Graph g;
    DecoderOptions decoding;
    decoding.rows = 3, decoding.chunk = 5, decoding.segment = 3, decoding.reorders = true;
    const nn::Decoder d = nn::decoder(g, o, decoding);
    Cluster ranks = Cluster::threads(4);
    std::vector<FunctionSpec> functions = reads_and_writes(d);
    functions.push_back(d.reorder);
    Session session(g, ranks, on(kCases[2], functions));
    enlarge(session, g);
    std::vector<Row> rows;
    for (int64_t r = 0; r < 3; ++r) {
      rows.push_back({text_of(r, kContext), {}});
      rows.back().want = whole(o, rows.back().text);
    }
    step(session, d, rows, {5, 4, 3});
    session.feed("parents", Array::of<int32_t>({Dim("batch", 3)}, {2, 0, 0}));
    session.run("reorder");
    rows = {rows[2], rows[0], rows[0]};
    step(session, d, rows, {1, 1, 1});
    step(session, d, rows, {5, 2, 1});
  }
}

TEST_CASE("a layer with a window keeps the tokens of its window", "[decoder]") {
  Graph g;
  DecoderOptions decoding;
  decoding.rows = 2;
  nn::decoder(g, llama_like(4), decoding);
  CHECK(g.find("m.block0.key_cache").shape().to_string() ==
        "[batch=2, memory_length=4, heads=3, d_head=4]");
  CHECK(g.find("m.block1.value_cache").shape().to_string() ==
        "[batch=2, memory_length=12, heads=3, d_head=4]");
}

TEST_CASE("a step of a decoder reads the segments of the caches that it needs", "[decoder]") {
  Graph g;
  DecoderOptions decoding;
  decoding.segment = 2;
  const nn::Decoder d = nn::decoder(g, llama_like(), decoding);
  std::vector<int64_t> contexts;
  for (const nn::DecoderStep& step : d.steps) contexts.push_back(step.context);
  CHECK(contexts == std::vector<int64_t>{2, 4, 8, kContext});
  CHECK(d.step_for(2).write.name == "write_2");
  CHECK(d.step_for(3).read.name == "read_4");
  CHECK(d.step_for(9).read.name == "read");
  CHECK(g.find("m.block1.key_cache_from_4").shape().to_string() ==
        "[batch=1, memory_length=4, heads=3, d_head=4]");
  Cluster ranks = Cluster::threads(1);
  Session session(g, ranks, on(kCases[0], reads_and_writes(d)));
  const auto flops = [&](const nn::DecoderStep& step) {
    return session.program().flops(step.write.name);
  };
  CHECK(flops(d.steps[0]) < flops(d.steps[1]));
  CHECK(flops(d.steps[1]) < flops(d.steps[2]));
  CHECK(session.program().text().find("key_cache_from_4") != std::string::npos);
  decoding.segment = 0;
  expect_usage({"[decoder] segments of 0 tokens; the first has at least 1"},
               [&] { nn::decoder(g, llama_like(), decoding); });
  expect_usage({"[decoder] rows of 13 tokens; the context has 12"},
               [&] { d.step_for(kContext + 1); });
}

TEST_CASE("a decoder scores the tokens of a text", "[decoder]") {
  const TransformerOptions o = llama_like(4);
  Graph g;
  DecoderOptions decoding;
  decoding.chunk = 6, decoding.scores = true, decoding.choices = 2;
  const nn::Decoder d = nn::decoder(g, o, decoding);
  Cluster ranks = Cluster::threads(2);
  Session session(g, ranks, on({"model:2", "heads,ff,vocab:model"}, {d.steps[0].score}));
  enlarge(session, g);
  const std::vector<int32_t> text = text_of(1, kContext);
  const std::vector<double> logits = whole(o, text);
  for (int64_t start = 0; start < kContext; start += 6) {
    Array tokens(DType::int32, {"batch", "length"}, {1, 6}), targets = tokens;
    for (int64_t i = 0; i < 6; ++i) {
      const auto at = static_cast<size_t>(start + i);
      tokens.data<int32_t>()[i] = text[at];
      targets.data<int32_t>()[i] = at + 1 < text.size() ? text[at + 1] : 0;
    }
    session.feed("tokens", tokens);
    session.feed("targets", targets);
    session.feed("starts", Array::of<int32_t>({Dim("batch", 1)}, {static_cast<int32_t>(start)}));
    session.feed("counts", Array::of<int32_t>({Dim("batch", 1)}, {6}));
    session.run("score");
    const Array got = session.fetch("m.log_probs"), best = session.fetch("m.best_tokens"),
                of_best = session.fetch("m.best_log_probs");
    for (int64_t i = 0; i < 6; ++i) {
      const double* row = logits.data() + (start + i) * kVocab;
      double sum = 0;
      for (int64_t v = 0; v < kVocab; ++v) sum += std::exp(row[v]);
      CHECK(got.at(i) == Approx(row[targets.data<int32_t>()[i]] - std::log(sum)).margin(2e-5));
      const int64_t top = std::max_element(row, row + kVocab) - row;
      CHECK(best.at(2 * i) == static_cast<double>(top));
      CHECK(of_best.at(2 * i) == Approx(row[top] - std::log(sum)).margin(2e-5));
    }
  }
}

TEST_CASE("decoders that cannot be are usage errors", "[decoder][errors]") {
  const auto refused = [](const TransformerOptions& o, const DecoderOptions& d,
                          const std::vector<std::string>& words) {
    expect_usage(words, [&] {
      Graph g;
      nn::decoder(g, o, d);
    });
  };
  DecoderOptions d;
  d.rows = 0;
  refused(llama_like(), d, {"[decoder] 0 rows and chunks of 64 tokens; both are at least 1"});
  d = {};
  d.context = -1;
  refused(llama_like(), d, {"[decoder] a context of -1 tokens; it has at least 1"});
  d.context = 13;
  refused(gpt_like(), d,
          {"[decoder] a context of 13 tokens is more than the 12 learned positions"});
  d = {};
  d.scores = true, d.choices = 12;
  refused(llama_like(), d, {"[decoder] 12 choices of a vocabulary of 11"});
  d = {};
  TransformerOptions bert = llama_like();
  bert.causal = false;
  refused(bert, d, {"[decoder] 'm' is an encoder: it fills in tokens of a text, and writes none"});
  d.source = 3;
  refused(llama_like(), d, {"[decoder] sources of 3 tokens, for 0 layers of an encoder"});
}

}  // namespace TESSERA_FILE
