// Example i of microbatch m is example i * count + m of the batch, unless microbatches are
// contiguous: where the batch is split over ranks, each rank has its share of every microbatch, and
// nothing is sent. What layers store is one tensor, with a dim in front that counts them.
#include "ir/repeat.h"

#include "base/fail.h"
#include "base/sizes.h"
#include "ir/loop_builder.h"
#include "ir/source_ops.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

const std::vector<Repeat>& open_repeats(const Graph& graph) {
  return GraphInternals::of(graph).building.repeats;
}

const Repeat* open_microbatch(const Graph& graph) {
  for (const Repeat& r : open_repeats(graph)) {
    if (r.of == Repeat::Of::microbatch) return &r;
  }
  return nullptr;
}

int64_t new_instance(Graph& graph) {
  return static_cast<int64_t>(GraphInternals::of(graph).building.uses[" repeat"]++);
}

const std::vector<Repeat>& copies_of_scopes(const Graph& graph) {
  return GraphInternals::of(graph).copies;
}

std::string name_in_copies(const Graph& graph, const std::string& name) {
  const GraphInternals& g = GraphInternals::of(graph);
  return g.copies.empty() || !name.starts_with(g.scope)
             ? name
             : g.unnumbered_scope + name.substr(g.scope.size());
}

int64_t once_for_all(Graph& graph, const std::string& name, const std::function<int64_t()>& make) {
  Building& building = GraphInternals::of(graph).building;
  if (building.repeats.empty()) return make();
  const Repeat* further = nullptr;
  for (const Repeat& r : building.repeats) further = r.index > 0 ? &r : further;
  const std::string full = GraphInternals::of(graph).scoped(name);
  std::string key;
  for (const Repeat& r : building.repeats) key += fmt::format("{}/", r.instance);
  if (further == nullptr) {
    const int64_t made = make();
    building.first_copy[key + full].push_back(made);
    return made;
  }
  const std::vector<int64_t>& first = building.first_copy[key + full];
  const size_t use = building.uses[full]++;
  const bool is_microbatch = further->of == Repeat::Of::microbatch;
  TESSERA_REQUIRE(use < first.size(),
                  "{} {} of the {} has '{}' {} times, {} 0 only {}; build all {} alike",
                  is_microbatch ? "microbatch" : "copy", further->index,
                  is_microbatch ? "batch" : "dim '" + further->dim + "'", full, use + 1,
                  is_microbatch ? "microbatch" : "copy", first.size(),
                  is_microbatch ? "microbatches" : "copies");
  return first[use];
}

Tensor declared(Tensor made, const std::string& name) {
  const Graph& g = made.graph();
  const std::string full = GraphInternals::of(g).scoped(name);
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
  if (repeat.loop >= 0) return slice_of_iteration(whole, dim, at);
  return reshape(slice(whole, dim, repeat.index, 1, at), whole.shape().without({dim}), at);
}

Tensor microbatch_input(Graph& g, const std::string& name, const Shape& shape, DType dtype,
                        Loc at) {
  const Repeat microbatch = *open_microbatch(g);
  std::vector<Dim> whole, divided;
  bool has_dim = false;
  for (const Dim& d : shape) {
    divided.push_back(d);
    whole.push_back(d);
    if (d.name != microbatch.dim) continue;
    TESSERA_REQUIRE(!d.is_bounded,
                    "input '{}': dim '{}' is bounded; microbatches have one size ({})", name,
                    d.name, where(at));
    whole.back().size =
        checked_size(Wide{d.size} * microbatch.count, "dim '" + d.name + "' of all microbatches");
    divided.insert(divided.end() - (microbatch.contiguous ? 1 : 0),
                   Dim("_" + d.name, microbatch.count));
    has_dim = true;
    if (microbatch.loop >= 0) {
      Loop& loop = GraphInternals::of(g).loops[static_cast<size_t>(microbatch.loop)];
      loop.divides = whole.back();
      loop.contiguous = microbatch.contiguous;
    }
  }
  const int64_t id = once_for_all(g, "input " + name, [&] {
    const OutsideScope outside(g);
    Tensor all = GraphInternals::of(g).named_freely(
        g.add(kInput, {}, source_attrs(Shape(whole), dtype), at)[0], name);
    declared(all, name);
    return (has_dim ? reshape(all, Shape(divided), at) : all).id();
  });
  Tensor all(&g, static_cast<int>(id));
  return has_dim ? slice_of(microbatch, all, "_" + microbatch.dim, at) : all;
}

// ------------------------------------------------------------------------------- stored tensors

namespace {

/// The first values of all layers, from the innermost repetition outwards: a loop over each.
Tensor init_of_layers(Graph& g, const std::vector<Repeat>& layers, size_t level,
                      const std::function<Tensor()>& one) {
  if (level == layers.size()) return one();
  if (is_eager(g)) {
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
    const RepeatScope repeat(g, {layers[level].dim, layers[level].count, 0, loop.number()});
    inner = init_of_layers(g, layers, level + 1, one);
  }
  return loop.finish({}, {inner}, {}, Loc::current())[0];
}

Stored make_stored(Graph& g, const std::string& name, const Shape& shape, const Initializer& init,
                   DType dtype, Loc at) {
  std::vector<Repeat> layers;
  std::vector<Dim> dims;
  for (const Repeat& r : open_repeats(g)) {
    if (r.of != Repeat::Of::layer) continue;
    layers.push_back(r);
    dims.emplace_back(r.dim, r.count);
  }
  const OutsideScope outside(g);
  const Shape whole = Shape(dims).united(shape);
  Stored record;
  const Tensor made = GraphInternals::of(g).named_freely(
      g.add(kStored, {}, source_attrs(whole, dtype), at)[0], name);
  record.value = declared(made, name).id();
  record.layers = static_cast<int>(layers.size());
  const Scope scope(g, name + ".init");
  const LineScope line(g, at);  // a layout that does not fit is told at the parameter
  const Tensor first = init_of_layers(g, layers, 0, [&] {
    Tensor one;
    try {
      one = init(g, shape, dtype);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{} ({}, the initializer of '{}')", e.what(), where(at),
                                        g.value(record.value).name));
    }
    TESSERA_REQUIRE(one.shape() == shape && one.dtype() == dtype,
                    "the initializer of '{}' made {} {} where {} {} is needed",
                    g.value(record.value).name, to_string(one.dtype()), one.shape().to_string(),
                    to_string(dtype), shape.to_string());
    record.layer_init = one.id();
    return one;
  });
  record.init = first.id();
  return record;
}

Tensor of_layer(Tensor stored, Loc at) {
  for (const Repeat& r : open_repeats(stored.graph())) {
    if (r.of == Repeat::Of::layer) stored = slice_of(r, stored, r.dim, at);
  }
  return stored;
}

}  // namespace

Tensor add_stored(Graph& g, const std::string& name, const Shape& shape, const Initializer& init,
                  DType dtype, Purpose purpose, bool trainable, Loc at) {
  for (const Dim& d : shape) {
    TESSERA_REQUIRE(!d.is_bounded,
                    "parameter '{}' has the bounded dim '{}'; stored tensors have fixed sizes",
                    name, d.name);
  }
  GraphInternals& internals = GraphInternals::of(g);
  const int64_t id = once_for_all(g, name, [&] {
    const PurposeScope values(g, purpose);  // the first value is made as it is stored
    Stored record = make_stored(g, name, shape, init, dtype, at);
    record.purpose = purpose;
    record.trainable = trainable;
    internals.stored_of_value[record.value] = static_cast<int>(internals.stored.size());
    internals.stored.push_back(record);
    return record.value;
  });
  const Tensor stored(&g, static_cast<int>(id));
  const Tensor own = of_layer(stored, at);
  if (own.id() != stored.id()) internals.stored_of_layer[own.id()] = stored.id();
  TESSERA_REQUIRE(own.shape() == shape && own.dtype() == dtype,
                  "parameter '{}' is {} {} in one microbatch and {} {} in another ({})",
                  stored.name(), to_string(stored.dtype()), stored.shape().to_string(),
                  to_string(dtype), shape.to_string(), where(at));
  return own;
}

}  // namespace tessera
