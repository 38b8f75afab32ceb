// The convolutions and poolings of mesh_tensorflow_layers.h.
#include "mesh_tensorflow/layers.h"

namespace tessera::test {

namespace {

MtfBuild conv(const std::vector<Dim>& window, int64_t stride, Padding padding,
              bool transposed = false) {
  return [=](const MtfInputs& x) {
    nn::ConvLayerOptions o;
    o.transposed = transposed;
    o.bias = false;
    o.conv.padding = padding;
    for (const Dim& d : window) {
      o.conv.dims.push_back({d.name});
      o.conv.dims.back().stride = stride;
    }
    return nn::conv_layer(x("x"), "layer", Shape(window), "model", Dim("ff", 2), o);
  };
}

std::vector<Dim> window(const std::vector<int64_t>& sizes) {
  const std::vector<std::string> names = {"depth", "height", "width"};
  std::vector<Dim> dims;
  for (size_t i = 0; i < sizes.size(); ++i)
    dims.emplace_back(names[3 - sizes.size() + i], sizes[i]);
  return dims;
}

MtfBuild pool(bool max, const std::vector<int64_t>& sizes) {
  return [=](const MtfInputs& x) {
    PoolOptions o;
    o.dims.clear();
    for (const Dim& d : window(sizes)) o.dims.push_back({d.name, d.size});
    return max ? max_pool(x("x"), o) : avg_pool(x("x"), o);
  };
}

/// Blocks of an image, one beside the other, are the image.
Tensor over_blocks(Tensor x) {
  const Dim batch = x.dim("batch"), in = x.dim("model"), rows("rows", 2), columns("columns", 2),
            height("height", 3), width("width", 4);
  Tensor image = transpose(x, {batch, rows, height, columns, width, in});
  image = reshape(image, {batch, Dim("high", 6), Dim("wide", 8), in});
  nn::ConvLayerOptions o;
  o.bias = false;
  o.conv.dims = {{"high", "filter_height"}, {"wide", "filter_width"}};
  const Dim out("ff", 2);
  Tensor filter = x.graph().parameter(
      "layer.w", {Dim("filter_height", 3), Dim("filter_width", 3), in, out}, nn::zeros());
  Tensor y = conv(image, filter, o.conv);
  return reshape(y, {batch, rows, height, columns, width, out});
}

}  // namespace

void add_mtf_convolutions(MtfRows& rows) {
  rows["conv1d"] = conv(window({3}), 1, Padding::same);
  rows["conv1d_stride_2"] = conv(window({4}), 2, Padding::same);
  rows["conv1d_valid"] = conv(window({3}), 1, Padding::valid);
  rows["conv2d"] = conv(window({3, 2}), 1, Padding::same);
  rows["conv2d_stride_2"] = conv(window({3, 3}), 2, Padding::same);
  rows["conv2d_even_stride_2"] = conv(window({2, 4}), 2, Padding::same);
  rows["conv2d_valid"] = conv(window({3, 2}), 1, Padding::valid);
  rows["conv3d"] = conv(window({3, 2, 1}), 1, Padding::same);
  rows["conv3d_stride_2"] = conv(window({3, 3, 3}), 2, Padding::same);
  rows["conv2d_transpose"] = conv(window({2, 2}), 2, Padding::same, true);
  rows["conv2d_transpose_3"] = conv(window({3, 3}), 2, Padding::same, true);
  rows["conv3d_transpose"] = conv(window({2, 2, 2}), 2, Padding::same, true);
  rows["conv2d_with_blocks"] = [](const MtfInputs& x) { return over_blocks(x("x")); };
  // One filter of three taps for each channel, of which the last is at the position itself.
  rows["separable_conv1d"] = [](const MtfInputs& x) {
    const Shape channels{x("x").dim("model")};
    std::vector<Tensor> taps;
    for (const char* name : {"tap0", "tap1", "tap2"})
      taps.push_back(x.graph.parameter(name, channels, nn::zeros()));
    ConvDim along{"length", "taps"};
    along.before = 2;
    ConvOptions o{{along}, Padding::given, {"model"}};
    Tensor y = conv(x("x"), stack(taps, "taps"), o);
    y = y + x.graph.parameter("tap_bias", channels, nn::zeros());
    return nn::dense(y, "out", {"model"}, Shape{Dim("ff", 8)});
  };
  rows["max_pool2d"] = pool(true, {2, 3});
  rows["avg_pool2d"] = pool(false, {2, 3});
  rows["max_pool3d"] = pool(true, {2, 2, 1});
  rows["avg_pool3d"] = pool(false, {2, 2, 1});
}

}  // namespace tessera::test
