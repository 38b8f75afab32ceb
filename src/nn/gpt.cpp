#include "base/fail.h"
#include "tessera/nn_transformer.h"

namespace tessera::nn {

Dim batch_dim(int64_t size, bool partial) {
  return partial ? Dim::bounded("batch", size) : Dim("batch", size);
}

TransformerOptions transformer_of(const GptOptions& o) {
  TESSERA_REQUIRE(o.heads >= 1, "gpt: heads is {}; it must be at least 1", o.heads);
  TESSERA_REQUIRE(o.d_model % o.heads == 0,
                  "gpt: d_model {} is not a multiple of heads {}; d_head would be {:.2f}",
                  o.d_model, o.heads,
                  static_cast<double>(o.d_model) / static_cast<double>(o.heads));
  TransformerOptions t;
  t.name = "gpt";
  t.layers = o.layers;
  t.d_model = o.d_model;
  t.vocab = o.vocab;
  t.length = o.length;
  t.batch = o.batch;
  t.heads.count = o.heads;
  t.heads.d_head = o.d_model / o.heads;
  t.heads.query_bias = t.heads.value_bias = t.heads.out_bias = true;  // a key's would cancel
  t.mlp.ff = o.ff;
  t.mlp.bias = true;
  t.learned_positions = true;
  t.tied = o.tied;
  t.dropout = o.dropout;
  t.partial_batch = o.partial_batch;
  t.dtype = o.dtype;
  t.float8 = o.float8;
  t.scan = o.scan;
  t.packed = o.packed;
  t.loss_blocks = o.loss_blocks;
  t.lora = o.lora;
  return t;
}

Model gpt(Graph& g, const GptOptions& o) { return transformer(g, transformer_of(o)); }

Model mlp(Graph& g, const MlpOptions& o) {
  const Dim batch = batch_dim(o.batch, o.partial_batch), rows("rows", o.rows), cols("cols", o.cols);
  const Dim hidden("hidden", o.hidden), hidden2("hidden2", o.hidden), classes("classes", o.classes);
  Tensor images = g.input("images", {batch, rows, cols}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  Scope scope(g, "mlp");
  Tensor h = relu(dense(images, "layer1", {"rows", "cols"}, Shape{hidden}));
  h = relu(dense(h, "layer2", {"hidden"}, Shape{hidden2}));
  Tensor logits = dense(h, "head", {"hidden2"}, Shape{classes}).named("logits");
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes")).named("loss");
  return {loss, logits, {images, labels}};
}

}  // namespace tessera::nn
