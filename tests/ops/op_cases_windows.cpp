// Rows of convolution and pooling.
#include <cmath>
#include <limits>

#include "ops/op_cases.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Function = std::function<Tensors(const Tensors&)>;

const Dim batch("batch", 3), depth("depth", 4), height("height", 5), width("width", 6), in("in", 2),
    out("out", 3);

OpCase row(const std::string& name, std::vector<CaseInput> operands,
           std::vector<std::string> splits, Function f) {
  return {name, std::move(operands), std::move(splits),
          [f](Graph&, const Tensors& x) -> Tensors { return f(x); }};
}

/// The elements along one dim by the definition of a convolution: y[o] = sum over k of
/// x[stride * o + dilation * k - before] * f[k], with `count` outputs.
struct Line {
  int64_t stride, dilation, before, count;
};
std::vector<double> by_definition(const double* x, int64_t n, const double* f, int64_t window,
                                  const Line& line) {
  std::vector<double> y(static_cast<size_t>(line.count), 0.0);
  for (int64_t o = 0; o < line.count; ++o) {
    for (int64_t k = 0; k < window; ++k) {
      const int64_t i = line.stride * o + line.dilation * k - line.before;
      if (i >= 0 && i < n) y[static_cast<size_t>(o)] += x[i] * f[k];
    }
  }
  return y;
}

/// A convolution over `height` of 11 elements with a window of 3, alone, against its definition.
OpCase line(const std::string& name, const ConvDim& dim, Padding padding, const Line& expected) {
  OpCase result =
      row(name, {real("x", {batch, Dim("height", 11)}), real("f", {Dim("filter_height", 3)})},
          {"batch", "height", "filter_height"}, [=](const Tensors& t) -> Tensors {
            return {conv(t[0], t[1], {{dim}, padding})};
          });
  result.expect = [=](const std::vector<Whole>& operands) {
    Whole y({"batch", "height"}, {3, expected.count});
    for (int64_t b = 0; b < 3; ++b) {
      const auto of_row =
          by_definition(operands[0].data.data() + b * 11, 11, operands[1].data.data(), 3, expected);
      std::copy(of_row.begin(), of_row.end(), y.data.begin() + b * expected.count);
    }
    return y;
  };
  return result;
}

void add_lines(std::vector<OpCase>& rows) {
  rows.push_back(line("conv1d_same", {"height"}, Padding::same, {1, 1, 1, 11}));
  rows.push_back(line("conv1d_same_2", {"height", "", 2}, Padding::same, {2, 1, 1, 6}));
  rows.push_back(line("conv1d_same_3_dilated", {"height", "", 3, 4}, Padding::same, {3, 4, 3, 4}));
  rows.push_back(line("conv1d_valid_dilated", {"height", "", 1, 3}, Padding::valid, {1, 3, 0, 5}));
  rows.push_back(line("conv1d_given", {"height", "", 2, 2, 3, 4}, Padding::given, {2, 2, 3, 7}));
  // One output position needs elements from several ranks.
  rows.push_back(line("conv1d_far", {"height", "", 1, 5}, Padding::same, {1, 5, 5, 11}));
}

void add_images(std::vector<OpCase>& rows) {
  const Dim fh("filter_height", 3), fw("filter_width", 2);
  const std::vector<std::string> splits = {"batch", "height", "width", "in", "out"};
  const CaseInput image = real("x", {batch, height, width, in}),
                  filter = real("f", {fh, fw, in, out});
  for (const auto& [stride, same] :
       {std::pair<int, bool>{1, true}, {1, false}, {2, true}, {2, false}}) {
    Conv2dOptions options;
    options.stride = stride;
    options.same = same;
    rows.push_back(
        row(std::string("conv2d") + (same ? "_same_" : "_valid_") + std::to_string(stride),
            {image, filter}, splits,
            [options](const Tensors& t) -> Tensors { return {conv2d(exp(t[0]), t[1], options)}; }));
  }
  const ConvOptions uneven{{{"height", "", 2, 1, 2, 0}, {"width", "", 1, 2, 0, 3}}, Padding::given};
  rows.push_back(row("conv2d_given", {real("x", {in, width, batch, height}), filter}, splits,
                     [=](const Tensors& t) -> Tensors { return {conv(sin(t[0]), t[1], uneven)}; }));
  // A sum over in that is not combined before the convolution, which is linear.
  rows.push_back(row("conv2d_of_sum",
                     {real("x", {batch, height, width, in}), real("w", {in, Dim("mid", 2)}),
                      real("f", {fh, Dim("mid", 2), out})},
                     {"batch", "height", "in", "mid", "out"}, [](const Tensors& t) -> Tensors {
                       Tensor x = einsum({t[0], t[1]}, {batch, height, width, Dim("mid", 2)});
                       return {conv(x, t[2], {{{"height"}}})};
                     }));
  const Dim fd("filter_depth", 2);
  rows.push_back(row("conv3d",
                     {real("x", {batch, depth, height, Dim("width", 3), in}),
                      real("f", {fd, fh, fw, in, Dim("out", 2)})},
                     {"batch", "depth", "height", "width", "out"}, [](const Tensors& t) -> Tensors {
                       return {conv(t[0], t[1], {{{"depth", "", 2}, {"height"}, {"width"}}})};
                     }));
}

void add_groups(std::vector<OpCase>& rows) {
  const Dim fh("filter_height", 3), group("group", 3);
  const CaseInput x = real("x", {batch, height, group, in});
  const std::vector<std::string> splits = {"batch", "height", "group", "in", "out"};
  rows.push_back(row("conv_grouped", {x, real("f", {fh, group, in, out})}, splits,
                     [](const Tensors& t) -> Tensors {
                       return {conv(exp(t[0]), t[1], {{{"height"}}, Padding::same, {"group"}})};
                     }));
  rows.push_back(row(
      "conv_depthwise", {x, real("f", {group, fh, in})}, splits, [](const Tensors& t) -> Tensors {
        return {conv(exp(t[0]), t[1], {{{"height", "", 2}}, Padding::valid, {"group", "in"}})};
      }));
}

void add_transposes(std::vector<OpCase>& rows) {
  const Dim fh("filter_height", 3), fw("filter_width", 2);
  const CaseInput x = real("x", {batch, height, width, in}), f = real("f", {fh, fw, out, in});
  const std::vector<std::string> splits = {"batch", "height", "width", "in", "out"};
  rows.push_back(row("conv_transpose", {x, f}, splits, [](const Tensors& t) -> Tensors {
    return {conv_transpose(exp(t[0]), t[1], {{{"height", "", 2}, {"width", "", 3}}})};
  }));
  rows.push_back(row("conv_transpose_valid", {x, f}, splits, [](const Tensors& t) -> Tensors {
    return {conv_transpose(t[0], t[1], {{{"height", "", 3, 2}, {"width"}}, Padding::valid})};
  }));
  ConvDim sized{"height", "", 2};
  sized.size = 9;
  rows.push_back(
      row("conv_transpose_sized", {x, real("f", {fh, in, out})}, splits,
          [=](const Tensors& t) -> Tensors {
            return {conv_transpose(t[0], t[1], {{sized}}),
                    conv_transpose(t[0], t[1], {{{"height", "", 1, 1, 2, 1}}, Padding::given})};
          }));
}

/// Windows that reach outside count what is inside: the mean of every window, by its definition.
Whole mean_by_definition(const Whole& x) {
  Whole y({"batch", "height"}, {3, 6});
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t o = 0; o < 6; ++o) {
      double sum = 0, count = 0;
      for (int64_t i = std::max<int64_t>(0, 2 * o - 1); i < std::min<int64_t>(11, 2 * o + 2); ++i)
        sum += x.data[b * 11 + i], count += 1;
      y.data[b * 6 + o] = sum / count;
    }
  }
  return y;
}

void add_pools(std::vector<OpCase>& rows) {
  const CaseInput image = real("x", {batch, height, width, in});
  const std::vector<std::string> splits = {"batch", "height", "width", "in"};
  PoolOptions overlapping;
  overlapping.dims = {{"height", 3, 2}, {"width", 3, 2}};
  overlapping.padding = Padding::same;
  rows.push_back(row("max_pool", {image}, splits, [=](const Tensors& t) -> Tensors {
    return {max_pool(t[0] - 3.0), max_pool(t[0] - 3.0, overlapping)};
  }));
  rows.push_back(row("max_pool_int", {integers("x", {batch, height}, -9, -2)}, {"batch", "height"},
                     [](const Tensors& t) -> Tensors {
                       return {max_pool(t[0], {{{"height", 3, 1, 1, 1, 2}}, Padding::given})};
                     }));
  rows.push_back(row("avg_pool", {image}, splits, [=](const Tensors& t) -> Tensors {
    PoolOptions padded = overlapping;
    padded.count_padding = true;
    return {avg_pool(exp(t[0])), avg_pool(t[0], overlapping), avg_pool(t[0], padded)};
  }));
  OpCase means = row("avg_pool_same", {real("x", {batch, Dim("height", 11)})}, {"batch", "height"},
                     [](const Tensors& t) -> Tensors {
                       return {avg_pool(t[0], {{{"height", 3, 2}}, Padding::same})};
                     });
  means.expect = [](const std::vector<Whole>& in) { return mean_by_definition(in[0]); };
  rows.push_back(means);
}

}  // namespace

std::vector<OpCase> window_cases() {
  std::vector<OpCase> rows;
  add_lines(rows);
  add_images(rows);
  add_groups(rows);
  add_transposes(rows);
  add_pools(rows);
  return rows;
}

}  // namespace tessera::test
