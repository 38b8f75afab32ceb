// The algorithm is chosen when a step is bound: no run waits for it, nothing is captured, and the
// memory that the measurement overwrites holds no value yet. The operands are whatever is in
// memory: zeros in a new session. GPUs run a little faster on zeros, but equally so for all
// algorithms.
//
// A choice is "0 word", "1 word" or "2 word": the way, and the library's word for the algorithm.
// The library's first suggestion wins unless another is clearly faster, so that noise decides
// little.
#include "gpu/device/gemm_autotune.h"

#include <algorithm>
#include <limits>

#include "base/env.h"
#include "base/fail.h"
#include "gpu/device/gemm_algorithm_cache.h"

namespace tessera {

namespace {

constexpr int kMost[] = {5, 3, 3};  ///< algorithms that are measured, per way
constexpr int kRepetitions = 3;     ///< after one warm-up run
constexpr double kEnough = 1;      ///< seconds per problem; no new algorithm is measured after that
constexpr double kClearly = 0.97;  ///< of the best time: what counts as faster
constexpr size_t kText = 512;      ///< bytes of the message from rank 0

/// The properties that decide which algorithm is fast, without addresses.
std::string problem_of(const CudaGemm& g, size_t calls) {
  const auto type = [](DType t) { return std::string(to_string(t)); };
  const char* act = g.before != nullptr ? " slope"
                    : g.gelu            ? (g.kept ? " gelu kept" : " gelu")
                                        : "";
  const std::string sums =
      g.sums == nullptr ? ""
                        : fmt::format(" sums {} {}", g.sums_of_a ? "a" : "b", type(g.sums_type));
  const auto format = [](Float8 f) { return f == Float8::e4m3 ? " e4m3" : " e5m2"; };
  const std::string bytes =
      g.float8 ? std::string(format(g.float8->at(0))) + format(g.float8->at(1)) : "";
  return fmt::format(
      "{}{}{} {}x{}x{} batch {} calls {}{}{} ld {} {} {} strides {} {} {} to {}{}{}{}{}",
      type(g.dtype), bytes, g.tf32 ? " tf32" : "", g.m, g.n, g.k, g.batch, calls,
      g.transposed_a ? " ta" : "", g.transposed_b ? " tb" : "", g.lda, g.ldb, g.ldc, g.stride_a,
      g.stride_b, g.stride_c, type(g.result), g.adds ? " adds" : "",
      g.bias != nullptr ? " bias" : "", act, sums);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Candidate {
  size_t way;
  std::string word;
};

class Timers {
 public:
  explicit Timers(CudaStreamApi& api)
      : api_(api), first(api.make_timer()), last(api.make_timer()) {}
  ~Timers() {
    try {
      api_.release(first);
      api_.release(last);
    } catch (const std::exception&) {  // the GPU failed: the call that found out reports it
    }
  }
  Timers(const Timers&) = delete;

 private:
  CudaStreamApi& api_;

 public:
  const CudaEvent first, last;
};

}  // namespace

std::string GemmAutotune::why_not_kept() const {
  return measured_ ? gemm_algorithm_cache().why_not_kept() : "";
}

std::vector<std::string> GemmAutotune::ignored() const {
  return measured_ ? gemm_algorithm_cache().ignored() : std::vector<std::string>();
}

std::string GemmAutotune::measure(const std::vector<MatmulWay>& ways,
                                  const std::vector<Kernel*>& kernels) {
  CudaBlasApi& blas = gpu_.api.blas();
  CudaStreamApi& streams = gpu_.api.streams();
  const CudaStream compute = streams_.compute();
  const Timers timers(streams);
  double spent = 0;
  const auto seconds_of = [&](const Candidate& c) {
    if (!blas.use_algorithm(ways[c.way].matmul, c.word)) return kNever;
    try {
      kernels[c.way]->run();
    } catch (const Error&) {  // the library found out only now that it cannot run it
      return kNever;
    }
    streams.record(timers.first, compute);
    for (int k = 0; k < kRepetitions; ++k) kernels[c.way]->run();
    streams.record(timers.last, compute);
    streams.synchronize(compute);
    const double seconds = streams.seconds_between(timers.first, timers.last);
    spent += seconds * (kRepetitions + 1) / kRepetitions;
    return seconds;
  };
  std::vector<Candidate> candidates;
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const std::string& word : blas.algorithms(ways[way].matmul, kMost[way]))
      candidates.push_back({way, word});
  }
  size_t best = 0;
  double least = seconds_of(candidates[0]);
  for (size_t k = 1; k < candidates.size() && spent < kEnough; ++k) {
    const double seconds = seconds_of(candidates[k]);
    if (seconds < kClearly * least) best = k, least = seconds;
  }
  // The first suggestion was measured first, perhaps before the GPU's clock was up: measure it
  // again.
  if (best != 0 && least >= kClearly * seconds_of(candidates[0])) best = 0;
  return fmt::format("{} {}", candidates[best].way, candidates[best].word);
}

/// Rank 0's choice if its library and GPU equal this rank's; else this rank's own.
std::string GemmAutotune::agreed(const std::string& problem, const std::string& library,
                                 const std::function<std::string()>& choose) {
  if (const auto it = agreed_.find(problem); it != agreed_.end()) return it->second;
  std::string choice;
  if (gpu_.world.rank() == 0) choice = choose();
  if (gpu_.world.size() > 1) {
    std::string text = library + "\n" + choice;
    TESSERA_CHECK(text.size() < kText, "the choice of an algorithm is {} bytes long", text.size());
    text.resize(kText);
    Collective send;
    send.kind = CollectiveKind::broadcast;
    send.dtype = DType::uint8;
    send.out = text.data();
    send.count = static_cast<int64_t>(kText);
    send.site.text = "matmul algorithms";
    gpu_.world.run(send);
    text.resize(std::min(text.find('\0'), text.size()));
    const size_t end = text.find('\n');
    const bool alike = end != std::string::npos && text.substr(0, end) == library;
    if (gpu_.world.rank() != 0) choice = alike ? text.substr(end + 1) : choose();
  }
  return agreed_[problem] = choice;
}

size_t GemmAutotune::choose(const CudaGemm& gemm, size_t calls, const std::vector<MatmulWay>& ways,
                            const std::vector<Kernel*>& kernels, const KernelArgs& args) {
  CudaBlasApi& blas = gpu_.api.blas();
  const std::string problem = problem_of(gemm, calls);
  const std::string library = ways.empty() ? "none" : blas.library();
  const auto may_overwrite = [&](const TensorArg& out) {
    return memory_.is_transient(range_of(out));
  };
  const std::string choice = agreed(problem, library, [&]() -> std::string {
    size_t all = 0;
    for (size_t way = 0; way < ways.size(); ++way)
      all += blas.algorithms(ways[way].matmul, kMost[way]).size();
    if (all < 2 || !may_time_matmuls() ||
        !std::all_of(args.out.begin(), args.out.end(), may_overwrite) ||
        gpu_.api.streams().is_capturing(streams_.compute()))
      return "";
    const std::string key = fmt::format("{}: {} alignment {} {} {}", library, problem, gemm.align_a,
                                        gemm.align_b, gemm.align_c);
    measured_ = true;
    return gemm_algorithm_cache().choose(key, [&] { return measure(ways, kernels); });
  });
  const size_t space = choice.find(' ');
  const size_t way = space == 1 && choice[0] > '0' ? static_cast<size_t>(choice[0] - '0') : 0;
  const std::string word = space == 1 ? choice.substr(space + 1) : "";
  // The choice may have been made for operands with larger alignment, and the library does not
  // check that: it must be among the algorithms for these.
  const auto allows = [&](CudaMatmul matmul) {
    const std::vector<std::string> all = blas.algorithms(matmul, kMost[way]);
    return std::find(all.begin(), all.end(), word) != all.end();
  };
  const bool known = space == 1 && way < ways.size() && allows(ways[way].matmul) &&
                     blas.use_algorithm(ways[way].matmul, word);
  if (known || ways.empty()) return known ? way : 0;
  const std::vector<std::string> first = blas.algorithms(ways[0].matmul, 1);
  if (!first.empty()) blas.use_algorithm(ways[0].matmul, first[0]);
  return 0;
}

}  // namespace tessera
