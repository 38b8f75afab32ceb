#include "gpu/given_kernel.h"

#include "gpu/device/kernels.h"

namespace tessera::test {

GivenKernel::GivenKernel(const cuda::Source& source, const KernelArgs& args) {
  for (const cuda::Word& w : source.words) {
    const auto index = static_cast<size_t>(w.index);
    if (w.kind == cuda::Word::Kind::workspace) {
      words.push_back(reinterpret_cast<uint64_t>(args.workspace));
      memory.writes.push_back({args.workspace, w.number});
      continue;
    }
    if (w.kind == cuda::Word::Kind::fault) {
      words.push_back(reinterpret_cast<uint64_t>(fault.get()));
      memory.atomics.push_back({fault.get(), sizeof(device::Fault)});
      continue;
    }
    const bool is_in = w.kind == cuda::Word::Kind::in;
    if (!is_in && w.kind != cuda::Word::Kind::out) {
      words.push_back(static_cast<uint64_t>(w.number));
      continue;
    }
    const TensorArg& t = is_in ? args.in.at(index) : args.out.at(index);
    words.push_back(reinterpret_cast<uint64_t>(t.data));
    (is_in ? memory.reads : memory.writes).push_back(range_of(t));
  }
}

}  // namespace tessera::test
