// Kernels of strict numerics: sums in the canonical order (program/sum_order.h), with the bits of
// the CPU's. Matmuls and convolutions are one tiled product, reductions and folds one sum. The
// operand whose index follows from two others, in = stride * out + dilation * k - lo, is read where
// that is, and is zero outside: a convolution then is a matmul, and a fold a reduction.
#include <algorithm>

#include "kernels/common/conv_views.h"
#include "kernels/common/gemm_plan.h"
#include "kernels/cuda/ordered_text.h"

namespace tessera::cuda {

namespace {

using kernels::kA, kernels::kB, kernels::kC, kernels::Nest;
using matmul_kinds::DimKind;

/// A dim of the first operand whose index is (base + what a line and a term add) / divisor - minus,
/// and which is zero if that is no whole number or outside of [low, high).
struct SpreadDim {
  int64_t divisor = 1, base = 0, minus = 0, low = 0, high = 0;
  int64_t stride = 0;  ///< in memory
};

/// A contraction of two operands, or a sum of one. What is indexed by dim has those of the step's
/// views, and behind them those of a convolution's result.
struct OrderedSpec {
  std::vector<DimKind> kinds;
  std::vector<int64_t> sizes, strides[3];
  std::vector<SpreadDim> spread;
  std::vector<std::vector<int64_t>> at;  ///< by spread dim, by dim: what an index adds

  void add(DimKind kind, int64_t size, int64_t a, int64_t b, int64_t c) {
    kinds.push_back(kind);
    sizes.push_back(size);
    strides[kA].push_back(a);
    strides[kB].push_back(b);
    strides[kC].push_back(c);
    for (auto& adds : at) adds.push_back(0);
  }
};

OrderedSpec spec_of_matmul(const KernelArgs& args) {
  OrderedSpec spec;
  const TensorArg &a = args.in.at(0), &b = args.in.at(1), &c = args.out.at(0);
  const auto& kinds = args.step->as<MatmulSpec>().kinds;
  for (size_t d = 0; d < kinds.size(); ++d)
    spec.add(kinds[d], std::max(a.sizes[d], b.sizes[d]), a.strides[d], b.strides[d], c.strides[d]);
  return spec;
}

/// The relation of a convolution or fold on this rank.
struct IndexRelation {
  int64_t stride, dilation, lo, in_begin, in_memory, in_size, out_begin, out_memory, out_size,
      window_begin;

  /// Of an operand with `in`.
  SpreadDim of_in(int64_t memory_stride) const {
    return {1,
            stride * out_begin + dilation * window_begin - lo - in_begin,
            0,
            std::max<int64_t>(0, -in_begin),
            std::min(in_memory, in_size - in_begin),
            memory_stride};
  }
  /// Of an operand with `out`.
  SpreadDim of_out(int64_t memory_stride) const {
    return {stride,
            in_begin + lo - dilation * window_begin,
            out_begin,
            std::max<int64_t>(0, -out_begin),
            std::min(out_memory, out_size - out_begin),
            memory_stride};
  }
};

OrderedSpec spec_of_conv(const KernelArgs& args) {
  const Step& step = *args.step;
  static constexpr DimKind kKinds[3][4] = {
      // group, images, inputs, outputs
      {kernels::kBatch, kernels::kRow, kernels::kSum, kernels::kColumn},   // of y
      {kernels::kBatch, kernels::kRow, kernels::kColumn, kernels::kSum},   // of x
      {kernels::kBatch, kernels::kSum, kernels::kRow, kernels::kColumn}};  // of the filter
  const ConvSpec& conv = step.as<ConvSpec>();
  const kernels::Sides sides(step);
  const TensorArg &a = args.in[0], &b = args.in[1], &c = args.out[0];
  const size_t plain = conv.kinds.size();
  OrderedSpec spec;
  spec.at.resize(conv.strides.size());
  for (size_t d = 0; d < plain; ++d)
    spec.add(kKinds[conv.result][conv.kinds[d]], kernels::factor_size(step, d), a.strides[d],
             b.strides[d], c.strides[d]);
  for (size_t d = plain; d < b.sizes.size(); ++d)
    spec.add(kernels::kSum, b.sizes[d], 0, b.strides[d], 0);
  for (size_t d = plain; d < c.sizes.size(); ++d)
    spec.add(kernels::kRow, c.sizes[d], 0, 0, c.strides[d]);
  for (size_t s = 0; s < spec.at.size(); ++s) {
    const size_t d = plain + s;
    const auto begin = [&](size_t of) { return kernels::eval(args, static_cast<int>(3 * s + of)); };
    const IndexRelation r{conv.strides[s],   conv.dilations[s], conv.los[s], begin(0),
                          sides.x->sizes[d], conv.in_sizes[s],  begin(1),    sides.y->sizes[d],
                          conv.out_sizes[s], begin(2)};
    int64_t &term = spec.at[s][d], &row = spec.at[s][d + spec.at.size()];
    if (conv.result == kernels::kOfX) {
      spec.spread.push_back(r.of_out(a.strides[d]));
      term = -r.dilation;
      row = 1;
    } else {
      spec.spread.push_back(r.of_in(a.strides[d]));
      term = conv.result == kernels::kOfY ? r.dilation : r.stride;
      row = conv.result == kernels::kOfY ? r.stride : r.dilation;
    }
  }
  return spec;
}

OrderedSpec spec_of_reduce(const KernelArgs& args) {
  OrderedSpec spec;
  const auto& along = args.step->order.along;
  for (size_t d = 0; d < args.in[0].sizes.size(); ++d) {
    const bool is_summed = std::any_of(along.begin(), along.end(), [&](const auto& a) {
      return a.dim == static_cast<int64_t>(d);
    });
    spec.add(is_summed ? kernels::kSum : kernels::kRow, args.in[0].sizes[d], args.in[0].strides[d],
             0, args.out[0].strides[d]);
  }
  return spec;
}

OrderedSpec spec_of_fold(const KernelArgs& args) {
  const WindowSpec& w = args.step->as<WindowSpec>();
  TESSERA_CHECK(!w.wrap, "a rotation adds nothing");
  OrderedSpec spec;
  spec.at.resize(1);
  const int64_t outs = w.window_memory * w.post;
  spec.add(kernels::kRow, w.pre, w.out_memory * outs, 0, w.memory * w.post);
  spec.add(kernels::kRow, w.memory, 0, 0, w.post);
  spec.add(kernels::kSum, w.window_memory, w.post, 0, 0);
  spec.add(kernels::kRow, w.post, 1, 0, 1);
  const IndexRelation r{w.stride,
                        w.dilation,
                        w.lo,
                        kernels::eval(args, 0),
                        w.memory,
                        w.size,
                        kernels::eval(args, 1),
                        w.out_memory,
                        w.out_size,
                        kernels::eval(args, 2)};
  spec.spread.push_back(r.of_out(outs));
  spec.at[0] = {0, 1, -r.dilation, 0};
  return spec;
}

/// The text of a kernel for one place.
class OrderedText {
 public:
  OrderedText(const KernelArgs& args, const OrderedSpec& spec, const OrderedTerms& terms,
              size_t place)
      : args_(args), spec_(spec), terms_(terms), place_(place), arguments_(args) {}

  Source product() {
    const Nest rows = lines(kernels::kRow, kA), columns = lines(kernels::kColumn, kB);
    Nest batch;
    batch.strides.resize(3);
    for (size_t d = 0; d < spec_.kinds.size(); ++d) {
      if (spec_.kinds[d] == kernels::kBatch && spec_.sizes[d] != 1)
        batch.add_dim(spec_.sizes[d],
                      {spec_.strides[kA][d], spec_.strides[kB][d], spec_.strides[kC][d]});
    }
    batch.order_by(kC);
    batch.merge();
    const int64_t m = rows.elements(), n = columns.elements();
    const OrderedTile tile(m, n, terms_.depth(), args_.in[0].dtype);
    const int64_t down = (m + tile.high() - 1) / tile.high(),
                  across = (n + tile.wide() - 1) / tile.wide();
    Source source;
    source.threads = 256;
    source.blocks = batch.elements() * down * across;
    if (source.blocks == 0) return source;
    std::string body = common();
    body += line_text("row", rows, true) + line_text("column", columns, false);
    body += fmt::format(
        "  const long long tile = blockIdx.x % {}, batch = blockIdx.x / {};\n  long long b0, b1, "
        "b2;\n  {{\n{}    b0 = {}, b1 = {}, b2 = {};\n  }}\n",
        down * across, down * across, dims_text(batch, "batch", "long long", 1),
        offset_text(batch, 0, 1, true), offset_text(batch, 1, 1, true),
        offset_text(batch, 2, 1, true));
    body += load_text("b0");
    body += fmt::format(
        "  const auto of_b = [&](const Line<0>& l, const At& t) -> {} {{ return widen({}[b1 + l.in "
        "+ "
        "t.b]); }};\n",
        type(), arguments_.in(1));
    body += fmt::format(
        "  ordered_product<{}, {}, {}, {}, {}, {}>(tile / {} * {}, {}ll, tile % {} * {}, {}ll, "
        "terms.count(), row, column, term, of_a, of_b,\n      [&](const Line<{}>& r, const "
        "Line<0>& c, "
        "{} sum) {{ narrow({}, {}[b2 + r.out + c.out{}]); }});\n",
        type(), tile.rows, tile.columns, terms_.depth(), by_terms(kA, rows), by_terms(kB, columns),
        across, tile.high(), m, across, tile.wide(), n, spec_.spread.size(), type(),
        finished("Sum", "sum"), arguments_.out(0), terms_.place_offset(arguments_, place_));
    return finish(std::move(source), body);
  }

  /// A sum of one operand: leaves by threads of their own, stored for joins(); or all of it.
  Source sum(bool only_leaves) {
    const Nest rows = lines(kernels::kRow, kA);
    const int64_t kept = rows.elements();
    const char* combiner = combiner_name(args_.step->combiner);
    std::string body = head(kept * (only_leaves ? terms_.leaves(place_) : 1),
                            kept * (only_leaves ? terms_.most_leaves() : 1)) +
                       sum_common(rows);
    if (only_leaves) {
      const bool by_leaf = by_terms(kA, rows);
      body += fmt::format(
          "  if (i >= {0} * static_cast<long long>(terms.leaves())) return;\n"
          "  const {1} leaf = static_cast<{1}>({2}), e = static_cast<{1}>({3});\n"
          "  {1} begin[{4}], end[{4}];\n  terms.leaf(leaf, begin, end);\n"
          "  {5}[static_cast<long long>(leaf) * {0} + e] = leaf_sum(row(e), begin, end);\n",
          kept, terms_.type(), by_leaf ? "i % terms.leaves()" : fmt::format("i / {}", kept),
          by_leaf ? "i / terms.leaves()" : fmt::format("i % {}", kept), terms_.dims(), parts());
    } else {
      body += joined(combiner, kept, "leaf_sum(at, begin, end)");
    }
    return finish(std::move(source_), body);
  }

  /// Joins the leaves that sum() stored.
  Source joins() {
    const Nest rows = lines(kernels::kRow, kA);
    const int64_t kept = rows.elements();
    std::string body =
        head(kept, kept) + terms_.declaration(arguments_, place_) + line_text("row", rows, false);
    body += joined(combiner_name(args_.step->combiner), kept,
                   fmt::format("{}[static_cast<long long>(leaf) * {} + i]", parts(), kept));
    return finish(std::move(source_), body);
  }

 private:
  bool is_sum() const { return args_.in.size() == 1; }
  const char* type() const { return register_type(args_.in[0].dtype); }
  std::string parts() {
    const int64_t bytes = ordered_workspace(*args_.step);
    return arguments_.workspace(bytes, type());
  }

  /// The dims of a kind. Operands: x, the result, and what they add along each spread dim.
  Nest lines(DimKind kind, int x) const {
    Nest nest;
    nest.strides.resize(2 + (x == kA ? spec_.at.size() : 0));
    for (size_t d = 0; d < spec_.kinds.size(); ++d) {
      if (spec_.kinds[d] != kind || spec_.sizes[d] == 1) continue;
      std::vector<int64_t> strides = {spec_.strides[x][d], spec_.strides[kC][d]};
      if (x == kA)
        for (const auto& adds : spec_.at) strides.push_back(adds[d]);
      nest.add_dim(spec_.sizes[d], strides);
    }
    nest.order_by(is_sum() && spec_.spread.empty() ? 0 : 1);
    nest.merge();
    return nest;
  }

  /// Whether terms of operand x are nearer to each other in memory than its lines.
  bool by_terms(int x, const Nest& lines) const {
    std::vector<int64_t> strides = spec_.strides[x];
    int64_t line = std::numeric_limits<int64_t>::max();
    for (int d = 0; d < lines.rank(); ++d) {
      int64_t stride = std::abs(lines.strides[0][static_cast<size_t>(d)]);
      for (size_t s = 0; x == kA && s < spec_.spread.size(); ++s)
        stride += std::abs(lines.strides[2 + s][static_cast<size_t>(d)] * spec_.spread[s].stride);
      if (stride != 0) line = std::min(line, stride);
    }
    for (size_t s = 0; x == kA && s < spec_.spread.size(); ++s) {
      for (size_t d = 0; d < strides.size(); ++d)
        strides[d] += spec_.at[s][d] * spec_.spread[s].stride;
    }
    return terms_.densest(strides) < line;
  }

  /// Declares `terms`, the type At of a term, and place(k) and term(i).
  std::string common() {
    std::string at;
    for (size_t s = 0; s < spec_.at.size(); ++s)
      at += fmt::format("    t.at[{}] = {};\n", s, terms_.offset(arguments_, place_, spec_.at[s]));
    return terms_.declaration(arguments_, place_) +
           fmt::format(
               "  using At = Term<{0}>;\n"
               "  const auto place = [&](const {1} (&k)[{2}]) -> At {{\n    At t;\n"
               "    t.a = {3};\n    t.b = {4};\n{5}    return t;\n  }};\n"
               "  const auto term = [&]({1} i) -> At {{\n    {1} k[{2}];\n"
               "    const unsigned long long leaf = terms.find(i, k);\n    At t = place(k);\n"
               "    t.leaf = leaf;\n    return t;\n  }};\n",
               spec_.spread.size(), terms_.type(), terms_.dims(),
               terms_.offset(arguments_, place_, spec_.strides[kA]),
               terms_.offset(arguments_, place_, spec_.strides[kB]), at);
  }

  std::string line_text(const char* name, const Nest& nest, bool is_spread) {
    std::string at;
    for (size_t s = 0; is_spread && s < spec_.at.size(); ++s)
      at += fmt::format("    l.at[{}] = {} + {};\n", s, arguments_.number(spec_.spread[s].base),
                        offset_text(nest, 2 + static_cast<int>(s), 1, true));
    const size_t dims = is_spread ? spec_.at.size() : 0;
    return fmt::format(
        "  const auto {0} = [&](long long e) -> Line<{1}> {{\n{2}    Line<{1}> l;\n    l.in = "
        "{3};\n    l.out = {4};\n{5}    return l;\n  }};\n",
        name, dims, dims_text(nest, "e", nest.elements() <= INT32_MAX ? "int" : "long long", 1),
        offset_text(nest, 0, 1, true), offset_text(nest, 1, 1, true), at);
  }

  /// Declares a(line, term), the value of the first operand.
  std::string load_text(const char* batch) {
    std::string inside;
    for (size_t s = 0; s < spec_.spread.size(); ++s) {
      const SpreadDim& d = spec_.spread[s];
      const std::string reached = fmt::format("(l.at[{0}] + t.at[{0}])", s);
      if (d.divisor > 1)
        inside += fmt::format("    if ({} % {}ll != 0) return 0;\n", reached, d.divisor);
      inside += fmt::format(
          "    const long long x{0} = {1} / {2}ll - {3};\n    if (x{0} < {4} || x{0} >= {5}) "
          "return "
          "0;\n    at += x{0} * {6}ll;\n",
          s, reached, d.divisor, arguments_.number(d.minus), arguments_.number(d.low),
          arguments_.number(d.high), d.stride);
    }
    return fmt::format(
        "  const auto of_a = [&](const Line<{}>& l, const At& t) -> {} {{\n    long long at = {} + "
        "l.in + t.a;\n{}    return widen({}[at]);\n  }};\n",
        spec_.spread.size(), type(), batch, inside, arguments_.in(0));
  }

  /// Declares what a sum needs, and leaf_sum(line, begin, end).
  std::string sum_common(const Nest& rows) {
    std::string text = common() + line_text("row", rows, true) + load_text("0ll");
    text += fmt::format(
        "  const auto leaf_sum = [&](const Line<{0}>& l, const {1} (&begin)[{2}], const {1} "
        "(&end)[{2}]) -> {3} {{\n    {1} k[{2}];\n    {3} sum = {4}::identity<{3}>();\n",
        spec_.spread.size(), terms_.type(), terms_.dims(), type(),
        combiner_name(args_.step->combiner));
    for (int d = 0; d < terms_.dims(); ++d)
      text += fmt::format("{1}    for (k[{0}] = begin[{0}]; k[{0}] < end[{0}]; ++k[{0}])\n", d,
                          d + 1 == terms_.dims() ? "#pragma unroll 4\n" : "");
    return text +
           fmt::format("      sum = {}::apply(sum, of_a(l, place(k)));\n    return sum;\n  }};\n",
                       combiner_name(args_.step->combiner));
  }

  /// Declares `i`. A text has the threads of the largest place: few threads are in small blocks.
  std::string head(int64_t work, int64_t most) {
    constexpr int kBlock = 128, kSmall = 32;
    constexpr int64_t kFew = 1 << 14;
    source_.threads = most < kFew ? kSmall : kBlock;
    source_.blocks = (work + source_.threads - 1) / source_.threads;
    return fmt::format(
        "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n",
        source_.threads);
  }

  std::string joined(const char* combiner, int64_t kept, const std::string& leaf) {
    return fmt::format(
        "  if (i >= {0}) return;\n  const auto at = row(i);\n"
        "  OpenSums<{1}, {2}, 1, {3}> open;\n  {2} sum[1];\n  open.start(sum);\n"
        "  unsigned long long before = 0;\n  const {4} leaves = terms.leaves();\n"
        "  for ({4} leaf = 0; leaf < leaves; ++leaf) {{\n"
        "    {4} begin[{5}], end[{5}];\n"
        "    const unsigned long long number = terms.leaf(leaf, begin, end);\n"
        "    if (leaf > 0) open.push(sum, before, number);\n    before = number;\n"
        "    sum[0] = {6};\n  }}\n  open.finish(sum);\n  narrow({7}, {8}[at.out{9}]);\n",
        kept, combiner, type(), terms_.depth(), terms_.type(), terms_.dims(), leaf,
        finished(combiner, "sum[0]"), arguments_.out(0), terms_.place_offset(arguments_, place_));
  }

  std::string finished(const char* combiner, const std::string& sum) const {
    return args_.step->order.is_split() ? sum : fmt::format("complete<{}>({})", combiner, sum);
  }

  Source finish(Source source, const std::string& body) const {
    source.text = unit(arguments_, source.threads, body, "", kOrderedHeader);
    source.words = arguments_.words();
    return source;
  }

  const KernelArgs& args_;
  const OrderedSpec& spec_;
  const OrderedTerms& terms_;
  size_t place_;
  Arguments arguments_;
  Source source_;
};

OrderedSpec spec_of(const KernelArgs& args) {
  switch (args.step->kernel) {
    case KernelKind::matmul:
      return spec_of_matmul(args);
    case KernelKind::conv:
      return spec_of_conv(args);
    case KernelKind::fold:
      return spec_of_fold(args);
    default:
      return spec_of_reduce(args);
  }
}

/// Results of a reduction or fold.
int64_t results_of(const Step& step) {
  if (step.kernel == KernelKind::fold) {
    const WindowSpec& w = step.as<WindowSpec>();
    return w.pre * w.memory * w.post;
  }
  int64_t n = 1;
  for (const int64_t size : step.in[0].sizes) n *= size;
  for (const SumOrder::Along& a : step.order.along)
    n /= std::max<int64_t>(1, step.in[0].sizes[static_cast<size_t>(a.dim)]);
  return n;
}

/// Whether leaves are summed by threads of their own: where results are too few to fill a GPU.
bool stores_leaves(const Step& step) {
  constexpr int64_t kMany = 1 << 15;
  return results_of(step) < kMany && most_ordered_leaves(step.order) > 1;
}

}  // namespace

int64_t ordered_workspace(const Step& step) {
  switch (step.kernel) {
    case KernelKind::scatter_add:
    case KernelKind::grouped_dot:
    case KernelKind::grouped_outer:
      return gpu_kernel(step.kernel).workspace_bytes(step);
    case KernelKind::reduce:
    case KernelKind::fold:
      return !stores_leaves(step) ? 0
                                  : results_of(step) * most_ordered_leaves(step.order) *
                                        (step.in[0].dtype == DType::float64 ? 8 : 4);
    default:
      return 0;
  }
}

std::vector<Source> generate_ordered(const KernelArgs& args) {
  const Step& step = *args.step;
  if (step.kernel == KernelKind::scatter_add) return generate_scatter_add(args);
  if (step.kernel == KernelKind::grouped_dot) return generate_grouped_dot(args);
  if (step.kernel == KernelKind::grouped_outer) return generate_grouped_outer(args);
  const OrderedSpec spec = spec_of(args);
  const OrderedTerms terms(args);
  std::vector<Source> sources;
  for (size_t place = 0; place < terms.places(); ++place) {
    const auto text = [&] { return OrderedText(args, spec, terms, place); };
    if (args.in.size() > 1) {
      sources.push_back(text().product());
    } else if (stores_leaves(step)) {
      sources.push_back(text().sum(true));
      sources.push_back(text().joins());
    } else {
      sources.push_back(text().sum(false));
    }
  }
  return sources;
}

Source generate_tree_sum(const KernelArgs& args) {
  const TreeSumSpec& spec = args.step->as<TreeSumSpec>();
  const TensorArg &in = args.in.at(0), &out = args.out.at(0);
  Nest nest =
      kernels::make_nest(out.sizes, {out.strides, {in.strides.begin() + 1, in.strides.end()}});
  nest.drop_ones();
  nest.order_by(0);
  nest.merge();
  const int64_t elements = nest.elements();
  if (elements == 0) return {};
  Arguments arguments(args);
  const std::string from = arguments.in(0), to = arguments.out(0);
  const char* const type = register_type(in.dtype);
  const char* const combiner = combiner_name(args.step->combiner);
  std::string body = fmt::format(
      "  const long long i = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n  if (i >= "
      "{}) return;\n{}  const auto* from = {} + {};\n"
      "  constexpr int places[] = {{{}}}, joins[] = {{{}}};\n  {} open[{}];\n  int top = 0;\n{}"
      "  for (int p = 0; p < {}; ++p) {{\n    open[top++] = from[places[p] * {}ll];\n"
      "    for (int join = joins[p]; join > 0; --join, --top)\n"
      "      open[top - 2] = {}::apply(open[top - 2], open[top - 1]);\n  }}\n"
      "  narrow(complete<{}>(open[0]), {}[{}]);\n",
      kThreads, elements, dims_text(nest, "i", "long long", 1), from, offset_text(nest, 1, 1, true),
      fmt::join(spec.places, ", "), fmt::join(spec.joins, ", "), type, depth_of(spec.joins),
      spec.places.size() <= 32 ? "#pragma unroll\n" : "", spec.places.size(), in.strides[0],
      combiner, combiner, to, offset_text(nest, 0, 1, true));
  Source source;
  source.text = unit(arguments, kThreads, body, "", kOrderedHeader);
  source.words = arguments.words();
  source.threads = kThreads;
  source.blocks = (elements + kThreads - 1) / kThreads;
  return source;
}

}  // namespace tessera::cuda
