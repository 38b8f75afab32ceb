#include "tessera/nn.h"

namespace tessera::nn {

namespace {

Tensor conv_block(Tensor x, const std::string& name, const Dim& in, const Dim& out) {
  Graph& g = x.graph();
  Scope scope(g, name);
  const Dim fh("filter_height", 3), fw("filter_width", 3);
  Tensor filter = g.parameter("filter", {fh, fw, in, out},
                              scaled_normal({"filter_height", "filter_width", in.name}, 1.4));
  Tensor bias = g.parameter("bias", Shape{out}, zeros());
  Conv2dOptions conv;
  conv.height = "rows";
  conv.width = "cols";
  PoolOptions pool;
  pool.dims = {{"rows"}, {"cols"}};
  return max_pool(relu(conv2d(x, filter, conv) + bias), pool);
}

}  // namespace

Model cnn(Graph& g, const CnnOptions& o) {
  const Dim batch = batch_dim(o.batch, o.partial_batch), rows("rows", o.rows), cols("cols", o.cols);
  const Dim channels0("channels0", 1), channels1("channels1", o.channels1),
      channels2("channels2", o.channels2);
  const Dim hidden("hidden", o.hidden), classes("classes", o.classes);
  Tensor images = g.input("images", {batch, rows, cols}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  Scope scope(g, "cnn");
  Tensor x =
      conv_block(broadcast(images, {batch, rows, cols, channels0}), "conv1", channels0, channels1);
  x = conv_block(x, "conv2", channels1, channels2);
  x = relu(dense(x, "hidden", {"rows", "cols", "channels2"}, Shape{hidden}, true, 1.4));
  Tensor logits = dense(x, "head", {"hidden"}, Shape{classes}).named("logits");
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes")).named("loss");
  return {loss, logits, {images, labels}};
}

}  // namespace tessera::nn
