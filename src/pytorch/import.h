// The walk over an exported program: first over axes, then over tensors.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "pytorch/call.h"
#include "pytorch/layers.h"
#include "pytorch/weights.h"
#include "tessera/graph.h"
#include "tessera/pytorch_model.h"

namespace tessera::pytorch {

/// A name that a rule gave to an axis.
struct RoleOf {
  Axis axis;
  std::string name;
  int weight = 0;
  std::string module;  ///< where
};

/// How a model is built.
struct BuildOptions {
  DType dtype = DType::float32;  ///< of activations that are float32 in the program
  bool evaluates = false;        ///< no dropout, and batch norm by its running moments
  bool loops = false;            ///< layers that are alike are a loop over the dim "layers"
  std::map<std::string, Tensor> inputs = {};  ///< in place of inputs of the graph
};

class Import {
 public:
  /// Finds the axes of all values. `own`: custom ops by name. Throws unsupported for an op without
  /// a rule.
  Import(const Archive& archive, const ExportedProgram& program,
         const std::map<std::string, PytorchOp>& own = {});

  /// Names of atoms and sizes that differ from those of the example, before build().
  void name(int atom, const std::string& name);
  void resize(int atom, int64_t size, bool bounded);
  /// Makes the tensors. Parameters are called as in the state_dict.
  void build(Graph& graph, const BuildOptions& options);

  const ExportedProgram& program() const { return program_; }
  Atoms& atoms() { return atoms_; }
  const std::vector<RoleOf>& roles() const { return roles_; }
  /// AxisList that products lead from and to.
  const std::vector<std::pair<Axis, Axis>>& projections() const { return projections_; }
  /// After the first walk axes only, after build() tensors too.
  const std::map<std::string, Value>& values() const { return values_; }
  Value value(const std::string& name);
  /// The tensor of a value with all of its dims, in their order.
  Tensor whole(const std::string& name);
  /// The user's inputs as tensors, in their order.
  const std::vector<Tensor>& fed() const { return fed_; }
  Dim dim(const Use& use) const;

 private:
  friend class Call;
  void find_mutated(const Nodes& graph);
  void find_slices(const Nodes& graph);
  void read_inputs();
  /// Values of the program that depend on no input. Those with dynamic axes do not differ along
  /// them, except where only other constants read them.
  void find_constants();
  void walk(const Nodes& graph);
  std::vector<Value> run_own(Call& call, const PytorchOp& op);
  /// A tensor of the user's with the dims of an input.
  Tensor given_input(const InputSpec& input, const AxisList& axes, Tensor tensor) const;
  void run(const Node& node);
  /// Whether all results have no elements, as those of a parameter of size 0 have.
  bool is_empty(const Node& node) const;
  bool has_elements(const AxisList& axes) const;
  /// Whether x says something of experts for each token: then tokens decide its layout, as where
  /// the model's own layers route.
  bool routes(const Tensor& x) const;
  /// An op with graphs as arguments: a branch, a loop, or one that is walked where it stands.
  std::vector<Value> run_graphs(Call& call);
  std::vector<Value> walk_inner(const Nodes& graph, const std::vector<Value>& operands);
  std::vector<Value> run_branches(Call& call, const Value& predicate, const Nodes& then,
                                  const Nodes& otherwise, const std::vector<Value>& operands);
  std::vector<Value> run_scan(Call& call, const Nodes& body,
                              const std::vector<std::vector<Value>>& operands);
  /// What an op makes of complex operands: its rule for both parts, or one of its own.
  std::vector<Value> run_complex(const Node& node, const std::string& overload);
  /// `name` has another value: so have the tensors that it is a view of, and their other views.
  void write(const std::string& name, const Value& value);
  void mark_views(const std::string& name);
  void evaluate_constants();
  void find_loops();
  void run_loop(const Stack& stack);
  Tensor make_parameter(const InputSpec& input, const AxisList& axes, const std::string& path);
  void make_inputs();
  /// The parts of a complex constant.
  std::pair<Tensor, Tensor> complex_constant(const InputSpec& input, const std::vector<Dim>& dims);
  bool is_constant(const Node& node) const;
  /// The same of one node: whether all that it reads is constant.
  bool could_be_constant(const Node& node) const;
  /// Whether an operand or a result is complex.
  bool is_complex(const Node& node) const;
  DType dtype(ScalarType type) const;
  /// A dynamic size as a number.
  Tensor size_tensor(const SymInt& size, const Call& call);

  const Archive& archive_;
  const ExportedProgram& program_;
  std::map<std::string, PytorchOp> own_;
  Atoms atoms_;
  std::vector<RoleOf> roles_;
  std::vector<std::pair<Axis, Axis>> projections_;
  std::map<std::string, Value> values_;
  std::map<const Node*, std::vector<Axis>>
      fresh_;  // by node, in the order in which they were asked for
  std::map<const Node*, std::vector<bool>> answers_;
  /// Results that share memory with an operand: the node, and the operand.
  std::map<std::string, std::pair<const Node*, std::string>> views_;
  std::set<std::string> stale_;    // views of what was written since they were made
  std::set<std::string> mutated_;  // inputs of the graph that it overwrites
  std::map<std::pair<std::string, size_t>, std::set<std::vector<int64_t>>> slices_;
  std::map<int, std::string> names_;
  std::map<int, Dim> resized_;
  std::vector<Tensor> fed_;
  std::set<std::string> fed_dims_, constants_;
  std::vector<Stack> stacks_;
  std::map<std::string, const Stack*> stacked_;  // parameters that loops make, by value
  const Stack* loop_ = nullptr;                  // whose layer is built
  Graph* graph_ = nullptr;                       // null in the first walk
  Graph* main_ = nullptr;                 // that of the model; `graph_` may be that of constants
  int inlined_ = 0;                       // graphs of arguments that are walked
  std::map<std::string, Tensor> stored_;  // parameters and buffers, by value
  const Nodes* nodes_;                    // that are walked
  BuildOptions options_;
};

}  // namespace tessera::pytorch
