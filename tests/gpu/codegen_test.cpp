// Generated CUDA source as text.
#include <filesystem>
#include <fstream>

#include "kernels/cuda/generate.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

Instr instr(PointwiseOp code, DType t, int a = -1, int b = -1, int slot = -1) {
  Instr i;
  i.code = code;
  i.dtype = t;
  i.a = a;
  i.b = b;
  i.slot = slot;
  return i;
}

/// The text for dense operands of these sizes and dtypes.
std::string text_of(const PointwiseProgram& program, const std::vector<int64_t>& sizes,
                    const std::vector<DType>& in, const std::vector<DType>& out) {
  Step step;
  step.kernel = KernelKind::pointwise;
  step.pointwise = program;
  KernelArgs args;
  args.step = &step;
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * sizes[d];
  for (DType t : in) args.in.push_back({nullptr, t, sizes, strides});
  for (DType t : out) args.out.push_back({nullptr, t, sizes, strides});
  return cuda::generate_pointwise(args).text;
}

void require_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/" + name;
  std::ifstream file(path);
  const std::string golden((std::istreambuf_iterator<char>(file)), {});
  if (golden == text) return;
  const std::string seen = std::filesystem::temp_directory_path() / name;
  std::ofstream(seen) << text;
  FAIL_CHECK(path << " is not what is generated now; that is in " << seen);
}

TEST_CASE("generated text: a pointwise step with two outputs and mixed types", "[cuda]") {
  PointwiseProgram p;
  p.code = {instr(PointwiseOp::load, DType::float32, -1, -1, 0),
            instr(PointwiseOp::load, DType::bfloat16, -1, -1, 1),
            instr(PointwiseOp::cast, DType::float32, 1),
            instr(PointwiseOp::mul, DType::float32, 0, 2),
            instr(PointwiseOp::exp, DType::float32, 3),
            instr(PointwiseOp::cast, DType::bfloat16, 4)};
  p.outputs = {4, 5};
  require_golden("cuda_pointwise.txt", text_of(p, {6, 1000}, {DType::float32, DType::bfloat16},
                                               {DType::float32, DType::bfloat16}));
}

TEST_CASE("generated text: float16 is rounded like bfloat16, by its own function", "[cuda]") {
  const auto text = [](DType type) {
    Instr half = instr(PointwiseOp::constant, type, -1);
    half.imm = 0.333251953125;  // of 10 bits
    PointwiseProgram p;
    p.code = {instr(PointwiseOp::load, type, -1, -1, 0), half, instr(PointwiseOp::mul, type, 0, 1),
              instr(PointwiseOp::cast, DType::float32, 2)};
    p.outputs = {2, 3};
    return text_of(p, {6, 1000}, {type}, {type, DType::float32});
  };
  std::string narrow = text(DType::float16);
  CHECK(narrow.find("0x3eaaa000u") != std::string::npos);
  CHECK(narrow.find("round_to_float16(formula::Mul::apply(r0, r1))") != std::string::npos);
  const auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at = 0; (at = narrow.find(from, at)) != std::string::npos; at += to.size())
      narrow.replace(at, from.size(), to);
  };
  replace("Float16", "BFloat16");
  replace("round_to_float16", "round_to_bfloat16");
  replace("0x3eaaa000u", "0x3eab0000u");
  CHECK(narrow == text(DType::bfloat16));
}

TEST_CASE("generated text: softmax along rows", "[cuda]") {
  PointwiseProgram p;
  p.code = {instr(PointwiseOp::load, DType::float32, -1, -1, 0),
            instr(PointwiseOp::row_max, DType::float32, 0, -1, 1),
            instr(PointwiseOp::sub, DType::float32, 0, 1),
            instr(PointwiseOp::exp, DType::float32, 2),
            instr(PointwiseOp::row_sum, DType::float32, 3, -1, 1),
            instr(PointwiseOp::div, DType::float32, 3, 4)};
  p.outputs = {5};
  require_golden("cuda_softmax.txt", text_of(p, {300, 1000}, {DType::float32}, {DType::float32}));
}

TEST_CASE("generated text: offsets of a large reduction are 64 bits wide", "[cuda]") {
  // Each of the kept and the reduced dims spans less than 2^31 elements, both together more.
  const auto text = [](int64_t batch) {
    Step step;
    step.kernel = KernelKind::reduce;
    KernelArgs args;
    args.step = &step;
    const int64_t row = int64_t{4096} * 50304;
    args.in = {{nullptr, DType::float32, {batch, row}, {row, 1}}};
    args.out = {{nullptr, DType::float32, {1, row}, {0, 1}}};
    return cuda::generate_reduce(args).at(0).text;
  };
  CHECK(text(10).find("const int p0") != std::string::npos);
  CHECK(text(11).find("const long long p0") != std::string::npos);
  CHECK(text(11).find("const int p0") == std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
