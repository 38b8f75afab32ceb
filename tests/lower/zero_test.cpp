// What storage rules send, asserted on the Program in bytes of a rank: with n ranks and P bytes of
// parameters, (n - 1) / n P for each time that all parameters or all gradients are sent. And a
// model that fits on no rank alone.
#include <map>

#include "cli/cli_run.h"
#include "support/catch.h"
#include "tessera/explain.h"
#include "tessera/storage.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kRanks = 4;

struct Setting {
  int stage = 0;
  DType dtype = DType::float32;
  int64_t parts = 1;
  bool scan = false;
  std::vector<std::string> reshard_after_forward = {};
  bool wide_grad_reduce = false, reduce_each_microbatch = false;
};

struct Sent {
  std::map<std::string, double> by_kind;  ///< over (n - 1) / n bytes
  double rest = 0;                        ///< of losses and norms
  double parameters = 0;                  ///< bytes of all, as stored
  double computed = 0;                    ///< the same in the types that are computed with
  double read_again = 0;                  ///< of blocks, as computed, that backward reads
  double norms = 0;                       ///< scales and biases of norms, in float32
};

/// Every dim is a multiple of the ranks, so that nothing is padded.
Sent sent(const Setting& s) {
  nn::GptOptions o;
  o.layers = 2;
  o.d_model = 16;
  o.heads = 4;
  o.ff = 32;
  o.length = 8;
  o.vocab = 32;
  o.batch = 8 / s.parts;
  o.dtype = s.dtype;
  o.scan = s.scan;
  Graph g;
  MinimizeOptions options;
  options.clip = 1;
  options.gradient.reshard_after_forward = s.reshard_after_forward;
  if (s.dtype == DType::float16) options.loss_scale.initial = 1024;
  const Minimized step = minimize_in_microbatches(
      g, "batch", s.parts, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam(), options);
  const Mesh mesh = Mesh::parse("data:" + std::to_string(kRanks));
  std::string layout = "batch:data";
  if (s.stage > 0) {
    std::string rules = storage_rules(g, mesh, Layout::parse(layout), s.stage, "data");
    // Split across its rows the table would not be sent at all, only rows of it.
    const std::string across = "gpt.embedding*/ d_model";
    const size_t at = rules.find(across);
    REQUIRE(at != std::string::npos);
    layout += ";" + rules.replace(at, across.size(), "gpt.embedding*/ vocab");
  }
  Sent result;
  for (const Tensor& p : g.parameters()) {
    const auto bytes = static_cast<double>(p.shape().elements() * 4);
    const bool in_product = p.name() != "gpt.embedding" && p.name() != "gpt.position";
    const double narrow = in_product && is_narrow(s.dtype) ? 2 : 1;
    result.parameters += bytes;
    result.computed += bytes / narrow;
    if (p.name().ends_with(".scale") || p.name().ends_with(".bias")) result.norms += bytes;
    // Backward needs no bias, and no head: its gradient follows at once.
    if (p.name().find(".block") != std::string::npos && !p.name().ends_with(".b") &&
        !p.name().ends_with(".bias"))
      result.read_again += bytes / narrow;
  }
  CompileOptions compile{mesh, Layout::parse(layout), {{"train", {step.loss}, true}}};
  compile.wide_grad_reduce = s.wide_grad_reduce;
  compile.reduce_each_microbatch = s.reduce_each_microbatch;
  const Explanation e = explain(g, compile);
  REQUIRE(e.functions.back().name == "train");
  for (const CollectiveReport& c : e.functions.back().collectives) {
    CHECK(c.ranks == kRanks);
    const double bytes = static_cast<double>(c.bytes) * kRanks / (kRanks - 1);
    if (c.bytes <= 16 * c.times) {
      result.rest += bytes;
    } else {
      result.by_kind[c.kind] += bytes;
    }
  }
  return result;
}

TEST_CASE("ZeRO sends parameters and gradients as often as it has to", "[fitting]") {
  const Sent plain = sent({});
  CHECK(plain.by_kind == std::map<std::string, double>{{"all_reduce", 2 * plain.parameters}});
  for (const int stage : {1, 2, 3}) {
    INFO("stage " << stage);
    const Sent s = sent({.stage = stage});
    CHECK(s.by_kind == std::map<std::string, double>{{"all_gather", s.parameters},
                                                     {"reduce_scatter", s.parameters}});
    CHECK(s.rest < 0.01 * s.parameters);  // nothing else is the same everywhere
  }
  const Sent again = sent({.stage = 3, .reshard_after_forward = {"block"}});
  CHECK(again.by_kind ==
        std::map<std::string, double>{{"all_gather", again.parameters + again.read_again},
                                      {"reduce_scatter", again.parameters}});
  CHECK(again.read_again > 0.7 * again.parameters);
}

TEST_CASE("parameters travel in the type that is computed with, and gradients too", "[fitting]") {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    INFO(to_string(dtype));
    const Sent s = sent({.stage = 3, .dtype = dtype});
    CHECK(s.computed < 0.6 * s.parameters);
    // Gradients of norms are sums in float32, which are rounded when they are complete; in float16
    // all partial sums are.
    const double gradients = dtype == DType::float16 ? s.parameters : s.computed + s.norms / 2;
    CHECK(s.by_kind ==
          std::map<std::string, double>{{"all_gather", s.computed}, {"reduce_scatter", gradients}});
    const Sent again = sent({.stage = 3, .dtype = dtype, .reshard_after_forward = {"block"}});
    CHECK(again.by_kind.at("all_gather") == again.computed + again.read_again);
    CHECK(again.by_kind.at("reduce_scatter") == gradients);
    // The state keeps float32: what it makes of the parameters is sent as it is stored.
    const Sent state = sent({.stage = 1, .dtype = dtype});
    CHECK(state.by_kind.at("all_gather") == state.parameters);
    CHECK(state.by_kind.at("reduce_scatter") == gradients);
    // By choice gradients are widened first.
    const Sent wide = sent({.stage = 3, .dtype = dtype, .wide_grad_reduce = true});
    CHECK(wide.by_kind.at("all_gather") == s.computed);
    CHECK(wide.by_kind.at("reduce_scatter") == Approx(s.parameters).epsilon(0.05));
  }
}

TEST_CASE("with accumulation gradients are combined once", "[fitting]") {
  for (const bool scan : {false, true}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const int stage : {0, 1, 2, 3}) {
        INFO("stage " << stage << ", scan " << scan << ", " << to_string(dtype));
        const Setting whole{.stage = stage, .dtype = dtype, .scan = scan};
        Setting in_parts = whole;
        in_parts.parts = 2;
        const Sent once = sent(whole), parts = sent(in_parts);
        const char* kind = stage == 0 ? "all_reduce" : "reduce_scatter";
        // What is summed over parts is summed, and sent, in float32; gradients of norms, which are
        // rounded to bfloat16 first, in each part.
        const double times = stage == 0 ? 2 : 1, norms = is_narrow(dtype) ? parts.norms : 0;
        CHECK(parts.by_kind.at(kind) >= times * (parts.parameters - norms));
        CHECK(parts.by_kind.at(kind) <= times * (parts.parameters + norms));
        if (stage == 0) continue;
        CHECK(parts.by_kind.at("all_gather") ==
              (stage == 3 ? 2 : 1) * once.by_kind.at("all_gather"));
      }
    }
  }
  for (const bool scan : {false, true}) {  // by choice in each part, to slices
    const Setting each{.stage = 2, .parts = 2, .scan = scan, .reduce_each_microbatch = true};
    const Sent parts = sent(each);
    CHECK(parts.by_kind == std::map<std::string, double>{{"all_gather", parts.parameters},
                                                         {"reduce_scatter", 2 * parts.parameters}});
  }
  const Sent layers = sent({.stage = 3, .scan = true});
  CHECK(layers.by_kind.at("reduce_scatter") == layers.parameters);
}

TEST_CASE("an embedding is split along d_model, and rows of it travel", "[fitting]") {
  nn::GptOptions o;
  o.layers = 1;
  o.d_model = 16;
  o.heads = 4;
  o.ff = 32;
  o.length = 8;
  o.vocab = 512;
  o.batch = 8;
  Graph g;
  const nn::Model model = nn::gpt(g, o);
  minimize(model.loss, constant(g, 0.01), adam());
  const Mesh mesh = Mesh::parse("data:4");
  const std::string rules = storage_rules(g, mesh, Layout::parse("batch:data"), 3, "data");
  const CompileOptions compile{
      mesh, Layout::parse("batch:data;" + rules), {{"train", {model.loss}, true}}};
  const int64_t rows = o.batch * o.length, slice = o.d_model / kRanks;
  int64_t exchanged = 0;
  const Explanation explained = explain(g, compile);
  for (const CollectiveReport& c : explained.functions.back().collectives) {
    INFO(c.kind << " " << c.tensor);
    CHECK(c.tensor.find("gpt.embedding") == std::string::npos);  // neither table nor gradient
    if (c.kind == "all_to_all") exchanged += c.bytes;
  }
  // A slice of every row that others need, and of its gradient back.
  CHECK(exchanged == 2 * rows * slice * 4 * (kRanks - 1) / kRanks);
}

TEST_CASE("cli: a model of four times a rank's memory trains on eight, and says how", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string model =
      "gpt --data text.txt --batch 8 --mesh data:8 --layout batch:data --threads 1 "
      "--set layers=24 d_model=48 heads=2 ff=192 length=8 scan=true recompute=block warmup=1 ";
  expect_success(run_cli_in(f, "explain " + model.substr(0, model.find("--data")) +
                                   model.substr(model.find("--batch 8") + 9) +
                                   "batch=8 --json plan.json"));
  const nlohmann::json memory = json_of(f, "plan.json")["memory"];
  const auto params = memory["params"].get<int64_t>(), state = memory["state"].get<int64_t>();
  const int64_t limit = (2 * params + state) / 4;  // gradients are as large as parameters
  const std::string memory_flag = "--memory " + std::to_string(limit);
  const CliResult refused = run_cli_in(f, "train " + model + "--steps 3 " + memory_flag);
  expect_failure(refused, 1,
                 {"a rank needs", "parameters", "optimizer state", "inputs", "at the peak",
                  "--zero 3 --over data would fit with"});
  CHECK(refused.out.find("step") == std::string::npos);
  const CliResult trained =
      run_cli_in(f, "train " + model + "--steps 3 --fsdp data --log log.jsonl " + memory_flag);
  expect_success(trained);
  for (const nlohmann::json& record : log_of(f, "log.jsonl", "memory_bytes"))
    CHECK(record["memory_bytes"].get<int64_t>() <= limit);
  const auto losses = losses_of(f, "log.jsonl");
  REQUIRE(losses.size() == 3);
  CHECK(losses.at(3) < losses.at(1));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
