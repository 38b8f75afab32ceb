// Exact minimum over a graph of small width, by bucket elimination.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/solver/model.h"

namespace tessera::solver {

/// A node being eliminated, with the neighbours it has at that time.
struct Bucket {
  int node = -1;
  std::vector<int> clique;     ///< its separator, then the node itself
  std::vector<int> pairs;      ///< of the model, added to its table
  std::vector<int> children;   ///< buckets whose messages are added to its table
  int parent = -1;             ///< -1: none, its separator is empty
  std::vector<int64_t> table;  ///< over the clique, row-major: least cost of this and all below
  std::vector<int64_t> up;     ///< over the separator: minimum of `table` over the node
  std::vector<int64_t> down;   ///< over the separator: least cost of everything else
};

class Elimination {
 public:
  /// Tries two elimination orders (weighted fill, size) and takes the one with fewer table entries.
  /// fits() is false if that is more than `entries`.
  Elimination(const Model& model, int64_t entries);
  bool fits() const { return fits_; }

  /// Returns the least total (without base) with these node costs in place of the model's, and sets
  /// `choice`. kWall if nothing is allowed.
  int64_t run(const std::vector<std::vector<int64_t>>& costs, std::vector<int>& choice);
  /// After run(): computes `down` of all buckets. Returns, by node and strategy, the least total
  /// with it.
  std::vector<std::vector<int64_t>> marginals();

  /// In the order of elimination; valid after run().
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  void build(const std::vector<int>& order);
  void fill(Bucket& bucket, const std::vector<int64_t>& cost);
  const Model& model_;
  bool fits_ = false;
  int64_t total_ = 0;
  std::vector<Bucket> buckets_;
};

/// Walks the entries 0, 1, ... of a row-major table over `clique` and gives the index of each in a
/// table over `part`, a subset. One addition per step.
class Walk {
 public:
  Walk(const Model& model, const std::vector<int>& clique, const std::vector<int>& part);
  size_t at() const { return at_; }
  void next() {
    for (size_t i = sizes_.size(); i-- > 0;) {
      at_ += strides_[i];
      if (++index_[i] < sizes_[i]) return;
      at_ -= strides_[i] * static_cast<size_t>(sizes_[i]);
      index_[i] = 0;
    }
  }

 private:
  std::vector<int> sizes_, index_;
  std::vector<size_t> strides_;
  size_t at_ = 0;
};

}  // namespace tessera::solver
