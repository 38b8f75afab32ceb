// Both walks run the same rules. Between them nodes that depend on no input are computed once, on
// one rank: masks and positions then have values, which rules look at, and dims along which nothing
// varies are dropped.
#include "pytorch/import.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/fail.h"
#include "pytorch/aten.h"
#include "pytorch/reading.h"
#include "pytorch/weights.h"
#include "tessera/caller.h"
#include "tessera/cluster.h"
#include "tessera/loops.h"
#include "tessera/nn_layers.h"
#include "tessera/session.h"

namespace tessera::pytorch {

namespace {

/// "add.Tensor" of "aten.add.Tensor".
std::string overload_of(const std::string& target) {
  return target.starts_with("aten.") ? target.substr(5) : target;
}

/// "my::op" of "my.op.default".
std::string op_name(const std::string& target) {
  const size_t first = target.find('.'), last = target.rfind('.');
  if (first == std::string::npos || first == last) return target;
  return target.substr(0, first) + "::" + target.substr(first + 1, last - first - 1);
}

bool is_random(const std::string& target) {
  for (const char* op : {"rand", "dropout", "bernoulli", "multinomial", "normal"})
    if (target.find(op) != std::string::npos && target.find("norm.") == std::string::npos)
      return true;
  return false;
}

bool is_row_major(const TensorMeta& meta) {
  int64_t inner = 1;
  for (size_t d = meta.sizes.size(); d-- > 0; inner *= meta.sizes[d])
    if (meta.sizes[d] > 1 && meta.strides[d] != inner) return false;
  return true;
}

bool is_one_of(const std::string& overload, std::initializer_list<const char*> fronts) {
  return std::any_of(fronts.begin(), fronts.end(),
                     [&](const char* front) { return overload.starts_with(front); });
}

/// Whether the results share memory with `self`, so that a write to one is a write to both.
bool is_view(const std::string& overload, const TensorMeta& self, const TensorMeta& result) {
  if (is_one_of(overload, {"reshape.", "flatten.", "contiguous."})) return is_row_major(self);
  if (is_one_of(overload, {"to.", "type_as.", "float."})) return self.type == result.type;
  return is_one_of(overload, {"view.",      "_unsafe_view.",
                              "select.",    "slice.",
                              "unsqueeze.", "squeeze.",
                              "transpose.", "permute.",
                              "swapaxes.",  "expand.",
                              "alias.",     "detach.",
                              "narrow.",    "t.",
                              "numpy_T.",   "unflatten.",
                              "view_as.",   "movedim.",
                              "diagonal.",  "unfold.",
                              "expand_as.", "chunk.",
                              "split.",     "split_with_sizes.",
                              "unbind."});
}

/// The values that the elements of an array have, without dims along which they are all equal.
Array without_equal(const Array& array) {
  Array result = array;
  const int64_t item = size_of(array.dtype);
  for (size_t d = result.sizes.size(); d-- > 0;) {
    int64_t inner = item, outer = 1;
    for (size_t i = 0; i < result.sizes.size(); ++i)
      (i < d ? outer : inner) *= i == d ? 1 : result.sizes[i];
    const int64_t n = result.sizes[d];
    bool equal = true;
    for (int64_t o = 0; o < outer && equal; ++o)
      for (int64_t i = 1; i < n && equal; ++i)
        equal = std::memcmp(&result.bytes[static_cast<size_t>(o * n * inner)],
                            &result.bytes[static_cast<size_t>((o * n + i) * inner)],
                            static_cast<size_t>(inner)) == 0;
    if (!equal) continue;
    Array less = result;
    less.dims.erase(less.dims.begin() + static_cast<long>(d));
    less.sizes.erase(less.sizes.begin() + static_cast<long>(d));
    less.bytes.resize(static_cast<size_t>(outer * inner));
    for (int64_t o = 0; o < outer; ++o)
      std::memcpy(&less.bytes[static_cast<size_t>(o * inner)],
                  &result.bytes[static_cast<size_t>(o * n * inner)], static_cast<size_t>(inner));
    result = std::move(less);
  }
  return result;
}

/// What a parameter starts as where the file has no elements.
Initializer first_value(const std::string& name, const TensorMeta& meta) {
  if (meta.sizes.size() > 1) return nn::normal(0.02);
  return name.ends_with("weight") ? nn::ones() : nn::zeros();
}

/// "b.0.attn" becomes scopes, and its end a name.
std::pair<std::string, std::string> scope_and_name(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

/// The scopes of a path, all of them.
std::vector<std::unique_ptr<Scope>> scopes_of(Graph& graph, const std::string& path) {
  std::vector<std::unique_ptr<Scope>> scopes;
  for (size_t at = 0; at < path.size();) {
    const size_t dot = std::min(path.find('.', at), path.size());
    if (dot > at) scopes.push_back(std::make_unique<Scope>(graph, path.substr(at, dot - at)));
    at = dot + 1;
  }
  return scopes;
}

/// They end in reverse order.
struct Scopes {
  Scopes(Graph& graph, const std::string& path) : all(scopes_of(graph, path)) {}
  ~Scopes() {
    while (!all.empty()) all.pop_back();
  }
  std::vector<std::unique_ptr<Scope>> all;
};

}  // namespace

Import::Import(const Archive& archive, const ExportedProgram& program,
               const std::map<std::string, PytorchOp>& own)
    : archive_(archive), program_(program), own_(own), nodes_(&program.graph) {
  find_mutated(program_.graph);
  find_slices(program_.graph);
  read_inputs();
  find_constants();
  walk(program_.graph);
}

Dim Import::dim(const Use& use) const {
  const auto known = names_.find(use.atom);
  std::string name = known != names_.end() ? known->second : fmt::format("dim{}", use.atom);
  for (int copy = 0; copy < use.copy; ++copy)
    name = name == "length" ? "memory_length" : "_" + name;
  const auto resized = resized_.find(use.atom);
  if (resized == resized_.end()) return {name, atoms_.size(use.atom)};
  return resized->second.renamed(name);
}

void Import::name(int atom, const std::string& name) { names_[atom] = name; }

void Import::resize(int atom, int64_t size, bool bounded) {
  resized_.insert_or_assign(atom, bounded ? Dim::bounded("", size) : Dim("", size));
}

DType Import::dtype(ScalarType type) const {
  return type == ScalarType::float32 ? options_.dtype : dtype_of(type);
}

void Import::find_mutated(const Nodes& graph) {
  std::set<std::string> inputs;
  for (const InputSpec& input : program_.inputs) inputs.insert(input.value);
  for (const auto& [buffer, value] : program_.mutations)
    for (const InputSpec& input : program_.inputs)
      if (input.name == buffer) mutated_.insert(input.value);
  for (const Node& node : graph.nodes) {
    const Argument* trains = node.find("training");
    const bool moments = node.target.starts_with("aten.batch_norm") && trains &&
                         std::holds_alternative<bool>(*trains) && std::get<bool>(*trains);
    for (const auto& [arg, value] : node.args) {
      const auto* name = std::get_if<TensorName>(&value);
      const bool is_written = (writes_operand(node.target) && arg == "self") ||
                              (moments && arg.starts_with("running_"));
      if (name && is_written && inputs.count(name->name) != 0) mutated_.insert(name->name);
    }
  }
}

void Import::find_slices(const Nodes& graph) {
  for (const Node& node : graph.nodes) {
    if (node.target != "aten.slice.Tensor") continue;
    const auto* name = std::get_if<TensorName>(node.find("self"));
    const auto meta = name ? graph.tensors.find(name->name) : graph.tensors.end();
    if (meta == graph.tensors.end()) continue;
    const auto given = [&](const char* arg, int64_t fallback) {
      const Argument* a = node.find(arg);
      const auto* n = a ? std::get_if<int64_t>(a) : nullptr;
      return n ? *n : fallback;
    };
    const auto rank = std::ssize(meta->second.sizes);
    const int64_t axis = given("dim", 0) < 0 ? given("dim", 0) + rank : given("dim", 0);
    if (axis < 0 || axis >= rank) continue;
    const int64_t n = meta->second.sizes[static_cast<size_t>(axis)];
    const auto clamped = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
    slices_[{name->name, static_cast<size_t>(axis)}].insert(
        {clamped(given("start", 0)), clamped(given("end", n)), given("step", 1)});
  }
}

void Import::read_inputs() {
  for (const InputSpec& input : program_.inputs) {
    const TensorMeta& meta = program_.graph.tensors.at(input.value);
    Value value;
    if (!input.tied_to.empty()) {
      values_[input.value] = values_.at(input.tied_to);
      continue;
    }
    // Constants are two tensors; a state_dict in safetensors has none.
    const bool is_stored_complex = meta.type == ScalarType::complex64;
    if (is_stored_complex && (input.kind == InputSpec::Kind::user ||
                              input.kind == InputSpec::Kind::parameter || input.is_exported))
      fail(ErrorKind::unsupported,
           "[pytorch] '{}': '{}' holds complex numbers; Tessera stores real ones: make it a tensor "
           "of two parts, and view_as_complex() of it",
           program_.path, input.name);
    for (const int64_t size : meta.sizes) value.axes.push_back(atoms_.add(size));
    value.dtype = dtype(meta.type);
    const bool is_stored = input.kind == InputSpec::Kind::buffer ||
                           input.kind == InputSpec::Kind::constant || elements_of(meta) == 0;
    value.is_constant = is_stored && mutated_.count(input.value) == 0 && !is_stored_complex;
    value.is_complex = is_stored_complex;
    values_[input.value] = std::move(value);
  }
}

namespace {

/// Dynamic sizes of an op's operands and results, and those that it takes as numbers.
struct Symbols {
  std::set<std::string> given, numbers, made;
};

void add_symbols(const Nodes& graph, const std::string& value, std::set<std::string>& all) {
  const auto meta = graph.tensors.find(value);
  if (meta == graph.tensors.end()) return;
  for (const std::string& symbol : meta->second.symbols)
    if (!symbol.empty()) all.insert(symbol);
}

Symbols symbols_of(const Nodes& graph, const Node& node) {
  Symbols symbols;
  for (const std::string& operand : operands_of(node)) add_symbols(graph, operand, symbols.given);
  for (const std::string& output : node.outputs) add_symbols(graph, output, symbols.made);
  for (const auto& [name, arg] : node.args)
    if (const auto* n = std::get_if<SymInt>(&arg)) symbols.numbers.insert(n->symbol);
  return symbols;
}

/// Whether an op of constants has elements that differ along a dynamic axis, given those operands
/// that do. An axis along which a tensor does not differ may be indexed by anything.
bool differs(const Nodes& graph, const Node& node, const std::set<std::string>& differing) {
  const auto is = [&](const std::string& value) { return differing.count(value) != 0; };
  const std::vector<std::string> operands = operands_of(node);
  const std::string self = tensor_of(node, "self");
  const auto meta = graph.tensors.find(self);
  if (meta == graph.tensors.end()) return std::any_of(operands.begin(), operands.end(), is);
  const std::vector<std::string>& symbols = meta->second.symbols;
  const Argument* indices = node.find("indices");
  const auto* list = indices ? std::get_if<std::vector<TensorName>>(indices) : nullptr;
  if (node.target != "aten.index.Tensor" || !list) {
    const bool counts =
        node.target.starts_with("aten.cum") || node.target.starts_with("aten.logcum");
    const bool is_dynamic = std::any_of(symbols.begin(), symbols.end(),
                                        [](const std::string& s) { return !s.empty(); });
    const Argument* dim = node.find("dim");
    const auto* d = dim ? std::get_if<int64_t>(dim) : nullptr;
    const auto n = std::ssize(symbols);
    const bool along =
        counts && is_dynamic &&
        (!d || *d < -n || *d >= n || !symbols[static_cast<size_t>(*d < 0 ? *d + n : *d)].empty());
    return along || std::any_of(operands.begin(), operands.end(), is);
  }
  bool result = is(self);
  for (size_t a = 0; a < list->size(); ++a)
    result = result || (is((*list)[a].name) && (a >= symbols.size() || symbols[a].empty()));
  return result;
}

}  // namespace

void Import::find_constants() {
  const Nodes& graph = program_.graph;
  std::set<std::string> differing;
  for (const auto& [name, value] : values_)
    if (value.is_constant) constants_.insert(name);
  for (const Node& node : graph.nodes) {
    const Symbols symbols = symbols_of(graph, node);
    const auto is_made = [&](const std::string& s) { return symbols.made.count(s) != 0; };
    if (!could_be_constant(node) ||
        !std::all_of(symbols.given.begin(), symbols.given.end(), is_made) ||
        !std::all_of(symbols.numbers.begin(), symbols.numbers.end(), is_made))
      continue;
    constants_.insert(node.outputs.begin(), node.outputs.end());
    if (!symbols.numbers.empty() || differs(graph, node, differing))
      differing.insert(node.outputs.begin(), node.outputs.end());
  }
  constants_.erase("");
  // What differs along a dynamic axis has no value that the rest of the program could read.
  for (const std::string& output : program_.outputs)
    if (differing.count(output) != 0) constants_.erase(output);
  for (bool changes = true; changes;) {
    changes = false;
    for (const Node& node : graph.nodes) {
      const std::vector<std::string> operands = operands_of(node);
      const auto is_known = [&](const std::string& v) {
        return v.empty() || constants_.count(v) != 0;
      };
      const bool all = std::all_of(operands.begin(), operands.end(), is_known);
      const bool is_one = std::any_of(node.outputs.begin(), node.outputs.end(),
                                      [&](const auto& o) { return constants_.count(o) != 0; });
      if (is_one && all) continue;
      for (const std::string& output : node.outputs)
        changes = constants_.erase(output) > 0 || changes;
      for (const std::string& operand : operands)
        if (differing.count(operand) != 0) changes = constants_.erase(operand) > 0 || changes;
    }
  }
}

bool Import::could_be_constant(const Node& node) const {
  const bool is_main = nodes_ == &program_.graph;
  if (is_random(node.target)) return false;
  for (const std::string& output : node.outputs) {
    const auto meta = nodes_->tensors.find(output);
    if (meta == nodes_->tensors.end()) continue;
    if (meta->second.type == ScalarType::complex64) return false;
    for (const std::string& symbol : meta->second.symbols)
      if (!symbol.empty() && !is_main) return false;
  }
  const auto is_known = [&](const std::string& operand) {
    const auto found = values_.find(operand);
    return operand.empty() || constants_.count(operand) != 0 ||
           (!is_main && found != values_.end() && found->second.is_constant);
  };
  for (const auto& [name, arg] : node.args)
    if (std::holds_alternative<SymInt>(arg) && !is_main) return false;
  const std::vector<std::string> operands = operands_of(node);
  if (!std::all_of(operands.begin(), operands.end(), is_known)) return false;
  return true;
}

bool Import::is_constant(const Node& node) const {
  if (nodes_ != &program_.graph) return could_be_constant(node);
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](const std::string& output) { return constants_.count(output) != 0; });
}

void Import::walk(const Nodes& graph) {
  const Nodes* const outer = nodes_;
  nodes_ = &graph;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto stack = std::find_if(stacks_.begin(), stacks_.end(), [&](const Stack& s) {
      return &graph == &program_.graph && graph_ == main_ && graph_ && s.begin == i;
    });
    if (stack == stacks_.end()) {
      run(graph.nodes[i]);
    } else {
      run_loop(*stack);
      i = stack->end - 1;
    }
  }
  nodes_ = outer;
}

void Import::run(const Node& node) {
  const std::string overload = overload_of(node.target);
  if (!makes_tensors(node)) return;  // arithmetic of sizes, and asserts
  const bool constant = is_constant(node);
  if (graph_ && inlined_ == 0 && constant != (graph_ != main_)) return;
  const CallerScope line(node.file.empty() ? program_.path : node.file, node.line);
  std::unique_ptr<Scopes> scopes;
  if (graph_)
    scopes =
        std::make_unique<Scopes>(*graph_, loop_ ? stacked_path(node.module, *loop_) : node.module);
  Call call(*this, node);
  for (const std::string& output : node.outputs) {
    const auto meta = nodes_->tensors.find(output);
    if (meta == nodes_->tensors.end()) continue;
    for (const int64_t size : meta->second.sizes)
      if (size == kSizeOfData) call.refuse("has a result whose size depends on the data");
  }
  if (is_empty(node)) {  // no rule is asked; joining leaves it out
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      Value none;
      for (const int64_t size : call.meta(k).sizes)
        none.axes.push_back(call.fresh(size, none.axes));
      none.is_constant = true, none.dtype = dtype(call.meta(k).type);
      values_[node.outputs[k]] = none;
    }
    return;
  }
  std::optional<PreferScope> prefer;
  for (const std::string& operand : operands_of(node)) {
    const auto found = graph_ == main_ ? values_.find(operand) : values_.end();
    if (graph_ && found != values_.end() && !prefer && routes(found->second.tensor))
      prefer.emplace(*graph_, found->second.tensor);
  }
  std::vector<Value> results;
  if (overload.starts_with("higher_order.") || overload.starts_with("wrap_with")) {
    results = run_graphs(call);
  } else if (const auto own = own_.find(op_name(node.target)); own != own_.end()) {
    results = run_own(call, own->second);
  } else if (const Rule rule = find_rule(overload)) {
    try {
      results = is_complex(node) ? run_complex(node, overload) : rule(call);
    } catch (const std::logic_error&) {  // an axis or a list is shorter than the op has it
      call.refuse("has arguments that its op cannot have: the file is damaged");
    }
  } else {
    call.refuse("has no rule: Tessera does not know this op");
  }
  for (size_t i = 0; i < node.outputs.size() && i < results.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    Value& result = results[i];
    const TensorMeta& meta = call.meta(i);
    result.is_constant = constant;
    result.dtype = dtype(meta.type);
    if (call.sizes(result) != meta.sizes)
      call.refuse(fmt::format("should have the sizes [{}], and the file says [{}]",
                              fmt::join(call.sizes(result), ", "), fmt::join(meta.sizes, ", ")));
    result.is_complex = meta.type == ScalarType::complex64;
    if (graph_) result.tensor = call.cast(result, result.dtype);
    if (graph_ == main_ && !prefer && routes(result.tensor)) {
      Shape tokens = result.tensor.shape();
      for (const Dim& d : result.tensor.shape())
        if (d.name.starts_with("experts")) tokens = tokens.without({d.name});
      result.tensor = result.tensor.prefer(tokens.names());
    }
    if (graph_ && result.is_complex && result.imaginary.empty())
      result.imaginary = zeros_like(result.tensor);
    values_[node.outputs[i]] = result;
    const Argument* self = node.find("self");
    const auto* name = self ? std::get_if<TensorName>(self) : nullptr;
    const auto base = name ? nodes_->tensors.find(name->name) : nodes_->tensors.end();
    if (base != nodes_->tensors.end() && is_view(overload, base->second, meta))
      views_[node.outputs[i]] = {&node, name->name};
    if (name && i == 0 && writes_operand(overload)) write(name->name, result);
  }
}

bool Import::has_elements(const AxisList& axes) const {
  return std::all_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return atoms_.size(axis) > 0; });
}

bool Import::is_empty(const Node& node) const {
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& output) {
    const auto meta = nodes_->tensors.find(output);
    return meta != nodes_->tensors.end() && elements_of(meta->second) == 0;
  });
}

bool Import::routes(const Tensor& x) const {
  bool experts = false, tokens = false;
  if (x.empty()) return false;
  for (const Dim& d : x.shape()) {
    experts = experts || d.name.starts_with("experts");
    tokens = tokens || fed_dims_.count(d.name) != 0;
  }
  return experts && tokens;
}

std::vector<Value> Import::run_own(Call& call, const PytorchOp& op) {
  std::vector<std::optional<Value>> operands;
  std::map<std::string, double> numbers;
  std::string broadcast;
  for (const auto& [name, arg] : call.node().args) {
    if (std::holds_alternative<TensorName>(arg)) {
      operands.push_back(call.value(name));
      broadcast += broadcast.empty() ? "..." : ",...";
    } else if (std::holds_alternative<int64_t>(arg) || std::holds_alternative<double>(arg) ||
               std::holds_alternative<bool>(arg)) {
      numbers[name] = call.number(name);
    } else if (!std::holds_alternative<std::monostate>(arg)) {
      call.refuse(fmt::format(
          "has an argument '{}' that is neither a tensor nor a number, which no own op takes",
          name));
    }
  }
  const std::string axes = op.axes.empty() ? broadcast + "->..." : op.axes;
  const size_t arrow = axes.find("->");
  if (arrow == std::string::npos ||
      std::count(axes.begin(), axes.begin() + static_cast<long>(arrow), ',') + 1 !=
          std::ssize(operands))
    call.refuse(
        fmt::format("is mapped with the axes '{}', and has {} tensors", axes, operands.size()));
  return {call.joined(axes, operands, [&](const Joined& j) {
    const Tensor y = op.build(j.x, numbers);
    for (const Dim& d : y.shape())
      if (!shape_of(j.out).has(d.name))
        call.refuse(fmt::format("is mapped to an op with the dims {}, and its axes '{}' are {}",
                                y.shape().to_string(), axes, shape_of(j.out).to_string()));
    return y;
  })};
}

bool Import::is_complex(const Node& node) const {
  const auto is = [&](const std::string& name) {
    const auto meta = nodes_->tensors.find(name);
    return meta != nodes_->tensors.end() && meta->second.type == ScalarType::complex64;
  };
  bool found = std::any_of(node.outputs.begin(), node.outputs.end(), is);
  for (const auto& [name, arg] : node.args) {
    if (const auto* t = std::get_if<TensorName>(&arg)) found = found || is(t->name);
    if (const auto* all = std::get_if<std::vector<TensorName>>(&arg))
      for (const TensorName& t : *all) found = found || is(t.name);
  }
  return found;
}

std::vector<Value> Import::run_complex(const Node& node, const std::string& overload) {
  const Call call(*this, node);
  const auto run = [&](Rule rule, const std::set<std::string>& imaginary) {
    Call part(*this, node, imaginary);
    return rule(part);
  };
  if (const Rule own = find_complex_rule(overload)) return run(own, {});
  const Rule rule = find_rule(overload);
  std::vector<std::string> operands;  // that are tensors
  for (const auto& [name, arg] : node.args) {
    const bool is_addend = name == "other" && is_one_of(overload, {"add.", "sub."});
    if (std::holds_alternative<TensorName>(arg) || is_addend) operands.push_back(name);
    if (const auto* all = std::get_if<std::vector<TensorName>>(&arg))
      for (size_t i = 0; i < all->size(); ++i) operands.push_back(fmt::format("{}[{}]", name, i));
  }
  const bool is_product =
      is_one_of(overload, {"mul.", "mul_.", "matmul.", "mm.", "bmm.", "einsum."});
  const bool is_linear = is_one_of(overload, {"add.",          "sub.",
                                              "neg.",          "sum.",
                                              "mean.",         "clone.",
                                              "alias.",        "detach.",
                                              "cat.",          "stack.",
                                              "flip.",         "roll.",
                                              "pad.",          "constant_pad_nd.",
                                              "repeat.",       "index.",
                                              "index_select.", "cumsum.",
                                              "zeros",         "new_zeros.",
                                              "movedim.",      "_to_copy."}) ||
                         [&] {
                           const TensorMeta any{ScalarType::complex64, {}, {}, {}, 0};
                           return is_view(overload, any, any);
                         }();
  if (!rule || (is_product && operands.size() > 2) || (!is_product && !is_linear))
    call.refuse("has complex numbers, for which Tessera does not know this op");
  std::vector<Value> results = run(rule, {});
  if (!is_product || operands.size() == 1) {
    const std::vector<Value> imaginary = run(rule, {operands.begin(), operands.end()});
    for (size_t i = 0; i < results.size(); ++i) results[i].imaginary = imaginary[i].tensor;
    return results;
  }
  const Value both = run(rule, {operands[0], operands[1]})[0], left = run(rule, {operands[0]})[0],
              right = run(rule, {operands[1]})[0];
  if (graph_) {
    results[0].tensor = results[0].tensor - both.tensor;
    results[0].imaginary = left.tensor + right.tensor;
  }
  return results;
}

void Import::mark_views(const std::string& name) {
  for (const auto& [view, made] : views_)
    if (made.second == name && stale_.insert(view).second) mark_views(view);
}

void Import::write(const std::string& name, const Value& value) {
  values_[name] = value;
  stale_.erase(name);
  const auto view = views_.find(name);
  if (view != views_.end()) {
    const auto [node, base] = view->second;
    Value whole = this->value(base);
    Call call(*this, *node);
    if (call.results() > 1)
      call.refuse("makes parts of which one is written, which Tessera does not know");
    whole.tensor = written_view(call, whole, value, overload_of(node->target));
    whole.is_constant = whole.is_constant && value.is_constant;
    whole.array = nullptr;
    write(base, whole);
    stale_.erase(name);  // it is what was written
    values_[name] = value;
  }
  mark_views(name);
}

Tensor Import::size_tensor(const SymInt& size, const Call& call) {
  for (const InputSpec& input : program_.inputs) {
    const TensorMeta& meta = program_.graph.tensors.at(input.value);
    for (size_t a = 0; a < meta.symbols.size(); ++a) {
      const Axis axis = atoms_.expand(values_.at(input.value).axes[a]);
      if (meta.symbols[a] == size.symbol && axis.size() == 1)
        return dim_size(*graph_, dim(axis[0]), DType::int32);
    }
  }
  call.refuse(fmt::format("uses the size {} as a number, which is that of no input", size.symbol));
}

Value Import::value(const std::string& name) {
  if (stale_.erase(name) != 0) {  // made again of what was written
    const auto [node, base] = views_.at(name);
    const Value from = value(base);
    Call call(*this, *node);
    const auto at =
        std::find(node->outputs.begin(), node->outputs.end(), name) - node->outputs.begin();
    Value again = find_rule(overload_of(node->target))(call).at(static_cast<size_t>(at));
    again.is_constant = from.is_constant;
    again.dtype = from.dtype;
    values_[name] = again;
  }
  const auto found = values_.find(name);
  if (found == values_.end())
    fail(ErrorKind::io, "[pytorch] '{}' is damaged: the value '{}' is used and never made",
         program_.path, name);
  Value& value = found->second;
  value.axes = [&] {
    AxisList axes;
    for (const Axis& axis : value.axes) axes.push_back(atoms_.expand(axis));
    return axes;
  }();
  if (graph_ && graph_ == main_ && value.array && value.tensor.empty())
    value.tensor = value.array->dims.empty()
                       ? constant(*graph_, value.array->at(0), value.array->dtype)
                       : constant(*graph_, *value.array);
  if (graph_ && value.tensor.empty() && has_elements(value.axes))
    fail(ErrorKind::internal, "[pytorch] '{}': the value '{}' has no tensor", program_.path, name);
  return value;
}

Tensor Import::whole(const std::string& name) {
  const Value value = this->value(name);
  return Call(*this, Node()).full(value);
}

void Import::build(Graph& graph, const BuildOptions& options) {
  options_ = options;
  main_ = &graph;
  evaluate_constants();
  if (options.loops) find_loops();
  graph_ = &graph;
  make_inputs();
  walk(program_.graph);
  for (const std::string& output : program_.outputs)
    if (!output.empty()) value(output);
  for (const InputSpec& input : program_.inputs) {
    if (mutated_.count(input.value) == 0) continue;
    const auto newer = program_.mutations.find(input.name);
    const Value now = value(newer != program_.mutations.end() ? newer->second : input.value);
    const Tensor stored = stored_.at(input.value);
    if (now.tensor.id() != stored.id() && !options.evaluates)
      graph.update(stored, stop_gradient(cast(now.tensor, stored.dtype())));
  }
}

void Import::make_inputs() {
  for (const InputSpec& input : program_.inputs) {
    Value& value = values_.at(input.value);
    if (value.is_constant) continue;
    if (!input.tied_to.empty()) {
      value = values_.at(input.tied_to);
      continue;
    }
    const TensorMeta& meta = program_.graph.tensors.at(input.value);
    std::set<Use> taken;
    std::vector<Dim> dims;
    for (Axis& axis : value.axes) {
      axis = atoms_.expand(axis);
      for (Use& use : axis) {
        while (!taken.insert(use).second) ++use.copy;
        dims.push_back(dim(use));
      }
    }
    value.dtype = dtype(meta.type);
    if (value.is_complex) {
      std::tie(value.tensor, value.imaginary) = complex_constant(input, dims);
      continue;
    }
    if (input.kind == InputSpec::Kind::user)
      for (const Dim& d : dims) fed_dims_.insert(d.name);
    const auto given = options_.inputs.find(input.name);
    if (input.kind == InputSpec::Kind::user && given != options_.inputs.end()) {
      value.tensor = given_input(input, value.axes, given->second);
      if (value.tensor.dtype() != value.dtype) value.tensor = cast(value.tensor, value.dtype);
      continue;
    }
    if (input.kind == InputSpec::Kind::user) {
      value.tensor = graph_->input(input.name, Shape(dims), dtype_of(meta.type));
      fed_.push_back(value.tensor);
      if (value.tensor.dtype() != value.dtype) value.tensor = cast(value.tensor, value.dtype);
      continue;
    }
    if (stacked_.count(input.value) != 0) continue;
    stored_[input.value] = make_parameter(input, value.axes, input.name);
    value.tensor = stored_[input.value];
    if (value.tensor.dtype() != value.dtype) value.tensor = cast(value.tensor, value.dtype);
  }
}

std::pair<Tensor, Tensor> Import::complex_constant(const InputSpec& input,
                                                   const std::vector<Dim>& dims) {
  StoredTensor stored = program_.stored.at(input.name);
  stored.meta.type = ScalarType::float32;  // its two parts lie beside one another
  for (int64_t& stride : stored.meta.strides) stride *= 2;
  stored.meta.offset *= 2;
  stored.meta.sizes.push_back(2), stored.meta.strides.push_back(1);
  stored.meta.symbols.emplace_back();
  const Array both = read_array(archive_, input.name, stored);
  std::array<Tensor, 2> parts;
  for (size_t k = 0; k < 2; ++k) {
    Array one(DType::float32, {}, {});
    for (const Dim& d : dims) one.dims.push_back(d.name), one.sizes.push_back(d.size);
    one.bytes.resize(both.bytes.size() / 2);
    for (int64_t i = 0; i < both.elements() / 2; ++i)
      one.data<float>()[i] = static_cast<float>(both.at(2 * i + static_cast<int64_t>(k)));
    parts[k] = dims.empty() ? constant(*graph_, one.at(0), DType::float32) : constant(*graph_, one);
  }
  return {parts[0], parts[1]};
}

Tensor Import::given_input(const InputSpec& input, const AxisList& axes, Tensor x) const {
  std::vector<Dim> all, aside;
  std::vector<int64_t> sizes;
  for (const Axis& axis : axes) {
    sizes.push_back(1);
    for (const Use& use : axis) {
      all.push_back(dim(use));
      sizes.back() *= all.back().size;
    }
  }
  bool fits = static_cast<size_t>(x.shape().rank()) == axes.size();
  for (size_t i = 0; fits && i < sizes.size(); ++i)
    fits = x.shape()[static_cast<int>(i)].size == sizes[i];
  TESSERA_REQUIRE(fits, "[pytorch] '{}': its input '{}' has the sizes [{}], and is given {}",
                  program_.path, input.name, fmt::join(sizes, ", "), x.shape().to_string());
  std::vector<std::pair<std::string, std::string>> names;
  for (size_t i = 0; i < axes.size(); ++i) {
    aside.emplace_back(fmt::format("given__{}", i), sizes[i]);
    names.emplace_back(x.shape()[static_cast<int>(i)].name,
                       axes[i].size() == 1 ? dim(axes[i][0]).name : aside[i].name);
  }
  x = renamed(x, names);
  for (size_t i = 0; i < axes.size(); ++i) {
    std::vector<Dim> to;
    for (const Use& use : axes[i]) to.push_back(dim(use));
    if (to.empty()) x = pick(x, aside[i].name, 0);
    if (to.size() > 1) x = unmerge(x, aside[i], to);
  }
  return x;
}

Tensor Import::make_parameter(const InputSpec& input, const AxisList& axes,
                              const std::string& path) {
  const TensorMeta& meta = program_.graph.tensors.at(input.value);
  std::vector<Dim> dims;
  for (const Axis& axis : axes)
    for (const Use& use : axis) dims.push_back(dim(use));
  const auto [front, name] = scope_and_name(path);
  const Scopes scopes(*graph_, front);
  const DType narrow = dtype_of(meta.type);
  const DType stored = !is_floating(narrow)       ? narrow
                       : narrow == DType::float64 ? narrow
                                                  : DType::float32;
  if (input.kind == InputSpec::Kind::parameter && is_floating(narrow))
    return graph_->parameter(name, Shape(dims), first_value(input.name, meta), stored);
  return graph_->state(name, Shape(dims), nn::zeros(), stored);
}

void Import::find_loops() {
  const auto is_computed = [&](const Node& node) {
    return makes_tensors(node) && !is_constant(node);
  };
  const auto are_equal = [&](const std::string& a, const std::string& b) {
    const auto x = values_.find(a), y = values_.find(b);
    return x != values_.end() && y != values_.end() && x->second.array && y->second.array &&
           x->second.is_constant && y->second.is_constant &&
           x->second.array->dims == y->second.array->dims &&
           x->second.array->bytes == y->second.array->bytes;
  };
  stacks_ = find_stacks(program_, is_computed, are_equal);
  // Dims of layers have to have the same names, as those of one parameter.
  const auto names = [&](const std::string& value) {
    std::vector<std::string> all;
    for (const Axis& axis : values_.at(value).axes)
      for (const Use& use : atoms_.expand(axis)) all.push_back(dim({use.atom, 0}).name);
    return all;
  };
  std::erase_if(stacks_, [&](const Stack& stack) {
    for (const auto& values : stack.of_layer)
      for (const std::string& value : values)
        if (names(value) != names(values[0])) return true;
    return names(stack.in) != names(stack.out) || values_.at(stack.in).is_constant;
  });
  for (const Stack& stack : stacks_)
    for (const auto& values : stack.of_layer)
      for (const std::string& value : values) stacked_[value] = &stack;
}

void Import::run_loop(const Stack& stack) {
  for (const Node* node : stack.nodes)  // constants are made outside of the loop
    for (const auto& [name, arg] : node->args)
      if (const auto* t = std::get_if<TensorName>(&arg);
          t && values_.count(t->name) != 0 && values_[t->name].array)
        value(t->name);
  const Value first = value(stack.in);
  const AxisList axes = first.axes;
  const Tensor start = whole(stack.in);
  const Tensor end = repeat(Dim("layers", stack.count), start, [&](Tensor h) {
    loop_ = &stack;
    values_[stack.in].tensor = h;
    for (const std::string& name : stack.parameters) {
      const auto input = std::find_if(program_.inputs.begin(), program_.inputs.end(),
                                      [&](const InputSpec& i) { return i.value == name; });
      Value& value = values_.at(name);
      value.tensor = make_parameter(*input, value.axes, stacked_path(input->name, stack));
      if (value.tensor.dtype() != value.dtype) value.tensor = cast(value.tensor, value.dtype);
    }
    for (const Node* node : stack.nodes) run(*node);
    loop_ = nullptr;
    return Call(*this, *stack.nodes[0]).full(value(stack.out), axes);
  });
  Value result = first;
  result.tensor = end;
  result.array = nullptr;
  values_[stack.last] = result;
}

void Import::evaluate_constants() {
  Graph graph;
  graph_ = &graph;
  std::map<int, Dim> sizes;  // those of the example do: nothing differs along dynamic axes
  sizes.swap(resized_);
  for (const InputSpec& input : program_.inputs) {
    Value& value = values_.at(input.value);
    if (!value.is_constant || elements_of(program_.graph.tensors.at(input.value)) == 0) continue;
    const auto stored = program_.stored.find(input.name);
    // Without elements a program is planned and not run: PytorchModel::has_constants().
    const bool has_elements = stored != program_.stored.end() && !stored->second.entry.empty();
    const TensorMeta& meta = program_.graph.tensors.at(input.value);
    Array array = has_elements ? read_array(archive_, input.name, stored->second)
                               : Array(dtype_of(meta.type), {"elements"}, {elements_of(meta)});
    array.dims.clear(), array.sizes.clear();
    std::set<Use> taken;
    for (Axis& axis : value.axes) {
      axis = atoms_.expand(axis);
      for (Use& use : axis) {
        while (!taken.insert(use).second) ++use.copy;
        const Dim d = dim(use);
        array.dims.push_back(d.name), array.sizes.push_back(d.size);
      }
    }
    value.tensor =
        array.dims.empty() ? constant(graph, array.at(0), array.dtype) : constant(graph, array);
    value.dtype = dtype(program_.graph.tensors.at(input.value).type);
    if (value.tensor.dtype() != value.dtype) value.tensor = cast(value.tensor, value.dtype);
  }
  walk(program_.graph);
  // Those that are read by what is no constant.
  std::set<std::string> read(program_.outputs.begin(), program_.outputs.end());
  for (const Node& node : program_.graph.nodes) {
    if (is_constant(node)) continue;
    for (const auto& [name, arg] : node.args) {
      if (const auto* t = std::get_if<TensorName>(&arg)) read.insert(t->name);
      if (const auto* all = std::get_if<std::vector<TensorName>>(&arg))
        for (const TensorName& t : *all) read.insert(t.name);
    }
  }
  CompileOptions options;
  options.functions = {{"constants", {}, false}};
  options.threads_per_rank = 1;
  std::vector<std::pair<Value*, std::string>> wanted;
  std::set<std::string> names;
  for (const std::string& name : read) {
    const auto found = values_.find(name);
    if (found == values_.end() || !found->second.is_constant || found->second.tensor.empty())
      continue;
    const Tensor out =
        identity(found->second.tensor).uniquely_named(fmt::format("constant{}", wanted.size()));
    wanted.emplace_back(&found->second, out.name());
    options.functions[0].outputs.push_back(out);
  }
  if (!wanted.empty()) {
    Cluster cluster = Cluster::threads(1);
    Session session(graph, cluster, options);
    session.run("constants");
    for (const auto& [value, name] : wanted)
      value->array = std::make_shared<const Array>(without_equal(session.fetch(name)));
  }
  for (auto& [name, value] : values_)
    if (value.is_constant) value.tensor = {};
  resized_.swap(sizes);
}

}  // namespace tessera::pytorch
