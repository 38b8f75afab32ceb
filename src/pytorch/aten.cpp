#include "pytorch/aten.h"

#include <map>
#include <sstream>

namespace tessera::pytorch {

namespace {

std::map<std::string, Rule> all_rules() {
  std::map<std::string, Rule> rules;
  for (const auto& rows : all_rows()) {
    for (const Row& row : rows) {
      std::stringstream names(row.overloads);
      for (std::string name; names >> name;) rules[name] = row.rule;
    }
  }
  return rules;
}

}  // namespace

std::array<std::span<const Row>, 6> all_rows() {
  return {pointwise_rows(), shape_rows(),     product_rows(),
          layer_rows(),     reduction_rows(), index_rows()};
}

Rule find_rule(const std::string& overload) {
  static const std::map<std::string, Rule> rules = all_rules();
  auto found = rules.find(overload);
  const size_t dot = overload.rfind("_.");
  if (found == rules.end() && dot != std::string::npos && dot > 0)
    found = rules.find(overload.substr(0, dot) + overload.substr(dot + 1));
  return found == rules.end() ? nullptr : found->second;
}

}  // namespace tessera::pytorch
