// What a block of gpt keeps for backward, term by term, beside the formulas of Korthikanti et al.
// 2022 (table 2), in bytes over s b h: none 34 + 5 a s / h; on t ranks of tensor parallelism
// 10 + 24 / t + 5 a s / (h t); with sequence parallelism 34 / t + 5 a s / (h t); selective
// recomputation takes the terms with a s / h away; full keeps 2.
//
// It is read off the Program: what is written before the logits are complete and read afterwards.
// Ours differs where nothing is recomputed:
// - the core of attention is one kernel, with dropout too, and keeps a number a row and head, in
//   float32: 4 a / h instead of 5 a s / h. Softmax and what dropout left of it follow from query,
//   key and that number.
// - a norm keeps its normalized values in float32 (4 h) and a reciprocal deviation a token (4
//   bytes), where Megatron keeps its input in 16 bits (2 h).
// - between ranks of sequence parallelism what was gathered for the feed-forward layer is kept.
// With `regather` only the first remains; else the formulas of selective recomputation hold
// exactly.
#include <cmath>
#include <map>

#include "support/catch.h"
#include "support/program_run.h"
#include "tessera/nn_transformer.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr double kA = 4, kS = 32, kH = 64;

struct Case {
  const char* mesh;
  const char* layout;
  GradientOptions gradient = {};
  double dropout = 0.1;
};

Program lowered(const Case& c, int64_t batch) {
  nn::GptOptions o;
  o.layers = 3;
  o.d_model = static_cast<int64_t>(kH);
  o.heads = static_cast<int64_t>(kA);
  o.ff = 4 * o.d_model;
  o.length = static_cast<int64_t>(kS);
  o.vocab = 48;
  o.batch = batch;
  o.dtype = DType::bfloat16;
  o.dropout = c.dropout;
  Graph g;
  const nn::Model model = nn::gpt(g, o);
  minimize(model.loss, constant(g, 0.01), sgd(), {.gradient = c.gradient});
  return lower_for_cpu(g, c.mesh, c.layout, {{"train", {model.loss}, true}});
}

/// Bytes by name of what is alive on both sides of the step that makes the logits.
std::map<std::string, int64_t> alive_at_logits(const Program& p) {
  const Function& f = p.functions.back();
  std::map<int, size_t> wait, first, last;
  size_t middle = 0;
  for (size_t s = 0; s < f.steps.size(); ++s) {
    if (f.steps[s].kind == StepKind::wait) wait[f.steps[s].number] = s;
  }
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const Step& step = f.steps[s];
    const size_t end = step.kind == StepKind::collective ? wait.at(step.number) : s;
    for (const auto* views : {&step.out, &step.in}) {
      for (const View& v : *views) {
        first.emplace(v.buffer, s);
        last[v.buffer] = std::max(last[v.buffer], end);
      }
    }
    for (const View& v : step.out) {
      if (middle == 0 && p.buffers[v.buffer].name == "gpt.logits") middle = s;
    }
  }
  REQUIRE(middle > 0);
  std::map<std::string, int64_t> alive;
  for (const auto& [buffer, begin] : first) {
    if (p.buffers[buffer].arena == ArenaKind::transient && begin <= middle && last[buffer] > middle)
      alive[p.buffers[buffer].name] += p.buffers[buffer].bytes;
  }
  return alive;
}

const std::vector<std::pair<std::string, std::vector<std::string>>> kTerms = {
    {"norm inputs", {"add_1", "add_3"}},
    {"normalized", {"norm?.layer_norm.mul_2"}},
    {"deviations", {"norm?.layer_norm.rsqrt"}},
    {"product inputs", {"norm?.layer_norm.cast_3"}},
    {"query key value",
     {"attention.add", "attention.add_1", "attention.einsum_1", "attention.reshape",
      "attention.reshape_1"}},
    {"core", {"attention.masked_attention.less", "attention.attention:1"}},
    {"seen", {"attention.masked_attention.einsum_1", "attention.seen"}},
    {"masks", {"less", "less_1"}},
    {"feed-forward", {"mlp.add", "mlp.gelu"}}};

/// What block 1 of 3 keeps of each example, over s h, by term. Weights in 16 bits are kept too, and
/// do not grow with the batch.
std::map<std::string, double> kept(const Case& c) {
  const std::map<std::string, int64_t> more = alive_at_logits(lowered(c, 16));
  const std::map<std::string, int64_t> less = alive_at_logits(lowered(c, 8));
  const std::string scope = "gpt.block1.";
  std::map<std::string, double> terms;
  for (const auto& [name, bytes] : more) {
    if (!name.starts_with(scope)) continue;
    const double of_batch = static_cast<double>(bytes - less.at(name)) / (8 * kS * kH);
    if (of_batch == 0) continue;
    INFO(name << " keeps " << of_batch << " s b h");
    std::string found;
    for (const auto& [term, globs] : kTerms) {
      for (const std::string& glob : globs)
        if (glob_match(glob, name.substr(scope.size()))) found = term;
    }
    REQUIRE(!found.empty());
    terms[found] += of_batch;
  }
  return terms;
}

double sum(const std::map<std::string, double>& terms) {
  double all = 0;
  for (const auto& [term, x] : terms) all += x;
  return all;
}

void check(const std::map<std::string, double>& found,
           const std::map<std::string, double>& expected) {
  for (const auto& [term, globs] : kTerms) {
    INFO(term);
    CHECK((found.contains(term) ? found.at(term) : 0) ==
          Approx(expected.contains(term) ? expected.at(term) : 0));
  }
}

/// Of the paper.
double tensor(double t) { return 10 + 24 / t; }
double sequence(double t) { return 34 / t; }
double core(double t) { return 5 * kA * kS / (kH * t); }
/// Ours.
double row_sums(double t) { return 4 * kA / (kH * t); }

const char* const kTensor = "heads,ff,vocab:model";
/// Everything between the products is split along the length, as the paper does.
const char* const kSequence =
    "heads,ff,vocab:model; @/*mlp*/ length:-; @/*attention*/ length:-; @/gpt.block*/ length:model";

/// The transient arena of a training step.
int64_t transient_bytes(bool packed, int64_t window) {
  nn::TransformerOptions o;
  o.layers = 1;
  o.d_model = 32;
  o.heads.count = 2;
  o.heads.d_head = 16;
  o.mlp.ff = 32;
  o.vocab = 16;
  o.batch = 1;
  o.length = 2048;
  o.packed = packed;
  o.spans[0].window = window;
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  minimize(model.loss, constant(g, 0.01), sgd());
  const Program p = lower_for_cpu(g, "a:1", "", {{"train", {model.loss}, true}});
  int64_t bytes = 0;
  for (const Buffer& b : p.buffers) {
    if (b.arena == ArenaKind::transient) bytes = std::max(bytes, b.offset + b.bytes);
  }
  return bytes;
}

TEST_CASE("a block keeps what Megatron's formula says, but for norms and the core", "[fitting]") {
  for (const double t : {1.0, 2.0}) {
    INFO(t << " ranks");
    const auto found = t == 1 ? kept({"model:1", ""}) : kept({"model:2", kTensor});
    check(found, {{"normalized", 8},
                  {"deviations", 8 / kH},
                  {"product inputs", 4},
                  {"query key value", 6 / t},
                  {"core", row_sums(t)},
                  {"seen", 2 / t},
                  {"masks", 2},
                  {"feed-forward", 16 / t}});
    const double norms = 4 + 8 / kH, less_core = core(t) - row_sums(t);
    CHECK(sum(found) == Approx(tensor(t) + core(t) + norms - less_core));
  }
  const auto split = kept({"model:2", kSequence});
  check(split, {{"normalized", 4},
                {"deviations", 4 / kH},
                {"product inputs", 2 + 2},  // as gathered
                {"query key value", 3},
                {"core", row_sums(2)},
                {"seen", 1},
                {"masks", 1},
                {"feed-forward", 8}});
  const double norms = 2 + 4 / kH, gathered = 2, less_core = core(2) - row_sums(2);
  CHECK(sum(split) == Approx(sequence(2) + core(2) + norms + gathered - less_core));
}

TEST_CASE("without dropout the core of attention keeps a number a row, and there are no masks",
          "[fitting]") {
  const auto found = kept({"model:2", kTensor, {}, 0});
  const double sums = row_sums(2);
  CHECK(found.at("core") == Approx(sums));
  CHECK(!found.contains("masks"));
  CHECK(sum(found) == Approx(tensor(2) - 2 + 4 + 8 / kH + sums));
}

TEST_CASE("regathered blocks keep what the formulas of selective recomputation say", "[fitting]") {
  const GradientOptions again = {{}, {"block"}};
  const std::map<std::string, double> whole = {
      {"norm inputs", 4}, {"product inputs", 4}, {"query key value", 6}, {"seen", 2},
      {"masks", 2},       {"feed-forward", 16},  {"core", row_sums(1)}};
  check(kept({"model:1", "", again}), whole);
  CHECK(sum(whole) == 34 + row_sums(1));
  const auto on_two = kept({"model:2", kTensor, again});
  check(on_two, {{"norm inputs", 4},
                 {"product inputs", 4},
                 {"query key value", 3},
                 {"seen", 1},
                 {"masks", 2},
                 {"feed-forward", 8},
                 {"core", row_sums(2)}});
  CHECK(sum(on_two) == Approx(tensor(2) + row_sums(2)));
  CHECK(sum(kept({"model:2", kSequence, again})) == Approx(sequence(2) + row_sums(2)));
}

TEST_CASE("recomputed blocks keep their input, recomputed attention nothing of its own",
          "[fitting]") {
  check(kept({"model:2", kTensor, {{"block"}, {}}}), {{"norm inputs", 2}});
  const auto rest = kept({"model:2", kTensor, {{"attention"}, {}}});
  CHECK(!rest.contains("query key value"));
  CHECK(!rest.contains("seen"));
  CHECK(!rest.contains("core"));
  CHECK(sum(rest) == Approx(8 + 8 / kH + 4 + 2 + 16 / 2));
}

TEST_CASE("packed documents and windows need the memory of causal attention") {
  const auto causal = static_cast<double>(transient_bytes(false, 0));
  CHECK(static_cast<double>(transient_bytes(true, 0)) <= 1.1 * causal);
  CHECK(static_cast<double>(transient_bytes(false, 256)) <= 1.1 * causal);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
