// A stand-in for libcuda that enforces its rules: the functions of src/gpu/library/driver.inc, on
// an emulated GPU. What CUDA's documentation forbids fails with the code that it names: a call
// without a current context, a handle of another context or one that was destroyed, in a capture
// what may not be captured. After an illegal address every call of that context fails.
#pragma once

#include <cuda.h>

#include <deque>
#include <thread>

#include "gpu/emulated_cuda.h"

namespace tessera::test::rules {

#define TESSERA_MEMBER(name) decltype(::name) name;
#include "gpu/library/driver.inc"
#undef TESSERA_MEMBER

struct Context {
  int gpu = 0;
  std::set<CUcontext> peers;  ///< whose memory its kernels may touch
};

struct EventInfo {
  int gpu = 0;
  bool timing = false;
};

struct Capture {
  EmulatorState::Stream* origin = nullptr;
  CUstreamCaptureMode mode{};
  std::thread::id thread;
  bool is_valid = true;
};

/// A kernel's argument struct and the memory it may touch. A launch says neither, so who tests
/// launches tells it beforehand.
struct LaunchContents {
  std::vector<uint64_t> words;
  KernelMemory memory;
};

/// What the stand-ins of one emulated GPU share. Guarded by the lock of its state.
struct Machine {
  explicit Machine(EmulatedCuda& emulated);
  ~Machine();
  Machine(const Machine&) = delete;

  EmulatedCuda& gpu;
  EmulatorState& state;
  const EmulatorSettings& settings;
  bool is_initialized = false;
  std::deque<Context> contexts;
  std::map<CUstream, unsigned> streams;  ///< with their flags
  std::map<int, CUstream> legacy;        ///< by GPU
  std::map<CUevent, EventInfo> events;
  std::map<int, Capture> captures;  ///< by number, until they end
  std::set<CUgraph> graphs;
  std::set<CUgraphExec> executables;
  std::map<CUmodule, std::pair<int, CudaKernel>> modules;  ///< with GPU
  int64_t launches = 0;

  /// The machine that calls go to: of the emulator that was made last.
  static Machine* current();
  /// What the next launch of this thread has; null: nobody told it.
  static const LaunchContents*& launched();
};

/// What every call begins with: `result` is an error without cuInit(), a current context or after a
/// fault of the context.
struct Entered {
  explicit Entered(bool needs_context = true);
  Machine* m = nullptr;
  Context* context = nullptr;
  CUresult result = CUDA_SUCCESS;
};

/// The calling thread's context; null if there is none, or it is of another machine.
Context* current_context(Machine& m);
/// Calls that might wait for the GPU or change its memory: fails in a capture of this thread, or of
/// any thread in global mode, and invalidates it.
CUresult check_unsafe(Machine& m);
/// The stream of a handle; null if it is none.
EmulatorState::Stream* find_stream(Machine& m, CUstream stream);
/// An error if the stream's capture was invalidated, or if the legacy stream is used beside a
/// capture of a blocking stream.
CUresult check_capture(Machine& m, CUstream given, const EmulatorState::Stream& stream);
/// Streams leave the capture; what was captured is dropped.
void drop_capture(Machine& m, int number);
/// Runs `call`; a fault of the GPU is its code.
CUresult guarded(const std::function<void()>& call);

/// What the GPU finds when it runs a kernel that touches memory which is not its own.
struct IllegalAddress {};

}  // namespace tessera::test::rules
