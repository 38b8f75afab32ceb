// Strict numerics: rows of op_cases.h have the same bits on one rank and under any layout, and what
// adds in no canonical order is refused by name.
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "program/sum_order.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/host.h"
#include "tessera/loops.h"
#include "tessera/nn.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kChunks = 4;

std::array<std::vector<Array>, 2> run(const BuiltCase& built, Cluster& cluster, const Mesh& mesh,
                                      const std::string& layout, int threads,
                                      int64_t chunks = kChunks) {
  auto session = built.compile(cluster, mesh, layout, "cpu", chunks, threads);
  std::array<std::vector<Array>, 2> values;
  for (size_t r = 0; r < built.rounds.size(); ++r) {
    built.feed(*session, built.rounds[r]);
    session->run("all");
    for (const Tensor& t : built.fetched()) values[r].push_back(session->fetch(t.name()));
  }
  return values;
}

/// The order of sums changes the last bits alone.
bool are_close(const Array& a, const Array& b) {
  double most = 1;
  for (int64_t i = 0; i < b.elements(); ++i) {
    if (std::isfinite(b.at(i))) most = std::max(most, std::abs(b.at(i)));
  }
  for (int64_t i = 0; i < b.elements(); ++i) {
    if (std::isfinite(b.at(i)) && !(std::abs(a.at(i) - b.at(i)) <= 1e-4 * most)) return false;
  }
  return true;
}

struct Tried {
  int layouts = 0, refused = 0;
};

bool claims_twice(const Error& e) {
  const std::string text = e.what();
  return e.kind() == ErrorKind::usage && text.find("both claim mesh axis") != std::string::npos;
}

std::string check(const BuiltCase& built, const std::vector<MeshLayout>& layouts,
                  Clusters& clusters, Tried& tried) {
  std::string errors;
  std::array<std::vector<Array>, 2> expected;
  try {
    expected = run(built, clusters.of(1), Mesh::parse("x:1"), "", 1);
  } catch (const Error& e) {
    return fmt::format("\n{}: {}", built.row().name, e.what());
  }
  for (const MeshLayout& at : layouts) {
    const Mesh mesh = Mesh::parse(at.mesh);
    try {
      const auto values =
          run(built, clusters.of(mesh.size()), mesh, at.layout, 1 + tried.layouts % 2);
      ++tried.layouts;
      for (size_t i = 0; i < 2 * expected[0].size(); ++i) {
        const size_t r = i / expected[0].size(), t = i % expected[0].size();
        if (!same_bits(values[r][t], expected[r][t]))
          errors +=
              fmt::format("\n{} on mesh '{}' layout '{}' run {}: '{}' has other bits",
                          built.row().name, at.mesh, at.layout, r + 1, built.fetched()[t].name());
      }
    } catch (const Error& e) {
      if (claims_twice(e)) {
        ++tried.refused;
        continue;
      }
      errors += fmt::format("\n{} on mesh '{}' layout '{}': {} error: {}", built.row().name,
                            at.mesh, at.layout, to_string(e.kind()), e.what());
      clusters.drop(mesh.size());
    }
  }
  return errors;
}

/// Null if the row's ops do not take 16 bits.
std::unique_ptr<BuiltCase> built_as(const OpCase& row, DType dtype) {
  try {
    return std::make_unique<BuiltCase>(row, dtype);
  } catch (const Error& e) {
    if (dtype == DType::float32 || e.kind() != ErrorKind::usage) throw;
    return nullptr;
  }
}

TEST_CASE("ops have the same bits on every layout under strict numerics", "[strict]") {
  Clusters clusters;
  Tried tried;
  std::mt19937_64 random(seed_of_run(3));
  size_t most = 4;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const OpCase& row : op_cases()) {
      const std::unique_ptr<BuiltCase> of_row = built_as(row, dtype);
      if (!of_row) continue;
      const BuiltCase& built = *of_row;
      std::vector<MeshLayout> layouts;
      for (const char* mesh : {"x:2", "x:3", "x:2;y:2"}) {
        std::vector<MeshLayout> some = layouts_of(dims_in(built.graph(), row.splits), mesh, random);
        std::shuffle(some.begin(), some.end(), random);
        if (some.size() > most) some.resize(most);
        layouts.insert(layouts.end(), some.begin(), some.end());
      }
      const std::string errors = check(built, layouts, clusters, tried);
      if (!errors.empty()) FAIL_CHECK(errors);
    }
    most = 2;
  }
  WARN(fmt::format("{} layouts, {} whose rules claim an axis twice", tried.layouts, tried.refused));
  CHECK(tried.layouts > 4000);
}

/// The result at index `at` of a sum of x [a, b, c] in the order of the tree.
float sum_of(const Array& x, const SumOrder& order, const std::vector<int64_t>& at) {
  std::vector<float> open;
  std::vector<uint64_t> numbers;
  const std::vector<int64_t> slices(order.along.size(), 0);
  const std::vector<SumRange> leaves = leaves_of(order, subtrees_of(order, slices)[0]);
  for (const SumRange& leaf : leaves) numbers.push_back(leaf.leaf);
  const std::vector<int64_t> joins = joins_of(numbers);
  for (size_t l = 0; l < leaves.size(); ++l) {
    std::array<std::pair<int64_t, int64_t>, 3> box;
    for (size_t d = 0; d < 3; ++d) box[d] = {at[d], at[d] + 1};
    for (size_t d = 0; d < order.along.size(); ++d)
      box[static_cast<size_t>(order.along[d].dim)] = leaves[l].of[d];
    float chain = -0.0F;
    for (int64_t a = box[0].first; a < box[0].second; ++a) {
      for (int64_t b = box[1].first; b < box[1].second; ++b) {
        for (int64_t c = box[2].first; c < box[2].second; ++c)
          chain += x.data<float>()[(a * x.sizes[1] + b) * x.sizes[2] + c];
      }
    }
    open.push_back(chain);
    for (int64_t n = joins[l]; n > 0; --n) {
      const float last = open.back();
      open.pop_back();
      open.back() += last;
    }
  }
  return open[0] + 0.0F;
}

TEST_CASE("a sum is added up in the order of its tree", "[strict]") {
  std::mt19937_64 random(seed_of_run(7));
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  Cluster one = Cluster::threads(1);
  for (int n = 0; n < 400; ++n) {
    const int64_t chunks = int64_t{1} << draw(6);
    const Shape shape{{"a", 1 + draw(40)}, {"b", 1 + draw(12)}, {"c", 1 + draw(70)}};
    const int64_t summed = 1 + draw(7);  // bits: which dims
    std::vector<std::string> over;
    SumOrder order;
    for (int d = 0; d < 3; ++d) {
      if ((summed >> d & 1) == 0) continue;
      over.push_back(shape[d].name);
      order.along.push_back(
          {d, shape[d].size, chunk_size(shape[d].size, chunks), 1, shape[d].size});
    }
    Graph g;
    const Tensor y = reduce_sum(g.input("x", shape, DType::float32), over).named("y");
    CompileOptions options{Mesh::parse("x:1"), {}, {{"run", {y}, false}}};
    options.strict_chunks = chunks;
    Session session(g, one, options);
    Array x(DType::float32, shape.names(), {shape[0].size, shape[1].size, shape[2].size});
    for (int64_t i = 0; i < x.elements(); ++i)
      x.data<float>()[i] = static_cast<float>(draw(2'000'001) - 1'000'000) * 1e-6F;
    session.feed("x", x);
    session.run("run");
    const Array found = session.fetch("y");
    INFO(fmt::format("sum of {} over {}, {} chunks", shape.to_string(), fmt::join(over, ", "),
                     chunks));
    for (int64_t i = 0; i < found.elements(); ++i) {
      std::vector<int64_t> at(3);
      int64_t rest = i;
      for (int d = 2; d >= 0; --d) {
        if (summed >> d & 1) continue;
        at[static_cast<size_t>(d)] = rest % shape[d].size;
        rest /= shape[d].size;
      }
      REQUIRE(std::bit_cast<uint32_t>(found.data<float>()[i]) ==
              std::bit_cast<uint32_t>(sum_of(x, order, at)));
    }
  }
}

TEST_CASE("ops have the same values under strict numerics", "[strict]") {
  Clusters clusters;
  const Mesh one = Mesh::parse("x:1");
  for (const OpCase& row : op_cases()) {
    const BuiltCase built(row, DType::float32);
    const auto strict = run(built, clusters.of(1), one, "", 1),
               other = run(built, clusters.of(1), one, "", 1, 0);
    for (size_t r = 0; r < strict.size(); ++r) {
      for (size_t t = 0; t < strict[r].size(); ++t) {
        INFO(row.name << " run " << r + 1 << ": " << built.fetched()[t].name());
        CHECK(are_close(strict[r][t], other[r][t]));
      }
    }
  }
}

/// A strict session of some results.
void compile_strictly(Graph& graph, const std::vector<Tensor>& results, const std::string& layout) {
  Cluster cluster = Cluster::threads(2);
  CompileOptions options{Mesh::parse("x:2"), Layout::parse(layout), {{"all", results, false}}};
  options.strict_chunks = kChunks;
  Session session(graph, cluster, options);
}

TEST_CASE("what adds in no canonical order is refused by name", "[strict]") {
  const auto infer = [](const OpCall& call) -> std::vector<ValueType> {
    return {{call.in[0].shape.without({"a"}), call.in[0].dtype}};
  };
  static constinit const Op kTotal = {
      .name = "total", .infer = infer, .host = [](const HostCall&) {}};
  static constinit const Op kOrderedTotal = {
      .name = "ordered_total",
      .infer = infer,
      .host = [](const HostCall&) {},
      .ordered_body = [](const OpCall&, const std::vector<Tensor>& in) -> std::vector<Tensor> {
        return {reduce_sum(in[0], {"a"})};
      }};
  Graph own;
  const Tensor x = own.input("x", {{"a", 4}, {"b", 4}}, DType::float32);
  const Tensor total = own.add(kTotal, {x}, {}, Loc::current())[0].named("total"),
               ordered = own.add(kOrderedTotal, {x}, {}, Loc::current())[0].named("ordered");
  expect_error(ErrorKind::unsupported,
               {"[total]", "canonical order", "compute 'total' with einsum"},
               [&] { compile_strictly(own, {total}, ""); });
  CHECK_NOTHROW(compile_strictly(own, {ordered}, "a:x"));
}

TEST_CASE("strict: a split table keeps the sign of its zeros", "[strict]") {
  Cluster cluster = Cluster::threads(2);
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
    Graph g;
    const Dim rows("rows", 4), width("width", 3), n("n", 4);
    const Tensor table = g.parameter("table", {rows, width}, nn::zeros(), dtype),
                 at = g.input("at", {n}, DType::int32), y = gather(table, at, "rows").named("y");
    CompileOptions options{Mesh::parse("x:2"), Layout::parse("rows:x"), {{"run", {y}, false}}};
    options.strict_chunks = kChunks;
    Session session(g, cluster, options);
    session.assign("table", array_of(Whole({"rows", "width"}, {4, 3}, -0.0), dtype));
    Whole indices({"n"}, {4});
    indices.data = {3, 0, 2, 1};
    session.feed("at", array_of(indices, DType::int32));
    session.run("run");
    const Array found = session.fetch("y");
    for (int64_t i = 0; i < found.elements(); ++i) CHECK(std::signbit(found.at(i)));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
