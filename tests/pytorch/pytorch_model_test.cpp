// Exported modules against PyTorch: fixtures that make_fixtures.py wrote.
#include "tessera/pytorch_model.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "base/files.h"
#include "pytorch/aten.h"
#include "pytorch/comparison.h"
#include "pytorch/weights.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/io_folder.h"
#include "tessera/safetensors.h"
#include "tessera/session.h"

namespace tessera {
namespace TESSERA_FILE {

const std::string kFolder = std::string(TESSERA_SOURCE_DIR) + "/tests/pytorch/data/";

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const std::string& file : names_in(kFolder))
    if (file.ends_with(".pt2")) names.push_back(file.substr(0, file.size() - 4));
  return names;
}

TEST_CASE("exported modules give the values and gradients of PyTorch in every layout",
          "[pytorch_model]") {
  for (const std::string& name : fixtures()) {
    const PytorchModel model(kFolder + name + ".pt2");
    for (const test::MeshAndLayout& where : test::layouts_of(model)) {
      INFO(name << " on " << where.mesh << " in '" << where.layout << "'");
      const test::Difference d = test::compare_with_pytorch(model, kFolder + name + ".safetensors",
                                                            where.mesh, where.layout);
      INFO(d.worst);
      CHECK(d.outputs > 0);
      CHECK(d.output < 1e-5);
      CHECK(d.gradient < 1e-5);
    }
  }
}

TEST_CASE("layers of an exported module that are alike are a loop with the same values",
          "[pytorch_model]") {
  const PytorchModel model(kFolder + "gpt.pt2");
  Graph graph;
  model.build(graph, {.scan = true});
  CHECK(graph.find("blocks.up.weight").shape().to_string() == "[layers=2, ff=24, d_model=16]");
  for (const auto& [mesh, layout] : std::vector<std::pair<std::string, std::string>>{
           {"a:1", ""},
           {"data:2;model:2", "batch:data;heads,ff,vocab:model"},
           {"a:2", "@params layers:a"}}) {
    INFO(layout);
    const test::Difference d =
        test::compare_with_pytorch(model, kFolder + "gpt.safetensors", mesh, layout, true);
    CHECK(d.gradients == 37);  // of 29 parameters, of which 4 are three parts
    CHECK(d.output < 1e-5);
    CHECK(d.gradient < 1e-5);
  }
}

TEST_CASE("layers of two kinds in turn are a loop over both", "[pytorch_model]") {
  const PytorchModel model(kFolder + "periods.pt2");
  Graph graph;
  model.build(graph, {.scan = true});
  for (const char* kind : {"layers.from0by2", "layers.from1by2"})
    CHECK(graph.find(std::string(kind) + ".gate.weight").shape().to_string() ==
          "[layers=2, experts=3, d_model=8]");
  CHECK(graph.find("first.weight").shape().rank() == 2);  // stands before it
  CHECK(model.layer_scope() == "layers");
  for (const auto& [mesh, layout] : std::vector<std::pair<std::string, std::string>>{
           {"a:1", ""}, {"data:2;model:2", "batch:data;heads,experts:model"}}) {
    INFO(layout);
    const test::Difference d =
        test::compare_with_pytorch(model, kFolder + "periods.safetensors", mesh, layout, true);
    CHECK(d.gradients == 34);  // of 22 parameters, of which 4 are three parts and 4 are two
    CHECK(d.output < 1e-5);
    CHECK(d.gradient < 1e-5);
  }
}

std::map<std::string, int> nodes_of(const std::string& name) {
  std::map<std::string, int> count;
  const pytorch::Archive archive(kFolder + name + ".pt2");
  for (const pytorch::Node& node : pytorch::read_program(archive).graph.nodes) ++count[node.target];
  return count;
}

TEST_CASE("experts that a program writes out are the routed layer", "[pytorch_model]") {
  // By sorted rows and grouped products; by matrices that each row looks up.
  CHECK(nodes_of("mixtral")["tessera.experts"] == 1);
  CHECK(nodes_of("periods")["tessera.experts"] == 4);
  for (const char* plain : {"aten.sort.default", "aten.histc.default", "aten.index_add.default",
                            "aten.bmm.default", "transformers.grouped_mm_fallback.default"}) {
    CHECK(nodes_of("mixtral")[plain] == 0);
    CHECK(nodes_of("periods")[plain] == 0);
  }
  const PytorchModel model(kFolder + "mixtral.pt2");
  for (const std::string& op : model.plain_ops())
    CHECK(op.find("of a router") == std::string::npos);
  // Tokens stay where they are, or their rows travel to the experts.
  for (const char* layout : {"experts:a", "batch,experts:a"}) {
    INFO(layout);
    const test::Difference d =
        test::compare_with_pytorch(model, kFolder + "mixtral.safetensors", "a:2", layout);
    CHECK(d.output < 1e-5);
    CHECK(d.gradient < 1e-5);
  }
}

TEST_CASE("rows that a loop over experts takes are computed of all tokens", "[pytorch_model]") {
  CHECK(nodes_of("rows")["aten.where.default"] == 0);
  CHECK(nodes_of("rows")["tessera.chosen_gates"] == 6);
  const std::vector<std::string> plain = PytorchModel(kFolder + "rows.pt2").plain_ops();
  const auto is_noted = [](const std::string& op) {
    return op.starts_with("tessera.chosen_gates (make_fixtures.py:") &&
           op.ends_with("of a router, whose experts compute all tokens (3 times)");
  };
  CHECK(std::count_if(plain.begin(), plain.end(), is_noted) == 2);
}

TEST_CASE("core ATen is read as what it was made of", "[pytorch_model]") {
  std::map<std::string, int> whole = nodes_of("gpt"), core = nodes_of("core_gpt");
  for (const char* target : {"aten.linear.default", "aten.scaled_dot_product_attention.default"})
    CHECK(core[target] == whole[target]);
  CHECK(core["aten.bmm.default"] + core["aten.addmm.default"] == 0);
}

/// "name=size" of the dims, sorted by name.
std::string names_of(const PytorchModel& model) {
  std::map<std::string, int64_t> sizes;
  for (const PytorchModel::FoundDim& d : model.dims()) sizes[d.name] = d.size;
  std::string text;
  for (const auto& [name, size] : sizes)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, size);
  return text;
}

TEST_CASE("dims of exported modules have the names of the parts that they play",
          "[pytorch_model]") {
  const std::map<std::string, std::string> expected = {
      {"gpt", "batch=2 d_head=4 d_model=16 ff=24 heads=4 length=8 positions=8 vocab=30"},
      {"core_gpt", "batch=2 d_head=4 d_model=16 ff=24 heads=4 length=8 positions=8 vocab=30"},
      {"mixtral",
       "batch=2 d_head=4 d_model=16 experts=4 ff=24 heads=2 heads_per_key=2 length=8 vocab=30"},
      {"gpt2", "batch=2 d_head=4 d_model=16 ff=64 heads=4 length=8 positions=16 vocab=30"},
      {"llama", "batch=2 d_head=4 d_model=16 ff=24 heads=2 heads_per_key=2 length=8 vocab=30"},
      {"fused",
       "batch=2 d_head=4 d_model=16 features=6 ff=24 heads=4 heads_2=2 heads_per_key=2 joint=3 "
       "length=8 q_bias=16 v_bias=16 whole=32"},
      {"written", "batch=2 d_head=4 d_model=16 heads=4 length=8 vocab=30"},
      {"bert",
       "batch=2 classes=16 d_head=4 d_model=16 ff=24 heads=4 length=8 positions=16 "
       "token_types=2 vocab=30"},
      {"t5",
       "batch=2 d_head=4 d_model=16 decoder_length=6 ff=24 heads=4 length=8 "
       "relative_attention_bias=32 "
       "relative_attention_bias_2=32 vocab=30"},
      {"vit",
       "batch=2 channels=3 classes=16 d_head=4 d_model=16 ff=24 filter_height=8 filter_width=8 "
       "heads=4 height=16 "
       "positions=5 width=16"}};
  for (const auto& [name, names] : expected)
    CHECK(names_of(PytorchModel(kFolder + name + ".pt2")) == names);
}

TEST_CASE("layers that a program writes out are found again", "[pytorch_model]") {
  std::map<std::string, int> count = nodes_of("written");
  CHECK(count["aten.scaled_dot_product_attention.default"] == 5);
  CHECK(count["aten.rms_norm.default"] == 5);
  CHECK(count["tessera.turned_halves"] == 10);
  for (const char* plain :
       {"aten.softmax.int", "aten.rsqrt.default", "aten.mean.dim", "aten.masked_fill.Scalar"})
    CHECK(count[plain] == 0);
}

TEST_CASE("functions of one value that a program writes out are known by their values",
          "[pytorch_model]") {
  std::map<std::string, int> count;
  const pytorch::Archive archive(kFolder + "fused.pt2");
  for (const pytorch::Node& node : pytorch::read_program(archive).graph.nodes) {
    const pytorch::Argument* kind = node.find("approximate");
    ++count[node.target + (kind ? " " + std::get<std::string>(*kind) : "")];
  }
  CHECK(count["aten.gelu.default tanh"] == 2);
  CHECK(count["aten.gelu.default none"] == 1);
  CHECK(count["aten.silu.default"] == 2);
  CHECK(count["aten.softplus.default"] == 1);
  CHECK(count["aten.sigmoid.default"] == 2);  // one of them is of 1.702 x
  CHECK(count["aten.exp.default"] == 0);
  CHECK(count["aten.erf.default"] == 0);
}

TEST_CASE("ops of layers in forms that are not recognized are named with the user's line",
          "[pytorch_model]") {
  const std::vector<std::string> plain = PytorchModel(kFolder + "plain.pt2").plain_ops();
  const auto names = [&](const std::string& op, const std::string& module, const std::string& end) {
    return std::count_if(plain.begin(), plain.end(), [&](const std::string& line) {
      return line.starts_with(op + module + " (make_fixtures.py:") && line.ends_with(end);
    });
  };
  INFO(fmt::format("{}", fmt::join(plain, "\n")));
  CHECK(names("aten.softmax.int", " in blocks.*", "), which may be of attention (2 times)") == 1);
  CHECK(names("aten.matmul.default", " in blocks.*", "), which may be of attention (2 times)") ==
        2);
  CHECK(names("aten.rsqrt.default", " in blocks.*", "), which may be of a norm (2 times)") == 1);
  CHECK(names("aten.erf.default", "", "), which may be of an activation") == 1);
  CHECK(plain.size() == 5);  // and no softmax of constants
  CHECK(PytorchModel(kFolder + "written.pt2").plain_ops() == std::vector<std::string>());
}

TEST_CASE("products that are read in parts are products of parts", "[pytorch_model]") {
  const PytorchModel model(kFolder + "fused.pt2");
  Graph graph;
  model.build(graph);
  std::map<std::string, std::string> shapes;
  for (const Tensor& parameter : graph.parameters())
    if (parameter.name().find("weight") != std::string::npos)
      shapes[parameter.name()] = parameter.shape().to_string();
  const auto has = [&](const std::string& whole, const std::vector<std::string>& expected) {
    INFO(whole);
    CHECK(shapes.count(whole) == 0);
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(shapes[fmt::format("{}.part{}", whole, i)] == expected[i]);
    CHECK(shapes.count(fmt::format("{}.part{}", whole, expected.size())) == 0);
  };
  const std::vector<std::string> heads(3, "[heads=4, d_head=4, d_model=16]");
  for (const char* layer : {"qkv.0", "qkv.1", "qkv.2"}) has(layer + std::string(".weight"), heads);
  has("qkv.3.weight", {"[heads_2=2, heads_per_key=2, d_head=4, d_model=16]",
                       "[heads_2=2, d_head=4, d_model=16]", "[heads_2=2, d_head=4, d_model=16]"});
  has("conv1d_weight", std::vector<std::string>(3, "[d_model=16, heads=4, d_head=4]"));
  has("attention.in_proj_weight", heads);
  has("gate_up.weight", {"[ff=24, d_model=16]", "[ff=24, d_model=16]"});
  CHECK(shapes.count("whole.weight") == 1);
}

TEST_CASE("a session has the state_dict, of layers in a loop and of parts too", "[pytorch_model]") {
  for (const char* name : {"gpt", "gpt2", "fused", "image"}) {
    const PytorchModel model(kFolder + name + std::string(".pt2"));
    Graph graph;
    const Tensor x = model.build(graph, {.scan = true}).outputs.begin()->second;
    Cluster cluster = Cluster::threads(2);
    CompileOptions options;
    options.mesh = Mesh::parse("a:2");
    options.layout = Layout::parse("d_model?:a");
    options.functions = {{"all", {sum_all(x)}, false}};
    Session session(graph, cluster, options);
    model.load(session);
    const pytorch::Archive archive(model.path());
    const pytorch::ExportedProgram program = pytorch::read_program(archive);
    int fetched = 0;
    for (const pytorch::InputSpec& input : program.state) {
      const std::optional<Array> ours = model.fetch(session, input.name);
      if (!ours) continue;
      INFO(name << ' ' << input.name);
      ++fetched;
      CHECK(ours->bytes ==
            pytorch::read_array(archive, input.name, program.stored.at(input.name)).bytes);
    }
    CHECK(fetched >= std::count_if(program.state.begin(), program.state.end(), [](const auto& i) {
            return i.kind == pytorch::InputSpec::Kind::parameter;
          }));
  }
}

TEST_CASE("a module on the meta device has names and no values", "[pytorch_model]") {
  const PytorchModel model(kFolder + "bad/no_values.pt2");
  CHECK_FALSE(model.has_weights());
  CHECK(names_of(model) == names_of(PytorchModel(kFolder + "gpt.pt2")));
  Graph graph;
  model.build(graph);
  CHECK(graph.find("blocks.1.up.weight").shape().to_string() == "[ff=24, d_model=16]");
}

TEST_CASE("an op of the user's is mapped by its name", "[pytorch_model]") {
  const std::string path = kFolder + "bad/own_op.pt2";
  PytorchOptions options;
  options.ops["tessera_tests::own"] = {
      "", [](const std::vector<Tensor>& x, const auto&) { return x[0] * 2.0; }};
  Graph graph;
  const Shape rows({Dim("rows", 3), Dim("columns", 4)});
  const PytorchModel::Built built =
      PytorchModel(path, options)
          .build(graph, {.inputs = {{"x", graph.input("given", rows, DType::float32)}}});
  CompileOptions compiled;
  const Tensor y = built.outputs.at("output");
  compiled.functions = {{"all", {y}, false}};
  Cluster cluster = Cluster::threads(1);
  Session session(graph, cluster, compiled);
  PytorchModel(path, options).load(session);
  session.feed("given", Array::of<float>(rows, std::vector<float>(12, 1.5f)));
  session.run("all");
  CHECK(session.fetch(y.name()).at(11) == Approx(3));

  const auto refused = [&](const std::string& axes, const std::function<Tensor(Tensor)>& f,
                           const std::vector<std::string>& words) {
    options.ops["tessera_tests::own"] = {
        axes, [f](const std::vector<Tensor>& x, const auto&) { return f(x[0]); }};
    test::expect_error(ErrorKind::unsupported, words, [&] {
      Graph other;
      PytorchModel(path, options).build(other);
    });
  };
  refused("...,...->...", [](Tensor x) { return x; },
          {"with the axes '...,...->...'", "1 tensors"});
  refused("...->...", [](Tensor x) { return rename(x, x.shape()[0].name, "z"); },
          {"mapped to an op with the dims [z=3", "its axes '...->...'"});
  test::expect_usage({"input 'x' has the sizes [3, 4]", "[rows=3]"}, [&] {
    Graph other;
    options.ops["tessera_tests::own"].build = [](const auto& x, const auto&) { return x[0]; };
    PytorchModel(path, options)
        .build(other,
               {.inputs = {{"x", other.input("given", Shape({Dim("rows", 3)}), DType::float32)}}});
  });
}

TEST_CASE("a user names dims of an exported module, and wrong claims name both places",
          "[pytorch_model]") {
  const std::string path = kFolder + "gpt.pt2";
  const auto claimed = [&](const std::string& dims) {
    return names_of(PytorchModel(path, {dims, ""}));
  };
  CHECK(claimed("tokens: batch time; *.up.weight: hidden width; *.out.weight: _ heads*size") ==
        "batch=2 d_head=4 heads=4 hidden=24 positions=8 size=4 time=8 vocab=30 width=16");
  test::expect_usage({"'tokens'", "1 axes", "it has 2: [2, 8]"}, [&] { claimed("tokens: batch"); });
  test::expect_usage({"'blocks.0.up.weight'", "'d'", "'tokens.weight'", "'width'"},
                     [&] { claimed("tokens.weight: vocab width; *.up.weight: ff d"); });
  test::expect_usage({"'tokens.weight'", "16 elements", "'blocks.0.up.weight'", "24 elements"},
                     [&] { claimed("*.up.weight: size _; tokens.weight: _ size"); });
  test::expect_usage(
      {"'blocks.0.out.weight'", "axis 1 of 16 elements consists of 2", "heads*d_head"},
      [&] { claimed("*.out.weight: _ width"); });
  test::expect_usage({"no input or parameter 'token'", "did you mean 'tokens'"},
                     [&] { claimed("token: a b"); });
  test::expect_usage({"'tokens batch' are no 'value: names'"}, [&] { claimed("tokens batch"); });
}

TEST_CASE("a loss is an output or written beside the program", "[pytorch_model]") {
  const auto loss = [&](const std::string& text) {
    return PytorchModel(kFolder + "gpt.pt2", {"", text}).labels();
  };
  CHECK(loss("cross_entropy(logits, labels)") == "labels");
  CHECK(loss("cross_entropy(output, tokens, shift=1)").empty());
  test::expect_usage({"'accuracy(logits, labels)'", "known: cross_entropy, mean_squared_error"},
                     [&] { loss("accuracy(logits, labels)"); });
  test::expect_usage({"no closing bracket"}, [&] { loss("cross_entropy(logits, labels"); });
  test::expect_usage({"'y'", "no output of the program", "known: output"},
                     [&] { loss("cross_entropy(y, labels)"); });
  test::expect_usage({"needs two tensors"}, [&] { loss("cross_entropy(logits)"); });
  test::expect_usage({"a shift that it cannot have"},
                     [&] { loss("mean_squared_error(output, y, shift=1)"); });
  test::expect_usage({"no output of the program that is a scalar"}, [&] { loss("output"); });
}

TEST_CASE("the loss of the next token is that of shifted logits", "[pytorch_model]") {
  const auto value = [&](const std::string& loss) {
    const PytorchModel model(kFolder + "gpt.pt2", {"", loss});
    Graph graph;
    const Tensor total = model.build(graph).model.loss;
    Cluster cluster = Cluster::threads(1);
    CompileOptions options;
    options.functions = {{"loss", {total}, false}};
    Session session(graph, cluster, options);
    model.load(session);
    const SafetensorsReader file(kFolder + "gpt.safetensors");
    Array tokens = file.read("in.tokens");
    tokens.dims.clear();
    session.feed("tokens", tokens);
    session.run("loss");
    return session.fetch_scalar(total.name());
  };
  const SafetensorsReader file(kFolder + "gpt.safetensors");
  const Array logits = file.read("out.0"), tokens = file.read("in.tokens");
  double expected = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t l = 0; l + 1 < 8; ++l) {
      double sum = 0;
      for (int64_t v = 0; v < 30; ++v) sum += std::exp(logits.at((b * 8 + l) * 30 + v));
      const auto next = static_cast<int64_t>(tokens.at(b * 8 + l + 1));
      expected += (std::log(sum) - logits.at((b * 8 + l) * 30 + next)) / 14;
    }
  }
  CHECK(value("cross_entropy(logits, tokens, shift=1)") == Approx(expected).epsilon(1e-5));
}

TEST_CASE("an exported module is for its batch, unless that is dynamic", "[pytorch_model]") {
  const PytorchModel model(kFolder + "gpt.pt2");
  Graph graph;
  test::expect_usage({"batch of 2, not of 4", "dynamic_shapes"},
                     [&] { model.build(graph, {.batch = 4}); });
}

TEST_CASE("files that are no whole program are refused", "[pytorch_model]") {
  const auto refused = [&](ErrorKind kind, const std::string& name,
                           std::vector<std::string> words) {
    words.push_back(name + ".pt2'");
    test::expect_error(kind, words, [&] {
      const PytorchModel model(kFolder + "bad/" + name + ".pt2");
      Graph graph;
      const Tensor x = model.build(graph).outputs.begin()->second;
      Cluster cluster = Cluster::threads(1);
      CompileOptions options;
      options.functions = {{"all", {sum_all(cast(x, DType::float32))}, false}};
      Session session(graph, cluster, options);
      model.load(session);
    });
  };
  refused(ErrorKind::io, "newer_schema", {"version 9", "reads version 8"});
  refused(ErrorKind::io, "no_graph", {"at .graph_module lacks 'graph'"});
  refused(ErrorKind::io, "lost_value", {"the input 'x' is described nowhere"});
  refused(ErrorKind::io, "old_layout", {"is pickled", "PyTorch 2.9 or later"});
  refused(ErrorKind::io, "no_program", {"no entry 'models/model.json'"});
  refused(ErrorKind::io, "no_json", {"is damaged: line 1"});
  refused(ErrorKind::io, "pickled", {"'w.bias' is pickled", "can run any code"});
  refused(ErrorKind::io, "short_weight", {"'w.weight' has 1 elements"});
  refused(ErrorKind::unsupported, "other_rank",
          {"aten.linear.default in w (make_fixtures.py:", "damaged"});
  refused(ErrorKind::unsupported, "own_op",
          {"tessera_tests.own.default (make_fixtures.py:", "has no rule"});
  refused(ErrorKind::unsupported, "while_loop",
          {"higher_order.while_loop (make_fixtures.py:", "as often as the data say", "scan()"});
  refused(ErrorKind::unsupported, "complex_op",
          {"aten.sin.default (make_fixtures.py:", "complex numbers", "does not know this op"});
  refused(ErrorKind::unsupported, "data_dependent", {"(make_fixtures.py:", "depends on the data"});
  test::expect_error(ErrorKind::io, {"there is no file 'none.pt2'"},
                     [] { PytorchModel("none.pt2"); });
}

/// Opens and builds what a damaged file holds; whatever is wrong has to be an Error.
void open_damaged(const std::string& path, int& refused) {
  try {
    const PytorchModel model(path);
    Graph graph;
    model.build(graph);
  } catch (const Error& e) {
    CHECK(e.kind() != ErrorKind::internal);
    ++refused;
  }
}

TEST_CASE("truncated and flipped files give errors", "[pytorch_model]") {
  const std::string good = read_text_file("test", kFolder + "losses.pt2");
  const test::Folder folder;
  const std::string path = folder("damaged.pt2");
  int refused = 0, truncated = 0;
  for (size_t size = 0; size < good.size(); size += 61, ++truncated) {
    write_text_file(path, good.substr(0, size));
    open_damaged(path, refused);
  }
  CHECK(refused == truncated);
  std::mt19937 random(1);
  refused = 0;
  for (int i = 0; i < 150; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    write_text_file(path, bad);
    open_damaged(path, refused);
  }
  CHECK(refused > 50);
}

TEST_CASE("every row of the table of ATen ops has a fixture", "[pytorch_model]") {
  std::set<std::string> used;
  for (const std::string& name : fixtures())
    for (const pytorch::Node& node :
         pytorch::read_program(pytorch::Archive(kFolder + name + ".pt2")).graph.nodes)
      used.insert(node.target.starts_with("aten.") ? node.target.substr(5) : node.target);
  for (const auto& rows : pytorch::all_rows()) {
    for (const pytorch::Row& row : rows) {
      bool found = std::string(row.overloads).starts_with("tessera.");  // of losses
      for (const std::string& name : used)
        found = found || pytorch::find_rule(name) == row.rule ||
                pytorch::find_complex_rule(name) == row.rule;
      INFO(row.overloads);
      CHECK(found);
    }
  }
}

/// For architectures.py: TESSERA_PYTORCH_CASES is a folder of such files, TESSERA_PYTORCH_LAYOUTS
/// the most layouts of each. Prints a line for each.
TEST_CASE("random modules find a rule that takes two dims for one", "[pytorch_model]") {
  const std::string path = kFolder + "random";
  CHECK(test::confused_dims(path + ".pt2", path + ".safetensors") == "");
  const std::map<std::string, PytorchOp> weak = {
      {"aten::linear", {"...d,dd->...d", [](const auto& x, const auto&) { return x[0]; }}}};
  CHECK(test::confused_dims(path + ".pt2", path + ".safetensors", weak) ==
        "4 elements of axis 0 of p4 and of axis 1 of p1 are one");
}

TEST_CASE("modules of a folder", "[.][pytorch_cases]") {
  const char* const folder = std::getenv("TESSERA_PYTORCH_CASES");
  const char* const most = std::getenv("TESSERA_PYTORCH_LAYOUTS");
  const std::string only =
      std::getenv("TESSERA_PYTORCH_ONLY") ? std::getenv("TESSERA_PYTORCH_ONLY") : "";
  if (!folder) return;
  for (const std::string& file : names_in(folder)) {
    if (!file.ends_with(".pt2") || (!only.empty() && file != only + ".pt2")) continue;
    const std::string front = folder + ("/" + file.substr(0, file.size() - 4));
    std::string line = file.substr(0, file.size() - 4) + "\t";
    try {
      const PytorchModel model(front + ".pt2");
      const bool is_random = file.starts_with("random");
      std::vector<test::MeshAndLayout> layouts =
          is_random ? test::random_layouts(model, std::hash<std::string>()(file))
                    : test::layouts_of(model);
      const size_t kept = most ? static_cast<size_t>(std::atoi(most)) : layouts.size();
      for (size_t i = 3; kept > 3 && kept < layouts.size() && i < kept; ++i)  // some of single dims
        layouts[i] = layouts[3 + (i - 3) * (layouts.size() - 3) / (kept - 3)];
      layouts.resize(std::min(kept, layouts.size()));
      const auto compared = [&](DType dtype) {
        test::Difference all;
        for (const test::MeshAndLayout& where : layouts) {
          const test::Difference d =
              test::compare_with_pytorch(model, front + ".safetensors", where.mesh, where.layout,
                                         std::getenv("TESSERA_PYTORCH_SCAN") != nullptr, dtype);
          if (d.output > all.output || d.gradient > all.gradient)
            all.worst = d.worst + " in '" + where.layout + "'";
          all.output = std::max(all.output, d.output),
          all.gradient = std::max(all.gradient, d.gradient);
          all.outputs = d.outputs, all.gradients = d.gradients;
        }
        return all;
      };
      test::Difference all = compared(DType::float32);
      const std::string confused = test::confused_dims(front + ".pt2", front + ".safetensors");
      if (!confused.empty()) all.worst += " confused: " + confused;
      // PyTorch in float32 differs from itself in float64 by this, where a maximum has near ties.
      const SafetensorsReader expected(front + ".safetensors");
      const double noise = expected.find("noise") ? expected.read("noise").at(0) : 0;
      const double most = std::max(1e-5, 2 * noise);
      const auto is_equal = [&] {
        return all.outputs > 0 && all.output < most && all.gradient < most && confused.empty();
      };
      const bool rounds = !is_equal();  // or is it wrong? float64 tells
      if (rounds) all = compared(DType::float64);
      const bool equal = is_equal();
      line += fmt::format("{}\t{}\t{:.1e}\t{:.1e}\t{}\t{:.1e}\t{}",
                          !equal   ? "DIFFERENT"
                          : rounds ? "equal in float64"
                                   : "equal",
                          layouts.size(), all.output, all.gradient, all.gradients, noise,
                          equal ? "" : all.worst);
      std::string names;
      for (const PytorchModel::FoundDim& d : model.dims())
        names += fmt::format(" {}={}", d.name, d.size);
      line += "\t" + names;
    } catch (const std::exception& e) {
      line += std::string("error\t") + e.what();
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera
