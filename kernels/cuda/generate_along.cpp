// Kernels along one dim of a tensor: prefix sums, the extreme element, and the k largest in order.
// The other dims are lines; `dims_text` gives a line's offsets.
#include <algorithm>

#include "kernels/common/along_dim.h"
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

/// How the threads of a kernel walk lines.
struct Lines {
  kernels::AlongDim along;

  Lines(const KernelArgs& args, int64_t dim) {
    std::vector<const TensorArg*> tensors = {&args.in.at(0)};
    for (const TensorArg& out : args.out) tensors.push_back(&out);
    for (size_t i = 1; i < args.in.size(); ++i) tensors.push_back(&args.in[i]);
    along = kernels::along_dim(tensors, dim);
  }
  int64_t count() const { return along.others.elements(); }
  /// Declares p0, p1, ...: the start of line `line` in each tensor.
  std::string offsets(const std::string& line) const {
    std::string text = dims_text(along.others, line, "long long", 1);
    for (size_t x = 0; x < along.stride.size(); ++x) {
      text += fmt::format("  const long long p{} = {};\n", x,
                          offset_text(along.others, static_cast<int>(x), 1, true));
    }
    return text;
  }
  /// Element `i` of the line in tensor `x` with address `base`.
  std::string element(size_t x, const std::string& base, const std::string& i) const {
    return fmt::format("{}[p{} + ({}) * {}ll]", base, x, i, along.stride[x]);
  }
};

int threads_for(int64_t elements) {
  int threads = 32;
  while (threads < 256 && threads < elements) threads *= 2;
  return threads;
}

Source finish(const Arguments& arguments, const std::string& body, int64_t blocks, int threads) {
  Source source;
  source.text = unit(arguments, threads, body);
  source.words = arguments.words();
  source.blocks = blocks;
  source.threads = threads;
  return source;
}

/// Declares ahead(a, i, b, j): true if a at i comes before b at j; of equal ones the first does.
std::string order_text(const char* type, bool largest, bool nan_first) {
  return fmt::format(
      "  auto ahead = [](const {0}& a, int i, const {0}& b, int j) -> bool {{\n"
      "    const bool a_nan = a != a, b_nan = b != b;\n"
      "    if (a_nan || b_nan) return a_nan != b_nan ? a_nan == {1} : i < j;\n"
      "    return a != b ? a {2} b : i < j;\n  }};\n",
      type, nan_first, largest ? ">" : "<");
}

/// Declares shared memory for values with their positions, and this thread's line and index.
std::string places_text(const Lines& lines, const char* type, int64_t n) {
  return fmt::format(
      "  __shared__ {0} values[{1}];\n  __shared__ int places[{1}];\n"
      "  const int t = static_cast<int>(threadIdx.x);\n  const long long line = blockIdx.x;\n{2}",
      type, n, lines.offsets("line"));
}

/// Reduces all threads' `best` at `place` (-1: none) to values[0] and places[0].
std::string best_text(int threads, const std::string& indent) {
  std::string text = fmt::format(
      "values[t] = best;\nplaces[t] = place;\n__syncthreads();\n"
      "for (int half = {}; half > 0; half /= 2) {{\n"
      "  if (t < half && places[t + half] >= 0 &&\n"
      "      (places[t] < 0 || ahead(values[t + half], places[t + half], values[t], places[t]))) "
      "{{\n"
      "    values[t] = values[t + half];\n    places[t] = places[t + half];\n  }}\n"
      "  __syncthreads();\n}}\n",
      threads / 2);
  std::string indented;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at) + 1;
    indented += indent + text.substr(at, end - at);
    at = end;
  }
  return indented;
}

/// Sorts a line in shared memory (Batcher's bitonic network), padded to a power of two with
/// elements that come last.
std::string sort_text(const std::string& order, const Lines& lines, const std::string& in,
                      const char* type, int64_t padded, int threads) {
  const int64_t size = lines.along.size;
  return places_text(lines, type, padded) + order +
         fmt::format(
             "  for (int i = t; i < {0}; i += {1}) {{\n    places[i] = i;\n"
             "    values[i] = i < {2} ? widen({3}) : {4}(0);\n  }}\n  __syncthreads();\n",
             padded, threads, size, lines.element(0, in, "i"), type) +
         fmt::format(
             "  for (int run = 2; run <= {0}; run *= 2) {{\n"
             "    for (int step = run / 2; step > 0; step /= 2) {{\n"
             "      for (int pair = t; pair < {0} / 2; pair += {1}) {{\n"
             "        const int i = pair / step * 2 * step + pair % step, j = i + step;\n"
             "        const {3} a = values[i], b = values[j];\n"
             "        const int at = places[i], bt = places[j];\n"
             "        const bool swap = bt < {2} && (at >= {2} || ahead(b, bt, a, at));\n"
             "        if (swap == ((i & run) == 0)) {{\n"
             "          values[i] = b;\n          values[j] = a;\n"
             "          places[i] = bt;\n          places[j] = at;\n        }}\n      }}\n"
             "      __syncthreads();\n    }}\n  }}\n",
             padded, threads, size, type);
}

}  // namespace

Source generate_cumsum(const KernelArgs& args) {
  const Lines lines(args, args.step->as<ScanSpec>().dim);
  const int64_t size = lines.along.size, count = lines.count();
  if (size == 0 || count == 0) return {};
  const DType dtype = args.in[0].dtype;
  const bool exclusive = args.step->as<ScanSpec>().exclusive,
             reverse = args.step->as<ScanSpec>().reverse;
  Arguments arguments(args);
  const std::string in = arguments.in(0), out = arguments.out(0);
  const char* type = is_floating(dtype) ? "double" : register_type(dtype);
  const char* back = is_floating(dtype) ? register_type(dtype) : type;
  const std::string at = reverse ? fmt::format("{} - i", size - 1) : "i";
  const std::string x = fmt::format("widen({})", lines.element(0, in, at));
  const std::string y = lines.element(1, out, at);
  const bool has_decay = args.in.size() > 1;
  const std::string decay =
      has_decay ? fmt::format("widen({})", lines.element(2, arguments.in(1), at)) : std::string();
  const bool dense = std::abs(lines.along.stride[0]) == 1;
  if (!dense && count >= 32) {  // neighbouring lines, one thread per line
    constexpr int kThreads = 128;
    std::string body = fmt::format(
        "  const long long line = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
        "  if (line >= {}) return;\n{}  {} sum = 0;\n  for (int i = 0; i < {}; ++i) {{\n"
        "    const {} before = sum;\n    sum = Sum::apply(sum{}, static_cast<{}>({}));\n"
        "    narrow(static_cast<{}>({}), {});\n  }}\n",
        kThreads, count, lines.offsets("line"), type, size, type,
        has_decay ? " * static_cast<double>(" + decay + ")" : "", type, x, back,
        exclusive ? "before" : "sum", y);
    return finish(arguments, body, (count + kThreads - 1) / kThreads, kThreads);
  }
  const int threads = threads_for(size);
  std::string body = fmt::format("  const long long line = blockIdx.x;\n{}", lines.offsets("line"));
  if (has_decay) {
    body += fmt::format(
        "  __shared__ double parts[{0}], decays[{0}];\n  double carry = 0;\n"
        "  for (int first = 0; first < {1}; first += {0}) {{\n"
        "    const int i = first + static_cast<int>(threadIdx.x), t = threadIdx.x;\n"
        "    parts[t] = i < {1} ? static_cast<double>({2}) : 0.0;\n"
        "    decays[t] = i < {1} ? static_cast<double>({3}) : 1.0;\n"
        "    scan_threads_with_decay<{0}>(parts, decays);\n"
        "    if (i < {1}) narrow(static_cast<{4}>(parts[t] + decays[t] * carry), {5});\n"
        "    carry = parts[{0} - 1] + decays[{0} - 1] * carry;\n    __syncthreads();\n  }}\n",
        threads, size, x, decay, back, y);
    return finish(arguments, body, count, threads);
  }
  body += fmt::format(
      "  __shared__ {0} parts[{1}];\n  {0} carry = 0;\n"
      "  for (int first = 0; first < {2}; first += {1}) {{\n"
      "    const int i = first + static_cast<int>(threadIdx.x);\n"
      "    const {0} x = i < {2} ? static_cast<{0}>({3}) : {0}(0);\n"
      "    const {0} sum = scan_threads<{1}>(x, parts);\n"
      "    const {0} before = Sum::apply(carry, threadIdx.x == 0 ? {0}(0) : parts[threadIdx.x - "
      "1]);\n"
      "    if (i < {2}) narrow(static_cast<{4}>({5}), {6});\n"
      "    carry = Sum::apply(carry, parts[{1} - 1]);\n    __syncthreads();\n  }}\n",
      type, threads, size, x, back, exclusive ? "before" : "Sum::apply(carry, sum)", y);
  return finish(arguments, body, count, threads);
}

Source generate_arg_reduce(const KernelArgs& args) {
  const Lines lines(args, args.step->as<ArgReduceSpec>().dim);
  const int64_t size = lines.along.size, count = lines.count();
  if (count == 0) return {};
  TESSERA_CHECK(size > 0, "arg_reduce along a dim of size 0");
  Arguments arguments(args);
  const std::string in = arguments.in(0), value = arguments.out(0), index = arguments.out(1),
                    first = arguments.expr(0);
  const char* type = register_type(args.in[0].dtype);
  const char* index_type = register_type(args.out[1].dtype);
  const bool max = args.step->combiner == Combiner::max;
  const int threads = threads_for(size);
  std::string body = places_text(lines, type, threads) + order_text(type, max, true);
  body += fmt::format(
      "  int place = -1;\n  {0} best = 0;\n  for (int i = t; i < {1}; i += {2}) {{\n"
      "    const {0} x = widen({3});\n    if (place >= 0 && !ahead(x, i, best, place)) continue;\n"
      "    best = x;\n    place = i;\n  }}\n{4}",
      type, size, threads, lines.element(0, in, "i"), best_text(threads, "  "));
  body += fmt::format(
      "  if (t == 0) {{\n    {}[p1] = {};\n    {}[p2] = static_cast<{}>({} + places[0]);\n  }}\n",
      value, lines.element(0, in, "places[0]"), index, index_type, first);
  return finish(arguments, body, count, threads);
}

Source generate_top_k(const KernelArgs& args) {
  const Lines lines(args, args.step->as<ArgReduceSpec>().dim);
  const int64_t size = lines.along.size, count = lines.count();
  const auto dim = static_cast<size_t>(args.step->as<ArgReduceSpec>().dim);
  const int64_t k = args.out.at(0).sizes.at(dim);
  TESSERA_CHECK(k <= size, "the {} largest of {} elements", k, size);
  if (count == 0 || k == 0) return {};
  Arguments arguments(args);
  const std::string in = arguments.in(0), value = arguments.out(0), index = arguments.out(1),
                    first = arguments.expr(0);
  const char* type = register_type(args.in[0].dtype);
  const char* index_type = register_type(args.out[1].dtype);
  const bool largest = !args.step->as<ArgReduceSpec>().smallest;
  const std::string order = order_text(type, largest, largest);
  auto store = [&](const char* rank, const std::string& place) {
    return fmt::format("{} = {};\n{} = static_cast<{}>({} + {});\n", lines.element(1, value, rank),
                       lines.element(0, in, place), lines.element(2, index, rank), index_type,
                       first, place);
  };
  constexpr int64_t kSorted = 4096;  // elements that fit into shared memory with their positions
  if (size <= kSorted) {
    int64_t padded = 2;
    while (padded < size) padded *= 2;
    const int threads = threads_for(padded / 2);
    const std::string body = sort_text(order, lines, in, type, padded, threads) +
                             fmt::format("  for (int r = t; r < {}; r += {}) {{\n    {}  }}\n", k,
                                         threads, store("r", "places[r]"));
    return finish(arguments, body, count, threads);
  }
  constexpr int kThreads = 256;  // k times: the best of those after the last one
  const std::string body =
      places_text(lines, type, kThreads) + order +
      fmt::format(
          "  {0} last = 0;\n  int last_place = -1;\n  for (int r = 0; r < {1}; ++r) {{\n"
          "    {0} best = 0;\n    int place = -1;\n"
          "    for (int i = t; i < {2}; i += {3}) {{\n      const {0} x = widen({4});\n"
          "      if (r > 0 && !ahead(last, last_place, x, i)) continue;\n"
          "      if (place >= 0 && !ahead(x, i, best, place)) continue;\n"
          "      best = x;\n      place = i;\n    }}\n{5}"
          "    last = values[0];\n    last_place = places[0];\n"
          "    if (t == 0) {{\n      {6}    }}\n    __syncthreads();\n  }}\n",
          type, k, size, kThreads, lines.element(0, in, "i"), best_text(kThreads, "    "),
          store("r", "last_place"));
  return finish(arguments, body, count, kThreads);
}

}  // namespace tessera::cuda
