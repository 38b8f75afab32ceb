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

/// Other names of ops, as PyTorch has them: each is the op itself.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"multiply", "mul"},
    {"subtract", "sub"},
    {"divide", "div"},
    {"true_divide", "div"},
    {"negative", "neg"},
    {"absolute", "abs"},
    {"greater", "gt"},
    {"greater_equal", "ge"},
    {"less", "lt"},
    {"less_equal", "le"},
    {"not_equal", "ne"},
    {"clip", "clamp"},
    {"concat", "cat"},
    {"concatenate", "cat"},
    {"moveaxis", "movedim"},
    {"arccos", "acos"},
    {"arcsin", "asin"},
    {"arctan", "atan"},
    {"arctan2", "atan2"},
    {"arccosh", "acosh"},
    {"arcsinh", "asinh"},
    {"arctanh", "atanh"},
    {"swapdims", "transpose"},
    {"row_stack", "vstack"},
    {"special_erf", "erf"},
    {"special_expit", "sigmoid"},
    {"special_log1p", "log1p"},
    {"special_expm1", "expm1"},
    {"special_logsumexp", "logsumexp"},
    {"special_softmax", "softmax"},
    {"special_log_softmax", "log_softmax"},
    {"special_exp2", "exp2"},
    {"special_gammaln", "lgamma"},
    {"special_psi", "digamma"},
    {"special_digamma", "digamma"},
    {"special_xlogy", "xlogy"},
    {"special_erfc", "erfc"},
    {"special_round", "round"},
    {"special_logit", "logit"},
};

/// The same overload under the op's first name: "mul_.Tensor" of "multiply_.Tensor".
std::string without_alias(const std::string& overload) {
  const size_t dot = std::min(overload.find('.'), overload.size());
  const bool writes = dot > 1 && overload[dot - 1] == '_';
  const std::string name = overload.substr(0, writes ? dot - 1 : dot);
  for (const auto& [alias, op] : kAliases)
    if (name == alias) return op + (writes ? "_" + overload.substr(dot) : overload.substr(dot));
  return overload;
}

}  // namespace

std::array<std::span<const Row>, 10> all_rows() {
  return {pointwise_rows(), shape_rows(),     moving_rows(), product_rows(),   layer_rows(),
          loss_rows(),      reduction_rows(), index_rows(),  recurrent_rows(), complex_rows()};
}

Rule find_complex_rule(const std::string& alias) {
  const std::string overload = without_alias(alias);
  static const std::map<std::string, Rule> rules = rules_of({complex_rows()});
  const auto found = rules.find(overload);
  return found == rules.end() ? nullptr : found->second;
}

Rule find_rule(const std::string& alias) {
  const std::string overload = without_alias(alias);
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
