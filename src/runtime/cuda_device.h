// The GPU device: what cuda_api.h offers, behind the Device interface. Knows no CUDA header.
//
// Kernels are generated (kernels/cuda/generate.h), matrix products are the library's; a step that
// neither can do runs on the host, on copies of its operands, and says so in why_not_captured().
#pragma once

#include <exception>
#include <map>
#include <optional>
#include <set>

#include "kernels/cuda/fault.h"
#include "kernels/cuda/generate.h"
#include "kernels/cuda/product.h"
#include "runtime/cuda_api.h"
#include "runtime/cuda_staging.h"
#include "runtime/device.h"

namespace tessera {

/// Why a step or collective of this device cannot be captured, and why it waits for the card; empty
/// if it can, and does not.
class Enqueued {
 public:
  virtual ~Enqueued() = default;
  virtual std::string why_not_captured() const { return {}; }
  virtual std::string why_waits() const { return {}; }
};

/// What the host program lends: see tessera/interop/cuda.h.
struct CudaLoan {
  bool has_stream = false;  ///< `stream` is the host program's, which may be null
  CudaStream stream = nullptr;
  int64_t memory_limit = 0;
  std::function<void*(int64_t bytes)> allocate = {};
  std::function<void(void* memory, int64_t bytes)> release = {};
};

struct CudaDeviceOptions {
  /// Collectives go through NCCL where there is one; it wants a card for each rank.
  bool use_groups = false;
  bool tf32 = false;  ///< products of float32 may round their operands
  CudaLoan loan = {};
};

/// The calling thread uses a card as long as this lives.
class UseCard {
 public:
  UseCard(CudaApi& api, int card) : api_(api), before_(api.use(card)) {}
  ~UseCard() {
    try {
      api_.restore(before_);
    } catch (const std::exception&) {  // a card that failed: the next call for it says so
    }
  }
  UseCard(const UseCard&) = delete;

 private:
  CudaApi& api_;
  void* before_;
};

/// A way to compute a product: one of the library's, perhaps with a kernel of our own behind it.
struct CudaWay {
  CudaProduct product = nullptr;
  bool has_rest = false;
};

class CudaDevice final : public Device {
 public:
  /// Throws a usage error for a stream of the host program's that the card cannot work with.
  CudaDevice(CudaApi& api, int card, Communicator& world, CudaDeviceOptions options);
  ~CudaDevice() override;

  std::string name() const override;
  std::vector<std::string> fallbacks() const override;
  void* allocate(int64_t bytes, const char* what) override;
  void expect(const std::vector<std::pair<const char*, int64_t>>& all) override;
  void* allocate_on_host(int64_t bytes) override;
  std::unique_ptr<Kernel> bind(const KernelArgs& args) override;
  std::unique_ptr<Operation> prepare(Communicator& group,
                                     const std::vector<Collective>& collectives) override;
  void read(void* host, const void* device, int64_t bytes) override;
  void write(void* device, const void* host, int64_t bytes) override;
  void enter() override;
  void leave() noexcept override;
  void drain(bool failed) noexcept override;
  void begin(const int64_t* scalars, size_t count) override;
  int64_t settle(DataFault& fault) override;
  bool may_fault() const override { return may_fault_; }
  int mark(bool transfers) override;
  std::vector<double> marks() override;
  std::function<void()> capture(const std::function<void()>& work) override;
  std::string why_not_captured(const Kernel& kernel) const override;
  std::string why_not_captured(const Operation& operation) const override;
  std::string why_waits(const Kernel& kernel) const override;
  std::string why_waits(const Operation& operation) const override;
  bool shows_ranges() override { return api_.has_profiler(); }
  void push_range(const char* text) override { api_.push_range(text); }
  void pop_range() override { api_.pop_range(); }

  // For the kernels and collectives of this device.
  CudaApi& api() const { return api_; }
  int card() const { return card_; }
  CudaStream compute() const { return compute_; }
  CudaStream transfers() const { return transfers_; }
  /// A generated kernel with its arguments in place.
  CudaLaunch make_launch(const cuda::Source& source, const KernelArgs& args);
  /// A dense or strided copy on the card.
  /// If a format is given: of its numbers into bytes.
  CudaLaunch make_copy(const TensorArg& from, const TensorArg& to,
                       std::optional<Float8> format = {});
  /// Of a collective of groups: a launch after it that tells the host that it has ended.
  CudaLaunch make_report(const CallSite& site);
  /// An event that lives as long as the device.
  CudaEvent make_event();
  void* pinned(int64_t bytes);
  /// The NCCL group of the ranks of `group`, joined at the first call: collective. Null where there
  /// is none, and why in `why`.
  CudaGroup card_group(Communicator& group, std::string& why);
  /// Waits for a lane. Where other ranks take part in what is enqueued, no longer than the ranks'
  /// time-out: a peer that died leaves a group's call without an end.
  void finish(CudaStream stream);
  /// Ends all groups without waiting for peers, and nothing is replayed any more: NCCL waits in an
  /// abort for the end of the graphs that hold calls of the group. Once.
  void abort_groups() noexcept;
  /// Of products and convolutions, for the compute lane.
  void* product_workspace();

 private:
  std::unique_ptr<Kernel> bind_product(const KernelArgs& args);
  void fall_back(const Step& step, const std::string& why);
  /// Which of the ways, all of which compute what `gemm` says in so many calls, is taken, by an
  /// algorithm that is set: the fastest by a measurement, which overwrites the results of `args`,
  /// or by one that was made before (runtime/cuda_choices.h). What the first rank takes is taken by
  /// all with such a card. Collective over the ranks, once for every problem, also without a way.
  size_t choose_way(const CudaGemm& gemm, size_t calls, const std::vector<CudaWay>& ways,
                    const std::vector<Kernel*>& kernels, const KernelArgs& args);
  std::string measure(const std::vector<CudaWay>& ways, const std::vector<Kernel*>& kernels);
  std::string agreed(const std::string& problem, const std::string& library,
                     const std::function<std::string()>& choose);
  bool may_overwrite(const KernelArgs& args) const;
  /// Null where the library has no such step, or is not there: `why` says which.
  std::unique_ptr<Kernel> bind_convolution(const KernelArgs& args, std::string& why);
  std::unique_ptr<Kernel> bind_attention(const KernelArgs& args, std::string& why);
  /// Null where the library has no such product.
  CudaProduct prepare_product(const CudaGemm& gemm);
  void send_scalars(const int64_t* scalars, size_t count);
  /// The compute lane comes behind what the host program's stream has; and that stream behind it.
  void follow_loan();
  void lead_loan();
  std::string rows(const std::vector<std::pair<const char*, int64_t>>& more) const;
  void require_room(const std::vector<std::pair<const char*, int64_t>>& more) const;
  void release_memory();
  void release_graphs();
  void end() noexcept;
  bool reaches_peers(Communicator& group);
  void await(CudaEvent event);
  [[noreturn]] void give_up(const std::string& why);

  CudaApi& api_;
  int card_;
  Communicator& world_;
  CudaDeviceOptions options_;
  CudaStream compute_ = nullptr, transfers_ = nullptr;
  struct Memory {
    const char* what;
    void* first;
    int64_t bytes;
  };
  std::vector<Memory> memory_;
  std::vector<void*> pinned_;
  CudaEvent lent_ = nullptr, led_ = nullptr;
  std::vector<CudaEvent> events_;
  std::vector<CudaProduct> products_;
  std::vector<CudaConvolution> convolutions_;
  std::vector<CudaAttention> attentions_;
  std::set<std::string> fallbacks_;            ///< steps, and why
  bool measured_ = false;                      ///< an algorithm was asked for
  std::map<std::string, std::string> agreed_;  ///< choices by problem
  std::vector<CudaGraph> graphs_;
  std::map<Communicator*, CudaGroup> groups_;
  std::map<Communicator*, bool> reached_;  ///< groups whose ranks may read each other's memory
  std::unique_ptr<CudaStaging> staging_;
  void* product_workspace_ = nullptr;
  void* before_ = nullptr;   ///< of the thread that entered
  void* scalars_ = nullptr;  ///< of the run, on the card
  std::vector<int64_t> sent_scalars_;
  device::Fault* fault_ = nullptr;  ///< on the card
  bool may_fault_ = false;
  CudaEvent finished_ = nullptr;
  int64_t* ended_ = nullptr;         ///< pinned: the number of the report that came last
  std::vector<std::string> places_;  ///< of reports, by number
  std::vector<CudaEvent> timers_;    ///< the first one is passed when `epoch_` is
  size_t marks_ = 0;
  double epoch_ = 0;
  int64_t bound_ = 0;
};

/// The step's operands on the host, its kernel of the CPU, and back.
std::unique_ptr<Kernel> bind_on_host(CudaDevice& device, const KernelArgs& args);

/// Bytes that a view touches.
CudaRange range_of(const TensorArg& arg);

}  // namespace tessera
