// The algorithm of a product is chosen when its step is bound: no run waits for it, nothing is
// captured, and no value is in the memory that the measurement writes. The operands are what lies
// there, zeros in a new session: cards run a little faster on zeros, every algorithm alike.
//
// A choice is "0 word", "1 word" or "2 word": the way, and the library's word for the algorithm.
// The library's own favourite counts unless another one beats it clearly, so that noise decides
// little.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/env.h"
#include "base/fail.h"
#include "runtime/cuda_choices.h"
#include "runtime/cuda_device.h"

namespace tessera {

namespace {

constexpr int kMost[] = {5, 3, 3};  ///< algorithms of each way that are measured
constexpr int kRepetitions = 3;     ///< behind one to warm up
constexpr double kEnough = 1;      ///< seconds: what a problem may take, but for its last algorithm
constexpr double kClearly = 0.97;  ///< of the time of the best so far
constexpr size_t kText = 512;      ///< bytes of what a rank tells the others

/// What decides which algorithm is fast, without addresses.
std::string problem_of(const CudaGemm& g, size_t calls) {
  const auto type = [](DType t) { return std::string(to_string(t)); };
  const char* act = g.before != nullptr ? " slope"
                    : g.gelu            ? (g.kept ? " gelu kept" : " gelu")
                                        : "";
  const auto format = [](Float8 f) { return f == Float8::e4m3 ? " e4m3" : " e5m2"; };
  const std::string bytes =
      g.float8 ? std::string(format(g.float8->at(0))) + format(g.float8->at(1)) : "";
  return fmt::format(
      "{}{}{} {}x{}x{} batch {} calls {}{}{} ld {} {} {} strides {} {} {} to {}{}{}{}",
      type(g.dtype), bytes, g.tf32 ? " tf32" : "", g.m, g.n, g.k, g.batch, calls,
      g.transposed_a ? " ta" : "", g.transposed_b ? " tb" : "", g.lda, g.ldb, g.ldc, g.stride_a,
      g.stride_b, g.stride_c, type(g.result), g.adds ? " adds" : "",
      g.bias != nullptr ? " bias" : "", act);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Candidate {
  size_t way;
  std::string word;
};

class Timers {
 public:
  explicit Timers(CudaApi& api) : api_(api), first(api.make_timer()), last(api.make_timer()) {}
  ~Timers() {
    api_.release(first);
    api_.release(last);
  }
  Timers(const Timers&) = delete;

 private:
  CudaApi& api_;

 public:
  const CudaEvent first, last;
};

}  // namespace

/// Memory of a run that has not begun: no value that somebody stored or lent.
bool CudaDevice::may_overwrite(const KernelArgs& args) const {
  return std::all_of(args.out.begin(), args.out.end(), [&](const TensorArg& out) {
    const CudaRange range = range_of(out);
    return std::any_of(memory_.begin(), memory_.end(), [&](const Memory& m) {
      const char *first = static_cast<const char*>(m.first),
                 *at = static_cast<const char*>(range.first);
      return std::strcmp(m.what, "transient") == 0 && at >= first &&
             at + range.bytes <= first + m.bytes;
    });
  });
}

std::string CudaDevice::measure(const std::vector<CudaWay>& ways,
                                const std::vector<Kernel*>& kernels) {
  const Timers timers(api_);
  double spent = 0;
  const auto seconds_of = [&](const Candidate& c) {
    if (!api_.use_algorithm(ways[c.way].product, c.word)) return kNever;
    try {
      kernels[c.way]->run();
    } catch (const Error&) {  // the library found out too late that it cannot
      return kNever;
    }
    api_.record(timers.first, compute_);
    for (int k = 0; k < kRepetitions; ++k) kernels[c.way]->run();
    api_.record(timers.last, compute_);
    api_.synchronize(compute_);
    const double seconds = api_.seconds_between(timers.first, timers.last);
    spent += seconds * (kRepetitions + 1) / kRepetitions;
    return seconds;
  };
  std::vector<Candidate> candidates;
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const std::string& word : api_.algorithms(ways[way].product, kMost[way]))
      candidates.push_back({way, word});
  }
  size_t best = 0;
  double least = seconds_of(candidates[0]);
  for (size_t k = 1; k < candidates.size() && spent < kEnough; ++k) {
    const double seconds = seconds_of(candidates[k]);
    if (seconds < kClearly * least) best = k, least = seconds;
  }
  // The favourite came first, perhaps while the card was still asleep.
  if (best != 0 && least >= kClearly * seconds_of(candidates[0])) best = 0;
  return fmt::format("{} {}", candidates[best].way, candidates[best].word);
}

/// The first rank's choice where its card and library are ours; else our own.
std::string CudaDevice::agreed(const std::string& problem, const std::string& library,
                               const std::function<std::string()>& choose) {
  if (const auto it = agreed_.find(problem); it != agreed_.end()) return it->second;
  std::string choice;
  if (world_.rank() == 0) choice = choose();
  if (world_.size() > 1) {
    std::string text = library + "\n" + choice;
    check(text.size() < kText, "the choice of an algorithm is {} bytes long", text.size());
    text.resize(kText);
    Collective send;
    send.kind = CollectiveKind::broadcast;
    send.dtype = DType::uint8;
    send.out = text.data();
    send.count = static_cast<int64_t>(kText);
    send.site.text = "algorithms of products";
    world_.run(send);
    text.resize(std::min(text.find('\0'), text.size()));
    const size_t end = text.find('\n');
    const bool alike = end != std::string::npos && text.substr(0, end) == library;
    if (world_.rank() != 0) choice = alike ? text.substr(end + 1) : choose();
  }
  return agreed_[problem] = choice;
}

size_t CudaDevice::choose_way(const CudaGemm& gemm, size_t calls, const std::vector<CudaWay>& ways,
                              const std::vector<Kernel*>& kernels, const KernelArgs& args) {
  const std::string problem = problem_of(gemm, calls);
  const std::string library = ways.empty() ? "none" : api_.product_library();
  const std::string choice = agreed(problem, library, [&]() -> std::string {
    size_t all = 0;
    for (size_t way = 0; way < ways.size(); ++way)
      all += api_.algorithms(ways[way].product, kMost[way]).size();
    if (all < 2 || !may_time_products() || !may_overwrite(args) || api_.is_capturing(compute_))
      return "";
    const std::string key = fmt::format("{}: {} alignment {} {} {}", library, problem, gemm.align_a,
                                        gemm.align_b, gemm.align_c);
    measured_ = true;
    return cuda_choices().choose(key, [&] { return measure(ways, kernels); });
  });
  const size_t space = choice.find(' ');
  const size_t way = space == 1 && choice[0] > '0' ? static_cast<size_t>(choice[0] - '0') : 0;
  const std::string word = space == 1 ? choice.substr(space + 1) : "";
  // It was chosen for operands that may lie at rounder addresses than ours: the library names what
  // ours allow, and accepts others without a look at them.
  const auto allows = [&](CudaProduct product) {
    const std::vector<std::string> all = api_.algorithms(product, kMost[way]);
    return std::find(all.begin(), all.end(), word) != all.end();
  };
  const bool known = space == 1 && way < ways.size() && allows(ways[way].product) &&
                     api_.use_algorithm(ways[way].product, word);
  if (known || ways.empty()) return known ? way : 0;
  const std::vector<std::string> first = api_.algorithms(ways[0].product, 1);
  if (!first.empty()) api_.use_algorithm(ways[0].product, first[0]);
  return 0;
}

}  // namespace tessera
