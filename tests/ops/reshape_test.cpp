// Reshapes between random shapes and layouts: right, never dearer than gathering the whole and
// taking a slice, and sending just what a rank wants and has not, counted element by element apart
// from the library. TESSERA_RESHAPES says how many (500).
#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/program_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Sample {
  Shape from, to;
  std::string mesh, layout;
};

/// `elements` as dims named prefix0, prefix1, ...
Shape drawn_shape(int64_t elements, const std::string& prefix, std::mt19937_64& random) {
  std::vector<Dim> dims;
  while (elements > 1 && dims.size() < 3) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= elements; ++d) {
      if (elements % d == 0) divisors.push_back(d);
    }
    const int64_t size = divisors[random() % divisors.size()];
    dims.emplace_back(prefix + std::to_string(dims.size()), size);
    elements /= size;
  }
  if (elements > 1 || dims.empty()) dims.emplace_back(prefix + "9", elements);
  std::shuffle(dims.begin(), dims.end(), random);
  return Shape(dims);
}

/// Every axis on a dim of each side, or on none.
Sample draw(std::mt19937_64& random) {
  static constexpr int64_t kElements[] = {6, 12, 24, 30, 36, 48, 60, 64, 72, 105};
  static const char* kMeshes[] = {"x:2", "x:3", "x:4", "x:2;y:2", "x:2;y:3", "x:2;y:2;z:3"};
  const int64_t elements = kElements[random() % std::size(kElements)];
  Sample s{drawn_shape(elements, "a", random), drawn_shape(elements, "b", random),
           kMeshes[random() % std::size(kMeshes)], ""};
  const std::vector<std::string> axes = Mesh::parse(s.mesh).names();
  std::map<std::string, std::vector<std::string>> rules;
  for (const Shape* shape : {&s.from, &s.to}) {
    for (const std::string& axis : axes) {
      const size_t d = random() % static_cast<size_t>(shape->rank() + 1);
      if (d < static_cast<size_t>(shape->rank()))
        rules[(*shape)[static_cast<int>(d)].name].push_back(axis);
    }
  }
  for (auto& [dim, list] : rules) {
    std::shuffle(list.begin(), list.end(), random);
    s.layout += fmt::format("{}{}:{}", s.layout.empty() ? "" : ";", dim, fmt::join(list, "+"));
  }
  return s;
}

/// The slice of a port that a rank has, as flags over the elements of the whole in row-major order.
std::vector<char> owned(const Program& program, const Port& port, int rank) {
  std::vector<int> at(program.axis_sizes.size());
  for (size_t a = at.size(); a-- > 0; rank /= program.axis_sizes[a])
    at[a] = rank % program.axis_sizes[a];
  std::vector<char> has;
  each_index(port.sizes, [&](const std::vector<int64_t>& index) {
    bool own = true;
    for (size_t d = 0; d < index.size(); ++d) {
      int64_t part = 0;
      for (int axis : port.axes[d]) part = part * program.axis_sizes[axis] + at[axis];
      own = own && index[d] / port.view.sizes[d] == part;
    }
    has.push_back(own);
  });
  return has;
}

const Port& port_of(const Program& program, const std::string& name) {
  const auto it = std::find_if(program.ports.begin(), program.ports.end(),
                               [&](const Port& p) { return p.name == name; });
  REQUIRE(it != program.ports.end());
  return *it;
}

struct Traffic {
  int64_t sent = 0;    ///< by the Program, on each rank
  int64_t least = 0;   ///< bytes that a rank wants and does not have, the mean over the ranks
  int64_t gather = 0;  ///< of the whole operand, with padding
};

Traffic traffic_of(const Program& program, const std::string& from, const std::string& to) {
  const Port &in = port_of(program, from), &out = port_of(program, to);
  int ranks = 1;
  for (int size : program.axis_sizes) ranks *= size;
  Traffic traffic;
  int64_t missing = 0;
  for (int r = 0; r < ranks; ++r) {
    const std::vector<char> has = owned(program, in, r), wants = owned(program, out, r);
    for (size_t i = 0; i < has.size(); ++i) missing += wants[i] && !has[i];
  }
  const int64_t bytes = size_of(in.view.dtype);
  traffic.least = (missing * bytes + ranks - 1) / ranks;
  int64_t whole = in.view.elements();
  for (const auto& axes : in.axes) {
    for (int axis : axes) whole *= program.axis_sizes[axis];
  }
  traffic.gather = (whole - in.view.elements()) * bytes;
  for (const Step& step : program.functions[program.function("f")].steps)
    traffic.sent += step.bytes;
  return traffic;
}

std::string check_sample(const Sample& s, Clusters& clusters) {
  Graph g;
  Tensor x = g.input("in", s.from, DType::float64);
  Tensor y = reshape(x, s.to).named("out");
  const Program program = lower_for_cpu(g, s.mesh, s.layout, {{"f", {y}, false}});
  std::vector<int64_t> from_sizes, to_sizes;
  for (const Dim& d : s.from) from_sizes.push_back(d.size);
  for (const Dim& d : s.to) to_sizes.push_back(d.size);
  Whole in(s.from.names(), from_sizes), expected(s.to.names(), to_sizes);
  for (int64_t i = 0; i < in.elements(); ++i)
    in.data[static_cast<size_t>(i)] = expected.data[static_cast<size_t>(i)] = double(i) + 1;
  const std::string at = fmt::format("\n{} to {} on '{}' with '{}': ", s.from.to_string(),
                                     s.to.to_string(), s.mesh, s.layout);
  const int ranks = Mesh::parse(s.mesh).size();
  try {
    const Wholes got = run_program(program, clusters.of(ranks), "f", {{"in", in}});
    if (relative_error(got.at("out"), expected) != 0) return at + "wrong elements";
  } catch (const Error& e) {
    clusters.drop(ranks);
    return at + e.what();
  }
  const Traffic traffic = traffic_of(program, "in", "out");
  if (traffic.sent > traffic.gather)
    return at + fmt::format("{} bytes sent, {} gather all", traffic.sent, traffic.gather);
  if (traffic.sent != traffic.least)
    return at + fmt::format("{} bytes sent, {} must be", traffic.sent, traffic.least);
  return "";
}

TEST_CASE("random reshapes between random layouts", "[reshape]") {
  const uint64_t seed = seed_of_run(11);
  const char* wanted = std::getenv("TESSERA_RESHAPES");
  const int samples = wanted ? std::atoi(wanted) : 500;
  std::mt19937_64 random(seed);
  Clusters clusters;
  std::string errors;
  for (int n = 0; n < samples && errors.size() < 2000; ++n)
    errors += check_sample(draw(random), clusters);
  INFO("seed " << seed);
  CHECK(errors == "");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
