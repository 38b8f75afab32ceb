// Pointwise steps with the same instructions on different tensors become one.
#include "lower/passes/group_tensors.h"

#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/apart.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

View line(int buffer, int64_t size) { return View{buffer, DType::float32, {size}, {1}, 0, {}}; }

Step unary(PointwiseOp code, const View& in, const View& out) {
  Step step;
  step.kernel = KernelKind::pointwise;
  step.in = {in};
  step.out = {out};
  step.flops = out.elements();
  Instr load, instr;
  load.slot = 0;
  load.code = PointwiseOp::load;
  instr.code = code;
  instr.a = 0;
  step.pointwise = {{load, instr}, {1}};
  return step;
}

/// A program whose first `stored` buffers are persistent.
Program program_of(std::vector<Step> steps, int buffers, int stored, bool has_room = true) {
  Program program;
  for (int b = 0; b < buffers; ++b)
    program.buffers.push_back({"b" + std::to_string(b),
                               b < stored ? ArenaKind::persistent : ArenaKind::transient, 4096, 0});
  if (has_room) {  // a step whose memory groups can use
    for (int b = 0; b < 2; ++b)
      program.buffers.push_back({"large", ArenaKind::transient, 1 << 20, 0});
    steps.insert(steps.begin(),
                 unary(PointwiseOp::abs, line(buffers, 1 << 18), line(buffers + 1, 1 << 18)));
  }
  const int count = static_cast<int>(steps.size());
  program.functions.push_back({"f", std::move(steps), {}, {}, false, count});
  return program;
}

/// "tensors of each step": "3 1".
std::string grouped(std::vector<Step> steps, int buffers, int stored = 0, bool has_room = true) {
  Program program = program_of(std::move(steps), buffers, stored, has_room);
  group_tensors(program);
  std::string text;
  for (const Step& step : program.functions[0].steps) {
    if (step.pointwise.code[1].code == PointwiseOp::abs) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " ",
                        step.find<TensorGroup>() ? step.as<TensorGroup>().tensors : 1);
  }
  return text;
}

int count_of(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++count;
  return count;
}

/// Parameters of odd sizes, of one element and of many, read in 16 bits, under AdamW.
struct Sum {
  Graph graph;
  Tensor x, loss;
  Minimized result;

  Sum() {
    const Dim n("n", 6);
    x = graph.input("x", {n}, DType::float32);
    Tensor y = cast(x, DType::bfloat16);
    for (const int64_t size : {12, 1, 7, 1024, 5, 12, 2052}) {
      const std::string name = fmt::format("w{}", graph.parameters().size());
      const Tensor w = graph.parameter(name, {n, Dim(name, size)}, nn::scaled_normal({"n"}));
      y = y * reduce_mean(square(cast(w, DType::bfloat16) + 1.0), name);
    }
    loss = mean_all(cast(y, DType::float32));
    AdamOptions adamw;
    adamw.weight_decay = 0.1;
    result = minimize(loss, 0.01, adam(adamw), {1.0});
  }

  std::vector<double> train(const std::string& device, const std::string& mesh,
                            const std::string& layout, std::string* text = nullptr) {
    Clusters clusters;
    CompileOptions options{
        Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss, result.gradient_norm}, true}}};
    options.device = device;
    Session session(graph, clusters.of(options.mesh.size()), options);
    if (text != nullptr) *text = session.program().text();
    Array values(DType::float32, {"n"}, {6});
    for (int64_t i = 0; i < 6; ++i) values.data<float>()[i] = 0.25F * static_cast<float>(i + 1);
    std::vector<double> found;
    for (int step = 0; step < 4; ++step) {
      session.feed("x", values);
      session.run("train");
      found.push_back(session.fetch(loss.name()).at(0));
      found.push_back(session.fetch(result.gradient_norm.name()).at(0));
    }
    return found;
  }
};

TEST_CASE("steps with the same instructions on different tensors become a group") {
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                 unary(PointwiseOp::exp, line(2, 16), line(3, 16)),
                 unary(PointwiseOp::exp, line(4, 7), line(5, 7)),
                 unary(PointwiseOp::exp, line(6, 8), line(7, 8)),
                 unary(PointwiseOp::neg, line(8, 8), line(9, 8))},
                10) == "1 3 1");  // 7 elements allow no vectors
  // A step stays between what it reads and what reads it.
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                 unary(PointwiseOp::exp, line(1, 8), line(2, 8))},
                3) == "1 1");
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                 unary(PointwiseOp::neg, line(1, 8), line(2, 8)),
                 unary(PointwiseOp::exp, line(2, 8), line(3, 8))},
                4) == "1 1 1");
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                 unary(PointwiseOp::neg, line(4, 8), line(0, 8)),
                 unary(PointwiseOp::exp, line(2, 8), line(3, 8))},
                5) == "1 1 1");
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                 unary(PointwiseOp::neg, line(4, 8), line(5, 8)),
                 unary(PointwiseOp::exp, line(2, 8), line(3, 8))},
                6) == "1 2");
}

TEST_CASE("no group is made that needs more memory") {
  const auto steps = [](int stored) {
    std::vector<Step> steps;
    for (int k = 0; k < stored; ++k) {
      steps.push_back(unary(PointwiseOp::exp, line(k, 1024), line(stored + k, 1024)));
      steps.push_back(unary(PointwiseOp::neg, line(stored + k, 1024), line(stored + k, 1024)));
    }
    return steps;
  };
  CHECK(grouped(steps(3), 6, 3, false) == "1 1 1 1 1 1");
  // Stored tensors can be read earlier.
  CHECK(grouped({unary(PointwiseOp::exp, line(0, 8), line(2, 8)),
                 unary(PointwiseOp::neg, line(2, 8), line(4, 8)),
                 unary(PointwiseOp::exp, line(1, 8), line(3, 8)),
                 unary(PointwiseOp::neg, line(3, 8), line(2, 8))},
                5, 2) == "2 1 1");
}

TEST_CASE("a group has the instructions' operands in order, and what they cost") {
  std::vector<Step> steps = {unary(PointwiseOp::exp, line(0, 8), line(1, 8)),
                             unary(PointwiseOp::exp, line(2, 16), line(3, 16))};
  for (Step& step : steps) {
    View factor = line(4, step.out[0].sizes[0]);
    factor.strides = {0};
    step.in.push_back(factor);
    Instr load = step.pointwise.code[0], product;
    load.slot = 1;
    product.code = PointwiseOp::mul;
    product.a = 1, product.b = 2;
    step.pointwise = {{step.pointwise.code[0], step.pointwise.code[1], load, product}, {3}};
    step.origin.name = fmt::format("model.w{}.exp", step.out[0].buffer);
  }
  Program program = program_of(steps, 5, 0);
  group_tensors(program);
  const std::string text = to_string(program);
  INFO(text);
  CHECK(text.find("b1:float32[8]/[1], b3:float32[16]/[1] = pointwise(b4:float32[8]/[0], "
                  "b0:float32[8]/[1], b2:float32[16]/[1]) {r0:float32=load(#1)") != text.npos);
  CHECK(program.functions[0].steps[1].flops == 24);
  CHECK(program.functions[0].steps[1].origin.name == "model.*");
}

TEST_CASE("an optimizer's updates and the casts of weights are one launch each on a GPU",
          "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Sum sum;
  const std::vector<double> expected = sum.train("cpu", "a:1", "");
  for (const auto& [mesh, layout] :
       {std::pair("a:1", ""), std::pair("a:2", "n:a"), std::pair("a:4", "n:a"),
        std::pair("a:2", "w3,w6:a; @state n:a"), std::pair("a:3", "@params n:a")}) {
    std::string text;
    const std::vector<double> found = sum.train("cuda", mesh, layout, &text);
    INFO(mesh << " " << layout << "\n" << text);
    // 6 rows over 4 ranks are padded, and an update masks its padding by itself.
    CHECK(count_of(text, " tensors=") >= (std::string(mesh) == "a:4" ? 0 : 2));
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(found[i] == Approx(expected[i]).epsilon(0.02));
  }
  CHECK(gpu.take_misuses().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
