// Memory that a host program lends for inputs and outputs, by buffer of the program.
#include <algorithm>
#include <set>

#include "base/fail.h"
#include "gpu/device/rank_gpu.h"
#include "session/devices.h"
#include "tessera/interop/cuda.h"

namespace tessera {

namespace {

/// The inputs and outputs called `name`. Throws a usage error if there is none.
std::vector<const Port*> ports_of(const Program& program, const std::string& name) {
  std::vector<const Port*> found;
  std::set<std::string> names;
  for (const Function& f : program.functions) {
    for (const auto* ports : {&f.inputs, &f.outputs}) {
      for (int p : *ports) {
        const Port& port = program.ports[static_cast<size_t>(p)];
        names.insert(port.name);
        if (port.name == name) found.push_back(&port);
      }
    }
  }
  if (found.empty()) {
    fail(ErrorKind::usage, "[adopt_cuda] the program has no input or output '{}'{}", name,
         suggestion(name, {names.begin(), names.end()}));
  }
  return found;
}

/// Lowering gives every input and output a buffer of its own.
void check_whole(const Program& program, const Port& port) {
  const Buffer& buffer = program.buffers[static_cast<size_t>(port.view.buffer)];
  const View& view = port.view;
  TESSERA_CHECK(view.is_contiguous() && view.offset == 0 && view.shift == AffineExpr{} &&
                    view.elements() * size_of(view.dtype) == buffer.bytes && !buffer.alternates,
                "'{}' is not all of its buffer", port.name);
}

void require_fits(const Port& port, const CudaBuffer& lent, const CudaGuest& guest, int rank) {
  const int64_t item = size_of(port.view.dtype), needed = port.view.elements() * item;
  TESSERA_REQUIRE(
      lent.bytes >= needed,
      "[adopt_cuda] '{}' of local rank {} needs {} bytes ({} of [{}]) but {} were lent; lend "
      "the whole part, with its padding",
      port.name, rank, needed, to_string(port.view.dtype), fmt::join(port.view.sizes, ", "),
      lent.bytes);
  const auto* first = static_cast<const char*>(lent.data);
  const UseGpu here(cuda_api().contexts(), guest.device);  // the driver may ask for a context
  const bool there =
      first != nullptr && cuda_api().memory().gpu_of(first) == guest.device &&
      (needed == 0 || cuda_api().memory().gpu_of(first + needed - 1) == guest.device);
  TESSERA_REQUIRE(
      there,
      "[adopt_cuda] the memory lent for '{}' of local rank {} ({} bytes at {}) is not memory of "
      "device {}; allocate it there (cudaSetDevice, cudaMalloc)",
      port.name, rank, needed, fmt::ptr(lent.data), guest.device);
  TESSERA_REQUIRE(
      reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(item) == 0,
      "[adopt_cuda] the memory lent for '{}' of local rank {} is at {}, which is no multiple of "
      "the {} bytes of an element",
      port.name, rank, fmt::ptr(lent.data), item);
}

}  // namespace

std::map<int, void*> lent_buffers(const DeviceChoice& choice, const Program& program, int rank) {
  std::map<int, void*> placed;
  if (!choice.guests) return placed;
  const CudaGuest& guest = choice.guests->ranks.at(static_cast<size_t>(rank));
  for (const CudaBuffer& lent : guest.buffers) {
    for (const Port* port : ports_of(program, lent.name)) {
      check_whole(program, *port);
      require_fits(*port, lent, guest, rank);
      const auto [there, fresh] = placed.emplace(port->view.buffer, lent.data);
      TESSERA_REQUIRE(fresh || there->second == lent.data,
                      "[adopt_cuda] '{}' of local rank {} was lent two pieces of memory; lend one",
                      lent.name, rank);
    }
  }
  return placed;
}

}  // namespace tessera
