// Rows of op_cases.h, built and run; and the layouts that they are run under.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/op_cases.h"
#include "tessera/cluster.h"
#include "tessera/session.h"

namespace tessera::test {

/// A row's graph in one floating type, with the loss sum(results * weights) and its gradients.
class BuiltCase {
 public:
  BuiltCase(const OpCase& row, DType type);

  const OpCase& row() const { return row_; }
  const Graph& graph() const { return graph_; }
  const std::vector<Tensor>& results() const { return out_; }
  const Tensor& loss() const { return loss_; }  ///< empty if nothing has a gradient
  const std::vector<Tensor>& gradients() const { return grads_; }
  /// Results, loss and gradients: what run() returns, in this order.
  std::vector<Tensor> fetched() const;

  /// What one run is given: the values of the operands by name, the weights of the loss among them,
  /// and the sizes of bounded dims.
  struct Round {
    std::map<std::string, Whole> feeds;
    std::map<std::string, int64_t> sizes;
  };
  /// A Program runs once with each; in the second, bounded dims are shorter by one.
  std::array<Round, 2> rounds;
  /// Operands in the order of the row, then the parameters that its build() made; and the position
  /// in it of each gradient's.
  const std::vector<CaseInput>& in() const { return cases_; }
  std::vector<Whole> operands(const Round& round) const;
  const std::vector<size_t>& differentiable() const { return differentiable_; }

  /// Compiles for a mesh and layout. `what` is a function of fetched() or of the loss alone.
  std::unique_ptr<Session> compile(Cluster& cluster, const Mesh& mesh, const std::string& layout,
                                   const std::string& device = "cpu", int64_t strict_chunks = 0,
                                   int threads = 0) const;
  void feed(Session& session, const Round& round) const;
  /// fetched() of each round, all from one Session.
  std::array<std::vector<Whole>, 2> run(Cluster& cluster, const Mesh& mesh,
                                        const std::string& layout) const;
  /// A reference with all operands set.
  Reference reference(const Round& round) const;

 private:
  void take(const CaseInput& in, Tensor tensor);
  void draw(const CaseInput& in);
  void add_loss();

  const OpCase& row_;
  DType type_;
  Graph graph_;
  std::vector<CaseInput> cases_;
  std::vector<Tensor> in_, out_, wrt_, grads_;
  std::vector<size_t> differentiable_;
  Tensor loss_;
  std::map<std::string, Tensor> fed_;
};

/// Thread ranks, kept from run to run.
class Clusters {
 public:
  Cluster& of(int ranks);
  /// After a failure: the next of(ranks) makes new threads.
  void drop(int ranks) { clusters_.erase(ranks); }

 private:
  std::map<int, std::unique_ptr<Cluster>> clusters_;
};

struct MeshLayout {
  std::string mesh, layout;
};

/// Every assignment of dims to the axes x, y, z of the mesh, up to exchange of axes of one size,
/// each axis on one dim or none; and, with two dims or more, a few where two dims claim one axis.
std::vector<MeshLayout> layouts_of(const std::vector<std::string>& dims, const std::string& mesh,
                                   std::mt19937_64& random);
/// The names that are dims of a tensor of the graph.
std::vector<std::string> dims_in(const Graph& graph, const std::vector<std::string>& names);
/// TESSERA_SEED, or `fallback`.
uint64_t seed_of_run(uint64_t fallback);

/// NaN equals NaN; zeros of two signs differ.
inline bool same_bits(const Array& a, const Array& b) {
  for (int64_t i = 0; i < a.elements(); ++i) {
    const bool are_nan = std::isnan(a.at(i)) && std::isnan(b.at(i));
    if (!are_nan && std::bit_cast<uint64_t>(a.at(i)) != std::bit_cast<uint64_t>(b.at(i)))
      return false;
  }
  return a.elements() == b.elements();
}

}  // namespace tessera::test
