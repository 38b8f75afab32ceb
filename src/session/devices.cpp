#include "session/devices.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/env.h"
#include "base/fail.h"
#include "compile/kernel_info.h"
#include "gpu/device/cuda_api.h"
#include "gpu/device/cuda_device.h"
#include "kernels/cuda/generate.h"
#include "tessera/interop/cuda.h"

namespace tessera {

namespace {

constexpr int kOldestMajor = 8;
constexpr int64_t kIdLength = 128;

/// Why this process cannot use a GPU; empty if it can.
std::string why_no_gpu() {
  try {
    const std::vector<CudaGpu> gpus = cuda_api().contexts().gpus();
    if (gpus.empty()) return "the driver sees no GPU";
    for (const CudaGpu& gpu : gpus) {
      if (gpu.major < kOldestMajor) {
        return fmt::format("'{}' has compute capability {}.{}; {}.0 or newer is needed", gpu.name,
                           gpu.major, gpu.minor, kOldestMajor);
      }
    }
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

/// What local ranks were lent fits the cluster and this machine.
void require_guests(const CudaGuests& guests, Cluster& cluster) {
  TESSERA_REQUIRE(std::ssize(guests.ranks) == cluster.local_ranks(),
                  "[adopt_cuda] {} guests for {} local ranks; give one for each",
                  guests.ranks.size(), cluster.local_ranks());
  const auto gpus = static_cast<int>(cuda_api().contexts().gpus().size());
  const auto* per_thread = reinterpret_cast<const CUstream_st*>(2);  // cudaStreamPerThread
  for (size_t r = 0; r < guests.ranks.size(); ++r) {
    const CudaGuest& g = guests.ranks[r];
    TESSERA_REQUIRE(
        g.device >= 0 && g.device < gpus,
        "[adopt_cuda] local rank {} is lent device {}, but this process sees {} (0 to {}); "
        "give one of them, or let CUDA_VISIBLE_DEVICES show more",
        r, g.device, gpus, gpus - 1);
    TESSERA_REQUIRE(
        g.stream != per_thread || guests.ranks.size() == 1,
        "[adopt_cuda] local rank {} of {} is lent cudaStreamPerThread, which is another stream "
        "in the thread of a rank; make one with cudaStreamCreate",
        r, guests.ranks.size());
    TESSERA_REQUIRE(
        g.memory_limit >= 0,
        "[adopt_cuda] the memory limit of local rank {} is {} bytes; give a positive number, "
        "or 0 for what is free",
        r, g.memory_limit);
    TESSERA_REQUIRE(static_cast<bool>(g.allocate) == static_cast<bool>(g.release),
                    "[adopt_cuda] local rank {} is lent {}; give both or none", r,
                    g.allocate ? "'allocate' without 'release'" : "'release' without 'allocate'");
  }
}

DeviceChoice choose_device(const CompileOptions& options, Cluster& cluster) {
  const std::string& asked = options.device;
  TESSERA_REQUIRE(asked == "cpu" || asked == "cuda" || asked == "cuda:share" || asked == "auto",
                  "unknown device '{}'; it is cpu, cuda, cuda:share or auto", asked);
  if (asked == "cpu") return {};
  const std::string mine = why_no_gpu();
  const std::string why = cluster.first_text(mine);
  if (why.empty()) {
    if (options.cuda) require_guests(*options.cuda, cluster);
    return {true, asked == "cuda:share", options.tf32, options.strict_chunks > 0, options.cuda};
  }
  if (asked == "auto") return {};
  fail(ErrorKind::unsupported, "--device {}: {}", asked,
       mine.empty() ? "another rank: " + why : why);
}

int gpu_of(int local_rank, int gpus) { return gpus == 1 ? 0 : local_rank % gpus; }

void require_own_gpus(const std::vector<std::string>& ids) {
  std::map<std::string, size_t> first;
  for (size_t r = 0; r < ids.size(); ++r) {
    const auto [it, fresh] = first.emplace(ids[r], r);
    TESSERA_REQUIRE(
        fresh,
        "ranks {} and {} would share one GPU ({}); start at most one process a GPU, make the "
        "ranks threads of one process, or say --device cuda:share",
        it->second, r, ids[r]);
  }
}

namespace {

/// Every process has a GPU of its own. Collective.
void require_own_gpu(const CudaGpu& gpu, Communicator& world) {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  std::string mine = fmt::format("{} on {}", gpu.id, host);
  mine.resize(kIdLength);
  std::string all(static_cast<size_t>(kIdLength * world.size()), '\0');
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = DType::uint8;
  gather.in = mine.data();
  gather.out = all.data();
  gather.inner = kIdLength;
  gather.site.text = "GPUs of the ranks";
  world.run(gather);
  std::vector<std::string> ids;
  for (int r = 0; r < world.size(); ++r) ids.emplace_back(all.data() + r * kIdLength);
  require_own_gpus(ids);
}

/// Ranks of this process have a GPU each.
bool have_own_gpus(const DeviceChoice& choice, int ranks, int gpus) {
  if (!choice.guests) return ranks <= gpus;
  std::set<int> lent;
  for (const CudaGuest& g : choice.guests->ranks) lent.insert(g.device);
  return std::ssize(lent) == ranks;
}

/// Whether a kernel's library is there; without one, the kernel is Tessera's.
bool has_library(cuda::GpuLibrary library) {
  std::string why;
  switch (library) {
    case cuda::GpuLibrary::convolution:
      return may_use_cudnn() && cuda_api().convolution(why) != nullptr;
    case cuda::GpuLibrary::attention:
      return may_use_cudnn() && cuda_api().attention(why) != nullptr;
    default:
      return true;
  }
}

CudaLoan loan_of(const CudaGuest& g) {
  return {true, reinterpret_cast<CudaStream>(g.stream), g.memory_limit, g.allocate, g.release};
}

}  // namespace

std::unique_ptr<Device> make_device(const DeviceChoice& choice, bool threads, int rank,
                                    Communicator& world) {
  if (!choice.cuda) return nullptr;
  CudaApi& api = cuda_api();
  const std::vector<CudaGpu> gpus = api.contexts().gpus();
  const auto count = static_cast<int>(gpus.size());
  const CudaGuest* guest =
      choice.guests ? &choice.guests->ranks.at(static_cast<size_t>(rank)) : nullptr;
  const int local = threads ? rank : std::max(0, read_environment().local_rank);
  const int gpu = guest != nullptr ? guest->device : gpu_of(local, count);
  if (!threads && !choice.share) require_own_gpu(gpus[static_cast<size_t>(gpu)], world);
  CudaDeviceOptions options;
  options.use_groups =
      threads ? have_own_gpus(choice, world.size(), count) : !choice.share || has_nccl_host();
  options.tf32 = choice.tf32;
  options.is_strict = choice.is_strict;
  if (guest != nullptr) options.loan = loan_of(*guest);
  return std::make_unique<CudaDevice>(api, gpu, world, std::move(options));
}

int64_t workspace_bytes(const DeviceChoice& choice, const Step& step, int threads) {
  if (!choice.cuda) return workspace_bytes(step, threads);
  return cuda::workspace_bytes(step, has_library(cuda::gpu_kernel(step.kernel).library));
}

int threads_for(int asked, const Cluster& cluster) {
  TESSERA_REQUIRE(asked >= 0,
                  "threads_per_rank is {}; it is 1 or more, or 0 for the cores there are", asked);
  if (asked > 0) return asked;
  const int cores = usable_cores(), wanted = most_threads(),
            most = wanted > 0 ? std::min(wanted, cores) : cores;
  if (cluster.local_ranks() == cluster.size()) return std::clamp(cores / cluster.size(), 1, most);
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  const int local = read_environment().local_ranks;
  return local <= 0 ? 1 : std::clamp(all / local, 1, most);  // bound ranks have their cores alone
}

}  // namespace tessera
