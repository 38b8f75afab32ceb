// The interpreter's lock: given away while the engine works, taken back for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tessera::python {

namespace nb = nanobind;

/// Other threads of Python run while this lives. At the end of the interpreter it never comes back,
/// unless it is that of the thread that ends it: see stop_other_threads().
class OthersRun {
 public:
  OthersRun();
  ~OthersRun();
  OthersRun(const OthersRun&) = delete;

 private:
  PyThreadState* const state_;
};

/// The lock, for the engine's calls into Python, on any thread. The same holds.
class WithPython {
 public:
  WithPython();
  ~WithPython() { PyGILState_Release(state_); }
  WithPython(const WithPython&) = delete;

 private:
  PyGILState_STATE state_;
};

/// When the interpreter ends: waits until no other thread is in the engine, `seconds` at most. From
/// then on the others sleep where they would enter the engine, come back from it or call Python.
void stop_other_threads(double seconds);

}  // namespace tessera::python
