#include "gpu/device/kernels.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr size_t kMostScalars = 256;

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

void GpuKernels::allocate() {
  scalars_ = memory_.allocate(static_cast<int64_t>(kMostScalars * sizeof(int64_t)), "scalars");
  fault_ = static_cast<device::Fault*>(memory_.allocate(sizeof(device::Fault), "faults"));
}

CudaLaunch GpuKernels::make_launch(const cuda::Source& source, const KernelArgs& args) {
  CudaLaunch launch;
  if (source.blocks == 0) return launch;
  TESSERA_CHECK(source.blocks < (int64_t{1} << 31), "a kernel of {} blocks", source.blocks);
  const bool has_formulas = source.text.find("formula::") != std::string::npos;
  const char* define = gpu_.options.is_strict && has_formulas ? "#define TESSERA_SAME_BITS\n" : "";
  launch.kernel = gpu_.api.kernels().load(define + source.text);
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
        launch.atomics.push_back({fault_, sizeof(device::Fault)});
        may_fault_ = true;
        break;
      case cuda::Word::Kind::workspace:
        TESSERA_CHECK(args.workspace != nullptr, "[{}] has no workspace", args.step->origin.name);
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

CudaLaunch GpuKernels::make_copy(const TensorArg& from, const TensorArg& to,
                                 std::optional<Float8> format) {
  Step step;
  step.kernel = KernelKind::copy;
  KernelArgs args;
  args.step = &step;
  args.in = {from};
  args.out = {to};
  return make_launch(format ? cuda::generate_float8(args, *format) : cuda::generate_pointwise(args),
                     args);
}

/// The numbers travel as arguments of a kernel that stores them, so no host memory has to stay
/// valid until the GPU reads it.
void GpuKernels::send_scalars(const int64_t* scalars, size_t count) {
  std::string fields, body;
  CudaLaunch launch;
  launch.words.push_back(reinterpret_cast<uint64_t>(scalars_));
  for (size_t i = 0; i < count; ++i) {
    fields += fmt::format("  long long s{};\n", i);
    body += fmt::format("  a.to[{}] = a.s{};\n", i, i);
    launch.words.push_back(static_cast<uint64_t>(scalars[i]));
  }
  launch.kernel = gpu_.api.kernels().load(
      fmt::format("struct Args {{\n  long long* to;\n{}}};\nextern \"C\" __global__ void {}(Args "
                  "a) {{\n{}}}\n",
                  fields, cuda::kName, body));
  launch.blocks = launch.threads = 1;
  launch.writes = {{scalars_, static_cast<int64_t>(count * sizeof(int64_t))}};
  gpu_.api.kernels().launch(launch, streams_.compute());
}

void GpuKernels::set_scalars(const int64_t* scalars, size_t count) {
  TESSERA_CHECK(count <= kMostScalars, "{} run-time scalars; at most {} are supported", count,
                kMostScalars);
  if (sent_.size() == count && std::equal(scalars, scalars + count, sent_.begin())) return;
  sent_.assign(scalars, scalars + count);
  send_scalars(scalars, count);
}

void GpuKernels::set_scalar(size_t index, int64_t value) {
  TESSERA_CHECK(index < sent_.size(), "scalar {} of {} is set", index, sent_.size());
  sent_[index] = value;
  CudaLaunch launch;
  launch.kernel = gpu_.api.kernels().load(
      fmt::format("struct Args {{\n  long long* to;\n  long long index;\n  long long value;\n}};\n"
                  "extern \"C\" __global__ void {}(Args a) {{\n  a.to[a.index] = a.value;\n}}\n",
                  cuda::kName));
  launch.blocks = launch.threads = 1;
  launch.words = {reinterpret_cast<uint64_t>(scalars_), index, static_cast<uint64_t>(value)};
  launch.writes = {{static_cast<int64_t*>(scalars_) + index, sizeof(int64_t)}};
  gpu_.api.kernels().launch(launch, streams_.compute());
}

}  // namespace tessera
