// The model as written: a graph of named tensors, built by the functions of ops.h.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/array.h"
#include "tessera/attrs.h"
#include "tessera/dim.h"
#include "tessera/dtype.h"
#include "tessera/mesh.h"

namespace tessera {

class Graph;
struct Op;
using Loc = std::source_location;

/// A cheap handle of one value of a graph; valid as long as the graph lives.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Graph* graph, int id) : graph_(graph), id_(id) {}

  explicit operator bool() const { return graph_ != nullptr; }
  Graph& graph() const;
  int id() const { return id_; }
  const Shape& shape() const;
  DType dtype() const;
  /// Unique name with scopes: "gpt.block3.attention.logits".
  const std::string& name() const;
  /// The dim called `name`; usage error with the nearest name if there is none.
  const Dim& dim(const std::string& name) const { return shape().dim(name); }

  /// Renames this value (within its scope); returns it. Fetches, rules and reports use the name.
  Tensor named(const std::string& name) const;
  /// Where rules give two dims of this tensor one axis, the one of `dims` gets it (names only,
  /// never axes); of two of them, the earlier. The first preference is the tensor's own, its
  /// initializer's too if it is stored; a further one makes a copy that has it:
  /// `x.prefer("batch")`, later `x.prefer("experts")`, is a move of data.
  Tensor prefer(const Axes& dims, Loc at = Loc::current()) const;

 private:
  Graph* graph_ = nullptr;
  int id_ = -1;
};

/// Where a node was written: "model.cpp:41".
struct SourceLine {
  std::string file;
  int line = 0;
  std::string to_string() const { return file + ":" + std::to_string(line); }
};

/// One operation of a graph.
struct Node {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<int> in, out;  ///< values
  std::string name;
  SourceLine at;
  /// Nodes of different numbers never share a result or a move of data, however equal: what
  /// backward recomputes instead of keeping it.
  int recompute_group = 0;
  int loop = -1;  ///< the innermost loop that it is part of, a position in Graph::loops()
};

/// Gradients of xs from xs, ys and the gradients of ys (zeros where none flows): one for each x, an
/// empty Tensor where none flows.
using GradientRule =
    std::function<std::vector<Tensor>(const std::vector<Tensor>& xs, const std::vector<Tensor>& ys,
                                      const std::vector<Tensor>& grads)>;

/// Nodes [first, last) that a gradient takes as one: recompute() and custom_gradient() of ops.h.
struct Region {
  int first = 0, last = 0;
  std::vector<int> in, out;  ///< with a rule: the values that it is given
  GradientRule rule = {};    ///< null: the nodes are copied, and the gradient is that of the copies
  int loop = -1;             ///< as for nodes
};

/// What a loop is in a graph (the functions of loops.h make them). Its nodes have Node::loop and
/// run once an iteration; they may read what is outside. `node`, which is outside, has as operands
/// what each iteration makes and as results what is there after the last.
struct Loop {
  enum class Result : int64_t {
    carry,  ///< what the last iteration made
    stack,  ///< of all iterations, along `over` in front; zero where an iteration did not run
    sum,    ///< over the iterations that ran
  };
  Dim over;              ///< its size is the number of iterations
  bool reverse = false;  ///< the iterations count down
  int parent = -1;       ///< the loop that it is part of
  int first = 0;         ///< the nodes of its iterations are among [first, node)
  int node = -1;
  int condition =
      -1;  ///< a bool scalar of the iteration: it runs if true; -1: every iteration runs
  std::vector<int>
      carries;  ///< the values with which an iteration begins, in the order of the results
  std::vector<Result> results = {};  ///< of `node`
};

/// A repetition that is being built: one of the iterations of a loop, or one of as many copies.
struct Repeat {
  std::string dim;
  int64_t count = 0;
  int64_t index = 0;     ///< of the copy
  int loop = -1;         ///< or the loop whose counter it is
  bool is_part = false;  ///< a microbatch; else a layer, with parameters of its own
  int64_t instance = 0;  ///< tells repetitions apart that follow each other
};

/// One tensor of a graph.
struct Value {
  int node = -1;
  Shape shape;
  DType dtype = DType::float32;
  std::string name;
  Purpose purpose =
      Purpose::none;  ///< grads: the gradient of a parameter; state: part of an optimizer update
  std::vector<std::string> prefer;  ///< dims, the first before the others
};

/// A parameter or a piece of optimizer state: it lives between runs, is saved in checkpoints and
/// starts as `init`.
struct Stored {
  int value = -1;  ///< what reading it gives
  int init = -1;   ///< its first value
  Purpose purpose = Purpose::params;
  bool trainable = true;
  int layers = 0;       ///< its first dims, that count the layers which have such a tensor each
  int layer_init = -1;  ///< the first value of one layer
};

/// An assignment made at the end of a function that has updates.
struct Update {
  int stored = -1;  ///< the value of the Stored
  int value = -1;
};

/// Something that one run computes: outputs by name, and the updates if `updates`.
struct FunctionSpec {
  std::string name;
  std::vector<Tensor> outputs;
  bool updates = false;
};

/// Builds the first value of a stored tensor from its graph, shape and dtype.
using Initializer = std::function<Tensor(Graph&, const Shape&, DType)>;

struct GraphOptions {
  /// Every node is computed when it is added, whole and on one rank: an error is thrown from the
  /// very line of the model that made the node, and fetch() reads its value at once. For finding
  /// mistakes; what it costs is a compilation a node. Numbers are those of a Session, to rounding.
  bool eager = false;
  bool check_finite = false;  ///< eager: a result that is not finite is an error, too
  uint64_t seed = 0;          ///< eager: what random numbers depend on; the step is 0
  std::function<void(const std::string& line)> print = {};  ///< eager: gets lines of print() nodes
};

class Eager;

class Graph {
 public:
  Graph();
  explicit Graph(const GraphOptions& options);  ///< `Graph g({.eager = true});`
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// A tensor fed at each run as `name`, which no other may have. Its padding is zero.
  Tensor input(const std::string& name, const Shape& shape, DType dtype, Loc at = Loc::current());
  /// Eager graphs: the value of an input, or of a parameter or state instead of its first value,
  /// before it is used. A bounded dim may be shorter. What does not fit is a usage error where the
  /// tensor is used.
  void feed(const std::string& name, const Array& whole);
  /// Eager graphs: the value of a tensor. Updates are computed and not applied.
  Array fetch(Tensor tensor) const;
  /// A trainable parameter, named by the current scope and `name`, which no other may have.
  Tensor parameter(const std::string& name, const Shape& shape, const Initializer& init,
                   DType dtype = DType::float32, Loc at = Loc::current());
  /// Parameters made from here on as float32 are stored in `dtype`, float32 or 16 bits, without a
  /// float32 copy; update() rounds what they are given, to nearest or by stochastic_cast().
  void store_parameters_as(DType dtype, bool stochastic_rounding = false);
  /// A stored tensor that is not trained (optimizer state, running statistics).
  Tensor state(const std::string& name, const Shape& shape, const Initializer& init,
               DType dtype = DType::float32, Loc at = Loc::current());
  /// At the end of each run of a function with updates, `stored` becomes `value`: same shape (in
  /// any order of dims) and dtype. All values are computed before any is assigned. Throws a usage
  /// error for a tensor that is not stored and for a second update of one.
  void update(Tensor stored, Tensor value, Loc at = Loc::current());
  /// Marks the gradient of a parameter: it is laid out by the @grads rules.
  void mark_gradient(Tensor gradient) { values_[gradient.id()].purpose = Purpose::grads; }

  /// Adds a node. For ops of ops.h and of a user's own; see op.h. Returns its outputs.
  std::vector<Tensor> add(const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at);

  void add_region(Region region);  ///< marks the nodes since `region.first`, if there are any
  const std::vector<Region>& regions() const { return regions_; }
  const std::deque<Loop>& loops() const { return loops_; }
  int open_loop() const { return open_loop_; }  ///< the loop that is being built, or -1
  /// True for a loop that is being built, and for -1: what is part of it can be read.
  bool is_open(int loop) const;
  /// Adds a result to a loop that may be complete: `value` of its iterations.
  Tensor add_result(int loop, Tensor value, Loop::Result how);
  /// What the iterations of the open loop read of `whole`: the slice of `dim` at their index.
  Tensor slice_of_iteration(Tensor whole, const std::string& dim, Loc at);
  /// Copies the nodes of a region but for inputs and stored tensors, with the regions in it; the
  /// copies of its values.
  std::unordered_map<int, int> copy(size_t region);

  const std::deque<Node>& nodes() const { return nodes_; }
  const std::deque<Value>& values() const { return values_; }
  const std::vector<Stored>& stored() const { return stored_; }
  const std::vector<Update>& updates() const { return updates_; }
  const Value& value(int id) const { return values_[id]; }
  const Node& producer(int value) const { return nodes_[values_[value].node]; }
  /// The stored tensor whose value is `value`, or null.
  const Stored* find_stored(int value) const;
  std::vector<Tensor> parameters();  ///< trainable ones, in order of creation
  /// The value called `name`. Throws a usage error with the nearest name.
  Tensor find(const std::string& name);
  /// A name in the current scope that no other node has: `base`, or base_1, base_2, ...
  std::string unique_name(const std::string& base);
  bool is_eager() const { return eager_ != nullptr; }
  const std::string& scope() const { return scope_; }  ///< the current one: "gpt.block3" or ""
  const std::vector<Repeat>& repeats() const { return repeats_; }  ///< open ones, outermost first
  const std::vector<Repeat>& copies() const { return copies_; }    ///< of Scopes
  std::string name_in_copies(const std::string& name) const;       ///< the same in all copies
  /// Repeat::instance of the next repetition.
  int64_t new_instance() { return static_cast<int64_t>(copy_uses_[" repeat"]++); }
  /// What `make` returns; in a further copy of what is repeated, what it returned in the first for
  /// the same use of `name` in this scope. Throws a usage error if the first had no such use.
  int64_t once_for_all(const std::string& name, const std::function<int64_t()>& make);

  /// One line a node: name, shape, op, inputs, attributes, source line.
  std::string to_string() const;

 private:
  friend class Scope;
  friend class RecomputeScope;
  friend class LoopBuilder;
  friend class OutsideScope;
  friend class RepeatScope;
  friend class PreferScope;
  friend class PurposeScope;
  friend class SourceScope;
  friend class UpdateScope;
  friend class Tensor;
  Tensor add_stored(const std::string&, const Shape&, const Initializer&, DType, Purpose, bool,
                    Loc);
  Stored make_stored(const std::string&, const Shape&, const Initializer&, DType, Loc);
  Tensor of_layer(Tensor stored, Loc at);
  int copy_loop(int loop, std::unordered_map<int, int>& copies);
  std::deque<Node> nodes_;  // deques: handles and shapes stay valid while the graph grows
  std::deque<Value> values_;
  std::vector<Stored> stored_;
  std::vector<Update> updates_;
  std::vector<Region> regions_;
  std::deque<Loop> loops_;
  int open_loop_ = -1;
  int update_condition_ = -1;  ///< a value; -1: updates happen
  std::unordered_map<std::string, int> name_uses_;
  std::unordered_map<int, int> stored_of_value_;
  std::vector<Repeat> repeats_, copies_;
  std::unordered_map<std::string, std::vector<int64_t>> first_copy_;
  std::unordered_map<std::string, size_t> copy_uses_;
  std::unordered_map<int, int> stored_of_layer_;  ///< slice of a stored tensor -> the tensor
  std::string scope_, alike_;                     ///< alike_: without the numbers of copies
  Purpose purpose_ = Purpose::none;
  int recompute_group_ = 0,
      recompute_groups_ = 0;  ///< Node::recompute_group of new nodes; the greatest so far
  std::vector<std::string> prefer_;
  SourceLine at_override_;
  std::unique_ptr<Eager> eager_;  // null but in eager graphs
  DType parameters_ = DType::float32;
  bool stochastic_rounding_ = false;
};

/// Names what is built while it lives: `Scope block(g, "block3");`. As `Scope(g, "block", 3, 12)`,
/// copy 3 of 12, random numbers and first values are those of repeat() with 12 (tessera/loops.h).
class Scope {
 public:
  Scope(Graph& graph, const std::string& name);
  Scope(Graph& graph, const std::string& name, int64_t copy, int64_t copies);
  ~Scope();
  Scope(const Scope&) = delete;

 private:
  Graph& graph_;
  std::string saved_, saved_alike_;
  size_t saved_copies_;
};

/// While it lives, new nodes have `number` (Node::recompute_group).
class RecomputeScope {
 public:
  RecomputeScope(Graph& graph, int number) : graph_(graph), saved_(graph.recompute_group_) {
    graph.recompute_group_ = number;
  }
  ~RecomputeScope() { graph_.recompute_group_ = saved_; }
  RecomputeScope(const RecomputeScope&) = delete;
  /// A number that no node has.
  static int new_number(Graph& graph) { return ++graph.recompute_groups_; }

 private:
  Graph& graph_;
  int saved_;
};

/// One of `count` microbatches along `dim`; example i of it is example i * count + index of the
/// batch.
struct Microbatch {
  std::string dim;
  int64_t count = 0, index = 0;
};

/// While it lives, one of several copies or iterations is built, the first copy first. All copies
/// must be built alike.
class RepeatScope {
 public:
  RepeatScope(Graph& graph, const Repeat& repeat);
  ~RepeatScope();
  RepeatScope(const RepeatScope&) = delete;

 private:
  Graph& graph_;
  std::unordered_map<std::string, size_t> saved_uses_;
};

/// While it lives, a model is built for one microbatch, the first one first. input() with the dim
/// `dim` is fed with the whole batch, `count` times as long, and gives the examples of the
/// microbatch; parameters and states are those of the first one; random numbers are those of the
/// whole batch. All microbatches must be built alike.
class MicrobatchScope : public RepeatScope {
 public:
  MicrobatchScope(Graph& graph, const Microbatch& m)
      : RepeatScope(graph, {m.dim, m.count, m.index, -1, true}) {}
};

/// While it lives, new values belong to `purpose` and are laid out by its rules (optimizers use
/// it).
class PurposeScope {
 public:
  PurposeScope(Graph& graph, Purpose purpose) : graph_(graph), saved_(graph.purpose_) {
    graph.purpose_ = purpose;
  }
  ~PurposeScope() { graph_.purpose_ = saved_; }
  PurposeScope(const PurposeScope&) = delete;

 private:
  Graph& graph_;
  Purpose saved_;
};

/// While it lives, update() assigns only in runs in which `condition`, a bool scalar, is true; else
/// the stored tensor keeps its value.
class UpdateScope {
 public:
  UpdateScope(Graph& graph, Tensor condition, Loc at = Loc::current());
  ~UpdateScope() { graph_.update_condition_ = saved_; }
  UpdateScope(const UpdateScope&) = delete;

 private:
  Graph& graph_;
  int saved_;
};

/// While it lives, new values prefer what `like` prefers, as far as they have such a dim: state of
/// a parameter's size is laid out like it.
class PreferScope {
 public:
  PreferScope(Graph& graph, Tensor like);
  ~PreferScope();
  PreferScope(const PreferScope&) = delete;

 private:
  Graph& graph_;
  std::vector<std::string> saved_;
};

/// While it lives, new nodes report the source line of `node`, its scope and its preferences: for
/// nodes that the library makes on behalf of a user's node (gradients, bodies).
class SourceScope {
 public:
  SourceScope(Graph& graph, const Node& node, const std::vector<std::string>& prefer,
              const std::string& suffix);
  ~SourceScope();
  SourceScope(const SourceScope&) = delete;

 private:
  Graph& graph_;
  SourceLine saved_at_;
  std::string saved_scope_;
  std::vector<std::string> saved_prefer_;
};

}  // namespace tessera
