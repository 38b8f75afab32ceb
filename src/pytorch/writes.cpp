// Values that share memory are one class: views, and what a write returns. A write is harmless if
// no other value of its class is read afterwards. Then its operand is a new value from there on.
#include "pytorch/writes.h"

#include <algorithm>
#include <set>

#include "pytorch/aten.h"
#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

bool has_graphs(const Node& node) {
  return std::any_of(node.args.begin(), node.args.end(), [](const auto& arg) {
    return std::holds_alternative<std::shared_ptr<const Nodes>>(arg.second);
  });
}

class Writes {
 public:
  explicit Writes(ExportedProgram& program) : program_(program), graph_(program.graph) {}

  std::set<std::string> replace() {
    const auto writes = [](const Node& node) {
      return node.target.starts_with("aten.") && writes_operand(node.target);
    };
    if (std::none_of(graph_.nodes.begin(), graph_.nodes.end(), writes)) return {};
    index();
    std::set<std::string> memories, changed;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      for (auto& [name, arg] : node.args) {
        if (auto* t = std::get_if<TensorName>(&arg)) t->name = now(t->name);
        if (auto* list = std::get_if<std::vector<TensorName>>(&arg))
          for (TensorName& t : *list) t.name = now(t.name);
      }
      if (!writes(node)) continue;
      const std::string self = tensor_of(node, "self");
      if (self.empty() || node.outputs.size() != 1 || !is_harmless(i, self)) {
        if (!self.empty()) memories.insert(root(self));
        continue;
      }
      const size_t dot = node.target.rfind("_.");
      node.target.erase(dot, 1);
      newer_[self] = node.outputs[0];
    }
    for (std::string& output : program_.outputs) output = now(output);
    for (auto& [buffer, value] : program_.mutations) value = now(value);
    if (!program_.loss.empty()) program_.loss = now(program_.loss);
    for (const auto& [value, made] : made_)
      if (memories.count(root(value)) != 0) changed.insert(value);
    return changed;
  }

 private:
  void index() {
    for (const InputSpec& input : program_.inputs)
      made_[input.value] = -1, fixed_.insert(input.value);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const std::vector<std::string> operands = operands_of(node);
      for (const std::string& operand : operands) last_read_[operand] = static_cast<int64_t>(i);
      for (const std::string& output : node.outputs) {
        made_[output] = static_cast<int64_t>(i);
        if (output.empty() || operands.empty()) continue;
        if (may_be_view(node.target) || writes_operand(node.target)) join(output, operands[0]);
        if (has_graphs(node))
          for (const std::string& operand : operands) join(output, operand);
      }
    }
    const auto end = static_cast<int64_t>(graph_.nodes.size());
    for (const std::string& output : program_.outputs) last_read_[output] = end;
    for (const auto& [buffer, value] : program_.mutations) last_read_[value] = end;
    last_read_[program_.loss] = end;
  }

  /// Whether no value made before node `at` that shares memory with `self` is read behind it. Reads
  /// of those that were written are reads of what the write made.
  bool is_harmless(size_t at, const std::string& self) {
    const std::string memory = root(self);
    for (const auto& [value, made] : made_) {
      if (made >= static_cast<int64_t>(at) || root(value) != memory) continue;
      if (fixed_.count(value) != 0) return false;
      if (now(value) != self && last_read_[value] > static_cast<int64_t>(at)) return false;
    }
    return true;
  }

  std::string now(std::string value) const {
    for (auto newer = newer_.find(value); newer != newer_.end(); newer = newer_.find(value))
      value = newer->second;
    return value;
  }

  std::string root(std::string value) const {
    for (auto up = shares_.find(value); up != shares_.end(); up = shares_.find(value))
      value = up->second;
    return value;
  }

  void join(const std::string& a, const std::string& b) {
    const std::string x = root(a), y = root(b);
    if (x != y) shares_[x] = y;
  }

  ExportedProgram& program_;
  Nodes& graph_;
  std::map<std::string, int64_t> made_, last_read_;  // numbers of nodes
  std::set<std::string> fixed_;                      // inputs
  std::map<std::string, std::string> shares_, newer_;
};

}  // namespace

bool may_be_view(const std::string& target) {
  if (!target.starts_with("aten.")) return false;
  static const std::set<std::string> kViews = {"reshape",
                                               "flatten",
                                               "contiguous",
                                               "to",
                                               "type_as",
                                               "float",
                                               "view",
                                               "_unsafe_view",
                                               "select",
                                               "slice",
                                               "unsqueeze",
                                               "squeeze",
                                               "transpose",
                                               "permute",
                                               "swapaxes",
                                               "swapdims",
                                               "expand",
                                               "alias",
                                               "detach",
                                               "narrow",
                                               "t",
                                               "numpy_T",
                                               "mT",
                                               "unflatten",
                                               "view_as",
                                               "reshape_as",
                                               "movedim",
                                               "moveaxis",
                                               "diagonal",
                                               "unfold",
                                               "expand_as",
                                               "chunk",
                                               "split",
                                               "split_with_sizes",
                                               "unbind",
                                               "tensor_split",
                                               "dropout",
                                               "feature_dropout",
                                               "alpha_dropout",
                                               "ravel",
                                               "as_strided",
                                               "real",
                                               "imag",
                                               "view_as_real",
                                               "view_as_complex",
                                               "hsplit",
                                               "vsplit",
                                               "dsplit",
                                               "broadcast_to",
                                               "broadcast_tensors",
                                               "meshgrid",
                                               "adjoint",
                                               "lift_fresh",
                                               "_to_copy",
                                               "double",
                                               "half",
                                               "bfloat16",
                                               "int",
                                               "long",
                                               "identity",
                                               "atleast_1d",
                                               "atleast_2d",
                                               "atleast_3d",
                                               "conj",
                                               "_conj",
                                               "resolve_conj",
                                               "unsafe_chunk",
                                               "unsafe_split",
                                               "positive",
                                               "matrix_H",
                                               "H",
                                               "squeeze_copy"};
  return kViews.count(target.substr(5, target.find('.', 5) - 5)) != 0;
}

std::set<std::string> replace_writes(ExportedProgram& program) { return Writes(program).replace(); }

}  // namespace tessera::pytorch
