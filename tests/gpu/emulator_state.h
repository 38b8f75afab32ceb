// What the parts of the emulated GPU share: the order that streams and events keep, and what of the
// memory each piece of work touches.
//
// Each stream has a vector clock; a piece of work that touches memory which another piece writes,
// without being ordered after it, is an error with both names. Work waits in its stream until some
// thread waits for the GPU: it runs as late as a GPU may run it.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device/cuda_api.h"
#include "gpu/host_kernels.h"

namespace tessera::test {

enum class CaptureFault : uint8_t { none, begin, work, instantiate };

/// TESSERA_TEST_DRIVER is "direct".
bool is_direct_by_default();

/// What a test may set.
struct EmulatorSettings {
  bool direct = is_direct_by_default();  ///< without Tessera's code for CUDA's libraries
  bool logging = false;
  KernelsAs kernels_as = kernels_by_default();
  int major = 9, minor = 0;                ///< every GPU's compute capability
  bool has_access = true;                  ///< between GPUs
  int64_t host_memory = int64_t{1} << 40;  ///< bytes that one allocate_host() may ask for
  bool has_matmuls = true;                 ///< false: prepare() has none
  bool has_float8 = true;                  ///< false: none in 8 bits
  bool has_epilogues = true;               ///< false: none that does more than add
  /// What a matmul takes by each of the library's algorithms, the first of its heuristic first (if
  /// there is one only, the library tells none); those with an epilogue take `epilogue_seconds`
  /// longer.
  std::vector<double> algorithm_seconds = {0};
  double epilogue_seconds = 0;
  std::string library = "emulated 1";
  bool has_cudnn = false;
  int64_t attention_bytes = 4096;  ///< of workspace that an attention needs
  bool profiled = false;           ///< ranges are shown
  bool has_groups = false;
  std::atomic<bool> stuck{false};  ///< the GPU passes nothing any more
  std::string trouble;             ///< what trouble() says

  // The rest is of the stand-ins of CUDA's libraries (gpu/rules).
  int driver_version = 13000, toolkit = 13000;                  ///< CUDA 13.0
  std::vector<int> architectures = {80, 86, 89, 90, 100, 120};  ///< that the compiler knows
  int64_t taken = 0;  ///< bytes of the GPU's memory that other processes have
  int64_t largest_allocation = int64_t{1} << 40;
  int64_t illegal_launch =
      0;  ///< the number of the launch that touches an illegal address; 0: none
  CaptureFault fails_capture = CaptureFault::none;
  int fails_on = -1;  ///< the GPU whose captures fail; -1: all
  int nccl_version = 22809;
  int cudnn_version = 91900;
  bool never_joins = false;       ///< a group of NCCL
  std::set<std::string> missing;  ///< "libnccl.so.2", or a function that a library lacks
};

/// What was done.
struct EmulatorCounts {
  std::atomic<int64_t> launches{0}, graph_launches{0}, captures{0}, matmuls{0};
  std::atomic<int64_t> convolutions{0}, attentions{0}, group_calls{0}, aborts{0};
  std::atomic<int64_t> replayed_calls{0};  ///< of groups, by graphs
  /// Matmuls prepared: of tf32, in 8 bits, with a bias or gelu, with an addend.
  std::atomic<int64_t> tf32_matmuls{0}, float8_matmuls{0}, epilogues{0}, sums{0};
  std::vector<std::string> used;                   ///< algorithms that matmuls were told to use
  std::vector<std::pair<int, std::string>> shown;  ///< ranges, with how many others they lie in
  std::atomic<int64_t> open_ranges{0};
};

struct EmulatorState {
  using Clock = std::map<int, int64_t>;  ///< stream -> number of its work
  /// What a stream holds until it has run.
  struct Entry {
    std::function<bool()> is_ready;  ///< called with the lock held; empty: always
    std::function<void()> run;       ///< empty: nothing
  };
  struct Stream {
    int number = 0, gpu = 0;
    Clock clock;
    int capture = 0;  ///< the number of the capture it is part of, or 0
    std::deque<Entry> queue;
    int64_t enqueued = 0, done = 0;  ///< entries
    bool is_urgent = false;
  };
  struct Event {
    int number = 0;
    bool recorded = false;
    Clock clock;
    int capture = 0;
    Stream* stream = nullptr;  ///< it has come to pass when this stream is done with
    int64_t at = 0;            ///< so many entries
    double seconds = 0;        ///< by the host's clock, when the stream came to it
  };
  struct Work {
    std::string name;
    std::vector<CudaRange> reads, writes;
    std::function<void()> run;
    CudaGroup group = nullptr;  ///< of a collective
    /// Called when it is enqueued: says what it waits for besides its stream. Empty: nothing.
    std::function<std::function<bool()>()> waits_for = {};
  };
  struct Graph {
    std::vector<Work> work;
  };
  struct Access {
    const char *first, *last;
    bool writes;
    int stream;
    int64_t at;
    std::string name;
  };
  /// Memory of the host that a GPU may still read.
  struct Pending {
    const char* host;
    std::string content;
    int stream;
    int64_t at;
  };
  struct Block {
    int64_t bytes;
    int gpu;
  };

  EmulatorState(int gpus, int64_t memory, const EmulatorSettings& settings, EmulatorCounts& counts);
  ~EmulatorState();
  EmulatorState(const EmulatorState&) = delete;

  /// The GPU that the calling thread uses, or -1.
  static int& used_gpu();
  /// This thread knows that work number `at` of a stream is done; or all that the clock says.
  static bool is_known(int stream, int64_t at);
  static bool is_known(const Clock& clock);
  void learn(const Clock& clock);
  /// The number of the last work that was enqueued on a stream.
  int64_t enqueued_on(const Stream& stream);
  /// Before a copy to the host, enqueued on `stream` behind work number `at`, writes there: earlier
  /// copies from there have ended.
  void overwrite(const void* host, int64_t bytes, int stream, int64_t at);
  /// Enqueues the work, or records it, after checking that it is ordered behind what it depends on.
  void submit(CudaStream stream, Work work);
  void enqueue(Stream& stream, Entry entry);
  /// Runs what can run now, of all streams. The caller must not hold the lock.
  void progress();
  /// progress() until the stream is done with so many entries. Throws if it never is, or what
  /// failed on its GPU. The caller must not hold the lock.
  void finish(Stream& stream, int64_t entries);
  /// The same for all that the GPU has. What can never run is dropped.
  void drain(int gpu);
  void check_place(const Stream& stream) const;
  /// In seconds. Where matmuls take what the settings say, nothing else takes time.
  double now() const;
  bool is_pinned(const void* host, int64_t bytes) const;
  void forbid_capture(const char* call) const;
  const Stream& numbered(int stream) const;
  /// Of what is wrong where nothing can be thrown.
  void misuse(const std::string& what) { misuses.push_back(what); }
  void note(const std::string& line);

  const int gpus;
  const int64_t memory;
  const EmulatorSettings& settings;
  EmulatorCounts& counts;
  mutable std::recursive_mutex mutex;
  std::map<char*, Block> blocks;
  std::map<char*, int64_t> pinned;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Access> accesses;
  std::vector<Pending> pending;
  std::map<int, Graph> capturing;
  std::set<Graph*> graphs;  ///< not released yet
  double slept = 0;         ///< what matmuls took, by algorithm_seconds
  std::vector<std::string> log, misuses;
  std::map<int, std::exception_ptr> broken;  ///< by GPU: what failed there

 private:
  static void check_unchanged(const Pending& copy);
  bool run_next();
  void order(Stream& stream, const Work& work);
  void check_memory(const Work& work, const CudaRange& range, int gpu) const;
  int64_t clock_ = 0;
  std::mutex running_;  ///< held by the thread that runs work; taken before `mutex`
};

}  // namespace tessera::test
