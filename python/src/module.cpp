// The extension: what the package in python/tessera is made of.
#include <regex>

#include "convert.h"

namespace tessera::python {

namespace {

/// The classes of Python's exceptions, in the order of ErrorKind: see tessera/errors.py.
PyObject* exception_classes[6] = {PyExc_RuntimeError, PyExc_RuntimeError, PyExc_RuntimeError,
                                  PyExc_RuntimeError, PyExc_RuntimeError, PyExc_RuntimeError};

/// A message that names no line gets the caller's.
std::string with_line(const std::string& text) {
  static const std::regex named(R"((\.[a-z]+|>|In\[[0-9]+\]):[0-9]+[),;])");
  const auto line = line_of_python();
  if (!line || std::regex_search(text, named)) return text;
  const std::string& file = line->first;
  return text + " (" + file.substr(file.rfind('/') + 1) + ":" + std::to_string(line->second) + ")";
}

void bind_errors(nb::module_& m) {
  m.def(
      "set_errors",
      [](const nb::list& classes) {
        for (size_t i = 0; i < std::size(exception_classes); ++i)
          exception_classes[i] = nb::object(classes[i]).release().ptr();
      },
      nb::arg("classes"));
  m.def("with_line", &with_line, nb::arg("message"), "A message of Python with the caller's line.");
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      if (PyErr_CheckSignals() != 0) return;  // Ctrl-C, which ended a function of the user's
      PyErr_SetString(exception_classes[static_cast<size_t>(e.kind())],
                      with_line(e.what()).c_str());
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError,
                      with_line("an argument has another type than the call takes").c_str());
    }
  });
}

}  // namespace

}  // namespace tessera::python

NB_MODULE(_tessera, m) {
  using namespace tessera::python;
  nb::set_leak_warnings(false);  // what lives when the interpreter ends is the system's
  m.def("set_package_folder", &set_package_folder);
  m.def("stop_other_threads", &stop_other_threads, nb::arg("seconds"));
  bind_errors(m);
  bind_graph(m);
  bind_ops(m);
  bind_spatial(m);
  bind_optim(m);
  bind_nn(m);
  bind_session(m);
  bind_data(m);
  bind_plan(m);
  bind_model_files(m);
  bind_own_ops(m);
  bind_pytorch(m);
}
