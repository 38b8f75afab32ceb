#include "pytorch/reading.h"

#include <algorithm>
#include <set>

namespace tessera::pytorch {

std::string tensor_of(const Node& node, const std::string& arg) {
  const Argument* a = node.find(arg);
  const auto* t = a ? std::get_if<TensorName>(a) : nullptr;
  return t ? t->name : "";
}

std::vector<std::string> operands_of(const Node& node) {
  std::vector<std::string> all;
  for (const auto& [name, arg] : node.args) {
    if (const auto* t = std::get_if<TensorName>(&arg)) all.push_back(t->name);
    if (const auto* list = std::get_if<std::vector<TensorName>>(&arg))
      for (const TensorName& t : *list) all.push_back(t.name);
  }
  return all;
}

bool writes_operand(const std::string& target) {
  const std::string name = target.substr(0, target.rfind('.'));
  return name.size() > 2 && name.ends_with('_') && !name.ends_with("__");
}

bool makes_tensors(const Node& node) {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [](const std::string& output) { return !output.empty(); });
}

void Reading::index() {
  maker_.clear(), readers_.clear();
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    for (const std::string& output : graph_.nodes[i].outputs) maker_[output] = i;
    if (!makes_tensors(graph_.nodes[i])) continue;
    for (const std::string& operand : operands_of(graph_.nodes[i])) ++readers_[operand];
  }
  for (const std::string& output : program_.outputs) ++readers_[output];
  for (const auto& [buffer, value] : program_.mutations) ++readers_[value];
  if (!program_.loss.empty()) ++readers_[program_.loss];
}

bool Reading::is(const Node& node, const std::string& ops) {
  return node.target.starts_with("aten.") &&
         (" " + ops + " ").find(" " + node.target.substr(5) + " ") != std::string::npos;
}

const Node* Reading::made_by(const std::string& value, const std::string& ops) const {
  const auto at = maker_.find(value);
  if (at == maker_.end()) return nullptr;
  const Node& node = graph_.nodes[at->second];
  return is(node, ops) && node.outputs.size() == 1 && !is_changed(node) ? &node : nullptr;
}

bool Reading::is_changed(const Node& node) const {
  const auto is = [&](const std::string& value) { return changed_.count(value) != 0; };
  const std::vector<std::string> operands = operands_of(node);
  return !changed_.empty() && (std::any_of(operands.begin(), operands.end(), is) ||
                               std::any_of(node.outputs.begin(), node.outputs.end(), is));
}

std::optional<double> Reading::number(const Node& node, const char* arg) {
  const Argument* a = node.find(arg);
  if (!a) return {};
  if (const auto* d = std::get_if<double>(a)) return *d;
  if (const auto* i = std::get_if<int64_t>(a)) return static_cast<double>(*i);
  return {};
}

std::vector<int64_t> Reading::numbers(const Node& node, const char* arg) {
  const Argument* a = node.find(arg);
  if (!a) return {};
  if (const auto* all = std::get_if<std::vector<int64_t>>(a)) return *all;
  if (const auto* i = std::get_if<int64_t>(a)) return {*i};
  return {};
}

bool Reading::is_read_once(const std::string& value) const {
  const auto found = readers_.find(value);
  return found != readers_.end() && found->second == 1;
}

std::string Reading::before_casts(std::string value) const {
  while (const Node* node = made_by(value, "to.dtype _to_copy.default float.default")) {
    if (!is_read_once(value)) break;
    value = tensor(*node, "self");
  }
  return value;
}

bool Reading::is_axis(const Node& node, const char* arg, const std::string& of, size_t axis) const {
  const std::vector<int64_t> dims = numbers(node, arg);
  const auto n = static_cast<int64_t>(rank(of)), wanted = static_cast<int64_t>(axis);
  return dims.size() == 1 && (dims[0] == wanted || dims[0] == wanted - n);
}

Node Reading::replaced(size_t at, std::string target,
                       std::vector<std::pair<std::string, Argument>> args) const {
  Node node = graph_.nodes[at];
  node.target = std::move(target);
  node.args = std::move(args);
  return node;
}

void Reading::rebuild(const std::map<size_t, std::vector<Node>>& added) {
  std::set<std::string> live(program_.outputs.begin(), program_.outputs.end());
  for (const auto& [buffer, value] : program_.mutations) live.insert(value);
  live.insert(program_.loss);
  std::vector<Node> kept;  // from the last
  const auto keep = [&](const Node& node) {
    const bool computes =
        !node.outputs.empty() && !node.outputs[0].empty() && !writes_operand(node.target) &&
        (node.target.starts_with("aten.") || node.target.starts_with("tessera.") ||
         node.target.starts_with("transformers."));
    if (computes && std::none_of(node.outputs.begin(), node.outputs.end(),
                                 [&](const std::string& o) { return live.count(o) != 0; }))
      return;
    kept.push_back(node);
    if (!makes_tensors(node)) return;
    for (const std::string& operand : operands_of(node)) live.insert(operand);
  };
  for (size_t i = graph_.nodes.size(); i-- > 0;) {
    keep(graph_.nodes[i]);
    const auto more = added.find(i);
    if (more != added.end()) std::for_each(more->second.rbegin(), more->second.rend(), keep);
  }
  graph_.nodes.assign(kept.rbegin(), kept.rend());
}

}  // namespace tessera::pytorch
