// From one layout of a tensor to another by the cheapest sequence of moves.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lower/layout/flow_kind.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// What the latency of one move counts, in bytes: of paths with equal volume the shorter one wins.
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
  int64_t bytes = 0;    ///< latency counts as bytes
  int64_t latency = 0;  ///< the bytes that stand for latency
};

/// Finds and remembers paths. The padding state stays as it is.
class Resharder {
 public:
  explicit Resharder(const RuleLayouts& rule_layouts) : rule_layouts_(rule_layouts) {}
  /// The path from `from` to `to`; `to` may keep axes of `from` partial.
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
  int64_t received(const Shape&, DType, const TensorLayout& at, const TensorLayout& to) const;
  Path search(const Shape& shape, DType dtype, const TensorLayout& from,
              const TensorLayout& to) const;

  const RuleLayouts& rule_layouts_;
  std::unordered_map<std::string, Path> known_;
  const Path nothing_;
};

}  // namespace tessera
