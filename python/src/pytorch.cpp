// Programs of PyTorch in a program of Tessera.
#include "callback.h"
#include "convert.h"
#include "tessera/pytorch_model.h"

namespace tessera::python {

namespace {

/// A custom op whose function in Python makes tensors of tensors.
PytorchOp mapped_op(const std::string& name, const std::string& axes,
                    const nb::callable& function) {
  PytorchOp op;
  op.axes = axes;
  op.build = [name, function](const std::vector<Tensor>& xs,
                              const std::map<std::string, double>& numbers) {
    return in_python(name + ": ", [&] {
      nb::list operands;
      for (const Tensor& x : xs) operands.append(nb::cast(x));
      nb::dict keys;
      for (const auto& [key, value] : numbers) keys[key.c_str()] = value;
      return tensor_of(function(*operands, **keys), name.c_str());
    });
  };
  return op;
}

}  // namespace

void bind_pytorch(nb::module_& m) {
  nb::class_<PytorchOp>(m, "PytorchOp");
  m.def("pytorch_op", &mapped_op, nb::arg("name"), nb::arg("axes"), nb::arg("function"));
  nb::class_<PytorchModel::Input>(m, "PytorchInput")
      .def_ro("name", &PytorchModel::Input::name)
      .def_ro("dims", &PytorchModel::Input::dims);
  nb::class_<PytorchModel>(m, "PytorchModel", "A program that torch.export.save() wrote.")
      .def(
          "__init__",
          [](PytorchModel* self, const std::string& path, const std::string& dims,
             const std::map<std::string, PytorchOp>& ops) {
            new (self) PytorchModel(path, {dims, "", ops});
          },
          At(), nb::arg("path"), nb::arg("dims"), nb::arg("ops"))
      .def_prop_ro("inputs", &PytorchModel::inputs)
      .def_prop_ro("outputs", &PytorchModel::outputs)
      .def_prop_ro("dims",
                   [](const PytorchModel& self) {
                     std::map<std::string, int64_t> sizes;
                     for (const PytorchModel::FoundDim& d : self.dims()) sizes[d.name] = d.size;
                     return sizes;
                   })
      .def(
          "build",
          [](const PytorchModel& self, Graph& g, const std::map<std::string, Tensor>& inputs,
             int64_t batch, bool evaluates, bool scan, nb::handle dtype) {
            PytorchBuild options;
            options.inputs = inputs, options.batch = batch, options.evaluates = evaluates;
            options.scan = scan, options.dtype = dtype_of(dtype);
            return self.build(g, options).outputs;
          },
          At(), nb::arg("graph"), nb::arg("inputs"), nb::arg("batch"), nb::arg("evaluates"),
          nb::arg("scan"), nb::arg("dtype"))
      .def(
          "fetch",
          [](const PytorchModel& self, Session& s, const std::string& key) -> nb::object {
            std::optional<Array> array;
            {
              const ReleaseGil released;
              array = self.fetch(s, key);
            }
            return array ? nb::object(numpy_of(std::move(*array))) : nb::none();
          },
          At(), nb::arg("session"), nb::arg("key"))
      .def("load", &PytorchModel::load, Releasing(), nb::arg("session"));
}

}  // namespace tessera::python
