// Experts whose choices are fed, so that a test knows which rows travel.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {

/// Experts of choices that are fed, and their training: y of x, and the loss.
struct FedExperts {
  FedExperts(int64_t experts, int64_t rows, double dispatch_capacity = 2) {
    const Dim batch("batch", 16), length("length", rows), model("d_model", 8), ff("ff", 6);
    const Dim expert("experts", experts), choices("choices", 2);
    Tensor x = g.input("x", {batch, length, model}, DType::float64);
    Tensor indices = g.input("indices", {batch, length, choices}, DType::int32);
    Tensor gates = sigmoid(g.parameter("gate", {choices}, nn::ones(), DType::float64));
    nn::Experts weights;
    weights.activations = {"silu", "linear"};
    weights.dispatch_capacity = dispatch_capacity;
    for (const char* name : {"up0", "up1"})
      weights.up.push_back(g.parameter(name, {expert, model, ff}, nn::normal(0.3), DType::float64));
    weights.down = g.parameter("down", {expert, ff, model}, nn::normal(0.3), DType::float64);
    Tensor h = x * g.parameter("scale", {model}, nn::ones(), DType::float64);
    Tensor y = nn::experts(h, indices, broadcast(gates, indices.shape()), weights);
    loss = mean_all(square(y - h + 1.0)).named("loss");
    minimize(loss, constant(g, 0.1, DType::float64), sgd());
  }
  CompileOptions options(const std::string& mesh, const std::string& layout) const {
    CompileOptions o{Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss}, true}}};
    o.profile = true;
    return o;
  }
  Graph g;
  Tensor loss;
};

/// Choices of which a share goes to the first expert, and the most rows that one of `ranks` ranks
/// then has for another.
struct Choices {
  Choices(int64_t experts, int64_t rows, int ranks, double share, uint32_t seed)
      : array(DType::int32, {"batch", "length", "choices"}, {16, rows, 2}) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    const int64_t each = (experts + ranks - 1) / ranks, here = array.elements() / ranks;
    sent.assign(static_cast<size_t>(ranks), std::vector<int64_t>(static_cast<size_t>(ranks)));
    for (int64_t i = 0; i < array.elements(); ++i) {
      const auto any = static_cast<int32_t>(random() % static_cast<uint64_t>(experts));
      const int32_t chosen = uniform(random) < share ? 0 : any;
      array.data<int32_t>()[i] = chosen;
      most =
          std::max(most, ++sent[static_cast<size_t>(i / here)][static_cast<size_t>(chosen / each)]);
    }
  }
  Array array;
  std::vector<std::vector<int64_t>> sent;  ///< rows, by rank and owner
  int64_t most = 0;
};

inline Array wave(int64_t rows) {
  Array x(DType::float64, {"batch", "length", "d_model"}, {16, rows, 8});
  for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = std::sin(0.37 * i * i);
  return x;
}

}  // namespace tessera::test
