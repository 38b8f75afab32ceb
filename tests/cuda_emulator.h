// A card made of the host: the recording device of the tests.
//
// It runs what it is given at once, in the order of the calls, with kernels compiled by the host's
// compiler from the text that NVRTC gets; and it checks that a real card, which keeps only the
// order within streams and by events, would have to come to the same result. Each stream has a
// vector clock; a piece of work that touches memory which another piece writes, without being
// ordered after it, is an error with both names. So is waiting for an event that nobody recorded, a
// call from a thread that has not chosen the card, and what CUDA forbids during a capture.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/cuda_api.h"

namespace tessera::test {

class CudaEmulator final : public CudaApi {
 public:
  explicit CudaEmulator(int cards = 1, int64_t memory = int64_t{1} << 30);
  ~CudaEmulator() override;

  /// What was done since the last call, one line each: "launch k3 on s1", "record e2 on s1".
  std::vector<std::string> take_log();
  bool logging = false;
  std::atomic<int64_t> launches{0}, graph_launches{0}, captures{0}, products{0};
  /// The distinct kernels loaded so far.
  std::vector<std::string> texts() const;
  bool has_products = true;                ///< false: prepare() has none
  int64_t host_memory = int64_t{1} << 40;  ///< bytes that one allocate_host() may ask for
  /// Given to every card: the compute capability.
  int major = 9;

  std::vector<CudaCard> cards() override;
  void use(int card) override;
  int64_t free_memory() override;
  void* allocate(int64_t bytes) override;
  void release(void* memory) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* memory) override;
  CudaStream make_stream() override;
  void release(CudaStream stream) override;
  void synchronize(CudaStream stream) override;
  CudaEvent make_event() override;
  void release(CudaEvent event) override;
  void record(CudaEvent event, CudaStream stream) override;
  bool passed(CudaEvent event) override;
  CudaEvent make_timer() override { return make_event(); }
  double seconds_between(CudaEvent first, CudaEvent second) override;
  void wait(CudaStream stream, CudaEvent event) override;
  void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) override;
  void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) override;
  void clear(void* memory, int64_t bytes, CudaStream stream) override;
  CudaKernel load(const std::string& text) override;
  void launch(const CudaLaunch& launch, CudaStream stream) override;
  CudaProduct prepare(const CudaGemm& gemm) override;
  void run(CudaProduct product, const void* a, const void* b, void* c, CudaStream stream) override;
  void release(CudaProduct product) override;
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void release(CudaGraph graph) override;
  std::string why_no_groups() override { return has_groups ? "" : "the emulator has none"; }
  std::string group_id() override;
  CudaGroup join(const std::string& id, int rank, int size, double seconds) override;
  void begin_calls() override;
  void end_calls() override;
  void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  Combiner combiner, CudaStream stream) override;
  void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream) override;
  void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) override;
  std::string trouble(CudaGroup) override { return trouble_; }
  void abort(CudaGroup) noexcept override { ++aborts; }
  /// Groups: calls wait for the others on the host, which NCCL's do not.
  bool has_groups = false;
  std::atomic<int64_t> group_calls{0}, aborts{0};
  std::atomic<bool> stuck{false};  ///< nothing comes to pass any more
  std::string trouble_;            ///< what trouble() says

 private:
  using Clock = std::map<int, int64_t>;  ///< stream -> number of its work
  struct Stream {
    int number = 0, card = 0;
    Clock clock;
    int capture = 0;  ///< the number of the capture it is part of, or 0
  };
  struct Event {
    int number = 0;
    bool recorded = false;
    Clock clock;
    int capture = 0;
    double seconds = 0;  ///< by the host's clock, when it was recorded
  };
  struct Work {
    std::string name;
    std::vector<CudaRange> reads, writes;
    std::function<void()> run;
  };
  struct Graph {
    std::vector<Work> work;
  };
  struct Kernel;
  struct Group;
  struct Member;
  struct Access {
    const char *first, *last;
    bool writes;
    int stream;
    int64_t at;
    std::string name;
  };

  void submit(CudaStream stream, Work work);
  void call(CudaGroup group, const void* in, int64_t in_count, void* out, int64_t out_count,
            DType dtype, int kind, Combiner combiner, CudaStream stream);
  void order(Stream& stream, const Work& work);
  void check_place(const Stream& stream) const;
  void forbid_capture(const char* call) const;
  bool is_device(const void* memory, int64_t bytes) const;
  void note(const std::string& line);

  mutable std::recursive_mutex mutex_;
  int cards_;
  int64_t memory_, used_ = 0;
  std::map<char*, int64_t> blocks_;
  std::map<char*, int64_t> pinned_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::map<std::string, Kernel*> by_text_;
  std::vector<Access> accesses_;
  std::map<int, Graph> capturing_;
  int captured_ = 0;
  int64_t clock_ = 0;
  std::vector<std::string> log_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<Member>> members_;
};

/// The emulator as cuda_api() of this process, while it lives.
class WithEmulator {
 public:
  explicit WithEmulator(CudaEmulator& emulator) { replace_cuda_api(&emulator); }
  ~WithEmulator() { replace_cuda_api(nullptr); }
};

}  // namespace tessera::test
