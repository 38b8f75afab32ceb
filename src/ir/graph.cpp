#include "tessera/graph.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/eager.h"
#include "ir/loops.h"
#include "ir/repeat.h"
#include "ir/source_ops.h"
#include "tessera/op.h"
#include "tessera/ops.h"
#include "tessera/rounding.h"

namespace tessera {

Graph& Tensor::graph() const {
  require(graph_ != nullptr, "an empty Tensor was used; it was never assigned a value");
  return *graph_;
}
const Shape& Tensor::shape() const { return graph().values_[id_].shape; }
DType Tensor::dtype() const { return graph().values_[id_].dtype; }
const std::string& Tensor::name() const { return graph().values_[id_].name; }

Tensor Tensor::named(const std::string& name) const {
  Graph& g = graph();
  require(!name.empty(), "[named] '{}' is given an empty name", g.values_[id_].name);
  g.values_[id_].name = g.unique_name(name);
  return *this;
}

Tensor Tensor::prefer(const Axes& dims, Loc at) const {
  on_behalf_of("prefer", at, [&] {
    for (const std::string& dim : dims.names()) shape().dim(dim);  // must exist
  });
  Graph& g = graph();
  if (g.values_[id_].prefer == dims.names()) return *this;
  Tensor preferring = *this;
  if (!g.values_[id_].prefer.empty()) preferring = g.add(kIdentity, {*this}, {}, at)[0];
  const auto layer = g.stored_of_layer_.find(preferring.id());
  const int first = layer == g.stored_of_layer_.end() ? preferring.id() : layer->second;
  const Stored* stored = g.find_stored(first);
  const int last = stored ? stored->init : first;  // with what its initializer made
  auto set = [&](int v) {
    g.values_[v].prefer.clear();
    for (const std::string& dim : dims.names()) {
      if (g.values_[v].shape.has(dim)) g.values_[v].prefer.push_back(dim);
    }
  };
  for (int v = first; v <= last; ++v) set(v);
  set(preferring.id());
  return preferring;
}

namespace {
const char* const kNotEager =
    "only an eager graph holds values, Graph g({.eager = true}); otherwise feed and fetch by the "
    "Session";
}  // namespace

Graph::Graph() = default;
Graph::~Graph() = default;

std::string Graph::unique_name(const std::string& base) {
  std::string name = scope_.empty() ? base : scope_ + "." + base;
  int& uses = name_uses_[name];
  if (uses++ == 0) return name;
  std::string next;
  do {
    next = fmt::format("{}_{}", name, uses++ - 1);
  } while (name_uses_.count(next));
  name_uses_[next] = 1;
  return next;
}

std::vector<Tensor> Graph::add(const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at) {
  Node node{&op, std::move(attrs), {}, {}, "", {}, recompute_group_, open_loop_};
  const char* slash = std::strrchr(at.file_name(), '/');
  node.at = at_override_.line
                ? at_override_
                : SourceLine{slash ? slash + 1 : at.file_name(), static_cast<int>(at.line())};
  std::vector<ValueType> types;
  for (const Tensor& t : in) {
    require(static_cast<bool>(t),
            "[{}] an operand is an empty Tensor; it was never assigned a value ({})", op.name,
            node.at.to_string());
    require(&t.graph() == this, "[{}] '{}' belongs to another graph ({})", op.name, t.name(),
            node.at.to_string());
    const int loop = nodes_[values_[t.id()].node].loop;
    require(&op == &kLoop || is_open(loop),
            "[{}] '{}' is made by each iteration of a loop over '{}' that has ended; return it "
            "from the "
            "iterations as a carry, stacked or summed ({})",
            op.name, t.name(), loop < 0 ? "" : loops_[loop].over.name, node.at.to_string());
    types.push_back({t.shape(), t.dtype()});
    node.in.push_back(t.id());
  }
  std::vector<ValueType> results;
  try {
    const OpCall call{op, types, results, node.attrs};
    require(op.infer || op.body, "an op says what it makes: give it `infer`, or a `body`");
    if (op.infer) {
      results = op.infer(call);
    } else {
      const Body body = body_of(call);
      for (const Tensor& t : body.out) results.push_back({t.shape(), t.dtype()});
    }
    for (const ValueType& type : results)
      require(type.shape.rank() <= Shape::kMostDims,
              "a tensor of {} dims; at most {} are supported", type.shape.rank(), Shape::kMostDims);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("[{}] {} ({}{}{})", op.name, e.what(), node.at.to_string(),
                                      scope_.empty() ? "" : ", ", scope_));
  }
  node.name = unique_name(std::string(op.name));
  const int id = static_cast<int>(nodes_.size());
  std::vector<Tensor> out;
  for (ValueType& type : results) {
    const int value = static_cast<int>(values_.size());
    std::string name = out.empty() ? node.name : fmt::format("{}:{}", node.name, out.size());
    std::vector<std::string> prefer;
    for (const std::string& dim : prefer_) {
      if (type.shape.has(dim)) prefer.push_back(dim);
    }
    values_.push_back(
        {id, std::move(type.shape), type.dtype, std::move(name), purpose_, std::move(prefer)});
    node.out.push_back(value);
    out.emplace_back(this, value);
  }
  nodes_.push_back(std::move(node));
  if (eager_) eager_->run(*this, nodes_.back());
  return out;
}

void Graph::feed(const std::string& name, const Array& whole) {
  require(eager_ != nullptr, "[feed] '{}': {}", name, kNotEager);
  eager_->feed(name, whole);
}

Array Graph::fetch(Tensor tensor) const {
  require(eager_ != nullptr, "[fetch] '{}': {}", tensor.name(), kNotEager);
  return eager_->fetch(*this, tensor);
}

namespace {

void require_name(const char* what, const std::string& name, Loc at) {
  require(!name.empty(), "[{}] the name is empty; it is fed, laid out and saved by its name ({})",
          what, where(at));
}

void check_stored(const char* what, const std::string& name, const Initializer& init, Loc at) {
  require_name(what, name, at);
  require(static_cast<bool>(init),
          "[{}] '{}' has an empty function as its initializer; take one such as nn::zeros() ({})",
          what, name, where(at));
}

}  // namespace

Tensor Graph::input(const std::string& name, const Shape& shape, DType dtype, Loc at) {
  require_name("input", name, at);
  if (part_of(*this) != nullptr) return part_of_input(*this, name, shape, dtype, at);
  const OutsideScope outside(*this);
  return declared(add(kInput, {}, source_attrs(shape, dtype), at)[0].named(name), name);
}

Tensor Graph::parameter(const std::string& name, const Shape& shape, const Initializer& init,
                        DType dtype, Loc at) {
  check_stored("parameter", name, init, at);
  if (dtype != DType::float32 || !is_narrow(parameters_))
    return add_stored(name, shape, init, dtype, Purpose::params, true, at);
  const Initializer narrow = [&](Graph& g, const Shape& sizes, DType) {
    return cast(init(g, sizes, DType::float32), parameters_, at);
  };
  return cast(add_stored(name, shape, narrow, parameters_, Purpose::params, true, at), dtype, at);
}

void Graph::store_parameters_as(DType dtype, bool stochastic_rounding) {
  require(dtype == DType::float32 || is_narrow(dtype),
          "[store_parameters_as] {}; it is float32, bfloat16 or float16",
          tessera::to_string(dtype));
  require(!stochastic_rounding || is_narrow(dtype),
          "[store_parameters_as] stochastic rounding of parameters in float32 does nothing; store "
          "them in bfloat16 or float16");
  parameters_ = dtype;
  stochastic_rounding_ = stochastic_rounding;
}

Tensor Graph::state(const std::string& name, const Shape& shape, const Initializer& init,
                    DType dtype, Loc at) {
  check_stored("state", name, init, at);
  return add_stored(name, shape, init, dtype, Purpose::state, false, at);
}

void Graph::update(Tensor stored, Tensor value, Loc at) {
  on_behalf_of("update", at, [&] {
    for (const Tensor& t : {stored, value})
      require(&t.graph() == this, "'{}' belongs to another graph", t.name());
  });
  const Stored* record = find_stored(stored.id());
  require(record != nullptr && open_loop_ < 0, "update() of '{}', which is {} ({})", stored.name(),
          open_loop_ < 0 ? "not a parameter or state"
                         : "inside a loop; return the value from the iterations and update outside",
          where(at));
  const bool twice = std::any_of(updates_.begin(), updates_.end(),
                                 [&](const Update& u) { return u.stored == stored.id(); });
  require(!twice, "'{}' is updated twice ({}); one update per run", stored.name(), where(at));
  if (is_narrow(stored.dtype()) && value.dtype() == DType::float32)
    value = stochastic_rounding_ ? stochastic_cast(value, stored.dtype(), at)
                                 : cast(value, stored.dtype(), at);
  require(value.dtype() == stored.dtype() && value.shape() == stored.shape(),
          "update() of '{}' {} {} with {} {}; shapes and dtypes must agree ({})", stored.name(),
          tessera::to_string(stored.dtype()), stored.shape().to_string(),
          tessera::to_string(value.dtype()), value.shape().to_string(), where(at));
  if (update_condition_ >= 0) value = where(Tensor(this, update_condition_), value, stored, at);
  updates_.push_back({stored.id(), value.id()});
}

UpdateScope::UpdateScope(Graph& graph, Tensor condition, Loc at)
    : graph_(graph), saved_(graph.update_condition_) {
  require(condition.dtype() == DType::bool_ && condition.shape().rank() == 0,
          "[UpdateScope] the condition is {} {}; it must be a bool scalar ({})",
          to_string(condition.dtype()), condition.shape().to_string(), where(at));
  graph.update_condition_ = condition.id();
}

void Graph::add_region(Region region) {
  region.last = static_cast<int>(nodes_.size());
  region.loop = open_loop_;
  if (region.last > region.first) regions_.push_back(std::move(region));
}

int Graph::copy_loop(int loop, std::unordered_map<int, int>& copies) {
  if (is_open(loop)) return loop;
  const auto known = copies.find(loop);
  if (known != copies.end()) return known->second;
  Loop copy = loops_[loop];
  copy.parent = copy_loop(copy.parent, copies);
  copy.first = static_cast<int>(nodes_.size());
  loops_.push_back(std::move(copy));
  return copies[loop] = static_cast<int>(loops_.size()) - 1;
}

std::unordered_map<int, int> Graph::copy(size_t region) {
  const std::string scope = std::exchange(scope_, "");
  const Region of = regions_[region];
  std::unordered_map<int, int> copies;
  std::vector<int> first_copy;
  auto copied = [&](int v) { return copies.count(v) ? copies[v] : v; };
  ++recompute_groups_;
  std::unordered_map<int, int> loops;  // of the region, and their copies
  for (int n = of.first; n < of.last; ++n) {
    first_copy.push_back(static_cast<int>(nodes_.size()));
    Node node = nodes_[n];
    if (node.op == &kInput || node.op == &kStored) continue;
    if (!is_open(node.loop)) node.loop = copy_loop(node.loop, loops);
    rename_loops(node.attrs, loops);
    for (int& v : node.in) v = copied(v);
    for (int& v : node.out) {
      Value value = values_[v];
      value.node = first_copy.back();
      value.name = unique_name(value.name);
      v = copies[v] = static_cast<int>(values_.size());
      values_.push_back(std::move(value));
    }
    node.name = unique_name(node.name);
    node.recompute_group = recompute_groups_;
    nodes_.push_back(std::move(node));
    if (eager_) eager_->run(*this, nodes_.back());
  }
  for (const auto& [from, to] : loops) {
    Loop& loop = loops_[to];
    loop.node = values_[copied(nodes_[loops_[from].node].out[0])].node;
    if (loop.condition >= 0) loop.condition = copied(loop.condition);
    for (int& v : loop.carries) v = copied(v);
  }
  first_copy.push_back(static_cast<int>(nodes_.size()));
  for (size_t r = 0; r < region; ++r) {
    Region inner = regions_[r];
    if (inner.first < of.first || inner.last > of.last) continue;
    inner.first = first_copy[inner.first - of.first];
    inner.last = first_copy[inner.last - of.first];
    for (int& v : inner.in) v = copied(v);
    for (int& v : inner.out) v = copied(v);
    if (inner.last > inner.first) regions_.push_back(std::move(inner));
  }
  scope_ = scope;
  return copies;
}

const Stored* Graph::find_stored(int value) const {
  auto it = stored_of_value_.find(value);
  return it == stored_of_value_.end() ? nullptr : &stored_[it->second];
}

std::vector<Tensor> Graph::parameters() {
  std::vector<Tensor> result;
  for (const Stored& s : stored_) {
    if (s.trainable) result.emplace_back(this, s.value);
  }
  return result;
}

Tensor Graph::find(const std::string& name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].name == name) return Tensor(this, static_cast<int>(i));
    names.push_back(values_[i].name);
  }
  fail(ErrorKind::usage, "the model has no tensor '{}'{}", name, suggestion(name, names));
}

std::string Graph::to_string() const {
  std::string text;
  for (const Node& node : nodes_) {
    for (size_t i = 0; i < node.out.size(); ++i) {
      const Value& v = values_[node.out[i]];
      text += fmt::format("{}{}:{}{}", i ? ", " : "", v.name, tessera::to_string(v.dtype),
                          v.shape.to_string());
    }
    text += fmt::format(" = {}(", node.op->name);
    for (size_t i = 0; i < node.in.size(); ++i) text += (i ? ", " : "") + values_[node.in[i]].name;
    text += fmt::format(") {} # {}\n", node.attrs.to_string(), node.at.to_string());
  }
  for (const Update& u : updates_) {
    text += fmt::format("update {} = {}\n", values_[u.stored].name, values_[u.value].name);
  }
  return text;
}

std::string Graph::name_in_copies(const std::string& name) const {
  return copies_.empty() || !name.starts_with(scope_) ? name : alike_ + name.substr(scope_.size());
}

Scope::Scope(Graph& graph, const std::string& name)
    : graph_(graph),
      saved_(graph.scope_),
      saved_alike_(graph.alike_),
      saved_copies_(graph.copies_.size()) {
  graph.scope_ = saved_.empty() ? name : saved_ + "." + name;
  graph.alike_ = saved_alike_.empty() ? name : saved_alike_ + "." + name;
}
Scope::Scope(Graph& graph, const std::string& name, int64_t copy, int64_t copies)
    : Scope(graph, name) {
  require(copies >= 1 && copy >= 0 && copy < copies,
          "[Scope] '{}' is copy {} of {}; copies are counted from 0", name, copy, copies);
  graph.scope_ += std::to_string(copy);
  graph.copies_.push_back({name, copies, copy});
}
Scope::~Scope() {
  graph_.scope_ = saved_;
  graph_.alike_ = saved_alike_;
  graph_.copies_.resize(saved_copies_);
}

PreferScope::PreferScope(Graph& graph, Tensor like) : graph_(graph), saved_(graph.prefer_) {
  graph.prefer_ = graph.values_[like.id()].prefer;
}
PreferScope::~PreferScope() { graph_.prefer_ = saved_; }

SourceScope::SourceScope(Graph& graph, const Node& node, const std::vector<std::string>& prefer,
                         const std::string& suffix)
    : graph_(graph),
      saved_at_(graph.at_override_),
      saved_scope_(graph.scope_),
      saved_prefer_(graph.prefer_) {
  graph.at_override_ = node.at;
  graph.scope_ = node.name + suffix;
  graph.prefer_ = prefer;
}
SourceScope::~SourceScope() {
  graph_.at_override_ = saved_at_;
  graph_.scope_ = saved_scope_;
  graph_.prefer_ = saved_prefer_;
}

}  // namespace tessera
