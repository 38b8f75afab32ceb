// Where a step may stand, and how steps go, for the passes that make one step of several.
#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace tessera {

/// A step may stand anywhere between the last step before it and the first step after it that touch
/// what it writes, or write what it reads. A wait touches what its collectives do.
class StepBounds {
 public:
  StepBounds(const Program& program, const Function& function);
  /// The places between which the step at `place` may stand, both exclusive.
  std::pair<int, int> of(int place) const;

 private:
  struct Touch {
    int place;
    bool writes;
  };
  void note(const Step& step, int place);

  const Function& function_;
  std::vector<std::vector<Touch>> touches_;  ///< by buffer
};

/// Takes out the steps whose place is not 0 in `gone`, one for each step.
void drop_steps(Function& function, const std::vector<char>& gone);

}  // namespace tessera
