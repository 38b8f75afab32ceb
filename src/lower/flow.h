// The form of a model between graph and Program: the same nodes with a layout for every value, plus
// the nodes that move data. Passes read and write it; section 3 of docs/concepts.md lists them in
// order.
#pragma once

#include <map>
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
