// The form of a model between graph and Program: the same nodes with a layout for every value, plus
// the nodes that move data. Passes read and write it; section 3 of docs/concepts.md lists them in
// order.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/program_slices.h"
#include "tessera/op.h"

namespace tessera {

enum class FlowKind : uint8_t {
  input,           ///< a fed tensor
  stored,          ///< a parameter or state, in its storage layout
  op,              ///< an op on slices
  all_reduce,      ///< over `axes`
  reduce_scatter,  ///< over `axes`, into dim `to`
  all_gather,      ///< over `axes`, along dim `from`
  all_to_all,      ///< over `axes`: dim `from` becomes whole, dim `to` split
  slice,           ///< local: dim `to` split over `axes`
  exchange,    ///< any layout to any layout or intervals, every element straight from an owner to
               ///< its place
  mask,        ///< padding of dims `dims` becomes `fill`
  first_only,  ///< zero except on coordinate 0 of `axes`
  loop,        ///< FlowLoop
};
const char* to_string(FlowKind kind);

struct FlowValue {
  Shape shape;  ///< logical
  DType dtype = DType::float32;
  TensorLayout layout;
  std::string name;
  int node = -1;
  std::vector<Interval> intervals = {};  ///< of an operand brought for one op
};

/// The names of the dims that are split.
std::vector<std::string> split_dims(const FlowValue& value);

struct FlowLoop;

struct FlowNode {
  FlowKind kind = FlowKind::op;
  std::vector<int> in, out;  ///< flow values
  Origin origin;
  // op
  const Op* op = nullptr;
  Attrs attrs;
  IndexSpace space;
  std::vector<std::vector<int>> splits;  ///< per factor its axes
  // moves
  std::vector<int> axes;
  int from = -1, to = -1;
  Combiner combiner = Combiner::sum;
  std::vector<int> dims;
  double fill = 0;
  int stored = -1;  ///< stored: index in graph.stored()
  std::shared_ptr<FlowLoop> loop = {};
};

/// A loop. Values of its trips are flow values, too. `out` of the node are the results of the
/// carries, of the stacks and of the sums; `in` what is read of those outside.
struct FlowLoop {
  struct Carry {
    int init, value, next;  ///< outside; where a trip begins; what it makes
  };
  struct Slice {
    int whole, value, dim;
  };
  int number = -1;  ///< in Graph::loops()
  std::string name;
  int64_t trips = 0;
  bool reverse = false;
  int condition = -1;  ///< a carry's or slice's value; -1: every trip runs
  std::vector<Carry> carries;
  std::vector<Slice> slices;
  std::vector<int> stacked, sums;  ///< what a trip makes
  std::vector<FlowNode> body;
};

struct FlowFunction {
  std::string name;
  std::vector<FlowNode> nodes;
  std::vector<std::pair<std::string, int>> outputs;  ///< name, value
  std::vector<std::pair<int, int>>
      updates;  ///< index in graph.stored(), value in its storage layout
};

struct Flow {
  std::vector<FlowValue> values;
  std::vector<FlowFunction> functions;
};

/// One line a node, for --print-after.
std::string to_string(const Flow& flow, const Mesh& mesh);

}  // namespace tessera
