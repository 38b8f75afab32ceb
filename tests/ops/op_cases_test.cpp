// What every row of op_cases.h must fulfil: values, gradients, and that no layout changes them.
#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"
#include "ir/body.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/op.h"

namespace tessera::test {

namespace TESSERA_FILE {

void collect_ops(const Graph& graph, std::set<std::string>& names) {
  for (const Node& node : graph.nodes()) {
    if (!names.emplace(node.op->name).second || !node.op->body) continue;
    const CallTypes types = call_types(graph, node);
    collect_ops(body_of(OpCall{*node.op, types.in, types.out, node.attrs}).graph, names);
  }
}

std::string check_round(const BuiltCase& built, DType type, size_t round,
                        const std::vector<Whole>& values) {
  const OpCase& row = built.row();
  const double tolerance = type == DType::float64 ? row.tolerance64 : row.tolerance32;
  Reference reference = built.reference(built.rounds[round]);
  const std::vector<Tensor> tensors = built.fetched();
  std::string errors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_loss =
        !built.loss().empty() && tensors[i].id() == built.loss().id();  // a sum that may cancel
    const double error =
        relative_error(values[i], reference.value(tensors[i]), is_loss ? 1.0 : 1e-30);
    if (!(error <= tolerance)) {
      errors += fmt::format("\n{} {} run {}: '{}' is off by {:.3g}", row.name, to_string(type),
                            round + 1, tensors[i].name(), error);
    }
  }
  if (row.expect) {
    const Whole expected = row.expect(built.operands(built.rounds[round]));
    const double error = relative_error(values[0], expected);
    if (!(error <= tolerance)) {
      errors += fmt::format("\n{} {} run {}: off its formula by {:.3g}", row.name, to_string(type),
                            round + 1, error);
    }
  }
  return errors;
}

std::string check_values(const OpCase& row, DType type, Clusters& clusters) {
  const BuiltCase built(row, type);
  const auto values = built.run(clusters.of(1), Mesh::parse("x:1"), "");
  std::string errors;
  for (size_t r = 0; r < values.size(); ++r) errors += check_round(built, type, r, values[r]);
  return errors;
}

/// Central differences of the loss, by rerunning one compiled Program.
std::string check_gradients(const OpCase& row, Clusters& clusters) {
  BuiltCase built(row, DType::float64);
  if (built.loss().empty()) return "";
  auto session = built.compile(clusters.of(1), Mesh::parse("x:1"), "");
  built.feed(*session, built.rounds[0]);
  session->run("all");
  std::vector<Whole> computed;
  for (const Tensor& gradient : built.gradients()) {
    computed.push_back(whole_of(session->fetch(gradient.name())));
  }
  std::string errors;
  for (size_t k = 0; k < built.differentiable().size(); ++k) {
    const CaseInput& in = built.in()[built.differentiable()[k]];
    const Whole at = built.rounds[0].feeds.at(in.name);
    Whole differences = at;
    auto loss_at = [&](int64_t i, double x) {
      Whole moved = at;
      moved.data[i] = x;
      const Array array = array_of(moved, DType::float64);
      in.stored ? session->assign(in.name, array) : session->feed(in.name, array);
      session->run("loss");
      return session->fetch_scalar(built.loss().name());
    };
    for (int64_t i = 0; i < at.elements(); ++i) {
      const double h = 1e-5;
      differences.data[i] = (loss_at(i, at.data[i] + h) - loss_at(i, at.data[i] - h)) / (2 * h);
    }
    loss_at(0, at.data[0]);
    const double error = relative_error(computed[k], differences, 1e-3);
    if (!(error <= 1e-6))
      errors +=
          fmt::format("\n{}: the gradient of '{}' is off by {:.3g}", row.name, in.name, error);
  }
  return errors;
}

struct LayoutCount {
  int rows = 0, run = 0, refused = 0;
};

std::string check_layout(const BuiltCase& built, const std::array<std::vector<Whole>, 2>& expected,
                         const MeshLayout& at, Clusters& clusters, LayoutCount& count) {
  const Mesh mesh = Mesh::parse(at.mesh);
  const std::vector<Tensor> tensors = built.fetched();
  std::string errors;
  try {
    const auto values = built.run(clusters.of(mesh.size()), mesh, at.layout);
    ++count.run;
    for (size_t i = 0; i < 2 * tensors.size(); ++i) {
      const size_t round = i / tensors.size(), t = i % tensors.size();
      const double error = relative_error(values[round][t], expected[round][t]);
      const double tolerance = tensors[t].dtype() == DType::float64 ? 1e-10 : 1e-6;
      if (!(error <= tolerance)) {
        errors +=
            fmt::format("\n{} on mesh '{}' layout '{}' run {}: '{}' is off by {:.3g}",
                        built.row().name, at.mesh, at.layout, round + 1, tensors[t].name(), error);
      }
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::usage &&
        std::string(e.what()).find("both claim mesh axis") != std::string::npos) {
      ++count.refused;
    } else {
      errors += fmt::format("\n{} on mesh '{}' layout '{}': {} error: {}", built.row().name,
                            at.mesh, at.layout, to_string(e.kind()), e.what());
      clusters.drop(mesh.size());
    }
  }
  return errors;
}

/// With equal work along every dim whose work grows.
std::vector<MeshLayout> balanced(const BuiltCase& built, const std::vector<MeshLayout>& layouts) {
  const auto& nodes = built.graph().nodes();
  std::vector<MeshLayout> result;
  if (std::none_of(nodes.begin(), nodes.end(),
                   [](const Node& n) { return n.op->body && n.op->sharded_body; }))
    return result;
  for (const MeshLayout& at : layouts) {
    MeshLayout& same = result.emplace_back(MeshLayout{at.mesh, ""});
    const Layout layout = Layout::parse(at.layout);
    for (const LayoutRule& rule : layout.rules())
      same.layout += fmt::format("{}?:{}*2;", rule.dim, fmt::join(rule.axes, "+"));
  }
  return result;
}

std::string check_layouts(const OpCase& row, size_t limit, std::mt19937_64& random,
                          Clusters& clusters, LayoutCount& count) {
  const BuiltCase built(row, DType::float64);
  const auto expected = built.run(clusters.of(1), Mesh::parse("x:1"), "");
  const std::vector<std::string> dims = dims_in(built.graph(), row.splits);
  std::vector<MeshLayout> layouts;
  for (const char* mesh : {"x:1", "x:2", "x:3", "x:4", "x:2;y:2", "x:2;y:2;z:2"}) {
    for (MeshLayout& layout : layouts_of(dims, mesh, random)) layouts.push_back(std::move(layout));
  }
  std::shuffle(layouts.begin(), layouts.end(), random);
  if (layouts.size() > limit) layouts.resize(limit);
  for (MeshLayout& layout : balanced(built, layouts)) layouts.push_back(std::move(layout));
  ++count.rows;
  std::string errors;
  for (const MeshLayout& at : layouts) errors += check_layout(built, expected, at, clusters, count);
  return errors;
}

TEST_CASE("every op is in a row of op_cases", "[op_cases][fast]") {
  std::set<std::string> used, names;
  for (const OpCase& row : op_cases()) {
    INFO(row.name);
    CHECK(names.insert(row.name).second);
    collect_ops(BuiltCase(row, DType::float64).graph(), used);
  }
  for (const Op* op : all_ops()) {
    INFO(op->name);
    CHECK(used.count(std::string(op->name)) == 1);
  }
}

TEST_CASE("ops have the reference's values", "[op_cases][fast]") {
  Clusters clusters;
  std::string errors;
  for (const OpCase& row : op_cases()) {
    if (row.random) continue;
    for (DType type : {DType::float32, DType::float64}) errors += check_values(row, type, clusters);
  }
  CHECK(errors == "");
}

TEST_CASE("gradients agree with differences", "[op_cases][fast]") {
  Clusters clusters;
  std::string errors;
  for (const OpCase& row : op_cases()) {
    if (row.has_gradient) errors += check_gradients(row, clusters);
  }
  CHECK(errors == "");
}

TEST_CASE("layouts change no value and no gradient", "[op_cases][fast]") {
  const uint64_t seed = seed_of_run(20240601);
  const size_t limit = std::getenv("TESSERA_LONG") ? 200 : 12;
  std::mt19937_64 random(seed);
  Clusters clusters;
  LayoutCount count;
  std::string errors;
  for (const OpCase& row : op_cases()) errors += check_layouts(row, limit, random, clusters, count);
  WARN(fmt::format("seed {}: {} rows, {} layouts run, {} refused", seed, count.rows, count.run,
                   count.refused));
  CHECK(errors == "");
  CHECK(count.run > count.refused);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
