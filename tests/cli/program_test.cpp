// A program of PyTorch as MODEL of the command line, and its state_dict back out of it.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "cli/cli_run.h"
#include "tessera/safetensors.h"

using namespace tessera;
using test::CliResult;
using test::expect_failure;
using test::expect_success;
using test::Folder;
using test::json_of;
using test::run_cli_in;

namespace TESSERA_FILE {

const std::string kModule = TESSERA_SOURCE_DIR "/data/tiny-module.pt2";
const std::string kPrograms = TESSERA_SOURCE_DIR "/tests/pytorch/data/";
const std::string kText = std::string(" --data ") + TESSERA_SOURCE_DIR + "/data/moby-dick.txt ";
const std::string kLoss = " --loss \"cross_entropy(logits, labels)\" ";

TEST_CASE("a program of PyTorch is trained on a mesh, evaluated and exported", "[cli]") {
  const Folder f;
  for (const std::string scan : {"false", "true"}) {
    INFO("scan " << scan);
    const std::string run = "run-" + scan, out = "out-" + scan + ".safetensors";
    expect_success(run_cli_in(
        f, "train " + kModule + kLoss + kText + "--batch 8 --steps 3 --set lr=1e-2 scan=" + scan +
               " --mesh \"data:2;model:2\" --checkpoint " + run + " --json " + scan + ".json"));
    // The loss is in the checkpoint.
    expect_success(
        run_cli_in(f, "eval " + kModule + kText + "--checkpoint " + run + " --json eval.json"));
    const double after = json_of(f, scan + ".json")["eval_loss"];
    CHECK(json_of(f, "eval.json")["eval_loss"].get<double>() == Approx(after).epsilon(1e-6));
    expect_success(run_cli_in(f, "export --checkpoint " + run + " --like " + kModule + " " + out));
    const SafetensorsReader file(f(out));
    CHECK(file.tensors().size() == 29);
    CHECK(file.tensor("blocks.1.qkv.weight").sizes == std::vector<int64_t>{96, 32});
  }
  // A loop of layers changes nothing but rounding.
  const SafetensorsReader one(f("out-false.safetensors")), other(f("out-true.safetensors"));
  for (const TensorInfo& t : one.tensors()) {
    const Array a = one.read(t.name), b = other.read(t.name);
    for (int64_t i = 0; i < a.elements(); ++i) REQUIRE(a.at(i) == Approx(b.at(i)).margin(1e-4));
  }
}

TEST_CASE("commands that predict take a program of PyTorch", "[cli]") {
  const Folder f;
  const CliResult names = run_cli_in(f, "explain " + kModule + " --names");
  expect_success(names);
  CHECK(names.out.find("heads                          4  blocks.0.qkv.weight") !=
        std::string::npos);
  const CliResult explained =
      run_cli_in(f, "explain " + kModule + kLoss + "--mesh \"data:2;model:2\"");
  expect_success(explained);
  // Its own layout is that of the names, and reasons name the lines of the module.
  CHECK(explained.out.find("because heads:model (sum over 'heads')") != std::string::npos);
  CHECK(explained.out.find("(pytorch_module.py:") != std::string::npos);
  CHECK(explained.out.find("plain ops") == std::string::npos);
  const CliResult plain =
      run_cli_in(f, "explain " + kPrograms +
                        "plain.pt2 --loss \"mean_squared_error(output, x)\" --json e.json");
  expect_success(plain);
  CHECK(plain.out.find("note: not recognized, computed by plain ops: aten.softmax.int in blocks.* "
                       "(make_fixtures.py:") != std::string::npos);
  CHECK(json_of(f, "e.json")["notes"].size() == 5);
  expect_success(run_cli_in(
      f, "verify " + kModule + kLoss +
             "--mesh \"pipe:2\" --layout layers:pipe --batch 4 --set scan=true microbatches=2"));
  expect_success(run_cli_in(f, "plan " + kModule + kLoss + "--mesh a:2 --machine h100"));
  expect_success(run_cli_in(f, "simulate " + kModule + kLoss + "--mesh data:4 --machine h100"));
}

/// Of a step, by kind and axes: the number of collectives, and the bytes that a rank sends.
std::map<std::string, std::pair<int64_t, int64_t>> collectives_of(const Folder& f,
                                                                  const std::string& command) {
  expect_success(run_cli_in(f, "explain " + command + " --json e.json"));
  std::map<std::string, std::pair<int64_t, int64_t>> all;
  for (const auto& function : json_of(f, "e.json")["functions"])
    for (const auto& c : function["collectives"]) {
      auto& [times, bytes] = all[c["kind"].get<std::string>() + " over " + c["axes"].dump()];
      times += c.value("times", 1), bytes += c["bytes"].get<int64_t>();
    }
  return all;
}

TEST_CASE("a program of PyTorch has the collectives of the native model", "[cli]") {
  const Folder f;
  for (const std::string name : {"gpt2", "llama", "qwen3", "bert", "t5", "vit"}) {
    for (const std::string layout :
         {"--mesh \"data:2;model:2\" --layout \"batch:data;heads,ff,vocab?:model\"",
          "--mesh data:4 --layout batch:data", "--mesh model:3 --layout heads,ff,vocab?:model",
          "--mesh data:4 --layout \"batch:data; @state d_model:data\"",
          "--mesh data:4 --layout \"batch:data; @params d_model:data\""}) {
      INFO(name << ' ' << layout);
      auto ours =
          collectives_of(f, kPrograms + "native/" + name + ".pt2 --batch 4 " + kLoss + layout);
      auto native = collectives_of(f, TESSERA_SOURCE_DIR "/tests/models/" + name + " --batch 4 " +
                                          layout + " --set scan=false dropout=0" +
                                          (name == "vit" ? "" : " length=16"));
      if (name == "bert") {
        if (layout.find("d_model") != std::string::npos)
          continue;                         // one of its widths is d_transform
        for (auto& [kind, total] : native)  // it counts the masked tokens, 4 bytes
          if (kind.find("data") != std::string::npos)
            total.first -= 1, total.second -= layout.find(":4") != std::string::npos ? 6 : 4;
      }
      CHECK(ours == native);
    }
  }
}

TEST_CASE("compare names the first module that differs from PyTorch", "[cli]") {
  const Folder f;
  const std::string program = kPrograms + "fused.pt2 ",
                    right = kPrograms + "probe/fused.safetensors";
  for (const char* layout : {"", " heads,ff:a --mesh a:2", " \"\" --mesh a:1"}) {
    const CliResult result =
        run_cli_in(f, "compare " + program + right + layout + " --json c.json");
    expect_success(result);
    CHECK(json_of(f, "c.json")["agreed"] == 47);
    CHECK(result.out.find("22 values of the probe") != std::string::npos);
  }
  const SafetensorsReader file(right);
  const auto changed = [&](const std::string& name, const std::vector<std::string>& words) {
    std::filesystem::remove(f("wrong.safetensors"));
    std::vector<TensorInfo> infos = file.tensors();
    SafetensorsWriter writer(f("wrong.safetensors"), infos, {});
    for (const TensorInfo& t : infos) {
      Array a = file.read(t.name);
      if (t.name == name) a.data<float>()[3] += 0.5F;
      writer.write(t.name, a.bytes.data(), std::ssize(a.bytes));
    }
    writer.finish();
    const CliResult result = run_cli_in(f, "compare " + program + "wrong.safetensors");
    CHECK(result.code == 1);
    for (const std::string& word : words) {
      INFO(result.out);
      CHECK(result.out.find(word) != std::string::npos);
    }
  };
  changed("value.out.2", {"first difference: value.out.2 (make_fixtures.py:", "A is Tessera"});
  changed("grad of norm", {"first difference: grad of norm"});
  changed("grad.down.weight", {"first difference: grad.down.weight"});
  expect_failure(run_cli_in(f, "compare " + kModule + " " + right), 1, {"has no value of"});
}

TEST_CASE("what a program of PyTorch lacks is said in one line", "[cli]") {
  const Folder f;
  const auto fails = [&](const std::string& command, std::initializer_list<std::string> words) {
    expect_failure(run_cli_in(f, command), 1, words);
  };
  fails("explain " + kModule,
        {"has no loss", "--loss \"cross_entropy(OUTPUT, labels)\"", "its outputs are output"});
  fails("explain gpt --names", {"--names is for a program of PyTorch, FILE.pt2; 'gpt' is none"});
  fails("explain gpt --loss x", {"model.loss"});
  fails("explain none.pt2", {"there is no file 'none.pt2'"});
  fails("explain " + kModule + kLoss + "--dims \"tokens: b l\"",
        {"no input of", "has a dim 'batch'", "--dims"});
  const std::string on_meta = kPrograms + "bad/no_buffers.pt2" + kLoss;
  expect_success(run_cli_in(f, "explain " + on_meta + "--mesh a:2"));
  fails("verify " + on_meta + "--mesh a:2 --init random",
        {"no_buffers.pt2' holds no values of its buffers", "export it from the CPU"});
  fails("verify " + kPrograms + "bad/no_values.pt2" + kLoss + "--mesh a:2",
        {"no_values.pt2' holds no weights", "--init random"});
  fails("train " + kPrograms + "gpt.pt2" + kLoss + "--batch 4 --steps 1" + kText,
        {"batch of 2, not of 4", "dynamic"});
  fails("train " + kPrograms +
            "t5.pt2 --loss \"cross_entropy(logits, decoder_input_ids)\" --steps 1" + kText,
        {"the input 'decoder_input_ids'", "int32 [6]", "data have", "[8]"});
  fails("export --checkpoint run --like " + kModule + " out --ema",
        {"--ema, --adapter and --shard-size are for a folder"});
}

}  // namespace TESSERA_FILE
