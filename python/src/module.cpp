// The extension: what the package in python/tessera is made of.
#include <regex>

#include "convert.h"

namespace tessera::python {

namespace {

/// The class of Python's exceptions for a kind of Error; all derive from tessera.Error.
PyObject* exception_classes[6] = {};

/// A message that names no line gets the caller's.
std::string with_line(const std::string& text) {
  static const std::regex named(R"([^\s(/]:[0-9]+[),;])");
  const auto line = line_of_python();
  if (!line || std::regex_search(text, named)) return text;
  const std::string& file = line->first;
  return text + " (" + file.substr(file.rfind('/') + 1) + ":" + std::to_string(line->second) + ")";
}

void bind_errors(nb::module_& m) {
  PyObject* base = PyErr_NewExceptionWithDoc(
      "tessera.Error", "What Tessera throws: str() names the culprit, the line and a remedy.",
      PyExc_RuntimeError, nullptr);
  m.attr("Error") = nb::borrow(base);
  struct Kind {
    ErrorKind kind;
    const char* name;
    PyObject* builtin;
  };
  for (const Kind& k :
       {Kind{ErrorKind::usage, "UsageError", PyExc_ValueError},
        Kind{ErrorKind::unsupported, "UnsupportedError", nullptr},
        Kind{ErrorKind::device, "DeviceError", nullptr},
        Kind{ErrorKind::comm, "CommError", nullptr}, Kind{ErrorKind::io, "IoError", PyExc_OSError},
        Kind{ErrorKind::internal, "InternalError", nullptr}}) {
    const nb::object bases = k.builtin == nullptr
                                 ? nb::borrow(base)
                                 : nb::make_tuple(nb::borrow(base), nb::borrow(k.builtin));
    PyObject* made =
        PyErr_NewException((std::string("tessera.") + k.name).c_str(), bases.ptr(), nullptr);
    m.attr(k.name) = nb::borrow(made);
    exception_classes[static_cast<size_t>(k.kind)] = made;
  }
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      PyErr_SetString(exception_classes[static_cast<size_t>(e.kind())],
                      with_line(e.what()).c_str());
    }
  });
}

}  // namespace

}  // namespace tessera::python

NB_MODULE(_tessera, m) {
  using namespace tessera::python;
  nb::set_leak_warnings(false);  // what lives when the interpreter ends is the system's
  m.def("set_package_folder", &set_package_folder);
  bind_errors(m);
  bind_graph(m);
  bind_ops(m);
  bind_optim(m);
  bind_nn(m);
  bind_session(m);
  bind_data(m);
  bind_plan(m);
  bind_model_files(m);
  bind_own_ops(m);
}
