//   dx = pointwise(x, dy, ...) {row_sum ...}      dx, t = pointwise(x, dy, ...) {...} column_sums=1
//   s = reduce sum(x, dy) {...}                   s = reduce sum(t)
// A dim of the rows is divided into parts and the rows of a part: t has a sum for each part. The
// step of the rows stands where the first of the two stood, the reduction where the last did.
#include "lower/passes/fuse_norm_grad_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lower/passes/fuse_merge.h"
#include "lower/passes/step_bounds.h"

namespace tessera {

namespace {

/// A block of threads sums a part. Enough parts to fill any GPU; enough rows in each for the sums
/// of parts to be few beside the rows.
constexpr int64_t kFewestParts = 256;
constexpr int64_t kRowsOfPart[] = {32, 16, 8};

bool may_give(const Step& step) {
  const auto& code = step.pointwise.code;
  return step.kernel == KernelKind::reduce && step.combiner == Combiner::sum &&
         step.exprs.empty() &&
         std::all_of(step.out.begin(), step.out.end(),
                     [](const View& v) { return v.dtype == DType::float32; }) &&
         std::none_of(code.begin(), code.end(),
                      [](const Instr& instr) { return changes_with_layout(instr.code); });
}

/// A step that walks rows, without numbers that depend on an element's position.
bool may_take(const Step& step) {
  return is_pointwise(step) && row_dim(step.pointwise) >= 0 && step.exprs.empty() &&
         step.find<TensorGroup>() == nullptr && step.find<ColumnSums>() == nullptr;
}

/// How the rows of a step are divided: dim `dim` into parts of `rows`.
struct Parts {
  size_t dim = 0;
  int64_t rows = 0;
};

std::optional<Parts> parts_of(const Step& step) {
  const View& out = step.out[0];
  const auto row = static_cast<size_t>(row_dim(step.pointwise));
  Parts parts;
  int64_t densest = std::numeric_limits<int64_t>::max();
  for (size_t d = 0; d < out.sizes.size(); ++d) {
    if (d == row || out.sizes[d] == 1 || out.strides[d] == 0 || out.strides[d] >= densest) continue;
    densest = out.strides[d];
    parts.dim = d;
  }
  if (densest == std::numeric_limits<int64_t>::max()) return {};
  const int64_t all = out.elements() / out.sizes[row];
  for (const int64_t rows : kRowsOfPart) {
    if (out.sizes[parts.dim] % rows != 0 || all / rows < kFewestParts) continue;
    parts.rows = rows;
    return parts;
  }
  return {};
}

void divide(View& v, const Parts& parts) {
  const auto at = static_cast<std::ptrdiff_t>(parts.dim);
  v.sizes[parts.dim] /= parts.rows;
  v.sizes.insert(v.sizes.begin() + at + 1, parts.rows);
  v.strides.insert(v.strides.begin() + at + 1, v.strides[parts.dim]);
  v.strides[parts.dim] *= parts.rows;
}

/// The step over the divided dims.
Step divided(const Step& step, const Parts& parts) {
  Step result = step;
  for (View& v : result.in) divide(v, parts);
  for (View& v : result.out) divide(v, parts);
  for (Instr& instr : result.pointwise.code) {
    if (reduces_row(instr.code) && instr.slot > static_cast<int>(parts.dim)) ++instr.slot;
  }
  return result;
}

/// For each dim of the rows' view the dim of the reduction's that is the same, where both show one
/// window of a buffer; nothing if they do not.
std::optional<std::vector<size_t>> matching_dims(const View& of_rows, const View& reduced) {
  if (of_rows.buffer != reduced.buffer || of_rows.dtype != reduced.dtype ||
      of_rows.offset != reduced.offset || !(of_rows.shift == reduced.shift) ||
      of_rows.sizes.size() != reduced.sizes.size())
    return {};
  std::vector<char> taken(reduced.sizes.size(), 0);
  std::vector<size_t> dims;
  for (size_t d = 0; d < of_rows.sizes.size(); ++d) {
    if (of_rows.strides[d] == 0) return {};
    size_t e = 0;
    while (e < taken.size() && (taken[e] != 0 || reduced.sizes[e] != of_rows.sizes[d] ||
                                reduced.strides[e] != of_rows.strides[d]))
      ++e;
    if (e == taken.size()) return {};
    taken[e] = 1;
    dims.push_back(e);
  }
  return dims;
}

View ordered(const View& v, const std::vector<size_t>& dims) {
  View result = v;
  for (size_t d = 0; d < dims.size(); ++d) {
    result.sizes[d] = v.sizes[dims[d]];
    result.strides[d] = v.strides[dims[d]];
  }
  return result;
}

/// Both steps after the change, and the buffers of parts: as many as the reduction has results.
struct Change {
  Step rows, reduction;
  std::vector<Buffer> buffers;
};

class Taker {
 public:
  Taker(const Step& rows, const Step& reduction, int next_buffer)
      : rows_(rows), reduction_(reduction), next_(next_buffer) {}

  std::optional<Change> change() const {
    const std::optional<std::vector<size_t>> dims = shared_dims();
    const auto row = static_cast<size_t>(row_dim(rows_.pointwise));
    if (!dims || !keeps_only((*dims)[row])) return {};
    const std::optional<Parts> parts = parts_of(rows_);
    if (!parts) return {};
    Change result;
    const Step all = divided(rows_, *parts);
    const Step sums = sums_of(*dims, *parts, row, result);
    if (!may_merge(all, sums, {})) return {};
    std::optional<Step> both = merged(all, sums, {});
    if (!both || both->out.size() != all.out.size() + sums.out.size()) return {};
    result.rows = std::move(*both);
    result.rows.origin = rows_.origin;
    result.rows.spec = ColumnSums{static_cast<int64_t>(sums.out.size())};
    return result;
  }

 private:
  /// The dims of an operand that both have, with all of its elements.
  std::optional<std::vector<size_t>> shared_dims() const {
    for (const std::vector<View>* views : {&rows_.in, &rows_.out}) {
      for (const View& mine : *views) {
        for (const View& theirs : reduction_.in) {
          if (auto dims = matching_dims(mine, theirs)) return dims;
        }
      }
    }
    return {};
  }

  bool keeps_only(size_t dim) const {
    const View &in = reduction_.in[0], &out = reduction_.out[0];
    for (size_t d = 0; d < in.sizes.size(); ++d) {
      const bool kept = out.sizes[d] == in.sizes[d] && out.strides[d] != 0;
      if (kept != (d == dim) && in.sizes[d] != 1) return false;
    }
    return true;
  }

  /// The reduction as a pointwise step whose outputs are the sums of parts, and the reduction that
  /// is left.
  Step sums_of(const std::vector<size_t>& dims, const Parts& parts, size_t row,
               Change& change) const {
    Step sums = reduction_;
    sums.kernel = KernelKind::pointwise;
    sums.spec = {};
    sums.pointwise = program_of_reduction(reduction_);
    for (View& v : sums.in) {
      v = ordered(v, dims);
      divide(v, parts);
    }
    change.reduction = reduction_;
    change.reduction.in.clear();
    change.reduction.pointwise = {};
    change.reduction.flops = 0;
    const std::vector<int64_t>& sizes = sums.in[0].sizes;
    const size_t summed = parts.dim + 1, last = row > parts.dim ? row + 1 : row;
    for (size_t k = 0; k < sums.out.size(); ++k) {
      View& part = sums.out[k];
      part = {next_ + static_cast<int>(k),
              DType::float32,
              sizes,
              std::vector<int64_t>(sizes.size()),
              0,
              {}};
      int64_t stride = part.strides[last] = 1;
      stride *= sizes[last];
      for (size_t d = sizes.size(); d-- > 0;) {
        if (d == last || d == summed) continue;
        part.strides[d] = stride;
        stride *= sizes[d];
      }
      View from = part, &to = change.reduction.out[k];
      from.sizes.erase(from.sizes.begin() + static_cast<std::ptrdiff_t>(summed));
      from.strides.erase(from.strides.begin() + static_cast<std::ptrdiff_t>(summed));
      to = ordered(to, dims);
      change.reduction.in.push_back(from);
      change.reduction.pointwise.code.push_back(load_of(DType::float32, static_cast<int>(k)));
      change.reduction.pointwise.outputs.push_back(static_cast<int>(k));
      change.reduction.flops += stride;
      change.buffers.push_back({fmt::format("{}.parts{}", reduction_.origin.name, k),
                                ArenaKind::transient, stride * size_of(DType::float32)});
    }
    return sums;
  }

  const Step &rows_, &reduction_;
  int next_;
};

class Rows {
 public:
  Rows(Program& program, Function& function) : program_(program), function_(function) {
    bounds_.emplace(program, function);
  }

  void run() {
    const int first = function_.early, last = function_.first_update - function_.late;
    std::multimap<int, int> walking;  // buffer -> step with row instructions
    for (int s = first; s < last; ++s) {
      if (!may_take(at(s))) continue;
      for (const std::vector<View>* views : {&at(s).in, &at(s).out})
        for (const View& v : *views) walking.emplace(v.buffer, s);
    }
    for (int s = first; s < last; ++s) {
      if (!may_give(at(s))) continue;
      const std::vector<View> in = at(s).in;
      const bool given = std::any_of(in.begin(), in.end(), [&](const View& v) {
        const auto [begin, end] = walking.equal_range(v.buffer);
        return std::any_of(begin, end, [&](const auto& p) { return give(s, p.second); });
      });
      if (given) bounds_.emplace(program_, function_);
    }
  }

 private:
  Step& at(int place) { return function_.steps[static_cast<size_t>(place)]; }

  bool give(int reduction, int rows) {
    if (!may_take(at(rows)) || !may_give(at(reduction))) return false;
    const int early = std::min(reduction, rows), late = std::max(reduction, rows);
    // Whichever is late: what it reads is there early, or is what the rows' step stores. An early
    // reduction is not read before it ends late.
    const int ready = bounds_->of(late).first;
    if (late == reduction ? ready > early : ready >= early || bounds_->of(early).second <= late)
      return false;
    std::optional<Change> change =
        Taker(at(rows), at(reduction), static_cast<int>(program_.buffers.size())).change();
    if (!change) return false;
    for (Buffer& buffer : change->buffers) program_.buffers.push_back(std::move(buffer));
    at(early) = std::move(change->rows);
    at(late) = std::move(change->reduction);
    return true;
  }

  Program& program_;
  Function& function_;
  std::optional<StepBounds> bounds_;
};

}  // namespace

void fuse_norm_grad_sums(Program& program) {
  for (Function* f : all_functions(program.functions)) Rows(program, *f).run();
}

}  // namespace tessera
