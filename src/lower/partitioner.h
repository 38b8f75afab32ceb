// The walk that turns a graph into a flow: what partition.cpp and partition_loop.cpp share.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/body.h"
#include "lower/build.h"
#include "lower/choose.h"
#include "lower/partition.h"

namespace tessera {

/// A graph being walked: the model or a body.
struct Frame {
  const Graph& graph;
  std::string prefix;               ///< of names
  std::string source;               ///< overrides the nodes' lines in bodies
  std::vector<std::string> prefer;  ///< inherited by the nodes of a body
  std::vector<int> env;             ///< flow value of each graph value, or -1
  std::vector<std::vector<int>> uses;
  std::vector<char> escapes, needed;  ///< by value, by node
  std::vector<char> read;             ///< by value: something needed reads it, or it escapes
  int loop = -1;                      ///< whose trip is walked
  int again = 0;                      ///< Node::again of the node whose body it is
  std::string tensor = {};            ///< the model's tensor that a body computes, for messages
  std::map<int, TensorLayout> wanted = {};  ///< results of a body: where what it is for wants them
  mutable std::map<int, TensorLayout> wanted_homes = {};  ///< answers of Partitioner::wanted_home
  int again_of(const Node& node) const { return again ? again : node.again; }
};

/// Lets `target` be partial as `have` is, split over none of those axes.
void keep_partial(TensorLayout& target, const TensorLayout& have);
/// A cast to a wider dtype.
bool widens(const Graph& graph, const Node& node);

class Partitioner {
 public:
  Partitioner(const Graph& graph, const HomeLayouts& homes, const std::set<const Op*>& kernels,
              const PartitionOptions& options)
      : graph_(graph),
        homes_(homes),
        chooser_(homes),
        kernels_(kernels),
        options_(options),
        build_(homes) {}

  void run(const FunctionSpec& spec);
  void run_init();
  Flow take() { return build_.take(); }

 private:
  FlowFunction& function() { return build_.function(); }
  const FlowValue& flow_value(int id) const { return build_.value(id); }

  void start(const std::string& name);
  Frame make_frame(const Graph& graph, const std::vector<int>& roots, std::string prefix,
                   std::string source, std::vector<std::string> prefer);
  void walk(Frame& frame);
  Origin origin(const Frame& frame, const Node& node, std::string reason = "") const;
  TensorLayout home(const Frame& frame, int value) const;
  int add_value(FlowValue value) { return build_.add_value(std::move(value)); }
  void add_node(FlowNode node) { build_.add_node(std::move(node)); }
  int move(int value, const TensorLayout& to, const Origin& origin);

  /// The flow value that a consumer reads. Stored tensors are read in their compute layout, except
  /// by what belongs to a purpose itself (an optimizer update), which takes them where they rest.
  int operand(Frame& frame, int value, Purpose consumer);
  void finish_update(Frame& frame, int stored, int value);
  void visit(Frame& frame, int n);

  /// The op by slices of the first dim that it needs whole and that is split, of a composite also
  /// like another dim of its first operand; nothing if there is none, or gathering it is cheaper.
  std::optional<Body> by_slices(const OpCall& call, const std::vector<int>& in);
  void add_source(Frame& frame, const Node& node);
  bool keep_whole(Frame& frame, const Node& node, const OpCall& call, const std::vector<int>& in);
  void expand(Frame& frame, const Node& node, const Body& body, const std::vector<int>& in,
              std::vector<std::string> prefer = {});
  void compute(Frame& frame, const Node& node, const OpCall& call, std::vector<int> in);

  /// `value` with nothing left partial.
  int combined(int value, const Origin& origin);

  /// In a sum of partial and other operands, the others count on coordinate 0 only.
  void enter_once(const Node& node, int again, std::vector<int>& in, const Choice& choice,
                  const Origin& origin);

  /// Adds an op, or finds the same op on the same operands.
  std::vector<int> add_op(FlowNode flow, const OpCall& call, const Choice& choice,
                          const Frame& frame, const Node& node);

  /// Moves a new result to `target`, its home, still partial if all that consumes it allows.
  int settle(Frame& frame, int value, int flow, TensorLayout target, const Origin& origin);
  /// The result of a loop, of this kind, for which alone its trip makes `value`; or -1.
  int only_result(const Frame& frame, int value, Loop::Result kind) const;
  bool may_stay_partial(const Frame& frame, int value, const TensorLayout& have) const;
  /// If all that becomes of `value` is a sum over the trips of a loop, stacked and widened before
  /// or not: that sum; else -1.
  int summed_later(const Frame& frame, int value) const;
  /// That sum is combined, once, and `value` is not.
  bool stays_for_sum(const Frame& frame, int value) const {
    return !options_.sums_of_parts && summed_later(frame, value) >= 0;
  }
  /// Where the result of a loop lies: with sums_of_parts, what is summed later as that sum.
  TensorLayout home_of_result(const Frame& frame, int result) const;

  // wanted.cpp
  /// A dim that is `inside` the composite is split.
  bool cuts_inside(const OpCall& call, const std::vector<TensorLayout>& layouts);
  /// Of each operand: how many ops like this one read it and may share a move of it.
  std::vector<int> readers(const Frame& frame, const Node& node) const;
  /// Where `value` is read, and the bytes that its readers then move.
  struct Wanted {
    TensorLayout layout;
    int64_t cost = 0;
  };
  /// Where a consumer reads `value` if it lies `at`; nothing if that cannot be told before.
  std::optional<Wanted> wanted_by(const Frame& frame, const Node& node, int value,
                                  const TensorLayout& at);
  /// The home of a value, or slices of it if nothing else is read.
  const TensorLayout& wanted_home(const Frame& frame, int value);
  TensorLayout find_wanted_home(const Frame& frame, int value);
  /// Where a node puts a result: of a pointwise op, where it is wanted.
  TensorLayout home_of_result(const Frame& frame, const Node& node, int value);
  /// How a node is computed. Replaces the homes of results that would be partial by where they are
  /// combined.
  const Choice& aim(const Frame& frame, const Node& node, const OpCall& call,
                    const std::vector<TensorLayout>& layouts, std::vector<TensorLayout>& homes);
  /// Where a partial value is combined: at home, or as slices of it that all consumers want.
  TensorLayout combined_for(const Frame& frame, int value, const FlowValue& have,
                            const TensorLayout& home);
  /// The layout in which all consumers read a value whose home is `home`, or would read it if it
  /// lay where some of them want it; what they then move more than from home.
  std::optional<Wanted> wanted_by_all(const Frame& frame, int value, const TensorLayout& home);

  // partition_loop.cpp
  void run_loop(Frame& frame, const Node& node);
  void walk_trip(Frame& frame, const Loop& record, int number, FlowLoop& loop);

  /// Brings what the trip makes where its results are: the layouts of the stacks and sums.
  std::vector<TensorLayout> end_trip(Frame& frame, const Node& node, const Loop& record,
                                     FlowLoop& loop);
  void add_results(Frame& frame, const Node& node, std::shared_ptr<FlowLoop> loop,
                   const std::vector<TensorLayout>& layouts);
  const Graph& graph_;
  const HomeLayouts& homes_;
  Chooser chooser_;
  const std::set<const Op*>& kernels_;
  PartitionOptions options_;
  FlowBuilder build_;
  std::unordered_map<std::string, std::vector<int>> seen_;
};

}  // namespace tessera
