// Random models under random layouts give the reference's values, gradients and updated parameters,
// in a first run and, with other inputs, other sizes of bounded dims and what the first has stored,
// in a second.
// A failure is shortened before it is printed; its number and the seed bring it back.
#include "support/random_graphs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/program_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

enum class Outcome { equal, refused, unstable, failed };

struct Report {
  Outcome outcome = Outcome::equal;
  std::string text;
};

/// One run: what it is given, by name, and what it must give.
struct Round {
  Wholes given, expected;
};

/// The part of an input that a run has.
Whole cut(const Whole& whole, const Shape& shape, const std::map<std::string, int64_t>& sizes) {
  std::vector<int64_t> own = whole.sizes;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d].is_bounded) own[static_cast<size_t>(d)] = sizes.at(shape[d].name);
  }
  Whole part(whole.dims, own);
  const auto strides = whole.strides_over(whole.dims);
  size_t i = 0;
  each_index(own, [&](const std::vector<int64_t>& index) {
    part.data[i++] = whole.data[static_cast<size_t>(dot(index, strides))];
  });
  return part;
}

/// How far results may be from the reference's, by the coarsest dtype of the graph.
double tolerance_of(const Graph& graph) {
  double tolerance = 1e-9;
  for (const Value& v : graph.values()) {
    if (v.dtype == DType::float32) tolerance = std::max(tolerance, 1e-4);
    if (v.dtype == DType::bfloat16) tolerance = std::max(tolerance, 6e-2);
  }
  return tolerance;
}

void expect(const RandomModel& model, size_t r, Round& round, bool& stable) {
  Reference reference(model.graph, model.sizes[r], tolerance_of(model.graph));
  for (const auto* list : {&model.fed, &model.stored}) {
    for (const auto& [tensor, value] : *list) reference.set(tensor, round.given.at(tensor.name()));
  }
  for (const Tensor& t : model.outputs) round.expected[t.name()] = reference.value(t);
  for (const Update& u : model.graph.updates())
    round.expected[model.graph.value(u.stored).name] = reference.value(u.value);
  stable = stable && !reference.near_tie();
  for (const auto& [name, value] : round.expected) {
    for (double x : value.data) stable = stable && std::abs(x) < 1e6;
  }
}

/// The second is given the inputs of the first in reverse, and what the first has stored.
std::array<Round, 2> rounds_of(const RandomModel& model, bool& stable) {
  std::array<Round, 2> rounds;
  for (size_t r : {0, 1}) {
    for (const auto& [tensor, value] : model.stored) rounds[r].given[tensor.name()] = value;
    for (const auto& [tensor, value] : model.fed)
      rounds[r].given[tensor.name()] = cut(value, tensor.shape(), model.sizes[r]);
  }
  expect(model, 0, rounds[0], stable);
  for (const auto& [tensor, value] : model.fed) {
    Whole& other = rounds[1].given[tensor.name()];
    std::reverse(other.data.begin(), other.data.end());
  }
  for (const Update& u : model.graph.updates()) {
    const std::string& name = model.graph.value(u.stored).name;
    rounds[1].given[name] = rounds[0].expected[name];
  }
  expect(model, 1, rounds[1], stable);
  return rounds;
}

void feed(const RandomModel& model, const Wholes& values, Session& session) {
  for (const auto& [tensor, value] : model.fed) {
    try {
      session.feed(tensor.name(), array_of(values.at(tensor.name()), tensor.dtype()));
    } catch (const Error& e) {  // no function needs it
      if (std::string(e.what()).find("has no input") == std::string::npos) throw;
    }
  }
}

/// Through a Session, or on the CPU straight from the Program in poisoned memory: by the parity of
/// the data's seed.
std::vector<Wholes> run(const Recipe& recipe, const RandomModel& model, Cluster& cluster,
                        const std::array<Round, 2>& rounds) {
  const FunctionSpec function{"step", model.outputs, recipe.training >= 2};
  if (recipe.strict_chunks == 0 && recipe.device == "cpu" && model.bounded.empty() &&
      recipe.data_seed % 2) {
    return run_program(lower_for_cpu(model.graph, recipe.mesh, recipe.layout, {function}), cluster,
                       "step", std::vector{rounds[0].given, rounds[1].given});
  }
  CompileOptions options;
  options.mesh = Mesh::parse(recipe.mesh);
  options.layout = Layout::parse(recipe.layout);
  options.functions = {function};
  options.device = recipe.device;
  options.strict_chunks = recipe.strict_chunks;
  Session session(model.graph, cluster, options);
  for (const auto& [tensor, value] : model.stored)
    session.assign(tensor.name(), array_of(value, tensor.dtype()));
  std::vector<Wholes> results;
  for (size_t r : {0, 1}) {
    const Round& round = rounds[r];
    for (const std::string& dim : model.bounded) session.set_size(dim, model.sizes[r].at(dim));
    feed(model, round.given, session);
    session.run("step");
    Wholes& values = results.emplace_back();
    for (const auto& [name, value] : round.expected) values[name] = whole_of(session.fetch(name));
  }
  return results;
}

/// What differs in a bit, or nothing. The sign of a NaN is no result.
std::string other_bits(const std::vector<Wholes>& a, const std::vector<Wholes>& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (const auto& [name, value] : a[r]) {
      const std::vector<double>& other = b[r].at(name).data;
      for (size_t i = 0; i < other.size(); ++i) {
        const bool are_nan = std::isnan(value.data.at(i)) && std::isnan(other[i]);
        if (!are_nan && std::bit_cast<uint64_t>(value.data[i]) != std::bit_cast<uint64_t>(other[i]))
          return fmt::format("'{}' has other bits than on one rank in run {}: {} and {} at {}",
                             name, r + 1, value.data[i], other[i], i);
      }
    }
  }
  return "";
}

/// A model with what it must give, for any layout.
struct Case {
  RandomModel model;
  bool stable = true;
  std::array<Round, 2> rounds;
  double largest = 1;
  std::vector<Wholes> of_one_rank;  // under strict numerics
};

void prepare(const Recipe& recipe, Clusters& clusters, Case& prepared) {
  build(recipe, prepared.model);
  prepared.rounds = rounds_of(prepared.model, prepared.stable);
  for (const Round& round : prepared.rounds) {
    for (const auto& [name, value] : round.expected)
      prepared.largest = std::max(prepared.largest,
                                  std::sqrt(brute_einsum({value, value}, Whole({}, {})).data[0]));
  }
  if (recipe.strict_chunks == 0) return;
  Recipe one = recipe;
  one.mesh = "one:1";
  one.layout = "";
  prepared.of_one_rank = run(one, prepared.model, clusters.of(1), prepared.rounds);
}

Report attempt(const Recipe& recipe, const Case& expected, Clusters& clusters) {
  const RandomModel& model = expected.model;
  const auto& rounds = expected.rounds;
  if (!expected.stable && recipe.compares_values()) return {Outcome::unstable, ""};
  const int ranks = Mesh::parse(recipe.mesh).size();
  try {
    const std::vector<Wholes> results = run(recipe, model, clusters.of(ranks), rounds);
    if (recipe.strict_chunks > 0) {
      const std::string other = other_bits(results, expected.of_one_rank);
      if (!other.empty()) return {Outcome::failed, other};
    }
    const double tolerance = tolerance_of(model.graph);
    // What cancels to nearly nothing is as exact as its terms: coarser with 16 bits.
    const double floor = tolerance > 1e-2 ? 0.1 : 1e-3;
    for (size_t r = 0; r < rounds.size() && recipe.compares_values(); ++r) {
      for (const auto& [name, value] : rounds[r].expected) {
        const double error = relative_error(results[r].at(name), value, floor * expected.largest);
        if (!(error <= tolerance)) {
          return {Outcome::failed,
                  fmt::format("'{}' is off by {:.3g} in run {}", name, error, r + 1)};
        }
      }
    }
    return {};
  } catch (const Error& e) {
    const std::string text = e.what();
    const bool is_no_layout = text.find("both claim mesh axis") != std::string::npos ||
                              text.find("layout rule ") != std::string::npos,
               refused = e.kind() == ErrorKind::usage && is_no_layout;
    if (refused) return {Outcome::refused, text};
    clusters.drop(ranks);
    return {Outcome::failed, fmt::format("{} error: {}", to_string(e.kind()), text)};
  }
}

Report attempt(const Recipe& recipe, Clusters& clusters) {
  Case prepared;
  prepare(recipe, clusters, prepared);
  return attempt(recipe, prepared, clusters);
}

std::vector<std::string> clauses(const std::string& layout) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= layout.size();) {
    const size_t end = std::min(layout.find(';', at), layout.size());
    parts.push_back(layout.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// Takes out steps, training and rules while the failure stays.
Recipe shorten(Recipe recipe, Clusters& clusters) {
  auto fails = [&](const Recipe& shorter) {
    try {
      return attempt(shorter, clusters).outcome == Outcome::failed;
    } catch (const Error&) {
      return false;
    }
  };
  auto keep_if = [&](const Recipe& shorter) {
    if (!fails(shorter)) return false;
    recipe = shorter;
    return true;
  };
  for (bool again = true; again;) {
    again = false;
    for (size_t s = recipe.steps.size(); s-- > 0;) {
      Recipe shorter = recipe;
      shorter.steps.erase(shorter.steps.begin() + static_cast<std::ptrdiff_t>(s));
      again |= keep_if(shorter);
    }
    for (size_t c = clauses(recipe.layout).size(); c-- > 0;) {
      std::vector<std::string> parts = clauses(recipe.layout);
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(c));
      Recipe shorter = recipe;
      shorter.layout = fmt::format("{}", fmt::join(parts, ";"));
      if (shorter.layout != recipe.layout) again |= keep_if(shorter);
    }
    for (size_t d = 0; d < recipe.run_sizes.size(); ++d) {
      Recipe shorter = recipe;
      shorter.run_sizes[d] = {0, 0};
      if (shorter.run_sizes != recipe.run_sizes) again |= keep_if(shorter);
    }
    Recipe shorter = recipe;
    shorter.training = recipe.training > 1 ? 1 : 0;
    if (shorter.training != recipe.training) again |= keep_if(shorter);
  }
  return recipe;
}

std::string describe(const Recipe& recipe, Clusters& clusters) {
  RandomModel model;
  build(recipe, model);
  std::string outputs;
  for (const Tensor& t : model.outputs) outputs += " " + t.name();
  std::string sizes;
  for (const std::string& dim : model.bounded)
    sizes +=
        fmt::format(" {} has {}, then {};", dim, model.sizes[0].at(dim), model.sizes[1].at(dim));
  return fmt::format("mesh '{}' layout '{}':{} {}\n{}outputs:{}\n", recipe.mesh, recipe.layout,
                     sizes, attempt(recipe, clusters).text, model.graph.to_string(), outputs);
}

/// A layout that no rule forbids, within a few draws.
Report draw_and_attempt(Recipe& recipe, const Case& prepared, std::mt19937_64& random,
                        Clusters& clusters) {
  Report report;
  for (int tries = 0; tries < 4; ++tries) {
    recipe.mesh = draw_mesh(random);
    recipe.layout = draw_layout(prepared.model.graph, recipe.mesh, random);
    report = attempt(recipe, prepared, clusters);
    if (report.outcome != Outcome::refused) break;
  }
  return report;
}

struct Drawn {
  int graphs = 0;
  int layouts = 1;  // of each graph
  std::string device = "cpu";
  int64_t strict_chunks = 0;
  bool mixed = false;
};

/// The graphs of the seed from number `first` on; a failure is shortened and reported.
void graphs_equal_the_reference(int first, const Drawn& drawn) {
  const uint64_t seed = seed_of_run(1);
  Clusters clusters;
  int count[4] = {}, failures = 0, n = first;
  for (; n < first + drawn.graphs && failures < 3; ++n) {
    std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(n));
    Recipe recipe = draw_recipe(random);
    recipe.device = drawn.device;
    recipe.strict_chunks = drawn.strict_chunks;
    recipe.mixed = drawn.mixed;
    Case prepared;
    prepare(recipe, clusters, prepared);
    for (int l = 0; l < drawn.layouts; ++l) {
      const Report report = draw_and_attempt(recipe, prepared, random, clusters);
      ++count[static_cast<int>(report.outcome)];
      if (report.outcome != Outcome::failed) continue;
      ++failures;
      FAIL_CHECK(fmt::format("seed {} graph {} layout {}: {}\nshortened: {}", seed, n, l,
                             report.text, describe(shorten(recipe, clusters), clusters)));
      break;
    }
  }
  WARN(fmt::format("seed {}: {} graphs x {} layouts: {} equal, {} refused, {} too close to a tie",
                   seed, n - first, drawn.layouts, count[0], count[1], count[2]));
  CHECK(count[0] * 4 > (n - first) * drawn.layouts * 3);
}

TEST_CASE("random models under random layouts equal the reference", "[random_graphs]") {
  graphs_equal_the_reference(0, {.graphs = 400});
}

TEST_CASE("random models have the same bits under random layouts with strict numerics",
          "[random_graphs][strict]") {
  graphs_equal_the_reference(5000, {.graphs = 350, .layouts = 5, .strict_chunks = 4});
}

TEST_CASE("random models of several dtypes equal the reference, and have the same bits with strict",
          "[random_graphs][strict]") {
  graphs_equal_the_reference(10000, {.graphs = 60, .mixed = true});
  graphs_equal_the_reference(15000,
                             {.graphs = 60, .layouts = 5, .strict_chunks = 4, .mixed = true});
}

int wanted_graphs(int fallback) {
  const char* wanted = std::getenv("TESSERA_RANDOM_GRAPHS");
  return wanted ? std::atoi(wanted) : fallback;
}

TEST_CASE("many more random models equal the reference", "[random_graphs][slow]") {
  graphs_equal_the_reference(400, {.graphs = wanted_graphs(1600)});
}

TEST_CASE("many more random models of several dtypes", "[random_graphs][slow]") {
  graphs_equal_the_reference(20000, {.graphs = wanted_graphs(1000), .mixed = true});
  graphs_equal_the_reference(
      25000, {.graphs = wanted_graphs(1000), .layouts = 5, .strict_chunks = 4, .mixed = true});
}

/// Sizes, strides, offsets and masks of all kinds for every generator of kernels.
TEST_CASE("random models under random layouts equal the reference as PTX",
          "[random_graphs][cuda][ptx][slow]") {
  if (!has_ptx()) return;
  const char* wanted = std::getenv("TESSERA_PTX_GRAPHS");
  CudaEmulator gpu;
  gpu.kernels_as = KernelsAs::ptx;
  const WithEmulator here(gpu);
  graphs_equal_the_reference(2000, {.graphs = wanted ? std::atoi(wanted) : 40, .device = "cuda"});
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
