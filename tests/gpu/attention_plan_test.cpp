// Attention of cuDNN's in Programs: it has the CPU's values wherever batch, heads and
// positions lie, and what it cannot do runs by a kernel of Tessera's, for a stated reason.
#include "kernels/cuda/attention_plan.h"

#include "base/fail.h"
#include "gpu/emulator.h"
#include "lower/lower.h"
#include "ops/attention.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "support/reference.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Names {
  std::vector<std::string> query, key;
  bool causal = true;
  const char* layout = "";
};

/// Attention of 2 x 4 heads and its gradients, all from parameters with the same bits everywhere.
struct Attended {
  Graph g;
  std::vector<Tensor> all;
  explicit Attended(const Names& names, DType dtype = DType::bfloat16) {
    const auto sized = [](const std::vector<std::string>& dims) {
      std::vector<Dim> shape;
      for (const std::string& name : dims)
        shape.push_back({name, name == "batch"           ? 3
                               : name == "kv_heads"      ? 2
                               : name == "group"         ? 4
                               : name == "length"        ? 9
                               : name == "memory_length" ? 7
                                                         : 8});
      return Shape(shape);
    };
    const auto start = [](Graph& graph, const Shape& shape, DType type) {
      return random_normal(graph, shape, 0, 1, type);
    };
    const Tensor q = g.parameter("q", sized(names.query), start, dtype),
                 k = g.parameter("k", sized(names.key), start, dtype),
                 v = g.parameter("v", sized(names.key), start, dtype),
                 weight = g.parameter("weight", sized(names.query), start, dtype);
    const Tensor y = attention(q, k, v, {}, {.causal = names.causal}).named("y");
    all = gradients(sum_all(y * weight), {q, k, v});
    for (size_t i = 0; i < all.size(); ++i) all[i] = all[i].named(fmt::format("d{}", i));
    all.push_back(y);
  }
  std::unique_ptr<Session> session(Cluster& cluster, const Names& names, const char* device,
                                   const char* mesh) {
    CompileOptions options{Mesh::parse(mesh), Layout::parse(names.layout), {{"f", all, false}}};
    options.device = device;
    return std::make_unique<Session>(g, cluster, options);
  }
};

/// What the GPU's results are off by, the worst of all.
double error_of(const Names& names, const char* mesh, int ranks) {
  Clusters clusters;
  Attended attended(names);
  auto here = attended.session(clusters.of(1), {}, "cpu", "a:1");
  auto there = attended.session(clusters.of(ranks), names, "cuda", mesh);
  here->run("f");
  there->run("f");
  double worst = 0;
  for (const Tensor& t : attended.all)
    worst = std::max(
        worst, relative_error(whole_of(there->fetch(t.name())), whole_of(here->fetch(t.name()))));
  CHECK(there->fallbacks().empty());
  return worst;
}

cuda::AttentionPlan plan_of(const Names& names, KernelKind kernel, DType dtype = DType::bfloat16,
                            const char* mesh = "a:1") {
  Attended attended(names, dtype);
  LowerOptions options{Mesh::parse(mesh),
                       Layout::parse(names.layout),
                       {{"f", attended.all, false}},
                       {&kAttention, &kAttentionGrad},
                       {},
                       {}};
  const Program program = lower(attended.g, options);
  for (const Step& step : program.functions.back().steps) {
    if (step.kernel == kernel) return cuda::plan_attention(step);
  }
  FAIL("there is no step " << info_of(kernel).name);
  return {};
}

const std::vector<std::string> kHeadsFirst = {"batch", "kv_heads", "group", "length", "d_head"},
                               kRowsFirst = {"batch", "length", "kv_heads", "group", "d_head"},
                               kKeysHeadsFirst = {"batch", "kv_heads", "memory_length", "d_head"},
                               kKeysRowsFirst = {"batch", "memory_length", "kv_heads", "d_head"};

TEST_CASE("cuDNN's attention has the CPU's values", "[cuda]") {
  CudaEmulator gpu;
  gpu.has_cudnn = true;
  const WithEmulator here(gpu);
  const std::vector<Names> cases = {
      {{"kv_heads", "length", "d_head"}, {"kv_heads", "memory_length", "d_head"}},
      {{"batch", "length", "kv_heads", "d_head"}, kKeysRowsFirst},
      {{"batch", "kv_heads", "length", "d_head"}, kKeysHeadsFirst, false},
      {{"length", "batch", "kv_heads", "d_head"}, kKeysHeadsFirst},
      {{"length", "d_head"}, {"memory_length", "d_head"}},
      {kHeadsFirst, kKeysHeadsFirst},
      {kRowsFirst, kKeysRowsFirst, false},
      {{"group", "length", "d_head"}, {"memory_length", "d_head"}},
      {{"batch", "length", "group", "d_head"}, {"batch", "memory_length", "d_head"}}};
  for (const Names& names : cases) {
    INFO(fmt::format("{} {}", fmt::join(names.query, ","), fmt::join(names.key, ",")));
    const int64_t before = gpu.attentions;
    CHECK(error_of(names, "a:1", 1) < 0.02);
    CHECK(gpu.attentions == before + 2);
  }
  const int64_t before = gpu.attentions;
  CHECK(error_of({kRowsFirst, kKeysRowsFirst, true, "kv_heads:a"}, "a:2", 2) < 0.02);
  CHECK(gpu.attentions == before + 4);
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("which attention cuDNN gets, and how its operands lie", "[cuda]") {
  using namespace cuda;
  const AttentionPlan first = plan_of({kHeadsFirst, kKeysHeadsFirst}, KernelKind::attention);
  CHECK(first.why_not.empty());
  CHECK(first.batch == 6);  // all that share a key are a batch
  CHECK(first.heads == 4);
  CHECK(first.key_heads == 1);
  CHECK(first.queries == 9);
  CHECK(first.keys == 7);
  CHECK(first.copied == 0);
  const AttentionPlan rows = plan_of({kRowsFirst, kKeysRowsFirst}, KernelKind::attention_grad);
  CHECK(rows.why_not.empty());
  CHECK(rows.backward);
  CHECK(rows.batch == 3);
  CHECK(rows.heads == 8);
  CHECK(rows.key_heads == 2);
  CHECK(rows.lie[kQuerySide].position == 64);
  CHECK(rows.lie[kQuerySide].head == 8);
  CHECK(rows.lie[kKeyGradSide].position == 16);
  CHECK(rows.copied == 1024);  // 3 x 8 x 9 numbers of 4 bytes
  CHECK(rows.lie[kLogSumSide].batch == 72);
  CHECK(rows.library ==
        attention_sums_bytes(3, 8, 9) + attention_stored_bytes(3, 8, 2, 9, 7, 8) + kAttentionSpare);
  CHECK(rows.workspace >= rows.copied + rows.library);

  CHECK(plan_of({kRowsFirst, kKeysRowsFirst}, KernelKind::attention, DType::float32).why_not ==
        "it is of float32");
  CHECK(
      plan_of({{"group", "kv_heads", "length", "d_head"}, {"kv_heads", "memory_length", "d_head"}},
              KernelKind::attention_grad)
          .why_not.empty());  // one by one the batch's
  CHECK(plan_of({{"batch", "length", "group", "kv_heads", "d_head"}, kKeysRowsFirst},
                KernelKind::attention_grad)
            .why_not == "heads that share keys do not follow each other");
  CHECK(plan_of({{"batch", "kv_heads", "length", "d_head"}, kKeysHeadsFirst, true, "length:a"},
                KernelKind::attention, DType::bfloat16, "a:3")
            .why_not == "ranks have parts of the queries");
}

TEST_CASE("a gpt's attention is cuDNN's, in a step that is captured", "[cuda]") {
  CudaEmulator gpu;
  gpu.has_cudnn = true;
  const WithEmulator here(gpu);
  Clusters clusters;
  const auto train = [&](const char* mesh, const char* layout, const char* device) {
    nn::GptOptions size = small_gpt(DType::bfloat16);
    size.d_model = 24;
    const Mesh ranks = Mesh::parse(mesh);
    const GptOutcome outcome = train_gpt(size, clusters.of(ranks.size()), ranks, layout, 4, device);
    CHECK(outcome.fallbacks.empty());
    return outcome.losses;
  };
  const std::vector<double> expected = train("a:1", "", "cpu");
  for (const char* layout : {"", "batch:a", "heads:a"}) {
    INFO(layout);
    const int64_t before = gpu.attentions, graphs = gpu.graph_launches;
    const std::vector<double> losses = train("a:2", layout, "cuda");
    for (size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 0.02);
    CHECK(gpu.attentions > before);
    if (layout[0] == '\0') CHECK(gpu.graph_launches > graphs);
  }
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("attention that cuDNN does not get says why", "[cuda]") {
  const auto run = [](bool has, const Names& names) {
    CudaEmulator gpu;
    gpu.has_cudnn = has;
    const WithEmulator here(gpu);
    Clusters clusters;
    Attended attended(names);
    std::string why;
    for (const std::string& line :
         attended.session(clusters.of(1), names, "cuda", "a:1")->fallbacks())
      why += line + "\n";
    CHECK(gpu.attentions == 0);
    return why;
  };
  const Names plain{{"length", "d_head"}, {"memory_length", "d_head"}};
  CHECK(run(false, plain).find("own kernel: cuDNN is missing") != std::string::npos);
  setenv("TESSERA_CUDNN", "off", 1);
  const std::string why = run(true, plain);
  unsetenv("TESSERA_CUDNN");
  CHECK(why.find("[attention] ") == 0);
  CHECK(why.find("attention_plan_test.cpp") != std::string::npos);
  CHECK(why.find("TESSERA_CUDNN is off") != std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
