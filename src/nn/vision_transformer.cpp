// A transformer that classifies images (Dosovitskiy et al. 2021): patches are the tokens, and the
// class is read off a token before them that stands for no patch.
#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

namespace {

void require_image(const TransformerOptions& o) {
  const ImageOptions& image = o.image;
  TESSERA_REQUIRE(
      image.patch >= 1 && image.rows >= 1 && image.cols >= 1 && image.channels >= 1 &&
          image.classes >= 1 && image.rows % image.patch == 0 && image.cols % image.patch == 0,
      "[transformer] images of {} x {} with {} channels, {} classes, patches of {}; each is at "
      "least 1, and the patch divides rows and columns",
      image.rows, image.cols, image.channels, image.classes, image.patch);
  TESSERA_REQUIRE(
      o.length == image.tokens(),
      "[transformer] length {} for images of {} tokens (one a patch and that of the class)",
      o.length, image.tokens());
  for (const std::vector<double>* values : {&image.mean, &image.deviation}) {
    TESSERA_REQUIRE(
        values->empty() || std::ssize(*values) == image.channels,
        "[transformer] {} means or deviations for {} channels; there is one for each, or none",
        values->size(), image.channels);
  }
  for (const double d : image.deviation)
    TESSERA_REQUIRE(d > 0, "[transformer] a channel with the deviation {}; it is positive", d);
  TESSERA_REQUIRE(
      !o.causal && o.encoder_layers == 0 && !o.packed && o.token_types == 0 && o.loss_blocks == 1 &&
          o.relative_buckets == 0,
      "[transformer] a model of images is not causal, and has no encoder beside it, packed "
      "windows, token types, relative positions or loss_blocks");
}

/// The values of channels, as a tensor to compute with images.
Tensor of_channels(Graph& g, const std::vector<double>& values, const Dim& channels, DType dtype) {
  Array array(DType::float32, {channels.name}, {channels.size});
  for (size_t i = 0; i < values.size(); ++i) array.data<float>()[i] = static_cast<float>(values[i]);
  return cast(constant(g, array), dtype);
}

/// Images [batch, channels, rows, cols] to tokens [batch, length, d_model].
Tensor patches(Tensor images, const TransformerOptions& o) {
  const ImageOptions& image = o.image;
  const Dim height("filter_height", image.patch), width("filter_width", image.patch),
      channels("channels", image.channels), d_model("d_model", o.d_model);
  Tensor filter =
      parameter_for(images, "patch.w", {height, width, channels, d_model},
                    scaled_normal({"filter_height", "filter_width", "channels"}), Loc::current());
  Tensor bias = parameter_for(images, "patch.b", Shape{d_model}, zeros(), Loc::current());
  Conv2dOptions conv;
  conv.height = "rows";
  conv.width = "cols";
  conv.stride = image.patch;
  conv.same = false;
  Tensor x = conv2d(images, filter, conv) + bias;
  const Dim batch = x.dim("batch");
  x = transpose(x, {batch, x.dim("rows"), x.dim("cols"), d_model});
  return reshape(x, {batch, Dim("length", image.tokens() - 1), d_model});
}

}  // namespace

Model image_classifier(Graph& g, const TransformerOptions& o) {
  require_image(o);
  const ImageOptions& image = o.image;
  const Dim batch = batch_dim(o.batch, o.partial_batch), rows("rows", image.rows),
            cols("cols", image.cols), channels("channels", image.channels),
            d_model("d_model", o.d_model);
  Model model;
  Tensor images = g.input(
      "images", image.channels == 1 ? Shape{batch, rows, cols} : Shape{batch, channels, rows, cols},
      DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  model.inputs = {images, labels};
  const Scope scope(g, o.name);
  const DType stored = stored_dtype(o.dtype);
  Tensor x = images;
  if (image.channels == 1) x = broadcast(x, {batch, channels, rows, cols});
  if (!image.mean.empty()) x = x - of_channels(g, image.mean, channels, x.dtype());
  if (!image.deviation.empty()) x = x / of_channels(g, image.deviation, channels, x.dtype());
  x = patches(cast(x, o.dtype), o);
  Tensor first = g.parameter("class_token", Shape{d_model}, normal(0.02), stored);
  first = broadcast(read_as(first, x.dtype()), {batch, Dim("length", 1), d_model});
  Tensor table =
      g.parameter("position", {Dim("positions", o.length), d_model}, normal(0.02), stored);
  x = concat({first, x}, "length") + rename(read_as(table, x.dtype()), "positions", "length");
  if (o.dropout > 0) x = dropout(x, o.dropout);
  x = through_blocks(g, o, shared_spans(g, o, {}), x);
  x = norm(x, "norm", "d_model", o.norm);
  x = reshape(slice(x, "length", 0, 1), {batch, d_model});
  DenseOptions head;
  if (!o.lora.targets.empty()) head.lora = o.lora;
  model.logits =
      dense(x, "head", {"d_model"}, Shape{Dim("classes", image.classes)}, head).named("logits");
  model.loss = mean_all(cross_entropy(model.logits, labels, "classes")).named("loss");
  require_adapted(g, o.lora, g.scope());
  return model;
}

}  // namespace tessera::nn
