#include "callback.h"

namespace tessera::python {

std::string text_of(nb::handle x) { return nb::str(x).c_str(); }

Error as_error(const std::string& prefix, nb::python_error& e) {
  std::string text = text_of(nb::object(e.type().attr("__name__"))) + ": " + text_of(e.value());
  nb::object trace = e.traceback();
  while (trace.is_valid() && !trace.is_none() && !trace.attr("tb_next").is_none())
    trace = trace.attr("tb_next");
  if (trace.is_valid() && !trace.is_none()) {
    const std::string file =
        shown_file(text_of(nb::object(trace.attr("tb_frame").attr("f_code").attr("co_filename"))));
    text += " in " + file.substr(file.rfind('/') + 1) + ":" +
            std::to_string(nb::cast<int>(trace.attr("tb_lineno")));
  }
  // Last, as any call of Python would raise it.
  if (e.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
  return {ErrorKind::usage, prefix + text};
}

namespace {
thread_local std::optional<nb::python_error> interruption;
}

bool interrupted() {
  const AcquireGil gil;
  if (PyErr_CheckSignals() == 0) return false;
  interruption.emplace();  // takes what is raised
  return true;
}

void raise_interruption() {
  if (!interruption) return;
  nb::python_error raised = std::move(*interruption);
  interruption.reset();
  throw raised;
}

}  // namespace tessera::python
