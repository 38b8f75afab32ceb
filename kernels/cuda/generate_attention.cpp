// Instantiates the kernels of kernels/cuda/attention.h for the sizes and strides of a step; for
// bfloat16 and float16 those on tensor cores, which every supported GPU has. With segments the
// kernel of kernels/cuda/segment_spans.h runs first.
#include <algorithm>
#include <array>
#include <optional>

#include "kernels/cuda/attention_dot.h"
#include "kernels/cuda/codegen.h"
#include "program/attention_step.h"

namespace tessera::cuda {

namespace {

constexpr int64_t kSharedBytes = 47 << 10;
constexpr int64_t kSpanBytes = 8;
constexpr int64_t kSpanChunk = 1024;  ///< as in kernels/cuda/segment_spans.h

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

/// The rows of ids: the indices of the dims that segments have besides their positions. And where
/// the workspace has the spans of each: those of all rows' queries, then (in a gradient) of the
/// keys.
class SpanRows {
 public:
  template <class Operands>
  SpanRows(const AttentionStep& attention, const Operands& in)
      : has_(attention.has_segments),
        queries_(attention.mask.queries),
        keys_(attention.mask.keys),
        has_keys_(attention.backward) {
    if (!has_) return;
    const auto &own = in[in.size() - 2].strides, &theirs = in[in.size() - 1].strides;
    const auto& sizes = in[0].sizes;
    strides_.resize(sizes.size());
    for (size_t d = sizes.size(); d-- > 0;) {
      if (d == attention.length_dim || d == attention.memory_dim || d == attention.key_dim ||
          sizes[d] == 1 || (own[d] == 0 && theirs[d] == 0))
        continue;
      strides_[d] = count_;
      count_ *= sizes[d];
    }
  }
  bool is_row(size_t dim) const { return has_ && strides_[dim] != 0; }
  /// Of the number of a row, by dim of the views.
  int64_t stride(size_t dim) const { return has_ ? strides_[dim] : 0; }
  int64_t count() const { return count_; }
  int64_t first_of_keys() const { return count_ * queries_; }
  int64_t bytes() const {
    return has_ ? count_ * (queries_ + (has_keys_ ? keys_ : 0)) * kSpanBytes : 0;
  }

 private:
  bool has_;
  int64_t queries_, keys_, count_ = 1;
  bool has_keys_;
  std::vector<int64_t> strides_;
};

class AttentionText {
 public:
  explicit AttentionText(const KernelArgs& args)
      : args_(args), attention_(*args.step), rows_(attention_, args.in), arguments_(args) {
    length_ = attention_.mask.queries;
    memory_ = attention_.mask.keys;
    width_ = args.in[0].sizes[attention_.key_dim];
    backward_ = attention_.backward;
    if (attention_.dropout > 0) drawn_.emplace(*args.step);
    const std::vector<int64_t>& sizes = args.in[0].sizes;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (!attention_.is_loop(d)) continue;
      std::vector<int64_t> strides;
      for (size_t x = 0; x < operands(); ++x) strides.push_back(operand(x).strides[d]);
      strides.push_back(rows_.stride(d));
      strides.push_back(drawn_ ? drawn_->strides[d] : 0);
      dims_.push_back({sizes[d], strides, rows_.is_row(d)});
    }
    loops_ = nest_of([](const LoopDim&) { return true; });
    loops_.drop_ones();
    loops_.merge();
    tensor_ = fits_tensor_cores();
  }

  bool has_spans() const { return attention_.has_segments; }
  bool has_entries() const { return attention_.has_entries(); }

  /// A block for each chunk of positions of each row of ids.
  Source spans() {
    const kernels::Nest rows = nest_of([](const LoopDim& dim) { return dim.is_row; });
    const int64_t longest = backward_ ? std::max(length_, memory_) : length_;
    const int64_t chunks = (longest + kSpanChunk - 1) / kSpanChunk;
    const size_t own = args_.in.size() - 2, theirs = own + 1;
    std::string body = dims_text(rows, fmt::format("blockIdx.x / {}ll", chunks), "long long", 1);
    body += fmt::format(
        "  const long long row = {};\n  Span* const spans = {};\n"
        "  find_spans<{}>(static_cast<int>(blockIdx.x % {}ll), {}, {}, {}, {}, {}, {}, spans + row "
        "* "
        "{}ll, spans + {}ll + row * {}ll, static_cast<unsigned long long>({}), {});\n",
        offset_text(rows, row_operand(), 1, true), spans_address(), backward_, chunks,
        ids(own, attention_.length_dim, rows), length_, ids(theirs, attention_.memory_dim, rows),
        memory_, first_query(rows), first_key(rows), length_, rows_.first_of_keys(), memory_,
        arguments_.number(args_.number + 1), arguments_.fault());
    Source source;
    source.threads = kThreads;
    source.text = unit(arguments_, kThreads, body, "", "kernels/cuda/segment_spans.h");
    source.words = arguments_.words();
    source.blocks = chunks * rows_.count();
    return source;
  }

  Source forward() {
    choose(Which::forward);
    std::string body = by_block(length_, loops_);
    const size_t out = args_.in.size();
    body += fmt::format("  {}attention<C>(block, {}, {}, {}, {}, {}, {});\n", kind(),
                        sees("queries", loops_), matrix(0), matrix(1), matrix(2), matrix(out),
                        numbers(out + 1));
    return finish(body, length_, loops_);
  }

  Source by_queries() {
    choose(Which::by_queries);
    std::string body = by_block(length_, loops_), of_block = "nullptr";
    const int64_t all = blocks(length_);
    if (has_entries())
      of_block = fmt::format("{} + (blockIdx.x / {}ll * {}ll + block) * {}ll", sums_address(), all,
                             all, entries() * sums_of_block());
    body +=
        fmt::format("  {}attention_grad_queries<C>(block, {}, {}, {}, {}, {}, {}, {}, {}, {});\n",
                    kind(), sees("queries", loops_), matrix(0), matrix(1), matrix(2), matrix(kGrad),
                    matrix(args_.in.size()), numbers(kLogSum), numbers(kProduct), of_block);
    return finish(body, length_, loops_);
  }

  /// Behind by_queries(): a thread for each entry of each head.
  Source of_entries() {
    choose(Which::by_queries);
    const int64_t all = loops_.elements() * entries();
    const auto to = static_cast<int>(args_.out.size()) - 1;
    std::string body = fmt::format(
        "  const long long at = blockIdx.x * {0}ll + threadIdx.x;\n  if (at >= {1}ll) return;\n"
        "  const long long head = at / {2}ll, entry = at % {2}ll;\n{3}",
        kThreads, all, entries(), dims_text(loops_, "head", "long long", 1));
    body += fmt::format(
        "  sum_entries<C>({} + head * {}ll, {}, static_cast<int>(entry), {} + {} + entry * "
        "{}ll);\n",
        sums_address(), blocks(length_) * sums_of_block() * entries(),
        blocks(length_) * sums_of_block(), arguments_.out(to),
        offset_text(loops_, static_cast<int>(args_.in.size()) + to, 1, true),
        args_.out.back().strides[static_cast<size_t>(attention_.entries_dim)]);
    Source source;
    source.threads = kThreads;
    source.text = unit(arguments_, kThreads, body, configuration(), "kernels/cuda/attention.h");
    source.words = arguments_.words();
    source.blocks = (all + kThreads - 1) / kThreads;
    return source;
  }

  Source by_keys() {
    choose(Which::by_keys);
    const size_t dk = args_.in.size() + 1, dv = dk + 1;
    for (const LoopDim& dim : dims_) {
      if (!is_shared(dim)) continue;
      TESSERA_CHECK(dim.strides[dv] == 0, "attention shares keys, but not values");
      TESSERA_CHECK(!dim.is_row, "attention shares keys, but not their segments");
      for (size_t x = attention_.starts; x < attention_.starts + attention_.start_inputs; ++x)
        TESSERA_CHECK(dim.strides[x] == 0,
                      "attention shares keys, but not where they or the queries begin");
    }
    kernels::Nest kept = nest_of([this](const LoopDim&dim) { return !is_shared(dim); }),
                  shared = nest_of([this](const LoopDim&dim) { return is_shared(dim); });
    kept.drop_ones();
    kept.merge();
    shared.merge();
    std::string body = by_block(memory_, kept);
    std::string places, of;
    int count = 0;
    const auto place = [&](int x) {
      places += fmt::format("      shared_at[{}] = {};\n", count, offset_text(shared, x, 1, true));
      return fmt::format("({}) + shared_at[{}]", offset_text(kept, x, 1, true), count++);
    };
    for (const size_t x : {size_t{0}, kGrad, kLogSum, kProduct})
      of += fmt::format("{}{{{} + {}}}, ", x == 0 || x == kGrad ? type(x) : numbers_type(x),
                        arguments_.in(static_cast<int>(x)), place(static_cast<int>(x)));
    of += at_positions(place);
    body += fmt::format(
        "  auto of = [&](long long s) {{\n    long long shared_at[7];\n    {{\n{}{}    }}\n",
        dims_text(shared, "s", "long long", 1), places);
    body += fmt::format("    return Queries<C, {}, {}, {}, {}>{{{}}};\n  }};\n", type(0),
                        type(kGrad), numbers_type(kLogSum), numbers_type(kProduct), of);
    body += fmt::format("  {}attention_grad_keys<C>(block, {}, {}, {}, {}ll, of, {}, {});\n",
                        kind(), sees("keys", kept), matrix(1, kept), matrix(2, kept),
                        shared.elements(), matrix(dk, kept), matrix(dv, kept));
    return finish(body, memory_, kept);
  }

 private:
  struct LoopDim {
    int64_t size = 1;
    std::vector<int64_t> strides;  ///< of the operands, a row of ids, and random bits
    bool is_row = false;           ///< rows of ids differ along it
  };
  template <class Takes>
  kernels::Nest nest_of(const Takes& takes) const {
    kernels::Nest nest;
    nest.strides.resize(operands() + 2);
    for (const LoopDim& dim : dims_) {
      if (takes(dim)) nest.add_dim(dim.size, dim.strides);
    }
    return nest;
  }
  bool is_shared(const LoopDim& dim) const {
    return dim.size > 1 && dim.strides[args_.in.size() + 1] == 0;
  }
  size_t operands() const { return args_.in.size() + args_.out.size(); }
  int row_operand() const { return static_cast<int>(operands()); }
  int bits_operand() const { return row_operand() + 1; }
  int64_t entries() const {
    return args_.in[attention_.entries()].sizes[static_cast<size_t>(attention_.entries_dim)];
  }
  const TensorArg& operand(size_t x) const {
    return x < args_.in.size() ? args_.in[x] : args_.out[x - args_.in.size()];
  }
  void choose(Which which) {
    which_ = which;
    plan_ = tensor_plan(which, width_);
    block_ = tensor_ ? plan_.warps * 16 : block_of(width_, args_.in[0].dtype);
  }
  /// One decision for both kernels of a gradient, which share the workspace. Scores are only scaled
  /// when they are exponentiated, so the maximum needs a positive scale; and a biased score does
  /// not tell the slope of a soft cap.
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
           std::max(length_, memory_) < (int64_t{1} << 30) && attention_.scale > 0 &&
           (attention_.soft_cap == 0 || (!attention_.has_slopes && !has_entries()));
  }
  const char* kind() const { return tensor_ ? "tensor_" : ""; }
  const char* wide() const { return args_.in[0].dtype == DType::float64 ? "double" : "float"; }
  std::string first_query(const kernels::Nest& nest) {
    const std::string own = arguments_.expr(0);
    return attention_.start_inputs > 0 ? own + " + " + start(attention_.starts, nest) : own;
  }
  std::string first_key(const kernels::Nest& nest) {
    const std::string own = arguments_.expr(1);
    return attention_.start_inputs > 1 ? own + " + " + start(attention_.starts + 1, nest) : own;
  }
  std::string spans_address() { return arguments_.workspace(first_bytes(), "Span"); }
  /// Of the sums of the biases' gradients by the blocks of queries, behind the spans.
  std::string sums_address() {
    return fmt::format("reinterpret_cast<{}*>({} + {}ll)", wide(), spans_address(),
                       rows_.bytes() / kSpanBytes);
  }
  /// On tensor cores each warp has its own.
  int64_t sums_of_block() const { return tensor_ ? plan_.warps : 1; }
  int64_t first_bytes() const { return attention_first_bytes(*args_.step); }
  /// What the block's rows, "queries" or "keys", see.
  std::string sees(const std::string& side, const kernels::Nest& nest) {
    std::string spans = "nullptr";
    if (has_spans()) {
      const bool is_queries = side == "queries";
      spans = fmt::format(
          "{} + {}ll + ({}) * {}ll", spans_address(), is_queries ? 0 : rows_.first_of_keys(),
          offset_text(nest, row_operand(), 1, true), is_queries ? length_ : memory_);
    }
    const auto at = [&](int x) { return offset_text(nest, x, 1, true); };
    const std::string own = side == "queries" ? at_positions(at) : "{}";
    return fmt::format("Sees<C, Side::{}>{{{}, {}, {}, {}}}", side, first_query(nest),
                       first_key(nest), spans, own);
  }
  /// `at`: the offset of an operand, or of random bits.
  template <class At>
  std::string at_positions(const At& at) {
    std::string slope = "0", entries = "nullptr", bits = "0, 0, 0";
    if (attention_.has_slopes) {
      const auto x = static_cast<int>(attention_.slopes());
      slope = fmt::format("{}[{}]", arguments_.in(x), at(x));
    }
    if (has_entries()) {
      const auto x = static_cast<int>(attention_.entries());
      entries = fmt::format("{} + {}", arguments_.in(x), at(x));
    }
    if (drawn_) {
      std::string first;
      for (int i = 0; i < drawn_->pairs; ++i)
        first += fmt::format("{} * {} + ", arguments_.expr(AttentionBits::kFirst + 2 * i),
                             arguments_.expr(AttentionBits::kFirst + 2 * i + 1));
      bits = fmt::format(
          "static_cast<unsigned long long>({}), static_cast<unsigned long long>({}), "
          "{}{}",
          arguments_.expr(AttentionBits::kSeed), arguments_.expr(AttentionBits::kStream), first,
          at(bits_operand()));
    }
    return fmt::format("AtPositions<C>{{{}, {}, {}}}", slope, entries, bits);
  }
  std::string ids(size_t x, size_t positions, const kernels::Nest& nest) {
    const auto in = static_cast<int>(x);
    return fmt::format("SegmentIds<{}ll>{{{} + {}}}", args_.in[x].strides[positions],
                       arguments_.in(in), offset_text(nest, in, 1, true));
  }
  std::string start(size_t x, const kernels::Nest& nest) {
    const auto in = static_cast<int>(x);
    return fmt::format("{}[{}]", arguments_.in(in), offset_text(nest, in, 1, true));
  }

  /// Further inputs of a gradient; input 4 is the result.
  static constexpr size_t kGrad = 3, kLogSum = 5, kProduct = 6;

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
                       operand(x).strides[attention_.length_dim]);
  }

  size_t row_dim(size_t x) const {
    const bool is_query = x == 0 || x == args_.in.size() || (backward_ && x == kGrad);
    return is_query ? attention_.length_dim : attention_.memory_dim;
  }

  /// Neighbouring columns of operand x per access of at most 16 bytes: 8, 4, 2 or 1.
  int64_t vector(size_t x) const {
    const TensorArg& arg = operand(x);
    if (arg.strides[attention_.key_dim] != 1) return 1;
    int64_t vector = 8;
    auto limit = [&](int64_t to) {
      while (to % vector != 0) vector /= 2;
    };
    limit(width_);
    limit(arg.strides[row_dim(x)]);
    limit(static_cast<int64_t>(reinterpret_cast<uintptr_t>(arg.data) / 2 % 8));
    for (const LoopDim& dim : dims_) limit(dim.size > 1 ? dim.strides[x] : 0);
    return vector;
  }

  /// The C++ type of operand x, a query, key or value: "Positions<const float, 64, 1>".
  std::string type(size_t x) const {
    const TensorArg& arg = operand(x);
    const std::string kind = tensor_ ? "Rows" : "Positions";
    return fmt::format("{}<{}{}, {}ll, {}ll{}>", kind, x < args_.in.size() ? "const " : "",
                       memory_type(arg.dtype), arg.strides[row_dim(x)],
                       arg.strides[attention_.key_dim],
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
    const std::string own =
        tensor_ ? fmt::format(
                      "  using Type = {};\n  static constexpr int kWarps = {}, kTile = {};\n"
                      "  static constexpr bool kFree = {};\n",
                      memory_type(args_.in[0].dtype), plan_.warps, plan_.tile, plan_.free)
                : fmt::format("  static constexpr int kBlock = {};\n", block_);
    const AttentionMask& mask = attention_.mask;
    std::string text = fmt::format(
        "struct C {{\n  using Wide = {};\n{}  static constexpr int kWidth = {};\n"
        "  static constexpr long long kLength = {}, kMemory = {}, kAllKeys = {}, kWindow = {};\n"
        "  static constexpr bool kCausal = {}, kSegments = {}, kCapped = {}, "
        "kSloped = {}, kDropped = {};\n",
        wide(), own, width_, length_, memory_, mask.all_keys, mask.window, mask.causal, has_spans(),
        attention_.soft_cap > 0, attention_.has_slopes, drawn_.has_value());
    text += fmt::format(
        "  static constexpr int kEntries = {}, kEntryStride = {};\n", has_entries() ? entries() : 0,
        has_entries()
            ? args_.in[attention_.entries()].strides[static_cast<size_t>(attention_.entries_dim)]
            : 0);
    if (drawn_) {
      text += fmt::format(
          "  static constexpr long long kQueryBits = {}, kKeyBits = {};\n"
          "  static constexpr uint32_t kLimit = {};\n",
          drawn_->strides[attention_.length_dim], drawn_->strides[attention_.memory_dim],
          AttentionBits::limit(attention_.dropout));
      text += number("kept", 1 / (1 - attention_.dropout));
    }
    text += number("scale", attention_.scale);
    if (attention_.soft_cap > 0) {
      text += number("soft_cap", attention_.soft_cap);
      text += number("squeeze", attention_.scale / attention_.soft_cap);
    }
    return text + "};\n";
  }
  std::string number(const char* name, double value) const {
    const DType dtype = args_.in[0].dtype == DType::float64 ? DType::float64 : DType::float32;
    return fmt::format("  static __device__ __forceinline__ Wide {}() {{ return {}; }}\n", name,
                       literal(dtype, value));
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
  AttentionStep attention_;
  SpanRows rows_;
  Arguments arguments_;
  bool backward_ = false, tensor_ = false;
  Which which_ = Which::forward;
  TensorPlan plan_;
  int64_t length_ = 0, memory_ = 0, width_ = 0, block_ = 0;
  std::optional<AttentionBits> drawn_;
  std::vector<LoopDim> dims_;
  kernels::Nest loops_;
};

std::vector<Source> behind_spans(const KernelArgs& args, std::vector<Source> sources) {
  if (AttentionText text(args); text.has_spans()) sources.insert(sources.begin(), text.spans());
  return sources;
}

}  // namespace

bool can_attend(const Step& step) {
  const AttentionStep attention(step);
  if (attention.value_dim != attention.key_dim) return false;
  const View& q = step.in.at(0);
  if (block_of(q.sizes[attention.key_dim], q.dtype) == 0) return false;
  if (!attention.backward) return true;
  // Queries that share keys have to share their segments too.
  const SpanRows rows(attention, step.in);
  for (size_t d = 0; d < q.sizes.size(); ++d) {
    if (q.sizes[d] > 1 && step.out[1].strides[d] == 0 && rows.is_row(d)) return false;
  }
  return true;
}

int64_t attention_first_bytes(const Step& step) {
  constexpr int64_t kAlign = 256;  // what stands behind them
  const AttentionStep attention(step);
  int64_t bytes = SpanRows(attention, step.in).bytes();
  if (attention.has_entries() && attention.backward) {
    const View &q = step.in[0], &entries = step.in[attention.entries()];
    // A block's own rows, or those of a warp on tensor cores, of whole blocks.
    const int64_t own = std::max<int64_t>(1, block_of(q.sizes[attention.key_dim], q.dtype)),
                  block = is_narrow(q.dtype) ? std::min<int64_t>(own, 16) : own;
    int64_t sums = entries.sizes[static_cast<size_t>(attention.entries_dim)] *
                   ((attention.mask.queries + 63) / 64 * 64 / block) * wide_size(q.dtype);
    for (size_t d = 0; d < q.sizes.size(); ++d) sums *= attention.is_loop(d) ? q.sizes[d] : 1;
    bytes += sums;
  }
  return (bytes + kAlign - 1) / kAlign * kAlign;
}
int64_t attention_gpu_workspace(const Step& step) {
  return attention_first_bytes(step) + attention_dot_bytes(step);
}

std::vector<Source> generate_attention(const KernelArgs& args) {
  return behind_spans(args, {AttentionText(args).forward()});
}
std::vector<Source> generate_attention_grad(const KernelArgs& args) {
  std::vector<Source> sources = {AttentionText(args).by_queries(), AttentionText(args).by_keys()};
  if (AttentionText text(args); text.has_entries()) sources.push_back(text.of_entries());
  return behind_spans(args, std::move(sources));
}

}  // namespace tessera::cuda
