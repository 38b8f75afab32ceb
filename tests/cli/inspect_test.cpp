// Seeing inside from the command line: --watch, --dump, compare, --json, info --mesh.
#include <regex>

#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Every byte belongs to a well-formed character.
bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

TEST_CASE("cli: --watch gives a line and a record a tensor", "[cli]") {
  const TextFolder f;
  const CliResult result =
      train(f, "--steps 2 --mesh model:2 --watch \"*.loss\" \"gpt.*.up.w.grad\" --log log.jsonl");
  expect_success(result);
  CHECK(has(result.out, "  gpt.loss float32 []  min "));
  CHECK(has(result.out, "  gpt.block0.mlp.up.w.grad float32 [d_model=16, ff=16]  min "));
  const auto records = log_of(f, "log.jsonl", "tensor");
  REQUIRE(records.size() == 4);
  CHECK(records[0]["tensor"] == "gpt.loss");
  CHECK(records[0]["mean"].get<double>() ==
        log_of(f, "log.jsonl", "loss")[0]["loss"].get<double>());
  CHECK(records[3]["sizes"] == std::vector<int64_t>{16, 16});
  CHECK(records[3]["step"] == 2);
  CHECK(records[3]["non_finite"] == 0);
  expect_failure(train(f, "--steps 1 --watch gpt.blok0.*"), 1,
                 {"'gpt.blok0.*'", "did you mean 'gpt.block0'?"});
}

TEST_CASE("cli: --dump writes whole tensors, and compare finds where two dumps part", "[cli]") {
  const TextFolder f;
  const std::string dump = "--steps 4 --dump \"gpt.*\" --dump-every 2 --dump-dir ";
  expect_success(train(f, "--mesh data:2 " + dump + "a"));
  expect_success(train(f, "--mesh model:2 " + dump + "b"));
  expect_success(train(f, "--mesh model:2 --seed 1 " + dump + "c"));
  CHECK(f.read("a/dump-00000002.safetensors").size() > 1000);
  CHECK(f.read("a/dump-00000001.safetensors").empty());
  const CliResult equal = run_cli_in(f, "compare a b --json equal.json");
  expect_success(equal);
  CHECK(json_of(f, "equal.json")["equal"] == true);
  CHECK(json_of(f, "equal.json")["agreed"].get<int>() > 100);
  const CliResult other =
      run_cli_in(f, "compare a/dump-00000002.safetensors c/dump-00000002.safetensors");
  CHECK(other.code == 1);
  CHECK(has(other.out, "first difference: gpt."));
  CHECK(has(other.out, ".cpp:"));
  CHECK(has(other.out, ", step 2"));
  expect_failure(run_cli_in(f, "compare a none"), 1,
                 {"no dump or log 'none'", "compare MODEL A B"});
  expect_failure(run_cli_in(f, "compare a ."), 1, {"'.' holds no dump-*.safetensors"});
  expect_failure(run_cli_in(f, "compare a"), 2, {"A is required"});
  expect_failure(train(f, "--dump gpt.*"), 1, {"--dump GLOB and --dump-dir DIR"});
  expect_failure(train(f, "--dump gpt.* --dump-dir d --dump-every 0"), 1, {"--dump-every 0"});
  expect_failure(train(f, "--dump gpt.* --dump-dir text.txt"), 1, {"'text.txt' of --dump-dir"});
}

TEST_CASE("cli: compare runs two layouts side by side", "[cli]") {
  const Folder f;
  const std::string mesh = " --mesh \"rows:2;cols:2\" ";
  const CliResult equal = run_cli_in(
      f, "compare gpt \"\" \"batch:rows;heads,ff,vocab:cols\" --dtype float64 --steps 2" + mesh);
  expect_success(equal);
  CHECK(has(equal.out, " values agree"));
  const CliResult strict =
      run_cli_in(f, "compare gpt \"\" \"d_model:rows\" --tolerance 1e-9 --json report.json" + mesh);
  CHECK(strict.code == 1);
  CHECK(strict.err.empty());
  const nlohmann::json report = json_of(f, "report.json");
  CHECK(report["equal"] == false);
  CHECK(report["first"]["when"] == "step 1");
  CHECK(has(report["first"]["node"], "norm1"));
  CHECK(has(report["first"]["source"], "transformer.cpp:"));
  CHECK(has(report["first"]["index"], "[batch "));
  CHECK(report["first"]["a"] != report["first"]["b"]);
  CHECK(has(strict.out, std::to_string(report["agreed"].get<int>()) + " values before it agree"));
  for (const char* dtype : {"float16", "bfloat16"})
    expect_success(run_cli_in(
        f, "compare gpt \"\" batch:rows --steps 2 --dtype " + std::string(dtype) + mesh));
  expect_failure(run_cli_in(f, "compare gpt batch:rows btach:rows" + mesh), 1,
                 {"no tensor has a dim 'btach'"});
}

TEST_CASE("cli: train, eval and generate report as JSON", "[cli]") {
  const TextFolder f;
  expect_success(train(f, "--steps 3 --mesh data:2 --checkpoint ck --log log.jsonl --json t.json"));
  const nlohmann::json trained = json_of(f, "t.json");
  CHECK(trained["step"] == 3);
  CHECK(trained["loss"] == log_of(f, "log.jsonl", "loss")[2]["loss"]);
  CHECK(trained["ranks"] == 2);
  const auto header = log_of(f, "log.jsonl", "config");
  REQUIRE(header.size() == 1);
  CHECK(header[0]["config"]["model.d_model"] == "16");
  CHECK(header[0]["config"]["layout.mesh"] == "data:2");
  CHECK(header[0]["parameters"] == trained["parameters"]);
  CHECK(f.read("log.jsonl").find("config") < f.read("log.jsonl").find("\"loss\":"));
  expect_success(run_cli_in(f, "eval gpt --data text.txt --checkpoint ck --json e.json"));
  CHECK(json_of(f, "e.json")["step"] == 3);
  CHECK(json_of(f, "e.json")["eval_loss"].get<double>() ==
        Approx(trained["eval_loss"].get<double>()).epsilon(1e-5));
  const CliResult text =
      run_cli_in(f,
                 "generate gpt --checkpoint ck --prompt l --tokens 300 --temperature 3 "
                 "--json g.json");
  expect_success(text);
  CHECK(is_utf8(text.out));
  CHECK(has(text.out, "\xEF\xBF\xBD"));
  CHECK(json_of(f, "g.json")["text"].get<std::string>() + "\n" == text.out);
  for (const std::string command :
       {"train gpt --data text.txt --steps 1", "eval gpt --checkpoint ck",
        "generate gpt --checkpoint ck", "verify gpt", "compare a b"})
    expect_failure(run_cli_in(f, command + " --json no/such.json"), 1, {"no/such.json"});
}

TEST_CASE("cli: the configuration that differs from defaults is printed, all of it logged",
          "[cli]") {
  const TextFolder f;
  const CliResult result = train(f, "--steps 1 --mesh \"data:2;model:2\" --log run.jsonl");
  expect_success(result);
  for (const char* part :
       {"keys    model.", " model.layers=1 model.d_model=16 ", " train.batch=4 train.steps=1 ",
        "data.path=text.txt", " at their defaults: tessera info --keys)\n",
        "mesh    data:2;model:2 (4 ranks, threads)", "layout  batch:data;heads:model",
        " parameters; "}) {
    INFO(result.out << "\nmissing: " << part);
    CHECK(has(result.out, part));
  }
  CHECK(!has(result.out, "train.seed="));
  const nlohmann::json config = log_of(f, "run.jsonl", "config").at(0).at("config");
  CHECK(config.at("train.seed") == "0");
  CHECK(config.at("model.layers") == "1");
}

TEST_CASE("cli: info tells the ranks and hosts of each axis", "[cli]") {
  const Folder f;
  const CliResult result = run_cli_in(f, "info --mesh \"data:2;model:3\" --json info.json");
  expect_success(result);
  CHECK(has(result.out, "= 6 ranks (threads of this process)"));
  const nlohmann::json mesh = json_of(f, "info.json")["mesh"];
  CHECK(mesh["data"]["groups"].size() == 3);
  CHECK(mesh["data"]["groups"][1]["ranks"] == std::vector<int>{1, 4});
  CHECK(mesh["model"]["groups"][1]["ranks"] == std::vector<int>{3, 4, 5});
  CHECK(mesh["model"]["groups"][0]["hosts"].size() == 1);
}

TEST_CASE("cli: explain leaves out what is too small to matter", "[cli]") {
  const Folder f;
  const CliResult result = run_cli_in(
      f, "explain gpt --mesh \"data:2;model:2\" --layout \"batch:data;vocab:model\" --json e.json");
  expect_success(result);
  CHECK(has(result.out, " more small ones, "));
  const nlohmann::json functions = json_of(f, "e.json")["functions"];
  const nlohmann::json function = *std::find_if(functions.begin(), functions.end(),
                                                [](const auto& x) { return x["name"] == "train"; });
  REQUIRE(!function["redundant"].empty());
  for (const nlohmann::json& r : function["redundant"])
    CHECK(r["flops"].get<double>() >= 0.01 * function["flops"].get<double>());
  CHECK(function["redundant_left_out"]["steps"].get<int>() > 0);
}

TEST_CASE("cli: layouts in configuration files", "[cli]") {
  const TextFolder f;
  auto layout_of = [&](const std::string& toml) {
    f.write("run.toml", "[model]\n  name = 'gpt' # the model\nlayers = 1\n" + toml);
    const CliResult result = run_cli_in(f, "explain run.toml");
    INFO(result.err);
    CHECK(result.code == 0);
    const size_t at = result.out.find("layout ");
    return result.out.substr(at, result.out.find('\n') - at);
  };
  const std::string table = "[layout]\nmesh = 'data:2;model:2'\n";
  CHECK(layout_of(table + "batch = 'data'\n'heads,ff' = 'model'") ==
        "layout batch:data;heads:model;ff:model");
  CHECK(layout_of(table + "batch = ['data', 'model']") == "layout batch:data+model");
  CHECK(layout_of(table + "batch = 'data'\n'd_model@state' = 'data'") ==
        "layout batch:data;@state d_model:data");
  CHECK(layout_of(table + "'d_model@params' = '=data'") == "layout @params d_model=data");
  CHECK(layout_of(table + "'@/*norm1*/ length' = 'model'") == "layout @/*norm1*/ length:model");
  CHECK(layout_of(table + "rules = 'batch:data;ff:model'") == "layout batch:data;ff:model");
  auto refused = [&](const std::string& toml, std::initializer_list<std::string> words) {
    f.write("run.toml", toml);
    expect_failure(run_cli_in(f, "explain run.toml"), 1, words);
  };
  refused("[model]\nname = 'gtp'", {"run.toml: unknown model 'gtp'", "did you mean 'gpt'?"});
  refused("[model]\nlayer = 2",
          {"run.toml: unknown key 'model.layer'", "'model.layers'? (line 2)"});
  refused("[trian]\nsteps = 2", {"unknown table [trian]", "'train'?"});
  refused("[layout]\nmseh = 'data:2'",
          {"run.toml: unknown key 'layout.mseh'", "did you mean 'mesh'?"});
  refused("[layout]\nmesh = 'data:2'\nbtach = 'data'", {"no tensor has a dim 'btach'", "'batch'?"});
  refused("[layout]\nmesh = 'data:x'", {"run.toml: ", "(line 2)"});
  refused("[layout]\nrules = 'batch data'", {"run.toml: ", "(line 2)"});
  refused("[train]\nclip = -1", {"run.toml: key 'train.clip' is -1; it must be", "(line 2)"});
  refused("steps = 2", {"'steps' stands outside a table"});
  refused("[train]\nsteps = [2]", {"'train.steps' is neither text, number nor true/false"});
  f.write("run.toml", "layout = 'batch:data'\n[model]\nlayers = 1");
  expect_success(run_cli_in(f, "explain run.toml --mesh data:2"));
}

TEST_CASE("cli: explain shows which parameters are trained and which decay", "[cli]") {
  const Folder f;
  const CliResult all = run_cli_in(
      f,
      "explain gpt --parameters --set layers=1 d_model=16 heads=2 ff=32 length=8 weight_decay=0.3");
  expect_success(all);
  const auto expect = [](const CliResult& r, const std::string& pattern) {
    INFO(pattern << "\n" << r.out);
    CHECK(std::regex_search(r.out, std::regex(pattern)));
  };
  expect(all, R"(parameter +dims +elements +trained +weight decay)");
  expect(all, R"(gpt\.block0\.mlp\.up\.w +\[d_model=16, ff=32\] +512 +yes +0\.3)");
  expect(all, R"(gpt\.block0\.attention\.query\.b +\[heads=2, d_head=8\] +16 +yes +0\n)");
  expect(all, R"([0-9]+ elements, [0-9]+ trained, [0-9]+ with weight decay)");
  const CliResult lora = run_cli_in(
      f, "explain gpt --parameters --lora-rank 2 --set layers=1 d_model=16 heads=2 ff=32 length=8");
  expect_success(lora);
  expect(lora, R"(lora_b +\[.*\] +[0-9]+ +yes +0\.1)");  // it begins with zeros
  expect(lora, R"(gpt\.embedding +\[.*\] +[0-9]+ +no +0\n)");
}

TEST_CASE("cli: explain lists the kernels of a step beside the machine's roofline", "[cli]") {
  const Folder f;
  const std::string job =
      "explain gpt --set layers=3 d_model=64 heads=4 ff=256 length=64 batch=8 vocab=256 "
      "--device cuda --json e.json ";
  expect_failure(run_cli_in(f, job + "--kernels", "TESSERA_CACHE=" + f.dir), 1,
                 {"--kernels needs times", "--machine (", "h100", "tessera calibrate"});
  const CliResult r = run_cli_in(f, job + "--kernels --machine h100");
  expect_success(r);
  CHECK(r.out.find("kernels of train on h100, predicted") != std::string::npos);
  CHECK(r.out.find("matmul gpt.block*.") != std::string::npos);
  const nlohmann::json train = json_of(f, "e.json").at("functions").at(0);
  double seconds = 0, longest = 1e9;
  int64_t flops = 0;
  for (const nlohmann::json& k : train.at("kernels")) {
    const double mine = k.at("seconds");
    CHECK(mine <= longest);  // longest first
    CHECK(k.at("roofline").get<double>() > 0);
    CHECK(k.at("roofline").get<double>() <= 1.001 * mine);
    longest = mine;
    seconds += mine;
    // Of the pairs of a query and a key, causal order leaves half.
    const bool is_causal = k.at("kernel").get<std::string>().starts_with("attention");
    flops += (is_causal ? 2 : 1) * k.at("flops").get<int64_t>();
  }
  CHECK(seconds == Approx(train.at("predicted").at("compute").get<double>()).epsilon(1e-9));
  CHECK(flops == train.at("flops").get<int64_t>());
}

TEST_CASE("cli: memory for a GPU counts the workspaces of its kernels, not of the CPU's", "[cli]") {
  const Folder f;
  const std::string big =
      "explain gpt --machine h100 --set layers=12 d_model=768 heads=12 ff=3072 "
      "length=1024 vocab=50304 dtype=bfloat16 batch=96 --device ";
  // A CPU packs the parts of its matmuls one after the other; a GPU's library has a workspace.
  expect_success(run_cli_in(f, big + "cuda --memory 48GB"));
  expect_failure(run_cli_in(f, big + "cuda --memory 46.5GB"), 1,
                 {"a rank needs 47.1", "--memory is 46.50 GB"});
  const std::string cpu = run_cli_in(f, big + "cpu --memory 1GB").err;
  CHECK(cpu.find("a rank needs 4") != std::string::npos);
  CHECK(cpu.find("a rank needs 47.1") == std::string::npos);
}

}  // namespace TESSERA_FILE
