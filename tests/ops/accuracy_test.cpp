// How far composites, reductions and their gradients in float32 are from float64, where operands
// have an offset, are large, small, equal or hidden: the bounds of docs/reference/accuracy.md, kept
// by every layout. With TESSERA_UPDATE_GOLDEN=1 the page's table is written anew.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/op.h"

namespace tessera::test {

namespace TESSERA_FILE {

const char* const kPage = TESSERA_SOURCE_DIR "/docs/reference/accuracy.md";

/// A change of the first operand's elements.
struct Regime {
  const char* name;
  double (*change)(double x);
};

const std::vector<Regime>& regimes() {
  static const std::vector<Regime> all = {
      {"as drawn", [](double x) { return x; }},
      {"+ 1e4", [](double x) { return x + 1e4; }},
      {"+ 1e6", [](double x) { return x + 1e6; }},
      {"* 1e4", [](double x) { return x * 1e4; }},
      {"* 1e10", [](double x) { return x * 1e10; }},
      {"* 1e-10", [](double x) { return x * 1e-10; }},
      {"* 1e-30", [](double x) { return x * 1e-30; }},
      {"* 1e-40", [](double x) { return x * 1e-40; }},
      {"all 3", [](double) { return 3.0; }},
  };
  return all;
}

template <class Is>
bool has_op(const BuiltCase& built, Is is) {
  const auto& nodes = built.graph().nodes();
  return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) { return is(*node.op); });
}

/// Rows of composites, and of what composites are made of: reductions and smooth functions. Not
/// those with choices, which rounding may decide.
bool is_measured(const OpCase& row) {
  if (row.random || row.in.empty() || row.in[0].whole_numbers || row.in[0].dtype != DType::float32)
    return false;
  const BuiltCase built(row, DType::float32);
  if (has_op(built, [](const Op& op) { return op.name == "argmax" || op.name == "top_k"; }))
    return false;
  for (const char* name :
       {"reduce_prod", "reduce_mean", "reduce_sum", "sum_all", "logsumexp", "softplus", "sigmoid",
        "silu", "gelu", "tanh", "log1p", "elu", "sigmoid_cross_entropy"}) {
    if (row.name.find(name) != std::string::npos) return true;
  }
  return has_op(built, [](const Op& op) { return op.body != nullptr; });
}

/// The largest of the elements that float32 can hold.
double size_of_largest(const Whole& x) {
  double most = 0;
  for (const double e : x.data) {
    if (std::isfinite(e) && std::abs(e) < 3e38) most = std::max(most, std::abs(e));
  }
  return most;
}

/// The largest difference from `expected`, by its largest element, or by a thousandth of `all`
/// where that is more. Elements that float32 cannot hold, and those of which the reference itself
/// knows nothing, do not count.
double error_of(const Whole& found, const Whole& expected, double all) {
  if (found.data.size() != expected.data.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < found.data.size(); ++i) {
    const double e = expected.data[i], difference = std::abs(found.data[i] - e);
    if (!std::isfinite(e) || std::abs(e) >= 3e38) continue;
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  // What is below the least normal number has few digits.
  return most / std::max({size_of_largest(expected), all * 1e-3, 1e-30});
}

/// Of values and of gradients.
struct Errors {
  double value = 0, gradient = 0;
};

Errors errors_under(const BuiltCase& built, const Regime& regime, Session& session) {
  BuiltCase::Round round = built.rounds[0];
  for (double& x : round.feeds.at(built.row().in[0].name).data)
    x = as_dtype(regime.change(x), DType::float32);
  built.feed(session, round);
  session.run("all");
  Reference reference = built.reference(round);
  const auto worst = [&](const std::vector<Tensor>& tensors) {
    double all = 0, error = 0;
    for (const Tensor& t : tensors) all = std::max(all, size_of_largest(reference.value(t)));
    for (const Tensor& t : tensors)
      error = std::max(error, error_of(whole_of(session.fetch(t.name())), reference.value(t), all));
    return error;
  };
  return {worst(built.results()), worst(built.gradients())};
}

/// The least power of ten that is twice as large.
std::string bound_text(double error) {
  if (!(error < 0.05)) return "-";
  const int exponent = std::max(-7, static_cast<int>(std::ceil(std::log10(2 * error))));
  return fmt::format("1e{}", exponent);
}
double bound_of(const std::string& text) { return text == "-" ? INFINITY : std::stod(text); }

using Bounds = std::map<std::string, std::vector<std::string>>;  // by the name of a row

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(" `"), end = cell.find_last_not_of(" `");
    if (begin != std::string::npos) cells.push_back(cell.substr(begin, end - begin + 1));
  }
  return cells;
}

/// The page in front of its table, and the table.
std::pair<std::string, Bounds> read_page() {
  std::ifstream in(kPage);
  std::string line, text;
  Bounds bounds;
  while (std::getline(in, line)) {
    if (line.rfind("| `", 0) != 0) {
      text += line + "\n";
      continue;
    }
    const std::vector<std::string> cells = cells_of(line);
    bounds[cells[0]] = {cells.begin() + 1, cells.end()};
  }
  return {text, bounds};
}

TEST_CASE("float32 keeps its bounds under every layout", "[op_cases][accuracy]") {
  const bool updates = std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr;
  auto [text, bounds] = read_page();
  std::mt19937_64 random(seed_of_run(20261130));
  Clusters clusters;
  std::string errors, table;
  for (const OpCase& row : op_cases()) {
    if (!is_measured(row)) continue;
    const BuiltCase built(row, DType::float32);
    std::vector<MeshLayout> layouts = {{"x:1", ""}};
    const std::vector<std::string> splits = dims_in(built.graph(), row.splits);
    for (const std::string& dim : splits) layouts.push_back({"x:2", dim + ":x"});
    std::vector<Errors> worst(regimes().size());
    for (const MeshLayout& at : layouts) {
      const Mesh mesh = Mesh::parse(at.mesh);
      const auto session = built.compile(clusters.of(mesh.size()), mesh, at.layout);
      for (size_t r = 0; r < regimes().size(); ++r) {
        const Errors e = errors_under(built, regimes()[r], *session);
        worst[r].value = std::max(worst[r].value, e.value);
        worst[r].gradient = std::max(worst[r].gradient, e.gradient);
        if (updates) continue;
        const auto known = bounds.find(row.name);
        if (known == bounds.end()) {
          errors += fmt::format("\n{} is not in the table", row.name);
          break;
        }
        const std::string& cell = known->second.at(r);
        const size_t cut = cell.find(' ');
        if (!(e.value <= bound_of(cell.substr(0, cut))) ||
            !(e.gradient <= bound_of(cell.substr(cut + 1))))
          errors +=
              fmt::format("\n{} '{}' layout '{}': off by {:.2g}, gradients by {:.2g}; bounds {}",
                          row.name, regimes()[r].name, at.layout, e.value, e.gradient, cell);
      }
    }
    table += fmt::format("| `{}` |", row.name);
    for (const Errors& e : worst)
      table += fmt::format(" {} {} |", bound_text(e.value), bound_text(e.gradient));
    table += "\n";
  }
  if (updates) std::ofstream(kPage) << text << table;
  CHECK(errors == "");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
