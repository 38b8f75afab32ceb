// A batch that is worked off in parts. Example i of part m is example i * parts + m of the batch:
// where the batch is split over ranks, each rank has its share of every part, and nothing is sent.
#include "ir/parts.h"

#include "base/fail.h"
#include "ir/source_ops.h"
#include "tessera/op.h"
#include "tessera/ops.h"

namespace tessera {

PartScope::PartScope(Graph& graph, const Part& part) : graph_(graph) {
  require(graph.part_.parts == 0, "[PartScope] parts of a batch cannot have parts themselves");
  require(part.parts >= 1 && part.index >= 0 && part.index < part.parts,
          "[PartScope] part {} of {}: parts are counted from 0", part.index, part.parts);
  graph.part_ = part;
  graph.part_uses_.clear();
  if (part.index == 0) graph.first_part_.clear();
}

PartScope::~PartScope() { graph_.part_ = {}; }

int64_t Graph::once_for_all_parts(const std::string& name, const std::function<int64_t()>& make) {
  if (part_.parts == 0) return make();
  const std::string full = scope_.empty() ? name : scope_ + "." + name;
  if (part_.index == 0) {
    const int64_t made = make();
    first_part_[full].push_back(made);
    return made;
  }
  const std::vector<int64_t>& first = first_part_[full];
  const size_t use = part_uses_[full]++;
  require(use < first.size(),
          "part {} of the batch has '{}' {} times, part 0 only {}; build all "
          "parts alike",
          part_.index, full, use + 1, first.size());
  return first[use];
}

Tensor part_of_input(Graph& g, const std::string& name, const Shape& shape, DType dtype, Loc at) {
  const Part part = *g.part();
  std::vector<Dim> whole, divided, kept;
  for (const Dim& d : shape) {
    kept.push_back(d);
    divided.push_back(d);
    whole.push_back(d);
    if (d.name != part.dim) continue;
    require(!d.is_bounded, "input '{}': dim '{}' is bounded; parts of a batch have one size ({})",
            name, d.name, where(at));
    whole.back().size *= part.parts;
    divided.emplace_back("_" + d.name, part.parts);
  }
  const int64_t id = g.once_for_all_parts("input " + name, [&] {
    return g.add(kInput, {}, source_attrs(Shape(whole), dtype), at)[0].named(name).id();
  });
  Tensor all(&g, static_cast<int>(id));
  if (divided.size() == kept.size()) return all;
  return unstack(reshape(all, Shape(divided), at), "_" + part.dim,
                 at)[static_cast<size_t>(part.index)];
}

}  // namespace tessera
