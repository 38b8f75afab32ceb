// The built-in models with their configuration keys.
#include "base/fail.h"
#include "cli/transformer_keys.h"
#include "tessera/cli.h"

namespace tessera {

namespace {

bool is_float8(const Config& c) { return c.text("train.dtype") == "float8"; }
DType dtype_of(const Config& c) {
  return is_float8(c) ? DType::bfloat16 : parse_dtype(c.text("train.dtype").c_str());
}

nn::GptOptions gpt_options(const Config& c) {
  nn::GptOptions o;
  o.layers = c.integer("model.layers");
  o.d_model = c.integer("model.d_model");
  o.heads = c.integer("model.heads");
  o.ff = c.integer("model.ff");
  o.length = c.integer("model.length");
  o.vocab = c.integer("model.vocab");
  o.tied = c.flag("model.tied");
  o.scan = c.flag("model.scan");
  o.dtype = dtype_of(c);
  o.float8 = is_float8(c);
  o.loss_blocks = c.integer("model.loss_blocks");
  o.lora = cli::lora_of(c);
  return o;
}

nn::TransformerOptions transformer_options(const Config& c, const nn::GptOptions& gpt) {
  nn::TransformerOptions o = nn::transformer_of(gpt);
  o.ahead = cli::ahead_of(c);
  return o;
}

nn::Model build_gpt(Graph& g, const Config& c, int64_t batch, bool partial) {
  nn::GptOptions o = gpt_options(c);
  o.dropout = partial ? 0 : c.number("model.dropout");
  if (partial) o.lora.dropout = 0;
  o.batch = batch;
  o.partial_batch = partial;
  o.packed = cli::is_packed(c);
  return nn::transformer(g, transformer_options(c, o));
}

std::unique_ptr<DataSource> text(const Config& c, bool held_out) {
  TextOptions o;
  o.length = c.integer("model.length");
  o.vocabulary = c.integer("model.vocab");
  o.token_bytes = static_cast<int>(c.integer("data.token_bytes"));
  return cli::open_tokens(c, held_out, o);
}

nn::Model build_mlp(Graph& g, const Config& c, int64_t batch, bool partial) {
  nn::MlpOptions o;
  o.hidden = c.integer("model.hidden");
  o.batch = batch;
  o.partial_batch = partial;
  TESSERA_REQUIRE(dtype_of(c) == DType::float32, "mlp trains in float32; train.dtype is '{}'",
                  c.text("train.dtype"));
  return nn::mlp(g, o);
}

nn::Model build_cnn(Graph& g, const Config& c, int64_t batch, bool partial) {
  nn::CnnOptions o;
  o.channels1 = c.integer("model.channels1");
  o.channels2 = c.integer("model.channels2");
  o.hidden = c.integer("model.hidden");
  o.batch = batch;
  o.partial_batch = partial;
  TESSERA_REQUIRE(dtype_of(c) == DType::float32, "cnn trains in float32; train.dtype is '{}'",
                  c.text("train.dtype"));
  return nn::cnn(g, o);
}

std::unique_ptr<DataSource> digits(const Config& c, bool held_out) {
  return cli::open_images(c, held_out);
}

const KeyRange kWidth = KeyRange::whole(1, 1'000'000);

std::vector<ConfigKey> gpt_keys() {
  std::vector<ConfigKey> keys = {
      {"model.layers", "4", "Number of blocks.", KeyRange::whole(1, 2000)},
      {"model.d_model", "128", "Width of the residual stream.", kWidth},
      {"model.heads", "4", "Number of attention heads.", kWidth},
      {"model.ff", "512", "Width of the feed-forward layer.", kWidth},
      {"model.length", "128", "Number of tokens in an example.", KeyRange::whole(1, 10'000'000)},
      {"model.vocab", "256",
       "Number of token values, 256 for bytes, else at least the tokenizer's.",
       KeyRange::whole(1, 10'000'000)},
      {"model.tied", "false", "Whether the output projection is the embedding.",
       KeyRange::one_of({"false", "true"})},
      {"model.scan", "false", "Whether the blocks are a loop, of which one is compiled.",
       KeyRange::one_of({"false", "true"})},
      cli::loss_blocks_key(),
      {"model.dropout", "0", "Rate of dropout, below 1.", KeyRange::number(0, 1)}};
  for (ConfigKey& key : cli::ahead_keys()) keys.push_back(std::move(key));
  for (ConfigKey& key : cli::lora_keys()) keys.push_back(std::move(key));
  return keys;
}

std::vector<ModelSpec> make_models() {
  std::vector<ModelSpec> models;
  models.push_back({"gpt",
                    "A decoder language model on bytes of text, or on tokens of a corpus.",
                    gpt_keys(),
                    build_gpt,
                    text,
                    [](const Config& c) { return c.integer("model.length"); },
                    {{"model.layers", "2"},
                     {"model.d_model", "32"},
                     {"model.heads", "4"},
                     {"model.ff", "64"},
                     {"model.length", "16"},
                     {"train.batch", "8"}},
                    "batch:data;heads,ff,vocab:model",
                    {},
                    {},
                    "model.layers",
                    "model.scan"});
  models.back().documented = {"batch:data",
                              "heads,ff,vocab:model",
                              "batch:data;heads,ff,vocab:model",
                              "batch:data;heads,ff,vocab:model;@/*norm*/ length:model",
                              "batch:data+model",
                              "batch:pod+data",
                              "batch:data;@state d_model:data",
                              "batch:data;@grads d_model:data",
                              "batch:data;@params d_model:data",
                              "batch:data;@state d_model:data;@params/*mlp*/ ff:data",
                              "batch:data;heads,ff,vocab:model;@params d_model:data",
                              "length:context",
                              "length,memory_length:context",
                              "length:context*2",
                              "length,memory_length:context*2",
                              "length:context;@/*attention*/ heads:context",
                              "batch:data;length,memory_length:context;heads,ff,vocab:model"};
  models.back().transformer = [](const Config& c) {
    return transformer_options(c, gpt_options(c));
  };
  models.push_back({"mlp",
                    "Two hidden layers that read handwritten digits.",
                    {{"model.hidden", "256", "Width of the hidden layers.", kWidth}},
                    build_mlp,
                    digits,
                    [](const Config&) { return int64_t{1}; },
                    {{"model.hidden", "32"}, {"train.batch", "8"}},
                    "batch:data;hidden:model"});
  models.back().documented = {"batch:data", "batch:data;hidden:model"};
  models.push_back(
      {"cnn",
       "Two convolutions that read handwritten digits.",
       {{"model.channels1", "16", "Number of channels of the first convolution.", kWidth},
        {"model.channels2", "32", "Number of channels of the second convolution.", kWidth},
        {"model.hidden", "128", "Width of the hidden layer.", kWidth}},
       build_cnn,
       digits,
       [](const Config&) { return int64_t{1}; },
       {{"model.channels1", "4"},
        {"model.channels2", "6"},
        {"model.hidden", "8"},
        {"train.batch", "4"}},
       "batch:data;channels1,hidden:model"});
  models.back().documented = {"batch:data", "batch:data;channels1,hidden:model", "rows:data"};
  return models;
}

}  // namespace

const std::vector<ModelSpec>& builtin_models() {
  static const std::vector<ModelSpec> models = make_models();
  return models;
}

}  // namespace tessera
