// The files of a model's folder: import followed by export, and files that lie.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/io_folder.h"
#include "support/model_run.h"
#include "tessera/checkpoint.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::kModels;
using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kAll[] = {
    "llama", "llama-old", "mistral", "qwen2",       "qwen3",
    "gpt2",  "gemma2",    "gemma3",  "mixtral",     "qwen3-moe",
    "t5",    "t5-old",    "bert",    "deepseek-v3", "deepseek-v3-plain"};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Loads a folder into a session and saves that as a checkpoint.
void import(const ModelFolder& folder, const nn::TransformerOptions& o, const std::string& to,
            const char* mesh = "one:1", const char* rules = "") {
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  minimize(model.loss, 0.0, sgd());
  Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
  Session session(g, ranks,
                  {Mesh::parse(mesh), Layout::parse(rules), {{"f", {model.loss}, true}}, 0, 1});
  folder.load(session, o);
  Checkpoints(ranks, to).save(session, 7);
}

/// Name -> dtype, sizes and bytes of all tensors of a folder, with the file of each.
std::map<std::string, std::string> tensors_of(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsReader file(entry.path());
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    for (const TensorInfo& t : file.tensors()) {
      std::string bytes(static_cast<size_t>(t.bytes()), '\0');
      file.read(t, 0, t.bytes(), bytes.data());
      std::string what = entry.path().filename().string() + " " + to_string(t.dtype);
      for (const int64_t size : t.sizes) what += " " + std::to_string(size);
      all[t.name] = what + " " + bytes;
    }
  }
  return all;
}

std::vector<std::string> order_of(const std::string& path) {
  std::vector<std::string> names;
  const SafetensorsReader file(path);
  for (const TensorInfo& t : file.tensors()) names.push_back(t.name);
  return names;
}

TEST_CASE("import followed by export gives the same bytes of every tensor", "[model_folder]") {
  for (const char* name : kAll) {
    for (const bool scan : {true, false}) {
      INFO(name << " scan " << scan);
      const Folder f;
      const ModelFolder folder(kModels + name);
      import(folder, test::options_of(folder, scan), f("run"), "a:2;b:2",
             "heads,ff:a;vocab:b;@params d_model:b");
      const int64_t tensors = export_model(f("run"), folder, f("out"));
      const auto before = tensors_of(kModels + name), after = tensors_of(f("out"));
      CHECK(std::ssize(after) == tensors);
      CHECK(before == after);
      const char* const file =
          std::string(name) == "llama" ? "model-00002-of-00002.safetensors" : "model.safetensors";
      CHECK(order_of(f("out/") + file) == order_of(kModels + name + "/" + file));
      CHECK(f.read("out/config.json") == contents(kModels + name + "/config.json"));
      const bool sharded = std::string(name) == "llama";
      CHECK(fs::exists(f("out/model.safetensors.index.json")) == sharded);
      if (sharded) {
        const Json was = Json::parse(contents(kModels + name + "/model.safetensors.index.json"));
        const Json is = Json::parse(f.read("out/model.safetensors.index.json"));
        CHECK(is["weight_map"] == was["weight_map"]);
        CHECK(is["metadata"]["total_size"] == was["metadata"]["total_size"]);
      }
    }
  }
}

/// A copy of tests/models/NAME that may be damaged.
std::string copy_of(const Folder& f, const char* name = "llama") {
  fs::remove_all(f(name));
  fs::copy(kModels + name, f(name), fs::copy_options::recursive);
  return f(name);
}

/// The message of loading the folder.
std::string load_error(const Folder& f, const std::string& path) {
  return f.error([&] {
    const ModelFolder folder(path);
    const nn::TransformerOptions o = test::options_of(folder, true);
    import(folder, o, f("unused"));
  });
}

TEST_CASE("without weights, a folder is written in the dtype and in files of the given size",
          "[model_folder]") {
  const Folder f;
  const ModelFolder folder(kModels + "mistral");
  import(folder, test::options_of(folder, true), f("run"));
  fs::create_directory(f("bare"));
  fs::copy(kModels + "mistral/config.json", f("bare"));
  f.write("bare/tokenizer.json", "{}");
  const ModelFolder bare(f("bare"));
  CHECK(!bare.has_weights());
  CHECK(export_model(f("run"), bare, f("out"), {.shard_bytes = 9000}) == 21);
  std::map<std::string, std::string> before = tensors_of(kModels + "mistral"),
                                     after = tensors_of(f("out"));
  for (auto* all : {&before, &after}) {
    for (auto& [name, what] : *all) what.erase(0, what.find(' '));  // the file
  }
  CHECK(before == after);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(f("out"))) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    CHECK(entry.path().filename().string().starts_with("model-0000"));
    CHECK(entry.file_size() < 9000 + 4000);
  }
  CHECK(files > 3);
  CHECK(f.read("out/tokenizer.json") == "{}");
  const ModelFolder again(f("out"));
  import(again, test::options_of(again, false), f("run2"));
}

TEST_CASE("old files of GPT-2 lack a prefix and hold masks", "[model_folder]") {
  const Folder f;
  const std::string path = copy_of(f, "gpt2");
  const SafetensorsReader file(kModels + "gpt2/model.safetensors");
  std::vector<TensorInfo> infos;
  for (TensorInfo t : file.tensors()) {
    t.name = t.name.substr(std::string("transformer.").size());
    infos.push_back(t);
  }
  infos.push_back({"h.0.attn.bias", DType::float32, {1, 1, 1, 1}});
  SafetensorsWriter writer(path + "/model.safetensors", infos, {{"format", "pt"}});
  for (const TensorInfo& t : file.tensors()) {
    const Array whole = file.read(t.name);
    writer.append(whole.bytes.data(), std::ssize(whole.bytes));
  }
  const float one = 1;
  writer.append(&one, 4);
  writer.finish();
  const ModelFolder folder(path);
  const std::string expected = path + "/expected.st";
  const test::Run run =
      test::run_model(folder, test::options_of(folder, true), "one:1", "", expected);
  CHECK(test::difference(run.logits, SafetensorsReader(expected).read("logits")) < 1e-4);
}

/// The model's files with more tensors, of one element each.
void add_tensors(const std::string& path, const char* name, const std::vector<std::string>& more) {
  const SafetensorsReader file(kModels + name + "/model.safetensors");
  std::vector<TensorInfo> infos = file.tensors();
  for (const std::string& t : more) infos.push_back({t, DType::bfloat16, {1}});
  SafetensorsWriter writer(path + "/model.safetensors", infos, {{"format", "pt"}});
  for (const TensorInfo& t : file.tensors()) {
    const Array whole = file.read(t.name);
    writer.append(whole.bytes.data(), std::ssize(whole.bytes));
  }
  const uint16_t one = 0x3f80;
  for (size_t i = 0; i < more.size(); ++i) writer.append(&one, 2);
  writer.finish();
}

TEST_CASE("layers that predict tokens further ahead are left out, and no others",
          "[model_folder]") {
  const Folder f;
  const std::string path = copy_of(f, "deepseek-v3");
  const auto with = [&](const std::vector<std::string>& more) {
    add_tensors(path, "deepseek-v3", more);
    return load_error(f, path);
  };
  CHECK(with({"model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight",
              "model.layers.4.eh_proj.weight", "model.layers.4.mlp.gate.weight"}) == "no error");
  const ModelFolder folder(path);
  const std::string expected = path + "/expected.st";
  const test::Run run =
      test::run_model(folder, test::options_of(folder, true), "one:1", "", expected);
  CHECK(test::difference(run.logits, SafetensorsReader(expected).read("logits")) < 1e-4);
  for (const std::string layer : {"3", "5"}) {
    const std::string unknown = "model.layers." + layer + ".mlp.gate.weight";
    const std::string other =
        layer == "3" ? "model.layers.4.eh_proj.weight" : "model.layers.3.eh_proj.weight";
    const std::string message = with({unknown, other});
    INFO(message);
    CHECK(message.find("not in the model: " + unknown) != std::string::npos);
  }
  CHECK(with({"model.layers.0.self_attn.o_proj.weight_scale_inv"}) ==
        "io [model] 'DIR/deepseek-v3' has the tensor "
        "'model.layers.0.self_attn.o_proj.weight_scale_inv': the weights are blocks of 8-bit "
        "numbers with scales, which Tessera does not read; convert them to bfloat16 and remove "
        "quantization_config");
}

TEST_CASE("an exported configuration says nothing of 8 bits", "[model_folder]") {
  const Folder f;
  const std::string path = copy_of(f, "deepseek-v3");
  const std::string plain = f.read("deepseek-v3/config.json");
  Json config = Json::parse(plain);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  f.write("deepseek-v3/config.json", config.dump());
  const ModelFolder folder(path);
  import(folder, test::options_of(folder, true), f("run"));
  export_model(f("run"), folder, f("out"));
  CHECK(Json::parse(f.read("out/config.json")) == Json::parse(plain));
}

TEST_CASE("old files of BERT have gammas and betas, a pooler and copies", "[model_folder]") {
  const Folder f;
  const std::string path = copy_of(f, "bert");
  const SafetensorsReader file(kModels + "bert/model.safetensors");
  std::vector<TensorInfo> infos;
  for (TensorInfo t : file.tensors()) {
    if (const size_t at = t.name.find("LayerNorm."); at != std::string::npos)
      t.name.replace(at + 10, t.name.npos, t.name.ends_with("weight") ? "gamma" : "beta");
    infos.push_back(t);
  }
  infos.push_back({"cls.predictions.decoder.weight", DType::bfloat16, {96, 32}});
  infos.push_back({"bert.pooler.dense.weight", DType::bfloat16, {1}});
  infos.push_back({"cls.seq_relationship.bias", DType::bfloat16, {1}});
  SafetensorsWriter writer(path + "/model.safetensors", infos, {{"format", "pt"}});
  std::vector<std::string> names;
  for (const TensorInfo& t : file.tensors()) names.push_back(t.name);
  names.emplace_back("bert.embeddings.word_embeddings.weight");
  for (const std::string& name : names) {
    const Array whole = file.read(name);
    writer.append(whole.bytes.data(), std::ssize(whole.bytes));
  }
  const float unused = 0;
  writer.append(&unused, 4);
  writer.finish();
  const ModelFolder folder(path);
  const nn::TransformerOptions o = test::options_of(folder, true);
  const std::string expected = path + "/expected.st";
  const test::Run run = test::run_model(folder, o, "one:1", "", expected);
  CHECK(test::difference(run.logits, SafetensorsReader(expected).read("logits")) < 1e-4);
  // The names stay as they are.
  import(folder, o, f("run"));
  CHECK(export_model(f("run"), folder, f("out")) == 43);
  auto before = tensors_of(path), after = tensors_of(f("out"));
  before.erase("bert.pooler.dense.weight");
  before.erase("cls.seq_relationship.bias");
  CHECK(before == after);
}

void edit_index(const Folder& f, const char* tensor, const Json& value) {
  Json index = Json::parse(f.read("llama/model.safetensors.index.json"));
  if (value.is_null()) {
    index["weight_map"].erase(tensor);
  } else {
    index["weight_map"][tensor] = value;
  }
  f.write("llama/model.safetensors.index.json", index.dump());
}

TEST_CASE("shards and indexes that lie are refused", "[model_folder][errors]") {
  const Folder f;
  const std::string index = "io [model] 'DIR/llama/model.safetensors.index.json' ";
  copy_of(f);
  edit_index(f, "model.norm.weight", "../mistral/model.safetensors");
  CHECK(load_error(f, f("llama")) ==
        index +
            "says that tensor 'model.norm.weight' is in \"../mistral/model.safetensors\", "
            "which is not the name of a file in its folder");
  for (const Json& value : {Json("/etc/passwd"), Json(".."), Json(""), Json(5)}) {
    copy_of(f);
    edit_index(f, "model.norm.weight", value);
    CHECK(load_error(f, f("llama")).find("is not the name of a file in its folder") !=
          std::string::npos);
  }
  copy_of(f);
  edit_index(f, "model.norm.weight", "model-00003-of-00003.safetensors");
  CHECK(load_error(f, f("llama")).starts_with("io [safetensors] "));
  copy_of(f);
  edit_index(f, "model.norm.weight", "model-00001-of-00002.safetensors");
  CHECK(load_error(f, f("llama")) ==
        index +
            "says that tensor 'model.norm.weight' is in 'model-00001-of-00002.safetensors', "
            "which does not hold it");
  copy_of(f);
  edit_index(f, "model.norm.weight", nullptr);
  CHECK(load_error(f, f("llama")) ==
        "io [model] 'DIR/llama/model-00002-of-00002.safetensors' holds tensor "
        "'model.norm.weight', which 'DIR/llama/model.safetensors.index.json' does not name");
  copy_of(f);
  f.write("llama/model.safetensors.index.json", "{\"weight_map\": [}");
  CHECK(load_error(f, f("llama")) == index + "is not an index: it has no object 'weight_map'");
  copy_of(f);
  fs::resize_file(f("llama/model-00002-of-00002.safetensors"), 20000);
  CHECK(load_error(f, f("llama")).find("the file is truncated") != std::string::npos);
  copy_of(f);
  fs::copy(f("llama/model-00002-of-00002.safetensors"), f("llama/second.safetensors"));
  edit_index(f, "lm_head.weight", "second.safetensors");
  CHECK(load_error(f, f("llama")).find("in 'DIR/llama/model-0000") != std::string::npos);
}

TEST_CASE("pickled and absent weights are refused with what to do", "[model_folder][errors]") {
  const Folder f;
  fs::create_directory(f("old"));
  fs::copy(kModels + "mistral/config.json", f("old"));
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old' holds no weights: there is neither model.safetensors nor "
        "model.safetensors.index.json");
  f.write("old/pytorch_model.bin", "x");
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old/pytorch_model.bin' is pickled: reading it can run any code, and "
        "Tessera does not. Convert it with: python3 -c \"import glob, torch, "
        "safetensors.torch as s; s.save_file({k: v.clone() for f in "
        "glob.glob('DIR/old/pytorch_model*.bin') for k, v in torch.load(f, "
        "weights_only=True).items()}, 'DIR/old/model.safetensors')\"");
  f.write("old/config.json", "{");
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old/config.json' is not JSON: line 1, column 2: unexpected end of input; "
        "expected string literal");
  f.write("old/config.json", "{\"model_type\": \"llama\",\n \"hidden_size\": 12,, }");
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old/config.json' is not JSON: line 2, column 20: unexpected ','; expected "
        "string literal");
  f.write("old/config.json", "{\"rope_theta\": 1e999}");
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old/config.json' is not JSON: it has a number that no double holds");
  f.write("old/config.json", std::string(70, '['));
  CHECK(load_error(f, f("old")) ==
        "io [model] 'DIR/old/config.json' is not JSON: it nests deeper than 64 brackets");
  f.write("old/config.json", "[]");
  CHECK(load_error(f, f("old")) == "io [model] 'DIR/old/config.json': it is not a JSON object");
  CHECK(!ModelFolder::is_one(f("nowhere")));
}

/// A folder whose single file has one more tensor, of any kind.
void add_tensor(const std::string& path, const TensorInfo& info) {
  const std::string name = path + "/model.safetensors";
  std::vector<TensorInfo> infos;
  std::string bytes;
  {
    const SafetensorsReader file(name);
    infos = file.tensors();
    for (const TensorInfo& t : file.tensors()) {
      const Array whole = file.read(t.name);
      bytes.append(reinterpret_cast<const char*>(whole.bytes.data()), whole.bytes.size());
    }
  }
  infos.push_back(info);
  int64_t more = size_of(info.dtype);
  for (const int64_t size : info.sizes) more *= size;
  bytes.append(static_cast<size_t>(more), '\1');
  SafetensorsWriter writer(name, infos, {{"format", "pt"}});
  writer.append(bytes.data(), std::ssize(bytes));
  writer.finish();
}

TEST_CASE("tensors that the model does not have are refused, known ones without use are not",
          "[model_folder][errors]") {
  const Folder f;
  add_tensor(copy_of(f, "mistral"), {"model.layers.0.self_attn.sinks", DType::bfloat16, {4}});
  CHECK(load_error(f, f("mistral")) ==
        "io [model] the weights in 'DIR/mistral' are not those of its config.json (mistral); "
        "not in the model: model.layers.0.self_attn.sinks");
  add_tensor(copy_of(f, "mistral"),
             {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::float32, {4}});
  CHECK(load_error(f, f("mistral")) == "no error");
  // A tied head that is stored beside the embedding must be the embedding.
  fs::remove_all(f("unused"));
  add_tensor(copy_of(f, "qwen2"), {"lm_head.weight", DType::bfloat16, {96, 32}});
  CHECK(load_error(f, f("qwen2")) ==
        "io [model] 'DIR/qwen2/model.safetensors': its config.json makes 'lm_head.weight' a "
        "copy of 'model.embed_tokens.weight' (tie_word_embeddings), but their elements differ; set "
        "tie_word_embeddings to false if both are to be used");
}

TEST_CASE("an export has what the folder's tokenizer is made of", "[model_folder]") {
  const Folder f;
  fs::create_directory(f("like"));
  fs::copy(kModels + "llama/config.json", f("like"));
  const ModelFolder like(f("like")), llama(kModels + "llama");
  import(llama, test::options_of(llama, true), f("run"));
  for (const char* name : {"vocab.txt", "tekken.json", "tiktoken.model", "qwen.tiktoken", "notes"})
    f.write(std::string("like/") + name, name);
  export_model(f("run"), like, f("out"));
  for (const char* name : {"vocab.txt", "tekken.json", "tiktoken.model", "qwen.tiktoken"})
    CHECK(f.read(std::string("out/") + name) == name);
  CHECK(!fs::exists(f("out/notes")));
}

TEST_CASE("the name of an export may end in a separator", "[model_folder]") {
  const Folder f;
  const ModelFolder llama(kModels + "llama");
  import(llama, test::options_of(llama, true), f("run"));
  for (const char* name : {"one/", "two/.", "in/three//"}) {
    export_model(f("run"), llama, f(name));
    CHECK(fs::exists(fs::path(f(name)) / "config.json"));
  }
  CHECK(f.names() == std::set<std::string>{"in", "one", "run", "two"});
  CHECK(f.error([&] { export_model(f("run"), llama, f("one/")); }) ==
        "usage [export] 'DIR/one/' exists already; choose another folder or remove it");
}

TEST_CASE("an export refuses other models and folders that exist", "[model_folder][errors]") {
  const Folder f;
  const ModelFolder llama(kModels + "llama"), mistral(kModels + "mistral");
  import(llama, test::options_of(llama, true), f("run"));
  fs::create_directory(f("out"));
  CHECK(f.error([&] { export_model(f("run"), llama, f("out")); }) ==
        "usage [export] 'DIR/out' exists already; choose another folder or remove it");
  CHECK(f.error([&] {
           export_model(f("run"), mistral, f("new"));
         }).find("is not a checkpoint of the model of '") != std::string::npos);
  CHECK(f.error([&] { export_model(f("empty"), llama, f("new")); }) ==
        "usage [export] 'DIR/empty' holds no checkpoint");
  CHECK(f.error([&] { export_model(f("run"), llama, f("new"), {.shard_bytes = 0}); }) ==
        "usage [export] files of at most 0 bytes; the number is positive");
  CHECK(f.names() == std::set<std::string>{"out", "run"});
}

TEST_CASE("a session of another model is refused", "[model_folder][errors]") {
  const Folder f;
  const ModelFolder llama(kModels + "llama");
  nn::TransformerOptions o = test::options_of(llama, true), wider = o;
  wider.mlp.ff = 96;
  Graph g;
  const nn::Model model = nn::transformer(g, wider);
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh::parse("one:1"), {}, {{"f", {model.loss}, false}}, 0, 1});
  CHECK(f.error([&] {
           llama.load(session, o);
         }).starts_with("usage [model] the session has no parameter 'llama.block.mlp."));
}

}  // namespace TESSERA_FILE
}  // namespace tessera
