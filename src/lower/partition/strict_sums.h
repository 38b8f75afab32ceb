// Strict numerics: in which order an op adds, and how the subtrees that ranks have summed become
// one sum (program/sum_order.h, docs/explanation/strict-numerics.md).
#pragma once

#include <string>
#include <vector>

#include "lower/partition/flow_emitter.h"
#include "program/sum_order.h"

namespace tessera {

class StrictSums {
 public:
  /// chunks: CompileOptions::strict_chunks. Keeps references.
  StrictSums(const RuleLayouts& rule_layouts, int64_t chunks, FlowEmitter& emit)
      : rule_layouts_(rule_layouts), chunks_(chunks), emit_(emit) {}

  bool is_on() const { return chunks_ > 0; }
  /// The order in which an op adds if it is split so; none if it adds nothing. Along::dim is a
  /// factor. Throws an unsupported error for an op whose kernel has no such order.
  SumOrder order_of(const OpCall& call, const IndexSpace& space, const Choice& choice,
                    const Origin& origin) const;
  /// Adds `flow`, an op whose sum is split: every rank sums its subtrees, which are brought
  /// together and joined. Returns the sum, called `name`, in a layout from which `target` is
  /// cheap: if ranks are to have slices of the result, only those travel; if all need all of it
  /// and it is not small, slices are joined, which are gathered then.
  int add(FlowNode flow, const OpCall& call, const Choice& choice, const std::string& name,
          const TensorLayout& target);

 private:
  /// Where the places of all ranks' subtrees are joined.
  struct Join {
    int64_t places = 1;  ///< of a rank
    TreeSumSpec spec;
  };
  Join join_of(const FlowNode& flow, const std::vector<int>& axes) const;
  TensorLayout joined_layout(const ValueType& type, const TensorLayout& computed,
                             const TensorLayout& target, const std::vector<int>& axes) const;

  const RuleLayouts& rule_layouts_;
  const int64_t chunks_;
  FlowEmitter& emit_;
};

}  // namespace tessera
