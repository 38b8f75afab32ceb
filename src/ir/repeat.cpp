// A batch that is worked off in parts, and layers that are built alike. Example i of part m is
// example i * parts + m of the batch: where the batch is split over ranks, each rank has its share
// of every part, and nothing is sent. What layers store is one tensor with a dim in front that
// counts the layers.
#include "ir/repeat.h"

#include <utility>

#include "base/fail.h"
#include "base/sizes.h"
#include "ir/loops.h"
#include "ir/source_ops.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

RepeatScope::RepeatScope(Graph& graph, const Repeat& repeat) : graph_(graph) {
  if (repeat.is_part) {
    require(part_of(graph) == nullptr,
            "[MicrobatchScope] a microbatch cannot be split into microbatches");
    require(repeat.count >= 1 && repeat.index >= 0 && repeat.index < repeat.count,
            "[MicrobatchScope] microbatch {} of {}: they are counted from 0", repeat.index,
            repeat.count);
  }
  if (graph.repeats_.empty() && repeat.index == 0) graph.first_copy_.clear();
  graph.repeats_.push_back(repeat);
  saved_uses_ = std::exchange(graph.copy_uses_, {});
}

RepeatScope::~RepeatScope() {
  graph_.repeats_.pop_back();
  graph_.copy_uses_ = std::move(saved_uses_);
}

OutsideScope::OutsideScope(Graph& graph)
    : graph_(graph),
      open_loop_(std::exchange(graph.open_loop_, -1)),
      repeats_(std::exchange(graph.repeats_, {})),
      first_copy_(std::exchange(graph.first_copy_, {})),
      copy_uses_(std::exchange(graph.copy_uses_, {})) {}

OutsideScope::~OutsideScope() {
  graph_.open_loop_ = open_loop_;
  graph_.repeats_ = std::move(repeats_);
  graph_.first_copy_ = std::move(first_copy_);
  graph_.copy_uses_ = std::move(copy_uses_);
}

const Repeat* part_of(const Graph& g) {
  for (const Repeat& r : g.repeats()) {
    if (r.is_part) return &r;
  }
  return nullptr;
}

int64_t Graph::once_for_all(const std::string& name, const std::function<int64_t()>& make) {
  if (repeats_.empty()) return make();
  const Repeat* further = nullptr;
  for (const Repeat& r : repeats_) further = r.index > 0 ? &r : further;
  const std::string full = scope_.empty() ? name : scope_ + "." + name;
  std::string key;
  for (const Repeat& r : repeats_) key += fmt::format("{}/", r.instance);
  std::vector<int64_t>& first = first_copy_[key + full];
  if (further == nullptr) {
    const int64_t made = make();
    first.push_back(made);
    return made;
  }
  const size_t use = copy_uses_[full]++;
  require(use < first.size(), "{} {} of the {} has '{}' {} times, {} 0 only {}; build all {} alike",
          further->is_part ? "microbatch" : "copy", further->index,
          further->is_part ? "batch" : "dim '" + further->dim + "'", full, use + 1,
          further->is_part ? "microbatch" : "copy", first.size(),
          further->is_part ? "microbatches" : "copies");
  return first[use];
}

Tensor declared(Tensor made, const std::string& name) {
  const Graph& g = made.graph();
  const std::string full = g.scope().empty() ? name : g.scope() + "." + name;
  if (made.name() == full) return made;
  for (const Node& node : g.nodes()) {
    if ((node.op != &kInput && node.op != &kStored) || g.value(node.out[0]).name != full) continue;
    fail(ErrorKind::usage,
         "[{}] '{}' is declared at {} and again at {}; a name stands for one tensor where it is "
         "fed, laid out and saved, so use that tensor twice, or give this one another name or a "
         "Scope of its own",
         node.op == &kInput ? "input" : "parameter", full, node.at.to_string(),
         g.producer(made.id()).at.to_string());
  }
  return made;
}

Tensor slice_of(const Repeat& repeat, Tensor whole, const std::string& dim, Loc at) {
  Graph& g = whole.graph();
  if (repeat.loop >= 0) return g.slice_of_iteration(whole, dim, at);
  return reshape(slice(whole, dim, repeat.index, 1, at), whole.shape().without({dim}), at);
}

Tensor part_of_input(Graph& g, const std::string& name, const Shape& shape, DType dtype, Loc at) {
  const Repeat part = *part_of(g);
  std::vector<Dim> whole, divided;
  bool has_dim = false;
  for (const Dim& d : shape) {
    divided.push_back(d);
    whole.push_back(d);
    if (d.name != part.dim) continue;
    require(!d.is_bounded, "input '{}': dim '{}' is bounded; microbatches have one size ({})", name,
            d.name, where(at));
    whole.back().size =
        checked_size(Wide{d.size} * part.count, "dim '" + d.name + "' of all microbatches");
    divided.emplace_back("_" + d.name, part.count);
    has_dim = true;
  }
  const int64_t id = g.once_for_all("input " + name, [&] {
    const OutsideScope outside(g);
    Tensor all = g.add(kInput, {}, source_attrs(Shape(whole), dtype), at)[0].named(name);
    declared(all, name);
    return (has_dim ? reshape(all, Shape(divided), at) : all).id();
  });
  Tensor all(&g, static_cast<int>(id));
  return has_dim ? slice_of(part, all, "_" + part.dim, at) : all;
}

// ------------------------------------------------------------------------------- stored tensors

namespace {

/// The first values of all layers, from the innermost repetition outwards: a loop over each.
Tensor init_of_layers(Graph& g, const std::vector<Repeat>& layers, size_t level,
                      const std::function<Tensor()>& one) {
  if (level == layers.size()) return one();
  if (g.is_eager()) {
    std::vector<Tensor> copies;
    for (int64_t i = 0; i < layers[level].count; ++i) {
      const RepeatScope repeat(g, {layers[level].dim, layers[level].count, i});
      copies.push_back(init_of_layers(g, layers, level + 1, one));
    }
    return stack(copies, layers[level].dim);
  }
  LoopBuilder loop(g, {layers[level].dim, layers[level].count});
  Tensor inner;
  {
    const RepeatScope repeat(g, {layers[level].dim, layers[level].count, 0, loop.number(), false});
    inner = init_of_layers(g, layers, level + 1, one);
  }
  return loop.finish({}, {inner}, {}, Loc::current())[0];
}

}  // namespace

Stored Graph::make_stored(const std::string& name, const Shape& shape, const Initializer& init,
                          DType dtype, Loc at) {
  const OutsideScope outside(*this);
  std::vector<Repeat> layers;
  std::vector<Dim> dims;
  for (const Repeat& r : outside.repeats()) {
    if (r.is_part) continue;
    layers.push_back(r);
    dims.emplace_back(r.dim, r.count);
  }
  const Shape whole = Shape(dims).united(shape);
  Stored record;
  const Tensor made = add(kStored, {}, source_attrs(whole, dtype), at)[0].named(name);
  record.value = declared(made, name).id();
  record.layers = static_cast<int>(layers.size());
  Scope scope(*this, name + ".init");
  const Tensor first = init_of_layers(*this, layers, 0, [&] {
    Tensor one;
    try {
      one = init(*this, shape, dtype);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{} ({}, the initializer of '{}')", e.what(), where(at),
                                        values_[record.value].name));
    }
    require(one.shape() == shape && one.dtype() == dtype,
            "the initializer of '{}' made {} {} where {} {} is needed", values_[record.value].name,
            tessera::to_string(one.dtype()), one.shape().to_string(), tessera::to_string(dtype),
            shape.to_string());
    record.layer_init = one.id();
    return one;
  });
  record.init = first.id();
  return record;
}

Tensor Graph::add_stored(const std::string& name, const Shape& shape, const Initializer& init,
                         DType dtype, Purpose purpose, bool trainable, Loc at) {
  for (const Dim& d : shape) {
    require(!d.is_bounded,
            "parameter '{}' has the bounded dim '{}'; stored tensors have fixed sizes", name,
            d.name);
  }
  const int64_t id = once_for_all(name, [&] {
    const PurposeScope values(*this, purpose);  // the first value is made as it is stored
    Stored record = make_stored(name, shape, init, dtype, at);
    record.purpose = purpose;
    record.trainable = trainable;
    stored_of_value_[record.value] = static_cast<int>(stored_.size());
    stored_.push_back(record);
    return record.value;
  });
  const Tensor stored(this, static_cast<int>(id));
  const Tensor own = of_layer(stored, at);
  if (own.id() != stored.id()) stored_of_layer_[own.id()] = stored.id();
  require(own.shape() == shape && own.dtype() == dtype,
          "parameter '{}' is {} {} in one microbatch and {} {} in another ({})", stored.name(),
          tessera::to_string(stored.dtype()), stored.shape().to_string(), tessera::to_string(dtype),
          shape.to_string(), where(at));
  return own;
}

Tensor Graph::of_layer(Tensor stored, Loc at) {
  for (const Repeat& r : repeats_) {
    if (!r.is_part) stored = slice_of(r, stored, r.dim, at);
  }
  return stored;
}

}  // namespace tessera
