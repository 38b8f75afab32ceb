// Handwritten digits: a two-layer network, trained on a 2x2 mesh of ranks. By default the ranks are
// four threads; under `mpirun -n 4` they are four processes. Run it in the root of the repository.
#include <cstdio>

#include "tessera/data.h"
#include "tessera/tessera.h"
using namespace tessera;

int main() try {
  IdxData digits("data/digits/train-images-idx3-ubyte.gz",
                 "data/digits/train-labels-idx1-ubyte.gz");
  Batcher batches(digits, 64);
  Dim batch("batch", 64), rows("rows", 28), cols("cols", 28), hidden("hidden", 256);
  Dim classes("classes", 10);

  Graph g;
  Tensor images = g.input("images", {batch, rows, cols}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  Tensor w1 = g.parameter("w1", {rows, cols, hidden}, nn::scaled_normal({"rows", "cols"}));
  Tensor w2 = g.parameter("w2", {hidden, classes}, nn::scaled_normal({"hidden"}));
  Tensor logits = einsum({relu(einsum({images, w1}, {batch, hidden})), w2}, {batch, classes});
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes")).named("loss");
  minimize(loss, constant(g, 0.1), sgd());

  Cluster ranks = Cluster::from_environment(4);
  Mesh mesh = Mesh::parse("data:2;model:2");
  Layout layout = Layout::parse("batch:data;hidden:model");
  Session session(g, ranks, {mesh, layout, {{"train", {loss}, true}}});
  for (int step = 1; step <= 500; ++step) {
    batches.feed(session, step - 1);
    session.run("train");
    double value = session.fetch_scalar("loss");
    if (ranks.is_root() && step % 100 == 0) std::printf("step %d: loss %.4f\n", step, value);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "hello: %s\n", e.what());
  return 1;
}
