// The choice of one op's computation split: rule (c).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lower/home.h"
#include "lower/interval.h"
#include "lower/reshard.h"
#include "tessera/op.h"

namespace tessera {

/// One op with the present layouts of its operands and the home layouts of its results.
struct OpSite {
  const OpCall& call;
  const IndexSpace& space;
  const std::vector<TensorLayout>&in_layouts, &homes;
  const std::vector<int>& readers;  ///< of each operand: ops of this kind that share a move of it
};

struct Choice {
  std::vector<std::vector<int>> splits;  ///< per factor its axes, major to minor
  std::vector<Placement> in;             ///< where the operands must be
  std::vector<TensorLayout> out;         ///< the layouts that follow
  int unused = 0;                        ///< axes that the op leaves unused: redundant compute
  int64_t cost = 0;     ///< bytes of the moves before and after, with what stands for latency
  int64_t latency = 0;  ///< that part of them
};

/// The choice that leaves fewest axes unused, then moves fewest bytes, an operand's shared between
/// its readers; ties go to the result's
/// factor, then to the earlier rule. Operands that are partial stay so.
Choice choose(const OpSite& site, const HomeLayouts& homes, Resharder& resharder);

/// Answers each question once: layers repeat, so most of a model's ops have been met before. The
/// answers live as long as the Chooser.
class Chooser {
 public:
  explicit Chooser(const HomeLayouts& homes) : homes_(homes), resharder_(homes) {}
  /// index_space() of the call.
  const IndexSpace& space(const OpCall& call);
  /// choose() for the call.
  const Choice& choice(const OpCall& call, const std::vector<TensorLayout>& in_layouts,
                       const std::vector<TensorLayout>& homes, const std::vector<int>& readers);
  Resharder& resharder() { return resharder_; }

 private:
  const HomeLayouts& homes_;
  Resharder resharder_;
  std::unordered_map<std::string, IndexSpace> spaces_;
  std::unordered_map<std::string, Choice> choices_;
};

/// The operands in which the op is jointly linear, as a bit mask that covers `operands`; 0 if it is
/// not linear in them.
uint32_t linear_in(const Op& op, uint32_t operands);

/// The padded size of a factor: that of the dims which are just this factor; the logical size if it
/// is part of a merged dim.
int64_t padded_factor(const OpCall& call, const IndexSpace& space, const HomeLayouts& homes,
                      int factor);

}  // namespace tessera
