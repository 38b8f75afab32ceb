// Prints the Programs of three models as C++ compiles them, for the tests of the Python package.
#include <cmath>
#include <cstdio>
#include <string>

#include "tessera/tessera.h"
using namespace tessera;

namespace {

void print_program(const Graph& g, const char* mesh, const char* layout,
                   const FunctionSpec& function) {
  const Mesh axes = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(axes.size());
  const Session session(g, cluster, {axes, Layout::parse(layout), {function}});
  std::fputs(session.program().text().c_str(), stdout);
}

void gpt() {
  Graph g;
  nn::GptOptions o;
  o.layers = 2;
  o.length = 64;
  o.batch = 16;
  const Minimized step =
      minimize(nn::gpt(g, o).loss, constant(g, 2e-3), adam({.weight_decay = 0.01}));
  print_program(g, "data:2;model:2", "batch:data;heads,ff,vocab:model",
                {"step", {step.loss, step.gradient_norm}, true});
}

void llama() {
  Graph g;
  const Dim batch("batch", 4), length("length", 16), d_model("d_model", 32), ff("ff", 64);
  Tensor x = g.input("x", {batch, length, d_model}, DType::float32);
  nn::MultiHeadOptions heads;
  heads.heads = 4;
  heads.memory_heads = 2;
  heads.d_head = 8;
  heads.bias = false;
  heads.rotary = true;
  heads.attention.causal = true;
  Tensor h =
      x + nn::self_attention(nn::rms_norm(x, "norm1", "d_model"), "attention", "d_model", heads);
  nn::FeedForwardOptions gated;
  gated.activations = {"silu", "linear"};
  gated.dense.bias = false;
  h = h + nn::feed_forward(nn::rms_norm(h, "norm2", "d_model"), "mlp", "d_model", ff, gated);
  const Minimized step = minimize(mean_all(square(h)), constant(g, 0.1), sgd());
  print_program(g, "data:2;model:2", "batch:data; heads,ff:model",
                {"step", {step.loss, step.gradient_norm}, true});
}

Tensor second_difference(Graph& g, const Dim& from, const Dim& to) {
  Tensor distance = abs(cast(iota(g, from) - iota(g, to), DType::float64));
  Tensor zero = constant(g, 0, DType::float64), one = constant(g, 1, DType::float64);
  // One statement each: in which order arguments are evaluated is the compiler's choice.
  Tensor here = distance < 0.5, twice = one * -2.0, beside = distance < 1.5;
  Tensor rest = where(beside, one, zero);
  return where(here, twice, rest);
}

Tensor hot_plate(Graph& g, const Shape& shape, DType dtype) {
  Tensor result = constant(g, 1, dtype, shape);
  for (const Dim& d : shape) result = result * sin((cast(iota(g, d), dtype) + 1.0) * (M_PI / 65));
  return result;
}

void heat() {
  const Dim x("x", 64), y("y", 64), new_x("new_x", 64), new_y("new_y", 64);
  Graph g;
  Tensor u = g.state("u", {x, y}, hot_plate, DType::float64);
  Tensor along_x = rename(einsum({u, second_difference(g, x, new_x)}, {new_x, y}), "new_x", "x");
  Tensor along_y = rename(einsum({u, second_difference(g, y, new_y)}, {x, new_y}), "new_y", "y");
  Tensor next = u + (along_x + along_y) * 0.2;
  g.update(u, next);
  print_program(g, "rows:2;cols:2", "x:rows; y:cols",
                {"step", {reduce_max(next, {"x", "y"}).named("hottest")}, true});
}

}  // namespace

int main(int, char** argv) try {
  const std::string model = argv[1];
  model == "gpt" ? gpt() : model == "llama" ? llama() : heat();
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
