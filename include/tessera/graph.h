// The model as written: a graph of named tensors, built by the functions of ops.h:
//   Graph g;
//   const Dim batch("batch", 32), in("in", 784), out("out", 10);
//   Tensor x = g.input("x", {batch, in}, DType::float32);
//   Tensor w = g.parameter("w", {in, out}, nn::zeros());
//   Tensor y = einsum({x, w}, {batch, out});
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/attrs.h"
#include "tessera/dim.h"
#include "tessera/dtype.h"
#include "tessera/mesh.h"

namespace tessera {

class Graph;
struct GraphInternals;
struct Op;
using Loc = std::source_location;

/// A cheap handle of one value of a graph; valid as long as the graph lives.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Graph* graph, int id) : graph_(graph), id_(id) {}

  /// True for a Tensor that was never assigned a value.
  bool empty() const { return graph_ == nullptr; }
  /// A Tensor is no condition: its values exist when the graph runs. Take where() or cond().
  explicit operator bool() const = delete;
  Graph& graph() const;
  int id() const { return id_; }
  const Shape& shape() const;
  DType dtype() const;
  /// Unique name with scopes: "gpt.block3.attention.logits".
  const std::string& name() const;
  /// The dim called `name`; usage error with the nearest name if there is none.
  const Dim& dim(const std::string& name) const { return shape().dim(name); }

  /// Renames this value (within its scope); returns it. Fetches, rules and reports use the name.
  /// Throws a usage error for an input, parameter or state, and for a name that another tensor has;
  /// in the copies of a microbatch or layer a number is appended instead.
  Tensor named(const std::string& name, Loc at = Loc::current()) const;
  /// Renames this value to `name` or, if another tensor has it, to name_1, name_2, ...; a source
  /// keeps its name, and a copy of it is returned.
  Tensor uniquely_named(const std::string& name) const;
  /// Says which dim gets an axis that the rules give to several dims of this tensor. Under
  /// "batch:data; experts:data", x.prefer("experts") splits `experts`. Earlier dims take
  /// precedence. The first call changes the tensor itself, and its initializer if it is stored. A
  /// further call returns a copy: x.prefer("batch"), later x.prefer("experts"), moves the data.
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
  /// Recompute group: nodes of different groups are never deduplicated.
  int recompute_group = 0;
  int loop = -1;  ///< the innermost loop that runs the node, or -1
};

/// One tensor of a graph.
struct Value {
  int node = -1;  ///< the one that makes it
  Shape shape;
  DType dtype = DType::float32;
  std::string name;
  /// grads: the gradient of a parameter; state: part of an optimizer update.
  Purpose purpose = Purpose::none;
  std::vector<std::string> prefer;  ///< dims, the first before the others
};

/// A parameter or a piece of optimizer state. It lives between runs and is saved in checkpoints.
struct Stored {
  int value = -1;  ///< what reading it gives
  int init = -1;   ///< its first value
  Purpose purpose = Purpose::params;
  bool trainable = true;
  int layers = 0;           ///< how many of its first dims count layers: 1 in a repeat()
  int layer_init = -1;      ///< the first value of one layer
  double weight_decay = 0;  ///< that of its update
};

/// An assignment made at the end of a function that has updates.
struct Update {
  int stored = -1;  ///< the value of the Stored
  int value = -1;
};

/// Something that one run computes: outputs by name, and the graph's updates.
struct FunctionSpec {
  std::string name;
  std::vector<Tensor> outputs;
  /// True: the updates are stored; false: they are not. Left out it means false, and is an error if
  /// the graph has updates that no function stores: a loop over `run` would train nothing.
  std::optional<bool> updates = {};
  bool stores_updates() const { return updates.value_or(false); }
};

/// Builds the first value of a stored tensor from its graph, shape and dtype.
using Initializer = std::function<Tensor(Graph&, const Shape&, DType)>;

/// Makes the gradients of xs from xs, ys and the gradients of ys (zeros where none flows): one for
/// each x, an empty Tensor where none flows.
using GradientRule =
    std::function<std::vector<Tensor>(const std::vector<Tensor>& xs, const std::vector<Tensor>& ys,
                                      const std::vector<Tensor>& grads)>;

struct GraphOptions {
  /// Computes every node when it is added, whole and on one rank. An error is thrown from the very
  /// line of the model that made the node, and fetch() reads its value at once. This is for finding
  /// mistakes: each node costs a compilation. Numbers are those of a Session, to rounding.
  bool eager = false;
  bool check_finite = false;  ///< eager: a result that is not finite is an error, too
  uint64_t seed = 0;          ///< eager: what random numbers depend on; the step is 0
  std::function<void(const std::string& line)> print = {};  ///< eager: gets lines of print() nodes
};

class Graph {
 public:
  Graph();
  explicit Graph(const GraphOptions& options);  ///< `Graph g({.eager = true});`
  ~Graph();
  Graph(const Graph&) = delete;

  /// A tensor fed at each run as `name`, which no other may have. Its padding is zero.
  Tensor input(const std::string& name, const Shape& shape, DType dtype, Loc at = Loc::current());
  /// A trainable parameter, named by the current scope and `name`, which no other may have.
  Tensor parameter(const std::string& name, const Shape& shape, const Initializer& init,
                   DType dtype = DType::float32, Loc at = Loc::current());
  /// Later float32 parameters are stored in `dtype`, float32 or 16 bits, without a float32 copy.
  /// update() rounds to it, to nearest or by stochastic_cast().
  void store_parameters_as(DType dtype, bool stochastic_rounding = false);
  /// A stored tensor that is not trained (optimizer state, running statistics).
  Tensor state(const std::string& name, const Shape& shape, const Initializer& init,
               DType dtype = DType::float32, Loc at = Loc::current());
  /// Assigns `value` to `stored` at the end of each run of a function with updates. All values are
  /// computed before any is assigned. Dims (in any order) and dtypes must agree. Throws a usage
  /// error for a tensor that is not stored and for a second update of one.
  void update(Tensor stored, Tensor value, Loc at = Loc::current());
  /// Marks the gradient of a parameter: the @grads rules lay it out.
  void mark_gradient(Tensor gradient);

  /// Eager graphs: gives an input its value, or a parameter or state another first value, before
  /// it is used. A bounded dim may be shorter. An array that does not fit is a usage error where
  /// the tensor is used.
  void feed(const std::string& name, const Array& whole);
  /// Eager graphs: the value of a tensor. Updates are computed and not applied.
  Array fetch(Tensor tensor) const;

  /// Adds a node and returns its outputs: for functions that are ops, a user's own too (op.h).
  std::vector<Tensor> add(const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at);
  /// A name in the current scope that no other node has: `base`, or base_1, base_2, ...
  std::string unique_name(const std::string& base);
  const std::string& scope() const;  ///< the current one: "gpt.block3" or ""

  // Nodes and values are numbered in the order in which they were added.
  const std::deque<Node>& nodes() const;
  const std::deque<Value>& values() const;
  const std::vector<Stored>& stored() const;
  const std::vector<Update>& updates() const;
  const Value& value(int id) const;
  const Node& producer(int value) const;  ///< the node that makes it
  /// The stored tensor whose value is `value`, or null.
  const Stored* find_stored(int value) const;
  /// Notes Stored::weight_decay, for reports.
  void note_weight_decay(Tensor parameter, double decay);
  /// The values of constant(g, Array), by the name of the input that holds them.
  const std::map<std::string, Array>& constants() const;
  std::vector<Tensor> parameters();  ///< trainable ones, in order of creation
  /// The value called `name`. Throws a usage error with the nearest name.
  Tensor find(const std::string& name);
  /// One line a node: name, shape, op, inputs, attributes, source line.
  std::string to_string() const;

 private:
  friend struct GraphInternals;
  std::unique_ptr<GraphInternals> internals_;
};

/// What all scopes are: while one lives, the graph is built in another way. Its end undoes that.
class BuildScope {
 public:
  BuildScope(const BuildScope&) = delete;
  ~BuildScope() {
    if (undo_) undo_();
  }

 protected:
  BuildScope() = default;
  std::function<void()> undo_;
};

/// Names what is built: `Scope block(g, "block3");`. Scope(g, "block", 3, 12) is copy 3 of 12: its
/// random numbers and first values are those of layer 3 in a repeat() of 12 (tessera/loops.h).
class Scope : public BuildScope {
 public:
  Scope(Graph& graph, const std::string& name);
  Scope(Graph& graph, const std::string& name, int64_t copy, int64_t copies);
};

/// Builds a model for microbatch `index` of `count` along `dim`; its example i is example
/// i * count + index of the batch, or the next one after those of microbatch index - 1 if
/// microbatches are contiguous. Build microbatch 0 first, and all alike. input() is fed with the
/// whole batch, `count` times as long, and gives the examples of the microbatch. Microbatch 0 makes
/// parameters and states, and all share them. Random numbers are those of the whole batch.
class MicrobatchScope : public BuildScope {
 public:
  MicrobatchScope(Graph& graph, const std::string& dim, int64_t count, int64_t index,
                  bool contiguous = false);
};

/// New values belong to `purpose`, whose rules lay them out (for optimizers).
class PurposeScope : public BuildScope {
 public:
  PurposeScope(Graph& graph, Purpose purpose);
};

/// update() assigns only in runs in which `condition`, a bool scalar, is true. In other runs the
/// stored tensor keeps its value.
class UpdateScope : public BuildScope {
 public:
  UpdateScope(Graph& graph, Tensor condition, Loc at = Loc::current());
};

/// New values prefer those dims of theirs that `like` prefers: an optimizer's state is laid out
/// like its parameter.
class PreferScope : public BuildScope {
 public:
  PreferScope(Graph& graph, Tensor like);
};

}  // namespace tessera
