// The gradients of a norm's scale and shift, summed by the kernel that walks the rows.
#include <fmt/format.h>

#include "base/bfloat16.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/apart.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace {

Array pattern(const Session& session, const Tensor& t) {
  const Array shape = session.shape_of(t.name());
  Array values(t.dtype(), shape.dims, shape.sizes);
  for (int64_t i = 0; i < values.elements(); ++i) {
    const auto x = static_cast<float>(i * 37 % 101) / 16 - 3 + static_cast<float>(i % 7);
    if (t.dtype() == DType::float32) {
      values.data<float>()[i] = x;
    } else {
      values.data<uint16_t>()[i] = to_bfloat16(x).bits;
    }
  }
  return values;
}

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

  std::vector<Whole> run(const std::string& device, const std::string& mesh,
                         const std::string& layout, std::string* text = nullptr) {
    Clusters clusters;
    CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"f", wanted, false}}};
    options.device = device;
    Session session(graph, clusters.of(options.mesh.size()), options);
    if (text != nullptr) *text = session.program().text();
    for (const Tensor& t : inputs) session.feed(t.name(), pattern(session, t));
    session.run("f");
    std::vector<Whole> found;
    for (const Tensor& t : wanted) found.push_back(whole_of(session.fetch(t.name())));
    return found;
  }
};

}  // namespace

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
    Norm norm(c.type, c.is_layer_norm, c.batch, c.length, c.channels);
    std::string text;
    const std::vector<Whole> found = norm.run("cuda", c.mesh, c.layout, &text),
                             expected = norm.run("cpu", "a:1", "");
    CHECK((text.find("column_sums=") != std::string::npos) == c.sums);
    for (size_t i = 0; i < norm.wanted.size(); ++i) {
      INFO(norm.wanted[i].name());
      CHECK(relative_error(found[i], expected[i], 1e-3) <
            (is_narrow(norm.wanted[i].dtype()) ? 0x1p-7 : 2e-5));
    }
  }
  CHECK(gpu.take_misuses().empty());
}

}  // namespace tessera::test
