// Resharding: the cheapest sequence of moves from one layout of a tensor to another. It decides
// whether a partial value is all-reduced or reduce-scattered.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lower/layout/flow_kind.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// The latency of a move, as bytes: of paths with equal volume the shorter one wins.
constexpr int64_t kMoveBytes = 256;

/// One move and the layout after it. Fields as in FlowNode.
struct Move {
  FlowKind kind;
  std::vector<int> axes;
  int from = -1, to = -1;
  TensorLayout after;
  int64_t bytes = 0;  ///< sent by each rank
};

struct Path {
  std::vector<Move> moves;
  int64_t bytes = 0;    ///< sent by each rank, latency included; what an exchange over several
                        ///< axes sends counts twice
  int64_t latency = 0;  ///< the part of `bytes` that stands for latency
};

/// Finds and memoizes paths. Moves do not change the padding state.
class Resharder {
 public:
  explicit Resharder(const RuleLayouts& rule_layouts) : rule_layouts_(rule_layouts) {}
  /// The path from `from` to `to`. Axes that are partial in both stay partial.
  const Path& path(const Shape& shape, DType dtype, const TensorLayout& from,
                   const TensorLayout& to);

 private:
  std::vector<Move> moves(const Shape& shape, DType dtype, const TensorLayout& at,
                          const TensorLayout& to) const;
  void add_partial_moves(const Shape&, DType, const TensorLayout& at, const TensorLayout& to,
                         std::vector<Move>&) const;
  void add_split_moves(const Shape&, DType, const TensorLayout& at, const TensorLayout& to,
                       std::vector<Move>&) const;
  void add_reduce_scatters(int64_t bytes, const TensorLayout& at, const TensorLayout& to, size_t d,
                           std::vector<Move>&) const;
  void add_all_gathers(int64_t bytes, const TensorLayout& at, const TensorLayout& to, size_t d,
                       std::vector<Move>&) const;
  void add_all_to_alls(int64_t bytes, const TensorLayout& at, const TensorLayout& to, size_t d,
                       std::vector<Move>&) const;
  int64_t received(const Shape&, DType, const TensorLayout& at, const TensorLayout& to) const;
  Path search(const Shape& shape, DType dtype, const TensorLayout& from,
              const TensorLayout& to) const;

  const RuleLayouts& rule_layouts_;
  std::unordered_map<std::string, Path> known_;
  const Path nothing_;
};

}  // namespace tessera
