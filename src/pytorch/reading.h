// A program read backwards: which node makes a value, of which others, and what reads it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pytorch/program.h"

namespace tessera::pytorch {

/// The value that is an argument of a node; "" for another argument and for none.
std::string tensor_of(const Node& node, const std::string& arg);
/// The values that are arguments of a node, those in lists too.
std::vector<std::string> operands_of(const Node& node);
/// Whether an op writes its operand: "aten.add_.Tensor", but not "aten.__and__.Tensor".
bool writes_operand(const std::string& target);

/// Whether a node has a result that is a tensor. Sizes and asserts are not computed.
bool makes_tensors(const Node& node);

class Reading {
 public:
  /// `changed`: values that writes change. Nodes with them are none that made_by() finds.
  explicit Reading(ExportedProgram& program, std::set<std::string> changed = {})
      : program_(program), graph_(program.graph), changed_(std::move(changed)) {}

 protected:
  /// Finds makers and readers. Values that the program returns are read once more.
  void index();
  const TensorMeta& meta(const std::string& value) const { return graph_.tensors.at(value); }
  size_t rank(const std::string& value) const { return meta(value).sizes.size(); }
  /// Whether a node is one of these ATen ops: "mul.Tensor mul.Scalar".
  static bool is(const Node& node, const std::string& ops);
  /// The node that makes a value, if it is one of these ops: "mul.Tensor mul.Scalar".
  const Node* made_by(const std::string& value, const std::string& ops) const;
  static std::string tensor(const Node& node, const char* arg) { return tensor_of(node, arg); }
  static std::optional<double> number(const Node& node, const char* arg);
  /// Whole numbers, one or several.
  static std::vector<int64_t> numbers(const Node& node, const char* arg);
  bool is_read_once(const std::string& value) const;
  /// The value in front of casts, which float32 models do not have and others round by. Nothing of
  /// them is read elsewhere.
  std::string before_casts(std::string value) const;
  bool is_axis(const Node& node, const char* arg, const std::string& of, size_t axis) const;
  bool is_last_axis(const Node& node, const char* arg, const std::string& of) const {
    return is_axis(node, arg, of, rank(of) - 1);
  }
  bool is_changed(const Node& node) const;
  Node replaced(size_t at, std::string target,
                std::vector<std::pair<std::string, Argument>> args) const;
  /// With the nodes that are added in front of others, and without those whose results nobody
  /// reads.
  void rebuild(const std::map<size_t, std::vector<Node>>& added = {});

  ExportedProgram& program_;
  Nodes& graph_;
  std::map<std::string, size_t> maker_;
  std::map<std::string, int> readers_;
  std::set<std::string> changed_;
};

}  // namespace tessera::pytorch
