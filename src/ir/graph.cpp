#include "tessera/graph.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/needed.h"
#include "ir/scopes.h"
#include "ir/source_ops.h"
#include "tessera/caller.h"
#include "tessera/function_updates.h"
#include "tessera/op.h"
#include "tessera/ops.h"
#include "tessera/rounding.h"

namespace tessera {

Graph& Tensor::graph() const {
  TESSERA_REQUIRE(graph_ != nullptr, "an empty Tensor was used; it was never assigned a value");
  return *graph_;
}
const Shape& Tensor::shape() const { return graph().value(id_).shape; }
DType Tensor::dtype() const { return graph().value(id_).dtype; }
const std::string& Tensor::name() const { return graph().value(id_).name; }

Tensor Tensor::named(const std::string& name, Loc at) const {
  TESSERA_REQUIRE(!name.empty(), "[named] '{}' is given an empty name ({})", this->name(),
                  where(at));
  GraphInternals& g = GraphInternals::of(graph());
  const Op* made_by = graph().producer(id_).op;
  TESSERA_REQUIRE(
      made_by != &kInput && made_by != &kStored,
      "[named] '{}' is {}, which is {} by its name; give it another where it is declared, or "
      "name a copy, identity(x).named(\"{}\") ({})",
      this->name(), made_by == &kInput ? "an input" : "a parameter or state",
      made_by == &kInput ? "fed" : "laid out and saved", name, where(at));
  const std::string full = g.scoped(name);
  if (g.values[id_].name == full) return *this;
  if (g.name_uses.contains(full) && open_repeats(graph()).empty()) {
    const auto other = std::find_if(g.values.begin(), g.values.end(),
                                    [&](const Value& v) { return v.name == full; });
    fail(ErrorKind::usage,
         "[named] '{}' is the name of another tensor already{}; a name stands for one tensor where "
         "it is fetched and laid out, so take another one ({})",
         full,
         other == g.values.end() ? ""
                                 : fmt::format(", made at {}", g.nodes[other->node].at.to_string()),
         where(at));
  }
  return g.named_freely(*this, name);
}

Tensor Tensor::uniquely_named(const std::string& name) const {
  const Op* made_by = graph().producer(id_).op;
  const bool is_source = made_by == &kInput || made_by == &kStored;
  const Tensor own = is_source ? identity(*this) : *this;
  return GraphInternals::of(graph()).named_freely(own, name);
}

Tensor GraphInternals::named_freely(Tensor x, const std::string& name) {
  values[x.id()].name = unique(scoped(name));
  return x;
}

Tensor Tensor::prefer(const Axes& dims, Loc at) const {
  on_behalf_of("prefer", at, [&] {
    for (const std::string& dim : dims.names()) shape().dim(dim);  // must exist
  });
  GraphInternals& g = GraphInternals::of(graph());
  if (g.values[id_].prefer == dims.names()) return *this;
  Tensor preferring = *this;
  if (!g.values[id_].prefer.empty()) preferring = graph().add(kIdentity, {*this}, {}, at)[0];
  const auto layer = g.stored_of_layer.find(preferring.id());
  const int first = layer == g.stored_of_layer.end() ? preferring.id() : layer->second;
  const Stored* stored = graph().find_stored(first);
  const int last = stored ? stored->init : first;  // with what its initializer made
  auto set = [&](Value& value) {
    value.prefer.clear();
    for (const std::string& dim : dims.names()) {
      if (value.shape.has(dim)) value.prefer.push_back(dim);
    }
  };
  for (int v = first; v <= last; ++v) set(g.values[v]);
  set(g.values[preferring.id()]);
  return preferring;
}

SourceLine GraphInternals::line_of(Loc at) {
  const CallerScope* caller = CallerScope::current();
  const std::string path = caller ? caller->path() : at.file_name();
  SourceLine line{path.substr(path.rfind('/') + 1),
                  caller ? caller->line() : static_cast<int>(at.line())};
  const auto [known, is_new] = files.try_emplace(line.file, path);
  if (!is_new && known->second != path) known->second.clear();
  return line;
}

void GraphInternals::check_body(const OpCall& call) {
  if (is_body) return;  // index_space() checks those of bodies
  std::string key =
      fmt::format("{} {}", static_cast<const void*>(&call.op), call.attrs.to_string());
  for (const ValueType& type : call.in)
    key += fmt::format(" {}{}", to_string(type.dtype), type.shape.to_string());
  if (known_bodies.insert(std::move(key)).second) body_of(call);
}

std::string GraphInternals::scoped(const std::string& name) const {
  return scope.empty() ? name : scope + "." + name;
}

std::vector<std::string> GraphInternals::preferred_of(const Shape& shape) const {
  std::vector<std::string> preferred;
  for (const std::string& dim : prefer) {
    if (shape.has(dim)) preferred.push_back(dim);
  }
  return preferred;
}

std::string GraphInternals::unique(const std::string& name) {
  int& uses = name_uses[name];
  if (uses++ == 0) return name;
  std::string next = fmt::format("{}_{}", name, uses - 1);
  while (name_uses.contains(next)) next = fmt::format("{}_{}", name, uses++);
  name_uses[next] = 1;
  return next;
}

bool is_eager(const Graph& graph) { return GraphInternals::of(graph).eager != nullptr; }

namespace {
const char* const kNotEager =
    "only an eager graph holds values, Graph g({.eager = true}); otherwise feed and fetch by the "
    "Session";
}  // namespace

Graph::Graph() : internals_(std::make_unique<GraphInternals>()) {}
Graph::Graph(const GraphOptions& options) : Graph() {
  if (options.eager) internals_->eager = make_eager(options);
}
Graph::~Graph() = default;

const std::string& Graph::scope() const { return internals_->scope; }
const std::deque<Node>& Graph::nodes() const { return internals_->nodes; }
const std::deque<Value>& Graph::values() const { return internals_->values; }
const std::vector<Stored>& Graph::stored() const { return internals_->stored; }
const std::vector<Update>& Graph::updates() const { return internals_->updates; }
const Value& Graph::value(int id) const { return internals_->values[id]; }
const Node& Graph::producer(int value) const { return nodes()[this->value(value).node]; }
std::string Graph::unique_name(const std::string& base) {
  return internals_->unique(internals_->scoped(base));
}
const std::map<std::string, Array>& Graph::constants() const { return internals_->constants; }
void Graph::mark_gradient(Tensor gradient) {
  internals_->values[gradient.id()].purpose = Purpose::grads;
}

namespace {

/// What `x` prefers, in the dims of `type`, which has the same elements. A renamed dim is the one
/// at its place.
std::vector<std::string> inherited_preference(const Value& x, const ValueType& type) {
  bool renamed = x.shape.rank() == type.shape.rank();
  for (int i = 0; renamed && i < x.shape.rank(); ++i)
    renamed = x.shape[i].size == type.shape[i].size;
  std::vector<std::string> prefer;
  for (const std::string& dim : x.prefer) {
    if (type.shape.has(dim)) {
      prefer.push_back(dim);
    } else if (renamed) {
      prefer.push_back(type.shape[x.shape.find(dim)].name);
    }
  }
  return prefer;
}

}  // namespace

std::vector<Tensor> Graph::add(const Op& op, const std::vector<Tensor>& in, Attrs attrs, Loc at) {
  Node node{&op, std::move(attrs), {}, {}, "", {}, internals_->recompute_group, open_loop(*this)};
  node.at = internals_->at.line != 0 ? internals_->at : internals_->line_of(at);
  std::vector<ValueType> types;
  for (const Tensor& t : in) {
    TESSERA_REQUIRE(!t.empty(),
                    "[{}] an operand is an empty Tensor; it was never assigned a value ({})",
                    op.name, node.at.to_string());
    TESSERA_REQUIRE(&t.graph() == this, "[{}] '{}' belongs to another graph ({})", op.name,
                    t.name(), node.at.to_string());
    const int loop = producer(t.id()).loop;
    TESSERA_REQUIRE(
        &op == &kLoop || is_open(*this, loop),
        "[{}] '{}' is made by each iteration of a loop over '{}' that has ended; return it "
        "from the iterations as a carry, stacked or summed ({})",
        op.name, t.name(), loop < 0 ? "" : loops_of(*this)[loop].over.name, node.at.to_string());
    types.push_back({t.shape(), t.dtype()});
    node.in.push_back(t.id());
  }
  std::vector<ValueType> results;
  std::optional<OnBehalf> of_library;  // nodes of gradients and bodies are written by no user
  if (internals_->at.line != 0 || is_of_library(at)) of_library.emplace();
  try {
    const OpCall call{op, types, results, node.attrs};
    TESSERA_REQUIRE(op.infer || op.body, "an op says what it makes: give it `infer`, or a `body`");
    if (op.infer) {
      results = op.infer(call);
      if (op.body) internals_->check_body(call);
    } else {
      const Body body = body_of(call);
      for (const Tensor& t : body.out) results.push_back({t.shape(), t.dtype()});
    }
    for (const ValueType& type : results)
      TESSERA_REQUIRE(type.shape.rank() <= Shape::kMostDims,
                      "a tensor of {} dims; at most {} are supported", type.shape.rank(),
                      Shape::kMostDims);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("[{}] {} ({}{}{})", op.name, e.what(), node.at.to_string(),
                                      scope().empty() ? "" : ", ", scope()));
  }
  of_library.reset();
  node.name = unique_name(std::string(op.name));
  const int id = static_cast<int>(nodes().size());
  std::vector<Tensor> out;
  for (ValueType& type : results) {
    const int value = static_cast<int>(values().size());
    std::string name = out.empty() ? node.name : fmt::format("{}:{}", node.name, out.size());
    std::vector<std::string> prefer = internals_->preferred_of(type.shape);
    if (prefer.empty() && op.keeps_elements)
      prefer = inherited_preference(this->value(node.in[0]), type);
    internals_->values.push_back({id, std::move(type.shape), type.dtype, std::move(name),
                                  internals_->purpose, std::move(prefer)});
    node.out.push_back(value);
    out.emplace_back(this, value);
  }
  internals_->nodes.push_back(std::move(node));
  if (internals_->eager) internals_->eager->run(*this, internals_->nodes.back());
  return out;
}

void Graph::feed(const std::string& name, const Array& whole) {
  TESSERA_REQUIRE(internals_->eager != nullptr, "[feed] '{}': {}", name, kNotEager);
  internals_->eager->feed(name, whole);
}

Array Graph::fetch(Tensor tensor) const {
  TESSERA_REQUIRE(internals_->eager != nullptr, "[fetch] '{}': {}", tensor.name(), kNotEager);
  return internals_->eager->fetch(*this, tensor);
}

namespace {

void require_name(const char* what, const std::string& name, Loc at) {
  TESSERA_REQUIRE(!name.empty(),
                  "[{}] the name is empty; it is fed, laid out and saved by its name ({})", what,
                  where(at));
}

void check_stored(const char* what, const std::string& name, const Initializer& init, Loc at) {
  require_name(what, name, at);
  TESSERA_REQUIRE(
      static_cast<bool>(init),
      "[{}] '{}' has an empty function as its initializer; take one such as nn::zeros() ({})", what,
      name, where(at));
}

}  // namespace

Tensor Graph::input(const std::string& name, const Shape& shape, DType dtype, Loc at) {
  require_name("input", name, at);
  if (open_microbatch(*this) != nullptr) return microbatch_input(*this, name, shape, dtype, at);
  const OutsideScope outside(*this);
  return declared(
      internals_->named_freely(add(kInput, {}, source_attrs(shape, dtype), at)[0], name), name);
}

Tensor Graph::parameter(const std::string& name, const Shape& shape, const Initializer& init,
                        DType dtype, Loc at) {
  check_stored("parameter", name, init, at);
  const DType narrow = internals_->parameters;
  if (dtype != DType::float32 || !is_narrow(narrow))
    return add_stored(*this, name, shape, init, dtype, Purpose::params, true, at);
  const Initializer rounded = [&](Graph& g, const Shape& sizes, DType) {
    return cast(init(g, sizes, DType::float32), narrow, at);
  };
  return cast(add_stored(*this, name, shape, rounded, narrow, Purpose::params, true, at), dtype,
              at);
}

void Graph::store_parameters_as(DType dtype, bool stochastic_rounding) {
  TESSERA_REQUIRE(dtype == DType::float32 || is_narrow(dtype),
                  "[store_parameters_as] {}; it is float32, bfloat16 or float16",
                  tessera::to_string(dtype));
  TESSERA_REQUIRE(
      !stochastic_rounding || is_narrow(dtype),
      "[store_parameters_as] stochastic rounding of parameters in float32 does nothing; store "
      "them in bfloat16 or float16");
  internals_->parameters = dtype;
  internals_->stochastic_rounding = stochastic_rounding;
}

Tensor Graph::state(const std::string& name, const Shape& shape, const Initializer& init,
                    DType dtype, Loc at) {
  check_stored("state", name, init, at);
  return add_stored(*this, name, shape, init, dtype, Purpose::state, false, at);
}

namespace {

/// An update of `stored` beside `others`, which may not have one.
Update checked_update(Graph& g, const std::vector<const std::vector<Update>*>& others,
                      Tensor stored, Tensor value, Loc at) {
  const GraphInternals& internals = GraphInternals::of(g);
  const Stored* record = g.find_stored(stored.id());
  TESSERA_REQUIRE(
      record != nullptr && open_loop(g) < 0, "update() of '{}', which is {} ({})", stored.name(),
      open_loop(g) < 0 ? "not a parameter or state"
                       : "inside a loop; return the value from the iterations and update outside",
      where(at));
  for (const std::vector<Update>* updates : others) {
    const bool twice = std::any_of(updates->begin(), updates->end(),
                                   [&](const Update& u) { return u.stored == stored.id(); });
    TESSERA_REQUIRE(!twice, "'{}' is updated twice ({}); one update per run", stored.name(),
                    where(at));
  }
  if (is_narrow(stored.dtype()) && value.dtype() == DType::float32)
    value = internals.stochastic_rounding ? stochastic_cast(value, stored.dtype(), at)
                                          : cast(value, stored.dtype(), at);
  if (value.shape() != stored.shape() && value.shape().has_same_dims(stored.shape()))
    value = transpose(value, stored.shape(), at);
  TESSERA_REQUIRE(value.dtype() == stored.dtype() && value.shape() == stored.shape(),
                  "update() of '{}' {} {} with {} {}; shapes and dtypes must agree ({})",
                  stored.name(), tessera::to_string(stored.dtype()), stored.shape().to_string(),
                  tessera::to_string(value.dtype()), value.shape().to_string(), where(at));
  if (const int condition = internals.update_condition; condition >= 0)
    value = where(Tensor(&g, condition), value, stored, at);
  return {stored.id(), value.id()};
}

}  // namespace

void Graph::update(Tensor stored, Tensor value, Loc at) {
  on_behalf_of("update", at, [&] {
    for (const Tensor& t : {stored, value})
      TESSERA_REQUIRE(&t.graph() == this, "'{}' belongs to another graph", t.name());
  });
  std::vector<const std::vector<Update>*> others = {&internals_->updates};
  for (const auto& [function, updates] : internals_->updates_in) others.push_back(&updates);
  internals_->updates.push_back(checked_update(*this, others, stored, value, at));
}

void update_in(const std::string& function, Tensor stored, Tensor value, Loc at) {
  on_behalf_of("update_in", at, [&] {
    TESSERA_REQUIRE(&stored.graph() == &value.graph(), "'{}' belongs to another graph",
                    value.name());
  });
  GraphInternals& internals = GraphInternals::of(stored.graph());
  std::vector<Update>& own = internals.updates_in[function];
  own.push_back(checked_update(stored.graph(), {&internals.updates, &own}, stored, value, at));
}

std::vector<Update> updates_of(const Graph& graph, const FunctionSpec& function) {
  if (!function.stores_updates()) return {};
  const GraphInternals& internals = GraphInternals::of(graph);
  std::vector<Update> all = internals.updates;
  const auto own = internals.updates_in.find(function.name);
  if (own != internals.updates_in.end())
    all.insert(all.end(), own->second.begin(), own->second.end());
  return all;
}

const Stored* Graph::find_stored(int value) const {
  const auto it = internals_->stored_of_value.find(value);
  return it == internals_->stored_of_value.end() ? nullptr : &stored()[it->second];
}

void Graph::note_weight_decay(Tensor parameter, double decay) {
  internals_->stored[static_cast<size_t>(internals_->stored_of_value.at(parameter.id()))]
      .weight_decay = decay;
}

std::vector<Tensor> Graph::parameters() {
  std::vector<Tensor> result;
  for (const Stored& s : stored()) {
    if (s.trainable) result.emplace_back(this, s.value);
  }
  return result;
}

Tensor Graph::find(const std::string& name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < values().size(); ++i) {
    if (values()[i].name == name) return Tensor(this, static_cast<int>(i));
    names.push_back(values()[i].name);
  }
  fail(ErrorKind::usage, "the model has no tensor '{}'{}", name, suggestion(name, names));
}

std::string Graph::to_string() const {
  std::string text;
  for (const Node& node : nodes()) {
    for (size_t i = 0; i < node.out.size(); ++i) {
      const Value& v = value(node.out[i]);
      text += fmt::format("{}{}:{}{}", i ? ", " : "", v.name, tessera::to_string(v.dtype),
                          v.shape.to_string());
    }
    text += fmt::format(" = {}(", node.op->name);
    for (size_t i = 0; i < node.in.size(); ++i) text += (i ? ", " : "") + value(node.in[i]).name;
    text += fmt::format(") {} # {}\n", node.attrs.to_string(), node.at.to_string());
  }
  for (const Update& u : updates()) {
    text += fmt::format("update {} = {}\n", value(u.stored).name, value(u.value).name);
  }
  return text;
}

}  // namespace tessera
