// Sharing a step between the threads of a rank: its views are cut along one dim of the result, like
// tensors over ranks, and every share is bound as a kernel of its own. Where the order of sums may
// depend on the size of a share, the sizes of the step alone say into how many it is cut, and a
// thread runs several: so no number of threads changes a bit. A kernel may share its work in
// another way, and gets the threads then.
#include <algorithm>

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

/// A step in parts.
struct Cut {
  std::vector<ThreadShare> shares;  ///< none: it is not cut
  int threads = 1;                  ///< that run them; thread t has shares t n / threads and on
};

/// Dense dims are cut at multiples of 16 elements, so that threads write whole cache lines.
std::vector<ThreadShare> shares_of(const Sharing& sharing, const KernelEntry& entry,
                                   const Step& step, int64_t parts) {
  std::vector<ThreadShare> shares;
  if (sharing.dim < 0 || parts < 2) return shares;
  const View& out = step.out[0];
  const size_t d = static_cast<size_t>(sharing.dim);
  const int64_t n = out.sizes[d], grain = std::abs(out.strides[d]) == 1 ? 16 : 1;
  const int64_t units = (n + grain - 1) / grain;
  for (int64_t part = 0; part < parts; ++part) {
    ThreadShare share;
    share.dim = sharing.dim;
    share.first = units * part / parts * grain;
    share.count = std::min(n, units * (part + 1) / parts * grain) - share.first;
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

bool wakes_threads(const Sharing& sharing, int threads, double least_ns) {
  return threads > 1 && sharing.ns >= least_ns * threads;
}

Cut cut_of(const Sharing& sharing, const KernelEntry& entry, const Step& step, int threads,
           double least_ns) {
  if (!wakes_threads(sharing, threads, least_ns)) threads = 1;
  Cut cut;
  cut.shares = shares_of(sharing, entry, step, sharing.parts > 0 ? sharing.parts : threads);
  cut.threads = std::max(1, std::min(threads, static_cast<int>(cut.shares.size())));
  return cut;
}

Sharing sharing_of(const KernelEntry& entry, const Step& step, int threads) {
  if (entry.share == nullptr || step.out.empty()) return {};
  return entry.share(step, threads);
}

/// Of each thread, whose shares use it one after the other.
int64_t workspace_of(const KernelEntry& entry, const Cut& cut) {
  int64_t most = 0;
  if (entry.workspace_bytes == nullptr) return most;
  for (const ThreadShare& share : cut.shares)
    most = std::max(most, (entry.workspace_bytes(share.step) + 63) / 64 * 64);
  return most;
}

class Shared final : public Kernel {
 public:
  Shared(const KernelEntry& entry, const KernelArgs& args, Cut cut, ThreadPool& pool)
      : faults_(cut.shares.size()), fault_(args.fault), threads_(cut.threads), pool_(pool) {
    const int64_t workspace = workspace_of(entry, cut);
    shares_ = std::move(cut.shares);
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
        mine.workspace = static_cast<char*>(args.workspace) + thread_of(p) * workspace;
      kernels_.push_back(entry.bind(mine));
    }
  }

  void run() override {
    if (threads_ == 1) {
      for (const auto& kernel : kernels_) kernel->run();
    } else {
      pool_.run([this](int thread) {
        for (size_t p = first_of(thread); p < first_of(thread + 1); ++p) kernels_[p]->run();
      });
    }
    for (DataFault& fault : faults_) {
      if (!fault.set) continue;
      if (!fault_->set) *fault_ = fault;
      fault = {};
    }
  }

 private:
  /// The first share of a thread; behind the last share for threads that have none.
  size_t first_of(int thread) const {
    return shares_.size() * static_cast<size_t>(std::min(thread, threads_)) /
           static_cast<size_t>(threads_);
  }
  int64_t thread_of(size_t share) const {
    int thread = 0;
    while (first_of(thread + 1) <= share) ++thread;
    return thread;
  }

  std::vector<ThreadShare> shares_;
  std::vector<DataFault> faults_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  DataFault* fault_;
  int threads_;
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Kernel> bind_with_threads(const KernelEntry& entry, const KernelArgs& args,
                                          ThreadPool& pool, double least_ns) {
  const Sharing sharing = sharing_of(entry, *args.step, pool.size());
  Cut cut = cut_of(sharing, entry, *args.step, pool.size(), least_ns);
  KernelArgs with_pool = args;
  if (sharing.dim < 0 && wakes_threads(sharing, pool.size(), least_ns)) with_pool.pool = &pool;
  if (cut.threads > 1 || with_pool.pool != nullptr) pool.start();
  if (!cut.shares.empty()) return std::make_unique<Shared>(entry, args, std::move(cut), pool);
  return entry.bind(with_pool);
}

int64_t workspace_with_threads(const KernelEntry& entry, const Step& step, int threads,
                               double least_ns) {
  if (entry.workspace_bytes == nullptr) return 0;
  const Sharing sharing = sharing_of(entry, step, threads);
  const Cut cut = cut_of(sharing, entry, step, threads, least_ns);
  if (!cut.shares.empty()) return cut.threads * workspace_of(entry, cut);
  const bool has_pool = sharing.dim < 0 && wakes_threads(sharing, threads, least_ns);
  return entry.workspace_bytes(step) + (has_pool ? (threads - 1) * sharing.bytes : 0);
}

int64_t parts_of_matmul(int64_t size, double ns) {
  const int64_t most = static_cast<int64_t>(ns / kLeastPartNs),
                parts = std::min(most, std::max(size / 256, std::min<int64_t>(4, size / 128)));
  return parts >= 4 ? parts / 4 * 4 : std::clamp<int64_t>(parts, 1, 2);
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
