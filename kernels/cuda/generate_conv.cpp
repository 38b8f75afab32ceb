// Convolution and its two transposes by direct loops. A thread (for the filter, a block of threads)
// computes one element of the result and walks the summed dims in a fixed order. Of the three
// indices along a spatial dim, in = stride * out + dilation * window - lo, the result's is given,
// one is summed over, and the third follows. Padding of a result is not written.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

namespace {

enum Kind : int64_t { kGroup = 0, kImages = 1, kInputs = 2, kOutputs = 3 };
enum Side : size_t { kX = 0, kFilter = 1, kY = 2 };

/// A loop, or a part of a result's index: its name and size.
struct Index {
  std::string name;
  int64_t size = 1;
};

/// The type for numbers below `count`: 32-bit divisions are several times cheaper.
const char* type_of(int64_t count) { return count <= INT32_MAX ? "int" : "long long"; }

/// Declares the indices, "const int a = e % 4; ...", from a `linear` index below `count`; the last
/// is the fastest.
std::string decode(const std::vector<Index>& indices, const std::string& linear, int64_t count) {
  std::string text;
  const bool wide = count > INT32_MAX;
  int64_t inner = 1;
  for (size_t i = indices.size(); i-- > 0; inner *= indices[i].size) {
    text += fmt::format("  const {} {} = {} / {}{} % {}{};\n", type_of(count), indices[i].name,
                        linear, inner, wide ? "ll" : "", indices[i].size, wide ? "ll" : "");
  }
  return text;
}

int64_t count(const std::vector<Index>& indices) {
  int64_t n = 1;
  for (const Index& i : indices) n *= i.size;
  return n;
}

class ConvText {
 public:
  explicit ConvText(const KernelArgs& args)
      : args_(args), spec_(args.step->as<ConvSpec>()), arguments_(args) {
    const int64_t result = spec_.result;  // 0: y, 1: x, 2: filter
    result_ = result == 0 ? kY : result == 1 ? kX : kFilter;
    const size_t operands[3][2] = {{kX, kFilter}, {kY, kFilter}, {kX, kY}};
    for (size_t i = 0; i < 2; ++i) side_[operands[result][i]] = &args.in.at(i);
    side_[result_] = &args.out.at(0);
    for (size_t i = 0; i < 2; ++i) base_[operands[result][i]] = arguments_.in(static_cast<int>(i));
    base_[result_] = arguments_.out(0);
    factors();
    for (size_t s = 0; first_ + s < side_[kX]->sizes.size(); ++s) spatial(s);
  }

  Source generate() {
    const int64_t results = count(kept_), summed = count(summed_);
    if (results == 0) return {};
    const DType dtype = args_.out[0].dtype;
    const char* type = register_type(dtype);
    int across = 1;  // threads per result
    while (result_ == kFilter && across < 256 && across * 2 <= summed) across *= 2;
    const int64_t side = kThreads / across;
    std::string body = fmt::format(
        "  const long long wanted = static_cast<long long>(blockIdx.x) * {} + threadIdx.x / {};\n",
        side, across);
    body += fmt::format(
        "  const {0} e = wanted < {1}ll ? static_cast<{0}>(wanted) : 0;\n{2}"
        "  const bool live = wanted < {1}ll{3};\n  {4} sum = 0;\n",
        type_of(results), results, decode(kept_, "e", results), valid_, type);
    body += fmt::format(
        "  for ({} r = threadIdx.x % {}; live && r < {}; r += {}) {{\n{}{}"
        "    sum = math::fma(widen({}[{}]), widen({}[{}]), sum);\n  }}\n",
        type_of(summed + kThreads), across, summed, across, decode(summed_, "r", summed + kThreads),
        inner_, base_[args_in(0)], offset_[args_in(0)], base_[args_in(1)], offset_[args_in(1)]);
    if (across > 1) {
      if (across > 32) body += fmt::format("  __shared__ {} parts[{}];\n", type, kThreads / 32);
      body += fmt::format("  sum = reduce_threads<Sum, {}>(sum, {});\n", across,
                          across > 32 ? "parts" : fmt::format("static_cast<{}*>(nullptr)", type));
    }
    body += fmt::format("  if (live && threadIdx.x % {} == 0) narrow(sum, {}[{}]);\n", across,
                        base_[result_], offset_[result_]);
    Source source;
    source.text = unit(arguments_, kThreads, body);
    source.words = arguments_.words();
    source.threads = kThreads;
    source.blocks = (results + side - 1) / side;
    return source;
  }

 private:
  size_t args_in(size_t i) const {
    return i == 0 ? (result_ == kX ? kY : kX) : (result_ == kFilter ? kY : kFilter);
  }
  static bool has(size_t side, int64_t kind) {
    return kind == kGroup || (kind == kImages && side != kFilter) ||
           (kind == kInputs && side != kY) || (kind == kOutputs && side != kX);
  }
  void add_offset(size_t side, size_t dim, const std::string& index) {
    offset_[side] += fmt::format(" + {} * {}ll", index, side_[side]->strides[dim]);
  }

  void factors() {
    const auto& kinds = spec_.kinds;
    first_ = kinds.size();
    for (size_t d = 0; d < first_; ++d) {
      int64_t size = 1;
      for (const TensorArg* t : side_) size = std::max(size, t->sizes[d]);
      const std::string name = fmt::format("f{}", d);
      (has(result_, kinds[d]) ? kept_ : summed_).push_back({name, size});
      for (size_t x : {kX, kFilter, kY}) {
        if (has(x, kinds[d])) add_offset(x, d, name);
      }
    }
  }

  void spatial(size_t s) {
    const ConvSpec& c = spec_;
    const size_t dim = first_ + s;
    const int base = static_cast<int>(3 * s);
    const std::string begin[3] = {arguments_.expr(base), arguments_.expr(base + 2),
                                  arguments_.expr(base + 1)};  // by Side
    const char* letters[3] = {"i", "k", "o"};
    const size_t walked = result_ == kFilter ? kY : kFilter;
    std::string name[3];
    for (size_t x : {kX, kFilter, kY}) {
      name[x] = fmt::format("{}{}", letters[x], s);
      add_offset(x, dim, name[x]);
    }
    kept_.push_back({name[result_], side_[result_]->sizes[dim]});
    summed_.push_back({name[walked], side_[walked]->sizes[dim]});
    const std::string in = fmt::format("({} + {})", name[kX], begin[kX]),
                      window = fmt::format("({} + {})", name[kFilter], begin[kFilter]),
                      out = fmt::format("({} + {})", name[kY], begin[kY]);
    const std::string inside[3] = {fmt::format("{0} >= 0 && {0} < {1}ll", in, c.in_sizes[s]),
                                   fmt::format("{} < {}ll", window, c.window_sizes[s]),
                                   fmt::format("{0} >= 0 && {0} < {1}ll", out, c.out_sizes[s])};
    if (result_ != kX) valid_ += " && " + inside[result_];
    inner_ += fmt::format("    if (!({})) continue;\n", inside[walked]);
    if (result_ == kX) {
      inner_ += fmt::format(
          "    const long long reached{0} = {1} + ({2}ll) - {3}ll * {4};\n"
          "    if (!({5}) || reached{0} < 0 || reached{0} % {6}ll != 0) continue;\n"
          "    const long long {7} = reached{0} / {6}ll - {8};\n",
          s, in, c.los[s], c.dilations[s], window, inside[kX], c.strides[s], name[kY], begin[kY]);
      inner_ += fmt::format("    if (!({}) || {} < 0 || {} >= {}ll) continue;\n", inside[kY],
                            name[kY], name[kY], side_[kY]->sizes[dim]);
      return;
    }
    inner_ += fmt::format(
        "    const long long {0} = {1}ll * {2} + {3}ll * {4} - ({5}ll) - {6};\n"
        "    if (!({7}) || {0} < 0 || {0} >= {8}ll) continue;\n",
        name[kX], c.strides[s], out, c.dilations[s], window, c.los[s], begin[kX], inside[kX],
        side_[kX]->sizes[dim]);
  }

  const KernelArgs& args_;
  const ConvSpec& spec_;
  Arguments arguments_;
  size_t result_ = kY, first_ = 0;
  const TensorArg* side_[3] = {};
  std::string base_[3], offset_[3] = {"0", "0", "0"};
  std::vector<Index> kept_, summed_;
  std::string valid_, inner_;
};

}  // namespace

Source generate_conv(const KernelArgs& args) { return ConvText(args).generate(); }

}  // namespace tessera::cuda
