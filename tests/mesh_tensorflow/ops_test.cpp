// Values and gradients of Mesh TensorFlow's operations, as tests/mesh_tensorflow/values_ops.py
// wrote them, against those of Tessera: unsplit, and split.
#include "mesh_tensorflow/ops.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Json = nlohmann::json;

double number(const Json& x) { return x.is_string() ? std::stod(x.get<std::string>()) : double(x); }

/// A recorded tensor.
struct Recorded {
  explicit Recorded(const Json& json)
      : dtype(parse_dtype(json["dtype"].get<std::string>().c_str())) {
    std::vector<Dim> dims;
    for (const Json& dim : json["dims"]) dims.emplace_back(dim[0], dim[1].get<int64_t>());
    shape = Shape(dims);
    std::vector<int64_t> sizes;
    for (const Dim& dim : dims) sizes.push_back(dim.size);
    value = Whole(shape.names(), sizes);
    for (size_t i = 0; i < value.data.size(); ++i) value.data[i] = number(json["data"][i]);
  }
  Shape shape;
  DType dtype;
  Whole value;
};

/// A case, built: its operands, and what of it is compared.
struct BuiltRecord {
  BuiltRecord(const Json& json, const Builder& build);
  std::vector<Whole> run(Cluster& cluster, const std::string& mesh,
                         const std::string& layout) const;

  Graph graph;
  std::vector<std::pair<std::string, Array>> feeds;
  std::vector<Tensor> fetched;
  std::vector<std::string> names;  ///< "result 0", "gradient 1"
  std::vector<Whole> expected;
};

BuiltRecord::BuiltRecord(const Json& json, const Builder& build) {
  Tensors in, wrt;
  std::vector<Recorded> differentiable;
  for (const Json& recorded : json["in"]) {
    const Recorded x(recorded);
    in.push_back(graph.input(fmt::format("x{}", in.size()), x.shape, x.dtype));
    feeds.emplace_back(in.back().name(), array_of(x.value, x.dtype));
    if (!is_floating(x.dtype)) continue;
    wrt.push_back(in.back());
    differentiable.push_back(x);
  }
  fetched = build(graph, in);
  REQUIRE(fetched.size() == json["out"].size());
  Tensor loss;
  for (size_t i = 0; i < fetched.size(); ++i) {
    const Recorded y(json["out"][i]);
    INFO("result " << i << ": " << fetched[i].shape().to_string() << " "
                   << to_string(fetched[i].dtype()));
    CHECK(fetched[i].shape() == y.shape);
    CHECK(fetched[i].dtype() == y.dtype);
    names.push_back(fmt::format("result {}", i));
    expected.push_back(y.value);
    if (!is_floating(y.dtype)) continue;
    Whole weights = y.value;
    for (size_t k = 0; k < weights.data.size(); ++k) {
      weights.data[k] = static_cast<double>(k * 7 % 11) / 8 - 0.5625;
    }
    const Tensor weight = graph.input(fmt::format("weight{}", i), y.shape, DType::float32);
    feeds.emplace_back(weight.name(), array_of(weights, DType::float32));
    const Tensor part = sum_all(fetched[i] * weight);
    loss = loss.empty() ? part : loss + part;
  }
  if (!json.contains("grad")) return;
  for (const Tensor& grad : gradients(loss, wrt)) {
    const size_t i = names.size() - json["out"].size();
    const Json& recorded = json["grad"][i];
    names.push_back(fmt::format("gradient {}", i));
    fetched.push_back(grad);
    // None is a gradient of zeros; one of minimum and maximum still has the result's dims.
    const Whole zeros(differentiable[i].value.dims, differentiable[i].value.sizes);
    expected.push_back(recorded.is_null() ? zeros
                                          : brute_einsum({Recorded(recorded).value}, zeros));
  }
}

std::vector<Whole> BuiltRecord::run(Cluster& cluster, const std::string& mesh,
                                    const std::string& layout) const {
  CompileOptions options;
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  options.functions = {{"all", fetched, false}};
  Session session(graph, cluster, options);
  for (const auto& [name, array] : feeds) session.feed(name, array);
  session.run("all");
  std::vector<Whole> values;
  for (const Tensor& t : fetched) values.push_back(whole_of(session.fetch(t.name())));
  return values;
}

/// A layout of a case's results: its first dim, its last, and both.
std::vector<MeshLayout> layouts_of(const BuiltRecord& built) {
  std::vector<std::string> dims;
  for (const Tensor& t : built.fetched) {
    for (const Dim& d : t.shape()) {
      if (std::find(dims.begin(), dims.end(), d.name) == dims.end()) dims.push_back(d.name);
    }
  }
  if (dims.empty()) return {};
  const std::string first = dims.front(), last = dims.back();
  if (dims.size() == 1) return {{"x:2", first + ":x"}, {"x:2;y:2", first + ":x+y"}};
  return {{"x:2", first + ":x"}, {"x:3", last + ":x"}, {"x:2;y:2", first + ":x;" + last + ":y"}};
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// Of the larger of an element and `floor`.
struct Tolerance {
  double relative = 1e-5, floor = 0.1;
};
Tolerance tolerance_of(const std::string& name) {
  if (ends_with(name, "_bfloat16")) return {0.02, 1};
  if (ends_with(name, "_float16")) return {0.002, 1};
  return {};
}

/// Which elements are others, " 3 7" (" shape" if that is), and what they are.
struct Difference {
  std::string elements, values;
};
Difference difference(const Whole& a, const Whole& b, const Tolerance& tolerance) {
  if (a.dims != b.dims || a.sizes != b.sizes) return {" shape", ""};
  Difference found;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double x = a.data[i], y = b.data[i];
    const bool same =
        x == y || (std::isnan(x) && std::isnan(y)) ||
        std::abs(x - y) <= tolerance.relative * std::max(std::abs(y), tolerance.floor);
    if (same) continue;
    found.elements += fmt::format(" {}", i);
    found.values += fmt::format(" {} for {}", x, y);
  }
  return found;
}

/// Where Tessera means to differ, and why.
struct Deliberate {
  const char* reason;
  std::set<std::string> where;  ///< "CASE gradient 0: 3 7": these elements, and no others
};
const std::vector<Deliberate> kDeliberate = {
    {"elements that tie for an extremum share its gradient; there each gets all of it",
     {"maximum_ties gradient 0: 0 2 5 7", "maximum_ties gradient 1: 0 1 2 3",
      "minimum_ties gradient 0: 0 2 5 7", "minimum_ties gradient 1: 0 1 2 3",
      "maximum_at_zero gradient 0: 1 3 4", "minimum_at_zero gradient 0: 1 3 4",
      "maximum_of_itself gradient 0: 0 1 2", "minimum_of_itself gradient 0: 0 1 2",
      "reduce_max_ties gradient 0: 1 2 4 5 6 7 8 9 10", "reduce_min_ties gradient 0: 4 5 6 7",
      "reduce_max_corners gradient 0: 12 13 14 15 16 17",
      "reduce_min_corners gradient 0: 12 13 14 15 16 17",
      "max_pool2d_ties gradient 0: 0 1 3 4 5 6 8 12 13"}},
    {"what is not chosen does not count; there it is multiplied by zero, which keeps NaN",
     {"where_other_is_nan result 0: 0 1 2 3", "gather_beside_nan result 0: 0 1",
      "reduce_first_beside_nan result 0: 0", "squared_relu_corners gradient 0: 4"}},
    {"right far from zero, where there infinity times zero is NaN",
     {"gelu_corners result 0: 3", "gelu_corners gradient 0: 2 3 9 10", "swish_corners result 0: 3",
      "swish_corners gradient 0: 3", "reduce_logsumexp_corners result 0: 0 1 3",
      "reduce_logsumexp_corners gradient 0: 4 5 11"}},
    {"the gradient at NaN is that of the side that computed the value; there of the other",
     {"elu_corners gradient 0: 4", "leaky_relu_corners gradient 0: 4",
      "clip_by_min_max gradient 0: 9"}},
    {"as above, and -1e-30 is negative; there its value is, which is zero",
     {"selu_corners gradient 0: 4 8"}},
    {"a power is not taken by logarithms",
     {"pow_negative_base result 0: 0 1", "pow_negative_base gradient 0: 0 1",
      "pow_corners result 0: 0 12 16", "pow_corners gradient 0: 0 3",
      "pow_corners gradient 1: 0 1 2"}},
    {"the index of a maximum of NaN is NaN's; there any",
     {"top_1_nan result 1: 0 1 2", "top_1_nan gradient 0: 1 2 3 4 7 8"}},
    {"infinite elements are ordered too; there 1e9 is subtracted from what was found",
     {"top_2_of_infinite result 1: 1 3 5", "top_2_of_infinite gradient 0: 0 2 5 6 12 13"}},
    {"a cast saturates, and NaN is 0; there it is what the processor does",
     {"to_int32_overflow result 0: 0 2 4"}},
    {"floor division goes with the remainder, as Python's: 1 / -inf is -1 and inf / 3 NaN",
     {"floordiv_corners result 0: 3 7 19 24"}},
    {"nearer to the logarithm of 1 / (1 + 2 / e)", {"log_softmax_large result 0: 8"}},
};

/// The mismatches of a case that nobody meant.
struct Comparison {
  std::set<std::string> differs;
  std::string errors;

  void compare(const std::string& name, const BuiltRecord& built, Clusters& clusters) {
    const std::vector<Whole> whole = built.run(clusters.of(1), "x:1", "");
    const Tolerance tolerance = tolerance_of(name);
    for (size_t i = 0; i < whole.size(); ++i) {
      const Difference found = difference(whole[i], built.expected[i], tolerance);
      if (found.elements.empty()) continue;
      const std::string where = fmt::format("{} {}:{}", name, built.names[i], found.elements);
      differs.insert(where);
      if (!is_deliberate(where)) errors += "\n" + where + ":" + found.values;
    }
    for (const auto& [mesh, layout] : layouts_of(built)) {
      const int ranks = static_cast<int>(Mesh::parse(mesh).size());
      const std::vector<Whole> split = built.run(clusters.of(ranks), mesh, layout);
      for (size_t i = 0; i < whole.size(); ++i) {
        const Difference found = difference(split[i], whole[i], tolerance);
        if (found.elements.empty()) continue;
        errors += fmt::format("\n{} {} with '{}':{}:{}", name, built.names[i], layout,
                              found.elements, found.values);
      }
    }
  }
  static bool is_deliberate(const std::string& where) {
    return std::any_of(kDeliberate.begin(), kDeliberate.end(),
                       [&](const Deliberate& d) { return d.where.count(where) > 0; });
  }
};

Builders all_builders() {
  Builders builders;
  add_mtf_pointwise(builders);
  add_mtf_binary(builders);
  add_mtf_reductions(builders);
  add_mtf_products(builders);
  add_mtf_indexed(builders);
  add_mtf_ordered(builders);
  add_mtf_shapes(builders);
  add_mtf_windows(builders);
  add_mtf_control(builders);
  add_mtf_dtypes(builders);
  return builders;
}

TEST_CASE("operations have Mesh TensorFlow's values and gradients", "[mtf][fast]") {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/mesh_tensorflow/ops.json");
  const Json cases = Json::parse(file);
  const Builders builders = all_builders();
  Clusters clusters;
  Comparison comparison;
  for (const auto& [name, build] : builders) {
    INFO(name << " is in mesh_tensorflow_*.cpp and not in ops.json");
    CHECK(cases.contains(name));
  }
  for (const auto& [name, json] : cases.items()) {
    INFO(name);
    const auto build = builders.find(name);
    REQUIRE(build != builders.end());
    comparison.compare(name, BuiltRecord(json, build->second), clusters);
  }
  CHECK(comparison.errors == "");
  for (const auto& [reason, places] : kDeliberate) {
    for (const std::string& where : places) {
      INFO(where << " does not differ: " << reason);
      CHECK(comparison.differs.count(where) == 1);
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
