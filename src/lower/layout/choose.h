// Chooses the factors along which one op is split: rule (c) of
// docs/explanation/who-decides-a-layout.md.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lower/layout/interval.h"
#include "lower/layout/reshard.h"
#include "lower/layout/rule_layouts.h"
#include "tessera/op.h"

namespace tessera {

/// One op, the present layouts of its operands and the rule layouts of its results.
struct OpSite {
  const OpCall& call;
  const IndexSpace& space;
  const std::vector<TensorLayout>&in_layouts, &result_layouts;
  const std::vector<int>& readers;  ///< per operand: the number of similar ops that share its move
};

struct Choice {
  std::vector<std::vector<int>> splits;  ///< per factor: its axes, major to minor
  std::vector<OperandPlacement> in;      ///< per operand: where the op needs it
  std::vector<TensorLayout> out;         ///< per result: its layout as computed
  int unused = 0;                        ///< axes that the op leaves unused: redundant compute
  int64_t cost = 0;     ///< bytes of the moves of operands and results, latency included
  int64_t latency = 0;  ///< the part of `cost` that stands for latency
};

/// Returns the choice that leaves the fewest axes unused; among those, the one that moves the
/// fewest bytes. The cost of moving an operand is divided among its `readers`. Ties go to the
/// result's factor, then to the earlier rule. Operands that are partial stay partial.
Choice choose(const OpSite& site, const RuleLayouts& rule_layouts, Resharder& resharder);

/// Memoizes index_space() and choose(): layers repeat, so most ops have been seen before. Returned
/// references are valid as long as the SplitChooser.
class SplitChooser {
 public:
  explicit SplitChooser(const RuleLayouts& rule_layouts)
      : rule_layouts_(rule_layouts), resharder_(rule_layouts) {}
  const IndexSpace& space(const OpCall& call);
  const Choice& choice(const OpCall& call, const std::vector<TensorLayout>& in_layouts,
                       const std::vector<TensorLayout>& result_layouts,
                       const std::vector<int>& readers);
  Resharder& resharder() { return resharder_; }

 private:
  const RuleLayouts& rule_layouts_;
  Resharder resharder_;
  std::unordered_map<std::string, IndexSpace> spaces_;
  std::unordered_map<std::string, Choice> choices_;
};

/// Bit mask of a set of operands that contains `operands` and in which the op is jointly linear; 0
/// if there is none.
uint32_t linear_in(const Op& op, uint32_t operands);

/// The padded size of a factor: that of the dims that consist of this factor alone. A factor of a
/// merged dim is never padded; it has its logical size.
int64_t padded_factor(const OpCall& call, const IndexSpace& space, const RuleLayouts& rule_layouts,
                      int factor);

}  // namespace tessera
