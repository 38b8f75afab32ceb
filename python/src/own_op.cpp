// Ops of a user's own, whose host function is a function of NumPy arrays. An Op is a record with
// plain functions, so each of these is one function for all such ops, which finds its own by name.
#include <cmath>
#include <limits>
#include <map>

#include "callback.h"
#include "convert.h"
#include "tessera/op.h"
#include "tessera/testing.h"

namespace tessera::python {

namespace {

/// An op, for as long as the process lives: nodes of any graph point to it.
struct OwnOp {
  std::string name;
  nb::object function, results, gradient;
  std::vector<std::string> whole;
  bool positions = false;
  Op op = {};
};

std::map<std::string, OwnOp*, std::less<>>& own_ops() {
  static auto* ops = new std::map<std::string, OwnOp*, std::less<>>();
  return *ops;
}

OwnOp& own_op(std::string_view name) { return *own_ops().find(name)->second; }

nb::list types_of(const std::vector<ValueType>& values) {
  nb::list types;
  for (const ValueType& v : values)
    types.append(nb::make_tuple(v.shape.dims(), to_string(v.dtype)));
  return types;
}

std::vector<ValueType> infer(const OpCall& call) {
  const OwnOp& own = own_op(call.op.name);
  return in_python("[" + own.name + "] ", [&] {
    std::vector<ValueType> out;
    for (nb::handle made : own.results(types_of(call.in)))
      out.push_back({shape_of(made[0]), dtype_of(nb::object(made[1]))});
    return out;
  });
}

/// By name. A dim that results lack is reduced, and what the function needs whole is gathered.
IndexSpace factors(const OpCall& call) {
  IndexSpace space = index_space_by_name(call);
  const OwnOp& own = own_op(call.op.name);
  for (const std::string& dim : own.whole) {
    for (Factor& f : space.factors) {
      if (f.name == dim) f.role = Role::whole;
    }
  }
  return space;
}

std::vector<Tensor> gradient(const GradCall& call) {
  const OwnOp& own = own_op(call.attrs.get<std::string>("function"));
  return in_python("[" + own.name + "] ", [&] {
    std::vector<Tensor> all;
    for (nb::handle made :
         own.gradient(nb::cast(call.in), nb::cast(call.out), nb::cast(call.grads)))
      all.push_back(made.is_none() ? Tensor() : nb::cast<Tensor>(made));
    return all;
  });
}

double identity_of(Combiner combiner) {
  switch (combiner) {
    case Combiner::max:
      return -std::numeric_limits<double>::infinity();
    case Combiner::min:
      return std::numeric_limits<double>::infinity();
    case Combiner::prod:
    case Combiner::all:
      return 1;
    default:
      return 0;
  }
}

/// One rank's part of an operand or result as an array, without padding, with its own dims only.
nb::object part_of(const HostCall& call, const HostOperand& operand, const std::string& dims,
                   bool valid) {
  std::vector<size_t> shape;
  std::vector<int64_t> strides;
  for (size_t begin = 0; begin < dims.size();) {
    const size_t end = std::min(dims.find(',', begin), dims.size());
    const auto d = static_cast<size_t>(call.find(dims.substr(begin, end - begin)));
    shape.push_back(static_cast<size_t>(valid ? call.dims[d].valid : call.dims[d].size));
    strides.push_back(operand.strides[d]);
    begin = end + 1;
  }
  return nb::cast(nb::ndarray<nb::numpy>(operand.data, shape.size(), shape.data(), nb::handle(),
                                         strides.data(), dlpack_of(operand.dtype)),
                  nb::rv_policy::reference);
}

/// Copies what the function returned for its result [dims] into `to`. Only an array of the declared
/// dtype is taken: a conversion would lose digits, or hide that they were never computed.
void store(const nb::object& to, const nb::object& made, const std::string& dims) {
  const auto refuse = [&](const std::string& what, const std::string& is,
                          const std::string& remedy) {
    throw Error(ErrorKind::usage, "the function returned " + what + " for its result [" + dims +
                                      "], which is " + is + remedy);
  };
  const nb::object numpy = nb::module_::import_("numpy");
  const std::string kind = text_of(nb::object(to.attr("dtype")));
  if (!nb::hasattr(made, "__array__"))
    refuse(text_of(nb::object(made.type().attr("__name__"))) + ", which is no array,", kind,
           "; return an array of NumPy, such as np.asarray(result, '" + kind + "')");
  const nb::object array = numpy.attr("asarray")(made);
  if (!array.attr("shape").equal(to.attr("shape")))
    refuse("an array of shape " + text_of(nb::object(array.attr("shape"))),
           text_of(nb::object(to.attr("shape"))) + " on this rank", "");
  if (!array.attr("dtype").equal(to.attr("dtype"))) {
    const std::string got = text_of(nb::object(array.attr("dtype")));
    refuse(got, kind,
           "; convert it with result.astype('" + kind + "'), or declare it with @ts.op(dtype=...)");
  }
  numpy.attr("copyto")(to, array);
}

void run(const HostCall& call) {
  const OwnOp& own = own_op(call.op);
  in_python("", [&] {
    const auto &in = call.attrs->get<std::vector<std::string>>("in"),
               &out = call.attrs->get<std::vector<std::string>>("out");
    const nb::module_ numpy = nb::module_::import_("numpy");
    bool padded = false, empty = false;
    for (const HostDim& d : call.dims) padded |= d.valid < d.size, empty |= d.valid == 0;
    if (padded) {
      for (size_t i = 0; i < out.size(); ++i) {
        const nb::object all = part_of(call, call.out[i], out[i], false);
        const auto kind = nb::cast<std::string>(all.attr("dtype").attr("kind"));
        double fill = identity_of(own.op.combiner);
        if (kind == "b") fill = fill > 0;
        all.attr("fill")(kind != "f" && std::isinf(fill)
                             ? numpy.attr("iinfo")(all.attr("dtype")).attr(fill < 0 ? "min" : "max")
                             : nb::cast(fill));
      }
    }
    if (empty) return;
    nb::list operands;
    for (size_t i = 0; i < in.size(); ++i) {
      const nb::object part = part_of(call, call.in[i], in[i], true);
      part.attr("setflags")(nb::arg("write") = false);
      operands.append(part);
    }
    nb::dict keywords;
    if (own.positions) {
      nb::dict positions;
      for (const HostDim& d : call.dims)
        positions[d.name.c_str()] = nb::make_tuple(d.offset, d.extent);
      keywords["positions"] = positions;
    }
    nb::object made = own.function(*operands, **keywords);
    if (!nb::isinstance<nb::tuple>(made)) made = nb::make_tuple(made);
    if (nb::len(made) != out.size())
      throw Error(ErrorKind::usage, "the function returned " + std::to_string(nb::len(made)) +
                                        " arrays; the op has " + std::to_string(out.size()) +
                                        " results");
    for (size_t i = 0; i < out.size(); ++i)
      store(part_of(call, call.out[i], out[i], true), nb::object(made[i]), out[i]);
  });
}

std::vector<std::string> dims_of(const std::vector<ValueType>& values) {
  std::vector<std::string> all;
  for (const ValueType& v : values) {
    all.emplace_back();
    for (const std::string& name : v.shape.names())
      all.back() += (all.back().empty() ? "" : ",") + name;
  }
  return all;
}

Combiner combiner_of(const std::string& name) {
  for (Combiner c : {Combiner::sum, Combiner::max, Combiner::min, Combiner::prod}) {
    if (name == to_string(c)) return c;
  }
  throw Error(ErrorKind::usage, "combine is '" + name + "'; known: sum, max, min, prod");
}

/// Names are told apart, since a node is found by the name of its op.
OwnOp* make_op(const std::string& name, nb::object function, nb::object results,
               const std::vector<std::string>& whole, const std::string& combine, bool positions) {
  auto* own =
      new OwnOp{name, std::move(function), std::move(results), nb::none(), whole, positions};
  for (int i = 2; own_ops().contains(own->name); ++i) own->name = name + "_" + std::to_string(i);
  own_ops()[own->name] = own;
  own->op.name = own->name;
  own->op.infer = infer;
  own->op.factors = factors;
  own->op.combiner = combiner_of(combine);
  own->op.host = run;
  return own;
}

std::vector<Tensor> call_op(OwnOp& own, const std::vector<Tensor>& in) {
  if (in.empty()) throw nb::type_error((own.name + "() takes tensors").c_str());
  std::vector<ValueType> types;
  for (const Tensor& x : in) {
    if (x.dtype() == DType::bfloat16)
      throw Error(ErrorKind::unsupported,
                  "[" + own.name + "] '" + x.name() +
                      "' is bfloat16, which NumPy lacks; cast it to float32");
    types.push_back({x.shape(), x.dtype()});
  }
  const std::vector<ValueType> out = infer({own.op, types, {}, {}});
  for (const ValueType& made : out) {
    if (made.dtype == DType::bfloat16)
      throw Error(ErrorKind::unsupported, "[" + own.name +
                                              "] the result is declared bfloat16, which NumPy "
                                              "lacks; make it float32 and cast that");
  }
  return in[0].graph().add(own.op, in,
                           {{"function", own.name}, {"in", dims_of(types)}, {"out", dims_of(out)}},
                           Loc::current());
}

// These come and go on any thread: nanobind's std::function takes the interpreter's lock by itself.
using BuildOutputs =
    std::function<std::vector<Tensor>(std::shared_ptr<Graph>, std::vector<Tensor>)>;
using Expect = std::function<testing::OpTest::Values(testing::OpTest::Values)>;

testing::OpTest test_of(const std::string& name, const std::vector<testing::OpInput>& in,
                        const BuildOutputs& build, const Expect& expect,
                        const std::vector<std::string>& types, double tolerance32,
                        double tolerance64) {
  testing::OpTest test;
  test.name = name;
  test.in = in;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].name.empty()) test.in[i].name = "x" + std::to_string(i);
  }
  test.build = [build](Graph& g, const testing::OpTest::Tensors& xs) {
    return build(owner_of(g), xs);
  };
  test.expect = expect;
  test.types.clear();
  for (const std::string& type : types) test.types.push_back(parse_dtype(type.c_str()));
  test.tolerance32 = tolerance32;
  test.tolerance64 = tolerance64;
  return test;
}

}  // namespace

void bind_own_ops(nb::module_& m) {
  nb::class_<OwnOp>(m, "OwnOp")
      .def_prop_ro("name", [](const OwnOp& own) { return own.name; })
      .def(
          "set_gradient",
          [](OwnOp& own, nb::object function) {
            own.gradient = std::move(function);
            own.op.gradient = gradient;
          },
          nb::arg("function"));
  m.def("make_op", &make_op, nb::rv_policy::reference, nb::arg("name"), nb::arg("function"),
        nb::arg("results"), nb::arg("whole"), nb::arg("combine"), nb::arg("positions"));
  m.def("call_op", &call_op, At(), nb::arg("op"), nb::arg("operands"));
  nb::class_<testing::OpInput>(m, "OpInput", "An operand of ts.testing.test_op().")
      .def(
          "__init__",
          [](testing::OpInput* self, nb::handle dims, double lo, double hi, nb::handle dtype,
             bool whole_numbers, bool differentiable, const std::string& name) {
            new (self) testing::OpInput{name,          shape_of(dims), lo, hi, dtype_of(dtype),
                                        whole_numbers, differentiable};
          },
          nb::arg("dims"), nb::arg("lo") = -1.0, nb::arg("hi") = 1.0, nb::arg("dtype") = "float32",
          nb::arg("whole_numbers") = false, nb::arg("differentiable") = true, nb::arg("name") = "")
      .def_prop_ro("sizes", [](const testing::OpInput& in) {
        std::vector<int64_t> sizes;
        for (const Dim& d : in.shape) sizes.push_back(d.size);
        return sizes;
      });
  nb::class_<testing::OpReport>(m, "OpReport", "Number of comparisons, and a line per failure.")
      .def_ro("values", &testing::OpReport::values)
      .def_ro("gradients", &testing::OpReport::gradients)
      .def_ro("layouts", &testing::OpReport::layouts)
      .def_ro("failures", &testing::OpReport::failures)
      .def_prop_ro("ok", &testing::OpReport::ok)
      .def("__repr__", &testing::OpReport::to_string);
  m.def(
      "test_op",
      [](const std::string& name, const std::vector<testing::OpInput>& in,
         const BuildOutputs& build, const Expect& expect, const std::vector<std::string>& types,
         double tolerance32, double tolerance64, const std::vector<std::string>& meshes) {
        const testing::OpTest test =
            test_of(name, in, build, expect, types, tolerance32, tolerance64);
        testing::OpTestOptions options;
        if (!meshes.empty()) options.meshes = meshes;
        const ReleaseGil released;
        return testing::test_op(test, options);
      },
      At(), nb::arg("name"), nb::arg("inputs"), nb::arg("build"), nb::arg("expect").none(),
      nb::arg("types"), nb::arg("tolerance32"), nb::arg("tolerance64"), nb::arg("meshes"));
}

}  // namespace tessera::python
