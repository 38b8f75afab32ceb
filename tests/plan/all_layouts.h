// All layouts of all tensors of a problem of choice, for graphs of a few ops.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "plan/tensor_layouts/layout_problem.h"

namespace tessera::test {

inline double count_layouts(const LayoutProblem& problem) {
  double all = 1;
  for (const int v : problem.values()) all *= static_cast<double>(problem.layouts_of(v).size());
  return all;
}

/// The rules that give a tensor, and only it, this layout.
inline std::string rules_of(const FlatValue& v, const Mesh& mesh, const TensorLayout& layout) {
  std::string rules;
  for (int d = 0; d < v.shape.rank(); ++d) {
    std::string axes;
    for (const int a : layout.dims[static_cast<size_t>(d)])
      axes += (axes.empty() ? "" : "+") + mesh.axes()[static_cast<size_t>(a)].name;
    rules += fmt::format("@/{}/ {}:{};", v.name, v.shape[d].name, axes.empty() ? "-" : axes);
  }
  return rules;
}

struct Least {
  double seconds = 1e30;
  std::string layout;
  int64_t tried = 0;
};

/// The fastest of all layouts. `seconds_of`: by the rules of a layout.
inline Least least_of_all(const LayoutProblem& problem, const Mesh& mesh,
                          const std::function<double(const std::string&)>& seconds_of) {
  std::vector<std::vector<std::string>> rules;  // by tensor and layout
  for (const int v : problem.values()) {
    rules.emplace_back();
    const FlatValue& value = problem.flat().values[static_cast<size_t>(v)];
    for (const TensorLayout& layout : problem.layouts_of(v))
      rules.back().push_back(rules_of(value, mesh, layout));
  }
  Least least;
  std::vector<size_t> pick(rules.size(), 0);
  while (true) {
    std::string layout;
    for (size_t i = 0; i < rules.size(); ++i) layout += rules[i][pick[i]];
    const double seconds = seconds_of(layout);
    ++least.tried;
    if (seconds < least.seconds) least.seconds = seconds, least.layout = layout;
    size_t i = rules.size();
    while (i > 0 && ++pick[i - 1] == rules[i - 1].size()) pick[--i] = 0;
    if (i == 0) return least;
  }
}

}  // namespace tessera::test
