// Attention of random models, with any of its structures, along any two of a tensor's dims.
#include "support/random_graphs.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace {

/// Positions of `dim`, later in each row of `row` if there is one: from `start` on it is 1, else 0.
Tensor reached(Graph& g, const Dim& dim, const Shape& row, double start) {
  Tensor at = iota(g, dim);
  for (const Dim& d : row) at = at + iota(g, d);
  return cast(greater_equal(at, constant(g, start, DType::int32)), DType::int32);
}

Tensor turned(Tensor x, const Draw& draw) {
  std::vector<Dim> dims = x.shape().dims();
  for (size_t i = dims.size(); i > 1; --i) std::swap(dims[i - 1], dims[draw(i)]);
  return transpose(x, Shape(dims));
}

/// Two or three documents, whose borders differ in the rows, behind padding or without.
Tensor ids_of(Graph& g, const Dim& dim, const Shape& row, const Draw& draw) {
  const Tensor borders = reached(g, dim, row, 1 + draw(3)) + reached(g, dim, row, 2 + draw(4));
  return draw(3) == 0 ? borders : borders + constant(g, 1, DType::int32);
}

}  // namespace

Tensor attended(Tensor x, const Draw& draw, const std::function<Tensor(const Shape&)>& parameter) {
  const int rank = x.shape().rank();
  if (rank < 2) return tanh(x);
  std::vector<Dim> dims = x.shape().dims();
  for (Dim& d : dims) d.is_bounded = false;
  x = reshape(x, Shape(dims));
  const auto first = static_cast<int>(draw(static_cast<size_t>(rank)));
  const Dim length = dims[static_cast<size_t>(first)],
            width = dims[static_cast<size_t>((first + 1) % rank)],
            memory = length.renamed(length.name + "m");
  const Dim entries(length.name + "n", 3 + 2 * draw(3));
  if (x.shape().has(memory.name) || x.shape().has(entries.name)) return tanh(x);
  const Shape rows = x.shape().without({length.name, width.name});
  const Shape row = rows.rank() > 0 && draw(2) ? Shape{rows[0]} : Shape();
  Graph& g = x.graph();

  AttentionOptions o;
  o.length = length.name;
  o.memory_length = memory.name;
  o.key_dim = width.name;
  o.causal = draw(2) == 1;
  if (draw(3) == 0) o.window = 1 + draw(4);
  if (draw(3) == 0) o.soft_cap = 1.5;
  if (o.causal && draw(3) == 0)
    o.prefix = row.rank() > 0 ? iota(g, row[0]) : constant(g, 2, DType::int32);
  if (draw(3) == 0) o.sinks = parameter(row);
  if (draw(3) == 0) o.slopes = constant(g, 0.3, x.dtype(), row);
  if (draw(3) == 0) o.by_distance = parameter(row.united(Shape{entries}));
  if (draw(3) == 0) o.segments = turned(ids_of(g, length, row, draw), draw);
  const Tensor key = rename(tanh(x) * parameter(Shape{width}), length.name, memory.name),
               value = rename(sin(x), length.name, memory.name);
  const Tensor mask = draw(5) > 0
                          ? Tensor()
                          : turned(greater_equal(iota(g, length) + constant(g, 1, DType::int32),
                                                 iota(g, memory) * constant(g, 2, DType::int32)),
                                   draw);
  return transpose(attention(turned(x, draw), turned(key, draw), turned(value, draw), mask, o),
                   x.shape());
}

}  // namespace tessera::test
