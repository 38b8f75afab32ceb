// The line of one training step, as it stands in a file and as it fits a terminal.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// A part of the line. Of a terminal that is too narrow for all, those of a lower rank keep their
/// place first.
struct LinePart {
  std::string text;
  int rank = 0;
};

/// All parts in their order, two spaces between them.
std::string whole_line(const std::vector<LinePart>& parts);

/// The parts that fit `width` columns, in their order; behind a bar of `done` (0 to 1) if there is
/// room for all of them and the bar. The part of the lowest rank is cut if it alone is too wide.
/// `width` <= 0: unknown, all parts and the bar.
std::string fitted_line(const std::vector<LinePart>& parts, double done, int width);

/// The columns of the terminal at `descriptor`; 0 if it is none or does not say.
int terminal_width(int descriptor);

}  // namespace tessera::cli
