#include "pytorch/call.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/fail.h"
#include "pytorch/import.h"

namespace tessera::pytorch {

// ------------------------------------------------------------------------------------------
// tensors

Shape shape_of(const std::vector<Dim>& dims) { return Shape(dims); }

std::vector<std::string> names_of(const std::vector<Dim>& dims) {
  std::vector<std::string> names;
  for (const Dim& d : dims) names.push_back(d.name);
  return names;
}

std::vector<Dim> present(const Tensor& x, const std::vector<Dim>& dims) {
  std::vector<Dim> found;
  for (const Dim& d : dims)
    if (x.shape().has(d.name)) found.push_back(d);
  return found;
}

Dim merged(const std::vector<Dim>& dims, const char* unit) {
  if (dims.size() == 1) return dims[0];
  Dim all("", 1);
  for (const Dim& d : dims) {
    all.name += (all.name.empty() ? "" : "_") + d.name;
    all.size *= d.size;
  }
  if (dims.empty()) all.name = unit;
  return all;
}

Tensor positions(Graph& graph, const std::vector<Dim>& dims) {
  Tensor index = constant(graph, 0, DType::int32);
  int64_t inner = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    Tensor along = iota(graph, dims[i]);
    if (inner > 1) along = along * static_cast<double>(inner);
    index = i + 1 == dims.size() ? along : index + along;
    inner *= dims[i].size;
  }
  return index;
}

Tensor merge(Tensor x, const std::vector<Dim>& from, const Dim& to) {
  if (from.size() == 1) return from[0].name == to.name ? x : rename(x, from[0].name, to.name);
  std::vector<Dim> order, result;
  for (const Dim& d : x.shape()) {
    const bool is_merged =
        std::any_of(from.begin(), from.end(), [&](const Dim& m) { return m.name == d.name; });
    if (!is_merged) {
      order.push_back(d), result.push_back(d);
    } else if (d.name == from[0].name) {
      order.insert(order.end(), from.begin(), from.end());
      result.push_back(to);
    }
  }
  if (from.empty()) result.push_back(to);
  return reshape(transpose(x, shape_of(order)), shape_of(result));
}

Tensor unmerge(Tensor x, const Dim& from, const std::vector<Dim>& to) {
  if (to.size() == 1) return from.name == to[0].name ? x : rename(x, from.name, to[0].name);
  if (!x.shape().has(from.name)) return x;
  std::vector<Dim> result;
  for (const Dim& d : x.shape()) {
    if (d.name == from.name) {
      result.insert(result.end(), to.begin(), to.end());
    } else {
      result.push_back(d);
    }
  }
  return reshape(x, shape_of(result));
}

Tensor pick(Tensor x, const std::string& dim, int64_t index) {
  if (!x.shape().has(dim)) return x;
  return reshape(slice(x, dim, index, 1), x.shape().without({dim}));
}

Tensor renamed(Tensor x, const std::vector<std::pair<std::string, std::string>>& names) {
  std::vector<std::pair<std::string, std::string>> waiting;
  for (const auto& [from, to] : names)
    if (from != to && x.shape().has(from)) waiting.emplace_back(from, to);
  while (!waiting.empty()) {
    const auto free = std::find_if(waiting.begin(), waiting.end(),
                                   [&](const auto& pair) { return !x.shape().has(pair.second); });
    if (free != waiting.end()) {
      x = rename(x, free->first, free->second);
      waiting.erase(free);
    } else {  // a circle: a to b and b to a
      const std::string aside = waiting[0].first + "__";
      x = rename(x, waiting[0].first, aside);
      waiting[0].first = aside;
    }
  }
  return x;
}

// ----------------------------------------------------------------------------------------
// arguments

bool Call::builds() const { return import_.graph_ != nullptr; }
Graph& Call::graph() const { return *import_.graph_; }
bool Call::trains() const { return !import_.options_.evaluates; }

void Call::refuse(const std::string& why) const {
  fail(ErrorKind::unsupported, "[pytorch] '{}': {} {}", import_.program_.path, node_.place(), why);
}

bool Call::is_given(const std::string& arg) const {
  const Argument* a = node_.find(arg);
  return a && !std::holds_alternative<std::monostate>(*a);
}

std::optional<Value> Call::find(const std::string& arg) const {
  if (!is_given(arg)) return {};
  const Argument& a = *node_.find(arg);
  if (const auto* t = std::get_if<TensorName>(&a)) {
    if (t->name.empty()) return {};
    return part(import_.value(t->name), arg);
  }
  Value value;
  value.is_constant = true;
  double number = 0;
  if (const auto* i = std::get_if<int64_t>(&a)) {
    value.dtype = DType::int32, number = static_cast<double>(*i);
  } else if (const auto* d = std::get_if<double>(&a)) {
    number = *d;
  } else if (const auto* b = std::get_if<bool>(&a)) {
    value.dtype = DType::bool_, number = *b;
  } else if (const auto* s = std::get_if<SymInt>(&a)) {
    value.dtype = DType::int32, value.is_constant = false;
    if (builds()) value.tensor = import_.size_tensor(*s, *this);
    return value;
  } else {
    refuse(fmt::format("has an argument '{}' that is neither a tensor nor a number", arg));
  }
  if (imaginary_.count(arg) != 0) number = 0;
  value.number = number;
  if (builds()) value.tensor = constant(number, value.dtype);
  return value;
}

Value Call::value(const std::string& arg) const {
  std::optional<Value> found = find(arg);
  if (!found) refuse(fmt::format("lacks its argument '{}'", arg));
  return *std::move(found);
}

std::vector<Value> Call::values(const std::string& arg) const {
  std::vector<Value> all;
  const Argument* a = node_.find(arg);
  const auto* names = a ? std::get_if<std::vector<TensorName>>(a) : nullptr;
  if (!names) refuse(fmt::format("lacks its list of tensors '{}'", arg));
  for (const TensorName& name : *names) {
    if (name.name.empty()) refuse(fmt::format("has None in its list '{}'", arg));
    all.push_back(part(import_.value(name.name), fmt::format("{}[{}]", arg, all.size())));
  }
  return all;
}

Value Call::part(Value x, const std::string& arg) const {
  if (imaginary_.count(arg) != 0 && builds())
    x.tensor = x.is_complex ? x.imaginary : zeros_like(x.tensor);
  return x;
}

Value Call::of(const std::string& name) const { return import_.value(name); }

std::vector<int64_t> Call::list(const std::string& arg,
                                std::optional<std::vector<int64_t>> fallback) const {
  if (is_given(arg)) {
    const Argument& a = *node_.find(arg);
    if (const auto* all = std::get_if<std::vector<int64_t>>(&a)) return *all;
    if (const auto* one = std::get_if<int64_t>(&a)) return {*one};
    if (const auto* one = std::get_if<SymInt>(&a)) return {one->value};
    if (const auto* flag = std::get_if<bool>(&a)) return {*flag};
    const auto* none = std::get_if<std::vector<TensorName>>(&a);
    if (none && none->empty()) return {};  // an empty list has no type
    refuse(fmt::format("has an argument '{}' that is no whole number", arg));
  }
  if (!fallback) refuse(fmt::format("lacks its argument '{}'", arg));
  return *fallback;
}

int64_t Call::whole(const std::string& arg, std::optional<int64_t> fallback) const {
  std::optional<std::vector<int64_t>> one;
  if (fallback) one = std::vector<int64_t>{*fallback};
  const std::vector<int64_t> all = list(arg, one);
  if (all.size() != 1) refuse(fmt::format("has several numbers as its argument '{}'", arg));
  return all[0];
}

double Call::number(const std::string& arg, std::optional<double> fallback) const {
  if (is_given(arg)) {
    const Argument& a = *node_.find(arg);
    if (const auto* d = std::get_if<double>(&a)) return *d;
    return static_cast<double>(whole(arg));
  }
  if (!fallback) refuse(fmt::format("lacks its argument '{}'", arg));
  return *fallback;
}

bool Call::flag(const std::string& arg, bool fallback) const { return whole(arg, fallback) != 0; }

std::string Call::text(const std::string& arg, const std::string& fallback) const {
  const Argument* a = is_given(arg) ? node_.find(arg) : nullptr;
  const auto* text = a ? std::get_if<std::string>(a) : nullptr;
  if (a && !text) refuse(fmt::format("has an argument '{}' that is no text", arg));
  return text ? *text : fallback;
}

size_t Call::axis(const std::string& arg, size_t rank, std::optional<int64_t> fallback) const {
  const auto n = static_cast<int64_t>(rank);
  const int64_t axis = whole(arg, fallback);
  if (axis < -n || axis >= std::max<int64_t>(n, 1))
    refuse(fmt::format("has {} as its argument '{}', but its tensor has {} axes", axis, arg, rank));
  return static_cast<size_t>(axis < 0 ? axis + n : axis);
}

const TensorMeta& Call::meta(size_t i) const {
  if (i < node_.outputs.size()) {
    const auto found = import_.nodes_->tensors.find(node_.outputs[i]);
    if (found != import_.nodes_->tensors.end()) return found->second;
  }
  refuse("has a result that is no tensor");
}

size_t Call::results() const { return node_.outputs.size(); }

DType Call::dtype(size_t i) const { return import_.dtype(meta(i).type); }

// ----------------------------------------------------------------------------------------------
// axes

const Atoms& Call::atoms() const { return import_.atoms_; }
Axis Call::expand(const Axis& axis) const { return import_.atoms_.expand(axis); }
int64_t Call::size(const Axis& axis) const { return import_.atoms_.size(axis); }

AxisList Call::expand(const AxisList& axes) const {
  AxisList result;
  for (const Axis& axis : axes) result.push_back(expand(axis));
  return result;
}

std::vector<int64_t> Call::sizes(const Value& x) const {
  std::vector<int64_t> sizes;
  for (const Axis& axis : x.axes) sizes.push_back(size(axis));
  return sizes;
}

Axis Call::fresh(int64_t size, const AxisList& beside) {
  std::vector<Axis>& known = import_.fresh_[&node_];
  if (made_axes_ == std::ssize(known)) known.push_back(import_.atoms_.add(size));
  Axis axis = expand(known[static_cast<size_t>(made_axes_++)]);
  std::set<Use> taken;
  for (const Axis& other : expand(beside)) taken.insert(other.begin(), other.end());
  for (Use& use : axis)
    while (!taken.insert(use).second) ++use.copy;
  return axis;
}

bool Call::cut(const Axis& axis, int64_t inner) { return import_.atoms_.cut(axis, inner); }

bool Call::once(bool answer) {
  std::vector<bool>& known = import_.answers_[&node_];
  if (answers_ == std::ssize(known)) known.push_back(answer);
  return known[static_cast<size_t>(answers_++)];
}

void Call::unify(const Axis& a, const Axis& b) {
  if (!import_.atoms_.unify(a, b))
    refuse(fmt::format("has axes of {} and {} elements that have to be one", size(a), size(b)));
}

void Call::role(const Axis& axis, const std::string& name, int weight) {
  if (!builds()) import_.roles_.push_back({axis, name, weight, node_.module});
}

void Call::projection(const Axis& in, const Axis& out) {
  if (!builds()) import_.projections_.emplace_back(in, out);
}

bool Call::counts_up(const std::string& arg) const {
  const auto* t = std::get_if<TensorName>(node_.find(arg));
  std::string name = t ? t->name : "";
  const std::vector<Node>& nodes = import_.nodes_->nodes;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (std::find(node->outputs.begin(), node->outputs.end(), name) == node->outputs.end())
      continue;
    if (node->target.starts_with("aten.arange.")) return true;
    bool passes = false;
    for (const char* op : {"unsqueeze.", "view.", "expand.", "slice.", "to.", "_to_copy.", "add.",
                           "alias.", "clone.", "lift_fresh_copy.", "detach_."})
      passes = passes || node->target.starts_with(std::string("aten.") + op);
    const Argument* self = node->find("self");
    const auto* from = self ? std::get_if<TensorName>(self) : nullptr;
    if (!passes || !from) return false;
    name = from->name;
  }
  for (const InputSpec& input : import_.program_.inputs) {
    const auto stored = import_.program_.stored.find(input.name);
    if (input.value != name || stored == import_.program_.stored.end() ||
        stored->second.entry.empty())
      continue;
    const Array array = read_array(import_.archive_, input.name, stored->second);
    for (int64_t i = 0; i < array.elements(); ++i)
      if (array.at(i) != static_cast<double>(i)) return false;
    return array.elements() > 1;
  }
  return false;
}

int64_t Call::tiles(const std::string& arg, size_t axis, bool& strided) const {
  const auto* name = std::get_if<TensorName>(node_.find(arg));
  const auto found = import_.slices_.find({name->name, axis});
  if (found == import_.slices_.end() || found->second.size() < 2) return 0;
  const int64_t n = size(value(arg).axes[axis]);
  const auto parts = static_cast<int64_t>(found->second.size());
  if (n % parts != 0) return 0;
  bool blocks = true, strides = true;
  int64_t i = 0;
  for (const std::vector<int64_t>& part : found->second) {  // begin, end, step in order
    blocks = blocks && part == std::vector<int64_t>{i * (n / parts), (i + 1) * (n / parts), 1};
    strides = strides && part == std::vector<int64_t>{i, n, parts};
    ++i;
  }
  strided = strides;
  return blocks || strides ? parts : 0;
}

// -------------------------------------------------------------------------------------------
// results

AxisList Call::distinct(AxisList axes) const {
  std::set<Use> taken;
  for (Axis& axis : axes) {
    axis = expand(axis);
    for (Use& use : axis)
      for (use.copy = 0; !taken.insert(use).second;) ++use.copy;
  }
  return axes;
}

Value Call::moved(const Value& x, AxisList axes) const {
  Value result = x;
  result.axes = std::move(axes);
  result.array = nullptr;
  return result;
}

Value Call::result(AxisList axes, Tensor tensor) const {
  Value value;
  value.axes = std::move(axes);
  value.dtype = tensor.empty() ? DType::float32 : tensor.dtype();
  value.tensor = tensor;
  return value;
}

Value Call::made(AxisList axes, const std::function<Tensor()>& build) {
  return result(std::move(axes), builds() ? build() : Tensor());
}

namespace {

/// Labels of the axes of each operand and of the result. Leading axes have -1, -2, ... from the
/// last.
struct Spec {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
};

Spec parse_spec(const std::string& text, const std::vector<std::optional<Value>>& operands) {
  Spec spec;
  const size_t arrow = text.find("->");
  const auto labels_of = [](const std::string& part, int leading) {
    std::vector<int> labels;
    size_t i = 0;
    if (part.starts_with("...")) {
      for (int l = leading; l > 0; --l) labels.push_back(-l);
      i = 3;
    }
    for (; i < part.size(); ++i) labels.push_back(part[i]);
    return labels;
  };
  int most = 0;
  size_t begin = 0;
  for (const std::optional<Value>& x : operands) {
    const size_t end = std::min(text.find(',', begin), arrow);
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const int named = static_cast<int>(part.starts_with("...") ? part.size() - 3 : part.size());
    const int leading = x ? static_cast<int>(x->axes.size()) - named : 0;
    most = std::max(most, leading);
    spec.operands.push_back(labels_of(part, leading));
  }
  spec.result = labels_of(text.substr(arrow + 2), most);
  return spec;
}

}  // namespace

Value Call::joined(const std::string& text, const std::vector<std::optional<Value>>& operands,
                   const std::function<Tensor(const Joined&)>& build) {
  const Spec spec = parse_spec(text, operands);
  std::map<int, Axis> axis_of;
  for (size_t o = 0; o < operands.size(); ++o) {
    if (!operands[o]) continue;
    if (operands[o]->axes.size() != spec.operands[o].size())
      refuse(fmt::format("has an operand with {} axes instead of {}", operands[o]->axes.size(),
                         spec.operands[o].size()));
    for (size_t a = 0; a < spec.operands[o].size(); ++a) {
      Axis& axis = axis_of[spec.operands[o][a]];
      const Axis& other = operands[o]->axes[a];
      if (axis.empty()) {
        axis = other;
      } else if (!other.empty()) {
        unify(axis, other);
      }
    }
  }
  // Results have the first copies; an atom that two labels have is two dims.
  std::set<Use> taken;
  std::map<int, Axis> chosen;
  const auto choose = [&](int label) {
    if (chosen.count(label) != 0) return;
    for (Use use : expand(axis_of[label])) {
      use.copy = 0;
      while (!taken.insert(use).second) ++use.copy;
      chosen[label].push_back(use);
    }
    chosen[label];
  };
  for (const int label : spec.result) choose(label);
  for (const auto& [label, axis] : axis_of) choose(label);
  AxisList axes;
  for (const int label : spec.result) axes.push_back(chosen[label]);
  return made(std::move(axes), [&] {
    Joined j;
    for (size_t o = 0; o < operands.size(); ++o) {
      std::vector<std::pair<std::string, std::string>> names;
      for (size_t a = 0; operands[o] && a < spec.operands[o].size(); ++a) {
        const Axis from = expand(operands[o]->axes[a]), &to = chosen[spec.operands[o][a]];
        for (size_t i = 0; i < from.size(); ++i)
          names.emplace_back(dim(from[i]).name, dim(to[i]).name);
      }
      j.x.push_back(operands[o] ? renamed(operands[o]->tensor, names) : Tensor());
    }
    for (const auto& [label, axis] : chosen) j.dims[label] = dims(axis);
    for (const int label : spec.result)
      for (const Dim& d : j.dims[label]) j.out.push_back(d);
    return build(j);
  });
}

Value Call::pointwise(const std::vector<Value>& operands, std::optional<DType> dtype,
                      const std::function<Tensor(const std::vector<Tensor>&)>& build) {
  std::string spec;
  std::vector<std::optional<Value>> xs;
  for (const Value& x : operands) {
    spec += spec.empty() ? "..." : ",...";
    xs.emplace_back(x);
    if (builds() && dtype) xs.back()->tensor = cast(x, *dtype);
  }
  return joined(spec + "->...", xs, [&](const Joined& j) { return build(j.x); });
}

Dim Call::dim(const Use& use) const { return import_.dim(use); }

std::vector<Dim> Call::dims(const Axis& axis) const {
  std::vector<Dim> result;
  for (const Use& use : expand(axis)) result.push_back(dim(use));
  return result;
}

std::vector<Dim> Call::dims(const AxisList& axes) const {
  std::vector<Dim> result;
  for (const Axis& axis : axes)
    for (const Dim& d : dims(axis)) result.push_back(d);
  return result;
}

Tensor Call::full(const Value& x) const {
  const Shape shape = shape_of(dims(x.axes));
  if (x.tensor.shape() == shape) return x.tensor;
  return x.tensor.shape().has_same_dims(shape) ? transpose(x.tensor, shape)
                                               : broadcast(x.tensor, shape);
}

Tensor Call::full(const Value& x, const AxisList& axes) const {
  std::vector<std::pair<std::string, std::string>> names;
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::vector<Dim> from = dims(x.axes[i]), to = dims(axes[i]);
    for (size_t k = 0; k < to.size(); ++k) names.emplace_back(from[k].name, to[k].name);
  }
  Value y = moved(x, axes);
  y.tensor = renamed(x.tensor, names);
  return full(y);
}

Tensor Call::having(Tensor x, const std::vector<Dim>& dims) {
  Shape shape = x.shape();
  for (const Dim& d : dims)
    if (!shape.has(d.name)) shape = shape.united(shape_of({d}));
  return shape == x.shape() ? x : broadcast(x, shape);
}

Tensor Call::positions(const Axis& axis) const { return pytorch::positions(graph(), dims(axis)); }

void Call::overwrite(const std::string& arg, const Value& value) {
  const auto* name = std::get_if<TensorName>(node_.find(arg));
  import_.values_[name->name] = value;
}

Tensor Call::with_axes(Tensor x, const AxisList& axes) const {
  return reshape(x, shape_of(dims(axes)));
}

Tensor Call::constant(double value, DType dtype) const {
  if (dtype == DType::int32) value = std::clamp<double>(value, INT32_MIN, INT32_MAX);
  return tessera::constant(graph(), value, dtype);
}

Tensor Call::cast(const Value& x, DType dtype) const {
  if (x.number) return constant(*x.number, dtype);
  return x.tensor.dtype() == dtype ? x.tensor : tessera::cast(x.tensor, dtype);
}

}  // namespace tessera::pytorch
