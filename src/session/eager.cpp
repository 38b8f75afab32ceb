// An eager graph runs each node as a model of its own: the operands are its inputs, the results its
// outputs, and a Session on one thread rank does the rest. Slow, and the same kernels.
#include "ir/eager.h"

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/fail.h"
#include "ir/scopes.h"
#include "ir/source_ops.h"
#include "tessera/inspect.h"
#include "tessera/ops.h"
#include "tessera/session.h"

namespace tessera {

namespace {

/// A node in a graph of its own.
struct Alone {
  Graph graph;
  std::map<int, Tensor> in;  ///< by the value's id in the model
  std::vector<Tensor> out;
  std::set<std::string> bounded = {};  ///< dims
};

class EagerRunner : public Eager {
 public:
  explicit EagerRunner(const GraphOptions& options) : options_(options) {}

  void feed(const std::string& name, const Array& whole) override {
    TESSERA_REQUIRE(!used_.count(name), "[feed] '{}' was used before; feed it first", name);
    fed_[name] = whole;
  }

  Array fetch(const Graph& graph, Tensor tensor) override { return value_of(graph, tensor.id()); }

  void run(Graph& graph, const Node& node) override {
    if (node.op == &kInput || node.op == &kStored) return declared_.push_back(node.out[0]);
    try {
      compute(graph, node);
    } catch (const Error& e) {
      cluster_ = Cluster::threads(1);  // the old one remembers the failure
      std::string text = e.what();
      if (const size_t end = text.find("] "); text.front() == '[' && end != std::string::npos)
        text.erase(0, end + 2);
      if (text.find(node.at.to_string()) == std::string::npos)
        text += " (" + node.at.to_string() + ")";
      throw Error(e.kind(), fmt::format("[{}] {}", node.name, text));
    }
  }

 private:
  /// Notes the sizes of what was fed and not used yet: a node may ask for one.
  void note_fed(const Graph& graph) {
    std::erase_if(declared_, [&](int id) {
      const auto it = fed_.find(graph.value(id).name);
      if (it != fed_.end()) note_sizes(graph.value(id).shape, it->second);
      return it != fed_.end();
    });
  }

  /// The sizes of bounded dims, as far as `array` lies within `shape`.
  void note_sizes(const Shape& shape, const Array& array) {
    for (int d = 0; d < shape.rank() && d < std::ssize(array.sizes); ++d) {
      if (shape[d].is_bounded && array.sizes[static_cast<size_t>(d)] <= shape[d].size)
        sizes_[shape[d].name] = array.sizes[static_cast<size_t>(d)];
    }
  }

  const Array& value_of(const Graph& graph, int id) {
    if (auto it = values_.find(id); it != values_.end()) return it->second;
    const Value& value = graph.value(id);
    used_.insert(value.name);
    if (auto it = fed_.find(value.name); it != fed_.end()) return take_fed(value, it->second, id);
    const Stored* stored = graph.find_stored(id);
    std::vector<std::string> names;
    for (const auto& [name, array] : fed_) names.push_back(name);
    TESSERA_REQUIRE(stored != nullptr, "'{}' has no value; feed() it before it is used; fed: {}",
                    value.name,
                    names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", ")));
    return values_[id] = value_of(graph, stored->init);
  }

  const Array& take_fed(const Value& value, const Array& array, int id) {
    TESSERA_REQUIRE(array.dtype == value.dtype, "'{}' is {} but the array is {}", value.name,
                    to_string(value.dtype), to_string(array.dtype));
    TESSERA_REQUIRE(array.dims.empty() || array.dims == value.shape.names(),
                    "'{}' is {} but the array has the dims [{}]", value.name,
                    value.shape.to_string(), fmt::join(array.dims, ", "));
    bool fits = array.sizes.size() == value.shape.dims().size();
    for (size_t d = 0; fits && d < array.sizes.size(); ++d) {
      const Dim& dim = value.shape.dims()[d];
      fits = array.sizes[d] == dim.size || (dim.is_bounded && array.sizes[d] < dim.size);
    }
    TESSERA_REQUIRE(fits, "'{}' is {} but the array has the sizes [{}]", value.name,
                    value.shape.to_string(), fmt::join(array.sizes, ", "));
    note_sizes(value.shape, array);
    return values_[id] = array;
  }

  /// The node with its line and the names of its operands, in a graph of its own.
  std::unique_ptr<Alone> isolate(const Graph& graph, const Node& node) const {
    auto alone = std::make_unique<Alone>();
    std::vector<Tensor> in;
    for (int v : node.in) {
      const Value& value = graph.value(v);
      if (!alone->in.count(v))
        alone->in[v] = alone->graph.input(value.name, value.shape, value.dtype);
      in.push_back(alone->in[v]);
    }
    const SourceScope source(alone->graph, node, {}, "");
    alone->out = alone->graph.add(*node.op, in, node.attrs, Loc::current());
    if (node.attrs.has("bounded")) {  // dim_size: the dim is in no operand
      for (const Dim& d : shape_of(node.attrs)) {
        if (d.is_bounded) alone->out.push_back(iota(alone->graph, d));
      }
    }
    for (const Value& value : alone->graph.values()) {
      for (const Dim& d : value.shape) {
        if (d.is_bounded) alone->bounded.insert(d.name);
      }
    }
    return alone;
  }

  void compute(const Graph& graph, const Node& node) {
    const std::unique_ptr<Alone> alone = isolate(graph, node);
    CompileOptions compile{
        Mesh::parse("one:1"), {}, {{"run", alone->out, false}}, options_.seed, 1};
    compile.print = options_.print;
    Session session(alone->graph, cluster_, compile);
    std::map<std::string, const Array*> operands;
    for (const auto& [value, input] : alone->in) operands[input.name()] = &value_of(graph, value);
    note_fed(graph);
    for (const std::string& dim : alone->bounded) {  // others follow, or are as large as can be
      if (const auto it = sizes_.find(dim); it != sizes_.end()) session.set_size(dim, it->second);
    }
    for (const auto& [name, array] : operands) session.feed(name, *array);
    session.run("run");
    for (size_t i = 0; i < node.out.size(); ++i) {
      values_[node.out[i]] = session.fetch(alone->out[i].name());
      note_sizes(graph.value(node.out[i]).shape, values_[node.out[i]]);
      if (options_.check_finite) require_finite(graph.value(node.out[i]), values_[node.out[i]]);
    }
  }

  static void require_finite(const Value& value, const Array& array) {
    for (int64_t i = 0; i < array.elements(); ++i) {
      TESSERA_REQUIRE(std::isfinite(array.at(i)), "element {} of '{}' is {}",
                      index_text(array.dims, array.sizes, i), value.name, array.at(i));
    }
  }

  GraphOptions options_;
  Cluster cluster_ = Cluster::threads(1);
  std::unordered_map<int, Array> values_;
  std::map<std::string, Array> fed_;
  std::set<std::string> used_;
  std::vector<int> declared_;             ///< inputs and stored tensors that were not fed yet
  std::map<std::string, int64_t> sizes_;  ///< of bounded dims, where known
};

}  // namespace

std::unique_ptr<Eager> make_eager(const GraphOptions& options) {
  return std::make_unique<EagerRunner>(options);
}

}  // namespace tessera
