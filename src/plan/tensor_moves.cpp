#include "plan/tensor_moves.h"

#include <algorithm>

namespace tessera {

namespace {

constexpr double kFaster = 0.001;  ///< share of the time that a rule must save

std::vector<std::string> split(const std::string& rules) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < rules.size();) {
    const size_t end = std::min(rules.find(';', begin), rules.size());
    if (end > begin) all.push_back(rules.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

std::string join(const std::vector<std::string>& rules) {
  std::string all;
  for (const std::string& rule : rules) all += (all.empty() ? "" : ";") + rule;
  return all;
}

/// "@/*norm*/ " of "@/*norm*/ length:model".
std::string scope_of(const std::string& rule) { return rule.substr(0, rule.find(' ') + 1); }

/// The rules with one that comes before them, instead of one for the same tensors.
std::string with_rule(const std::string& rules, const std::string& rule) {
  std::vector<std::string> all{rule};
  for (const std::string& own : split(rules)) {
    if (scope_of(own) != scope_of(rule)) all.push_back(own);
  }
  return join(all);
}

}  // namespace

bool TensorMoves::move(const MovableTensor& tensor, double scale, double until) {
  std::vector<Candidate> moved;
  for (const TensorLayout& layout : tensor.layouts) {
    Candidate c = found_.best().candidate;
    const Mesh& mesh = found_.best().plan.mesh;
    c.scoped = with_rule(c.scoped, rule_for(graph_, mesh, {tensor.value, layout}));
    moved.push_back(std::move(c));
  }
  bool is_faster = false;
  for (PricedCandidate& p : pricer_.price_scaled(moved, scale, until)) {
    if (!memory_.fits(p.plan) || p.plan.seconds >= (1 - kFaster) * found_.best_seconds()) continue;
    found_.add_best(std::move(p));
    is_faster = true;
  }
  return is_faster;
}

void TensorMoves::move(const std::vector<MovableTensor>& tensors, double scale, double until) {
  size_t same = 0;  // tensors in a row that stay
  for (size_t t = 0; same < tensors.size() && clock_.seconds() < until; ++t) {
    const bool is_faster = move(tensors[t % tensors.size()], scale, until);
    same = is_faster ? 0 : same + 1;
  }
}

void TensorMoves::drop_rules(double scale, double until) {
  for (size_t i = split(found_.best().candidate.scoped).size(); i-- > 0;) {
    std::vector<std::string> rules = split(found_.best().candidate.scoped);
    rules.erase(rules.begin() + static_cast<std::ptrdiff_t>(i));
    Candidate fewer = found_.best().candidate;
    fewer.scoped = join(rules);
    for (PricedCandidate& p : pricer_.price_scaled({fewer}, scale, until)) {
      if (memory_.fits(p.plan) && p.plan.seconds <= found_.best_seconds()) found_.add_best(p);
    }
  }
}

}  // namespace tessera
