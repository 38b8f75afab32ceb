#include "pytorch/aten.h"

#include <map>
#include <sstream>

namespace tessera::pytorch {

namespace {

std::map<std::string, Rule> rules_of(const std::vector<std::span<const Row>>& all) {
  std::map<std::string, Rule> rules;
  for (const auto& rows : all) {
    for (const Row& row : rows) {
      std::stringstream names(row.overloads);
      for (std::string name; names >> name;) rules.emplace(name, row.rule);
    }
  }
  return rules;
}

}  // namespace

std::array<std::span<const Row>, 10> all_rows() {
  return {pointwise_rows(), shape_rows(),     moving_rows(), product_rows(),   layer_rows(),
          loss_rows(),      reduction_rows(), index_rows(),  recurrent_rows(), complex_rows()};
}

Rule find_complex_rule(const std::string& overload) {
  static const std::map<std::string, Rule> rules = rules_of({complex_rows()});
  const auto found = rules.find(overload);
  return found == rules.end() ? nullptr : found->second;
}

Rule find_rule(const std::string& overload) {
  static const std::map<std::string, Rule> rules = [] {
    const auto all = all_rows();
    return rules_of({all.begin(), all.end()});
  }();
  auto found = rules.find(overload);
  const size_t dot = overload.rfind("_.");
  if (found == rules.end() && dot != std::string::npos && dot > 0)
    found = rules.find(overload.substr(0, dot) + overload.substr(dot + 1));
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace tessera::pytorch
