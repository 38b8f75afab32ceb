// Instantiates the kernels of kernels/cuda/attention.h for the sizes and strides of a step; for
// bfloat16 and float16 those on tensor cores, which every supported GPU has.
#include <algorithm>
#include <array>

#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

constexpr int64_t kSharedBytes = 47 << 10;
constexpr int kThreads = 256;

int64_t wide_size(DType t) { return t == DType::float64 ? 8 : 4; }

/// Rows per block: as many as fit into shared memory, at most 32; 0 if not even 8 fit.
int64_t block_of(int64_t width, DType dtype) {
  for (int64_t block = 32; block >= 8; block /= 2) {
    if (wide_size(dtype) * (3 * block * (width + 1) + 2 * block * (block + 1)) <= kSharedBytes)
      return block;
  }
  return 0;
}

/// The shape of a tensor core kernel: warps of 16 rows per block, rows of the other side per tile,
/// and whether a warp's own rows are in registers. Limited by 48 KiB of shared memory and 255
/// registers without spills; a width of 64 leaves room for three blocks.
struct TensorPlan {
  int64_t warps = 4, tile = 32;
  bool free = true;
};
enum class Which : uint8_t { forward, by_queries, by_keys };
constexpr int64_t kTensorWidth = 160, kTensorGradWidth = 128;  ///< at most
TensorPlan tensor_plan(Which which, int64_t width) {
  switch (which) {
    case Which::forward:
      return {4, width <= 64 ? 64 : width <= 128 ? 32 : 16, true};
    case Which::by_queries:
      return {4, 32, true};
    case Which::by_keys:
      return {width <= 96 ? 4 : 2, width <= 64 ? 32 : 16, width <= 64};
  }
  return {};
}

class Text {
 public:
  explicit Text(const KernelArgs& args) : args_(args), arguments_(args) {
    const Attrs& a = args.step->attrs;
    length_dim_ = static_cast<size_t>(a.get<int64_t>("length"));
    memory_dim_ = static_cast<size_t>(a.get<int64_t>("memory_length"));
    key_dim_ = static_cast<size_t>(a.get<int64_t>("key_dim"));
    length_ = args.in.at(0).sizes[length_dim_];
    memory_ = args.in.at(1).sizes[memory_dim_];
    width_ = args.in[0].sizes[key_dim_];
    backward_ = args.out.size() > 2;
    loops_.strides.resize(operands());
    const std::vector<int64_t>& sizes = args.in[0].sizes;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (d == length_dim_ || d == memory_dim_ || d == key_dim_) continue;
      std::vector<int64_t> strides;
      for (size_t x = 0; x < operands(); ++x) strides.push_back(operand(x).strides[d]);
      dims_.push_back({sizes[d], strides});
    }
    std::reverse(dims_.begin(), dims_.end());
    for (const auto& [size, strides] : dims_) loops_.add_dim(size, strides);
    loops_.drop_ones();
    loops_.merge();
    tensor_ = fits_tensor_cores();
  }

  Source forward() {
    choose(Which::forward);
    std::string body = by_block(length_, loops_);
    const size_t out = args_.in.size();
    body += fmt::format("  {}attention<C>(block, {}, {}, {}, {}, {}, {}, {});\n", kind(),
                        first_query(loops_), first_key(loops_), matrix(0), matrix(1), matrix(2),
                        matrix(out), numbers(out + 1));
    return finish(body, length_, loops_);
  }

  Source by_queries() {
    choose(Which::by_queries);
    std::string body = by_block(length_, loops_);
    body +=
        fmt::format("  {}attention_grad_queries<C>(block, {}, {}, {}, {}, {}, {}, {}, {}, {});\n",
                    kind(), first_query(loops_), first_key(loops_), matrix(0), matrix(1), matrix(2),
                    matrix(kGrad), matrix(args_.in.size()), numbers(kLogSum), numbers(kProduct));
    return finish(body, length_, loops_);
  }

  Source by_keys() {
    choose(Which::by_keys);
    const size_t dk = args_.in.size() + 1, dv = dk + 1;
    kernels::Nest kept, shared;
    kept.strides.resize(operands());
    shared.strides.resize(operands());
    for (const auto& [size, strides] : dims_) {
      const bool is_shared = strides[dk] == 0 && size > 1;
      check(!is_shared || strides[dv] == 0, "attention shares keys, but not values");
      for (size_t x = starts(); x < args_.in.size(); ++x)
        check(!is_shared || strides[x] == 0,
              "attention shares keys, but not where they or the queries begin");
      (is_shared ? shared : kept).add_dim(size, strides);
    }
    kept.drop_ones();
    kept.merge();
    shared.merge();
    std::string body = by_block(memory_, kept);
    constexpr std::array<size_t, 4> kOfQueries = {0, kGrad, kLogSum, kProduct};
    std::string places, of;
    for (size_t i = 0; i < kOfQueries.size(); ++i) {
      const auto x = static_cast<int>(kOfQueries[i]);
      places += fmt::format("      shared_at[{}] = {};\n", i, offset_text(shared, x, 1, true));
      of += fmt::format("{}{}{{{} + ({}) + shared_at[{}]}}", i > 0 ? ", " : "",
                        i < 2 ? type(kOfQueries[i]) : numbers_type(kOfQueries[i]), arguments_.in(x),
                        offset_text(kept, x, 1, true), i);
    }
    body += fmt::format(
        "  auto of = [&](long long s) {{\n    long long shared_at[4];\n    {{\n{}{}    }}\n",
        dims_text(shared, "s", "long long", 1), places);
    body += fmt::format("    return Queries<{}, {}, {}, {}>{{{}}};\n  }};\n", type(0), type(kGrad),
                        numbers_type(kLogSum), numbers_type(kProduct), of);
    body += fmt::format("  {}attention_grad_keys<C>(block, {}, {}, {}, {}, {}ll, of, {}, {});\n",
                        kind(), first_query(kept), first_key(kept), matrix(1, kept),
                        matrix(2, kept), shared.elements(), matrix(dk, kept), matrix(dv, kept));
    return finish(body, memory_, kept);
  }

 private:
  size_t operands() const { return args_.in.size() + args_.out.size(); }
  const TensorArg& operand(size_t x) const {
    return x < args_.in.size() ? args_.in[x] : args_.out[x - args_.in.size()];
  }
  void choose(Which which) {
    which_ = which;
    plan_ = tensor_plan(which, width_);
    block_ = tensor_ ? plan_.warps * 16 : block_of(width_, args_.in[0].dtype);
  }
  /// One decision for both kernels of a gradient, which share the workspace. Scores are only scaled
  /// when they are exponentiated, so the maximum needs a positive scale.
  bool fits_tensor_cores() const {
    const DType dtype = args_.in[0].dtype;
    for (const std::vector<size_t>& all :
         {std::vector<size_t>{0, 1, 2, args_.in.size()},
          backward_ ? std::vector<size_t>{kGrad, args_.in.size() + 1, args_.in.size() + 2}
                    : std::vector<size_t>{}}) {
      for (size_t x : all) {
        if (operand(x).dtype != dtype) return false;
      }
    }
    return is_narrow(dtype) && width_ <= (backward_ ? kTensorGradWidth : kTensorWidth) &&
           std::max(length_, memory_) < (int64_t{1} << 30) &&
           args_.step->attrs.get<double>("scale") > 0;
  }
  const char* kind() const { return tensor_ ? "tensor_" : ""; }
  const char* wide() const { return args_.in[0].dtype == DType::float64 ? "double" : "float"; }
  std::string first_query(const kernels::Nest& nest) {
    const std::string own = arguments_.expr(0);
    return args_.in.size() > starts() ? own + " + " + start(starts(), nest) : own;
  }
  std::string first_key(const kernels::Nest& nest) {
    const std::string own = arguments_.expr(1);
    return args_.in.size() > starts() + 1 ? own + " + " + start(starts() + 1, nest) : own;
  }
  std::string start(size_t x, const kernels::Nest& nest) {
    const auto in = static_cast<int>(x);
    return fmt::format("{}[{}]", arguments_.in(in), offset_text(nest, in, 1, true));
  }

  /// Further inputs of a gradient; input 4 is the result.
  static constexpr size_t kGrad = 3, kLogSum = 5, kProduct = 6;
  /// The first position input.
  size_t starts() const { return backward_ ? 7 : 3; }

  /// The C++ type of operand x with one number per query: "Numbers<const float, 1>".
  std::string numbers(size_t x) {
    const bool in = x < args_.in.size();
    const std::string base = in ? arguments_.in(static_cast<int>(x))
                                : arguments_.out(static_cast<int>(x - args_.in.size()));
    return fmt::format("{}{{{} + {}}}", numbers_type(x), base,
                       offset_text(loops_, static_cast<int>(x), 1, true));
  }
  std::string numbers_type(size_t x) const {
    return fmt::format("Numbers<{}{}, {}ll>", x < args_.in.size() ? "const " : "", wide(),
                       operand(x).strides[length_dim_]);
  }

  size_t row_dim(size_t x) const {
    const bool is_query = x == 0 || x == args_.in.size() || (backward_ && x == kGrad);
    return is_query ? length_dim_ : memory_dim_;
  }

  /// Neighbouring columns of operand x per access of at most 16 bytes: 8, 4, 2 or 1.
  int64_t vector(size_t x) const {
    const TensorArg& arg = operand(x);
    if (arg.strides[key_dim_] != 1) return 1;
    int64_t vector = 8;
    auto limit = [&](int64_t to) {
      while (to % vector != 0) vector /= 2;
    };
    limit(width_);
    limit(arg.strides[row_dim(x)]);
    limit(static_cast<int64_t>(reinterpret_cast<uintptr_t>(arg.data) / 2 % 8));
    for (const auto& [size, strides] : dims_) limit(size > 1 ? strides[x] : 0);
    return vector;
  }

  /// The C++ type of operand x, a query, key or value: "Positions<const float, 64, 1>".
  std::string type(size_t x) const {
    const TensorArg& arg = operand(x);
    const std::string kind = tensor_ ? "Rows" : "Positions";
    return fmt::format("{}<{}{}, {}ll, {}ll{}>", kind, x < args_.in.size() ? "const " : "",
                       memory_type(arg.dtype), arg.strides[row_dim(x)], arg.strides[key_dim_],
                       tensor_ ? fmt::format(", {}", vector(x)) : "");
  }
  std::string matrix(size_t x) { return matrix(x, loops_); }
  std::string matrix(size_t x, const kernels::Nest& nest) {
    const size_t inputs = args_.in.size();
    const std::string base = x < inputs ? arguments_.in(static_cast<int>(x))
                                        : arguments_.out(static_cast<int>(x - inputs));
    return fmt::format("{}{{{} + {}}}", type(x), base,
                       offset_text(nest, static_cast<int>(x), 1, true));
  }

  int64_t blocks(int64_t rows) const { return (rows + block_ - 1) / block_; }
  /// Late blocks of rows attend to more keys, so they are started first.
  std::string by_block(int64_t rows, const kernels::Nest& nest) const {
    return fmt::format(
        "  const long long block = {0}ll - blockIdx.x % {1}ll;\n{2}", blocks(rows) - 1,
        blocks(rows),
        dims_text(nest, fmt::format("blockIdx.x / {}ll", blocks(rows)), "long long", 1));
  }

  /// The kernel's template argument C, and the header that the kernel is in.
  std::string configuration() const {
    const Attrs& a = args_.step->attrs;
    const std::string own =
        tensor_ ? fmt::format(
                      "  using Type = {};\n  static constexpr int kWarps = {}, kTile = {};\n"
                      "  static constexpr bool kFree = {};\n",
                      memory_type(args_.in[0].dtype), plan_.warps, plan_.tile, plan_.free)
                : fmt::format("  static constexpr int kBlock = {};\n", block_);
    return fmt::format(
        "struct C {{\n  using Wide = {};\n{}  static constexpr int kWidth = {};\n"
        "  static constexpr long long kLength = {}, kMemory = {}, kAllKeys = {};\n"
        "  static constexpr bool kCausal = {};\n"
        "  static __device__ __forceinline__ Wide scale() {{ return {}; }}\n}};\n",
        wide(), own, width_, length_, memory_, a.get<int64_t>("memory", 0),
        a.get<int64_t>("causal") != 0,
        literal(args_.in[0].dtype == DType::float64 ? DType::float64 : DType::float32,
                a.get<double>("scale")));
  }
  const char* header() const {
    return !tensor_                   ? "kernels/cuda/attention.h"
           : which_ == Which::forward ? "kernels/cuda/attention_tensor.h"
                                      : "kernels/cuda/attention_tensor_grad.h";
  }

  Source finish(const std::string& body, int64_t rows, const kernels::Nest& nest) {
    Source source;
    source.threads = tensor_ ? static_cast<int>(plan_.warps) * 32 : kThreads;
    // Two blocks per multiprocessor: for three, the compiler would spill registers.
    source.text =
        unit(arguments_, source.threads, body, configuration(), header(), tensor_ ? 2 : 0);
    source.words = arguments_.words();
    source.blocks = blocks(rows) * nest.elements();
    return source;
  }

  const KernelArgs& args_;
  Arguments arguments_;
  size_t length_dim_ = 0, memory_dim_ = 0, key_dim_ = 0;
  bool backward_ = false, tensor_ = false;
  Which which_ = Which::forward;
  TensorPlan plan_;
  int64_t length_ = 0, memory_ = 0, width_ = 0, block_ = 0;
  std::vector<std::pair<int64_t, std::vector<int64_t>>> dims_;
  kernels::Nest loops_;
};

}  // namespace

bool can_attend(const Step& step) {
  for (const char* of_cpu : {"window", "segments", "soft_cap", "value_dim"}) {
    if (step.attrs.has(of_cpu)) return false;
  }
  const View& q = step.in.at(0);
  return block_of(q.sizes[static_cast<size_t>(step.attrs.get<int64_t>("key_dim"))], q.dtype) > 0;
}

Source generate_attention(const KernelArgs& args) { return Text(args).forward(); }
std::vector<Source> generate_attention_grad(const KernelArgs& args) {
  return {Text(args).by_queries(), Text(args).by_keys()};
}

}  // namespace tessera::cuda
