// The parts of nn_transformer.h by themselves, and gpt() as one of them.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/nn_transformer.h"
#include "tessera/tessera.h"

using namespace tessera;
using nn::RotaryOptions;
using nn::RotaryScaling;
using nn::TransformerOptions;
using test::expect_usage;

namespace TESSERA_FILE {

/// Losses of a few steps, and names and shapes of the parameters.
template <class Options>
std::pair<std::vector<double>, std::vector<std::string>> trained(nn::Model (*build)(Graph&,
                                                                                    const Options&),
                                                                 const Options& o) {
  Graph g;
  const nn::Model model = build(g, o);
  minimize(model.loss, 0.01, adam());
  Cluster ranks = Cluster::threads(2);
  Session session(
      g, ranks,
      {Mesh::parse("a:2"), Layout::parse("heads,ff,vocab:a"), {{"f", {model.loss}, true}}, 3, 1});
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < o.batch * o.length; ++i)
    tokens.push_back(static_cast<int32_t>(i * 7 % o.vocab));
  for (const Tensor& input : model.inputs)
    session.feed(input.name(), Array::of<int32_t>(input.shape(), tokens));
  std::pair<std::vector<double>, std::vector<std::string>> result;
  for (int step = 0; step < 3; ++step) {
    session.run("f");
    result.first.push_back(session.fetch_scalar(model.loss.name()));
  }
  for (const Tensor& p : g.parameters())
    result.second.push_back(p.name() + " " + p.shape().to_string());
  return result;
}

/// What a function of one vector gives.
std::vector<double> values(const Shape& shape, const std::vector<float>& x,
                           const std::function<Tensor(Graph&, Tensor)>& f) {
  Graph g(GraphOptions{.eager = true});
  g.feed("x", Array::of<float>(shape, x));
  const Array y = g.fetch(f(g, g.input("x", shape, DType::float32)));
  std::vector<double> all;
  for (int64_t i = 0; i < y.elements(); ++i) all.push_back(y.at(i));
  return all;
}

TEST_CASE("gpt keeps the losses and parameters that it had before it was a transformer",
          "[transformer]") {
  nn::GptOptions o;
  o.layers = 1, o.d_model = 16, o.heads = 4, o.ff = 24, o.length = 8, o.vocab = 20, o.batch = 4;
  const auto [losses, parameters] = trained(nn::gpt, o);
  const std::vector<double> then = {3.12166977, 2.75967646, 2.53308821};
  for (size_t i = 0; i < 3; ++i) CHECK(losses[i] == Approx(then[i]).epsilon(1e-6));
  CHECK(parameters ==
        std::vector<std::string>{"gpt.embedding [vocab=20, d_model=16]",
                                 "gpt.position [length=8, d_model=16]",
                                 "gpt.block0.norm1.scale [d_model=16]",
                                 "gpt.block0.norm1.bias [d_model=16]",
                                 "gpt.block0.attention.query.w [d_model=16, heads=4, d_head=4]",
                                 "gpt.block0.attention.query.b [heads=4, d_head=4]",
                                 "gpt.block0.attention.key.w [d_model=16, heads=4, d_head=4]",
                                 "gpt.block0.attention.value.w [d_model=16, heads=4, d_head=4]",
                                 "gpt.block0.attention.value.b [heads=4, d_head=4]",
                                 "gpt.block0.attention.out.w [heads=4, d_head=4, d_model=16]",
                                 "gpt.block0.attention.out.b [d_model=16]",
                                 "gpt.block0.norm2.scale [d_model=16]",
                                 "gpt.block0.norm2.bias [d_model=16]",
                                 "gpt.block0.mlp.up.w [d_model=16, ff=24]",
                                 "gpt.block0.mlp.up.b [ff=24]",
                                 "gpt.block0.mlp.down.w [ff=24, d_model=16]",
                                 "gpt.block0.mlp.down.b [d_model=16]",
                                 "gpt.norm.scale [d_model=16]",
                                 "gpt.norm.bias [d_model=16]",
                                 "gpt.head.w [d_model=16, vocab=20]"});
}

TEST_CASE("rotary turns pairs in halves, interleaved, or a share of the elements",
          "[transformer]") {
  const Dim length("length", 3), depth("d", 8);
  std::vector<float> x;
  for (int i = 0; i < 24; ++i) x.push_back(static_cast<float>(std::sin(i + 1.0)));
  for (const bool interleaved : {false, true}) {
    for (const double share : {1.0, 0.5, 0.25}) {
      RotaryOptions o;
      o.base = 50, o.interleaved = interleaved, o.share = share;
      const auto n = static_cast<int>(8 * share);
      const auto got = values({length, depth}, x, [&](Graph& g, Tensor t) {
        return nn::rotary(t, "d", nn::rotary_table(g, length, depth, o));
      });
      for (int p = 0; p < 3; ++p) {
        std::vector<double> want(x.begin() + 8 * p, x.begin() + 8 * p + 8);
        for (int i = 0; i < n / 2; ++i) {
          const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + n / 2;
          const double angle = p * std::pow(50.0, -2.0 * i / n), c = std::cos(angle),
                       s = std::sin(angle), xa = want[a], xb = want[b];
          want[a] = xa * c - xb * s;
          want[b] = xb * c + xa * s;
        }
        for (int i = 0; i < 8; ++i) CHECK(got[8 * p + i] == Approx(want[i]).margin(1e-6));
      }
    }
  }
}

TEST_CASE("rates of scaled rotary positions", "[transformer]") {
  RotaryOptions o;
  o.base = 10000;
  const std::vector<double> plain = nn::rotary_rates(o, 16);
  CHECK(plain[0] == 1);
  CHECK(plain[7] == Approx(std::pow(10000.0, -14.0 / 16)));
  o.scaling = {.kind = RotaryScaling::Kind::linear, .factor = 4};
  for (size_t i = 0; i < 8; ++i) CHECK(nn::rotary_rates(o, 16)[i] == plain[i] / 4);
  o.scaling = {.kind = RotaryScaling::Kind::llama3, .factor = 8, .original_length = 64};
  const std::vector<double> llama = nn::rotary_rates(o, 16);
  for (size_t i = 0; i < 8; ++i) {
    const double wave = 2 * std::numbers::pi / plain[i];
    if (wave < 16) CHECK(llama[i] == plain[i]);
    if (wave > 64) CHECK(llama[i] == plain[i] / 8);
    if (wave > 16 && wave < 64) {
      CHECK(llama[i] < plain[i]);
      CHECK(llama[i] > plain[i] / 8);
    }
  }
  CHECK(llama[0] == plain[0]);
  CHECK(llama[7] == plain[7] / 8);
  o.scaling = {.kind = RotaryScaling::Kind::yarn, .factor = 8, .original_length = 64};
  const std::vector<double> yarn = nn::rotary_rates(o, 16);
  CHECK(yarn[0] == plain[0]);
  CHECK(yarn[7] == plain[7] / 8);
}

TEST_CASE("gelu of both kinds", "[transformer]") {
  const Dim n("n", 5);
  const std::vector<float> x = {-2, -0.5, 0, 1, 3};
  const auto exact =
      values({n}, x, [](Graph&, Tensor t) { return nn::activate(t, nn::Activation::gelu); });
  const auto by_tanh =
      values({n}, x, [](Graph&, Tensor t) { return nn::activate(t, nn::Activation::gelu_tanh); });
  for (size_t i = 0; i < 5; ++i) {
    CHECK(exact[i] == Approx(x[i] * 0.5 * (1 + std::erf(x[i] / std::sqrt(2)))).margin(1e-6));
    CHECK(by_tanh[i] == Approx(exact[i]).margin(1e-3));
  }
  CHECK(std::abs(by_tanh[0] - exact[0]) > 1e-5);
}

TEST_CASE("post-norm and parallel blocks train", "[transformer]") {
  TransformerOptions o;
  o.layers = 2, o.d_model = 16, o.vocab = 20, o.length = 8, o.batch = 4;
  o.heads = {.count = 4, .key_heads = 1, .d_head = 4};
  o.mlp = {.ff = 24, .gated = true, .activation = nn::Activation::silu};
  o.spans[0] = {.window = 3, .rotary = true};
  const std::vector<double> plain = trained(nn::transformer, o).first;
  TransformerOptions post = o, parallel = o;
  post.placement = nn::NormPlacement::after;
  parallel.parallel = true;
  parallel.spans[0].rotation.share = 0.5;
  parallel.spans[0].rotation.interleaved = true;
  for (const TransformerOptions& t : {post, parallel}) {
    const auto [losses, parameters] = trained(nn::transformer, t);
    CHECK(losses[2] < losses[0]);
    CHECK(losses != plain);
  }
}

TEST_CASE("a single choice of experts is weighted by 1, or by its share", "[transformer]") {
  const Dim length("length", 5), model("d_model", 16);
  std::vector<float> x;
  for (int i = 0; i < 80; ++i) x.push_back(static_cast<float>(std::sin(i + 1.0)));
  const auto layer = [&](bool renormalize) {
    TransformerOptions o;
    o.d_model = 16;
    o.mlp = {.ff = 24, .experts = 3, .choices = 1, .renormalize = renormalize};
    return values({length, model}, x, [&](Graph&, Tensor t) { return nn::mlp_layer(t, o); });
  };
  const std::vector<double> whole = layer(true), part = layer(false);
  for (size_t token = 0; token < 5; ++token) {
    const double share = part[16 * token] / whole[16 * token];
    CHECK(share > 1.0 / 3);
    CHECK(share < 0.999);
    for (size_t i = 16 * token; i < 16 * token + 16; ++i)
      CHECK(part[i] == Approx(share * whole[i]).epsilon(1e-4));
  }
}

TEST_CASE("an encoder of grouped heads with rotary positions, experts and relative biases trains",
          "[transformer]") {
  TransformerOptions o;
  o.layers = 2, o.d_model = 16, o.vocab = 20, o.length = o.target_length = 8, o.batch = 4;
  o.heads = {.count = 4, .key_heads = 2, .d_head = 4};
  o.mlp = {.ff = 24, .experts = 3};
  o.spans = {{.window = 3, .rotary = true}, {}};
  o.pattern = {0, 1, 1};
  o.relative_buckets = 8;
  TransformerOptions pair = o;
  pair.encoder_layers = 3;
  const auto [losses, parameters] = trained(nn::transformer, pair);
  CHECK(losses[2] < losses[0]);
  CHECK(losses != trained(nn::transformer, o).first);
  const auto has = [&](const char* name) {
    CHECK(std::find(parameters.begin(), parameters.end(), name) != parameters.end());
  };
  has("transformer.relative.w [relative_buckets=8, heads=2, heads_per_key=2]");
  has("transformer.encoder.relative.w [relative_buckets=8, heads=2, heads_per_key=2]");
  has("transformer.encoder.block2.attention.key.w [d_model=16, heads=2, d_head=4]");
  has("transformer.block1.cross.query.w [d_model=16, heads=2, heads_per_key=2, d_head=4]");
  has("transformer.block1.norm_cross.scale [d_model=16]");
}

TEST_CASE("layers of one kind that follow one another are a loop", "[transformer]") {
  TransformerOptions o;
  o.layers = 5, o.d_model = 8, o.vocab = 5, o.length = 4, o.batch = 1;
  o.spans = {{}, {.window = 2}};
  o.pattern = {0, 0, 1};
  o.scan = true;
  const auto shown = [&] {
    std::string text;
    for (const nn::LayerRun& r : nn::layer_runs(o))
      text += fmt::format("{} {}+{}{}, ", r.block, r.first, r.count, r.is_loop ? " loop" : "");
    return text;
  };
  CHECK(shown() == "block0 0+2 loop, block2 2+1, block3 3+2 loop, ");
  Graph g;
  nn::transformer(g, o);
  CHECK(g.find("transformer.block3.norm1.scale").shape().to_string() == "[layers=2, d_model=8]");
  CHECK(g.find("transformer.block2.norm1.scale").shape().to_string() == "[d_model=8]");
  o.scan = false;
  CHECK(shown() == "block0 0+1, block1 1+1, block2 2+1, block3 3+1, block4 4+1, ");
  o.pattern = {0, 1};
  CHECK(!o.can_scan());
  o.pattern = {1};
  CHECK(o.can_scan());
  o.scan = true;
  CHECK(shown() == "block 0+5 loop, ");
}

TEST_CASE("a loss by blocks of the length is the same, in less memory", "[transformer]") {
  nn::GptOptions o = test::small_gpt(DType::float64);
  for (const bool tied : {false, true}) {
    o.tied = tied;
    o.loss_blocks = 1;
    Cluster one = Cluster::threads(1);
    const auto whole = test::train_gpt(o, one, Mesh::parse("a:1"), "", 3);
    o.loss_blocks = 3;
    for (const char* layout : {"", "batch:a", "vocab:a", "length:a", "batch:a;vocab,heads,ff:b",
                               "@params/*/ d_model:a;batch:a"}) {
      INFO(layout << (tied ? ", tied" : ""));
      const Mesh mesh = Mesh::parse("a:2;b:2");
      Cluster ranks = Cluster::threads(mesh.size());
      const auto blocks = test::train_gpt(o, ranks, mesh, layout, 3);
      for (size_t i = 0; i < 3; ++i)
        CHECK(blocks.losses[i] == Approx(whole.losses[i]).epsilon(1e-12));
    }
  }
  // Under microbatches, and what a step holds.
  int64_t bytes[2] = {0, 0};
  double losses[2] = {0, 0};
  o = test::small_gpt(DType::float32);
  o.batch = 4, o.length = 32, o.vocab = 4096;  // of a microbatch
  for (const int64_t blocks : {1, 8}) {
    o.loss_blocks = blocks;
    Graph g;
    const Minimized m = minimize_in_microbatches(
        g, "batch", 2, [&] { return nn::gpt(g, o).to_minimize(); }, constant(g, 0.01), adam());
    Cluster one = Cluster::threads(1);
    Session session(g, one, {Mesh::parse("a:1"), {}, {{"f", {m.loss}, true}}});
    Array tokens(DType::int32, {"batch", "length"}, {2 * o.batch, o.length});
    for (int64_t i = 0; i < tokens.elements(); ++i)
      tokens.data<int32_t>()[i] = static_cast<int32_t>(i * 7 % o.vocab);
    for (const char* input : {"inputs", "targets"}) session.feed(input, tokens);
    session.run("f");
    bytes[blocks > 1] = session.program().transient_bytes();
    losses[blocks > 1] = session.fetch_scalar(m.loss.name());
  }
  CHECK(losses[1] == Approx(losses[0]).epsilon(1e-6));
  const int64_t logits = o.batch * o.length * o.vocab * 4;
  CHECK(bytes[1] < bytes[0] - logits * 3 / 4);  // the gradient takes the logits' place
}

/// The loss and metrics of three steps of training, of packed texts if the options say so.
std::vector<double> run_ahead(const TransformerOptions& o, const std::string& mesh,
                              const std::string& layout) {
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  const Minimized m = minimize(model.to_minimize(), constant(g, 0.01), adam());
  std::vector<Tensor> seen = {m.loss};
  for (const Metric& metric : m.metrics) seen.push_back(metric.value);
  for (size_t i = 0; i < seen.size(); ++i)
    seen[i] = identity(seen[i]).named("seen" + std::to_string(i));
  const Mesh on = Mesh::parse(mesh);
  Cluster ranks = Cluster::threads(on.size());
  Session session(g, ranks, {on, Layout::parse(layout), {{"f", seen, true}}, 3, 1});
  for (const Tensor& input : model.inputs) {
    Array array(input.dtype(), {"batch", "length"}, {o.batch, o.length});
    for (int64_t i = 0; i < array.elements(); ++i) {
      const int64_t place = i % o.length, segment = place * 3 / o.length;
      const std::string name = input.name();
      if (name == "weights") {
        array.data<float>()[i] = static_cast<float>(i % 3 != 1);
      } else {
        array.data<int32_t>()[i] = static_cast<int32_t>(
            name == "segments"    ? segment + 1
            : name == "positions" ? place - (segment * o.length + 2) / 3
                                  : (i * 7 + i / 5 + (name == "targets" ? 3 : 0)) % o.vocab);
      }
    }
    session.feed(input.name(), array);
  }
  std::vector<double> values;
  for (int step = 0; step < 3; ++step) {
    session.run("f");
    for (const Tensor& t : seen) values.push_back(session.fetch_scalar(t.name()));
  }
  return values;
}

TransformerOptions small_ahead(nn::MultiTokenOptions ahead) {
  TransformerOptions o;
  o.layers = 3, o.d_model = 8, o.vocab = 11, o.length = 6, o.batch = 4;
  o.heads = {.count = 2, .key_heads = 1, .d_head = 4};
  o.mlp = {.ff = 12, .gated = true, .activation = nn::Activation::silu};
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.spans[0].rotary = true;
  o.dtype = DType::float64;
  o.ahead = ahead;
  return o;
}

/// The loss of run_ahead() with chained modules, where each computes only the places that have a
/// token so far ahead.
Tensor chained_in_parts(Graph& g, const TransformerOptions& o) {
  const Dim batch("batch", o.batch), length("length", o.length), model("d_model", o.d_model),
      vocab("vocab", o.vocab), inner("d_ahead", o.d_model);
  Tensor inputs = g.input("inputs", {batch, length}, DType::int32),
         targets = g.input("targets", {batch, length}, DType::int32);
  const Scope scope(g, o.name);
  Tensor embedding = g.parameter("embedding", {vocab, model}, nn::normal(0.02), o.dtype);
  Tensor x = gather(embedding, inputs, "vocab");
  const auto block = [&](Tensor t) {
    TransformerOptions shorter = o;
    shorter.length = t.dim("length").size;
    return nn::transformer_block(t, o, nn::shared_span(g, shorter, o.spans[0]));
  };
  for (int64_t i = 0; i < o.layers; ++i) {
    const Scope each(g, "block", i, o.layers);
    x = block(x);
  }
  x = nn::norm(x, "norm", "d_model", o.norm);
  Tensor head = g.parameter("head.w", {model, vocab}, nn::scaled_normal({"d_model"}, 0.5), o.dtype);
  const auto loss_of = [&](Tensor state, Tensor labels) {
    Tensor logits = einsum({state, head}, {batch, state.dim("length"), vocab});
    return sum_all(cross_entropy(logits, labels, "vocab")) /
           static_cast<double>(o.batch * o.length);
  };
  Tensor loss = loss_of(x, targets);
  for (int64_t k = 1; k <= o.ahead.depth; ++k) {
    const Scope each(g, "ahead", k - 1, o.ahead.depth);
    const int64_t left = o.length - k;
    const auto later = [&](Tensor t) { return slice(t, "length", k, left); };
    nn::DenseOptions plain;
    plain.bias = false;
    plain.gain = std::sqrt(0.5);
    const auto part = [&](Tensor t, const std::string& name) {
      return nn::dense(nn::norm(t, name + "_norm", "d_model", o.norm), name, {"d_model"},
                       Shape{inner}, plain);
    };
    Tensor token = gather(embedding, later(inputs), "vocab");
    x = rename(part(slice(x, "length", 0, left), "state") + part(token, "token"), "d_ahead",
               "d_model");
    x = nn::norm(block(x), "norm", "d_model", o.norm);
    loss =
        loss + loss_of(x, later(targets)) * (o.ahead.weight / static_cast<double>(o.ahead.depth));
  }
  return loss;
}

TEST_CASE("modules predict tokens further ahead, under every layout", "[transformer]") {
  using Kind = nn::MultiTokenOptions::Kind;
  const std::pair<const char*, const char*> layouts[] = {
      {"a:2;b:2", "batch:a;heads,ff,vocab:b"},
      {"a:2", "length:a"},
      {"a:2", "length,memory_length:a"},
      {"a:2", "d_ahead?:a"},
      {"a:2;b:2", "batch:a;@params d_model:a;@/*norm*/ length:b;ff,vocab:b"}};
  for (const Kind kind : {Kind::chained, Kind::parallel}) {
    for (const bool packed : {false, true}) {
      TransformerOptions o = small_ahead({2, kind, 0.5});
      o.packed = packed;
      INFO((kind == Kind::chained ? "chained" : "parallel") << (packed ? ", packed" : ""));
      const std::vector<double> alone = run_ahead(o, "a:1", "");
      REQUIRE(alone.size() == 9);
      // The loss is that of the next tokens, and half of the others'.
      for (size_t i = 0; i < 9; i += 3)
        CHECK(alone[i] == Approx(alone[i + 1] + 0.5 * alone[i + 2]).epsilon(1e-12));
      CHECK(alone[8] < alone[2]);
      const auto same = [&](const TransformerOptions& t, const char* mesh, const char* layout) {
        INFO(mesh << " " << layout);
        const std::vector<double> got = run_ahead(t, mesh, layout);
        for (size_t i = 0; i < 9; ++i) CHECK(got[i] == Approx(alone[i]).epsilon(1e-10));
      };
      for (const auto& [mesh, layout] : layouts) same(o, mesh, layout);
      TransformerOptions other = o;
      other.loss_blocks = 3;
      same(other, "a:1", "");
      same(other, "a:2", "vocab:a");
      // Parameters of a loop of some layers start with other values.
      other.scan = true;
      const std::vector<double> looped = run_ahead(other, "a:1", ""),
                                split = run_ahead(other, "a:2", "heads,ff,vocab:a");
      for (size_t i = 0; i < 9; ++i) CHECK(split[i] == Approx(looped[i]).epsilon(1e-10));
    }
  }
  // By a graph of its own; without a weight it is the model without them.
  TransformerOptions o = small_ahead({2, Kind::chained, 0.7});
  const double got = run_ahead(o, "a:1", "")[0];
  Graph g;
  Tensor loss = chained_in_parts(g, o).named("loss");
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh::parse("a:1"), {}, {{"f", {loss}, false}}, 3, 1});
  for (const char* name : {"inputs", "targets"}) {
    Array array(DType::int32, {"batch", "length"}, {o.batch, o.length});
    for (int64_t i = 0; i < array.elements(); ++i)
      array.data<int32_t>()[i] = static_cast<int32_t>(
          (i * 7 + i / 5 + (name == std::string("targets") ? 3 : 0)) % o.vocab);
    session.feed(name, array);
  }
  session.run("f");
  CHECK(session.fetch_scalar("loss") == Approx(got).epsilon(1e-12));
  CHECK(run_ahead(o, "a:1", "")[1] ==
        Approx(run_ahead(small_ahead({}), "a:1", "")[0]).epsilon(1e-12));
}

TEST_CASE("options of a transformer that do not go together", "[transformer][errors]") {
  const auto refused = [](std::vector<std::string> words, auto change) {
    expect_usage(words, [&] {
      TransformerOptions o;
      o.layers = 2;
      change(o);
      Graph g;
      nn::transformer(g, o);
    });
  };
  refused({"[transformer] layers 0"}, [](auto& o) { o.layers = 0; });
  refused({"8 heads cannot share 3 key heads", "divisor"}, [](auto& o) { o.heads.key_heads = 3; });
  refused({"the pattern has span 1, but there are spans 0 to 0"}, [](auto& o) { o.pattern = {1}; });
  refused({"0 spans and a pattern of 1 layers"}, [](auto& o) { o.spans.clear(); });
  expect_usage({"[transformer_block] a parallel block reads no memory"}, [] {
    TransformerOptions o;
    o.parallel = true;
    Graph g;
    const Dim model("d_model", o.d_model);
    nn::SharedSpan span;
    span.memory = g.input("memory", {Dim("memory_length", 4), model}, DType::float32);
    nn::transformer_block(g.input("x", {Dim("length", 4), model}, DType::float32), o, span);
  });
  refused({"loss_blocks 3 does not divide the length 128", "divisor"},
          [](auto& o) { o.loss_blocks = 3; });
  refused({"loss_blocks 2 needs a head that is one matrix", "a bias"}, [](auto& o) {
    o.loss_blocks = 2;
    o.head_bias = true;
  });
  refused({"128 modules for tokens further ahead in a length of 128"},
          [](auto& o) { o.ahead.depth = 128; });
  refused({"tokens further ahead has the weight -1"}, [](auto& o) { o.ahead.weight = -1; });
  refused({"2 modules for tokens further ahead, with a model that sees what it predicts"},
          [](auto& o) { o.ahead.depth = 2, o.causal = false; });
  refused({"2 modules for tokens further ahead, with a head that is more than one matrix"},
          [](auto& o) { o.ahead.depth = 2, o.head_bias = true; });
  refused({"2 modules for tokens further ahead, with a decoder with an encoder"},
          [](auto& o) { o.ahead.depth = 2, o.encoder_layers = 2, o.target_length = 4; });
  refused({"logits_cap -30; it is positive and finite, or 0 for none"},
          [](auto& o) { o.logits_cap = -30; });
  refused({"a window of -1 keys"}, [](auto& o) { o.spans[0].window = -1; });
  refused({"scan makes a loop of layers of one kind", "2 kinds"}, [](auto& o) {
    o.spans = {{}, {.window = 4}};
    o.pattern = {0, 1};
    o.scan = true;
  });
  refused({"parallel blocks have their norm before them"}, [](auto& o) {
    o.parallel = true;
    o.placement = nn::NormPlacement::after;
  });
  refused({"4 experts with biases; experts have no biases"}, [](auto& o) {
    o.mlp.experts = 4;
    o.mlp.bias = true;
  });
  refused({"a token takes 5 of 4 experts", "at most all"},
          [](auto& o) { o.spans[0].mlp = nn::MlpLayerOptions{.experts = 4, .choices = 5}; });
  refused(
      {"dispatch_capacity 0.9 is a bound below the mean: with 2 of 4 experts", "at least 1, or 0"},
      [](auto& o) { o.mlp.experts = 4, o.mlp.dispatch_capacity = 0.9; });
  refused({"shared_ff 8 beside 0 experts", "only beside others"},
          [](auto& o) { o.mlp.shared_ff = 8; });
  refused({"latent attention of rank 8", "64 rotated ones of 64", "d_rotary is less than d_head"},
          [](auto& o) { o.heads.latent.rank = 8; });
  const auto latent = [&](const char* with, auto change) {
    refused({"latent attention of rank 8 with ", with, "or latent.rank to 0"}, [&](auto& o) {
      o.heads.latent = {.rank = 8, .d_rotary = 2, .d_value = 4};
      change(o);
    });
  };
  latent("2 key heads", [](auto& o) { o.heads.key_heads = 2; });
  latent("biases of queries, keys or values", [](auto& o) { o.heads.key_bias = true; });
  latent("norms of queries and keys", [](auto& o) { o.heads.norm = true; });
  latent("1 layers of an encoder", [](auto& o) {
    o.encoder_layers = 1;
    o.target_length = 4;
  });
  refused({"a token takes 5 of 4 experts", "at most all"}, [](auto& o) {
    o.mlp.experts = 4;
    o.mlp.choices = 5;
  });
  refused({"length 128 is more than the 64 learned positions"}, [](auto& o) {
    o.learned_positions = true;
    o.positions = 64;
  });
  refused({"relative_buckets -1, token_types 0, encoder_layers 0; none is below 0"},
          [](auto& o) { o.relative_buckets = -1; });
  refused({"a decoder behind 2 layers of an encoder has target_length 0"},
          [](auto& o) { o.encoder_layers = 2; });
  refused({"a model with an encoder is causal, has norms before its parts"}, [](auto& o) {
    o.encoder_layers = 2, o.target_length = 4;
    o.learned_positions = true;
  });
  const auto refused_image = [&](const std::vector<std::string>& parts, auto change) {
    refused(parts, [&](auto& o) {
      o.image.classes = 10;
      o.causal = false;
      o.length = 197;
      change(o);
    });
  };
  refused_image({"images of 224 x 224 with 3 channels, 10 classes, patches of 15", "divides rows"},
                [](auto& o) { o.image.patch = 15; });
  refused_image({"length 128 for images of 197 tokens"}, [](auto& o) { o.length = 128; });
  refused_image({"2 means or deviations for 3 channels"}, [](auto& o) {
    o.image.mean = {0.5, 0.5};
  });
  refused_image({"a channel with the deviation 0"}, [](auto& o) { o.image.deviation = {1, 0, 1}; });
  refused_image({"a model of images is not causal"}, [](auto& o) { o.causal = true; });
  refused({"[relative_distances] 2 buckets and max_distance 128"}, [](auto& o) {
    o.causal = false;
    o.relative_buckets = 2;
  });
  refused({"[rotary_table] a share 0.3 of 64 elements is 19.2"}, [](auto& o) {
    o.spans[0].rotary = true;
    o.spans[0].rotation.share = 0.3;
  });
  refused({"[rotary_table] a share 1 of 7 elements is 7; pairs need an even number from 2 to 7"},
          [](auto& o) { o.heads.d_head = 7, o.spans[0].rotary = true; });
  refused({"[rotary_table] base -1"}, [](auto& o) {
    o.spans[0].rotary = true;
    o.spans[0].rotation.base = -1;
  });
  refused({"[rotary_table] scaling by factor 0"}, [](auto& o) {
    o.spans[0].rotary = true;
    o.spans[0].rotation.scaling = {.kind = RotaryScaling::Kind::linear, .factor = 0};
  });
  refused({"llama3 scaling from low_frequency 4 to high_frequency 4"}, [](auto& o) {
    o.spans[0].rotary = true;
    o.spans[0].rotation.scaling = {.kind = RotaryScaling::Kind::llama3, .low_frequency = 4};
  });
  refused({"yarn scaling from beta_slow 40 to beta_fast 32"}, [](auto& o) {
    o.spans[0].rotary = true;
    o.spans[0].rotation.scaling = {.kind = RotaryScaling::Kind::yarn, .beta_slow = 40};
  });
  Graph g;
  const nn::RotaryTable table = nn::rotary_table(g, {"length", 4}, {"d_head", 8}, {});
  expect_usage(
      {"[rotary] the table [length=4, d_head=8] is not for heads of the dim 'd_head' with 6"}, [&] {
        Tensor x = g.input("x", {Dim("length", 4), Dim("d_head", 6)}, DType::float32);
        nn::rotary(x, "d_head", table);
      });
}

}  // namespace TESSERA_FILE
