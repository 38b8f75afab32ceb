// A signal handler runs on the stack of the thread that it interrupts. Libraries' kernels that keep
// something below the stack pointer would compute other numbers then, or write elsewhere.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {
namespace TESSERA_FILE {

void use_the_stack(int) {
  volatile char bytes[1 << 14];
  for (volatile char& byte : bytes) byte = 0x5a;
}

/// While it lives, a thread is interrupted over and over.
class Interruptions {
 public:
  explicit Interruptions(pthread_t thread) {
    struct sigaction action {};
    action.sa_handler = use_the_stack;
    action.sa_flags = SA_RESTART;
    sigaction(SIGURG, &action, &before_);
    sender_ = std::thread([this, thread] {
      for (; !end_; std::this_thread::sleep_for(std::chrono::microseconds(50)))
        pthread_kill(thread, SIGURG);
    });
  }
  ~Interruptions() {
    end_ = true;
    sender_.join();
    sigaction(SIGURG, &before_, nullptr);
  }

 private:
  std::atomic<bool> end_ = false;
  struct sigaction before_ {};
  std::thread sender_;
};

/// Matmuls of several shapes in each order of dims, and a convolution with its gradients.
std::vector<Tensor> products(Graph& g, DType dtype) {
  std::vector<Tensor> all;
  for (const int64_t rows : {32, 128, 384}) {
    const Dim m(fmt::format("m{}", rows), rows), k("k", 384), n("n", 512);
    for (const bool a_turned : {false, true}) {
      for (const bool b_turned : {false, true}) {
        const Tensor a = random_uniform(g, a_turned ? Shape{k, m} : Shape{m, k}, -1, 1, dtype),
                     b = random_uniform(g, b_turned ? Shape{n, k} : Shape{k, n}, -1, 1, dtype);
        all.push_back(einsum({a, b}, {m, n}));
      }
    }
  }
  const Dim images("images", 8), x("x", 24), y("y", 24), in("in", 32), out("out", 32);
  const Tensor image = random_uniform(g, {images, y, x, in}, -1, 1, dtype),
               filter = random_uniform(g, {Dim("wy", 3), Dim("wx", 3), in, out}, -1, 1, dtype);
  const Tensor made = conv(image, filter, {{{"y", "wy"}, {"x", "wx"}}});
  all.push_back(made);
  for (const Tensor t : gradients(mean_all(square(made)), {image, filter})) all.push_back(t);
  return all;
}

TEST_CASE("kernels compute the same while signals are handled", "[fast]") {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Graph g;
    const std::vector<Tensor> results = products(g, dtype);
    Cluster cluster = Cluster::threads(1);
    Session session(g, cluster,
                    {Mesh::parse("one:1"), Layout::parse(""), {{"run", results, false}}, 0, 1});
    const auto run = [&] {
      session.run("run");
      std::vector<Array> values;
      for (const Tensor& t : results) values.push_back(session.fetch(t.name()));
      return values;
    };
    const std::vector<Array> quiet = run();
    const Interruptions interruptions(pthread_self());
    for (int round = 0; round < 20; ++round) {
      const std::vector<Array> disturbed = run();
      for (size_t i = 0; i < quiet.size(); ++i) {
        INFO(to_string(dtype) << " " << results[i].name() << " in round " << round);
        REQUIRE(disturbed[i].bytes == quiet[i].bytes);
      }
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
