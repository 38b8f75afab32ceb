// Training a part of a model: globs, LoRA, and windows of several texts.
#include <cmath>
#include <map>

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/nn_transformer.h"
#include "tessera/tessera.h"

namespace tessera {
namespace TESSERA_FILE {

using test::expect_usage;

nn::GptOptions small(bool scan) {
  nn::GptOptions o;
  o.layers = 2, o.d_model = 8, o.heads = 2, o.ff = 12, o.length = 6, o.vocab = 11, o.batch = 4;
  o.scan = scan;
  return o;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Array> first, last;  ///< parameters
  std::vector<std::string> stored;
  int64_t transient = 0;
};

Trained train(const nn::GptOptions& o, const std::vector<std::string>& trainable,
              const char* mesh_text = "x:1", const char* rules = "", int64_t microbatches = 1) {
  Graph g;
  nn::Model model;
  MinimizeOptions options;
  options.trainable = trainable;
  const auto build = [&] {
    nn::GptOptions each = o;
    each.batch = o.batch / microbatches;
    model = nn::gpt(g, each);
    return model.to_minimize();
  };
  Tensor lr = constant(g, 0.05);
  const Minimized m = microbatches == 1 ? minimize(build(), lr, adam(), options)
                                        : minimize_in_microbatches(g, "batch", microbatches, build,
                                                                   lr, adam(), options);
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks, {mesh, Layout::parse(rules), {{"f", {m.loss}, true}}, 5, 1});
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < o.batch * o.length; ++i)
    tokens.push_back(static_cast<int32_t>(i * 7 % 11));
  const Shape whole{Dim("batch", o.batch), Dim("length", o.length)};
  for (const char* name : {"inputs", "targets"})
    session.feed(name, Array::of<int32_t>(whole, tokens));
  Trained result;
  const auto parameters = [&](std::map<std::string, Array>& all) {
    for (const Tensor& p : g.parameters()) all[p.name()] = session.fetch(p.name());
  };
  parameters(result.first);
  for (int step = 0; step < 4; ++step) {
    session.run("f");
    result.losses.push_back(session.fetch_scalar(m.loss.name()));
  }
  parameters(result.last);
  result.stored = session.program().stored_names();
  result.transient = session.program().transient_bytes();
  return result;
}

/// Names of the parameters that a training changed.
std::set<std::string> changed(const Trained& t) {
  std::set<std::string> names;
  for (const auto& [name, array] : t.last) {
    if (array.bytes != t.first.at(name).bytes) names.insert(name);
  }
  return names;
}

TEST_CASE("only parameters that a glob names have gradients, state and activations",
          "[fine_tuning]") {
  const Trained all = train(small(true), {});
  const Trained norms = train(small(true), {"*.norm.scale", "*.norm.bias"});
  CHECK(changed(norms) == std::set<std::string>{"gpt.norm.scale", "gpt.norm.bias"});
  CHECK(norms.losses[3] < norms.losses[0]);
  const auto states = [](const Trained& t) {
    return std::count_if(t.stored.begin(), t.stored.end(),
                         [](const std::string& n) { return n.ends_with(".adam_m"); });
  };
  CHECK(states(norms) == 2);
  CHECK(states(all) == std::ssize(all.first));
  CHECK(norms.transient < all.transient * 2 / 3);  // nothing of the blocks is kept for backward
}

TEST_CASE("a part of a model is trained alike in microbatches and under layouts", "[fine_tuning]") {
  const std::vector<std::string> part = {"*.attention.*", "*.up.w"};
  const Trained one = train(small(true), part);
  CHECK(changed(one).count("gpt.block.mlp.down.w") == 0);
  CHECK(changed(one).count("gpt.block.mlp.up.w") == 1);
  struct Case {
    const char *mesh, *rules;
    int64_t microbatches;
  };
  for (const Case& c : {Case{"x:1", "", 2}, Case{"data:2", "batch:data; @params d_model:data", 1},
                        Case{"data:2;model:2", "batch:data;heads,ff,vocab:model", 2}}) {
    const Trained other = train(small(true), part, c.mesh, c.rules, c.microbatches);
    CHECK(changed(other) == changed(one));
    for (size_t i = 0; i < 4; ++i) CHECK(other.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("LoRA begins as the model without it and trains its matrices alone, under every layout",
          "[fine_tuning]") {
  for (const bool scan : {true, false}) {
    nn::GptOptions o = small(scan);
    const Trained plain = train(o, {"*.norm.bias"});
    o.lora = {.rank = 3, .alpha = 6, .targets = {"query", "mlp.*", "head"}};
    const std::vector<std::string> adapters = {"*.lora_a", "*.lora_b"};
    const Trained one = train(o, adapters);
    CHECK(one.losses[0] == plain.losses[0]);
    CHECK(one.losses[3] < one.losses[0]);
    std::set<std::string> names;
    for (const auto& [name, array] : one.last) {
      if (name.find(".lora_") != name.npos) names.insert(name);
    }
    CHECK(changed(one) == names);
    CHECK(names.size() == (scan ? 8 : 14));
    const std::string query = scan ? "gpt.block.attention.query" : "gpt.block1.attention.query";
    CHECK(one.last.at(query + ".lora_a").dims.back() == "rank");
    CHECK(one.last.at(query + ".lora_b").sizes ==
          (scan ? std::vector<int64_t>{2, 3, 2, 4} : std::vector<int64_t>{3, 2, 4}));
    struct Case {
      const char *mesh, *rules;
    };
    for (const Case& c :
         {Case{"data:2;model:2", "batch:data;heads,ff,vocab:model"},
          Case{"data:3", "batch:data; @params d_model:data"}, Case{"model:2", "d_model:model"},
          Case{"model:2", "length:model"}, Case{"model:2", "rank:model"}}) {
      INFO(c.mesh << " " << c.rules);
      const Trained other = train(o, adapters, c.mesh, c.rules);
      for (size_t i = 0; i < 4; ++i) CHECK(other.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a layer with LoRA is one whose weight has (alpha / rank) a b added", "[fine_tuning]") {
  Graph g(GraphOptions{.eager = true});
  const Dim n("n", 2), in("in", 3), out("out", 4), rank("rank", 2);
  const Array a = Array::of<float>({in, rank}, {1, 2, 3, 4, 5, 6}),
              b = Array::of<float>({rank, out}, {1, 0, 2, 1, -1, 3, 1, 2}),
              w = Array::of<float>({in, out}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}),
              x = Array::of<float>({n, in}, {1, 2, 3, -1, 0, 2});
  g.feed("layer.w", w);
  g.feed("layer.lora_a", a);
  g.feed("layer.lora_b", b);
  g.feed("x", x);
  nn::DenseOptions options;
  options.bias = false;
  options.lora = {.rank = 2, .alpha = 5};
  const Array y = g.fetch(
      nn::dense(g.input("x", {n, in}, DType::float32), "layer", {"in"}, Shape{out}, options));
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t o = 0; o < 4; ++o) {
      double expected = 0;
      for (int64_t k = 0; k < 3; ++k) {
        double weight = w.at(k * 4 + o);
        for (int64_t r = 0; r < 2; ++r) weight += 5.0 / 2 * a.at(k * 2 + r) * b.at(r * 4 + o);
        expected += x.at(i * 3 + k) * weight;
      }
      CHECK(y.at(i * 4 + o) == Approx(expected));
    }
  }
}

TEST_CASE("LoRA with dropout is the same under every layout and no other without steps",
          "[fine_tuning]") {
  nn::GptOptions o = small(true);
  o.lora = {.rank = 3, .alpha = 6, .targets = {"query", "mlp.*"}};
  const std::vector<std::string> adapters = {"*.lora_a", "*.lora_b"};
  const Trained plain = train(o, adapters);
  o.lora.dropout = 0.5;
  const Trained one = train(o, adapters);
  CHECK(one.losses[0] == plain.losses[0]);  // b is 0
  CHECK(one.losses[3] != Approx(plain.losses[3]).epsilon(1e-6));
  for (const auto& [mesh, rules] : std::vector<std::pair<const char*, const char*>>{
           {"data:2;model:2", "batch:data;heads,ff,vocab:model"}, {"model:2", "d_model:model"}}) {
    const Trained other = train(o, adapters, mesh, rules);
    for (size_t i = 0; i < 4; ++i) CHECK(other.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("LoRA of experts begins as the model without it, under every layout", "[fine_tuning]") {
  nn::TransformerOptions o;
  o.layers = 2, o.d_model = 8, o.vocab = 11, o.length = 6, o.batch = 4;
  o.heads.count = 2, o.heads.d_head = 4;
  o.mlp.ff = 12, o.mlp.gated = true, o.mlp.experts = 3;
  o.learned_positions = o.scan = true;
  const auto losses = [&](const char* mesh_text, const char* rules) {
    Graph g;
    const nn::Model model = nn::transformer(g, o);
    MinimizeOptions options;
    if (o.lora.rank > 0) options.trainable = {"*.lora_a", "*.lora_b"};
    const Minimized m = minimize(model.to_minimize(), constant(g, 0.05), adam(), options);
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster ranks = Cluster::threads(mesh.size());
    Session s(g, ranks, {mesh, Layout::parse(rules), {{"step", {m.loss}, true}}, 5, 1});
    std::vector<int32_t> tokens(24);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 11);
    const Shape shape{Dim("batch", 4), Dim("length", 6)};
    s.feed("inputs", Array::of<int32_t>(shape, tokens));
    s.feed("targets", Array::of<int32_t>(shape, tokens));
    std::vector<double> all;
    for (int i = 0; i < 4; ++i) {
      s.run("step");
      all.push_back(s.fetch_scalar(m.loss.name()));
    }
    return all;
  };
  const std::vector<double> plain = losses("x:1", "");
  o.lora = {.rank = 2, .alpha = 4, .targets = {"expert.up", "expert.down"}};
  const std::vector<double> one = losses("x:1", "");
  CHECK(one[0] == Approx(plain[0]).epsilon(1e-6));
  CHECK(one[3] < one[0]);
  for (const auto& [mesh, rules] : std::vector<std::pair<const char*, const char*>>{
           {"x:3", "experts:x"}, {"x:2", "ff:x"}, {"x:2", "batch:x; @params d_model:x"}}) {
    INFO(rules);
    const std::vector<double> other = losses(mesh, rules);
    for (size_t i = 0; i < 4; ++i) CHECK(other[i] == Approx(one[i]).epsilon(1e-5));
  }
  o.lora.dropout = 0.1;
  expect_usage({"dropout 0.1 with 'transformer.block.mlp.expert.up', whose product of LoRA is "
                "added to its weights"},
               [&] { losses("x:1", ""); });
}

TEST_CASE("texts in one window are as texts of their own", "[fine_tuning]") {
  for (const bool learned : {true, false}) {
    nn::TransformerOptions o;
    o.layers = 2, o.d_model = 8, o.vocab = 11, o.length = 7, o.batch = 1;
    o.heads.count = 2, o.heads.d_head = 4;
    o.mlp.ff = 12;
    o.learned_positions = learned;
    o.spans[0].rotary = !learned;
    // Five tokens, then two; and each alone, padded.
    const auto run = [&](const std::vector<int32_t>& inputs, const std::vector<int32_t>& segments,
                         const std::vector<int32_t>& positions, const std::vector<float>& weights,
                         const char* mesh_text, const char* rules) {
      Graph g;
      nn::TransformerOptions packed = o;
      packed.packed = true;
      const nn::Model model = nn::transformer(g, packed);
      const Mesh mesh = Mesh::parse(mesh_text);
      Cluster ranks = Cluster::threads(mesh.size());
      Session s(
          g, ranks,
          {mesh, Layout::parse(rules), {{"f", {model.logits, model.loss, model.weight}}}, 5, 1});
      const Shape shape{Dim("batch", 1), Dim("length", 7)};
      s.feed("inputs", Array::of<int32_t>(shape, inputs));
      s.feed("targets", Array::of<int32_t>(shape, inputs));
      s.feed("segments", Array::of<int32_t>(shape, segments));
      s.feed("positions", Array::of<int32_t>(shape, positions));
      s.feed("weights", Array::of<float>(shape, weights));
      s.run("f");
      std::vector<double> values;
      const Array logits = s.fetch(model.logits.name());
      for (int64_t i = 0; i < logits.elements(); ++i) values.push_back(logits.at(i));
      values.push_back(s.fetch_scalar(model.loss.name()));
      values.push_back(s.fetch_scalar(model.weight.name()));
      return values;
    };
    for (const auto& [mesh, rules] : std::vector<std::pair<const char*, const char*>>{
             {"x:1", ""}, {"x:2", "length:x"}, {"x:2", "heads,vocab:x"}}) {
      const std::vector<double> both =
          run({3, 1, 4, 1, 5, 9, 2}, {1, 1, 1, 1, 1, 2, 2}, {0, 1, 2, 3, 4, 0, 1},
              {1, 1, 0, 1, 0.5, 1, 1}, mesh, rules);
      const std::vector<double> first =
          run({3, 1, 4, 1, 5, 0, 0}, {1, 1, 1, 1, 1, 0, 0}, {0, 1, 2, 3, 4, 0, 1},
              {1, 1, 0, 1, 0.5, 0, 0}, mesh, rules);
      const std::vector<double> second =
          run({9, 2, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0, 0}, {0, 1, 0, 1, 2, 3, 4},
              {1, 1, 0, 0, 0, 0, 0}, mesh, rules);
      for (size_t i = 0; i < 5 * 11; ++i) CHECK(both[i] == Approx(first[i]).margin(1e-6));
      for (size_t i = 0; i < 2 * 11; ++i) CHECK(both[5 * 11 + i] == Approx(second[i]).margin(1e-6));
      CHECK(both[77] == Approx(first[77] + second[77]));
      CHECK(both[78] == Approx(5.5));
      CHECK(first[78] == Approx(3.5));
    }
  }
}

TEST_CASE("prompts and answers in one window of an encoder and a decoder are as alone",
          "[fine_tuning]") {
  nn::TransformerOptions o;
  o.layers = 2, o.encoder_layers = 2, o.d_model = 8, o.vocab = 11, o.batch = 1;
  o.length = 6, o.target_length = 5;
  o.heads.count = 2, o.heads.d_head = 4;
  o.mlp.ff = 12;
  o.relative_buckets = 8, o.relative_distance = 16;
  o.packed = true;
  const auto run = [&](const std::vector<std::vector<int32_t>>& fed, const char* mesh_text,
                       const char* rules) {
    Graph g;
    const nn::Model model = nn::transformer(g, o);
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster ranks = Cluster::threads(mesh.size());
    Session s(
        g, ranks,
        {mesh, Layout::parse(rules), {{"f", {model.logits, model.loss, model.weight}}}, 5, 1});
    const char* const names[] = {"inputs", "segments", "decoder_inputs", "targets",
                                 "decoder_segments"};
    for (size_t i = 0; i < 5; ++i)
      s.feed(names[i], Array::of<int32_t>(Shape{Dim("batch", 1),
                                                i < 2 ? Dim("length", 6) : Dim("target_length", 5)},
                                          fed[i]));
    std::vector<float> weights;
    for (const int32_t segment : fed[4]) weights.push_back(segment > 0 ? 1.0F : 0.0F);
    s.feed("weights", Array::of<float>(Shape{Dim("batch", 1), Dim("target_length", 5)}, weights));
    s.run("f");
    std::vector<double> values;
    const Array logits = s.fetch(model.logits.name());
    for (int64_t i = 0; i < logits.elements(); ++i) values.push_back(logits.at(i));
    values.push_back(s.fetch_scalar(model.loss.name()));
    return values;
  };
  for (const auto& [mesh, rules] : std::vector<std::pair<const char*, const char*>>{
           {"x:1", ""}, {"x:2", "length,target_length:x"}, {"x:2", "heads,vocab:x"}}) {
    const std::vector<double> both = run({{3, 1, 4, 1, 5, 9},
                                          {1, 1, 1, 1, 2, 2},
                                          {0, 2, 6, 0, 5},
                                          {2, 6, 1, 5, 1},
                                          {1, 1, 1, 2, 2}},
                                         mesh, rules),
                              first = run({{3, 1, 4, 1, 0, 0},
                                           {1, 1, 1, 1, 0, 0},
                                           {0, 2, 6, 0, 0},
                                           {2, 6, 1, 0, 0},
                                           {1, 1, 1, 0, 0}},
                                          mesh, rules),
                              second = run({{5, 9, 0, 0, 0, 0},
                                            {1, 1, 0, 0, 0, 0},
                                            {0, 5, 0, 0, 0},
                                            {5, 1, 0, 0, 0},
                                            {1, 1, 0, 0, 0}},
                                           mesh, rules);
    INFO(rules);
    for (size_t i = 0; i < 3 * 11; ++i) CHECK(both[i] == Approx(first[i]).margin(1e-5));
    for (size_t i = 0; i < 2 * 11; ++i) CHECK(both[33 + i] == Approx(second[i]).margin(1e-5));
    CHECK(both[55] == Approx(first[55] + second[55]));
  }
}

TEST_CASE("what LoRA and globs refuse", "[fine_tuning][errors]") {
  const auto with = [](const nn::LoraOptions& lora) {
    nn::GptOptions o = small(true);
    o.lora = lora;
    Graph g;
    nn::gpt(g, o);
  };
  expect_usage({"[lora] no dense layer of 'gpt' is called like 'quary'; did you mean 'query'?"},
               [&] {
                 with({.rank = 2, .targets = {"query", "quary"}});
               });
  expect_usage({"[lora] 'transformer.head_transform' is no dense layer of a block"}, [] {
    nn::TransformerOptions o;
    o.head_transform = true;
    o.lora = {.rank = 2, .targets = {"query", "transformer.head_transform"}};
    Graph g;
    nn::transformer(g, o);
  });
  for (const char* other : {"embedding", "norm", "*norm*", "gpt.norm.scale"})
    expect_usage({fmt::format("[lora] '{}' is no dense layer of a block, and others have no "
                              "matrices of LoRA; leave it out",
                              other)},
                 [&] {
                   with({.rank = 2, .targets = {"query", other}});
                 });
  expect_usage(
      {"[lora] the targets query,mlp.* and a rank of 0, which adapts nothing; give a rank"}, [&] {
        with({.targets = {"query", "mlp.*"}});
      });
  expect_usage({"[lora] rank -1 and alpha 16"}, [&] { with({.rank = -1}); });
  expect_usage({"rank 2 and alpha 0; a rank of 0 is no adaptation"},
               [&] { with({.rank = 2, .alpha = 0}); });
  for (const double dropout : {-0.1, 1.0})
    expect_usage({"dropout ", "; it is a rate from 0 to below 1"},
                 [&] { with({.rank = 2, .dropout = dropout}); });
  expect_usage({"[minimize] trainable: no parameter is named like '*.lora_a'"},
               [&] { train(small(true), {"*.lora_a"}); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera
