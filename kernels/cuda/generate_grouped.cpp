// Grouped matmuls in passes. The first sorts the positions of rows by group, stable, into the
// workspace: a counting sort by a block for each batch element. Each of its warps reads the indices
// of its share of the positions side by side, 32 at a time, and keeps a count for each group in
// shared memory. Lanes of one group find each other by a vote on each bit of the group, and the
// first of them moves the count. Once to count; then the counts become places, by a sum over warps
// and groups; and once to write the positions. There are at most as many counts as rows, so the
// pass is linear in rows and groups. Then a block of 16 x 16 threads computes a tile of the result:
// grouped_dot 16 rows of one group by 16 columns, found by counting the tiles of the groups;
// grouped_outer 16 x 16 elements of a matrix, over all rows of its group. Tiles of the operands
// pass through shared memory; columns are read side by side. Where several rows of grouped_dot are
// added to one, products are stored by position, and a last pass adds them in the order of
// positions.
#include <algorithm>
#include <bit>

#include "kernels/common/grouped.h"
#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

using kernels::GroupedPlan, kernels::Nest;

namespace {

constexpr int64_t kSide = 16;
constexpr int64_t kMostWarps = 16, kMostCounts = 8192;  ///< of the sort

int64_t tiles(int64_t n) { return (n + kSide - 1) / kSide; }
int64_t bytes_of_sums(const GroupedPlan& p, DType dtype) {
  const int64_t element = dtype == DType::float64 ? 8 : 4;
  return p.is_dot && p.adds ? p.batch.elements() * p.rows * p.n * element : 0;
}
int64_t bytes_of_order(const GroupedPlan& p) {
  return (p.batch.elements() * (p.groups + p.rows) * 4 + 15) / 16 * 16;
}

/// The texts that the passes share.
class Pass {
 public:
  Pass(const KernelArgs& args, const GroupedPlan& plan)
      : args_(args),
        plan_(plan),
        arguments_(args),
        x(arguments_.in(0)),
        m(plan.is_dot ? arguments_.in(1) : arguments_.out(0)),
        z(plan.is_dot ? arguments_.out(0) : arguments_.in(1)),
        indices(arguments_.in(2)),
        first(arguments_.expr(0)),
        extent(arguments_.expr(1)),
        work(arguments_.workspace(bytes_of_order(plan) + bytes_of_sums(plan, args.out.at(0).dtype),
                                  "int")),
        type(register_type(args.out.at(0).dtype)) {}

  /// Functions of positions, and of elements of inner and outer: offsets in an operand.
  std::string offsets() const {
    return in_nest("batch_x", plan_.batch, kernels::kX) +
           in_nest("batch_m", plan_.batch, kernels::kM) +
           in_nest("batch_z", plan_.batch, kernels::kZ) +
           in_nest("batch_i", plan_.batch, kernels::kIndices) +
           in_nest("row_x", plan_.positions, kernels::kX) +
           in_nest("row_z", plan_.positions, kernels::kZ) +
           in_nest("row_i", plan_.positions, kernels::kIndices) +
           in_nest("inner_x", plan_.inner, kernels::kX) +
           in_nest("inner_m", plan_.inner, kernels::kM) +
           in_nest("outer_m", plan_.outer, kernels::kM) +
           in_nest("outer_z", plan_.outer, kernels::kZ);
  }
  /// The group of a position of batch element b, or -1.
  std::string group() const {
    return fmt::format(
        "  auto group = [&](long long b, long long i) -> long long {{\n"
        "    const long long index = {0}[batch_i(b) + row_i(i)], g = index - {1};\n"
        "    return index >= 0 && index < {2} && g >= 0 && g < {3} ? g : -1;\n  }};\n",
        indices, first, extent, plan_.groups);
  }
  /// "ends" and "order" of batch element b.
  std::string order() const {
    return fmt::format(
        "  int* const ends = {0} + b * {1};\n  int* const order = {0} + {2} + b * {3};\n", work,
        plan_.groups, plan_.batch.elements() * plan_.groups, plan_.rows);
  }
  std::string sums() const {
    return fmt::format("  {0}* const sums = reinterpret_cast<{0}*>({1} + {2});\n", type, work,
                       bytes_of_order(plan_) / 4);
  }
  std::string shared() const {
    return fmt::format(
        "  __shared__ {0} left[{1}][{2}], right[{1}][{2}];\n"
        "  const int tx = static_cast<int>(threadIdx.x) % {1}, ty = static_cast<int>(threadIdx.x) "
        "/ {1};\n  {0} sum = 0;\n",
        type, kSide, kSide + 1);
  }

  Source source(const std::string& body, int64_t blocks, int64_t threads = kSide * kSide) const {
    Source source;
    source.threads = static_cast<int>(threads);
    source.text = unit(arguments_, source.threads, body);
    source.words = arguments_.words();
    source.blocks = blocks;
    return source;
  }

 private:
  static std::string in_nest(const char* name, const Nest& nest, int operand) {
    return fmt::format("  auto {} = [](long long e) -> long long {{\n{}    return {};\n  }};\n",
                       name, dims_text(nest, "e", "long long", 1),
                       offset_text(nest, operand, 1, true));
  }

  const KernelArgs& args_;
  const GroupedPlan& plan_;
  Arguments arguments_;

 public:
  std::string x, m, z, indices, first, extent, work;
  const char* type;
};

/// The warps that sort: a power of two. Their counts fit in shared memory, and are no more than
/// rows, unless there is one warp, which counts in the workspace.
int64_t sorting_warps(const GroupedPlan& plan) {
  int64_t warps = 1;
  while (warps < kMostWarps && 2 * warps * plan.groups <= std::min(kMostCounts, plan.rows))
    warps *= 2;
  return warps;
}

Source sort_rows(const KernelArgs& args, const GroupedPlan& plan) {
  const Pass pass(args, plan);
  const int64_t warps = sorting_warps(plan), threads = 32 * warps;
  const bool shares = warps * plan.groups <= kMostCounts;
  const int64_t share = ((plan.rows + warps - 1) / warps + 31) / 32 * 32;
  const auto filled = [&](const char* text) {
    return fmt::format(fmt::runtime(text), fmt::arg("groups", plan.groups),
                       fmt::arg("warps", warps), fmt::arg("threads", threads),
                       fmt::arg("counts", warps * plan.groups),
                       fmt::arg("bits", std::bit_width(static_cast<uint64_t>(plan.groups - 1))),
                       fmt::arg("share", share), fmt::arg("rows", plan.rows));
  };
  const std::string body =
      "  const long long b = blockIdx.x;\n" + pass.offsets() + pass.group() + pass.order() +
      filled(shares ? "  __shared__ int counts[{counts}];\n" : "  int* const counts = ends;\n") +
      filled(
          "  __shared__ int sums[{threads}];\n"
          "  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;\n"
          "  int* const mine = counts + warp * {groups};\n"
          "  auto group_of = [&](long long i, long long end) -> int {{\n"
          "    return i < end ? static_cast<int>(group(b, i)) : -1;\n  }};\n"
          "  auto lanes_of = [&](int g) -> unsigned {{\n"
          "    unsigned lanes = __ballot_sync(0xffffffffu, g >= 0);\n"
          "    for (int bit = 0; bit < {bits}; ++bit) {{\n"
          "      const bool is_set = (g >> bit & 1) != 0;\n"
          "      const unsigned set = __ballot_sync(0xffffffffu, is_set);\n"
          "      lanes &= is_set ? set : ~set;\n    }}\n    return lanes;\n  }};\n"
          "  const unsigned before = (1u << lane) - 1;\n"
          "  const long long begin = warp * {share}ll,\n"
          "                  end = begin + {share} < {rows} ? begin + {share} : {rows};\n"
          "  for (int e = t; e < {counts}; e += {threads}) counts[e] = 0;\n"
          "  __syncthreads();\n"
          "  for (long long i = begin + lane; i - lane < end; i += 32) {{\n"
          "    const int g = group_of(i, end);\n    const unsigned lanes = lanes_of(g);\n"
          "    if (g >= 0 && (lanes & before) == 0) mine[g] += __popc(lanes);\n"
          "    __syncwarp();\n  }}\n  __syncthreads();\n"
          "  for (int first = 0, start = 0; first < {groups}; first += {threads}) {{\n"
          "    const int g = first + t;\n    int own = 0;\n"
          "    if (g < {groups}) {{\n"
          "      for (int w = 0; w < {warps}; ++w) own += counts[w * {groups} + g];\n    }}\n"
          "    int place = start + scan_threads<{threads}>(own, sums) - own;\n"
          "    if (g < {groups}) {{\n      for (int w = 0; w < {warps}; ++w) {{\n"
          "        const int count = counts[w * {groups} + g];\n"
          "        counts[w * {groups} + g] = place;\n        place += count;\n      }}\n    }}\n"
          "    start += sums[{threads} - 1];\n    __syncthreads();\n  }}\n"
          "  for (long long i = begin + lane; i - lane < end; i += 32) {{\n"
          "    const int g = group_of(i, end);\n    const unsigned lanes = lanes_of(g);\n"
          "    if (g >= 0) order[mine[g] + __popc(lanes & before)] = static_cast<int>(i);\n"
          "    __syncwarp();\n"
          "    if (g >= 0 && (lanes & before) == 0) mine[g] += __popc(lanes);\n"
          "    __syncwarp();\n  }}\n") +
      // A count of the last warp is now where its group ends.
      (shares ? filled("  __syncthreads();\n"
                       "  for (int g = t; g < {groups}; g += {threads})\n"
                       "    ends[g] = counts[{counts} - {groups} + g];\n")
              : "");
  return pass.source(body, plan.batch.elements(), threads);
}

Source multiply_rows(const KernelArgs& args, const GroupedPlan& plan) {
  const Pass pass(args, plan);
  const int64_t row_tiles = tiles(plan.rows) + plan.groups, columns = tiles(plan.n);
  std::string body = fmt::format(
      "  const long long b = blockIdx.x / {2}, column = blockIdx.x % {1} * {0} + threadIdx.x % "
      "{0};\n  long long tile = blockIdx.x / {1} % {3};\n",
      kSide, columns, columns * row_tiles, row_tiles);
  body += pass.offsets() + pass.order() + (plan.adds ? pass.sums() : "") + pass.shared();
  body += fmt::format(
      "  int g = 0, begin = 0;\n  for (; g < {0}; begin = ends[g++]) {{\n"
      "    const int has = (ends[g] - begin + {1} - 1) / {1};\n    if (tile < has) break;\n"
      "    tile -= has;\n  }}\n  if (g == {0}) return;\n"
      "  const long long at = begin + tile * {1} + ty;\n  const bool live = at < ends[g];\n"
      "  const long long position = live ? order[at] : 0;\n"
      "  const auto* row = {2} + batch_x(b) + row_x(position);\n"
      "  const auto* matrix = {3} + batch_m(b) + g * {4}ll + (column < {5} ? outer_m(column) : "
      "0);\n"
      "  for (long long k = 0; k < {6}; k += {1}) {{\n"
      "    left[ty][tx] = live && k + tx < {6} ? widen(row[inner_x(k + tx)]) : {7}(0);\n"
      "    right[ty][tx] = column < {5} && k + ty < {6} ? widen(matrix[inner_m(k + ty)]) : "
      "{7}(0);\n"
      "    __syncthreads();\n"
      "    for (int i = 0; i < {1}; ++i) sum += left[ty][i] * right[i][tx];\n"
      "    __syncthreads();\n  }}\n  if (!live || column >= {5}) return;\n",
      plan.groups, kSide, pass.x, pass.m, plan.group_stride, plan.n, plan.k, pass.type);
  body += plan.adds
              ? fmt::format("  sums[(b * {} + position) * {} + column] = sum;\n", plan.rows, plan.n)
              : fmt::format("  narrow(sum, {}[batch_z(b) + row_z(position) + outer_z(column)]);\n",
                            pass.z);
  return pass.source(body, plan.batch.elements() * row_tiles * columns);
}

/// One thread for each element of Z.
Source add_rows(const KernelArgs& args, const GroupedPlan& plan) {
  const Pass pass(args, plan);
  Nest kept, added;  // operands: batch element, position, Z
  kept.strides.resize(3);
  added.strides.resize(3);
  for (const Nest* nest : {&plan.batch, &plan.positions}) {
    int64_t stride = 1;
    for (int d = nest->rank(); d-- > 0; stride *= nest->sizes[d]) {
      const int64_t to = nest->strides[kernels::kZ][d];
      const bool is_batch = nest == &plan.batch;
      (to == 0 ? added : kept)
          .add_dim(nest->sizes[d], {is_batch ? stride : 0, is_batch ? 0 : stride, to});
    }
  }
  const int64_t results = kept.elements() * plan.n;
  std::string body = fmt::format(
      "  const long long e = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
      "  if (e >= {}) return;\n  const long long r = e / {}, column = e % {};\n",
      kSide * kSide, results, plan.n, plan.n);
  body += pass.offsets() + pass.group() + pass.sums() + "  long long b0, p0, to;\n  {\n" +
          dims_text(kept, "r", "long long", 1);
  body += fmt::format(
      "    b0 = {}, p0 = {}, to = {};\n  }}\n  {} sum = 0;\n"
      "  for (long long i = 0; i < {}; ++i) {{\n{}"
      "    const long long b = b0 + {}, position = p0 + {};\n"
      "    if (group(b, position) >= 0) sum += sums[(b * {} + position) * {} + column];\n  }}\n"
      "  narrow(sum, {}[to + outer_z(column)]);\n",
      offset_text(kept, 0, 1, true), offset_text(kept, 1, 1, true), offset_text(kept, 2, 1, true),
      pass.type, added.elements(), dims_text(added, "i", "long long", 1),
      offset_text(added, 0, 1, true), offset_text(added, 1, 1, true), plan.rows, plan.n, pass.z);
  return pass.source(body, (results + kSide * kSide - 1) / (kSide * kSide));
}

Source sum_products(const KernelArgs& args, const GroupedPlan& plan) {
  const Pass pass(args, plan);
  const int64_t down = tiles(plan.k), across = tiles(plan.n);
  std::string body = fmt::format(
      "  const long long column = blockIdx.x % {1} * {0} + threadIdx.x % {0}, inner = blockIdx.x / "
      "{1} % {2} * {0}, g = blockIdx.x / {3} % {4}, b = blockIdx.x / {5};\n",
      kSide, across, down, across * down, plan.groups, across * down * plan.groups);
  body += pass.offsets() + pass.order() + pass.shared();
  body += fmt::format(
      "  const int end = ends[g];\n"
      "  for (int first = g > 0 ? ends[g - 1] : 0; first < end; first += {0}) {{\n"
      "    const bool live = first + ty < end;\n"
      "    const long long position = live ? order[first + ty] : 0;\n"
      "    left[ty][tx] = live && inner + tx < {1} ? widen({2}[batch_x(b) + row_x(position) + "
      "inner_x(inner + tx)]) : {3}(0);\n"
      "    right[ty][tx] = live && column < {4} ? widen({5}[batch_z(b) + row_z(position) + "
      "outer_z(column)]) : {3}(0);\n"
      "    __syncthreads();\n"
      "    for (int i = 0; i < {0}; ++i) sum += left[i][ty] * right[i][tx];\n"
      "    __syncthreads();\n  }}\n"
      "  if (inner + ty < {1} && column < {4})\n"
      "    narrow(sum, {6}[batch_m(b) + g * {7}ll + inner_m(inner + ty) + outer_m(column)]);\n",
      kSide, plan.k, pass.x, pass.type, plan.n, pass.z, pass.m, plan.group_stride);
  return pass.source(body, plan.batch.elements() * plan.groups * down * across);
}

}  // namespace

int64_t grouped_gpu_workspace(const Step& step) {
  const GroupedPlan plan = kernels::plan_grouped(step);
  return bytes_of_order(plan) + bytes_of_sums(plan, step.out.at(0).dtype);
}

std::vector<Source> generate_grouped_dot(const KernelArgs& args) {
  const GroupedPlan plan = kernels::plan_grouped(*args.step);
  std::vector<Source> passes = {sort_rows(args, plan), multiply_rows(args, plan)};
  if (plan.adds) passes.push_back(add_rows(args, plan));
  return passes;
}

std::vector<Source> generate_grouped_outer(const KernelArgs& args) {
  const GroupedPlan plan = kernels::plan_grouped(*args.step);
  return {sort_rows(args, plan), sum_products(args, plan)};
}

}  // namespace tessera::cuda
