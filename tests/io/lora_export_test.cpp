// Exporting a model that was trained with LoRA: merged, or as an adapter of PEFT.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/io_folder.h"
#include "support/model_run.h"
#include "tessera/checkpoint.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::kModels;

/// Trains a folder's model for two steps, saves it, and returns its logits.
Array trained(const ModelFolder& folder, const nn::TransformerOptions& o, const std::string& to,
              const char* mesh_text = "one:1", const char* rules = "", bool average = false,
              const std::vector<std::string>& trainable = {}) {
  const SafetensorsReader expected(folder.path() + "/expected.st");
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  MinimizeOptions options;
  options.trainable = {"*.lora_a", "*.lora_b"};
  options.trainable.insert(options.trainable.end(), trainable.begin(), trainable.end());
  minimize(model.loss, 0.05, average ? with_average(adam(), 0.5) : adam(), options);
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks,
                  {mesh,
                   Layout::parse(rules),
                   {{"train", {model.loss}, true}, {"logits", {model.logits}, false}},
                   3,
                   1});
  folder.load(session, o);
  for (const Tensor& input : model.inputs) {
    Array array = expected.read(input.name());
    array.dims.clear();
    session.feed(input.name(), array);
  }
  for (int step = 0; step < 2; ++step) session.run("train");
  Checkpoints(ranks, to).save(session, 2);
  session.run("logits");
  return session.fetch(model.logits.name());
}

nn::TransformerOptions with_lora(const ModelFolder& folder, bool scan,
                                 std::vector<std::string> targets = {}) {
  nn::TransformerOptions o = test::options_of(folder, scan);
  o.lora = {.rank = 3, .alpha = 6, .targets = std::move(targets)};
  return o;
}

TEST_CASE("a merged model has the logits of the adapted one", "[model_folder][fine_tuning]") {
  struct Case {
    const char *model, *mesh, *rules;
    bool scan;
  };
  for (const Case& c :
       {Case{"llama", "one:1", "", true}, Case{"llama", "a:2;b:2", "heads,ff:a;vocab:b", false},
        Case{"gpt2", "b:2", "d_model:b", true}, Case{"gemma2", "one:1", "", false},
        Case{"qwen3", "a:2", "heads:a", true}, Case{"t5", "a:2", "heads,ff:a", true},
        Case{"bert", "one:1", "", false}}) {
    INFO(c.model << " " << c.mesh);
    const Folder f;
    const ModelFolder folder(kModels + c.model);
    const nn::TransformerOptions o = with_lora(folder, c.scan);
    const Array adapted = trained(folder, o, f("run"), c.mesh, c.rules);
    export_model(f("run"), folder, f("out"), {.lora = o.lora});
    std::filesystem::copy(kModels + c.model + "/expected.st", f("expected.st"));
    const ModelFolder merged(f("out"));
    const nn::TransformerOptions plain = test::options_of(merged, true);
    const Array again = test::run_model(merged, plain, "one:1", "", f("expected.st")).logits;
    const Array before = test::run_model(folder, plain, "one:1", "", f("expected.st")).logits;
    // 16 bits in files, which T5's five layers with sharp attention enlarge.
    const double rounding = folder.path().ends_with("llama") ? 1e-4
                            : c.model[0] == 't'              ? 8e-2
                                                             : 3e-2;
    CHECK(test::difference(again, adapted) < rounding);
    CHECK(test::difference(before, adapted) > 3 * rounding);
  }
}

TEST_CASE("an adapter says what kind of model it is of", "[model_folder][fine_tuning]") {
  for (const char* name : {"t5", "bert"}) {
    const Folder f;
    const ModelFolder folder(kModels + name);
    const nn::TransformerOptions o = with_lora(folder, true, {"query", "value"});
    trained(folder, o, f("run"));
    const bool is_t5 = folder.family() == "t5";
    // Two layers of two, and of the decoder's three layers the cross-attention, too.
    CHECK(export_model(f("run"), folder, f("adapter"), {.lora = o.lora, .adapter = true}) ==
          2 * (is_t5 ? 2 * 2 + 3 * 4 : 2 * 2));
    const auto config = nlohmann::json::parse(f.read("adapter/adapter_config.json"));
    CHECK(config["task_type"] == (is_t5 ? nlohmann::json("SEQ_2_SEQ_LM") : nlohmann::json()));
    const SafetensorsReader adapter(f("adapter/adapter_model.safetensors"));
    CHECK(adapter.find(
        is_t5 ? "base_model.model.decoder.block.2.layer.1.EncDecAttention.q.lora_A.weight"
              : "base_model.model.bert.encoder.layer.1.attention.self.value.lora_B."
                "weight"));
  }
}

TEST_CASE("an adapter has the matrices whose product is what merging adds",
          "[model_folder][fine_tuning]") {
  const Folder f;
  const ModelFolder folder(kModels + "llama");
  const nn::TransformerOptions o = with_lora(folder, true, {"query", "out", "mlp.down"});
  trained(folder, o, f("run"));
  export_model(f("run"), folder, f("merged"), {.lora = o.lora});
  CHECK(export_model(f("run"), folder, f("adapter"), {.lora = o.lora, .adapter = true}) == 12);
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(f("adapter")))
    files.insert(entry.path().filename());
  CHECK(files == std::set<std::string>{"adapter_config.json", "adapter_model.safetensors"});
  const auto config = nlohmann::json::parse(f.read("adapter/adapter_config.json"));
  CHECK(config["peft_type"] == "LORA");
  CHECK(config["task_type"] == "CAUSAL_LM");
  CHECK(config["r"] == 3);
  CHECK(config["lora_alpha"] == 6);
  CHECK(config["fan_in_fan_out"] == false);
  CHECK(config["base_model_name_or_path"] == folder.path());
  CHECK(config["target_modules"] == nlohmann::json({"down_proj", "o_proj", "q_proj"}));
  const auto whole = [](const std::string& path, const std::string& tensor) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() != ".safetensors") continue;
      const SafetensorsReader file(entry.path());
      if (file.find(tensor)) return file.read(tensor);
    }
    FAIL(tensor);
    return Array(DType::float32, {}, {});
  };
  const SafetensorsReader adapter(f("adapter/adapter_model.safetensors"));
  CHECK(adapter.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  for (const char* module : {"self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"}) {
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string name = std::string(layer) + module;
      INFO(name);
      const Array a = adapter.read("base_model.model." + name + ".lora_A.weight"),
                  b = adapter.read("base_model.model." + name + ".lora_B.weight"),
                  w = whole(folder.path(), name + ".weight"),
                  merged = whole(f("merged"), name + ".weight");
      const int64_t out = w.sizes[0], in = w.sizes[1];
      REQUIRE(a.sizes == std::vector<int64_t>{3, in});
      REQUIRE(b.sizes == std::vector<int64_t>{out, 3});
      double largest = 0;
      for (int64_t i = 0; i < out; ++i) {
        for (int64_t j = 0; j < in; ++j) {
          double added = 0;
          for (int64_t r = 0; r < 3; ++r) added += 2 * b.at(i * 3 + r) * a.at(r * in + j);
          largest = std::max(largest, std::abs(added));
          CHECK(merged.at(i * in + j) == Approx(w.at(i * in + j) + added).margin(1e-5));
        }
      }
      CHECK(largest > 1e-3);
    }
  }
}

/// All tensors of a folder's files.
std::map<std::string, Array> tensors_of(const std::string& path) {
  std::map<std::string, Array> all;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsReader file(entry.path());
    for (const TensorInfo& t : file.tensors()) all.emplace(t.name, file.read(t.name));
  }
  return all;
}

/// What PEFT makes of a weight: the adapter's own, or the base's with alpha / rank times b a.
Array adapted(const Array& base, const std::string& name, const SafetensorsReader& adapter,
              const nlohmann::json& config) {
  const std::string front = "base_model.model.";
  if (adapter.find(front + name)) return adapter.read(front + name);
  const std::string module = name.substr(0, name.rfind('.'));
  Array result(DType::float32, base.dims, base.sizes);
  auto* const to = reinterpret_cast<float*>(result.bytes.data());
  for (int64_t i = 0; i < base.elements(); ++i) to[i] = static_cast<float>(base.at(i));
  if (!name.ends_with(".weight") || !adapter.find(front + module + ".lora_A.weight")) return result;
  const Array a = adapter.read(front + module + ".lora_A.weight"),
              b = adapter.read(front + module + ".lora_B.weight");
  const int64_t rank = config["rank_pattern"].value(module, config["r"].get<int64_t>()),
                in = a.sizes[1], out = b.sizes[0];
  CHECK((a.sizes[0] == rank && b.sizes[1] == rank));
  const double alpha = config["alpha_pattern"].value(module, config["lora_alpha"].get<double>());
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r) sum += b.at(o * rank + r) * a.at(r * in + i);
      const int64_t at = config["fan_in_fan_out"].get<bool>() ? i * out + o : o * in + i;
      to[at] += static_cast<float>(alpha / static_cast<double>(rank) * sum);
    }
  }
  return result;
}

/// PEFT has one parameter for the matrices of all experts, and takes each target that is called
/// like one of them for it: other modules of that name have to be parameters.
void check_targets(const std::map<std::string, Array>& all, const SafetensorsReader& adapter,
                   const nlohmann::json& config) {
  const auto leaf = [](const std::string& name) {
    const std::string module = name.substr(0, name.rfind('.'));
    return module.substr(module.rfind('.') + 1);
  };
  const auto is_expert = [](const std::string& name) {
    return name.find(".experts.") != name.npos;
  };
  std::set<std::string> of_experts;
  for (const auto& [name, w] : all) {
    if (is_expert(name)) of_experts.insert(leaf(name));
  }
  const std::vector<std::string> modules = config["target_modules"],
                                 parameters =
                                     config.value("target_parameters", std::vector<std::string>{});
  for (const auto& [name, w] : all) {
    INFO(name);
    const std::string module = name.substr(0, name.rfind('.'));
    const bool is_adapted = name.ends_with(".weight") && adapter.find("base_model.model." + module +
                                                                      ".lora_A.weight") != nullptr;
    const bool is_target = std::any_of(modules.begin(), modules.end(), [&](const auto& target) {
      return module == target || module.ends_with("." + target);
    });
    const bool as_parameter = of_experts.contains(leaf(name)) && !is_expert(name);
    CHECK(std::count(parameters.begin(), parameters.end(), name) == (is_adapted && as_parameter));
    if (name.ends_with(".weight") && !as_parameter) CHECK(is_target == is_adapted);
  }
}

TEST_CASE("base and adapter are the merged model, whatever was trained",
          "[model_folder][fine_tuning]") {
  struct Case {
    const char* model;
    std::vector<std::string> trainable;
    size_t saved;  ///< modules
  };
  for (const Case& c :
       {Case{"llama", {"*embedding*"}, 1}, Case{"llama", {"*norm*"}, 5}, Case{"llama-old", {}, 0},
        Case{"gpt2", {}, 0}, Case{"gpt2", {"*norm1.bias", "*.embedding"}, 4},
        Case{"gemma2", {"*embedding*"}, 2}, Case{"deepseek-v3", {"*latent_norm*"}, 6},
        Case{"deepseek-v3-plain", {}, 0}, Case{"qwen3", {"*query_norm*", "*.head*"}, 3},
        Case{"t5", {"*embedding*", "*relative*"}, 5}, Case{"bert", {"*head*"}, 1},
        Case{"vit", {"*.head.*"}, 1}}) {
    INFO(c.model << " " << c.saved);
    const Folder f;
    const ModelFolder folder(kModels + c.model);
    const nn::TransformerOptions o = with_lora(folder, true);
    trained(folder, o, f("run"), "one:1", "", false, c.trainable);
    export_model(f("run"), folder, f("merged"), {.lora = o.lora});
    export_model(f("run"), folder, f("adapter"), {.lora = o.lora, .adapter = true});
    const auto config = nlohmann::json::parse(f.read("adapter/adapter_config.json"));
    const SafetensorsReader adapter(f("adapter/adapter_model.safetensors"));
    CHECK(config.value("modules_to_save", nlohmann::json::array()).size() == c.saved);
    const auto base = tensors_of(folder.path()), merged = tensors_of(f("merged"));
    check_targets(merged, adapter, config);
    for (const auto& [name, w] : merged) {
      INFO(name);
      const Array right = adapted(base.at(name), name, adapter, config);
      double worst = 0, largest = 0;
      for (int64_t i = 0; i < w.elements(); ++i) {
        worst = std::max(worst, std::abs(w.at(i) - right.at(i)));
        largest = std::max(largest, std::abs(w.at(i)));
      }
      // The merged weights are rounded to the dtype of the files.
      CHECK(worst <= largest * (w.dtype == DType::float32 ? 1e-6 : 1.0 / 256));
    }
  }
}

TEST_CASE("averages are exported where there are some", "[model_folder][fine_tuning]") {
  const Folder f;
  const ModelFolder folder(kModels + "llama");
  const nn::TransformerOptions o = with_lora(folder, true, {"query"});
  trained(folder, o, f("run"), "one:1", "", true);
  const auto adapter = [&](const char* to, bool average) {
    export_model(f("run"), folder, f(to), {.average = average, .lora = o.lora, .adapter = true});
    return SafetensorsReader(f(std::string(to) + "/adapter_model.safetensors"))
        .read("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight");
  };
  const Array last = adapter("last", false), mean = adapter("mean", true);
  const Checkpoint checkpoint = *find_latest(f("run"));
  const Array ema =
      read_tensor(checkpoint.path, "optimizer.llama.block.attention.query.lora_a.ema");
  CHECK(mean.bytes != last.bytes);
  const int64_t in = mean.sizes[1];  // ema is [layers, d_model, rank]
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t j = 0; j < in; ++j) CHECK(mean.at(r * in + j) == ema.at((in + j) * 3 + r));
  }
}

TEST_CASE("what an export of LoRA refuses", "[model_folder][fine_tuning][errors]") {
  const Folder f;
  const ModelFolder llama(kModels + "llama"), gpt2(kModels + "gpt2");
  const nn::TransformerOptions o = with_lora(llama, true, {"query"});
  trained(llama, o, f("run"));
  const auto of = [&](const ExportOptions& options) {
    return f.error([&] { export_model(f("run"), llama, f("out"), options); });
  };
  CHECK(of({}) ==
        "usage [export] 'DIR/run/step-00000002' has parameters of LoRA of rank 3 "
        "('llama.block.attention.query.lora_a'), but the options say none");
  CHECK(of({.lora = {.rank = 4}}).find("but the options say rank 4") != std::string::npos);
  CHECK(of({.average = true, .lora = o.lora}) ==
        "usage [checkpoint] 'DIR/run/step-00000002' has no moving averages of its parameters; "
        "train with train.ema=0.999, or take the parameters themselves");
  const auto adapter_of = [&](const ModelFolder& folder, const char* targets, const char* more) {
    const nn::TransformerOptions options = with_lora(folder, true, {targets});
    trained(folder, options, f("more"), "one:1", "", false, {more});
    const std::string error = f.error([&] {
      export_model(f("more"), folder, f("out"), {.lora = options.lora, .adapter = true});
    });
    std::filesystem::remove_all(f("more"));
    return error;
  };
  CHECK(adapter_of(llama, "query", "*query.w") ==
        "usage [export] 'model.layers.0.self_attn.q_proj.weight' has matrices of LoRA, and "
        "something of 'model.layers.0.self_attn.q_proj' was trained beside them, which PEFT cannot "
        "express; export the merged model");
  CHECK(adapter_of(gpt2, "query", "*value.b").find("'transformer.h.0.attn.c_attn' was trained") !=
        std::string::npos);
  CHECK(adapter_of(ModelFolder(kModels + "vit"), "query", "*class_token") ==
        "usage [export] 'vit.embeddings.cls_token' was trained, and PEFT saves whole modules only, "
        "with weight and bias; export the merged model");
  std::filesystem::create_directories(f("bare"));
  std::filesystem::copy(llama.path() + "/config.json", f("bare/config.json"));
  CHECK(
      f.error([&] {
        export_model(f("run"), ModelFolder(f("bare")), f("out"), {.lora = o.lora, .adapter = true});
      }) ==
      "usage [export] 'DIR/bare' holds no weights, and an adapter is what differs from them; give "
      "the folder with the weights that training began with");
  const nn::TransformerOptions plain = test::options_of(llama, true);
  {
    Graph g;
    const nn::Model model = nn::transformer(g, plain);
    Cluster ranks = Cluster::threads(1);
    Session session(g, ranks, {Mesh::parse("a:1"), {}, {{"f", {model.loss}, false}}, 0, 1});
    Checkpoints(ranks, f("plain")).save(session, 1);
  }
  CHECK(
      f.error([&] { export_model(f("plain"), llama, f("out"), {.adapter = true}); })
          .find(
              "an adapter is asked for, but 'DIR/plain/step-00000001' has no parameters of LoRA") !=
      std::string::npos);
  CHECK_FALSE(std::filesystem::exists(f("out")));
}

}  // namespace TESSERA_FILE
}  // namespace tessera
