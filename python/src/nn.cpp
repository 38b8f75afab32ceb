// Layers, initializers and the models that come with Tessera.
#include "convert.h"

namespace tessera::python {

namespace {

void bind_initializers(nb::module_& m) {
  using Handle = InitializerHandle;
  using Custom = std::function<Tensor(std::shared_ptr<Graph>, std::vector<Dim>, std::string)>;
  m.def(
      "custom",
      [](const Custom& function) {
        return Handle{[function](Graph& g, const Shape& shape, DType dtype) {
          return function(owner_of(g), shape.dims(), to_string(dtype));
        }};
      },
      nb::arg("function"));
  m.def(
      "zeros", [] { return Handle{nn::zeros()}; }, "0 in every element.");
  m.def(
      "ones", [] { return Handle{nn::ones()}; }, "1 in every element.");
  m.def(
      "filled_with", [](double value) { return Handle{nn::filled_with(value)}; }, nb::arg("value"),
      "`value` in every element.");
  m.def(
      "normal", [](double stddev) { return Handle{nn::normal(stddev)}; }, At(), nb::arg("stddev"),
      "Normal with mean 0.");
  m.def(
      "truncated", [](double stddev) { return Handle{nn::truncated(stddev)}; }, At(),
      nb::arg("stddev"), "Normal with mean 0, truncated to two standard deviations.");
  m.def(
      "uniform", [](double lo, double hi) { return Handle{nn::uniform(lo, hi)}; }, At(),
      nb::arg("lo"), nb::arg("hi"), "Uniform in [lo, hi).");
  m.def(
      "scaled_normal",
      [](nb::handle dims, double gain) { return Handle{nn::scaled_normal(names_of(dims), gain)}; },
      At(), nb::arg("fan_in"), nb::arg("gain") = 1.0,
      "Normal with standard deviation gain / sqrt(size of the dims fan_in), truncated at two "
      "(LeCun et al. 1998).");
  m.def(
      "glorot_uniform",
      [](nb::handle in, nb::handle out) {
        return Handle{nn::glorot_uniform(names_of(in), names_of(out))};
      },
      At(), nb::arg("in_dims"), nb::arg("out_dims"),
      "Uniform with variance 2 / (size of in_dims + size of out_dims) (Glorot & Bengio 2010).");
  m.def(
      "he_normal", [](nb::handle in) { return Handle{nn::he_normal(names_of(in))}; }, At(),
      nb::arg("in_dims"), "Normal with variance 2 / size of in_dims (He et al. 2015).");
}

void bind_layers(nb::module_& m) {
  m.def(
      "dense",
      [](const Tensor& x, const std::string& name, nb::handle in, nb::handle out, bool bias,
         const std::vector<std::string>& activations, double gain) {
        nn::DenseOptions o;
        o.bias = bias;
        o.gain = gain;
        o.activations = activations;
        return nn::dense(x, name, names_of(in, x), shape_of(out, {x}), o);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("in_dims"), nb::arg("out_dims"),
      nb::arg("bias") = true, nb::arg("activations") = std::vector<std::string>{},
      nb::arg("gain") = 1.0);
  m.def(
      "feed_forward",
      [](const Tensor& x, const std::string& name, nb::handle dim, const Dim& hidden,
         const std::vector<std::string>& activations, double dropout, bool bias) {
        nn::FeedForwardOptions o;
        o.activations = activations;
        o.dropout = dropout;
        o.dense.bias = bias;
        return nn::feed_forward(x, name, name_of(dim, x), hidden, o);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("dim"), nb::arg("hidden"),
      nb::arg("activations") = std::vector<std::string>{"gelu"}, nb::arg("dropout") = 0.0,
      nb::arg("bias") = true);
  m.def(
      "embedding",
      [](const Tensor& indices, const std::string& name, const Dim& vocab, nb::handle out,
         double stddev, nb::handle dtype) {
        return nn::embedding(indices, name, vocab, shape_of(out), nn::normal(stddev),
                             dtype_of(dtype));
      },
      At(), nb::arg("indices"), nb::arg("name"), nb::arg("vocab"), nb::arg("out_dims"),
      nb::arg("stddev") = 0.02, nb::arg("dtype") = "float32");
  m.def(
      "layer_norm",
      [](const Tensor& x, const std::string& name, nb::handle dim, double eps) {
        return nn::norm(x, name, name_of(dim, x), eps);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("dim"), nb::arg("eps") = 1e-5);
  m.def(
      "rms_norm",
      [](const Tensor& x, const std::string& name, nb::handle dim, double eps) {
        return nn::rms_norm(x, name, name_of(dim, x), eps);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("dim"), nb::arg("eps") = 1e-6);
  m.def(
      "self_attention",
      [](const Tensor& x, const std::string& name, nb::handle dim, int64_t heads,
         int64_t memory_heads, int64_t head_dim, bool causal, bool rotary, bool bias,
         double dropout) {
        nn::MultiHeadOptions o;
        const std::string model = name_of(dim, x);
        const int64_t size = x.dim(model).size;
        if (heads < 1 || (head_dim == 0 && size % heads != 0))
          throw Error(ErrorKind::usage, "[self_attention] " + std::to_string(heads) +
                                            " heads do not divide '" + model + "' of size " +
                                            std::to_string(size) +
                                            "; give head_dim, the size of each");
        o.heads = heads;
        o.memory_heads = memory_heads;
        o.d_head = head_dim == 0 ? size / heads : head_dim;
        o.bias = bias;
        o.rotary = rotary;
        o.attention.causal = causal;
        o.attention.dropout = dropout;
        return nn::self_attention(x, name, model, o);
      },
      At(), nb::arg("x"), nb::arg("name"), nb::arg("dim"), nb::arg("heads"),
      nb::arg("memory_heads") = 0, nb::arg("head_dim") = 0, nb::arg("causal") = false,
      nb::arg("rotary") = false, nb::arg("bias") = false, nb::arg("dropout") = 0.0);
}

void bind_models(nb::module_& m) {
  nb::class_<nn::Model>(m, "Model", "A model's loss, logits and inputs.")
      .def_prop_ro("loss", [](const nn::Model& model) { return model.loss; })
      .def_prop_ro("logits", [](const nn::Model& model) { return model.logits; })
      .def_prop_ro("inputs", [](const nn::Model& model) { return model.inputs; });
  m.def(
      "gpt",
      [](Graph& g, int64_t layers, int64_t d_model, int64_t heads, int64_t ff, int64_t length,
         int64_t vocab, int64_t batch, bool tied, double dropout, nb::handle dtype, bool scan) {
        nn::GptOptions o;
        o.layers = layers;
        o.d_model = d_model;
        o.heads = heads;
        o.ff = ff;
        o.length = length;
        o.vocab = vocab;
        o.batch = batch;
        o.tied = tied;
        o.dropout = dropout;
        o.dtype = dtype_of(dtype);
        o.scan = scan;
        return nn::gpt(g, o);
      },
      At(), nb::arg("graph"), nb::arg("layers") = 4, nb::arg("d_model") = 128, nb::arg("heads") = 4,
      nb::arg("ff") = 512, nb::arg("length") = 128, nb::arg("vocab") = 256, nb::arg("batch") = 8,
      nb::arg("tied") = false, nb::arg("dropout") = 0.0, nb::arg("dtype") = "float32",
      nb::arg("scan") = false);
}

}  // namespace

void bind_nn(nb::module_& m) {
  nb::class_<InitializerHandle>(m, "Initializer");
  bind_initializers(m);
  bind_layers(m);
  bind_models(m);
}

}  // namespace tessera::python
