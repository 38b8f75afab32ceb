// Seeing inside: kept tensors, print and check_finite nodes, eager graphs, summaries, differences
// and dumps.
#include "tessera/inspect.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/expect_error.h"
#include "support/io_folder.h"
#include "tessera/checkpoint.h"
#include "tessera/loops.h"
#include "tessera/safetensors.h"
#include "tessera/tessera.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

const float kNan = std::numeric_limits<float>::quiet_NaN();

Array floats(const std::vector<std::string>& dims, const std::vector<int64_t>& sizes,
             const std::vector<float>& values) {
  Array array(DType::float32, dims, sizes);
  std::copy(values.begin(), values.end(), array.data<float>());
  return array;
}

/// sqrt(x) * 2 with a print and a check of the root, whose results nobody uses.
struct Rooted {
  Graph g;
  Dim a{"a", 5}, b{"b", 3};
  Tensor x = g.input("x", {a, b}, DType::float32);
  Tensor root, y, total;
  int line = 0;

  Rooted() {
    Scope scope(g, "model");
    root = sqrt(x).named("root");
    print(root, "the root");
    line = __LINE__ + 1;
    check_finite(root, "roots");
    y = (root * 2.0).named("y");
    total = sum_all(y).named("total");
    Tensor count = g.state("count", {}, nn::zeros());
    g.update(count, count + 1.0);
  }
};

Array ramp(float bad, int64_t at) {
  Array x = floats({"a", "b"}, {5, 3}, std::vector<float>(15, 4));
  if (at >= 0) x.data<float>()[at] = bad;
  return x;
}

TEST_CASE("summaries and differences") {
  const Array x = floats({"a", "b"}, {2, 3}, {1, -2, kNan, 3, INFINITY, 2});
  const Summary s = summarize(x);
  CHECK(s.min == -2);
  CHECK(s.max == 3);
  CHECK(s.mean == 1);
  CHECK(s.l2 == Approx(std::sqrt(18.0)));
  CHECK(s.non_finite == 2);
  CHECK(describe(x).find("float32 [a=2, b=3]  min -2  max 3  mean 1") == 0);
  CHECK(std::isnan(summarize(floats({}, {}, {kNan})).mean));
  CHECK(index_text(x.dims, x.sizes, 5) == "[a 1, b 2]");
  CHECK(index_text({}, {}, 0) == "[]");

  const Array y = floats({"a"}, {4}, {1, 1, 1, 1});
  CHECK(difference(y, y, 0).relative == 0);
  Array z = y;
  z.data<float>()[2] = 1.5f;
  z.data<float>()[3] = 0;
  const Difference d = difference(z, y, 0.1);
  CHECK(d.relative == Approx(std::sqrt(1.25) / 2));
  CHECK(d.first == 2);
  CHECK(difference(z, y, 0.6).first == 3);
  CHECK(difference(floats({"a"}, {1}, {kNan}), floats({"a"}, {1}, {kNan}), 0).relative == 0);
  CHECK(std::isinf(difference(floats({"a"}, {1}, {kNan}), floats({"a"}, {1}, {1}), 9).relative));
  CHECK(difference(floats({"a"}, {2}, {1, INFINITY}), floats({"a"}, {2}, {1, 1}), 9).first == 1);
}

TEST_CASE("what keep names can be fetched, in the order of the model") {
  Rooted m;
  Cluster cluster = Cluster::threads(2);
  CompileOptions options{Mesh::parse("p:2"), Layout::parse("a:p"), {{"run", {m.total}, true}}};
  options.keep = {"model.r*", "model.count"};
  Session session(m.g, cluster, options);
  session.feed("x", ramp(0, -1));
  session.run("run");
  CHECK(session.program().find("run", "*") ==
        std::vector<std::string>{"model.root", "model.check_finite_index", "model.total", "x",
                                 "model.count"});
  CHECK(session.program().find("run", "model.r*") == std::vector<std::string>{"model.root"});
  CHECK(session.program().find("run", "nothing").empty());
  const Array root = session.fetch("model.root");
  for (int64_t i = 0; i < 15; ++i) CHECK(root.at(i) == 2);
  options.keep = {"model.rot*"};
  expect_usage({"'model.rot*'", "did you mean 'model.root'?"},
               [&] { Session(m.g, cluster, options); });
  options.keep = {"modle.*"};
  expect_usage({"'modle.*'", "did you mean 'model'?"}, [&] { Session(m.g, cluster, options); });
}

TEST_CASE("print() nodes give lines to the sink, whatever the layout") {
  for (const char* layout : {"", "a:p", "b:p"}) {
    Rooted m;
    Cluster cluster = Cluster::threads(2);
    std::vector<std::string> lines;
    CompileOptions options{Mesh::parse("p:2"), Layout::parse(layout), {{"run", {m.total}, true}}};
    options.print = [&](const std::string& line) { lines.push_back(line); };
    Session session(m.g, cluster, options);
    session.feed("x", ramp(9, 1));
    session.run("run");
    session.run("run");
    REQUIRE(lines.size() == 2);
    CHECK(lines[0] == lines[1]);
    CHECK(lines[0].find("the root: model.root float32 [a=5, b=3]  min 2  max 3") == 0);
    CHECK(lines[0].find("= [2, 3, 2, 2, 2, 2, ...]") != std::string::npos);
  }
}

TEST_CASE("print() and check_finite() in loops name the iteration, whatever the layout") {
  for (const char* layout : {"", "a:p", "b:p"}) {
    Graph g;
    const Dim a("a", 5), b("b", 3);
    const Tensor x = g.input("x", {a, b}, DType::float32);
    const IterationResults all =
        scan(g, a, {constant(g, 0, DType::float32, {b})}, {x}, [&](const Iteration& t) {
          const Tensor sum = (t.carries[0] + sqrt(t.slices[0])).named("sum");
          return IterationResults{{check_finite(print(sum, "so far"), "sums")}};
        });
    const Tensor total = sum_all(all.carries[0]).named("total");
    Cluster cluster = Cluster::threads(2);
    std::vector<std::string> lines;
    CompileOptions options{Mesh::parse("p:2"), Layout::parse(layout), {{"run", {total}, false}}};
    options.print = [&](const std::string& line) { lines.push_back(line); };
    Session session(g, cluster, options);
    session.feed("x", ramp(9, 4));
    session.run("run");
    REQUIRE(lines.size() == 5);
    CHECK(lines[0].find("so far: sum [a 0] float32 [b=3]  min 2  max 2") == 0);
    CHECK(lines[1].find("so far: sum [a 1] float32 [b=3]  min 4  max 5") == 0);
    CHECK(lines[4].find("= [10, 11, 10]") != std::string::npos);
    session.feed("x", ramp(-1, 7));
    expect_usage({"[check_finite] sums", "element [a 2, b 1] of 'sum'", "inspect_test.cpp:"},
                 [&] { session.run("run"); });
  }
}

TEST_CASE("a run that is interrupted stores nothing, and one rank can go on") {
  for (const int ranks : {1, 2}) {
    Graph g;
    const Dim a("a", 4);
    const Tensor x = g.input("x", {a}, DType::float32), n = g.input("n", {}, DType::int32);
    Tensor count = g.state("count", {}, nn::zeros());
    const IterationResults all =
        while_loop([&](const std::vector<Tensor>& carries) { return less(carries[1], n); },
                   [&](const Iteration& t) {
                     return IterationResults{{sin(t.carries[0]), t.carries[1] + 1.0}};
                   },
                   {x, constant(g, 0, DType::int32)}, int64_t{1} << 30);
    g.update(count, count + sum_all(all.carries[0]) * 0.0 + 1.0);
    Cluster cluster = Cluster::threads(ranks);
    bool interrupts = true;
    const std::thread::id caller = std::this_thread::get_id();
    CompileOptions options{
        Mesh::parse("p:" + std::to_string(ranks)), Layout::parse("a:p"), {{"run", {}, true}}};
    options.interrupted = [&] {
      CHECK(std::this_thread::get_id() == caller);
      return interrupts;
    };
    Session session(g, cluster, options);
    session.feed("x", floats({"a"}, {4}, {1, 2, 3, 4}));
    const auto set = [&](int32_t iterations) {
      Array value(DType::int32, {}, {});
      value.data<int32_t>()[0] = iterations;
      session.feed("n", value);
    };
    set(1 << 30);
    expect_usage({"it was interrupted within a step; nothing was stored"},
                 [&] { session.run("run"); });
    CHECK(session.fetch_scalar("count") == 0);
    CHECK(session.step() == 0);
    interrupts = false;
    set(10);
    if (ranks == 1) {
      session.run("run");
      CHECK(session.fetch_scalar("count") == 1);
    } else {
      expect_usage({"this session failed before and cannot run again"},
                   [&] { session.run("run"); });
      Session(g, cluster, options);  // another one can
    }
  }
}

TEST_CASE("check_finite() names label, node, step, index and line, and nothing is stored",
          "[errors]") {
  for (const char* layout : {"", "a:p", "b:p"}) {
    Rooted m;
    Cluster cluster = Cluster::threads(2);
    Session session(m.g, cluster,
                    {Mesh::parse("p:2"), Layout::parse(layout), {{"run", {m.total}, true}}});
    session.feed("x", ramp(0, -1));
    session.run("run");
    session.feed("x", ramp(-1, 7));
    expect_usage({"[model.check_finite] roots", "element [a 2, b 1] of 'model.root'",
                  "step counter 1", "inspect_test.cpp:" + std::to_string(m.line)},
                 [&] { session.run("run"); });
    CHECK(*static_cast<const float*>(session.slices("model.count")[0].data) == 1);
  }
  Graph g;
  Tensor ids = g.input("ids", {Dim("a", 2)}, DType::int32);
  expect_usage({"[check_finite] 'ids' is int32", "inspect_test.cpp:"}, [&] { check_finite(ids); });
}

TEST_CASE("check_finite() of a scalar and of a bounded dim's actual part") {
  Graph g;
  Tensor x = g.input("x", {Dim::bounded("a", 4)}, DType::float32);
  Tensor y = check_finite(check_finite(log(x)) + 0.0), total = sum_all(y);
  check_finite(total);
  Cluster cluster = Cluster::threads(2);
  Session session(g, cluster,
                  {Mesh::parse("p:2"), Layout::parse("a:p"), {{"run", {total}, false}}});
  session.feed("x", floats({"a"}, {4}, {1, 1, 1, 1}));
  session.run("run");
  session.set_size("a", 3);  // log(0) of what is beyond the third is nobody's concern
  session.feed("x", floats({"a"}, {3}, {1, 1, 1}));
  session.run("run");
  CHECK(session.fetch_scalar(total.name()) == 0);
}

TEST_CASE("an eager graph computes while it is written") {
  Graph g({.eager = true, .seed = 3});
  g.feed("x", floats({"a", "b"}, {2, 3}, {1, 2, 3, 4, 5, 6}));
  const Dim a("a", 2), b("b", 3), c("c", 4);
  Tensor x = g.input("x", {a, b}, DType::float32);
  Tensor w = g.parameter("w", {b, c}, nn::ones());
  Tensor y = einsum({x, w}, {a, c});
  CHECK(g.fetch(y).at(0) == 6);
  CHECK(g.fetch(y).at(7) == 15);
  CHECK(g.fetch(x * x).at(5) == 36);
  CHECK(g.fetch(softmax(y, "c")).at(2) == Approx(0.25));
  const std::vector<Tensor> grads = gradients(sum_all(square(y)), {w});
  CHECK(g.fetch(grads[0]).at(0) == 2 * (6 * 1 + 15 * 4));
}

TEST_CASE("an eager model has the numbers of a Session") {
  nn::GptOptions o;
  o.layers = 1;
  o.d_model = 16;
  o.heads = 2;
  o.ff = 32;
  o.length = 8;
  o.vocab = 20;
  o.batch = 4;
  o.partial_batch = true;
  o.dropout = 0.25;
  o.dtype = DType::float64;
  Array tokens(DType::int32, {"batch", "length"}, {3, 8});
  for (int i = 0; i < 24; ++i) tokens.data<int32_t>()[i] = i * 7 % 20;
  Graph eager({.eager = true, .seed = 5}), g;
  eager.feed("inputs", tokens);
  eager.feed("targets", tokens);
  const nn::Model now = nn::gpt(eager, o), later = nn::gpt(g, o);
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster,
                  {Mesh::parse("one:1"), {}, {{"run", {later.loss, later.logits}, false}}, 5});
  session.set_size("batch", 3);
  session.feed("inputs", tokens);
  session.feed("targets", tokens);
  session.run("run");
  CHECK(eager.fetch(now.loss).at(0) == Approx(session.fetch_scalar("gpt.loss")).epsilon(1e-13));
  CHECK(difference(eager.fetch(now.logits), session.fetch("gpt.logits"), 0).relative < 1e-13);
}

TEST_CASE("eager errors come from the line that made the node", "[errors]") {
  const Dim a("a", 2), v("v", 3);
  Graph g({.eager = true, .check_finite = true});
  Tensor missing = g.input("missing", {a}, DType::float32);
  expect_usage({"[neg]", "'missing' has no value; feed() it"}, [&] { neg(missing); });
  g.feed("short", floats({"a"}, {1}, {1}));
  Tensor small = g.input("short", {a}, DType::float32);
  expect_usage({"'short' is [a=2] but the array has the sizes [1]"}, [&] { neg(small); });
  g.feed("ids", floats({"a"}, {2}, {1, 1}));
  Tensor ids = g.input("ids", {a}, DType::int32);
  expect_usage({"'ids' is int32 but the array is float32"}, [&] { neg(ids); });

  Array indices(DType::int32, {"a"}, {2});
  indices.data<int32_t>()[1] = 9;
  g.feed("indices", indices);
  Tensor at = g.input("indices", {a}, DType::int32);
  Tensor table = constant(g, 1, DType::float32, {v});
  const int line = __LINE__ + 2;
  expect_usage({"[gather]", "9", "inspect_test.cpp:" + std::to_string(line)},
               [&] { gather(table, at, "v"); });
  expect_usage({"[log]", "element [v 0] of 'log' is -inf", "inspect_test.cpp:"},
               [&] { log(table - 1.0); });
  expect_usage({"[feed] 'missing' was used before"}, [&] {
    g.feed("missing", floats({"a"}, {2}, {1, 1}));
  });
  Tensor other = g.input("others", {a}, DType::float32);
  expect_usage({"'others' has no value", "fed: ids, indices, short"}, [&] { neg(other); });
  Graph plain;
  Tensor x = plain.input("x", {a}, DType::float32);
  expect_usage({"[fetch] 'x'", "eager = true"}, [&] { plain.fetch(x); });
  expect_usage({"[feed] 'x'", "eager = true"}, [&] {
    plain.feed("x", floats({"a"}, {2}, {1, 1}));
  });
}

TEST_CASE("eager print and check_finite") {
  std::vector<std::string> lines;
  Graph g({.eager = true, .print = [&](const std::string& line) { lines.push_back(line); }});
  Tensor x = constant(g, 2, DType::float32, {Dim("a", 2)}).named("x");
  print(x, "here");
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("here: ") == 0);
  CHECK(lines[0].find("= [2, 2]") != std::string::npos);
  Tensor bad = log(x - 3.0);
  const int line = __LINE__ + 2;
  expect_usage({"[check_finite]", "element [a 0]", "inspect_test.cpp:" + std::to_string(line)},
               [&] { check_finite(bad); });
}

TEST_CASE("a dump has whole tensors with names, dims and lines") {
  const Folder f;
  Rooted m;
  Cluster cluster = Cluster::threads(2);
  CompileOptions options{Mesh::parse("p:2"), Layout::parse("a:p"), {{"run", {m.total}, true}}};
  options.keep = {"model.*"};
  Session session(m.g, cluster, options);
  session.feed("x", ramp(9, 14));
  session.run("run");
  const std::string path = f.dir + "/dump.safetensors";
  dump(session, m.g, {"model.root", "x", "model.total"}, path, {{"step", "1"}});
  const Array root = read_tensor(path, "model.root");
  CHECK(root.dims == std::vector<std::string>{"a", "b"});
  CHECK(root.at(14) == 3);
  CHECK(read_tensor(path, "model.total").at(0) == 2 * (14 * 2 + 3));
  const SafetensorsReader file(path);
  CHECK(file.tensors()[0].name == "model.root");
  CHECK(file.metadata().at("step") == "1");
  CHECK(nlohmann::json::parse(file.metadata().at("source"))["model.root"].get<std::string>().find(
            "inspect_test.cpp:") == 0);
  expect_error(ErrorKind::io, {"no/such"},
               [&] { dump(session, m.g, {"x"}, f.dir + "/no/such/file.safetensors"); });
}

TEST_CASE("a print callback that throws leaves the step that was stored") {
  Graph g;
  Tensor w = g.parameter("w", {}, nn::ones());
  Tensor shown = print(w * 2.0, "w").named("shown");
  g.update(w, w + 1.0);
  Cluster ranks = Cluster::threads(2);
  CompileOptions options{Mesh::parse("a:2"), Layout::parse(""), {{"f", {shown}, true}}};
  int lines = 0;
  options.print = [&](const std::string&) {
    if (++lines == 1) throw std::runtime_error("disk full");
  };
  Session s(g, ranks, options);
  CHECK_THROWS_WITH(s.run("f"), "disk full");
  CHECK(s.fetch_scalar("w") == 2);
  CHECK(s.step() == 1);
  s.run("f");
  CHECK(s.fetch_scalar("w") == 3);
  CHECK(s.step() == 2);
  CHECK(lines == 2);
}

}  // namespace TESSERA_FILE
