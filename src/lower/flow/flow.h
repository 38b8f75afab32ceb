// The Flow: the form of a model between graph and Program. It has the nodes of the graph, a layout
// for every value, and nodes that move data. docs/explanation/how-a-model-becomes-a-program.md
// lists the passes in order.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lower/layout/flow_kind.h"
#include "program/program.h"
#include "program/slicing.h"
#include "tessera/op.h"

namespace tessera {

/// Blocks of a value that are filled with rows only in part; see ragged() in tessera/ragged.h.
struct FlowCounts {
  int value = -1;   ///< the flow value with the counts; -1: all rows are there
  std::string dim;  ///< the dim of the rows
  double used = 1;  ///< the share of rows that is expected to be there
};

struct FlowValue {
  Shape shape;  ///< logical
  DType dtype = DType::float32;
  TensorLayout layout;
  std::string name;
  int node = -1;
  std::vector<Interval> intervals = {};  ///< set for an operand that was moved for one op
  FlowCounts counts = {};
  int turns = -1;  ///< Numbering::turns: the layers of chunks, where every second chunk turns back
};

/// The names of the split dims.
std::vector<std::string> split_dims(const FlowValue& value);

struct FlowLoop;

struct FlowNode {
  FlowKind kind = FlowKind::op;
  std::vector<int> in, out;  ///< flow values; an all_to_all of counted rows also has the counts
  Origin origin;
  // op
  const Op* op = nullptr;
  Attrs attrs;
  IndexSpace space;
  std::vector<std::vector<int>> splits;  ///< per factor: its axes
  /// Under strict numerics, of an op that adds: Along::dim is a factor. If one is split, the result
  /// has a dim in front for the subtrees of all ranks.
  SumOrder order;
  // communication, masks, loops
  std::vector<int> axes;
  int from = -1, to = -1;
  Combiner combiner = Combiner::sum;
  std::vector<int> dims;
  double fill = 0;
  TreeSumSpec tree_sum;
  int stored = -1;  ///< stored: index in graph.stored()
  std::shared_ptr<FlowLoop> loop = {};
};

/// A loop. Its iterations' values are flow values too. The node's `out`: results of the carries, of
/// the stacks and of the sums, in this order; `in`: the outer values that carries and slices read.
struct FlowLoop {
  struct Carry {
    int init, value, next;  ///< before the loop; at the start of an iteration; computed by it
  };
  struct Slice {
    int whole, value, dim;
  };
  int number = -1;  ///< in loops_of()
  std::string name;
  int64_t iterations = 0;
  bool reverse = false;
  int condition = -1;  ///< the flow value of a bool scalar; -1: every iteration runs
  std::vector<Carry> carries;
  std::vector<Slice> slices;
  std::vector<int> stacked, sums;  ///< values that an iteration computes
  bool sums_in_tree = false;       ///< iterations are leaves of one binary tree (strict numerics)
  std::vector<FlowNode> body;
  /// The mesh axis whose ranks are stages: each runs the iterations whose slices it has. -1: none.
  int stage_axis = -1;
  std::string stage_rule;  ///< the rule that made it so: "layers:pipe"
  int64_t per_stage = 0;   ///< the slices that a stage has a place for, padding included
  /// Of layers in stages: the chunks that a stage works on if microbatches pass through (rule
  /// `layers:pipe*2`). Which stage runs which of them, the schedule says (ScheduleRow::turns).
  int64_t chunks = 1;
  /// One chunk of each stage, made by assign_virtual_stages(): its number. -1: all layers.
  int64_t chunk = -1;
  bool turned = false;      ///< the stages have the layers of this chunk in descending order
  int64_t first_layer = 0;  ///< of the first stage's chunk; of per_stage layers
  /// By sum: the value that it begins with, or -1 for zeros. Empty: zeros.
  std::vector<int> sum_inits = {};
  /// Of each carry, with a dim for the stages in front: from a stage to the next, and from the last
  /// one to all. Exchanges.
  std::vector<FlowNode> to_next, to_all;
  /// A loop over ticks, in which the ranks along this axis are stages that work on different
  /// microbatches. The body has loops with a share. -1: none.
  int pipeline_axis = -1;
  std::optional<PipelineShare> share = {};  ///< without its scalar
  /// Of a loop with begin_to_next, [iteration * stages + stage]: the stage from which a stage
  /// receives, or `stages`; and the place of the arrivals where it is put.
  std::vector<int64_t> senders, places;
  /// (from, to): what an iteration copies first.
  std::vector<std::pair<int, int>> copies;
  /// What an iteration over microbatches begins with: to_next and to_all of layers in stages. in:
  /// with a dim for the stages in front, and the value without; out: the same.
  std::vector<FlowNode> begin_to_next, begin_to_all;
  /// Of each carry of layers in stages that are in a pipeline: what comes from the stage before. Of
  /// a chunk: with a dim in front, for several that wait.
  std::vector<int> arrivals;
  /// A value with a dim for the chunks in front, and the values of each chunk that it consists of.
  struct Dealt {
    int value = -1;
    std::vector<int> of_chunk;
  };
  std::vector<Dealt> dealt;

  /// Microbatches go over the stages from the last to the first.
  bool descends() const { return reverse != turned; }
  /// How much further in the layers a stage begins than the one before, if it has `layers` of them.
  int64_t ahead(int64_t layers) const { return turned ? -layers : layers; }
};

struct FlowFunction {
  std::string name;
  FunctionKind kind = FunctionKind::user;
  bool by_microbatches = false;  ///< see Function
  std::vector<FlowNode> nodes;
  std::vector<std::pair<std::string, int>> outputs;  ///< name, value
  std::vector<std::pair<int, int>>
      updates;  ///< index in graph.stored(), value in its storage layout
};

struct Flow {
  std::vector<FlowValue> values;
  std::vector<FlowFunction> functions;

  int add_value(FlowValue value) {
    values.push_back(std::move(value));
    return static_cast<int>(values.size()) - 1;
  }
};

/// One line for each node, for --print-after.
std::string to_string(const Flow& flow, const Mesh& mesh);

}  // namespace tessera
