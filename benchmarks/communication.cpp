// The command line with two more models, whose communication peers/gspmd compares with XLA's:
//   bench_communication explain moe_layer --mesh x:8 --layout "batch,experts:x" --json FILE
//   bench_communication explain unet --mesh rows:8 --layout height:rows --set depth=0 --json FILE
// moe_layer is a pre-norm transformer layer whose feed-forward part is a mixture of experts; unet
// has two spatial dims, or three where model.depth is not 0.
#include "tessera/cli.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace {

nn::Model build_moe_layer(Graph& g, const Config& c, int64_t size, bool partial) {
  const Dim model("d_model", c.integer("model.d_model"));
  const Shape shape{nn::batch_dim(size, partial), Dim("length", c.integer("model.length")), model};
  Tensor x = g.input("x", shape, DType::float32), target = g.input("target", shape, DType::float32);
  Scope scope(g, "layer");
  nn::MultiHeadOptions attention;
  attention.heads = c.integer("model.heads");
  attention.d_head = model.size / attention.heads;
  attention.attention.causal = true;
  Tensor h =
      x + nn::self_attention(nn::norm(x, "norm1", "d_model"), "attention", "d_model", attention);
  nn::MoeOptions moe;
  moe.experts = Dim("experts", c.integer("model.experts"));
  moe.hidden = Dim("ff", c.integer("model.ff"));
  moe.routing.choices = c.integer("model.choices");
  moe.dropless = false;
  const nn::Moe mixed = nn::moe(nn::norm(h, "norm2", "d_model"), "moe", "d_model", moe);
  Tensor y = h + mixed.y;
  return {(mean_all(square(y - target)) + mixed.loss).named("loss"), y, {x, target}};
}

nn::Model build_unet(Graph& g, const Config& c, int64_t size, bool partial) {
  nn::UnetOptions o;
  o.batch = size;
  o.channels = c.integer("model.channels");
  o.filters = c.integer("model.filters");
  o.levels = c.integer("model.levels");
  o.convolutions = c.integer("model.convolutions");
  o.spatial = {{"height", c.integer("model.height")}, {"width", c.integer("model.width")}};
  if (c.integer("model.depth") > 0) o.spatial.emplace_back("depth", c.integer("model.depth"));
  o.training = !partial;
  return nn::unet(g, o);
}

/// Both models are only explained.
std::unique_ptr<DataSource> no_data(const Config&, bool) {
  throw Error(ErrorKind::usage, "this model has no data; use explain");
}

ModelSpec spec(const std::string& name, const std::string& help, std::vector<ConfigKey> keys,
               nn::Model (*build)(Graph&, const Config&, int64_t, bool)) {
  ModelSpec result;
  result.name = name;
  result.help = help;
  result.keys = std::move(keys);
  result.build = build;
  result.data = no_data;
  result.tokens = [](const Config&) { return int64_t{1}; };
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cli(
      argc, argv,
      {spec("moe_layer", "A transformer layer with experts.",
            {{"model.d_model", "128", "Width of the residual stream."},
             {"model.length", "64", "Number of tokens in an example."},
             {"model.heads", "4", "Number of attention heads."},
             {"model.experts", "8", "Number of experts."},
             {"model.ff", "256", "Width of an expert."},
             {"model.choices", "2", "Number of experts of a token."}},
            build_moe_layer),
       spec("unet", "A U-Net.",
            {{"model.height", "64", "Number of rows of an image."},
             {"model.width", "64", "Number of columns of an image."},
             {"model.depth", "0", "Number of layers of an image. 0: there is no such dim."},
             {"model.channels", "4", "Number of channels of an image."},
             {"model.filters", "16", "Number of filters of the first level."},
             {"model.levels", "3", "Number of levels."},
             {"model.convolutions", "2", "Number of convolutions of a level."}},
            build_unet)});
}
