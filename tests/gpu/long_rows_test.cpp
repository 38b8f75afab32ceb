// Fused steps along rows that are too long for registers: they are streamed, once for every phase.
#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/patterned_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Model {
  Graph graph;
  std::vector<Tensor> inputs, wanted;

  Model(DType type, int64_t rows, int64_t classes) {
    const Dim row("row", rows), vocab("vocab", classes);
    const Tensor logits = graph.input("logits", {row, vocab}, type),
                 labels = graph.input("labels", {row}, DType::int32),
                 weights = graph.input("weights", {row}, DType::float32);
    inputs = {logits, labels, weights};
    const Tensor loss = cross_entropy(logits, labels, "vocab", 1e-3);
    wanted = {loss.named("loss"), gradients(sum_all(loss * weights), {logits})[0].named("grad"),
              softmax(logits, "vocab").named("shares"), reduce_max(logits, "vocab").named("top"),
              reduce_sum(square(cast(logits, DType::float32) + 1.0), "vocab").named("norms")};
  }

  PatternedRun run(const std::string& device, const std::string& mesh,
                   const std::string& layout) const {
    return run_patterned(graph, inputs, wanted, device, mesh, layout);
  }
};

TEST_CASE("long rows are streamed: losses, their gradients and softmax have the CPU's values",
          "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  for (const auto& [type, classes] :
       {std::pair(DType::float32, 4099), {DType::bfloat16, 4104}, {DType::bfloat16, 4101}}) {
    Model model(type, 66, classes);
    const std::vector<Whole> expected = model.run("cpu", "a:1", "").values;
    for (const auto& [mesh, layout] : {std::pair("a:1", ""), std::pair("a:1", "row:a"),
                                       std::pair("a:3", "vocab:a"), std::pair("a:2", "row:a")}) {
      const std::vector<Whole> found = model.run("cuda", mesh, layout).values;
      INFO(to_string(type) << " " << classes << " " << mesh << " " << layout);
      for (size_t i = 0; i < model.wanted.size(); ++i) {
        INFO(model.wanted[i].name());
        CHECK(relative_error(found[i], expected[i], 1e-3) <
              (is_narrow(model.wanted[i].dtype()) ? 0x1p-7 : 1e-5));
      }
    }
  }
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("a loss and its gradient read the logits once, in their own type; few rows are divided",
          "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  const auto steps_with = [](const std::string& text, const std::string& what) {
    int count = 0;
    for (size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++count;
    return count;
  };
  const Model many(DType::bfloat16, 66, 4104), few(DType::bfloat16, 6, 4104);
  const std::string text = many.run("cuda", "a:1", "").text;
  INFO(text);
  CHECK(steps_with(text, " = pointwise(") == 1);
  CHECK(steps_with(text, " = gather(logits:bfloat16") == 1);
  CHECK(steps_with(text, " = reduce ") == 0);
  CHECK(steps_with(few.run("cuda", "a:1", "").text, " = reduce ") > 0);
  CHECK(steps_with(few.run("cpu", "a:1", "").text, "row_max") == 0);
}

TEST_CASE("a label that is no class is an error on a GPU", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Model model(DType::bfloat16, 66, 4104);
  Clusters clusters;
  CompileOptions options{Mesh::parse("a:1"), {}, {{"f", model.wanted, false}}};
  options.device = "cuda";
  Session session(model.graph, clusters.of(1), options);
  for (const Tensor& t : model.inputs) {
    Array values = pattern(session, t);
    if (t.dtype() == DType::int32) values.data<int32_t>()[65] = 4104;
    session.feed(t.name(), values);
  }
  std::string message;
  try {
    session.run("f");
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(message.find("4104") != message.npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
