#include "gpu/device/streams.h"

#include "base/fail.h"

namespace tessera {

GpuStreams::GpuStreams(const RankGpu& gpu) : gpu_(gpu), api_(gpu.api.streams()) {
  const CudaLoan& loan = gpu_.options.loan;
  if (loan.has_stream) {
    const std::string why = api_.why_not_adopted(loan.stream);
    TESSERA_REQUIRE(why.empty(),
                    "[adopt_cuda] rank {} cannot work with its stream on {}: {}; make one with "
                    "cudaStreamCreate after cudaSetDevice({}), or give none for the default stream",
                    gpu_.world.rank(), gpu_.name(), why, gpu_.number);
    lent_ = make_event();
    led_ = make_event();
  }
  compute_ = api_.make_stream();
  transfers_ = api_.make_urgent_stream();  // what others wait for
}

CudaEvent GpuStreams::make_event() {
  events_.push_back(api_.make_event());
  return events_.back();
}

void GpuStreams::follow_loan() {
  const CudaLoan& loan = gpu_.options.loan;
  if (!loan.has_stream) return;
  TESSERA_REQUIRE(
      !api_.is_capturing(loan.stream),
      "[adopt_cuda] the stream lent to rank {} on {} is being captured, and a Session's step "
      "cannot be part of that: it has graphs of its own; end the capture before the call",
      gpu_.world.rank(), gpu_.name());
  api_.record(lent_, loan.stream);
  api_.wait(compute_, lent_);
}

void GpuStreams::lead_loan() {
  const CudaLoan& loan = gpu_.options.loan;
  if (!loan.has_stream) return;
  api_.record(led_, compute_);
  api_.wait(loan.stream, led_);
}

void GpuStreams::release_events() {
  for (CudaEvent event : events_) api_.release(event);
  events_.clear();
}

void GpuStreams::release_streams() {
  api_.release(compute_);
  api_.release(transfers_);
}

}  // namespace tessera
