// How the results of training under a layout differ from those of one rank.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "cli/choices.h"
#include "cli/commands.h"

namespace tessera::cli {

/// The results of one run.
struct Outcome {
  std::vector<double> losses;
  std::vector<Array> first_gradients, gradients, parameters;  ///< of the first and last step
  std::vector<int> gradient_of;                               ///< by parameter; -1: not trained
  std::vector<std::vector<Chosen>> choices;                   ///< of each step; 16-bit types only
  bool hidden_choices = false;                                ///< a loop chooses; 16-bit types only
  std::string state_hash;                                     ///< StateHash::all, at the end
};
/// Trains for so many steps on synthetic examples. Collective.
Outcome train_some(const Job& job, const Mesh& mesh, const Layout& layout, int64_t steps,
                   const std::string& device, Cluster& cluster);

struct Worst {
  double value = 0;
  std::string layout = "";
  void see(double v, const std::string& l) {
    if (v > value || layout.empty()) value = std::max(v, value), layout = l;
  }
};

/// Choices that fell otherwise than on one rank, over all layouts.
struct Flipped {
  int64_t layouts = 0;
  int64_t step = 0;  ///< the earliest, from 0
  double margin = 0;
  std::string name = "", layout = "";  ///< of the largest margin
};

/// The largest differences of any layout from one rank.
struct Agreement {
  Worst loss, first_gradient, gradient, parameter;
  Flipped flips;

  void see(const Agreement& other, const std::string& layout);
  /// Adam amplifies a gradient's own rounding. So parameters and the gradients of later steps get
  /// ten times the tolerance, but for those of float64.
  bool is_equal(double tolerance, const Config& config) const;
};

/// From a step on in which choices fell otherwise only the loss of that step is compared, and may
/// differ by the share of the choices besides.
Agreement agreement_of(const Outcome& outcome, const Outcome& reference, double tolerance);
/// The choices that fell otherwise, as a line.
std::string flips_text(const Flipped& flips, size_t layouts, double tolerance);

}  // namespace tessera::cli
