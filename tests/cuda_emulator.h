// A card made of the host: the recording device of the tests.
//
// It runs what it is given at once, in the order of the calls, with kernels compiled by the host's
// compiler from the text that NVRTC gets; and it checks that a real card, which keeps only the
// order within streams and by events, would have to come to the same result. Each stream has a
// vector clock; a piece of work that touches memory which another piece writes, without being
// ordered after it, is an error with both names. So is waiting for an event that nobody recorded, a
// call from a thread that has not chosen the card, a copy from memory that was not pinned, pinned
// memory that changes before its copy has ended, a kernel that reads a card that its own does not
// reach, and what CUDA forbids during a capture. What is wrong where nothing can be thrown is told
// by take_misuses().
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda_api.h"

namespace tessera::test {

class CudaEmulator final : public CudaApi {
 public:
  explicit CudaEmulator(int cards = 1, int64_t memory = int64_t{1} << 30);
  ~CudaEmulator() override;

  /// What was done since the last call, one line each: "launch k3 on s1", "record e2 on s1".
  std::vector<std::string> take_log();
  std::vector<std::string> take_misuses();
  bool logging = false;
  std::atomic<int64_t> launches{0}, graph_launches{0}, captures{0}, products{0};
  bool has_convolutions = false;
  std::atomic<int64_t> convolutions{0};
  bool has_attentions = false;
  std::atomic<int64_t> attentions{0};
  int64_t attention_bytes = 4096;              ///< of workspace that an attention needs
  std::atomic<int64_t> tf32_products{0};       ///< prepared
  std::atomic<int64_t> float8_products{0};     ///< prepared
  std::atomic<int64_t> epilogues{0}, sums{0};  ///< prepared: with a bias or gelu; with an addend
  /// The distinct kernels loaded so far.
  std::vector<std::string> texts() const;
  bool has_products = true;  ///< false: prepare() has none
  /// What a product takes by each of the library's algorithms, the first of its heuristic first (if
  /// there is one only, the library tells none);
  /// those of products with an epilogue take `epilogue_seconds` longer.
  std::vector<double> algorithm_seconds = {0};
  double epilogue_seconds = 0;
  std::string library = "emulated 1";
  std::vector<std::string> used;           ///< algorithms that products were told to use
  bool has_float8 = true;                  ///< false: none in 8 bits
  bool has_epilogues = true;               ///< false: none that does more than add
  int64_t host_memory = int64_t{1} << 40;  ///< bytes that one allocate_host() may ask for
  /// Given to every card: the compute capability.
  int major = 9;

  std::vector<CudaCard> cards() override;
  void* use(int card) override;
  void restore(void* context) override;
  bool reaches(int card, int other) override { return card == other || has_access; }
  bool has_access = true;  ///< between cards
  int64_t free_memory() override;
  void* allocate(int64_t bytes) override;
  void release(void* memory) override;
  int card_of(const void* memory) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* memory) override;
  CudaStream make_stream() override;
  void release(CudaStream stream) override;
  void synchronize(CudaStream stream) override;
  std::string why_not_adopted(CudaStream stream) override;
  bool is_capturing(CudaStream stream) override;
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
  std::string product_library() override;
  std::vector<std::string> algorithms(CudaProduct product, int most) override;
  bool use_algorithm(CudaProduct product, const std::string& algorithm) override;
  int64_t product_workspace() override { return 4096; }
  void run(CudaProduct product, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream) override;
  void release(CudaProduct product) override;
  std::string why_no_convolutions() override;
  CudaConvolution prepare(const CudaConv& conv) override;
  void run(CudaConvolution convolution, const void* first, const void* second, void* result,
           void* workspace, CudaStream stream) override;
  void release(CudaConvolution convolution) override;
  std::string why_no_attentions() override;
  CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) override;
  void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
           CudaStream stream) override;
  void release(CudaAttention attention) override;
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void release(CudaGraph graph) override;
  bool has_profiler() override { return profiled; }
  void push_range(const char* text) override;
  void pop_range() override;
  bool profiled = false;                           ///< ranges are shown
  std::vector<std::pair<int, std::string>> shown;  ///< with how many others they lie in
  std::atomic<int64_t> open_ranges{0};
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
  std::string trouble(CudaGroup group) override;
  void abort(CudaGroup group) noexcept override;
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
    CudaGroup group = nullptr;  ///< of a collective
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

  /// Memory of the host that a card may still read.
  struct Pending {
    const char* host;
    std::string content;
    int stream;
    int64_t at;
  };
  struct Block {
    int64_t bytes;
    int card;
  };

  void submit(CudaStream stream, Work work);
  void learn(const Clock& clock);
  static bool is_known(const Clock& clock);  ///< to this thread, as done
  void misuse(const std::string& what);
  void call(CudaGroup group, const void* in, int64_t in_count, void* out, int64_t out_count,
            DType dtype, int kind, Combiner combiner, CudaStream stream);
  void order(Stream& stream, const Work& work);
  void check_place(const Stream& stream) const;
  void forbid_capture(const char* call) const;
  void check_memory(const Work& work, const CudaRange& range, int card) const;
  const Stream& numbered(int stream) const;
  void note(const std::string& line);

  mutable std::recursive_mutex mutex_;
  int cards_;
  int64_t memory_, used_ = 0;
  std::map<char*, Block> blocks_;
  std::map<char*, int64_t> pinned_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::map<std::string, Kernel*> by_text_;
  std::vector<Access> accesses_;
  std::map<int, Graph> capturing_;
  std::set<Graph*> graphs_;  ///< not released yet
  int captured_ = 0;
  int64_t clock_ = 0;
  double slept_ = 0;  ///< what products took, by algorithm_seconds
  std::vector<std::string> log_, misuses_;
  std::vector<Pending> pending_;
  std::set<CudaGroup> aborted_;
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
