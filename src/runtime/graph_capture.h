// Which steps of a function are enqueued as one: a captured region is recorded once and replayed.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace tessera {

/// Steps [first, last) of a function.
struct StepRange {
  size_t first = 0, last = 0;
  bool captured = false;
  std::string why;  ///< of one that is not: the first step that prevents it, and why
};

/// Cuts a function's steps into regions, in order. why[s]: why step s cannot be captured, or empty.
/// No region crosses `stores`, the number of the first step that stores what others computed. A
/// collective is captured with its wait or not at all, and a region of one step is not worth it,
/// but for a loop.
std::vector<StepRange> find_regions(const std::vector<Step>& steps, std::vector<std::string> why,
                                    size_t stores);

}  // namespace tessera
