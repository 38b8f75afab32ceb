// The factors along which one op is split: rule (c) of docs/concepts.md, "who decides a layout".
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lower/layout/interval.h"
#include "lower/layout/reshard.h"
#include "lower/layout/rule_layouts.h"
#include "tessera/op.h"

namespace tessera {

/// One op with the present layouts of its operands and the rule layouts of its results.
struct OpSite {
  const OpCall& call;
  const IndexSpace& space;
  const std::vector<TensorLayout>&in_layouts, &result_layouts;
  const std::vector<int>& readers;  ///< for each operand: ops of this kind that share a move of it
};

struct Choice {
  std::vector<std::vector<int>> splits;  ///< per factor its axes, major to minor
  std::vector<Placement> in;             ///< where the operands must be
  std::vector<TensorLayout> out;         ///< the layouts that follow
  int unused = 0;                        ///< axes that the op leaves unused: redundant compute
  int64_t cost = 0;     ///< bytes of the moves before and after; latency counts as bytes
  int64_t latency = 0;  ///< the bytes of `cost` that stand for latency
};

/// The choice that leaves fewest axes unused, then the one that moves fewest bytes. Readers of an
/// operand share the bytes of its move. Ties go to the result's factor, then to the earlier rule.
/// Partial operands stay partial.
Choice choose(const OpSite& site, const RuleLayouts& rule_layouts, Resharder& resharder);

/// Answers each question once: layers repeat, so most of a model's ops have been seen before. The
/// answers are valid as long as the SplitChooser.
class SplitChooser {
 public:
  explicit SplitChooser(const RuleLayouts& rule_layouts)
      : rule_layouts_(rule_layouts), resharder_(rule_layouts) {}
  /// index_space() of the call.
  const IndexSpace& space(const OpCall& call);
  /// choose() for the call.
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

/// The operands in which the op is jointly linear, as a bit mask that covers `operands`; 0 if it is
/// not linear in them.
uint32_t linear_in(const Op& op, uint32_t operands);

/// The size of a factor with padding: that of the dims that consist of it alone. A factor of a
/// merged dim has its logical size.
int64_t padded_factor(const OpCall& call, const IndexSpace& space, const RuleLayouts& rule_layouts,
                      int factor);

}  // namespace tessera
