// Charts of what a sum is made of and of a mesh; and what the time of a step went to.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pages/page.h"
#include "tessera/mesh.h"

namespace tessera::cli {

/// To the six digits that a page holds.
double rounded(double value);
/// One bar of parts that add up; parts of 0 are left out.
pages::Json bar_chart(const std::string& title, const std::string& unit, const std::string& label,
                      const std::vector<std::pair<std::string, double>>& parts);

/// `hosts`: a list of [name, number of ranks] in order of rank. `links`: their names by axis, or
/// none.
pages::Json mesh_chart(const Mesh& mesh, const pages::Json& hosts,
                       const std::vector<std::string>& links = {});

/// (cause, seconds) of a step; they add up to it.
using Causes = std::vector<std::pair<std::string, double>>;

/// A cause of a step's time in either of two; 0 where one has it not.
struct CauseOfBoth {
  std::string name;
  double a = 0, b = 0;
};
std::vector<CauseOfBoth> causes_of_both(const Causes& a, const Causes& b);

double seconds_of(const Causes& step);

/// "B takes 0.348 ms (90 %) more than A, most of it waiting for b (+0.327)."
std::string verdict(const std::string& name_a, const Causes& a, const std::string& name_b,
                    const Causes& b);

}  // namespace tessera::cli
