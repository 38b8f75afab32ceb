// Convolutions, pooling and windows. Options of each spatial dim come as lists of one length.
#include "convert.h"

namespace tessera::python {

namespace {

using Numbers = std::vector<int64_t>;

Padding padding_of(const std::string& name) {
  if (name == "same") return Padding::same;
  if (name == "valid") return Padding::valid;
  if (name == "given") return Padding::given;
  throw Error(ErrorKind::usage, "padding is '" + name +
                                    "'; known: same, valid, or a list of (before, after), one "
                                    "for each dim");
}

ConvOptions conv_options(const std::vector<std::string>& names, const Numbers& stride,
                         const Numbers& dilation, const Numbers& before, const Numbers& after,
                         const Numbers& size, const std::string& padding, nb::handle groups) {
  ConvOptions o;
  o.padding = padding_of(padding);
  o.groups = names_of(groups);
  for (size_t i = 0; i < names.size(); ++i)
    o.dims.push_back({names[i], "", stride[i], dilation[i], before[i], after[i], size[i]});
  return o;
}

PoolOptions pool_options(const std::vector<std::string>& names, const Numbers& window,
                         const Numbers& stride, const Numbers& dilation, const Numbers& before,
                         const Numbers& after, const std::string& padding, bool count_padding) {
  PoolOptions o;
  o.padding = padding_of(padding);
  o.count_padding = count_padding;
  o.dims.clear();
  for (size_t i = 0; i < names.size(); ++i)
    o.dims.push_back({names[i], window[i], stride[i], dilation[i], before[i], after[i]});
  return o;
}

void bind_convolutions(nb::module_& m) {
  m.def(
      "conv",
      [](const Tensor& x, const Tensor& filter, nb::handle dims, const Numbers& stride,
         const Numbers& dilation, const Numbers& before, const Numbers& after, const Numbers& size,
         const std::string& padding, nb::handle groups, bool transposed) {
        const ConvOptions o =
            conv_options(names_of(dims, x), stride, dilation, before, after, size, padding, groups);
        return transposed ? conv_transpose(x, filter, o) : conv(x, filter, o);
      },
      At(), nb::arg("x"), nb::arg("filter"), nb::arg("dims"), nb::arg("stride"),
      nb::arg("dilation"), nb::arg("before"), nb::arg("after"), nb::arg("size"), nb::arg("padding"),
      nb::arg("groups"), nb::arg("transposed"));
  m.def(
      "conv_layer",
      [](const Tensor& x, const std::string& name, nb::handle window, nb::handle in, const Dim& out,
         const Numbers& stride, const Numbers& dilation, const Numbers& before,
         const Numbers& after, const std::string& padding, bool bias) {
        const Shape spatial = shape_of(window);
        nn::ConvLayerOptions o;
        o.bias = bias;
        o.conv = conv_options(spatial.names(), stride, dilation, before, after,
                              Numbers(spatial.dims().size()), padding, nb::list());
        return nn::conv_layer(x, name, spatial, name_of(in, x), out, o);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("window"), nb::arg("in_dim"), nb::arg("out_dim"),
      nb::arg("stride"), nb::arg("dilation"), nb::arg("before"), nb::arg("after"),
      nb::arg("padding"), nb::arg("bias"));
}

void bind_pooling(nb::module_& m) {
  m.def(
      "pool",
      [](const Tensor& x, bool is_max, nb::handle dims, const Numbers& window,
         const Numbers& stride, const Numbers& dilation, const Numbers& before,
         const Numbers& after, const std::string& padding, bool count_padding) {
        const PoolOptions o = pool_options(names_of(dims, x), window, stride, dilation, before,
                                           after, padding, count_padding);
        return is_max ? max_pool(x, o) : avg_pool(x, o);
      },
      At(), nb::arg("x"), nb::arg("is_max"), nb::arg("dims"), nb::arg("window"), nb::arg("stride"),
      nb::arg("dilation"), nb::arg("before"), nb::arg("after"), nb::arg("padding"),
      nb::arg("count_padding"));
  m.def(
      "windows",
      [](const Tensor& x, nb::handle dim, const Dim& window, int64_t stride, int64_t dilation,
         int64_t before, int64_t after, double fill) {
        return windows(x, name_of(dim, x), window, {stride, dilation, before, after, fill});
      },
      At(),
      "All windows along `dim`, whose size becomes their number; the dim `window` follows it.",
      nb::arg("x"), nb::arg("dim"), nb::arg("window"), nb::arg("stride") = 1,
      nb::arg("dilation") = 1, nb::arg("before") = 0, nb::arg("after") = 0, nb::arg("fill") = 0.0);
  m.def(
      "batch_norm",
      [](const Tensor& x, const std::string& name, nb::handle channels, bool training,
         double momentum, double eps) {
        return nn::batch_norm(x, name, names_of(channels, x), {training, momentum, eps});
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("channels"), nb::arg("training"),
      nb::arg("momentum"), nb::arg("eps"));
}

}  // namespace

void bind_spatial(nb::module_& m) {
  bind_convolutions(m);
  bind_pooling(m);
}

}  // namespace tessera::python
