#include "runtime/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/fail.h"
#include "runtime/cuda_choices.h"

namespace tessera {

namespace {

constexpr size_t kMostScalars = 256;

/// Kernels, one after the other, after clearing what they only add to.
class Launches final : public Kernel, public Enqueued {
 public:
  explicit Launches(CudaDevice& device) : device_(device) {}
  void run() override {
    if (clear_.bytes > 0)
      device_.api().clear(const_cast<void*>(clear_.first), clear_.bytes, device_.compute());
    for (const CudaLaunch& launch : launches_) device_.api().launch(launch, device_.compute());
  }
  void add(CudaLaunch launch) {
    if (launch.blocks > 0) launches_.push_back(std::move(launch));
  }
  void clear(CudaRange range) { clear_ = range; }

 private:
  CudaDevice& device_;
  CudaRange clear_;
  std::vector<CudaLaunch> launches_;
};

}  // namespace

CudaRange range_of(const TensorArg& t) {
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] == 0) return {t.data, 0};
    (t.strides[d] < 0 ? low : high) += (t.sizes[d] - 1) * t.strides[d];
  }
  const int64_t item = size_of(t.dtype);
  return {static_cast<const char*>(t.data) + low * item, (high - low + 1) * item};
}

CudaDevice::CudaDevice(CudaApi& api, int card, Communicator& world, CudaDeviceOptions options)
    : api_(api),
      card_(card),
      world_(world),
      options_(std::move(options)),
      staging_(std::make_unique<CudaStaging>(api, [this](CudaEvent event) { await(event); })) {
  const UseCard here(api_, card_);
  if (options_.loan.has_stream) {
    const std::string why = api_.why_not_adopted(options_.loan.stream);
    require(why.empty(),
            "[adopt_cuda] rank {} cannot work with its stream on {}: {}; make one with "
            "cudaStreamCreate after cudaSetDevice({}), or give none for the default stream",
            world_.rank(), name(), why, card_);
    lent_ = make_event();
    led_ = make_event();
  }
  compute_ = api_.make_stream();
  transfers_ = api_.make_stream();
  try {
    scalars_ = allocate(static_cast<int64_t>(kMostScalars * sizeof(int64_t)), "scalars");
    fault_ = static_cast<device::Fault*>(allocate(sizeof(device::Fault), "faults"));
  } catch (...) {
    end();
    throw;
  }
}

CudaDevice::~CudaDevice() { end(); }

void CudaDevice::end() noexcept {
  try {
    const UseCard here(api_, card_);
    abort_groups();
    if (options_.loan.release) finish(compute_);  // which need not wait for the card
    staging_.reset();
    release_graphs();
    for (CudaProduct product : products_) api_.release(product);
    for (CudaConvolution convolution : convolutions_) api_.release(convolution);
    for (CudaAttention attention : attentions_) api_.release(attention);
    for (CudaEvent event : events_) api_.release(event);
    for (CudaEvent timer : timers_) api_.release(timer);
    for (void* memory : pinned_) api_.release_host(memory);
    api_.release(compute_);
    api_.release(transfers_);
    release_memory();
  } catch (const std::exception&) {  // a card that failed: nothing of it can be saved
  }
}

std::string CudaDevice::name() const { return fmt::format("cuda:{}", card_); }

void* CudaDevice::pinned(int64_t bytes) {
  pinned_.push_back(api_.allocate_host(std::max<int64_t>(bytes, 1)));
  return pinned_.back();
}

/// Kernels work on pinned memory at its address in the host: what they read of it and write to it
/// crosses the bus once.
void* CudaDevice::allocate_on_host(int64_t bytes) {
  const UseCard here(api_, card_);
  try {
    return std::memset(pinned(bytes), 0, static_cast<size_t>(bytes));
  } catch (const Error& e) {
    tessera::fail(ErrorKind::device,
                  "rank {} needs {:.2f} GiB of the host's memory for optimizer state, which the "
                  "host does not give to {}: {}; leave the state on the card (train.offload=none), "
                  "or split it over more ranks with --zero 1",
                  world_.rank(), static_cast<double>(bytes) / (1 << 30), name(), e.what());
  }
}

CudaEvent CudaDevice::make_event() {
  events_.push_back(api_.make_event());
  return events_.back();
}

void* CudaDevice::product_workspace() {
  if (product_workspace_ == nullptr)
    product_workspace_ = allocate(api_.product_workspace(), "workspace of products");
  return product_workspace_;
}

CudaLaunch CudaDevice::make_launch(const cuda::Source& source, const KernelArgs& args) {
  CudaLaunch launch;
  if (source.blocks == 0) return launch;
  check(source.blocks < (int64_t{1} << 31), "a kernel of {} blocks", source.blocks);
  launch.kernel = api_.load(source.text);
  launch.blocks = source.blocks;
  launch.threads = source.threads;
  for (const cuda::Word& word : source.words) {
    const auto at = static_cast<size_t>(word.index);
    const void* address = nullptr;
    switch (word.kind) {
      case cuda::Word::Kind::out:
        address = args.out.at(at).data;
        launch.writes.push_back(range_of(args.out[at]));
        break;
      case cuda::Word::Kind::in:
        address = args.in.at(at).data;
        launch.reads.push_back(range_of(args.in[at]));
        break;
      case cuda::Word::Kind::scalars:
        address = scalars_;
        launch.reads.push_back({scalars_, static_cast<int64_t>(kMostScalars * sizeof(int64_t))});
        break;
      case cuda::Word::Kind::fault:
        address = fault_;
        may_fault_ = true;
        break;
      case cuda::Word::Kind::workspace:
        check(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
        address = args.workspace;
        launch.writes.push_back({args.workspace, word.number});
        break;
      case cuda::Word::Kind::number:
        break;
    }
    launch.words.push_back(word.kind == cuda::Word::Kind::number
                               ? static_cast<uint64_t>(word.number)
                               : reinterpret_cast<uint64_t>(address));
  }
  return launch;
}

CudaLaunch CudaDevice::make_copy(const TensorArg& from, const TensorArg& to,
                                 std::optional<Float8> format) {
  Step step;
  step.kernel = "copy";
  KernelArgs args;
  args.step = &step;
  args.in = {from};
  args.out = {to};
  return make_launch(format ? cuda::generate_float8(args, *format) : cuda::generate_pointwise(args),
                     args);
}

std::unique_ptr<Kernel> CudaDevice::bind(const KernelArgs& args) {
  const UseCard here(api_, card_);
  const std::string& kernel = args.step->kernel;
  const int64_t number = bound_++;
  auto launches = std::make_unique<Launches>(*this);
  if (kernel == "conv") {
    std::string why;
    if (std::unique_ptr<Kernel> convolution = bind_convolution(args, why)) return convolution;
    fall_back(*args.step, "runs by Tessera's own kernel: " + why);
  }
  if (kernel.starts_with("attention") && is_narrow(args.in.at(0).dtype)) {
    std::string why;
    if (std::unique_ptr<Kernel> attention = bind_attention(args, why)) return attention;
    fall_back(*args.step, "runs by Tessera's own kernel: " + why);
  }
  if (const cuda::Generate generate = cuda::find_generator(kernel)) {
    launches->add(make_launch(generate(args), args));
  } else if (kernel == "reduce") {
    for (const cuda::Source& source : cuda::generate_reduce(args))
      launches->add(make_launch(source, args));
  } else if (kernel == "gather") {
    launches->add(make_launch(cuda::generate_gather(args, number), args));
  } else if (kernel == "scatter_add") {
    const TensorArg& out = args.out.at(0);
    const int64_t elements =
        std::accumulate(out.sizes.begin(), out.sizes.end(), int64_t{1}, std::multiplies<int64_t>());
    launches->clear({out.data, elements * size_of(out.dtype)});
    launches->add(make_launch(cuda::generate_scatter_add(args, number), args));
  } else if (kernel == "contract") {
    return bind_product(args);
  } else if ((kernel == "attention" || kernel == "attention_part") &&
             cuda::can_attend(*args.step)) {
    launches->add(make_launch(cuda::generate_attention(args), args));
  } else if (kernel == "attention_grad" && cuda::can_attend(*args.step)) {
    for (const cuda::Source& source : cuda::generate_attention_grad(args))
      launches->add(make_launch(source, args));
  } else {
    fall_back(*args.step, "runs on the host: a card has no kernel for it");
    return bind_on_host(*this, args);
  }
  return launches;
}

void CudaDevice::fall_back(const Step& step, const std::string& why) {
  fallbacks_.insert(
      fmt::format("[{}] {} ({}) {}", step.kernel, step.origin.name, step.origin.source, why));
}

std::vector<std::string> CudaDevice::fallbacks() const {
  std::vector<std::string> all(fallbacks_.begin(), fallbacks_.end());
  const std::string why = measured_ ? cuda_choices().why_not_kept() : "";
  if (!why.empty())
    all.push_back("algorithms of products are measured again in every process: " + why);
  return all;
}

/// The numbers are the arguments of a kernel that stores them: no memory of the host has to stay as
/// it is until the card comes to it.
void CudaDevice::send_scalars(const int64_t* scalars, size_t count) {
  std::string fields, body;
  CudaLaunch launch;
  launch.words.push_back(reinterpret_cast<uint64_t>(scalars_));
  for (size_t i = 0; i < count; ++i) {
    fields += fmt::format("  long long s{};\n", i);
    body += fmt::format("  a.to[{}] = a.s{};\n", i, i);
    launch.words.push_back(static_cast<uint64_t>(scalars[i]));
  }
  launch.kernel = api_.load(
      fmt::format("struct Args {{\n  long long* to;\n{}}};\nextern \"C\" __global__ void {}(Args "
                  "a) {{\n{}}}\n",
                  fields, cuda::kName, body));
  launch.blocks = launch.threads = 1;
  launch.writes = {{scalars_, static_cast<int64_t>(count * sizeof(int64_t))}};
  api_.launch(launch, compute_);
}

void CudaDevice::begin(const int64_t* scalars, size_t count) {
  check(count <= kMostScalars, "{} run-time scalars; at most {} are supported", count,
        kMostScalars);
  if (sent_scalars_.size() == count && std::equal(scalars, scalars + count, sent_scalars_.begin()))
    return;
  sent_scalars_.assign(scalars, scalars + count);
  send_scalars(scalars, count);
}

std::string CudaDevice::why_not_captured(const Kernel& kernel) const {
  return dynamic_cast<const Enqueued&>(kernel).why_not_captured();
}
std::string CudaDevice::why_not_captured(const Operation& operation) const {
  return dynamic_cast<const Enqueued&>(operation).why_not_captured();
}

std::string CudaDevice::why_waits(const Kernel& kernel) const {
  return dynamic_cast<const Enqueued&>(kernel).why_waits();
}
std::string CudaDevice::why_waits(const Operation& operation) const {
  return dynamic_cast<const Enqueued&>(operation).why_waits();
}

CudaGroup CudaDevice::card_group(Communicator& group, std::string& why) {
  why = options_.use_groups ? api_.why_no_groups() : "ranks share a card";
  if (!why.empty()) return nullptr;
  const auto known = groups_.find(&group);
  if (known != groups_.end()) return known->second;
  std::string id = group.rank() == 0 ? api_.group_id() : "";
  id.resize(128);
  Collective send;
  send.kind = CollectiveKind::broadcast;
  send.dtype = DType::uint8;
  send.out = id.data();
  send.count = 128;
  send.site.text = "joining a group of cards";
  group.run(send);
  return groups_[&group] = api_.join(id, group.rank(), group.size(), group.timeout());
}

}  // namespace tessera
