#include "convert.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace tessera::python {

namespace {

std::mutex graphs_mutex;
std::map<const Graph*, std::weak_ptr<Graph>> graphs;
std::string package_folder;

bool is_dim(nb::handle x) { return nb::isinstance<Dim>(x); }
bool is_text(nb::handle x) { return nb::isinstance<nb::str>(x); }

}  // namespace

std::shared_ptr<Graph> make_graph(const GraphOptions& options) {
  std::shared_ptr<Graph> graph(new Graph(options), [](Graph* g) {
    const std::lock_guard lock(graphs_mutex);
    graphs.erase(g);
    delete g;
  });
  const std::lock_guard lock(graphs_mutex);
  graphs[graph.get()] = graph;
  return graph;
}

std::shared_ptr<Graph> owner_of(Graph& graph) {
  const std::lock_guard lock(graphs_mutex);
  const auto found = graphs.find(&graph);
  return found != graphs.end() ? found->second.lock()
                               : std::shared_ptr<Graph>(&graph, [](Graph*) {});
}

void set_package_folder(std::string folder) { package_folder = std::move(folder); }

std::string shown_file(const std::string& file) {
  if (file.find("ipykernel_") == std::string::npos) return file;
  try {
    const nb::object ipython =
        nb::module_::import_("sys").attr("modules").attr("get")("IPython", nb::none());
    if (ipython.is_none()) return file;
    const nb::object named =
        ipython.attr("get_ipython")().attr("compile").attr("format_code_name")(file);
    return named.is_none() ? file : nb::cast<std::string>(nb::object(named[1]));
  } catch (const nb::python_error&) {  // another kernel
    return file;
  }
}

std::optional<std::pair<std::string, int>> line_of_python() {
  nb::object frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid()) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    const nb::object file = code.attr("co_filename");
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(file.ptr(), &length);
    if (text == nullptr) {
      PyErr_Clear();
      return std::nullopt;
    }
    const std::string_view name(text, static_cast<size_t>(length));
    if (package_folder.empty() || !name.starts_with(package_folder))
      return std::pair(shown_file(std::string(name)), PyFrame_GetLineNumber(f));
    frame = frame.attr("f_back");  // PyFrame_GetBack is not of the stable ABI
    if (frame.is_none()) break;
  }
  return std::nullopt;
}

Here::Here() {
  if (const auto line = line_of_python()) scope_.emplace(line->first, line->second);
}

std::string name_of(nb::handle dim) {
  if (is_text(dim)) return nb::cast<std::string>(dim);
  if (is_dim(dim)) return nb::cast<Dim>(dim).name;
  throw nb::type_error(
      ("a Dim or the name of one is wanted, not " + std::string(nb::repr(dim).c_str())).c_str());
}

std::vector<std::string> names_of(nb::handle dims) {
  if (is_text(dims) || is_dim(dims)) return {name_of(dims)};
  if (!nb::hasattr(dims, "__iter__")) return {name_of(dims)};  // its error
  std::vector<std::string> names;
  for (nb::handle dim : dims) names.push_back(name_of(dim));
  return names;
}

namespace {

bool is_rest(nb::handle dim) {
  return dim.ptr() == Py_Ellipsis || (is_text(dim) && nb::cast<std::string>(dim) == "...");
}

/// Throws a usage error for a Dim of another size than that of its name in x.
void require_size(nb::handle dim, const Tensor& x) {
  if (!is_dim(dim)) return;
  const auto given = nb::cast<Dim>(dim);
  if (!x.shape().has(given.name) || x.dim(given.name).size == given.size) return;
  throw Error(ErrorKind::usage, "dim '" + given.name + "' has size " + std::to_string(given.size) +
                                    ", but '" + x.name() + "' is " + x.shape().to_string() +
                                    "; take its own dim, or the name");
}

[[noreturn]] void refuse_dims(nb::handle x, const char* wanted) {
  throw nb::type_error((std::string(wanted) + " wanted, not " + nb::repr(x).c_str() +
                        "; ts.dims(batch=32) makes one")
                           .c_str());
}

Dim dim_of(nb::handle dim, const std::vector<Tensor>& operands) {
  if (is_dim(dim)) return nb::cast<Dim>(dim);
  if (!is_text(dim) || operands.empty()) refuse_dims(dim, "a Dim is");
  const auto name = nb::cast<std::string>(dim);
  for (const Tensor& x : operands) {
    if (x.shape().has(name)) return x.dim(name);
  }
  return operands[0].dim(name);  // its error
}

}  // namespace

std::string name_of(nb::handle dim, const Tensor& x) {
  require_size(dim, x);
  return name_of(dim);
}

std::vector<std::string> names_of(nb::handle dims, const Tensor& x) {
  if (is_text(dims) || is_dim(dims) || is_rest(dims) || !nb::hasattr(dims, "__iter__"))
    return names_of(nb::make_tuple(dims), x);
  std::vector<std::string> names, rest = x.shape().names();
  for (nb::handle dim : dims) {
    if (!is_rest(dim)) names.push_back(name_of(dim, x));
  }
  std::erase_if(rest, [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  });
  auto at = names.begin();
  for (nb::handle dim : dims) {
    if (is_rest(dim)) {
      names.insert(at, rest.begin(), rest.end());
      break;
    }
    ++at;
  }
  return names;
}

Shape shape_of(nb::handle dims, const std::vector<Tensor>& operands) {
  if (is_dim(dims)) return Shape{nb::cast<Dim>(dims)};
  if (nb::isinstance<GraphTensor>(dims)) return nb::cast<Tensor>(dims).shape();
  if (is_text(dims) || !nb::hasattr(dims, "__iter__")) refuse_dims(dims, "Dims are");
  std::vector<Dim> all;
  std::set<std::string> named;
  for (nb::handle dim : dims) {
    if (!is_rest(dim)) named.insert(dim_of(dim, operands).name);
  }
  for (nb::handle dim : dims) {
    if (!is_rest(dim) || operands.empty()) {
      all.push_back(dim_of(dim, operands));
      continue;
    }
    for (const Tensor& x : operands) {
      for (const Dim& d : x.shape()) {
        const auto has = [&](const Tensor& y) { return y.shape().has(d.name); };
        if (!named.contains(d.name) && std::count_if(operands.begin(), operands.end(), has) == 1)
          all.push_back(d);
      }
    }
  }
  return Shape(std::move(all));
}

DType dtype_of(nb::handle dtype) {
  nb::object name = nb::borrow(dtype);
  if (!is_text(name)) {
    for (const char* attribute : {"name", "__name__"}) {
      if (!nb::hasattr(dtype, attribute)) continue;
      name = dtype.attr(attribute);
      break;
    }
  }
  if (!is_text(name)) name = nb::str(dtype);
  std::string text = nb::cast<std::string>(name);
  if (text.rfind("torch.", 0) == 0) text = text.substr(6);
  if (text == "bool_") text = "bool";
  return parse_dtype(text.c_str());
}

bool is_number(nb::handle x) {
  if (nb::isinstance<nb::bool_>(x) || nb::isinstance<nb::int_>(x) || nb::isinstance<nb::float_>(x))
    return true;
  if (is_dim(x)) return !nb::cast<Dim>(x).is_bounded;
  return !nb::isinstance<GraphTensor>(x) && nb::hasattr(x, "__float__") &&
         nb::hasattr(x, "shape") && nb::len(nb::object(x.attr("shape"))) == 0;
}

double number_of(nb::handle x) { return static_cast<double>(nb::float_(x)); }

Tensor tensor_of(nb::handle x, const char* op) {
  if (nb::isinstance<GraphTensor>(x)) return nb::cast<Tensor>(x);
  throw nb::type_error((std::string(op) + " takes a tensor, not " + nb::repr(x).c_str() +
                        "; ts.constant() makes one of a number or of an array")
                           .c_str());
}

Tensor operand(nb::handle x, const Tensor& like, const char* op) {
  if (nb::isinstance<GraphTensor>(x)) return nb::cast<Tensor>(x);
  if (is_number(x)) return scalar_like(op, like, number_of(x));
  throw nb::type_error(
      (std::string(op) + " takes tensors and numbers, not " + nb::repr(x).c_str() +
       (nb::hasattr(x, "__array__") ? "; ts.constant(array, dims) makes a tensor of an array" : ""))
          .c_str());
}

DType dtype_of(const nb::dlpack::dtype& dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(dtype.code);
  if (dtype.lanes == 1) {
    if (code == Code::Float && dtype.bits == 32) return DType::float32;
    if (code == Code::Float && dtype.bits == 64) return DType::float64;
    if (code == Code::Float && dtype.bits == 16) return DType::float16;
    if (code == Code::Bfloat && dtype.bits == 16) return DType::bfloat16;
    if (code == Code::Int && dtype.bits == 32) return DType::int32;
    if (code == Code::Int && dtype.bits == 64) return DType::int64;
    if (code == Code::UInt && dtype.bits == 8) return DType::uint8;
    if (code == Code::Bool) return DType::bool_;
  }
  throw nb::type_error(
      "an array has a dtype that tessera lacks; it has float16, bfloat16, float32, float64, int32, "
      "int64, uint8 and bool");
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto make = [](Code code, int bits) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  };
  switch (dtype) {
    case DType::float32:
      return make(Code::Float, 32);
    case DType::float64:
      return make(Code::Float, 64);
    case DType::float16:
      return make(Code::Float, 16);
    case DType::bfloat16:
      return make(Code::Bfloat, 16);
    case DType::int32:
      return make(Code::Int, 32);
    case DType::int64:
      return make(Code::Int, 64);
    case DType::uint8:
      return make(Code::UInt, 8);
    case DType::bool_:
      return make(Code::Bool, 8);
  }
  throw nb::type_error("a dtype that is none");
}

ArrayView view_of(const AnyArray& array) {
  ArrayView view{array.data(), dtype_of(array.dtype()), {}, {}};
  for (size_t d = 0; d < array.ndim(); ++d) {
    view.sizes.push_back(static_cast<int64_t>(array.shape(d)));
    view.strides.push_back(array.stride(d));
  }
  return view;
}

Array array_of(const DenseArray& array) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < array.ndim(); ++d) sizes.push_back(static_cast<int64_t>(array.shape(d)));
  Array whole(dtype_of(array.dtype()), std::vector<std::string>(sizes.size()), sizes);
  std::memcpy(whole.bytes.data(), array.data(), whole.bytes.size());
  return whole;
}

nb::object numpy_of(Array array) {
  if (array.dtype == DType::bfloat16) {
    Array wide(DType::float32, array.dims, array.sizes);
    for (int64_t i = 0; i < array.elements(); ++i)
      wide.data<float>()[i] = static_cast<float>(array.at(i));
    array = std::move(wide);
  }
  auto* kept = new Array(std::move(array));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Array*>(p); });
  std::vector<size_t> shape(kept->sizes.begin(), kept->sizes.end());
  return nb::cast(nb::ndarray<nb::numpy>(kept->bytes.data(), shape.size(), shape.data(), owner,
                                         nullptr, dlpack_of(kept->dtype)));
}

}  // namespace tessera::python
