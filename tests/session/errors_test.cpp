// The messages of layouts, meshes, configurations and Sessions: one test each.
#include <cmath>
#include <functional>
#include <memory>

#include "base/fail.h"
#include "support/counted_world.h"
#include "support/expect_error.h"
#include "tessera/cli.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_error;
using test::expect_usage;

namespace TESSERA_FILE {

/// relu(x . w), its mean and one update.
struct Small {
  Graph g;
  Dim batch{"batch", 8}, hidden{"hidden", 6}, classes{"classes", 4};
  Tensor x = g.input("x", {batch, hidden}, DType::float32);
  Tensor w = g.parameter("w", {hidden, classes}, nn::normal(0.1));
  Tensor y = relu(einsum({x, w}, {batch, classes})).named("y");
  Tensor loss = mean_all(y).named("loss");

  Small() { minimize(loss, constant(g, 0.1), sgd()); }
  CompileOptions options(const std::string& mesh, const std::string& layout) const {
    return {Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss}, true}}};
  }
  void compile(const std::string& mesh, const std::string& layout) const {
    explain(g, options(mesh, layout));
  }
};

Array filled(const std::vector<std::string>& dims, const std::vector<int64_t>& sizes, float value) {
  Array a(DType::float32, dims, sizes);
  for (int64_t i = 0; i < a.elements(); ++i) a.data<float>()[i] = value;
  return a;
}

TEST_CASE("layout errors: unknown names", "[errors]") {
  const Small m;
  expect_usage({"batch:dta", "mesh 'data:2' has no axis 'dta'", "did you mean 'data'?"},
               [&] { m.compile("data:2", "batch:dta"); });
  expect_usage(
      {"btach:data", "no tensor has a dim 'btach'", "write 'btach?'", "did you mean 'batch'?"},
      [&] { m.compile("data:2", "btach:data"); });
  expect_usage({"no tensor has a dim 'q'", "known: ", "batch", "hidden"},
               [&] { m.compile("data:2", "q:data"); });
  expect_usage({"@/nothing*/ batch:data", "no tensor named like 'nothing*' has a dim 'batch'"},
               [&] { m.compile("data:2", "@/nothing*/ batch:data"); });
  m.compile("data:2", "btach?:data");
  m.compile("data:2", "@/nothing*/ batch?:data");
}

TEST_CASE("layout errors: claims", "[errors]") {
  const Small m;
  expect_usage({"tensor 'x'", "dims 'batch' and 'hidden' both claim mesh axis 'a'", "batch:a",
                "hidden:a", ".prefer(\"hidden\")", "errors_test.cpp:"},
               [&] { m.compile("a:2", "batch,hidden:a"); });
  expect_usage({"'batch:a' and 'batch:b' disagree about dim 'batch'", "join axes with '+'"},
               [&] { m.compile("a:2;b:2", "batch:a;batch:b"); });
  expect_usage({"layout rule 'batch:a+a' names axis 'a' twice"},
               [&] { m.compile("a:2", "batch:a+a"); });
  expect_error(ErrorKind::unsupported,
               {"'batch:auto'", "tessera::plan()", "`tessera plan` or --layout auto"},
               [&] { m.compile("a:2", "batch:auto"); });
}

TEST_CASE("layout errors: a conflict inside of a composite names the model's tensor", "[errors]") {
  Graph g;
  Tensor x = g.input("x", {Dim("rows", 4), Dim("cols", 4)}, DType::float32);
  Tensor same = rename(x, "cols", "others");
  Tensor y =
      softmax(einsum({x, same}, {Dim("cols", 4), Dim("others", 4)}), "cols").named("weights");
  expect_usage({"both claim mesh axis 'a'", "errors_test.cpp:"}, [&] {
    explain(g, {Mesh::parse("a:2"), Layout::parse("cols,others:a"), {{"run", {y}, false}}});
  });
}

TEST_CASE("layout errors: grammar", "[errors]") {
  expect_usage({"layout clause 'batch'", "dim 'batch' has no axes", "batch:-"},
               [] { Layout::parse("batch"); });
  expect_usage({"dim 'batch' has no axes"}, [] { Layout::parse("batch:"); });
  expect_usage({"expected a dim name at ':data'"}, [] { Layout::parse(":data"); });
  expect_usage({"'a+' is not a list of axes joined by '+'"}, [] { Layout::parse("batch:a+"); });
  expect_usage({"scope glob has no closing '/'"}, [] { Layout::parse("@/x batch:a"); });
  expect_usage({"unknown purpose '@parms'", "did you mean 'params'?"},
               [] { Layout::parse("@parms batch:a"); });
  expect_usage({"'@' begins a clause, but stands in '@state'", "put ';' before it"},
               [] { Layout::parse("batch:a @state ff:a"); });
  expect_usage({"layout clause 'length:a*x': 'a*x' is not a split", "'*2' gives each rank two"},
               [] { Layout::parse("length:a*x"); });
  expect_usage({"'-*2' is not a split"}, [] { Layout::parse("length:-*2"); });
  expect_usage({"layout clause 'length:a*2+b': '*' stands behind the last axis",
                "'a*2+b' has an axis behind it; write for example 'a+b*2'"},
               [] { Layout::parse("length:a*2+b"); });
  expect_usage({"layout clause '@params length:a*2': 'a*2' deals the work of ops",
                "in a clause without '@'"},
               [] { Layout::parse("@params length:a*2"); });
}

TEST_CASE("auto alone is *:auto, and a Session is given axes", "[errors]") {
  CHECK(Layout::parse("auto").to_string() == "*:auto");
  CHECK(Layout::parse("batch:a; auto").rules().at(1).automatic);
  expect_usage({"dim 'auto' has no axes"}, [] { Layout::parse("@params auto"); });
  const Small m;
  Cluster ranks = Cluster::threads(2);
  expect_error(ErrorKind::unsupported,
               {"layout rule '*:auto'", "a Session is given axes", "plan()"},
               [&] { Session(m.g, ranks, m.options("data:2", "auto")); });
}

TEST_CASE("a rule for a tensor's name says how names are written", "[errors]") {
  Graph g;
  Scope block(g, "gpt");
  Tensor y = sum_all(g.parameter("up", {Dim("ff", 4)}, nn::ones())).named("y");
  Cluster ranks = Cluster::threads(2);
  const auto session = [&](const char* layout) {
    Session(g, ranks, {Mesh::parse("a:2"), Layout::parse(layout), {{"f", {y}, false}}});
  };
  expect_usage({"layout rule 'gpt:a': no tensor has a dim 'gpt'", "dots separate them",
                "write @/NAME/ dim:axis"},
               [&] { session("gpt.up:a"); });
  session("@/gpt.up/ ff:a");
}

TEST_CASE("mesh errors", "[errors]") {
  expect_usage({"'data' is not 'axis:size'", "data:2;model:4"}, [] { Mesh::parse("data"); });
  expect_usage({"':2' is not 'axis:size'"}, [] { Mesh::parse(":2"); });
  expect_usage({"size of axis 'data' is 'two'", "not a whole number"},
               [] { Mesh::parse("data:two"); });
  expect_usage({"size of axis 'data' is '2x'"}, [] { Mesh::parse("data:2x"); });
  expect_usage({"size of axis 'data' is '99999999999', which is too large; an axis has 1 to"},
               [] { Mesh::parse("data:99999999999"); });
  expect_usage({"size of axis 'data' is '-99999999999', which is too small"},
               [] { Mesh::parse("data:-99999999999"); });
  expect_usage({"mesh axis 'data' has size 0", "at least 1"}, [] { Mesh::parse("data:0"); });
  expect_usage({"mesh axis 'data' has size -2"}, [] { Mesh::parse("data:-2"); });
  expect_usage({"mesh axis 'data' is named twice"}, [] { Mesh::parse("data:2;data:2"); });
  expect_usage({"too many ranks"}, [] { Mesh::parse("a:65536;b:65536"); });
}

TEST_CASE("a mesh of another size than the cluster", "[errors]") {
  const Small m;
  Cluster ranks = Cluster::threads(2);
  expect_usage({"mesh 'data:2;model:2' has 4 ranks but there are 2", "product",
                "take a mesh such as \"data:2\", or start 4 ranks"},
               [&] { Session(m.g, ranks, m.options("data:2;model:2", "")); });
  expect_usage({"a cluster of 0 ranks"}, [] { Cluster::threads(0); });
}

TEST_CASE("feed, fetch, assign and run: wrong names", "[errors]") {
  const Small m;
  Cluster ranks = Cluster::threads(2);
  Session s(m.g, ranks, m.options("data:2", "batch:data"));
  const Array x = filled({"batch", "hidden"}, {8, 6}, 1);
  expect_usage({"no input 'xs'", "did you mean 'x'?"}, [&] { s.feed("xs", x); });
  expect_usage({"no function 'trian'", "did you mean 'train'?"}, [&] { s.run("trian"); });
  expect_usage({"no output of the last run, parameter, state or input 'los'"},
               [&] { s.fetch("los"); });
  expect_usage({"function 'train' reads the input 'x', which has no value yet", "feed()"},
               [&] { s.run("train"); });
  s.feed("x", x);
  s.run("train");
  expect_usage({"'los'", "did you mean 'loss'?"}, [&] { s.fetch("los"); });
  expect_usage({"no parameter or state 'v'", "known: w"}, [&] { s.assign("v", x); });
  expect_usage({"'los'", "did you mean 'loss'?"}, [&] { s.slices("los"); });
  expect_usage({"'w' has 24 elements", "fetch_scalar()"}, [&] { s.fetch_scalar("w"); });
  s.run("train");  // usage errors leave the session usable
}

TEST_CASE("errors of a Session name the method and the caller's line", "[errors]") {
  const Small m;
  Cluster ranks = Cluster::threads(2);
  const auto message_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto here = [](int line) { return " (errors_test.cpp:" + std::to_string(line) + ")"; };
  int line = __LINE__ + 1;
  std::string text = message_of([&] { Session(m.g, ranks, m.options("data:4", "")); });
  CHECK(text.starts_with("[Session] mesh 'data:4' has 4 ranks but there are 2"));
  CHECK(text.ends_with(here(line)));
  line = __LINE__ + 1;
  text = message_of([&] { Session(m.g, ranks, m.options("data:2", "batch:dta")); });
  CHECK(text.starts_with("[Session] "));
  CHECK(text.ends_with(here(line)));
  // A message that names a line of the model keeps it, and gets no second one.
  text = message_of([&] { Session(m.g, ranks, m.options("data:2", "batch,hidden:data")); });
  CHECK(text.find("(errors_test.cpp:") == text.rfind("(errors_test.cpp:"));
  // Made by the C++ library, a Session has no line of the user's.
  text = message_of([&] { std::make_unique<Session>(m.g, ranks, m.options("data:4", "")); });
  CHECK(text.find("unique_ptr") == text.npos);

  Session s(m.g, ranks, m.options("data:2", "batch:data"));
  const auto names = [&](const std::string& method, int at, const std::function<void()>& work) {
    const std::string said = message_of(work);
    INFO(said);
    CHECK(said.starts_with("[" + method + "] "));
    CHECK(said.ends_with(here(at)));
  };
  const Array x = filled({"batch", "hidden"}, {8, 6}, 1);
  names("feed", __LINE__, [&] { s.feed("xs", x); });
  names("feed", __LINE__, [&] { s.feed("x", filled({"batch", "hidden"}, {8, 5}, 1)); });
  names("feed_slices", __LINE__, [&] { s.feed_slices("xs", [](const Slice&) {}); });
  names("run", __LINE__, [&] { s.run("trian"); });
  names("run", __LINE__, [&] { s.run("train"); });  // x was not fed
  names("enqueue", __LINE__, [&] { s.enqueue("trian"); });
  names("fetch", __LINE__, [&] { s.fetch("los"); });
  names("fetch_scalar", __LINE__, [&] { s.fetch_scalar("w"); });
  names("slices", __LINE__, [&] { s.slices("los"); });
  names("shape_of", __LINE__, [&] { s.shape_of("los"); });
  names("assign", __LINE__, [&] { s.assign("v", x); });
  names("assign_slices", __LINE__, [&] { s.assign_slices("v", [](const Slice&) {}); });
  names("set_size", __LINE__, [&] { s.set_size("batch", 4); });
  names("set_step", __LINE__, [&] { s.set_step(-1); });
  names("copy_from", __LINE__, [&] { s.copy_from(s, "v"); });
}

TEST_CASE("updates that no function stores are an error, unless that is said", "[errors]") {
  const Small m;
  const auto compile = [&](const std::vector<FunctionSpec>& functions) {
    explain(m.g, {Mesh::parse("data:1"), {}, functions});
  };
  expect_usage({"no function stores the model's 2 updates (that of 'w', errors_test.cpp:",
                "write {\"train\", {...}, true} to train", "or false there"},
               [&] {
                 compile({{"train", {m.loss}}});
               });
  expect_usage({"write {\"train\", "}, [&] {
    compile({{"eval", {m.loss}, false}, {"train", {m.loss}}});
  });
  compile({{"eval", {m.loss}, false}});
  compile({{"eval", {m.loss}}, {"train", {m.loss}, true}});
  Graph g;  // nothing to store
  explain(g, {Mesh::parse("data:1"), {}, {{"run", {sum_all(constant(g, 1.0))}}}});
}

TEST_CASE("feed and assign: wrong arrays", "[errors]") {
  const Small m;
  Cluster ranks = Cluster::threads(2);
  Session s(m.g, ranks, m.options("data:2", "batch:data"));
  expect_usage({"'x' has the sizes [8, 6] (dims batch, hidden)", "[8, 5]"}, [&] {
    s.feed("x", filled({"batch", "hidden"}, {8, 5}, 1));
  });
  expect_usage({"'x' is float32 but the array is int32"}, [&] {
    s.feed("x", Array(DType::int32, {"batch", "hidden"}, {8, 6}));
  });
  expect_usage({"'w' has the sizes [6, 4]"}, [&] { s.assign("w", filled({}, {4, 6}, 1)); });
  Array torn = filled({"batch", "hidden"}, {8, 6}, 1);
  torn.bytes.resize(5);
  expect_usage({"'x'", "5 bytes"}, [&] { s.feed("x", torn); });
  expect_usage({"[set_size] the program has no bounded dim 'batch'",
                "its dim 'batch' has the fixed "
                "size 8",
                "Dim::bounded(\"batch\", 8)"},
               [&] { s.set_size("batch", 4); });
}

TEST_CASE("a time-out is a number of seconds", "[errors]") {
  Cluster ranks = Cluster::threads(1);
  for (const double seconds : {0.0, -1.0, double(INFINITY)})
    expect_usage({"[set_timeout] a time-out of ", "a positive, finite number of seconds", "86400"},
                 [&] { ranks.set_timeout(seconds); });
}

TEST_CASE("set_size outside of the bound", "[errors]") {
  Graph g;
  Tensor x = g.input("x", {Dim::bounded("batch", 8)}, DType::float32);
  Tensor y = sum_all(x).named("y");
  Cluster ranks = Cluster::threads(2);
  Session s(g, ranks, {Mesh::parse("data:2"), Layout::parse("batch:data"), {{"run", {y}, false}}});
  expect_usage({"dim 'batch' cannot have size 9", "1 .. 8"}, [&] { s.set_size("batch", 9); });
  expect_usage({"dim 'batch' cannot have size 0"}, [&] { s.set_size("batch", 0); });
  expect_usage({"no bounded dim 'bath'", "did you mean 'batch'?"}, [&] { s.set_size("bath", 3); });
  s.set_size("batch", 3);
  expect_usage({"'x' has the sizes [3]", "[8]"}, [&] { s.feed("x", filled({"batch"}, {8}, 1)); });
  s.feed("x", filled({"batch"}, {3}, 1));
  s.run("run");
  CHECK(s.fetch_scalar("y") == 3);
}

TEST_CASE("an index out of range is reported with node and index", "[errors]") {
  for (const std::string layout : {"", "items:a", "vocab:a"}) {
    Graph g;
    Tensor table = g.parameter("table", {Dim("vocab", 10), Dim("d", 3)}, nn::ones());
    Tensor ids = g.input("ids", {Dim("items", 4)}, DType::int32);
    Tensor y = sum_all(gather(table, ids, "vocab").named("looked_up")).named("y");
    Cluster ranks = Cluster::threads(2);
    Session s(g, ranks, {Mesh::parse("a:2"), Layout::parse(layout), {{"run", {y}, false}}});
    Array indices(DType::int32, {"items"}, {4});
    for (int i = 0; i < 4; ++i) indices.data<int32_t>()[i] = i == 2 ? 10 : i;
    s.feed("ids", indices);
    expect_usage({"gather", "10", "errors_test.cpp:"}, [&] { s.run("run"); });
  }
}

TEST_CASE("a label out of range is reported", "[errors]") {
  Graph g;
  Dim batch("batch", 4), classes("classes", 3);
  Tensor logits = g.input("logits", {batch, classes}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes")).named("loss");
  Cluster ranks = Cluster::threads(2);
  Session s(g, ranks, {Mesh::parse("a:2"), Layout::parse("batch:a"), {{"run", {loss}, false}}});
  s.feed("logits", filled({"batch", "classes"}, {4, 3}, 0));
  Array bad(DType::int32, {"batch"}, {4});
  bad.data<int32_t>()[3] = 3;
  s.feed("labels", bad);
  expect_usage({"cross_entropy", "3", "errors_test.cpp:"}, [&] { s.run("run"); });
}

TEST_CASE("a result that is not finite stores nothing and is named", "[errors]") {
  Graph g;
  Dim batch("batch", 8), hidden("hidden", 6);
  Tensor x = g.input("x", {batch, hidden}, DType::float32);
  Tensor w = g.parameter("w", {hidden}, nn::ones());
  Tensor inner = log(einsum({x, w}, {batch}));
  Tensor loss = mean_all(inner).named("loss");
  minimize(loss, constant(g, 0.1), sgd());
  CompileOptions options{
      Mesh::parse("a:2"), Layout::parse("batch:a"), {{"train", {loss}, true}}, 0, 1, {"loss"}, {}};
  Cluster ranks = Cluster::threads(2);
  Session s(g, ranks, options);
  s.feed("x", filled({"batch", "hidden"}, {8, 6}, 1));
  s.run("train");
  const Array before = s.fetch("w");
  s.feed("x", filled({"batch", "hidden"}, {8, 6}, -1));
  expect_usage({"not finite", "nothing was stored", "errors_test.cpp:"}, [&] { s.run("train"); });
  const std::vector<Slice> after = s.slices("w");
  for (const Slice& slice : after) {
    CHECK(std::memcmp(slice.data, before.bytes.data(), before.bytes.size()) == 0);
  }
}

TEST_CASE("a guard names the first result that is not finite, with its line, on any rank",
          "[errors]") {
  const Dim a("a", 4), b("b", 4);
  for (const char* layout : {"", "a:m", "b:m"}) {
    INFO(layout);
    Graph g;
    Tensor x = g.input("x", {a, b}, DType::float32), p = g.input("p", {a}, DType::float32);
    check_finite(p);  // its least index is infinite on a rank that has no element
    const int line = __LINE__ + 1;
    Tensor bad = log(x);
    Tensor fine = exp(x), padded = reduce_sum(log(p), "a");  // log(0) in the padding of a
    Tensor loss = (sum_all(reduce_max(fine, "a")) + sum_all(bad) + padded).named("loss");
    Cluster ranks = Cluster::threads(3);
    CompileOptions options{
        Mesh::parse("m:3"), Layout::parse(layout), {{"f", {loss}}}, 0, 1, {"loss"}, {}};
    Session s(g, ranks, options);
    Array values = filled({"a", "b"}, {4, 4}, 1);
    values.data<float>()[13] = -1;
    s.feed("x", values);
    s.feed("p", filled({"a"}, {4}, 1));
    expect_usage({"is the first that is not finite", fmt::format("(errors_test.cpp:{})", line)},
                 [&] { s.run("f"); });
  }
}

TEST_CASE("two dims of a parameter that claim one axis are told of the parameter", "[errors]") {
  const Dim a("a", 4), b("b", 4);
  Graph g;
  Scope scope(g, "net");
  const int line = __LINE__ + 1;
  Tensor y = nn::dense(g.input("x", {a}, DType::float32), "fc", {"a"}, {b});
  Cluster ranks = Cluster::threads(2);
  expect_usage({"tensor 'net.fc.w' [a=4, b=4]", "'a' and 'b' both claim mesh axis 'm'",
                fmt::format("(errors_test.cpp:{})", line)},
               [&] {
                 Session(g, ranks, {Mesh::parse("m:2"), Layout::parse("a:m;b:m"), {{"f", {y}}}});
               });
}

TEST_CASE("two rules for one tensor that give one axis to two of its dims are an error",
          "[errors]") {
  Graph g;
  const Dim a("a", 4), b("b", 4), c("c", 4);
  const Tensor w = g.parameter("w", {a, b}, nn::zeros()), v = g.parameter("v", {a, b}, nn::zeros());
  const Tensor y = einsum({g.input("x", {c, a}, DType::float32), w + v}, {c, b});
  Cluster ranks = Cluster::threads(2);
  const auto compile = [&](const char* layout) {
    Session(g, ranks, {Mesh::parse("m:2"), Layout::parse(layout), {{"f", {y}}}});
  };
  for (const char* layout : {"@/w/ a:m; @/w/ b:m", "@/w/ a:m b:m", "@/*/ a:m; @/w/ b:m",
                             "@/w/ b:m; @/w/ a:m; @/v/ a:m", "c:m; @/w/ b:m a:m"}) {
    INFO(layout);
    expect_usage({"tensor 'w' [a=4, b=4]", "both claim mesh axis 'm'", "@/w/"},
                 [&] { compile(layout); });
  }
  compile("@/w/ a:m; @/v/ b:m");
  compile("b:m; @/w/ a:m");  // a scoped rule comes before a global one
}

TEST_CASE("configuration errors", "[errors]") {
  Config c({{"model.layers", "4", ""},
            {"model.rate", "0.5", ""},
            {"train.rate", "1", ""},
            {"train.lr", "1e-3", ""},
            {"train.tied", "false", ""}});
  expect_usage({"unknown key 'layer'", "did you mean 'layers'?"}, [&] { c.set("layer", "2"); });
  expect_usage({"unknown key 'train.le'", "did you mean 'train.lr'?"},
               [&] { c.set("train.le", "2"); });
  expect_usage({"'rate' is ambiguous", "model.rate, train.rate"}, [&] { c.set("rate", "2"); });
  c.set("layers", "4.5");
  expect_usage({"'model.layers' is '4.5'", "not a whole number"},
               [&] { c.integer("model.layers"); });
  c.set("lr", "fast");
  expect_usage({"'train.lr' is 'fast'", "not a number"}, [&] { c.number("train.lr"); });
  c.set("tied", "yes");
  expect_usage({"'train.tied' is 'yes'", "not true or false"}, [&] { c.flag("train.tied"); });
  expect_usage({"f.toml", "'steps' stands outside a table"},
               [&] { c.load_toml_text("steps = 3", "f.toml"); });
  expect_error(ErrorKind::io, {"f.toml", "line 2"},
               [&] { c.load_toml_text("[train]\nlr = ", "f.toml"); });
  expect_usage({"f.toml: key 'train.lr' is neither text, number nor true/false", "(line 2)"},
               [&] { c.load_toml_text("[train]\nlr = [1]", "f.toml"); });
  expect_usage({"f.toml: unknown key 'train.le'", "did you mean 'train.lr'?", "(line 3)"},
               [&] { c.load_toml_text("[train]\nlr = 1\nle = 2", "f.toml"); });
  expect_usage({"f.toml: unknown table [trian]; did you mean 'train'?", "(line 1)"},
               [&] { c.load_toml_text("[trian]\nlr = 1", "f.toml"); });
  c.load_toml_text("\n[train]\nlr = 'slow'\ntied = 3", "f.toml");
  expect_usage({"f.toml: key 'lr' is 'slow', which is not a number (line 3)"},
               [&] { c.number("lr"); });
  expect_usage({"f.toml: key 'tied' is '3'", "(line 4)"}, [&] { c.flag("tied"); });
  c.set("lr", "fast");
  std::string message;
  try {
    c.number("train.lr");
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(message == "key 'train.lr' is 'fast', which is not a number");
  expect_error(ErrorKind::io, {"cannot open configuration '/no/such.toml'"},
               [&] { c.load_toml("/no/such.toml"); });
}

TEST_CASE("names of schedules and dtypes", "[errors]") {
  expect_usage({"unknown schedule 'cosin'", "did you mean 'cosine'?"}, [] {
    Schedule{"cosin", 1, 0, 10, 0.1}.at(3);
  });
  expect_usage({"[Schedule] cooldown 1.5; it is a share, from 0 to 1"},
               [] { Schedule{.cooldown = 1.5}.at(3); });
  expect_usage({"[Schedule] start -1; it is a share"}, [] { Schedule{.start = -1}.at(3); });
  expect_usage({"[Schedule] warmup 0, flat -2 and steps 1; the first two are not negative"},
               [] { Schedule{.flat = -2}.at(3); });
  expect_usage({"unknown dtype 'float31'", "did you mean 'float32'?"},
               [] { parse_dtype("float31"); });
  expect_usage({"unknown dtype 'q'", "known: "}, [] { parse_dtype("q"); });
}

TEST_CASE("functions have names of their own", "[errors]") {
  const Small m;
  const Mesh mesh = Mesh::parse("data:1");
  expect_usage({"two functions are called 'f'; they are run by name"}, [&] {
    explain(m.g, {mesh, {}, {{"f", {m.loss}, false}, {"f", {m.y}, false}}});
  });
  expect_usage({"a function is called 'init'", "rename it"}, [&] {
    explain(m.g, {mesh, {}, {{"init", {m.loss}, false}}});
  });
  Graph g;
  Tensor w = g.parameter("w", {Dim("d", 3)}, nn::ones());
  Tensor loss = sum_all(w * w);
  expect_usage({"the function 'train' is to update, and the model has no update", "minimize()"},
               [&] {
                 explain(g, {mesh, {}, {{"train", {loss}, true}}});
               });
}

TEST_CASE("an input that no function reads is checked and ignored", "[errors]") {
  Graph g;
  Tensor x = g.input("x", {Dim("a", 4)}, DType::float32);
  g.input("unread", {Dim::bounded("n", 8), Dim("a", 4)}, DType::int32);
  Tensor size = dim_size(g, Dim::bounded("n", 8)).named("size");
  Tensor y = sum_all(x).named("y");
  Cluster ranks = Cluster::threads(2);
  Session s(g, ranks, {Mesh::parse("d:2"), Layout::parse("a:d"), {{"run", {y, size}, false}}});
  s.feed("unread", Array(DType::int32, {"n", "a"}, {8, 4}));
  s.set_size("n", 3);
  CHECK(s.shape_of("unread").sizes == std::vector<int64_t>{3, 4});
  s.feed("unread", Array(DType::int32, {"n", "a"}, {3, 4}));
  expect_usage({"'unread' has the sizes [3, 4] (dims n, a) but the array has [8, 4]"}, [&] {
    s.feed("unread", Array(DType::int32, {"n", "a"}, {8, 4}));
  });
  expect_usage({"'unread' is int32 but the array is float32"}, [&] {
    s.feed("unread", filled({"n", "a"}, {3, 4}, 1));
  });
  s.feed_slices("unread", [](const Slice&) { FAIL("it has no slices"); });
  s.feed("x", filled({"a"}, {4}, 1));
  s.run("run");
  CHECK(s.fetch_scalar("y") == 4);
  CHECK(s.fetch_scalar("size") == 3);
}

TEST_CASE("a stored tensor is suggested by the end of its name", "[errors]") {
  Graph g;
  Tensor w = g.parameter("layer.w", {Dim("a", 4)}, nn::ones());
  Tensor loss = sum_all(square(w)).named("loss");
  minimize(loss, constant(g, 0.1), momentum());
  Cluster ranks = Cluster::threads(1);
  Session s(g, ranks, {Mesh::parse("d:1"), {}, {{"train", {loss}, true}}});
  expect_usage({"did you mean 'optimizer.layer.w.velocity'?"},
               [&] { s.fetch("layer.w.velocity"); });
}

TEST_CASE("meshes are separated as layouts are", "[errors]") {
  for (const std::string text : {"x:2.y:3", "x:2 y:3", " x : 2 ;\n y: 3", "x:2,y :3;", "x:2;y:3"})
    CHECK(Mesh::parse(text).to_string() == "x:2;y:3");
  CHECK(Mesh::parse("model:8@nvlink . d:2").to_string() == "model:8@nvlink;d:2");
  expect_usage({"the size of axis 'x' is ''"}, [] { Mesh::parse("x: "); });
  expect_usage({"':2' is not 'axis:size'"}, [] { Mesh::parse(" : 2"); });
}

TEST_CASE("a cluster takes the communicator of this process, or those of all ranks in order",
          "[errors]") {
  const auto adopt = [](std::vector<int> chosen, bool missing = false) {
    test::CountedWorld world(3);
    auto all = world.communicators();
    std::vector<std::unique_ptr<Communicator>> given;
    for (const int r : chosen) given.push_back(std::move(all[r]));
    if (missing) given.emplace_back();
    Cluster::adopt(std::move(given));
  };
  const std::string remedy = "give the one of this process, or those of all ranks in order";
  expect_usage({"[adopt] 0 communicator(s)", remedy}, [&] { adopt({}); });
  expect_usage({"[adopt] 1 communicator(s)", remedy}, [&] { adopt({}, true); });
  expect_usage({"[adopt] 2 communicator(s) of a group of 3 rank(s)", remedy}, [&] {
    adopt({0, 1});
  });
  expect_usage({"[adopt] 3 communicator(s) of a group of 3 rank(s)", "not in order", remedy}, [&] {
    adopt({0, 2, 1});
  });
  CHECK_NOTHROW(adopt({1}));
  CHECK_NOTHROW(adopt({0, 1, 2}));
}

}  // namespace TESSERA_FILE
