// Computations of tests/mesh_tensorflow/*.json, made with Tessera: by the name of their case.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/ops.h"

namespace tessera::test {

using Tensors = std::vector<Tensor>;
/// From the operands of a case to its results.
using Builder = std::function<Tensors(Graph& g, const Tensors& x)>;
using Builders = std::map<std::string, Builder>;

void add_mtf_pointwise(Builders& cases);
void add_mtf_binary(Builders& cases);
void add_mtf_reductions(Builders& cases);
void add_mtf_products(Builders& cases);
void add_mtf_indexed(Builders& cases);
void add_mtf_ordered(Builders& cases);
void add_mtf_dtypes(Builders& cases);  ///< the last: those of others in further dtypes
void add_mtf_shapes(Builders& cases);
void add_mtf_windows(Builders& cases);
void add_mtf_control(Builders& cases);

}  // namespace tessera::test
