// A program that PyTorch exported as a model of the command line: m.pt2.
#include <algorithm>
#include <mutex>

#include "base/fail.h"
#include "base/files.h"
#include "cli/build_model.h"
#include "cli/transformer_keys.h"
#include "tessera/pytorch_model.h"

namespace tessera::cli {

namespace {

/// The program by what the configuration says of it; each is read once.
class Programs {
 public:
  explicit Programs(std::string path) : path_(std::move(path)) {}

  std::shared_ptr<const PytorchModel> of(const std::string& dims, const std::string& loss) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const PytorchModel>& model = all_[{dims, loss}];
    if (!model) model = std::make_shared<const PytorchModel>(path_, PytorchOptions{dims, loss});
    return model;
  }
  std::shared_ptr<const PytorchModel> of(const Config& c) {
    std::string dims = c.text("model.dims");
    if (dims.starts_with('@')) dims = read_text_file("dims", dims.substr(1));
    const auto model = of(dims, c.text("model.loss"));
    TESSERA_REQUIRE(
        c.text("model.program") == model->hash(),
        "'{}' is another program than the one of the checkpoint: their hashes are {} and {}", path_,
        model->hash(), c.text("model.program"));
    return model;
  }

 private:
  std::string path_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const PytorchModel>> all_;
};

/// Fields of a source under the names, and with the dims, of a model's inputs.
class BoundData : public DataSource {
 public:
  BoundData(std::unique_ptr<DataSource> source, std::vector<std::pair<int, DataField>> fields)
      : source_(std::move(source)) {
    for (auto& [from, field] : fields) from_.push_back(from), fields_.push_back(std::move(field));
  }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return source_->examples(); }
  void read(int64_t example, int field, const DataBox& box) const override {
    source_->read(example, from_[static_cast<size_t>(field)], box);
  }
  std::string warning() const override { return source_->warning(); }
  std::string fingerprint() const override { return source_->fingerprint(); }

 private:
  std::unique_ptr<DataSource> source_;
  std::vector<int> from_;
  std::vector<DataField> fields_;
};

std::vector<Dim> without_batch(std::vector<Dim> dims) {
  std::erase_if(dims, [](const Dim& d) { return d.name == "batch"; });
  return dims;
}

/// Binds the first inputs of a model to fields: what it reads, and the labels.
std::unique_ptr<DataSource> bound(std::unique_ptr<DataSource> source, const PytorchModel& model) {
  if (!source) return nullptr;
  std::vector<std::pair<int, DataField>> fields;
  const std::vector<DataField>& given = source->fields();
  for (const PytorchModel::Input& input : model.inputs()) {
    const auto i = std::ssize(fields);
    const std::vector<Dim> dims = without_batch(input.dims);
    std::vector<int64_t> wanted, found;
    for (const Dim& d : dims) wanted.push_back(d.size);
    if (i < std::ssize(given))
      for (const Dim& d : given[static_cast<size_t>(i)].dims) found.push_back(d.size);
    TESSERA_REQUIRE(
        i < std::ssize(given) && wanted == found &&
            input.dtype == given[static_cast<size_t>(i)].dtype,
        "the input '{}' of '{}' is {} [{}] for each example, and the data have {}; give a "
        "ModelSpec with "
        "data of its own for it (docs/how-to/bring-your-pytorch-module.md)",
        input.name, model.path(), to_string(input.dtype), fmt::join(wanted, ", "),
        i < std::ssize(given)
            ? fmt::format("{} {} [{}]", given[static_cast<size_t>(i)].name,
                          to_string(given[static_cast<size_t>(i)].dtype), fmt::join(found, ", "))
            : "no field for it");
    fields.emplace_back(static_cast<int>(i), DataField{input.name, input.dtype, dims});
  }
  return std::make_unique<BoundData>(std::move(source), std::move(fields));
}

bool reads_tokens(const PytorchModel& model) {
  return !model.inputs().empty() && model.inputs()[0].dtype == DType::int32;
}

int64_t size_of_dim(const PytorchModel& model, const std::string& name) {
  for (const PytorchModel::FoundDim& d : model.dims())
    if (d.name == name) return d.size;
  return 0;
}

std::unique_ptr<DataSource> data_of(const PytorchModel& model, const Config& c, bool held_out) {
  if (!reads_tokens(model)) return bound(open_images(c, held_out), model);
  const std::vector<Dim> dims = without_batch(model.inputs()[0].dims);
  TESSERA_REQUIRE(dims.size() == 1,
                  "the tokens '{}' of '{}' have {} dims besides the batch instead of one",
                  model.inputs()[0].name, model.path(), dims.size());
  TextOptions o;
  o.length = dims[0].size;
  o.vocabulary = size_of_dim(model, "vocab");
  o.token_bytes = o.vocabulary <= 256 ? 1 : o.vocabulary <= 65536 ? 2 : 4;
  return bound(open_tokens(c, held_out, o), model);
}

nn::Model build(const PytorchModel& model, Graph& g, const Config& c, int64_t batch, bool partial) {
  TESSERA_REQUIRE(model.has_loss(),
                  "'{}' has no loss: give --loss \"cross_entropy(OUTPUT, labels)\", with shift=1 "
                  "if labels are the "
                  "tokens themselves; its outputs are {}",
                  model.path(), fmt::join(model.outputs(), ", "));
  TESSERA_REQUIRE(model.exported_batch() > 0,
                  "no input of '{}' has a dim 'batch' (export it with at least 2 examples, or name "
                  "the dim: --dims "
                  "\"{}: batch ...\")",
                  model.path(), model.inputs().empty() ? "x" : model.inputs()[0].name);
  nn::Model built =
      model.build(g, {batch, partial, partial, activations_of(c), c.flag("model.scan")}).model;
  return built;
}

}  // namespace

bool is_program_model(const std::string& model) { return PytorchModel::is_one(model); }

std::shared_ptr<const ModelSpec> program_model(const std::string& path) {
  const auto programs = std::make_shared<Programs>(path);
  const std::shared_ptr<const PytorchModel> plain = programs->of("", "");
  ModelSpec spec;
  spec.name = std::filesystem::path(path).stem();
  spec.help = fmt::format("The program of PyTorch in {}.", path);
  spec.keys = {
      {"model.loss", "",
       "The loss: an output that is a scalar, or cross_entropy(OUTPUT, labels), with shift=1 if "
       "the "
       "labels are the tokens themselves."},
      {"model.dims", "",
       "Names of dims that the program does not tell: \"tokens: batch length\", or @FILE."},
      {"model.init", "weights",
       "What training starts from: the weights of the file, or random initial values.",
       KeyRange::one_of({"weights", "random"})},
      {"model.scan", "false",
       "Whether layers that are alike and follow one another are a loop, of which one is compiled.",
       KeyRange::one_of({"false", "true"})},
      {"model.program", plain->hash(), "Hash of the program, to tell models apart."}};
  spec.build = [programs](Graph& g, const Config& c, int64_t batch, bool partial) {
    return build(*programs->of(c), g, c, batch, partial);
  };
  spec.loop_key = "model.scan";
  if (const std::string layers = plain->layer_scope(); !layers.empty()) spec.layer_scope = layers;
  spec.data = [programs](const Config& c, bool held_out) {
    return data_of(*programs->of(c), c, held_out);
  };
  spec.tokens = [programs](const Config& c) {
    const auto model = programs->of(c);
    return reads_tokens(*model) ? std::max<int64_t>(1, size_of_dim(*model, "length")) : 1;
  };
  spec.start = [programs](Session& session, const Config& c) {
    const auto model = programs->of(c);
    TESSERA_REQUIRE(
        model->has_constants(),
        "'{}' holds no values of its buffers, as of a module on the meta device: it can be "
        "explained and planned; to run it, export it from the CPU",
        model->path());
    if (c.text("model.init") == "random") return;
    TESSERA_REQUIRE(model->has_weights(),
                    "'{}' holds no weights; --init random starts with random ones", model->path());
    model->load(session);
  };
  spec.defaults = {
      {"train.batch", fmt::format("{}", std::max<int64_t>(1, plain->exported_batch()))}};
  spec.tiny = spec.defaults;
  std::string parallel;
  for (const char* name : {"heads", "ff", "vocab"})
    if (size_of_dim(*plain, name) > 0)
      parallel += (parallel.empty() ? "" : ",") + std::string(name);
  spec.layout = "batch:data";
  if (!parallel.empty()) spec.layout += ";" + parallel + ":model";
  return std::make_shared<const ModelSpec>(std::move(spec));
}

std::string names_of_program(const Config& c, const std::string& path) {
  const auto model = Programs(path).of(c);
  std::string text;
  for (const PytorchModel::FoundDim& d : model->dims()) {
    std::vector<std::string> places = d.inputs;
    places.insert(places.end(), d.parameters.begin(), d.parameters.end());
    constexpr size_t kShown = 4;
    const size_t shown = std::min(kShown, places.size());
    text += fmt::format(
        "{:<24}{:>8}  {}{}\n", d.name, d.size,
        fmt::join(places.begin(), places.begin() + static_cast<long>(shown), ", "),
        shown < places.size() ? fmt::format(" and {} more", places.size() - shown) : "");
  }
  return text;
}

std::vector<std::string> plain_ops_of_program(const Config& c, const std::string& path) {
  const auto model = Programs(path).of(c);
  std::vector<std::string> notes;
  for (const std::string& op : model->plain_ops())
    notes.push_back("not recognized, computed by plain ops: " + op);
  return notes;
}

}  // namespace tessera::cli
