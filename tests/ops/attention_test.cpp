// Attention of many queries on the CPU, whose matrices are copied first, against its formula.
#include <algorithm>
#include <cmath>
#include <functional>

#include "support/apart.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Case {
  int64_t queries, keys, width;
  std::vector<std::string> query, memory;  ///< the order of dims, from far to near
  bool causal = false;
  int64_t window = 0;
  int segments = 0;  ///< documents in a row, the last tenth of which is padding
  double soft_cap = 0;
  int64_t value_width = 0;  ///< 0: that of the keys, and their dim
  bool slopes = false;      ///< another for each head
  int64_t entries = 0;      ///< of biases by distance
  double dropout = 0;
};

std::vector<Case> cases() {
  const std::vector<std::string> apart = {"batch", "length", "heads", "d_head"},
                                 dense = {"batch", "heads", "length", "d_head"},
                                 across = {"heads", "d_head", "length"},
                                 keys_apart = {"batch", "memory_length", "heads", "d_head"},
                                 keys_across = {"batch", "heads", "d_head", "memory_length"},
                                 shared = {"batch", "memory_length", "d_head"};
  return {{64, 64, 16, apart, keys_apart, true},
          {70, 130, 20, apart, keys_apart, true},
          {130, 70, 20, apart, keys_across, false},
          {97, 97, 33, dense, keys_across, true},
          {80, 65, 7, across, keys_apart, false},
          {70, 600, 24, apart, shared, true},
          {66, 66, 1, apart, shared, false},
          {63, 70, 16, apart, keys_apart, true},
          {200, 200, 16, apart, keys_apart, true, 30},
          {130, 170, 16, dense, keys_across, false, 20},
          {70, 70, 16, apart, keys_apart, true, INT64_MAX},  // no limit
          {70, 90, 16, apart, keys_apart, false, INT64_MAX},
          {300, 300, 16, apart, keys_apart, true, 0, 4},
          {300, 300, 8, dense, keys_apart, false, 0, 3},
          {150, 150, 16, apart, shared, true, 0, 0, 0.7},
          {600, 1500, 8, apart, keys_apart, false, 0, 1},
          {300, 300, 16, apart, keys_apart, true, 40, 5, 1.3},
          {70, 130, 24, apart, keys_apart, true, 0, 0, 0, 16},
          {97, 97, 9, dense, keys_across, true, 0, 0, 0, 33},
          {80, 65, 16, across, keys_apart, false, 0, 0, 0, 1},
          {70, 600, 24, apart, shared, true, 30, 3, 0.7, 40},
          {150, 150, 16, apart, shared, true, 0, 0, 0, 0, true},
          {130, 170, 16, dense, keys_across, false, 0, 0, 0, 0, true},
          {300, 300, 16, apart, keys_apart, true, 40, 5, 1.3, 0, true},
          {150, 150, 16, apart, shared, true, 0, 0, 0, 0, false, 21},
          {130, 170, 16, dense, keys_across, false, 0, 0, 0, 0, false, 65},
          {63, 70, 16, apart, keys_apart, false, 0, 0, 0, 0, false, 3},
          {300, 300, 16, apart, keys_apart, true, 40, 5, 1.3, 0, true, 33},
          {150, 150, 16, apart, shared, true, 0, 0, 0, 0, false, 0, 0.3},
          {130, 170, 16, dense, keys_across, false, 0, 0, 0, 0, false, 0, 0.1},
          {97, 131, 9, dense, keys_apart, false, 0, 0, 0, 33, false, 0, 0.5},
          {300, 301, 16, apart, keys_apart, true, 40, 5, 1.3, 0, true, 33, 0.2}};
}

Shape shape_of(const Case& c, const std::vector<std::string>& order) {
  std::vector<Dim> dims;
  for (const std::string& d : order) {
    const int64_t size = d == "length"          ? c.queries
                         : d == "memory_length" ? c.keys
                         : d == "d_head"        ? c.width
                                                : 2;
    dims.emplace_back(d, size);
  }
  return Shape(dims);
}

/// Result and gradients of query, key, value and biases by distance; with a mask that hides nothing
/// it is the formula.
std::vector<Array> attended(const Case& c, DType dtype, bool by_formula) {
  Graph g({.eager = true});
  std::vector<Tensor> in;
  for (const auto& order : {c.query, c.memory, c.memory}) {
    std::vector<Dim> dims = shape_of(c, order).dims();
    if (in.size() == 2 && c.value_width > 0)
      std::replace(dims.begin(), dims.end(), Dim("d_head", c.width), Dim("d_value", c.value_width));
    in.push_back(cast(random_normal(g, Shape(dims), 0, 1, DType::float64), dtype));
  }
  nn::BiasedOptions o;
  o.causal = c.causal;
  if (c.window > 0) o.window = c.window;
  o.soft_cap = c.soft_cap;
  if (c.segments > 0) {
    const auto ids = [&](const char* dim, int64_t n) {
      Array array(DType::int32, {dim}, {n});
      for (int64_t i = 0; i < n; ++i)
        array.data<int32_t>()[i] =
            i >= n * 9 / 10 ? 0 : static_cast<int32_t>(1 + i * c.segments / n);
      return constant(g, array);
    };
    o.segments = ids("length", c.queries);
    o.memory_segments = ids("memory_length", c.keys);
  }
  if (c.slopes) {
    Array array(DType::float64, {"heads"}, {2});
    array.data<double>()[0] = 0.125, array.data<double>()[1] = 0.5;
    o.slopes = constant(g, array);
  }
  if (c.entries > 0) {
    const Shape shape{Dim("entries", c.entries), Dim("heads", 2)};
    in.push_back(cast(random_normal(g, shape, 0, 1, DType::float64), dtype));
    o.by_distance = in.back();
  }
  o.dropout = c.dropout;
  Tensor mask;
  if (by_formula) mask = constant(g, 1, DType::bool_, Shape{in[0].dim("length")});
  Tensor out = nn::biased_attention(in[0], in[1], in[2], mask, o);
  Tensor weights = random_normal(g, out.shape(), 0, 1, DType::float64);
  std::vector<Tensor> all = gradients(sum_all(cast(out, DType::float64) * weights), in);
  all.insert(all.begin(), out);
  std::vector<Array> values;
  for (Tensor t : all) values.push_back(g.fetch(cast(t, DType::float64)));
  return values;
}

TEST_CASE("attention of many queries, however they lie, has the values of its formula") {
  for (const Case& c : cases()) {
    const std::vector<Array> expected = attended(c, DType::float64, true);
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::float64, 1e-12}, {DType::float32, 2e-5}, {DType::bfloat16, 0.1}}) {
      INFO(c.queries << " queries, " << c.keys << " keys of " << c.width << ", "
                     << to_string(dtype));
      const std::vector<Array> got = attended(c, dtype, false);
      for (size_t i = 0; i < got.size(); ++i) {
        double worst = 0, largest = 0;
        for (int64_t j = 0; j < got[i].elements(); ++j) {
          const double x = got[i].data<double>()[j], y = expected[i].data<double>()[j];
          worst = std::max(worst, apart(x, y));
          largest = std::max(largest, std::abs(y));
        }
        INFO("of result and gradients number " << i);
        CHECK(worst <= tolerance * largest);
      }
    }
  }
}

/// Attention by one of its doors, of two queries and three keys [heads, ...]. Each of them hides
/// all keys from query 1, and key 2 from query 0.
struct Door {
  const char* name;
  std::function<Tensor(Tensor q, Tensor k, Tensor v)> attended;
};

std::vector<Door> doors() {
  const auto ids = [](Graph& g, const char* dim, const std::vector<int32_t>& values) {
    return constant(g, Array::of<int32_t>(Shape{Dim(dim, std::ssize(values))}, values));
  };
  const auto mask = [=](Graph& g) {  // [length, memory_length]
    const Tensor i = iota(g, Dim("length", 2)), j = iota(g, Dim("memory_length", 3));
    return logical_and(equal(i, 0.0), less(j, 2.0));
  };
  const auto bias = [=](Graph& g) {
    return where(mask(g), constant(g, 0.0, DType::float32), constant(g, -INFINITY, DType::float32));
  };
  const auto segments = [=](Graph& g) {
    AttentionOptions o;
    o.segments = ids(g, "length", {1, 0});
    o.memory_segments = ids(g, "memory_length", {1, 1, 0});
    return o;
  };
  return {
      {"mask", [=](Tensor q, Tensor k, Tensor v) { return attention(q, k, v, mask(q.graph())); }},
      {"mask with sinks",
       [=](Tensor q, Tensor k, Tensor v) {
         AttentionOptions o;
         o.sinks = constant(q.graph(), -1e30, DType::float32, {q.dim("heads")});
         return attention(q, k, v, mask(q.graph()), o);
       }},
      {"segments",
       [=](Tensor q, Tensor k, Tensor v) { return attention(q, k, v, {}, segments(q.graph())); }},
      {"bias",
       [=](Tensor q, Tensor k, Tensor v) {
         nn::BiasedOptions o;
         o.bias = bias(q.graph());
         return nn::biased_attention(q, k, v, {}, o);
       }},
      {"mask and bias",
       [=](Tensor q, Tensor k, Tensor v) {
         nn::BiasedOptions o;
         o.bias = constant(q.graph(), 0.5, DType::float32, {k.dim("memory_length")});
         return nn::biased_attention(q, k, v, mask(q.graph()), o);
       }},
      {"talking heads",
       [=](Tensor q, Tensor k, Tensor v) {
         const Dim heads = q.dim("heads"), mixed("mixed", heads.size),
                   last("heads_out", heads.size);
         const auto one = [&](const Dim& from, const Dim& to) {
           return cast(equal(iota(q.graph(), from), iota(q.graph(), to)), DType::float32);
         };
         const Tensor out = nn::talking_heads(q, k, rename(v, "heads", "heads_out"),
                                              one(heads, mixed), one(mixed, last), mask(q.graph()));
         return rename(out, "heads_out", "heads");
       }},
  };
}

TEST_CASE("a query that sees nothing gets zeros and no gradient by every door") {
  const Dim heads("heads", 2), length("length", 2), memory("memory_length", 3), depth("d_head", 4);
  for (const Door& door : doors()) {
    for (const char* layout : {"", "memory_length:a", "length:a", "heads:a"}) {
      INFO(door.name << " under '" << layout << "'");
      Graph g;
      std::vector<Tensor> in = {random_normal(g, {heads, length, depth}),
                                random_normal(g, {heads, memory, depth}),
                                random_normal(g, {heads, memory, depth})};
      const Tensor seen = door.attended(in[0], in[1], in[2]),
                   out = transpose(seen, {length, heads, depth}).named("out");
      const std::vector<Tensor> d = gradients(sum_all(square(out)), in);
      const Tensor dq = transpose(d[0], {length, heads, depth}).named("dq"),
                   dv = transpose(d[2], {memory, heads, depth}).named("dv");
      Cluster ranks = Cluster::threads(2);
      Session session(g, ranks,
                      {Mesh::parse("a:2"), Layout::parse(layout), {{"f", {out, dq, dv}}}});
      session.run("f");
      const auto is_zero_from = [&](const char* name, int64_t first) {
        const Array x = session.fetch(name);
        double before = 0;
        for (int64_t i = 0; i < first; ++i) before += std::abs(x.at(i));
        CHECK(before > 1e-3);
        for (int64_t i = first; i < x.elements(); ++i) CHECK(x.at(i) == 0);
      };
      is_zero_from("out", 8);
      is_zero_from("dq", 8);
      is_zero_from("dv", 16);  // a key that no query sees
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
