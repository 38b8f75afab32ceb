#include "gpu/rows_on_gpu.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/fail.h"
#include "support/reference.h"
#include "tessera/nn_layers.h"

namespace tessera::test {

namespace {

struct Allowed {
  double tolerance;
  double floor;  ///< of the norm that errors are relative to
};
Allowed allowed(DType type) {
  switch (type) {
    case DType::float64:
      return {1e-11, 1e-3};
    case DType::bfloat16:
      return {0x1p-6, 1e-2};
    case DType::float16:
      return {0x1p-9, 1e-2};
    default:
      return {2e-5, 1e-3};
  }
}

constexpr size_t npos = std::string::npos;

Array values_of(const Graph& g, const Tensor& x, const Array& given, Cluster& one,
                const std::string& device) {
  CompileOptions options{Mesh::parse("a:1"), {}, {{"f", {x}, false}}};
  options.device = device;
  Session session(g, one, options);
  session.feed("x", given);
  session.run("f");
  return session.fetch(x.name());
}

}  // namespace

std::string errors_of(const RowOnGpu& row, Cluster& one, DType type, int runs) {
  const BuiltCase& built = *row.built;
  const auto expected = built.run(one, Mesh::parse("x:1"), "");
  const std::vector<Tensor> tensors = built.fetched();
  std::string errors;
  for (size_t r = 0; r < expected.size(); ++r) {
    for (int again = 0; again < runs; ++again) {
      built.feed(*row.session, built.rounds[r]);
      row.session->run("all");
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool is_loss = !built.loss().empty() && tensors[i].id() == built.loss().id();
      // The terms of the loss, each rounded, may be larger than their sum.
      const double floor = !is_loss ? allowed(type).floor : is_narrow(type) ? 8.0 : 1.0;
      const double error =
          relative_error(whole_of(row.session->fetch(tensors[i].name())), expected[r][i], floor);
      if (!(error <= allowed(type).tolerance))
        errors += fmt::format("\n{} {} run {}: '{}' is off by {:.3g}", built.row().name,
                              to_string(type), r + 1, tensors[i].name(), error);
    }
  }
  return errors;
}

std::string errors_of_rows(const std::vector<OpCase>& cases, DType type, int runs) {
  Clusters clusters;
  std::vector<RowOnGpu> rows;
  for (const OpCase& row : cases) {
    RowOnGpu c;
    try {
      c.built = std::make_unique<BuiltCase>(row, type);
    } catch (const Error& e) {  // rows that mix the type with float32
      if (!is_narrow(type) || std::string(e.what()).find("no implicit conversion") == npos) throw;
      continue;
    }
    c.session = c.built->compile(clusters.of(1), Mesh::parse("x:1"), "", "cuda");
    rows.push_back(std::move(c));
  }
  std::string errors;
  for (const RowOnGpu& c : rows) {
    try {
      errors += errors_of(c, clusters.of(1), type, runs);
    } catch (const std::exception& e) {
      errors += fmt::format("\n{} {}: {}", c.built->row().name, to_string(type), e.what());
    }
  }
  return errors;
}

std::string errors_of_extremes() {
  Clusters clusters;
  std::string errors;
  for (const DType type : {DType::float32, DType::float64}) {
    Graph g;
    const Dim n("n", 40);
    const Tensor x = g.input("x", {n}, type);
    const Tensor y = mod(x, constant(g, 0.7, type));
    const Tensor z = (sin(x) + cos(x) * 2.0 + y * 4.0).named("z");
    Array given(type, {"n"}, {40});
    for (int64_t i = 0; i < 40; ++i) {
      const double value = (i % 2 == 0 ? 1 : -1) * std::pow(8.3, static_cast<double>(i));
      if (type == DType::float32) given.data<float>()[i] = static_cast<float>(value);
      if (type == DType::float64) given.data<double>()[i] = value;
    }
    const Array cpu = values_of(g, z, given, clusters.of(1), "cpu"),
                cuda = values_of(g, z, given, clusters.of(1), "cuda");
    for (int64_t i = 0; i < 40; ++i) {
      if (!(std::abs(cpu.at(i) - cuda.at(i)) <= (type == DType::float32 ? 1e-5 : 1e-13)))
        errors += fmt::format("\n{}: at {} it is {}, not {}", to_string(type), given.at(i),
                              cuda.at(i), cpu.at(i));
    }
  }
  const std::vector<double> special = {-std::numeric_limits<double>::infinity(),
                                       -2.5,
                                       -2,
                                       -1,
                                       -0.0,
                                       0,
                                       0.5,
                                       1,
                                       3,
                                       std::numeric_limits<double>::infinity(),
                                       std::numeric_limits<double>::quiet_NaN()};
  for (const DType type : {DType::float32, DType::float64}) {
    for (const std::string op : {"pow", "mod", "sort"}) {
      Graph g;
      const Dim n("n", std::ssize(special)), m("m", std::ssize(special));
      const Tensor x = g.input("x", {n}, type);
      const Tensor a = broadcast(x, {n, m}), b = broadcast(rename(x, "n", "m"), {n, m});
      const Tensor z = (op == "pow"   ? pow(a, b)
                        : op == "mod" ? mod(a, b)
                                      : sort(a, "n"))
                           .named("z");
      Array given(type, {"n"}, {n.size});
      for (int64_t i = 0; i < n.size; ++i) {
        const double value = special[static_cast<size_t>(i)];
        if (type == DType::float32) given.data<float>()[i] = static_cast<float>(value);
        if (type == DType::float64) given.data<double>()[i] = value;
      }
      const Array cpu = values_of(g, z, given, clusters.of(1), "cpu"),
                  cuda = values_of(g, z, given, clusters.of(1), "cuda");
      for (int64_t i = 0; i < cpu.elements(); ++i) {
        const double p = cpu.at(i), q = cuda.at(i);
        if (!(p == q || (std::isnan(p) && std::isnan(q)) || std::abs(p - q) <= 1e-6 * std::abs(p)))
          errors += fmt::format("\n{}: {}({}, {}) is {}, not {}", to_string(type), op,
                                given.at(i / m.size), given.at(i % m.size), q, p);
      }
    }
  }
  Graph g;
  const Dim n("n", 3), rows("rows", 4);
  const Tensor x = g.input("x", {n}, DType::int32);
  const Tensor table = g.parameter("table", {rows}, nn::zeros());
  const Tensor picked = gather(table, x, "rows", OutOfRange::error).named("picked");
  Array given(DType::int32, {"n"}, {3});
  given.data<int32_t>()[1] = 7;
  try {
    values_of(g, picked, given, clusters.of(1), "cuda");
    errors += "\nan index out of range is not reported";
  } catch (const Error& e) {
    if (std::string(e.what()).find("index 7") == npos) errors += e.what();
  }
  return errors;
}

}  // namespace tessera::test
