#include "api/devices.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "api/kernel_info.h"
#include "base/env.h"
#include "base/fail.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/conv_plan.h"
#include "kernels/cuda/generate.h"
#include "kernels/cuda/product.h"
#include "runtime/cuda_api.h"
#include "runtime/cuda_device.h"
#include "tessera/interop/cuda.h"

namespace tessera {

namespace {

constexpr int kOldestMajor = 8;
constexpr int64_t kIdLength = 128;

/// Why this process cannot use a card; empty if it can.
std::string why_no_card() {
  try {
    const std::vector<CudaCard> cards = cuda_api().cards();
    if (cards.empty()) return "the driver sees no card";
    for (const CudaCard& card : cards) {
      if (card.major < kOldestMajor) {
        return fmt::format("'{}' has compute capability {}.{}; {}.0 or newer is needed", card.name,
                           card.major, card.minor, kOldestMajor);
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
  require(std::ssize(guests.ranks) == cluster.local_ranks(),
          "[adopt_cuda] {} guests for {} local ranks; give one for each", guests.ranks.size(),
          cluster.local_ranks());
  const auto cards = static_cast<int>(cuda_api().cards().size());
  const auto* per_thread = reinterpret_cast<const CUstream_st*>(2);  // cudaStreamPerThread
  for (size_t r = 0; r < guests.ranks.size(); ++r) {
    const CudaGuest& g = guests.ranks[r];
    require(g.device >= 0 && g.device < cards,
            "[adopt_cuda] local rank {} is lent device {}, but this process sees {} (0 to {}); "
            "give one of them, or let CUDA_VISIBLE_DEVICES show more",
            r, g.device, cards, cards - 1);
    require(g.stream != per_thread || guests.ranks.size() == 1,
            "[adopt_cuda] local rank {} of {} is lent cudaStreamPerThread, which is another stream "
            "in the thread of a rank; make one with cudaStreamCreate",
            r, guests.ranks.size());
    require(g.memory_limit >= 0,
            "[adopt_cuda] the memory limit of local rank {} is {} bytes; give a positive number, "
            "or 0 for what is free",
            r, g.memory_limit);
    require(static_cast<bool>(g.allocate) == static_cast<bool>(g.release),
            "[adopt_cuda] local rank {} is lent {}; give both or none", r,
            g.allocate ? "'allocate' without 'release'" : "'release' without 'allocate'");
  }
}

DeviceChoice choose_device(const CompileOptions& options, Cluster& cluster) {
  const std::string& asked = options.device;
  require(asked == "cpu" || asked == "cuda" || asked == "cuda:share" || asked == "auto",
          "unknown device '{}'; it is cpu, cuda, cuda:share or auto", asked);
  if (asked == "cpu") return {};
  const std::string mine = why_no_card();
  const std::string why = cluster.first_text(mine);
  if (why.empty()) {
    if (options.cuda) require_guests(*options.cuda, cluster);
    return {true, asked == "cuda:share", options.tf32, options.cuda};
  }
  if (asked == "auto") return {};
  fail(ErrorKind::unsupported, "--device {}: {}", asked,
       mine.empty() ? "another rank: " + why : why);
}

int card_of(int local_rank, int cards) { return cards == 1 ? 0 : local_rank % cards; }

void require_own_cards(const std::vector<std::string>& ids) {
  std::map<std::string, size_t> first;
  for (size_t r = 0; r < ids.size(); ++r) {
    const auto [it, fresh] = first.emplace(ids[r], r);
    require(fresh,
            "ranks {} and {} would share one card ({}); start at most one process a card, make the "
            "ranks threads of one process, or say --device cuda:share",
            it->second, r, ids[r]);
  }
}

namespace {

/// Every process has a card of its own. Collective.
void require_own_card(const CudaCard& card, Communicator& world) {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  std::string mine = fmt::format("{} on {}", card.id, host);
  mine.resize(kIdLength);
  std::string all(static_cast<size_t>(kIdLength * world.size()), '\0');
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = DType::uint8;
  gather.in = mine.data();
  gather.out = all.data();
  gather.inner = kIdLength;
  gather.site.text = "cards of the ranks";
  world.run(gather);
  std::vector<std::string> ids;
  for (int r = 0; r < world.size(); ++r) ids.emplace_back(all.data() + r * kIdLength);
  require_own_cards(ids);
}

/// Ranks of this process have a card each.
bool have_own_cards(const DeviceChoice& choice, int ranks, int cards) {
  if (!choice.guests) return ranks <= cards;
  std::set<int> lent;
  for (const CudaGuest& g : choice.guests->ranks) lent.insert(g.device);
  return std::ssize(lent) == ranks;
}

CudaLoan loan_of(const CudaGuest& g) {
  return {true, reinterpret_cast<CudaStream>(g.stream), g.memory_limit, g.allocate, g.release};
}

}  // namespace

std::unique_ptr<Device> make_device(const DeviceChoice& choice, bool threads, int rank,
                                    Communicator& world) {
  if (!choice.cuda) return nullptr;
  CudaApi& api = cuda_api();
  const std::vector<CudaCard> cards = api.cards();
  const auto count = static_cast<int>(cards.size());
  const CudaGuest* guest =
      choice.guests ? &choice.guests->ranks.at(static_cast<size_t>(rank)) : nullptr;
  const int local = threads ? rank : std::max(0, read_environment().local_rank);
  const int card = guest != nullptr ? guest->device : card_of(local, count);
  if (!threads && !choice.share) require_own_card(cards[static_cast<size_t>(card)], world);
  CudaDeviceOptions options;
  options.use_groups =
      threads ? have_own_cards(choice, world.size(), count) : !choice.share || has_nccl_host();
  options.tf32 = choice.tf32;
  if (guest != nullptr) options.loan = loan_of(*guest);
  return std::make_unique<CudaDevice>(api, card, world, std::move(options));
}

int64_t workspace_bytes(const DeviceChoice& choice, const Step& step, int threads) {
  if (!choice.cuda) return workspace_bytes(step, threads);
  if (step.kernel == "contract")
    return std::max(cuda::plan_product(step).workspace, cuda::plan_float8(step).workspace);
  if (step.kernel == "reduce") return cuda::reduce_workspace(step);
  if (step.kernel == "conv") {
    const bool has_library = may_use_cudnn() && cuda_api().why_no_convolutions().empty();
    return has_library ? cuda::plan_conv(step).workspace : 0;
  }
  if (step.kernel.starts_with("attention")) {
    const bool has_library = may_use_cudnn() && cuda_api().why_no_attentions().empty();
    return has_library ? cuda::plan_attention(step).workspace : 0;
  }
  return 0;
}

}  // namespace tessera
