// The heat equation on a plate, without machine learning: du/dt = u_xx + u_yy by explicit steps.
// The plate is state, a step is its update, and the layout splits the plate into four tiles. The
// code does not mention ranks.
//
// The second difference along an axis is a product with a tridiagonal matrix, built from indices;
// the border stays at 0. A sine wave is an eigenvector of that matrix, so the result is compared
// with the exact discrete solution.
#include <cmath>
#include <cstdio>

#include "tessera/tessera.h"
using namespace tessera;

namespace {

constexpr int kPoints = 64;    // inner points along each axis
constexpr double kRate = 0.2;  // dt / dx^2; stable up to 0.25
constexpr double kPi = 3.14159265358979323846;

/// A matrix [from, to]: -2 on the diagonal, 1 next to it.
Tensor second_difference(Graph& g, const Dim& from, const Dim& to) {
  Tensor distance = abs(cast(iota(g, from) - iota(g, to), DType::float64));
  Tensor zero = constant(g, 0, DType::float64), one = constant(g, 1, DType::float64);
  return where(distance < 0.5, one * -2.0, where(distance < 1.5, one, zero));
}

/// sin along both axes: hot in the middle, 0 just outside.
Tensor hot_plate(Graph& g, const Shape& shape, DType dtype) {
  Tensor result = constant(g, 1, dtype, shape);
  for (const Dim& d : shape)
    result = result * sin((cast(iota(g, d), dtype) + 1.0) * (kPi / (kPoints + 1)));
  return result;
}

}  // namespace

int main() try {
  const Dim x("x", kPoints), y("y", kPoints), new_x("new_x", kPoints), new_y("new_y", kPoints);
  Graph g;
  Tensor u = g.state("u", {x, y}, hot_plate, DType::float64);
  Tensor along_x = rename(einsum({u, second_difference(g, x, new_x)}, {new_x, y}), "new_x", "x");
  Tensor along_y = rename(einsum({u, second_difference(g, y, new_y)}, {x, new_y}), "new_y", "y");
  Tensor next = u + (along_x + along_y) * kRate;
  g.update(u, next);
  Tensor hottest = reduce_max(next, {"x", "y"}).named("hottest");

  Cluster cluster = Cluster::from_environment(4);
  Session session(g, cluster,
                  {Mesh::parse("rows:2;cols:2"),
                   Layout::parse("x:rows; y:cols"),
                   {{"step", {hottest}, /*updates=*/true}}});
  const double top = std::sin(kPi * (kPoints / 2) / (kPoints + 1));
  const double start = top * top;
  const double factor = 1 - 8 * kRate * std::pow(std::sin(kPi / (2 * (kPoints + 1))), 2);
  double worst = 0;
  for (int step = 1; step <= 1000; ++step) {
    session.run("step");
    const double computed = session.fetch_scalar("hottest"), exact = start * std::pow(factor, step);
    worst = std::fmax(worst, std::fabs(computed - exact) / exact);
    if (cluster.is_root() && step % 200 == 0)
      std::printf("step %4d: hottest %.12f, exact %.12f\n", step, computed, exact);
  }
  if (cluster.is_root()) std::printf("largest relative difference %.1e\n", worst);
  return worst < 1e-10 ? 0 : 1;
} catch (const Error& e) {
  std::fprintf(stderr, "heat: %s\n", e.what());
  return 1;
}
