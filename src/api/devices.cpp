#include "api/devices.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "api/kernel_info.h"
#include "base/env.h"
#include "base/fail.h"
#include "kernels/cuda/generate.h"
#include "kernels/cuda/product.h"
#include "runtime/cuda_api.h"
#include "runtime/cuda_device.h"

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

DeviceChoice choose_device(const std::string& asked, Cluster& cluster) {
  require(asked == "cpu" || asked == "cuda" || asked == "cuda:share" || asked == "auto",
          "unknown device '{}'; it is cpu, cuda, cuda:share or auto", asked);
  if (asked == "cpu") return {};
  const std::string mine = why_no_card();
  const std::string why = cluster.first_text(mine);
  if (why.empty()) return {true, asked == "cuda:share"};
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

std::unique_ptr<Device> make_device(const DeviceChoice& choice, bool threads, Communicator& world) {
  if (!choice.cuda) return nullptr;
  CudaApi& api = cuda_api();
  const std::vector<CudaCard> cards = api.cards();
  const int local = threads ? world.rank() : std::max(0, read_environment().local_rank);
  const int card = card_of(local, static_cast<int>(cards.size()));
  if (!threads && !choice.share) {
    char host[64] = {};
    gethostname(host, sizeof(host) - 1);
    std::string mine = fmt::format("{} on {}", cards[static_cast<size_t>(card)].id, host);
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
  const bool own_cards =
      threads ? world.size() <= static_cast<int>(cards.size()) : !choice.share || has_nccl_host();
  return std::make_unique<CudaDevice>(api, card, world, own_cards);
}

int64_t workspace_bytes(const DeviceChoice& choice, const Step& step, int threads) {
  if (!choice.cuda) return workspace_bytes(step, threads);
  if (step.kernel == "contract") return cuda::plan_product(step).workspace;
  return step.kernel.starts_with("attention") ? cuda::attention_workspace(step) : 0;
}

}  // namespace tessera
