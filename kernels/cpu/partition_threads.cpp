// Sharing a step between the threads of a rank: its views are cut along one dim of the result, like
// tensors over ranks, and every share is bound as a kernel of its own. A kernel may share its work
// in another way, and gets the threads then.
#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "kernels/common/kernel.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

/// Elements [first, first + count) along `dim` of a step. Views are narrowed, addresses are not.
struct ThreadShare {
  int dim = -1;
  int64_t first = 0, count = 0;
  Step step;
};

bool is_aligned(const KernelEntry& entry, size_t input) {
  return (entry.aligned_inputs >> input & 1u) != 0;
}

/// How threads share the step; nothing if each would have too little to do.
std::optional<Sharing> sharing_of(const KernelEntry& entry, const Step& step, int threads,
                                  double least_ns) {
  if (threads <= 1 || entry.share == nullptr || step.out.empty()) return {};
  const Sharing sharing = entry.share(step, threads);
  if (sharing.ns < least_ns * threads) return {};
  return sharing;
}

/// Dense dims are cut at multiples of 16 elements, so that threads write whole cache lines.
std::vector<ThreadShare> shares_of(const Sharing& sharing, const KernelEntry& entry,
                                   const Step& step, int threads) {
  std::vector<ThreadShare> shares;
  if (sharing.dim < 0) return shares;
  const View& out = step.out[0];
  const size_t d = static_cast<size_t>(sharing.dim);
  const int64_t n = out.sizes[d], grain = std::abs(out.strides[d]) == 1 ? 16 : 1;
  const int64_t units = (n + grain - 1) / grain;
  for (int t = 0; t < threads; ++t) {
    ThreadShare share;
    share.dim = sharing.dim;
    share.first = units * t / threads * grain;
    share.count = std::min(n, units * (t + 1) / threads * grain) - share.first;
    if (share.count <= 0) continue;
    share.step = step;
    auto narrow = [&](View& view) {
      if (d < view.sizes.size() && view.sizes[d] == n) view.sizes[d] = share.count;
    };
    for (size_t i = 0; i < step.in.size(); ++i) {
      if (is_aligned(entry, i)) narrow(share.step.in[i]);
    }
    for (View& view : share.step.out) narrow(view);
    shares.push_back(std::move(share));
  }
  if (shares.size() < 2) shares.clear();
  return shares;
}

int64_t workspace_of(const KernelEntry& entry, const Step& step) {
  return entry.workspace_bytes == nullptr ? 0 : (entry.workspace_bytes(step) + 63) / 64 * 64;
}

class Shared final : public Kernel {
 public:
  Shared(const KernelEntry& entry, const KernelArgs& args, std::vector<ThreadShare> shares,
         ThreadPool& pool)
      : shares_(std::move(shares)), faults_(shares_.size()), fault_(args.fault), pool_(pool) {
    int64_t workspace = 0;
    for (size_t p = 0; p < shares_.size(); ++p) {
      KernelArgs mine = args;
      mine.step = &shares_[p].step;
      mine.fault = &faults_[p];
      mine.split_dim = shares_[p].dim;
      mine.split_first = shares_[p].first;
      auto narrow = [&](TensorArg& arg, const View& view, const View& whole) {
        const size_t d = static_cast<size_t>(shares_[p].dim);
        if (d < whole.sizes.size() && view.sizes[d] != whole.sizes[d]) {
          arg.data =
              static_cast<char*>(arg.data) + shares_[p].first * arg.strides[d] * size_of(arg.dtype);
        }
        arg.sizes = view.sizes;
      };
      for (size_t i = 0; i < mine.in.size(); ++i)
        narrow(mine.in[i], mine.step->in[i], args.step->in[i]);
      for (size_t i = 0; i < mine.out.size(); ++i)
        narrow(mine.out[i], mine.step->out[i], args.step->out[i]);
      if (args.workspace != nullptr)
        mine.workspace = static_cast<char*>(args.workspace) + workspace;
      workspace += workspace_of(entry, *mine.step);
      kernels_.push_back(entry.bind(mine));
    }
  }

  void run() override {
    pool_.run([this](int thread) {
      if (thread < static_cast<int>(kernels_.size())) kernels_[static_cast<size_t>(thread)]->run();
    });
    for (DataFault& fault : faults_) {
      if (!fault.set) continue;
      if (!fault_->set) *fault_ = fault;
      fault = {};
    }
  }

 private:
  std::vector<ThreadShare> shares_;
  std::vector<DataFault> faults_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  DataFault* fault_;
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Kernel> bind_with_threads(const KernelEntry& entry, const KernelArgs& args,
                                          ThreadPool& pool, double least_ns) {
  const auto sharing = sharing_of(entry, *args.step, pool.size(), least_ns);
  if (!sharing) return entry.bind(args);
  std::vector<ThreadShare> shares = shares_of(*sharing, entry, *args.step, pool.size());
  if (!shares.empty()) return std::make_unique<Shared>(entry, args, std::move(shares), pool);
  KernelArgs with_pool = args;
  if (sharing->dim < 0) with_pool.pool = &pool;
  return entry.bind(with_pool);
}

int64_t workspace_with_threads(const KernelEntry& entry, const Step& step, int threads,
                               double least_ns) {
  if (entry.workspace_bytes == nullptr) return 0;
  const auto sharing = sharing_of(entry, step, threads, least_ns);
  if (!sharing) return entry.workspace_bytes(step);
  const std::vector<ThreadShare> shares = shares_of(*sharing, entry, step, threads);
  if (shares.empty())
    return entry.workspace_bytes(step) + (sharing->dim < 0 ? (threads - 1) * sharing->bytes : 0);
  int64_t total = 0;
  for (const ThreadShare& share : shares) total += workspace_of(entry, share.step);
  return total;
}

int outermost_dim(const View& view, const std::vector<char>& allowed, int threads) {
  int best = -1;
  double best_waste = 0;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (!allowed[d] || view.sizes[d] < 2 || view.strides[d] == 0) continue;
    const int64_t grain = std::abs(view.strides[d]) == 1 ? 16 : 1;
    const int64_t units = (view.sizes[d] + grain - 1) / grain;
    if (units < 2) continue;
    const double waste =
        static_cast<double>((units + threads - 1) / threads * threads) / static_cast<double>(units);
    const bool outer =
        best >= 0 && std::abs(view.strides[d]) > std::abs(view.strides[static_cast<size_t>(best)]);
    if (best < 0 || waste < best_waste - 0.1 || (waste < best_waste + 0.1 && outer)) {
      best = static_cast<int>(d);
      best_waste = waste;
    }
  }
  return best;
}

}  // namespace tessera
