// bench_python_steps: the C++ side of python_overhead.py, which starts it. For each line "gpt N" or
// "empty N" of its standard input it makes N steps, as the program in Python does: feed, run, fetch
// the result. It answers with microseconds a step: of the clock, and of processors.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

/// A compiled step with what it is fed.
class Step {
 public:
  virtual ~Step() = default;
  virtual void make() = 0;
  void time(int steps) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t used = std::clock();
    for (int i = 0; i < steps; ++i) make();
    const double of_processors = 1e6 * static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
    const std::chrono::duration<double, std::micro> all = std::chrono::steady_clock::now() - begin;
    std::printf("%.3f %.3f\n", all.count() / steps, of_processors / steps);
    std::fflush(stdout);
  }
};

/// A training step of the quickstart's model.
class Gpt final : public Step {
 public:
  Gpt()
      : inputs_(DType::int32, {"batch", "length"}, {16, 64}),
        targets_(DType::int32, {"batch", "length"}, {16, 64}) {
    nn::GptOptions o;
    o.layers = 2;
    o.length = 64;
    o.batch = 16;
    const Minimized step =
        minimize(nn::gpt(g_, o).loss, constant(g_, 2e-3), adam({.weight_decay = 0.01}));
    for (int i = 0; i < 16 * 64; ++i) {
      inputs_.data<int32_t>()[i] = i * 7 % 256;
      targets_.data<int32_t>()[i] = (i + 1) * 7 % 256;
    }
    loss_ = step.loss.name();
    const FunctionSpec function{"step", {step.loss, step.gradient_norm}, true};
    session_ = std::make_unique<Session>(
        g_, ranks_, CompileOptions{Mesh::parse("data:2"), Layout::parse("batch:data"), {function}});
  }
  void make() override {
    session_->feed("inputs", inputs_);
    session_->feed("targets", targets_);
    session_->run("step");
    session_->fetch_scalar(loss_);
  }

 private:
  Graph g_;
  Cluster ranks_ = Cluster::threads(2);
  Array inputs_, targets_;
  std::string loss_;
  std::unique_ptr<Session> session_;
};

/// x + 1 of a scalar, on one rank.
class Empty final : public Step {
 public:
  Empty() : x_(DType::float32, {}, {}) {
    Tensor y = g_.input("x", Shape{}, DType::float32) + 1.0;
    result_ = y.name();
    session_ = std::make_unique<Session>(
        g_, ranks_, CompileOptions{Mesh::parse("all:1"), {}, {{"step", {y}, false}}});
  }
  void make() override {
    session_->feed("x", x_);
    session_->run("step");
    session_->fetch_scalar(result_);
  }

 private:
  Graph g_;
  Cluster ranks_ = Cluster::threads(1);
  Array x_;
  std::string result_;
  std::unique_ptr<Session> session_;
};

}  // namespace

int main() try {
  Gpt gpt;
  Empty empty;
  char name[16];
  int steps = 0;
  while (std::scanf("%15s %d", name, &steps) == 2) {
    Step& step = std::strcmp(name, "gpt") == 0 ? static_cast<Step&>(gpt) : empty;
    step.time(steps);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
