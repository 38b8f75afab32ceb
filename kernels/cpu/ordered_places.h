// What a rank adds in the canonical order of a step's sums (program/sum_order.h): the terms of each
// of its subtrees, whose sums go to places of their own in the result.
#pragma once

#include <memory>
#include <vector>

#include "kernels/common/kernel.h"

namespace tessera::cpu {

/// Adding it changes nothing, not even the sign of a zero: what a place without a subtree holds.
constexpr double kNoTerms = -0.0;

/// Open subtrees of a sum, at most.
constexpr int64_t kDeepest = 64;

/// Terms that follow each other along the innermost summed dim. at: of the first one, in elements
/// of each operand.
struct OrderedRun {
  int64_t at[3] = {};
  int64_t count = 0;
};

struct OrderedPlace {
  std::vector<OrderedRun> runs;
  std::vector<int64_t> ends;      ///< of leaf i: the end of its runs
  std::vector<uint64_t> numbers;  ///< of leaf i, see SumRange
  std::vector<int64_t> joins;     ///< subtrees that are joined to leaf i
};

struct OrderedPlaces {
  std::vector<OrderedPlace> places;  ///< fewer than SumOrder::places if the rank has fewer subtrees
  int64_t strides[3] = {};           ///< of the operands, along a run
  int64_t depth = 1;                 ///< open subtrees at most, the present leaf included
};

/// strides: of each operand, along the dims of the step's views.
OrderedPlaces ordered_places(const KernelArgs& args,
                             const std::vector<std::vector<int64_t>>& strides);

/// Kernels of steps with a canonical order.
std::unique_ptr<Kernel> bind_ordered_matmul(const KernelArgs& args);
int64_t ordered_matmul_workspace(const Step& step);
std::unique_ptr<Kernel> bind_ordered_reduce(const KernelArgs& args);
std::unique_ptr<Kernel> bind_ordered_scatter_add(const KernelArgs& args);
std::unique_ptr<Kernel> bind_ordered_attention(const KernelArgs& args);
int64_t ordered_attention_workspace(const Step& step);
std::unique_ptr<Kernel> bind_ordered_grouped(const KernelArgs& args);
int64_t ordered_grouped_workspace(const Step& step);
std::unique_ptr<Kernel> bind_ordered_conv(const KernelArgs& args);
int64_t ordered_conv_workspace(const Step& step);
std::unique_ptr<Kernel> bind_ordered_fold(const KernelArgs& args);
int64_t ordered_fold_workspace(const Step& step);

}  // namespace tessera::cpu
