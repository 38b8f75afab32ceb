// What a Graph holds, for the compiler; a model's author sees tessera/graph.h.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/eager.h"
#include "ir/gradient_region.h"
#include "ir/loop.h"
#include "ir/repeat.h"
#include "tessera/graph.h"

namespace tessera {

struct OpCall;

/// Which loop and which copies are being built.
struct Building {
  int open_loop = -1;
  std::vector<Repeat> repeats;  ///< outermost first
  /// What once_for_all() made in the first copy, by repetition and name.
  std::unordered_map<std::string, std::vector<int64_t>> first_copy;
  /// How often this copy has asked for a name.
  std::unordered_map<std::string, size_t> uses;
};

struct GraphInternals {
  static GraphInternals& of(Graph& graph) { return *graph.internals_; }
  static const GraphInternals& of(const Graph& graph) { return *graph.internals_; }

  /// `name` in the current scope: "gpt.block3.name".
  std::string scoped(const std::string& name) const;
  /// The line of a caller, without the folders of its file, which `files` keeps.
  SourceLine line_of(Loc at);
  /// The full name `name`, or name_1, name_2, ...: the first that is not in use.
  std::string unique(const std::string& name);
  /// Throws a usage error if the body of a composite contradicts its shape rule. Calls that are
  /// alike are checked once.
  void check_body(const OpCall& call);
  /// The dims of `shape` that new values prefer.
  std::vector<std::string> preferred_of(const Shape& shape) const;
  /// x, called `name` in the current scope or, if that is in use, `name`_1, `name`_2, ...
  Tensor named_freely(Tensor x, const std::string& name);

  std::deque<Node> nodes;  // deques: references stay valid while the graph grows
  std::deque<Value> values;
  std::vector<Stored> stored;
  std::map<std::string, Array> constants;  ///< by the name of their input
  std::vector<Update> updates;
  std::map<std::string, std::vector<Update>> updates_in;  ///< by function: update_in()
  bool is_body = false;                                   ///< of a composite
  std::set<std::string> known_bodies;                     ///< calls whose bodies have been checked
  std::vector<GradientRegion> regions;
  std::deque<Loop> loops;
  std::unordered_map<int, int> stored_of_value;  ///< value -> position in `stored`
  std::unordered_map<int, int> stored_of_layer;  ///< a layer's slice -> the value of the whole
  std::unordered_map<std::string, int> name_uses;
  std::map<std::string, std::string> files;  ///< name -> path; "" if several paths have it
  int recompute_groups = 0;                  ///< the greatest so far

  // What new nodes and values get.
  std::string scope;
  std::string unnumbered_scope;  ///< "gpt.block" for copy 3 of it, where `scope` is "gpt.block3"
  std::vector<Repeat> copies;    ///< those of Scopes
  Building building;
  Purpose purpose = Purpose::none;
  int recompute_group = 0;
  std::vector<std::string> prefer;
  SourceLine at;              ///< instead of the caller's line, if it is set
  int update_condition = -1;  ///< a value; -1: updates happen

  DType parameters = DType::float32;
  bool stochastic_rounding = false;
  std::unique_ptr<Eager> eager;  ///< null but in eager graphs
};

}  // namespace tessera
