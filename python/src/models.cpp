// Model folders, texts by a model, and the command line for models in Python.
#include "callback.h"
#include "convert.h"
#include "tessera/checkpoint.h"
#include "tessera/cli.h"
#include "tessera/corpus.h"
#include "tessera/generate.h"
#include "tessera/model_folder.h"

namespace tessera::python {

namespace {

nn::TransformerOptions options_of(const ModelFolder& folder, int64_t batch, int64_t length,
                                  nb::handle dtype, bool scan, double dropout,
                                  const nn::LoraOptions& lora) {
  nn::TransformerOptions o = folder.options();
  o.batch = batch;
  if (length > 0) o.length = length;
  o.dtype = dtype_of(dtype);
  o.scan = scan;
  o.dropout = dropout;
  o.lora = lora;
  return o;
}

void bind_folder(nb::module_& m) {
  nb::class_<nn::LoraOptions>(m, "LoraOptions")
      .def(nb::init<int64_t, double, double, std::vector<std::string>>(), nb::arg("rank"),
           nb::arg("alpha"), nb::arg("dropout"), nb::arg("targets"))
      .def_ro("rank", &nn::LoraOptions::rank)
      .def_ro("alpha", &nn::LoraOptions::alpha)
      .def_ro("dropout", &nn::LoraOptions::dropout);
  nb::class_<nn::TransformerOptions>(m, "TransformerOptions")
      .def_ro("layers", &nn::TransformerOptions::layers)
      .def_ro("d_model", &nn::TransformerOptions::d_model)
      .def_ro("vocab", &nn::TransformerOptions::vocab)
      .def_ro("length", &nn::TransformerOptions::length)
      .def_ro("batch", &nn::TransformerOptions::batch);
  nb::class_<ModelFolder>(m, "ModelFolder", "A model of Hugging Face: config.json and weights.")
      .def(nb::init<const std::string&>(), At(), nb::arg("path"))
      .def_prop_ro("path", &ModelFolder::path)
      .def_prop_ro("family", &ModelFolder::family)
      .def_prop_ro("has_weights", &ModelFolder::has_weights)
      .def("options", &options_of, At(), nb::arg("batch"), nb::arg("length"), nb::arg("dtype"),
           nb::arg("scan"), nb::arg("dropout"), nb::arg("lora"))
      .def("load", &ModelFolder::load, Releasing(), nb::arg("session"), nb::arg("options"));
  m.def(
      "export_model",
      [](const std::string& checkpoint, const ModelFolder& like, const std::string& to,
         const nn::LoraOptions& lora, bool adapter, bool average) {
        ExportOptions o;
        o.lora = lora;
        o.adapter = adapter;
        o.average = average;
        return export_model(checkpoint, like, to, o);
      },
      Releasing(), nb::arg("checkpoint"), nb::arg("like"), nb::arg("to"), nb::arg("lora"),
      nb::arg("adapter"), nb::arg("average"));
  m.def(
      "transformer",
      [](Graph& g, const nn::TransformerOptions& o) { return nn::transformer(g, o); }, At(),
      nb::arg("graph"), nb::arg("options"));
}

Sampling sampling_of(double temperature, int64_t top_k, double top_p, double min_p,
                     double repetition_penalty, uint64_t seed) {
  Sampling s;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  s.min_p = min_p;
  s.repetition_penalty = repetition_penalty;
  s.seed = seed;
  return s;
}

void bind_generator(nb::module_& m) {
  nb::class_<Sampling>(m, "Sampling", "How the next token is chosen from the logits.")
      .def(
          "__init__",
          [](Sampling* self, double temperature, int64_t top_k, double top_p, double min_p,
             double repetition_penalty, uint64_t seed) {
            new (self)
                Sampling(sampling_of(temperature, top_k, top_p, min_p, repetition_penalty, seed));
          },
          nb::arg("temperature") = 1.0, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0,
          nb::arg("min_p") = 0.0, nb::arg("repetition_penalty") = 1.0, nb::arg("seed") = 0);
  nb::class_<Generator>(m, "Generator", "Texts by a transformer, with a cache of keys and values.")
      .def(
          "__init__",
          [](Generator* self, const nn::TransformerOptions& model, Cluster& cluster,
             const std::string& mesh, const std::string& layout, int64_t rows, int64_t context,
             const std::string& device) {
            GeneratorOptions o{Mesh::parse(mesh), Layout::parse(layout)};
            o.rows = rows;
            o.context = context;
            o.device = device;
            new (self) Generator(model, cluster, o);
          },
          Releasing(), nb::keep_alive<1, 3>(), nb::arg("model"), nb::arg("cluster"),
          nb::arg("mesh"), nb::arg("layout"), nb::arg("rows"), nb::arg("context"),
          nb::arg("device"))
      .def_prop_ro("session", &Generator::session, nb::rv_policy::reference_internal)
      .def_prop_ro("parameters", &Generator::parameters)
      .def_prop_ro("context", &Generator::context)
      .def(
          "run",
          [](Generator& generator, const std::vector<std::vector<int32_t>>& prompts,
             int64_t max_tokens, const Sampling& sampling, const nb::object& on_token) {
            std::vector<GenerationRequest> requests;
            for (size_t i = 0; i < prompts.size(); ++i) {
              GenerationRequest request;
              request.prompt = prompts[i];
              request.max_tokens = max_tokens;
              request.sampling = sampling;
              request.sampling.stream = i;
              if (!on_token.is_none()) {
                request.on_token = [&on_token, i](int32_t token) {
                  const AcquireGil gil;
                  return nb::cast<bool>(on_token(i, token));
                };
              }
              requests.push_back(std::move(request));
            }
            std::vector<Generation> made;
            {
              const ReleaseGil released;
              made = generator.run(requests);
            }
            std::vector<std::vector<int32_t>> tokens;
            for (const Generation& g : made) tokens.push_back(g.tokens);
            return tokens;
          },
          At(), nb::arg("prompts"), nb::arg("max_tokens"), nb::arg("sampling"),
          nb::arg("on_token").none(),
          "The new tokens of each prompt. on_token(prompt, token) is called with each: False ends "
          "the text.");
  m.def(
      "load_tensors",
      [](Session& session, const std::string& path, const std::vector<std::string>& names) {
        return load_tensors(session, path, names).step;
      },
      Releasing(), nb::arg("session"), nb::arg("path"), nb::arg("names"));
}

void bind_corpus(nb::module_& m) {
  nb::class_<CorpusWriter>(m, "CorpusWriter", "Writes PREFIX.bin, PREFIX.idx and PREFIX.json.")
      .def(
          "__init__",
          [](CorpusWriter* self, const std::string& prefix, int64_t vocabulary,
             const std::string& tokenizer, std::optional<int32_t> document_end) {
            new (self) CorpusWriter(prefix, {vocabulary, tokenizer, document_end});
          },
          At(), nb::arg("prefix"), nb::arg("vocabulary"), nb::arg("tokenizer") = "",
          nb::arg("document_end").none() = nb::none())
      .def(
          "add",
          [](CorpusWriter& writer, const std::vector<int32_t>& document) { writer.add(document); },
          At(), nb::arg("document"))
      .def_prop_ro("documents", &CorpusWriter::documents)
      .def_prop_ro("tokens", &CorpusWriter::tokens)
      .def("finish", &CorpusWriter::finish, At());
}

/// A source that Python holds, too.
class SharedSource : public DataSource {
 public:
  explicit SharedSource(std::shared_ptr<DataSource> source) : source_(std::move(source)) {}
  const std::vector<DataField>& fields() const override { return source_->fields(); }
  int64_t examples() const override { return source_->examples(); }
  void read(int64_t example, int field, const DataBox& box) const override {
    source_->read(example, field, box);
  }
  std::string fingerprint() const override { return source_->fingerprint(); }

 private:
  std::shared_ptr<DataSource> source_;
};

// Python's side of a model: its functions get the keys' values as texts.
using Build = std::function<nb::dict(std::shared_ptr<Graph>, nb::dict, Dim)>;
using Data = std::function<std::shared_ptr<DataSource>(nb::dict, bool)>;
using Tokens = std::function<int64_t(nb::dict)>;

ModelSpec spec_of(const std::string& name, const std::string& help,
                  const std::vector<std::pair<std::string, std::string>>& keys,
                  const std::vector<std::pair<std::string, std::string>>& tiny,
                  const std::string& layout, const Build& build, const Data& data,
                  const Tokens& tokens) {
  ModelSpec spec;
  spec.name = name;
  spec.help = help;
  spec.layout = layout;
  for (const auto& [key, value] : keys)
    spec.keys.push_back({key, value, "Of the model in Python."});
  for (const auto& [key, value] : tiny) spec.tiny[key] = value;
  const std::string prefix = "model '" + name + "': ";
  const auto values_of = [](const Config& config) {
    nb::dict values;
    for (const ConfigKey& key : config.keys()) values[key.name.c_str()] = key.value;
    return values;
  };
  spec.build = [=](Graph& g, const Config& config, int64_t batch, bool partial) {
    return in_python(prefix, [&] {
      const nb::dict made = build(owner_of(g), values_of(config), nn::batch_dim(batch, partial));
      const auto tensor = [&](const char* key) {
        const nb::object x = made.attr("get")(key);
        return x.is_none() ? Tensor() : nb::cast<Tensor>(x);
      };
      nn::Model model;
      model.loss = tensor("loss");
      model.logits = tensor("logits");
      model.weight = tensor("weight");
      model.tokens = tensor("tokens");
      model.inputs = nb::cast<std::vector<Tensor>>(made["inputs"]);
      return model;
    });
  };
  spec.data = [=](const Config& config, bool held_out) -> std::unique_ptr<DataSource> {
    return in_python(prefix, [&]() -> std::unique_ptr<DataSource> {
      std::shared_ptr<DataSource> made = data(values_of(config), held_out);
      return made ? std::make_unique<SharedSource>(std::move(made)) : nullptr;
    });
  };
  spec.tokens = [=](const Config& config) {
    return in_python(prefix, [&] { return tokens(values_of(config)); });
  };
  return spec;
}

void bind_cli(nb::module_& m) {
  nb::class_<ModelSpec>(m, "ModelSpec");
  m.def("model_spec", &spec_of, nb::arg("name"), nb::arg("help"), nb::arg("keys"), nb::arg("tiny"),
        nb::arg("layout"), nb::arg("build"), nb::arg("data"), nb::arg("tokens"));
  m.def(
      "run_cli",
      [](std::vector<std::string> argv, const std::vector<ModelSpec*>& models) {
        std::vector<ModelSpec> own;
        for (const ModelSpec* spec : models) own.push_back(*spec);
        std::vector<char*> pointers;
        for (std::string& text : argv) pointers.push_back(text.data());
        pointers.push_back(nullptr);
        const ReleaseGil released;
        return run_cli(static_cast<int>(argv.size()), pointers.data(), own);
      },
      nb::arg("argv"), nb::arg("models"));
}

}  // namespace

void bind_model_files(nb::module_& m) {
  bind_folder(m);
  bind_generator(m);
  bind_corpus(m);
  bind_cli(m);
}

}  // namespace tessera::python
