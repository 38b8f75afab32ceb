// A user-defined operation that is not built from Tessera's ops, in one file: interpolation in a
// table. It declares its index space; from that it follows that layouts may split every dim, also
// that of the table. The program tests the op, then fits a table to a curve on a 2x2 mesh.
#include <cmath>
#include <cstdio>

#include "tessera/tessera.h"
#include "tessera/testing.h"
using namespace tessera;

namespace {

const std::string& knots_of(const Attrs& attrs) { return attrs.get<std::string>("knots"); }

/// Operands: table [knots, ...], x [...].
std::vector<ValueType> infer(const OpCall& call) {
  const ValueType &table = call.in[0], &x = call.in[1];
  const Dim& knots = table.shape.dim(knots_of(call.attrs));  // throws, with the nearest name
  if (knots.size < 2) throw Error(ErrorKind::usage, "dim '" + knots.name + "' needs two knots");
  if (table.dtype != x.dtype) throw Error(ErrorKind::usage, "table and x differ in dtype");
  return {{x.shape.united(table.shape.without({knots.name})), x.dtype}};
}

/// By name, except that rows of the table are looked up by value: each rank handles only its rows.
IndexSpace factors(const OpCall& call) {
  IndexSpace space = index_space_by_name(call);
  for (Factor& f : space.factors) {
    if (f.name == knots_of(call.attrs)) f.role = Role::lookup;
  }
  return space;
}

template <class T>
void interpolate_slices(const HostCall& call) {
  const int k = call.find(knots_of(*call.attrs));
  const HostDim& knots = call.dims[k];
  const HostOperand& table = call.in[0];
  const auto share = [&](std::span<const int64_t> index, int64_t row, double weight) {
    const int64_t here = row - knots.offset;
    if (here < 0 || here >= knots.size) return 0.0;  // belongs to another rank
    return weight * static_cast<double>((&table.at<T>(index))[here * table.strides[k]]);
  };
  const auto visit = [&](std::span<const int64_t> index) {
    const auto last = static_cast<double>(knots.extent - 1);
    const double x = std::fmin(std::fmax(call.in[1].at<T>(index), 0.0), last);
    const int64_t row = std::min(static_cast<int64_t>(x), knots.extent - 2);
    const double t = x - static_cast<double>(row);
    call.out[0].at<T>(index) = static_cast<T>(share(index, row, 1 - t) + share(index, row + 1, t));
  };
  call.each(visit, k);
}

void run_on_host(const HostCall& call) {
  if (call.in[0].dtype == DType::float32) return interpolate_slices<float>(call);
  if (call.in[0].dtype == DType::float64) return interpolate_slices<double>(call);
  throw Error(ErrorKind::unsupported, "only float32 and float64 are interpolated");
}

/// Built from Tessera's ops; another host op would also work.
std::vector<Tensor> gradient(const GradCall& call) {
  Tensor table = call.in[0], x = call.in[1], g = call.grads[0];
  const std::string& knots = knots_of(call.attrs);
  const auto last = static_cast<double>(table.dim(knots).size - 1);
  Tensor at = clip(x, 0, last), low = clip(floor(at), 0, last - 1), t = at - low;
  Tensor row = cast(low, DType::int32), next = row + 1;
  Tensor by_table = scatter_add(row, g * (1 - t), table.shape(), knots) +
                    scatter_add(next, g * t, table.shape(), knots);
  Tensor rise = gather(table, next, knots) - gather(table, row, knots);
  Tensor by_x = einsum({g, rise}, x.shape());
  return {by_table, where(logical_and(x >= 0, x <= last), by_x, 0 * by_x)};
}

constinit const Op kInterpolate = {.name = "interpolate",
                                   .infer = infer,
                                   .factors = factors,
                                   .linear = {0b01},  // in the table only
                                   .gradient = gradient,
                                   .host = run_on_host};

/// Interpolates linearly between the table's rows floor(x) and floor(x) + 1; an x outside gets the
/// nearest row.
Tensor interpolate(Tensor table, Tensor x, const std::string& knots, Loc at = Loc::current()) {
  return x.graph().add(kInterpolate, {table, x}, {{"knots", knots}}, at)[0];
}

testing::OpReport test_interpolate() {
  testing::OpTest test;
  test.name = "interpolate";
  test.in = {{"table", {Dim("knots", 7)}}, {"x", {Dim("batch", 5)}, 0, 6}};
  using Tensors = testing::OpTest::Tensors;
  using Values = testing::OpTest::Values;
  test.build = [](Graph&, const Tensors& in) -> Tensors {
    return {interpolate(in[0], in[1], "knots")};
  };
  test.expect = [](const Values& in) -> Values {
    std::vector<double> y;
    for (double x : in[1]) {
      const auto row = static_cast<size_t>(x);
      y.push_back(in[0][row] + (x - std::floor(x)) * (in[0][row + 1] - in[0][row]));
    }
    return {y};
  };
  return testing::test_op(test);
}

/// Rows of a table that fit a sine. Lines of print() nodes go to a callback.
double fit_a_sine() {
  const Dim batch("batch", 64), knots("knots", 9);
  Graph g;
  Tensor x = random_uniform(g, {batch}, 0, 8);
  Tensor table = g.parameter("table", {knots}, nn::zeros());
  Tensor loss = mean_all(square(interpolate(table, x, "knots") - sin(x))).named("loss");
  print(loss, "fit");
  minimize(loss, constant(g, 2), sgd());
  CompileOptions options{Mesh::parse("data:2;model:2"),
                         Layout::parse("batch:data;knots:model"),
                         {{"train", {loss}, true}}};
  int lines = 0;
  options.print = [&](const std::string& line) {
    if (lines++ % 100 == 0) std::printf("%s\n", line.c_str());
  };
  Cluster ranks = Cluster::threads(4);
  Session session(g, ranks, options);
  for (int step = 0; step < 400; ++step) session.run("train");
  return session.fetch_scalar("loss");
}

}  // namespace

int main() try {
  const testing::OpReport report = test_interpolate();
  std::printf("%s\n", report.to_string().c_str());
  const double loss = fit_a_sine();
  std::printf("mean square error of the table: %.5f\n", loss);
  return report.ok() && loss < 0.01 ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "own_op: %s\n", e.what());
  return 1;
}
