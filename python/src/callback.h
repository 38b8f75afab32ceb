// Calls from C++ into Python: functions of the user's that the engine runs.
#pragma once

#include "convert.h"

namespace tessera::python {

/// str() of an object.
std::string text_of(nb::handle x);
/// An exception of Python as an Error, with the line that raised it; the engine adds the node's.
/// Ctrl-C stays what it is: the caller in Python gets a KeyboardInterrupt.
Error as_error(const std::string& prefix, nb::python_error& e);

/// While the engine works, signals of the process are looked for: what their handlers raise, such
/// as a KeyboardInterrupt, is kept, ends the work, and is raised instead of its error. By the
/// thread that called the engine.
bool interrupted();
/// Throws what interrupted() kept, if anything.
void raise_interruption();
template <class Work>
void interruptibly(const Work& work) {
  try {
    const ReleaseGil released;
    work();
  } catch (const Error&) {
    raise_interruption();
    throw;
  }
  raise_interruption();  // it came as the work ended
}

/// Calls Python from whatever thread this is. `prefix`: of messages, where the engine adds none.
template <class Work>
auto in_python(const std::string& prefix, const Work& work) {
  const AcquireGil gil;
  try {
    return work();
  } catch (nb::python_error& e) {
    throw as_error(prefix, e);
  } catch (const nb::builtin_exception& e) {  // of this extension: what the function gave is wrong
    throw Error(ErrorKind::usage, prefix + e.what());
  } catch (const std::bad_cast&) {
    throw Error(ErrorKind::usage, prefix + "a function in Python returned another type");
  }
}

}  // namespace tessera::python
