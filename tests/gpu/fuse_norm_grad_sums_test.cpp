// The gradients of a norm's scale and shift, summed by the kernel that walks the rows.
#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/patterned_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Gradients of a weighted sum of a norm's result with respect to all of its operands.
struct Norm {
  Graph graph;
  std::vector<Tensor> inputs, wanted;

  Norm(DType type, bool is_layer_norm, int64_t batch, int64_t length, int64_t channels) {
    const Dim b("batch", batch), l("length", length), c("channel", channels);
    const Tensor x = graph.input("x", {b, l, c}, type), weights = graph.input("w", {b, l, c}, type),
                 scale = graph.input("scale", {c}, DType::float32),
                 shift = graph.input("shift", {c}, DType::float32);
    inputs = {x, weights, scale, shift};
    const Tensor y = is_layer_norm ? layer_norm(x, "channel", cast(scale, type), cast(shift, type))
                                   : rms_norm(x, "channel", cast(scale, type)) + cast(shift, type);
    const std::vector<Tensor> grads =
        gradients(sum_all(cast(y * weights, DType::float32)), {x, scale, shift});
    wanted = {grads[0].named("of_x"), grads[1].named("of_scale"), grads[2].named("of_shift")};
  }

  PatternedRun run(const std::string& device, const std::string& mesh,
                   const std::string& layout) const {
    return run_patterned(graph, inputs, wanted, device, mesh, layout);
  }
};

TEST_CASE("a norm's gradients of scale and shift come from the kernel of its rows", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  struct Case {
    DType type;
    bool is_layer_norm;
    int64_t batch, length, channels;
    const char *mesh, *layout;
    bool sums;
  };
  for (const Case& c : {Case{DType::bfloat16, true, 8, 256, 48, "a:1", "", true},
                        {DType::bfloat16, true, 16, 512, 768, "a:1", "", true},
                        {DType::float32, true, 2, 4096, 33, "a:1", "", true},
                        {DType::float32, false, 4096, 8, 20, "a:1", "", true},
                        {DType::bfloat16, false, 16, 256, 64, "a:2", "batch:a", true},
                        {DType::bfloat16, true, 8, 250, 64, "a:1", "", false},
                        {DType::bfloat16, true, 4, 256, 64, "a:1", "", false}}) {
    INFO(to_string(c.type) << " " << c.is_layer_norm << " " << c.batch << "x" << c.length << "x"
                           << c.channels << " " << c.mesh);
    const Norm norm(c.type, c.is_layer_norm, c.batch, c.length, c.channels);
    const PatternedRun found = norm.run("cuda", c.mesh, c.layout),
                       expected = norm.run("cpu", "a:1", "");
    CHECK((found.text.find("column_sums=") != std::string::npos) == c.sums);
    for (size_t i = 0; i < norm.wanted.size(); ++i) {
      INFO(norm.wanted[i].name());
      CHECK(relative_error(found.values[i], expected.values[i], 1e-3) <
            (is_narrow(norm.wanted[i].dtype()) ? 0x1p-7 : 2e-5));
    }
  }
  CHECK(gpu.take_misuses().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
