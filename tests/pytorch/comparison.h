// An exported module against what PyTorch computed of it: values, and gradients of the sum of
// outputs times their cotangents.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/pytorch_model.h"

namespace tessera::test {

struct Difference {
  double output = 0, gradient = 0;  ///< largest |a - b| / |b| of a tensor
  int outputs = 0, gradients = 0;   ///< compared
  std::string worst;                ///< the tensor with the largest difference
};

/// With `scan` gradients of stacked layers are compared one by one. Runs `model`, whose PyTorch's
/// values are in `expected` (make_fixtures.py), on a mesh in a layout.
Difference compare_with_pytorch(const PytorchModel& model, const std::string& expected,
                                const std::string& mesh, const std::string& layout,
                                bool scan = false, DType dtype = DType::float32);

/// Dims of different identities that the import takes for one: `expected` has the identities of the
/// dims of each axis (random_modules.py). Empty if none. `ops`: rules in place of others.
std::string confused_dims(const std::string& program, const std::string& expected,
                          const std::map<std::string, PytorchOp>& ops = {});

/// Layouts of one or two axes that split each dim of the model, those of tensor parallelism, and
/// none.
struct MeshAndLayout {
  std::string mesh, layout;
};
std::vector<MeshAndLayout> layouts_of(const PytorchModel& model);
/// No split, an uneven one, one over two axes and one over four, of dims that `seed` chooses.
std::vector<MeshAndLayout> random_layouts(const PytorchModel& model, uint64_t seed);

}  // namespace tessera::test
