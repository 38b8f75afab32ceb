// The interpreter's lock: given away while the engine works, taken back for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tessera::python {

namespace nb = nanobind;

/// Other threads of Python run while this lives (gil_scoped_release of nanobind). At the end of the
/// interpreter it never comes back, unless it is that of the thread that ends it: see
/// stop_other_threads().
class ReleaseGil {
 public:
  ReleaseGil();
  ~ReleaseGil();
  ReleaseGil(const ReleaseGil&) = delete;

 private:
  PyThreadState* const state_;
};

/// The lock, for the engine's calls into Python, on any thread (gil_scoped_acquire). The same
/// holds.
class AcquireGil {
 public:
  AcquireGil();
  ~AcquireGil() { PyGILState_Release(state_); }
  AcquireGil(const AcquireGil&) = delete;

 private:
  PyGILState_STATE state_;
};

/// When the interpreter ends: waits until no other thread is in the engine, `seconds` at most. From
/// then on the others sleep where they would enter the engine, come back from it or call Python.
void stop_other_threads(double seconds);

}  // namespace tessera::python
