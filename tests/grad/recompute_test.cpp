// What backward recomputes: values are the same bits, memory is less, gathers are more.
#include <algorithm>

#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"
#include "tessera/storage.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Work {
  Graph graph;
  nn::Model model;
  Minimized minimized;
};

nn::GptOptions deep_gpt() {
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = 6;
  o.dropout = 0.1;
  return o;
}

void build(Work& work, const nn::GptOptions& options, const GradientOptions& gradient) {
  work.model = nn::gpt(work.graph, options);
  MinimizeOptions minimizing;
  minimizing.clip = 1;
  minimizing.gradient = gradient;
  work.minimized =
      minimize(work.model.loss, constant(work.graph, 0.01, options.dtype), adam(), minimizing);
}

GptOutcome train(Cluster& ranks, const std::string& mesh, const std::string& layout,
                 const GradientOptions& gradient) {
  Work work;
  build(work, deep_gpt(), gradient);
  Session session(work.graph, ranks,
                  {Mesh::parse(mesh), Layout::parse(layout), {{"train", {work.model.loss}, true}}});
  GptOutcome outcome;
  for (int step = 0; step < 3; ++step) {
    feed_tokens(session, work.model, step);
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(work.model.loss.name()));
  }
  for (const std::string& name : session.program().stored_names())
    outcome.stored[name] = session.fetch(name);
  return outcome;
}

Explanation explained(const nn::GptOptions& options, const std::string& mesh,
                      const std::string& layout, const GradientOptions& gradient) {
  Work work;
  build(work, options, gradient);
  return explain(work.graph,
                 {Mesh::parse(mesh), Layout::parse(layout), {{"train", {work.model.loss}, true}}});
}

int64_t bytes_of(const Explanation& e, const std::string& kind, const std::string& part) {
  int64_t bytes = 0;
  for (const FunctionReport& f : e.functions) {
    if (f.name != "train") continue;
    for (const CollectiveReport& c : f.collectives) {
      if (c.kind == kind && c.tensor.find(part) != std::string::npos) bytes += c.bytes;
    }
  }
  return bytes;
}

TEST_CASE("what backward recomputes has the same bits", "[again]") {
  for (const auto& [mesh, layout] : std::vector<std::pair<std::string, std::string>>{
           {"a:1", ""},
           {"a:2;b:2", "batch:a;heads,ff,vocab:b"},
           {"a:2;b:2", "length:a;ff:b;@params d_model:b"}}) {
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    const GptOutcome plain = train(ranks, mesh, layout, {});
    for (const GradientOptions& again :
         {GradientOptions{{"block"}, {}}, GradientOptions{{"attention", "gpt.block1.mlp"}, {}},
          GradientOptions{{"norm*"}, {"block"}}, GradientOptions{{}, {"block*"}}}) {
      INFO(mesh << " " << layout << " " << again.recompute.size()
                << again.reshard_after_forward.size());
      const GptOutcome other = train(ranks, mesh, layout, again);
      CHECK(other.losses == plain.losses);
      REQUIRE(other.stored.size() == plain.stored.size());
      for (const auto& [name, array] : plain.stored) {
        INFO(name);
        CHECK(other.stored.at(name).bytes == array.bytes);
      }
    }
  }
}

TEST_CASE("recomputed blocks keep their inputs alone", "[again]") {
  nn::GptOptions o = small_gpt(DType::float32);
  o.length = 32;
  o.d_model = 24;
  o.ff = 96;
  auto transient = [&](int layers, const GradientOptions& gradient) {
    o.layers = layers;
    return explained(o, "a:1", "", gradient).memory.transient;
  };
  const int64_t kept = transient(12, {}) - transient(8, {});
  const int64_t input = 4 * o.batch * o.length * o.d_model * 4;  // of four blocks
  const int64_t again = transient(12, {{"block"}, {}}) - transient(8, {{"block"}, {}});
  CHECK(kept > 6 * input);
  INFO(kept << " " << again << " " << input);
  CHECK(again < 2 * input);
  CHECK(transient(8, {{"attention"}, {}}) < transient(8, {}));
}

TEST_CASE("parameters that are split are gathered once, or again for backward", "[again]") {
  const std::string layout = "batch:a;@params d_model:a";
  auto gathers = [&](const GradientOptions& gradient) {
    return bytes_of(explained(deep_gpt(), "a:2", layout, gradient), "all_gather", ".mlp.up.w");
  };
  const int64_t once = gathers({});
  CHECK(once > 0);
  CHECK(gathers({{}, {"block"}}) == 2 * once);
  CHECK(gathers({{"block"}, {}}) == 2 * once);
  const Explanation plain = explained(deep_gpt(), "a:2", layout, {});
  const Explanation again = explained(deep_gpt(), "a:2", layout, {{}, {"block"}});
  CHECK(again.memory.transient < plain.memory.transient);
  // What is named, and the sum of the others, is all of the peak but gaps.
  CHECK(plain.memory.at_peak.size() == 9);
  CHECK(plain.memory.at_peak.back().first.find(" more tensors") != std::string::npos);
  int64_t at_peak = 0;
  for (const auto& [name, bytes] : plain.memory.at_peak) at_peak += bytes;
  CHECK(at_peak <= plain.memory.transient);
  CHECK(at_peak > 9 * plain.memory.transient / 10);
}

TEST_CASE("names of scopes that backward recomputes are checked", "[again]") {
  Work work;
  expect_usage({"recompute: no scope of the model matches 'atention'", "did you mean 'attention'?"},
               [&] {
                 build(work, deep_gpt(), {{"block", "atention"}, {}});
               });
  Work other;
  expect_usage(
      {"reshard_after_forward: no scope of the model matches 'blok'", "known: attention, block0"},
      [&] {
        build(other, deep_gpt(), {{}, {"blok"}});
      });
}

TEST_CASE("what is recomputed may be named among what is gathered again", "[again]") {
  Work both, once;
  build(both, deep_gpt(), {{"block"}, {"block"}});
  build(once, deep_gpt(), {{"block"}, {}});
  CHECK(both.graph.nodes().size() == once.graph.nodes().size());
}

TEST_CASE("storage rules pad no dim that another way leaves whole", "[again]") {
  Graph g;
  g.parameter("wide", {Dim("m", 48), Dim("k", 16)}, nn::zeros(), DType::float32);
  g.parameter("narrow", {Dim("h", 6), Dim("k", 16)}, nn::zeros(), DType::float32);
  g.parameter("odd", {Dim("n", 7)}, nn::zeros(), DType::float32);
  g.parameter("prime", {Dim("p", 5), Dim("q", 5)}, nn::zeros(), DType::float32);
  const Mesh mesh = Mesh::parse("pod:8;data:2");
  const auto rules = [&](const char* layout, const char* over) {
    return storage_rules(g, mesh, Layout::parse(layout), 3, over);
  };
  // One dim for all axes where one divides; else each axis has its own; else a little padding.
  CHECK(rules("", "pod+data") ==
        "@params/*wide*/ m:pod+data;@params/*narrow*/ k:pod+data;@params/*prime*/ p:data");
  CHECK(rules("k:data", "pod") == "@params/*wide*/ m:pod;@params/*narrow*/ k:pod");
  CHECK(rules("", "data") ==
        "@params/*wide*/ m:data;@params/*narrow*/ k:data;@params/*odd*/ n:data;"
        "@params/*prime*/ p:data");
}

TEST_CASE("storage rules split every parameter along its largest dim", "[again]") {
  Graph g;
  nn::gpt(g, deep_gpt());  // d_model 12, ff 14, length 6, vocab 17, heads 3, d_head 4
  const Mesh mesh = Mesh::parse("data:2;model:3");
  const std::string rules = storage_rules(g, mesh, Layout::parse("batch:data"), 3, "data");
  CHECK(rules.find("@params/*gpt.block*.mlp.up.w*/ ff:data") != std::string::npos);
  CHECK(rules.find("@params/*gpt.embedding*/ d_model:data") != std::string::npos);
  {  // Rows of a table are exchanged, so it is split across its rows, though there are more of
     // them.
    Graph wide;
    nn::GptOptions o = deep_gpt();
    o.vocab = 32;
    nn::gpt(wide, o);
    const std::string of_wide = storage_rules(wide, mesh, Layout::parse("batch:data"), 3, "data");
    CHECK(of_wide.find("@params/*gpt.embedding*/ d_model:data") != std::string::npos);
    CHECK(of_wide.find("@params/*gpt.head.w*/ vocab:data") != std::string::npos);
  }
  const Layout layout = Layout::parse("batch:data;" + rules);
  CHECK(Layout::parse(layout.to_string()).to_string() == layout.to_string());
  auto persistent = [&](const std::string& text) {
    const MemoryReport m = explained(deep_gpt(), "data:2;model:3", text, {}).memory;
    return std::pair(m.params, m.state);
  };
  const auto [params, state] = persistent("batch:data");
  const auto [params1, state1] =
      persistent("batch:data;" + storage_rules(g, mesh, Layout::parse("batch:data"), 1, "data"));
  const auto [params3, state3] = persistent("batch:data;" + rules);
  CHECK(params1 == params);
  CHECK(static_cast<double>(state1) < 0.52 * static_cast<double>(state));
  CHECK(static_cast<double>(params3) < 0.52 * static_cast<double>(params));
  CHECK(state3 == state1);
  // What the axis splits already stays as it is.
  const std::string beside = storage_rules(g, mesh, Layout::parse("ff:data"), 2, "data");
  CHECK(beside.find("mlp.up.w") == std::string::npos);
  CHECK(beside.find("@grads/*gpt.block*.attention.query.w*/") != std::string::npos);
  CHECK(storage_rules(g, Mesh::parse("data:1"), Layout(), 3, "data") == "");
  expect_usage({"zero: stage 4 does not exist"}, [&] { storage_rules(g, mesh, {}, 4, "data"); });
  expect_usage({"zero: mesh 'data:2;model:3' has no axis 'dta'", "'data'"},
               [&] { storage_rules(g, mesh, {}, 3, "dta"); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
