#include "kernels/cuda/conv_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/common/conv_sizes.h"

namespace tessera::cuda {

namespace {

constexpr size_t kSides = 3;  ///< x, filter, y
using Numbers = std::vector<int64_t>;

class ConvPlanner {
 public:
  explicit ConvPlanner(const Step& step)
      : step_(step), sides_(step), kinds_(step.as<ConvSpec>().kinds) {
    view_[0] = sides_.x;
    view_[1] = sides_.filter;
    view_[2] = sides_.y;
  }

  ConvPlan plan() {
    ConvPlan& p = plan_;
    p.result = sides_.result;
    p.images = kernels::count_of(step_, kernels::kImages);
    p.groups = kernels::count_of(step_, kernels::kGroup);
    p.inputs = kernels::count_of(step_, kernels::kInputs);
    p.outputs = kernels::count_of(step_, kernels::kOutputs);
    const DType type = step_.out[0].dtype;
    p.channels_last = type == DType::bfloat16 || type == DType::float16;
    if (!p.channels_last && type != DType::float32)
      return refused(fmt::format("it is of {}", to_string(type)));
    const size_t spatial = view_[0]->sizes.size() - kinds_.size();
    if (spatial > 2) return refused(fmt::format("it has {} spatial dims; 2 are possible", spatial));
    for (size_t s = 0; s < spatial; ++s) {
      if (std::string why = add_dim(s); !why.empty()) return refused(std::move(why));
    }
    if (p.images * p.groups * p.inputs * p.outputs == 0) return refused("it has no elements");
    for (size_t side = 0; side < kSides; ++side) lay_out(side);
    return p;
  }

 private:
  ConvPlan refused(std::string why) {
    ConvPlan none;
    none.why_not = std::move(why);
    return none;
  }

  std::string add_dim(size_t s) {
    const auto& c = step_.as<ConvSpec>();
    const size_t d = kinds_.size() + s;
    ConvDim& dim = plan_.dims[s];
    dim = {view_[0]->sizes[d], view_[1]->sizes[d], view_[2]->sizes[d],
           c.strides[s],       c.dilations[s],     c.los[s]};
    for (size_t e = 3 * s; e < 3 * s + 3; ++e) {
      const AffineExpr& begin = step_.exprs.at(e);
      if (!begin.axis_terms.empty() || begin.depends_on_scalars() || begin.eval({}, nullptr) != 0)
        return "ranks have parts of a spatial dim";
    }
    if (dim.in != c.in_sizes[s] || dim.window != c.window_sizes[s] || dim.out != c.out_sizes[s])
      return "a spatial dim is padded for the layout";
    const int64_t reach = dim.dilation * (dim.window - 1) + 1, room = dim.in + 2 * dim.pad - reach;
    if (dim.window < 1 || dim.pad < 0 || room < 0 || room / dim.stride + 1 != dim.out)
      return fmt::format("its padding of {} elements at the front is not that at the end", dim.pad);
    return "";
  }

  /// The dims of a side in the library's order, innermost last.
  std::vector<size_t> order(size_t side) const {
    std::vector<size_t> dims, spatial;
    for (size_t d = kinds_.size(); d < view_[side]->sizes.size(); ++d) spatial.push_back(d);
    const auto add = [&](int64_t kind) {
      for (size_t d = 0; d < kinds_.size(); ++d) {
        if (kinds_[d] == kind) dims.push_back(d);
      }
    };
    if (side != 1) add(kernels::kImages);
    const auto add_spatial = [&] { dims.insert(dims.end(), spatial.begin(), spatial.end()); };
    if (side == 1) {
      add(kernels::kGroup);
      add(kernels::kOutputs);
      if (plan_.channels_last) add_spatial();
      add(kernels::kInputs);
      if (!plan_.channels_last) add_spatial();
      return dims;
    }
    if (plan_.channels_last) add_spatial();
    add(kernels::kGroup);
    add(side == 0 ? kernels::kInputs : kernels::kOutputs);
    if (!plan_.channels_last) add_spatial();
    return dims;
  }

  void lay_out(size_t side) {
    const View& view = *view_[side];
    ConvCopy& copy = plan_.copies[side];
    copy.to.assign(view.sizes.size(), 0);
    int64_t stride = 1;
    const std::vector<size_t> dims = order(side);
    for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
      if (view.sizes[*d] == 1) continue;
      copy.to[*d] = stride;
      copy.used |= view.strides[*d] != stride;
      stride *= view.sizes[*d];
    }
    if (!copy.used) return;
    copy.offset = plan_.workspace;
    plan_.workspace += (stride * size_of(view.dtype) + 255) / 256 * 256;
  }

  const Step& step_;
  const kernels::Sides sides_;
  const std::vector<kernels::Kind>& kinds_;
  const View* view_[kSides];
  ConvPlan plan_;
};

}  // namespace

ConvPlan plan_conv(const Step& step) { return ConvPlanner(step).plan(); }

int conv_operand(int64_t result, int side) {
  if (side == (result == kernels::kOfY ? 2 : result == kernels::kOfX ? 0 : 1)) return 2;
  if (result == kernels::kOfY) return side;
  return result == kernels::kOfX ? (side == 2 ? 0 : 1) : (side == 0 ? 0 : 1);
}

}  // namespace tessera::cuda
