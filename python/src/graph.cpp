// Dims, graphs, tensors, scopes.
#include "convert.h"
#include "tessera/inspect.h"

namespace tessera::python {

namespace {

/// A Scope that ends when Python says so.
class OpenScope {
 public:
  OpenScope(std::shared_ptr<Graph> graph, const std::string& name)
      : graph_(std::move(graph)), scope_(std::make_unique<Scope>(*graph_, name)) {}
  void close() { scope_.reset(); }

 private:
  std::shared_ptr<Graph> graph_;
  std::unique_ptr<Scope> scope_;
};

using Print = std::function<void(const std::string&)>;

GraphOptions eager_options(bool eager, bool check_finite, uint64_t seed, const Print& print) {
  GraphOptions options;
  options.print = print;
  options.eager = eager;
  options.check_finite = check_finite;
  options.seed = seed;
  return options;
}

int64_t size_of_dim(const Dim& dim) {
  if (!dim.is_bounded) return dim.size;
  throw nb::type_error(("dim '" + dim.name + "' is bounded: each run has a size of its own; " +
                        dim.name + ".size is the largest")
                           .c_str());
}

/// Arithmetic of dims is that of their sizes.
void bind_arithmetic(nb::class_<Dim>& dim) {
  using Binary = PyObject* (*)(PyObject*, PyObject*);
  struct Operator {
    const char *symbol, *reversed;
    Binary function;
  };
  for (const Operator& o : {Operator{"__add__", "__radd__", PyNumber_Add},
                            {"__sub__", "__rsub__", PyNumber_Subtract},
                            {"__mul__", "__rmul__", PyNumber_Multiply},
                            {"__floordiv__", "__rfloordiv__", PyNumber_FloorDivide},
                            {"__truediv__", "__rtruediv__", PyNumber_TrueDivide},
                            {"__mod__", "__rmod__", PyNumber_Remainder}}) {
    const auto result = [](PyObject* made) {
      if (made == nullptr) nb::raise_python_error();
      return nb::steal(made);
    };
    dim.def(o.symbol, [o, result](const Dim& d, nb::handle n) {
      return result(o.function(nb::int_(size_of_dim(d)).ptr(), n.ptr()));
    });
    dim.def(o.reversed, [o, result](const Dim& d, nb::handle n) {
      return result(o.function(n.ptr(), nb::int_(size_of_dim(d)).ptr()));
    });
  }
}

void bind_dim(nb::module_& m) {
  nb::class_<Dim> dim(m, "Dim", "A named dimension.");
  bind_arithmetic(dim);
  dim.def(nb::init<std::string, int64_t>(), nb::arg("name"), nb::arg("size"))
      .def_static("bounded", &Dim::bounded, nb::arg("name"), nb::arg("size"),
                  "A dim with at most `size` elements in a run.")
      .def_ro("name", &Dim::name)
      .def_ro("size", &Dim::size)
      .def_ro("is_bounded", &Dim::is_bounded)
      .def("renamed", &Dim::renamed, nb::arg("name"), "A dim of the same size with another name.")
      .def("__index__", &size_of_dim, "Its size: int(d), range(d), d * 2 are of numbers.")
      .def("__eq__", [](const Dim& a,
                        nb::object b) { return nb::isinstance<Dim>(b) && a == nb::cast<Dim>(b); })
      .def("__hash__",
           [](const Dim& d) {
             return std::hash<std::string>()(d.name) ^ static_cast<size_t>(d.size);
           })
      .def("__repr__", [](const Dim& d) {
        return d.name + (d.is_bounded ? "<=" : "=") + std::to_string(d.size);
      });
}

void bind_tensor(nb::module_& m) {
  nb::class_<GraphTensor> tensor(m, "Tensor", "A value of a graph. It keeps the graph alive.");
  tensor.def_prop_ro("name", [](const GraphTensor& x) { return x.tensor.name(); })
      .def_prop_ro("dims", [](const GraphTensor& x) { return x.tensor.shape().dims(); })
      .def_prop_ro("dtype", [](const GraphTensor& x) { return to_string(x.tensor.dtype()); })
      .def_prop_ro("graph", [](const GraphTensor& x) { return x.graph; })
      .def(
          "dim", [](const GraphTensor& x, const std::string& name) { return x.tensor.dim(name); },
          At(), nb::arg("name"), "Its dim of this name.")
      .def(
          "named",
          [](const GraphTensor& x, const std::string& name) { return x.tensor.named(name); }, At(),
          "Renames this value within its scope, and returns it.")
      .def(
          "prefer",
          [](const GraphTensor& x, nb::handle dims) {
            return x.tensor.prefer(names_of(dims, x.tensor));
          },
          At(), "Which dims get an axis that the rules give to several dims of this tensor.")
      .def("__repr__",
           [](const GraphTensor& x) {
             return x.tensor.name() + ": " + to_string(x.tensor.dtype()) +
                    x.tensor.shape().to_string();
           })
      .def("__hash__", [](const GraphTensor& x) { return static_cast<size_t>(x.tensor.id()); })
      .def(
          "__bool__",
          [](const GraphTensor& x) -> bool {
            throw nb::type_error(("'" + x.tensor.name() +
                                  "' has no value while the model is built; take where() or cond()")
                                     .c_str());
          })
      .def(
          "__neg__", [](const GraphTensor& x) { return neg(x.tensor); }, At())
      .def(
          "__abs__", [](const GraphTensor& x) { return abs(x.tensor); }, At());
  using Binary = Tensor (*)(Tensor, Tensor, Loc);
  struct Operator {
    const char *symbol, *reversed, *name;
    Binary function;
  };
  for (const Operator& o : {Operator{"__add__", "__radd__", "add", add},
                            {"__sub__", "__rsub__", "sub", sub},
                            {"__mul__", "__rmul__", "mul", mul},
                            {"__floordiv__", "__rfloordiv__", "floor_div", floor_div},
                            {"__mod__", "__rmod__", "mod", mod},
                            {"__pow__", "__rpow__", "pow", pow},
                            {"__lt__", nullptr, "less", less},
                            {"__le__", nullptr, "less_equal", less_equal},
                            {"__gt__", nullptr, "greater", greater},
                            {"__ge__", nullptr, "greater_equal", greater_equal},
                            {"__eq__", nullptr, "equal", equal},
                            {"__ne__", nullptr, "not_equal", not_equal},
                            {"__and__", nullptr, "logical_and", logical_and},
                            {"__or__", nullptr, "logical_or", logical_or},
                            {"__truediv__", "__rtruediv__", "div", div}}) {
    const bool divides = o.function == static_cast<Binary>(div);
    // As in Python, / is no division of whole numbers.
    const auto scalar = [o, divides](nb::handle y, const Tensor& x) {
      return divides && is_number(y) ? quotient_like(x, number_of(y)) : operand(y, x, o.name);
    };
    tensor.def(
        o.symbol,
        [o, scalar](const GraphTensor& x, nb::object y) {
          return o.function(x.tensor, scalar(y, x.tensor), Loc::current());
        },
        At());
    if (o.reversed == nullptr) continue;
    tensor.def(
        o.reversed,
        [o, scalar](const GraphTensor& x, nb::object y) {
          return o.function(scalar(y, x.tensor), x.tensor, Loc::current());
        },
        At());
  }
  tensor.def(
      "__matmul__",
      [](const GraphTensor& x, const Tensor& w) {
        return einsum({x.tensor, w});
      },
      At(), "The product summed over the dims that both have: ts.einsum(x, w).");
  tensor.def(
      "__invert__", [](const GraphTensor& x) { return logical_not(x.tensor); }, At());
  tensor.def(
      "__getitem__",
      [](const GraphTensor& x, const nb::object& at) {
        const bool is_named = nb::isinstance<nb::slice>(at) && !at.attr("start").is_none() &&
                              nb::isinstance<GraphTensor>(at.attr("stop"));
        if (!is_named)
          throw nb::type_error(
              "a tensor is indexed as x[dim: indices], with indices a tensor of whole numbers; "
              "slice(x, dim, begin, size) is a part of it, and unstack(x, dim) its rows");
        return gather(x.tensor, nb::cast<Tensor>(nb::object(at.attr("stop"))),
                      name_of(nb::object(at.attr("start")), x.tensor));
      },
      At(), "table[vocab: tokens]: the rows at `tokens` along the dim `vocab`.");
}

}  // namespace

void bind_graph(nb::module_& m) {
  bind_dim(m);
  nb::class_<Graph>(m, "Graph", "A model as written: tensors and what makes them.")
      .def(
          "input",
          [](Graph& g, const std::string& name, nb::handle dims, nb::handle dtype,
             const std::optional<std::pair<std::string, int>>& line) {
            std::optional<CallerScope> declared;
            if (line) declared.emplace(line->first, line->second);
            return g.input(name, shape_of(dims), dtype_of(dtype));
          },
          At(), nb::arg("name"), nb::arg("dims"), nb::arg("dtype") = "float32",
          nb::arg("line").none() = nb::none(), "line: (file, number), if it is not the caller's.")
      .def(
          "parameter",
          [](Graph& g, const std::string& name, nb::handle dims, const InitializerHandle& init,
             nb::handle dtype) {
            return g.parameter(name, shape_of(dims), init.function, dtype_of(dtype));
          },
          At(), nb::arg("name"), nb::arg("dims"), nb::arg("init"), nb::arg("dtype") = "float32")
      .def(
          "state",
          [](Graph& g, const std::string& name, nb::handle dims, const InitializerHandle& init,
             nb::handle dtype) {
            return g.state(name, shape_of(dims), init.function, dtype_of(dtype));
          },
          At(), nb::arg("name"), nb::arg("dims"), nb::arg("init"), nb::arg("dtype") = "float32")
      .def(
          "update",
          [](Graph& g, const Tensor& stored, const Tensor& value) { g.update(stored, value); },
          At())
      .def(
          "feed",
          [](Graph& g, const std::string& name, const DenseArray& array) {
            g.feed(name, array_of(array));
          },
          At(), "Of an eager graph: the value of an input, or another first value of a parameter.")
      .def(
          "fetch", [](const Graph& g, const Tensor& x) { return numpy_of(g.fetch(x)); }, At(),
          "Of an eager graph: the value of a tensor.")
      .def(
          "find", [](Graph& g, const std::string& name) { return g.find(name); }, At(),
          nb::arg("name"), "The tensor of this full name.")
      .def_prop_ro("parameters", [](Graph& g) { return g.parameters(); })
      .def("parameter_table", [](const Graph& g) { return parameter_table(g); })
      .def_prop_ro("has_updates", [](const Graph& g) { return !g.updates().empty(); })
      .def("__str__", [](const Graph& g) { return g.to_string(); });
  bind_tensor(m);
  m.def(
      "make_graph",
      [](bool eager, bool check_finite, uint64_t seed, const Print& print) {
        return make_graph(eager_options(eager, check_finite, seed, print));
      },
      nb::arg("eager") = false, nb::arg("check_finite") = false, nb::arg("seed") = 0,
      nb::arg("print").none() = nb::none());
  nb::class_<OpenScope>(m, "OpenScope")
      .def(nb::init<std::shared_ptr<Graph>, const std::string&>(), At())
      .def("close", &OpenScope::close);
}

}  // namespace tessera::python
