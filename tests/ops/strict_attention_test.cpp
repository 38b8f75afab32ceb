// Attention as one op has the bits of its definition under strict numerics: a rank that has all
// queries and keys runs the kernel, ranks with slices of the keys or of d_head the definition.
#include <bit>
#include <limits>

#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Tensors = OpCase::Tensors;

struct Drawn {
  OpCase row;
  int64_t chunks;
  DType dtype;
  bool has_kernel_gradient;
};

/// x with one infinity and one NaN, at positions along `dim` that causal order hides from most.
Tensor spoiled(const Tensor& x, const std::string& dim) {
  Graph& g = x.graph();
  const Tensor at = iota(g, x.dim(dim));
  const auto number = [&](double n, DType dtype) { return constant(g, n, dtype); };
  const int64_t last = x.dim(dim).size - 1;
  const Tensor inf = number(std::numeric_limits<double>::infinity(), x.dtype());
  return where(broadcast(equal(at, number(static_cast<double>(last), DType::int32)), x.shape()),
               inf, x);
}

Drawn draw(std::mt19937_64& random) {
  const auto below = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  };
  const auto maybe = [&](int64_t n) { return below(n) == 0; };
  const bool of_itself = !maybe(3);
  const int64_t length = 12 + below(60), keys = of_itself ? length : 1 + below(90);
  const Dim batch("batch", 1 + below(2)), heads("heads", 1 + below(3)),
      each("heads_per_key", 1 + below(4)), queries("length", length), memory("memory_length", keys),
      d_head("d_head", 1 + below(20)), own("d_value", 1 + below(40)),
      entries("entries", 2 * below(9) + 1);
  const bool shares = maybe(2), one_key = maybe(4), other_values = maybe(4), segments = maybe(3),
             slopes = maybe(4), biases = maybe(5), is_spoiled = maybe(6);
  std::vector<Dim> of_query = {batch, heads};
  if (shares) of_query.push_back(each);
  of_query.push_back(queries);
  of_query.push_back(d_head);
  AttentionOptions o;
  o.causal = of_itself && !maybe(3);
  if (maybe(3)) o.window = 1 + below(20);
  if (maybe(4)) o.soft_cap = 2;
  if (maybe(4)) o.dropout = 0.25;
  const int64_t cut = 1 + below(length), gap = below(4);
  Drawn drawn{{}, int64_t{2} << below(4), DType::float32, true};
  drawn.has_kernel_gradient = !biases && (!shares || each.size <= drawn.chunks);
  const int64_t type = below(8);
  if (type == 0) drawn.dtype = DType::float64;
  if (type == 1) drawn.dtype = DType::float16;
  if (type == 2 || type == 3) drawn.dtype = DType::bfloat16;
  OpCase& row = drawn.row;
  row.name = fmt::format(
      "{} {}, keys {}, strict:{}, causal {}, window {}, cap {}, dropout {}, segments {}, slopes "
      "{}, biases {}, spoiled {}",
      to_string(drawn.dtype), Shape(of_query).to_string(), keys, drawn.chunks, o.causal,
      o.window.value_or(0), o.soft_cap, o.dropout, segments, slopes, biases, is_spoiled);
  const Shape of_key({batch, heads, memory, d_head});
  row.in = {real("q", Shape(of_query), -2, 2),
            real("k", one_key ? of_key.without({"heads"}) : of_key, -2, 2),
            real("v", {batch, memory, heads, other_values ? own : d_head})};
  if (biases) row.in.push_back(real("biases", {heads, entries}));
  row.random = true;
  row.build = [=](Graph& g, const Tensors& x) -> Tensors {
    AttentionOptions with = o;
    if (segments) {
      const auto ids = [&](const Dim& dim) {  // 1 1 1 2 2 0 0
        const Tensor at = iota(g, dim);
        const auto number = [&](int64_t n) {
          return constant(g, static_cast<double>(n), DType::int32);
        };
        const Tensor id = cast(at >= number(cut), DType::int32) + number(1);
        return where(at < number(dim.size - gap), id, number(0));
      };
      with.segments = ids(queries);
      with.memory_segments = ids(memory);
    }
    if (slopes) with.slopes = broadcast(constant(g, 0.25, DType::float32), Shape{heads});
    if (biases) with.by_distance = x[3];
    const Tensor value = is_spoiled ? spoiled(x[2], "memory_length") : x[2],
                 query = is_spoiled ? spoiled(x[0], "length") : x[0];
    const Tensor key = one_key ? broadcast(x[1], of_key) : x[1];  // of all heads
    return {attention(query, key, value, {}, with)};
  };
  return drawn;
}

TEST_CASE("attention as one op has the bits of its definition", "[strict]") {
  std::mt19937_64 random(seed_of_run(11));
  Clusters clusters;
  int gradients = 0, several = 0;
  for (int n = 0; n < 120; ++n) {
    const Drawn drawn = draw(random);
    const BuiltCase built(drawn.row, drawn.dtype);
    const auto run = [&](const std::string& mesh, const std::string& layout, int threads) {
      const Mesh of = Mesh::parse(mesh);
      const auto session =
          built.compile(clusters.of(of.size()), of, layout, "cpu", drawn.chunks, threads);
      std::vector<Array> values;
      for (const BuiltCase::Round& round : built.rounds) {
        built.feed(*session, round);
        session->run("all");
        for (const Tensor& t : built.fetched()) values.push_back(session->fetch(t.name()));
      }
      return std::pair(session->program().text(), values);
    };
    INFO(drawn.row.name);
    const auto [program, values] = run("x:1", "", 1 + n % 2);
    CHECK(program.find("= attention(") != std::string::npos);
    CHECK((program.find("= attention_grad(") != std::string::npos) == drawn.has_kernel_gradient);
    gradients += drawn.has_kernel_gradient;
    for (const char* layout : {"memory_length:x", "d_head:x"}) {
      try {
        const auto [other, parts] = run("x:2", layout, 1);
        CHECK(other.find("= attention(") == std::string::npos);
        ++several;
        REQUIRE(values.size() == parts.size());
        for (size_t i = 0; i < values.size(); ++i) {
          INFO(layout << ": " << built.fetched()[i % built.fetched().size()].name());
          int64_t different = 0;
          for (int64_t e = 0; e < values[i].elements(); ++e) {
            const double a = values[i].at(e), b = parts[i].at(e);
            different += !(std::isnan(a) && std::isnan(b)) &&
                         std::bit_cast<uint64_t>(a) != std::bit_cast<uint64_t>(b);
          }
          CHECK(different == 0);
        }
      } catch (const Error& e) {
        UNSCOPED_INFO(e.what());
        CHECK(std::string(e.what()) == "");
      }
    }
  }
  CHECK(gradients > 60);
  CHECK(several > 150);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
