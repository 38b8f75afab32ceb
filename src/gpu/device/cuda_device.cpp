#include "gpu/device/cuda_device.h"

#include <utility>

#include "gpu/device/collectives.h"
#include "gpu/device/enqueued.h"
#include "gpu/device/staging.h"
#include "gpu/device/steps.h"
#include "gpu/device/timers.h"
#include "kernels/common/segments_fault.h"

namespace tessera {

namespace {

std::string message_of(const device::Fault& f) {
  if (f.kind == device::kIndexFault)
    return fmt::format("index {} at position {} (row-major) is outside [0, {})", f.index,
                       f.position, f.size);
  return kernels::segments_go_back(f.kind == device::kQuerySegmentsFault ? "queries" : "keys",
                                   f.size, f.index, f.position);
}

}  // namespace

/// Constructed in this order; later parts use earlier ones. end() releases them.
struct CudaDevice::Parts {
  explicit Parts(const RankGpu& gpu)
      : streams(gpu),
        memory(gpu, streams),
        graphs(gpu, streams),
        groups(gpu, graphs),
        reports(gpu, memory),
        wait(gpu, streams, groups, reports),
        staging(
            std::make_unique<GpuStaging>(gpu.api, [this](CudaEvent event) { wait.await(event); })),
        kernels(gpu, streams, memory),
        timers(gpu, streams, wait),
        steps(gpu, streams, memory, wait, kernels),
        collectives(gpu, streams, memory, kernels, groups, reports, wait) {}

  GpuStreams streams;
  GpuMemory memory;
  GpuGraphs graphs;
  GpuGroups groups;
  CollectiveReports reports;
  GpuWait wait;
  std::unique_ptr<GpuStaging> staging;
  GpuKernels kernels;
  GpuTimers timers;
  GpuSteps steps;
  GpuCollectives collectives;
};

CudaDevice::CudaDevice(CudaApi& api, int gpu, Communicator& world, CudaDeviceOptions options)
    : gpu_{api, gpu, world, std::move(options)} {
  const UseGpu here(gpu_);
  parts_ = std::make_unique<Parts>(gpu_);
  try {
    parts_->kernels.allocate();
  } catch (...) {
    end();
    throw;
  }
}

CudaDevice::~CudaDevice() { end(); }

void CudaDevice::end() noexcept {
  Parts& p = *parts_;
  try {
    const UseGpu here(gpu_);
    p.groups.abort();
    if (gpu_.options.loan.release)  // release() of the loan need not wait for the GPU
      p.wait.finish(p.streams.compute());
    p.staging.reset();
    p.graphs.release();
    p.steps.release();
    p.streams.release_events();
    p.timers.release();
    p.memory.release_pinned();
    p.streams.release_streams();
    p.memory.release();
  } catch (const std::exception&) {  // the GPU failed: nothing can be saved
  }
}

std::vector<std::string> CudaDevice::fallbacks() const {
  std::vector<std::string> all = parts_->steps.fallbacks();
  for (const auto* more : {&parts_->graphs.fallbacks(), &parts_->collectives.fallbacks()})
    all.insert(all.end(), more->begin(), more->end());
  return all;
}

void* CudaDevice::allocate(int64_t bytes, const char* what) {
  return parts_->memory.allocate(bytes, what);
}

void CudaDevice::expect(const std::vector<std::pair<const char*, int64_t>>& all) {
  parts_->memory.require_room(all);
}

void* CudaDevice::allocate_on_host(int64_t bytes) { return parts_->memory.allocate_on_host(bytes); }

std::unique_ptr<Kernel> CudaDevice::bind(const KernelArgs& args) {
  return parts_->steps.bind(args);
}

std::unique_ptr<Operation> CudaDevice::prepare(Communicator& group,
                                               const std::vector<Collective>& collectives) {
  return parts_->collectives.prepare(group, collectives);
}

void CudaDevice::read(void* host, const void* device, int64_t bytes) {
  Parts& p = *parts_;
  const UseGpu here(gpu_);
  p.streams.follow_loan();
  if (p.groups.any()) p.wait.finish(p.streams.compute());
  gpu_.api.memory().to_host(host, device, bytes, p.streams.compute());
  gpu_.api.streams().synchronize(p.streams.compute());
}

void CudaDevice::write(void* device, const void* host, int64_t bytes) {
  Parts& p = *parts_;
  const UseGpu here(gpu_);
  p.streams.follow_loan();
  p.staging->copy(device, host, bytes, p.streams.compute());
  p.streams.lead_loan();
}

void CudaDevice::enter() {
  before_ = gpu_.api.contexts().use(gpu_.number);
  try {
    parts_->streams.follow_loan();
  } catch (...) {
    gpu_.api.contexts().restore(before_);
    throw;
  }
}

void CudaDevice::leave() noexcept {
  try {
    parts_->streams.lead_loan();
  } catch (const std::exception&) {  // the GPU failed: the next call reports it
  }
  try {
    gpu_.api.contexts().restore(before_);
  } catch (const std::exception&) {  // the GPU failed: the next call reports it
  }
}

void CudaDevice::drain(bool failed) noexcept {
  Parts& p = *parts_;
  try {
    const UseGpu here(gpu_);
    if (failed) p.groups.abort();
    p.wait.finish(p.streams.compute());
    p.wait.finish(p.streams.transfers());
  } catch (const std::exception&) {  // it failed: nothing runs there any more
  }
}

void CudaDevice::begin(const int64_t* scalars, size_t count) {
  parts_->kernels.set_scalars(scalars, count);
}

void CudaDevice::set_scalar(size_t index, int64_t value) {
  parts_->kernels.set_scalar(index, value);
}

int64_t CudaDevice::settle(DataFault& fault) {
  Parts& p = *parts_;
  device::Fault found{};
  if (!p.kernels.may_fault()) {
    p.wait.finish(p.streams.compute());
    return -1;
  }
  read(&found, p.kernels.fault(), sizeof(found));
  if (found.step == 0) return -1;
  gpu_.api.memory().clear(p.kernels.fault(), sizeof(found), p.streams.compute());
  fault.set = true;
  fault.message = message_of(found);
  return static_cast<int64_t>(found.step) - 1;
}

bool CudaDevice::may_fault() const { return parts_->kernels.may_fault(); }

int CudaDevice::mark(bool transfers) { return parts_->timers.mark(transfers); }
std::vector<double> CudaDevice::marks() { return parts_->timers.marks(); }

std::function<void()> CudaDevice::capture(const std::function<void()>& work) {
  return parts_->graphs.capture(work);
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

}  // namespace tessera
