// The text of a Program is all of it: what is read back prints the same, costs the same and, in
// tests/support/program_run.h, computes the same.
#include "program/text.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "compile/lowering.h"
#include "lower/lower.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/program_run.h"
#include "tessera/pipeline_schedules.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Case {
  const char* mesh;
  const char* layout;
  Tensor (*build)(Graph&);
};

nn::GptOptions small_gpt() {
  nn::GptOptions o;
  o.layers = 4;
  o.d_model = 16;
  o.heads = 4;
  o.ff = 16;
  o.length = 8;
  o.vocab = 12;
  o.batch = 8;
  return o;
}
Tensor gpt(Graph& g) {
  return minimize(nn::gpt(g, small_gpt()).loss, constant(g, 0.01), adam()).loss;
}
Tensor gpt_in_loops(Graph& g) {
  nn::GptOptions o = small_gpt();
  o.scan = true;
  o.batch /= 4;
  o.dropout = 0.1;
  o.dtype = DType::bfloat16;
  return minimize_in_microbatches(
             g, "batch", 4, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam())
      .loss;
}
Tensor cnn(Graph& g) {
  nn::CnnOptions o;
  o.batch = 4;
  o.rows = o.cols = 10;
  o.channels1 = 4;
  o.channels2 = 6;
  o.hidden = 8;
  return minimize(nn::cnn(g, o).loss, constant(g, 0.01), sgd()).loss;
}
Tensor experts(Graph& g) {
  Tensor x =
      g.parameter("x", {Dim("batch", 8), Dim("length", 4), Dim("d_model", 8)}, nn::normal(1));
  nn::MoeOptions o;
  o.experts = Dim("experts", 4);
  o.hidden = Dim("ff", 8);
  o.dropless = true;
  const nn::Moe mixed = nn::moe(x, "moe", "d_model", o);
  return minimize(mean_all(square(mixed.y - 1.0)) + mixed.loss, constant(g, 0.01), adam()).loss;
}
/// Ops that no model here has; names that need quotes.
Tensor others(Graph& g) {
  Tensor x = g.input("a \"name\", with: signs\n", {Dim("rows", 6), Dim("cols", 8)}, DType::float32);
  const TopK best = top_k(cumsum(x, "rows", true, true), "cols", Dim("k", 3));
  const Tensor found = take_along(x, rename(best.indices, "k", "cols"), "cols", OutOfRange::clamp);
  const Tensor sum = sum_all(found) + sum_all(best.values) + sum_all(top_1(x, "cols").values);
  return sum.named("sum");
}

const Case kCases[] = {
    {"", "", gpt},
    {"data:2;model:2", "batch:data;heads,ff,vocab:model", gpt},
    {"data:2;model:2", "batch:data;heads,ff:model;@params d_model:data", gpt},
    {"pipe:4", "layers:pipe", gpt_in_loops},
    {"pipe:2;data:2", "layers:pipe*2;batch:data", gpt_in_loops},
    {"rows:2;cols:2", "rows:rows;cols:cols", cnn},
    {"ep:4", "batch,experts:ep", experts},
    {"model:2", "rows:model", others},
};

Program lowered(const Case& test, const char* device, const std::string& schedule = "1f1b") {
  Graph g;
  const Tensor result = test.build(g);
  CompileOptions options;
  options.mesh = Mesh::parse(test.mesh);
  options.layout = Layout::parse(test.layout);
  options.device = device;
  options.pipeline_schedule = schedule;
  return lower(g, lowering_of(options, {{"step", {result}, !g.updates().empty()}}));
}

/// The text with one part replaced and its hash renewed.
std::string edited(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  INFO(part);
  REQUIRE(at != std::string::npos);
  text.replace(at, part.size(), by);
  text.resize(text.rfind("hash "));
  return text + fmt::format("hash {:016x}\n", hash_of(text));
}

TEST_CASE("the text of a Program reads back, for the CPU and a GPU", "[program]") {
  for (const Case& test : kCases) {
    const bool has_stages = std::string(test.layout).starts_with("layers:");
    for (const char* device : {"cpu", "cuda"}) {
      for (const PipelineSchedule& schedule : pipeline_schedules()) {
        const int64_t chunks = std::string(test.layout).starts_with("layers:pipe*") ? 2 : 1;
        if (has_stages ? !takes_chunks(schedule, chunks) : schedule.name != "1f1b") continue;
        INFO(test.mesh << " " << test.layout << " " << device << " " << schedule.name);
        const Program program = lowered(test, device, schedule.name);
        CHECK(hash(read_back(program)) == hash(program));
      }
    }
  }
}

TEST_CASE("a function of a model without stored tensors may be called init", "[program]") {
  Graph g;
  const Tensor x = g.input("x", {Dim("rows", 4)}, DType::float32);
  CompileOptions options;
  options.mesh = Mesh::parse("a:1");
  const Program program = lower(g, lowering_of(options, {{"init", {square(x)}, false}}));
  REQUIRE(program.functions.size() == 1);
  CHECK(program.functions[0].kind == FunctionKind::user);
}

TEST_CASE("a text that is no Program is refused with its line and the reason", "[program]") {
  const std::string text = write_program(lowered(kCases[1], "cpu"));
  CHECK_NOTHROW(read_program(text));
  const auto refused = [&](const std::string& other, const std::vector<std::string>& words) {
    expect_error(ErrorKind::io, words, [&] { read_program(other); });
  };
  refused("", {"line 1 ", "begins with no 'program'"});
  refused("program 1\n", {"line 1 ", "another version", "'program 2'"});
  refused(text.substr(0, text.size() / 2), {"so a part is missing; write it again"});
  refused(text.substr(0, text.rfind("hash ")), {"so a part is missing; write it again"});
  std::string longer = text;
  longer.replace(longer.find("mesh data:2"), 11, "mesh data:4");
  refused(longer, {"they were edited"});
  const std::pair<const char*, const char*> edits[] = {
      {"mesh data:2 ", "mesh data2 "},
      {"persistent=", "lasting="},
      {" transient ", " somewhere "},
      {":float32[", ":float33["},
      {"= matmul(", "= matmul7("},
      {" kinds=[", " sorts=["},
      {"kinds=[row", "kinds=[line"},
      {"=load(#0)", "=fetch(#0)"},
      {"=load(#0)", "=load(#99)"},
      {"r1:float32", "r7:float32"},
      {"port ", "harbour "},
      {"stored 0", "stored 9999"},
      {"over model ", "over modal "},
      {" -> r", " -> r99"},
      {"first_update=", "first_updates="},
      {"wait #", "wait "},
  };
  const std::vector<std::vector<std::string>> reasons = {
      {"line 2 ", "':' is expected"},
      {"line 3 ", "'persistent=' is expected"},
      {"'somewhere' is no memory"},
      {"'float33' is no dtype"},
      {"matmul7 has no 'kinds'"},
      {"'kinds' is missing"},
      {"'line' is none of"},
      {"'fetch' is no instruction"},
      {"operand 99 of"},
      {"'r1:' is expected"},
      {"'body ' is expected"},
      {"port 9999 of"},
      {"'modal' is no axis"},
      {"register 99"},
      {"is too much"},
      {"no buffer wait"},
  };
  for (size_t i = 0; i < std::size(edits); ++i) {
    INFO(edits[i].first << " -> " << edits[i].second);
    refused(edited(text, edits[i].first, edits[i].second), reasons[i]);
  }
}

}  // namespace TESSERA_FILE

}  // namespace tessera::test
