// What crosses between Python and C++: tensors with their graph, dims by name or as Dim, dtypes by
// name, arrays. Each bound function begins with the line of Python that calls it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gil.h"
#include "tessera/caller.h"
#include "tessera/tessera.h"

namespace tessera::python {

namespace nb = nanobind;

/// A Tensor that keeps its Graph.
struct GraphTensor {
  Tensor tensor;
  std::shared_ptr<Graph> graph;
};
std::shared_ptr<Graph> make_graph(const GraphOptions& options);
/// The Graph that make_graph() made; of a graph that C++ lends to a callback, a pointer that owns
/// nothing.
std::shared_ptr<Graph> owner_of(Graph& graph);

/// A file as tracebacks name it: "In[3]" of a cell of a notebook, else `file` itself.
std::string shown_file(const std::string& file);
/// The caller's line of Python: that of the innermost frame outside of this package. None at the
/// end of the interpreter.
std::optional<std::pair<std::string, int>> line_of_python();
/// That line is the caller's for C++ while this lives.
class Here {
 public:
  Here();

 private:
  std::optional<CallerScope> scope_;
};
/// Frames of files in this folder are the package's own.
void set_package_folder(std::string folder);
using At = nb::call_guard<Here>;
/// For what may take long: other threads of Python go on meanwhile.
struct HereAlone {
  Here here;
  ReleaseGil released;
};
using Releasing = nb::call_guard<HereAlone>;

/// "batch" of "batch" or of a Dim. Throws a TypeError for anything else.
std::string name_of(nb::handle dim);
/// Of one of them, or of several.
std::vector<std::string> names_of(nb::handle dims);
/// The name of a dim of x. Throws a usage error for a Dim that has another size there.
std::string name_of(nb::handle dim, const Tensor& x);
/// Of one of them, or of several; "..." stands for the dims of x that are not named.
std::vector<std::string> names_of(nb::handle dims, const Tensor& x);
/// Of a Dim, a Tensor, or a sequence of Dims. A name is the dim of `operands` that is called so.
/// "..." stands for the other dims that one operand alone has.
Shape shape_of(nb::handle dims, const std::vector<Tensor>& operands = {});
/// Of "float32", numpy.float32, numpy.dtype("float32"), tessera.f32.
DType dtype_of(nb::handle dtype);
/// Whether x is a number of Python or NumPy: an array without dims is one too, and a Dim that is
/// not bounded stands for its size.
bool is_number(nb::handle x);
/// The value of a number.
double number_of(nb::handle x);
/// A tensor. Throws a TypeError for anything else.
Tensor tensor_of(nb::handle x, const char* op);
/// A tensor, or a number as a scalar of the tensor `like`'s dtype.
Tensor operand(nb::handle x, const Tensor& like, const char* op);

/// Functions that only C++ calls.
struct InitializerHandle {
  Initializer function;
};
struct OptimizerHandle {
  Optimizer function;
};

using DenseArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;
DType dtype_of(const nb::dlpack::dtype& dtype);
nb::dlpack::dtype dlpack_of(DType dtype);
ArrayView view_of(const AnyArray& array);
/// A copy. Its dims have no names.
Array array_of(const DenseArray& array);
/// A NumPy array that owns what `array` has; bfloat16, which NumPy lacks, becomes float32.
nb::object numpy_of(Array array);

void bind_graph(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_spatial(nb::module_& m);
void bind_nn(nb::module_& m);
void bind_optim(nb::module_& m);
void bind_session(nb::module_& m);
void bind_data(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_model_files(nb::module_& m);
void bind_own_ops(nb::module_& m);
void bind_pytorch(nb::module_& m);

}  // namespace tessera::python

namespace nanobind::detail {

template <>
struct type_caster<tessera::Tensor> {
  NB_TYPE_CASTER(tessera::Tensor, const_name("Tensor"))
  bool from_python(handle src, uint8_t, cleanup_list*) noexcept {
    if (!isinstance<tessera::python::GraphTensor>(src)) return false;
    value = inst_ptr<tessera::python::GraphTensor>(src)->tensor;
    return true;
  }
  static handle from_cpp(const tessera::Tensor& tensor, rv_policy, cleanup_list*) {
    if (tensor.empty()) return none().release();
    return cast(tessera::python::GraphTensor{tensor, tessera::python::owner_of(tensor.graph())})
        .release();
  }
};

}  // namespace nanobind::detail
