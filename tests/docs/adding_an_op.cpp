// The ops that docs/how-to/adding-an-op.md adds to the library, built from the page's text: their
// rows of op_cases have the values of the reference, gradients that agree with differences, the
// same under every layout, and the same on an emulated GPU, by a kernel of its own.
#include <cstdio>
#include <string>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "tessera/testing.h"

namespace tessera::test {

namespace {

const OpCase& row_of(const std::vector<OpCase>& rows, const std::string& op) {
  for (const OpCase& row : rows) {
    if (row.meanings.contains(op)) return row;
  }
  fail(ErrorKind::internal, "the page has no test case of {}", op);
}

/// The row as a user's test of an op: values are the reference's.
testing::OpTest test_of(const OpCase& row) {
  testing::OpTest test;
  test.name = row.name;
  for (const CaseInput& in : row.in)
    test.in.push_back(
        {in.name, in.shape, in.lo, in.hi, in.dtype, in.whole_numbers, in.differentiable});
  test.build = row.build;
  test.expect = [&row](const testing::OpTest::Values& values) {
    const BuiltCase built(row, DType::float64);
    BuiltCase::Round round = built.rounds[0];
    for (size_t i = 0; i < row.in.size(); ++i) round.feeds.at(row.in[i].name).data = values[i];
    Reference reference = built.reference(round);
    testing::OpTest::Values results;
    for (const Tensor& result : built.results()) results.push_back(reference.value(result).data);
    return results;
  };
  return test;
}

std::string check_gpu(const OpCase& row, DType type, double tolerance) {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  const BuiltCase built(row, type);
  const auto expected = built.run(clusters.of(1), Mesh::parse("x:1"), "");
  const auto session = built.compile(clusters.of(1), Mesh::parse("x:1"), "", "cuda");
  built.feed(*session, built.rounds[0]);
  session->run("all");
  std::string errors;
  for (const std::string& fallback : session->fallbacks()) errors += fallback + "\n";
  const std::vector<Tensor> tensors = built.fetched();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const double error =
        relative_error(whole_of(session->fetch(tensors[i].name())), expected[0][i], 1e-3);
    if (!(error <= tolerance))
      errors += fmt::format("'{}' is off by {:.3g} in {} on a GPU\n", tensors[i].name(), error,
                            to_string(type));
  }
  return errors;
}

/// True if all is well.
bool check_row(const OpCase& row) {
  const testing::OpReport report = testing::test_op(test_of(row));
  const std::string errors =
      check_gpu(row, DType::float32, 2e-5) + check_gpu(row, DType::float64, 1e-11);
  std::printf("%s\n%s", report.to_string().c_str(), errors.c_str());
  return report.ok() && errors.empty();
}

}  // namespace

}  // namespace tessera::test

int main() {
  using namespace tessera::test;
  const std::vector<OpCase> pointwise = pointwise_cases(), structured = ordered_cases();
  const bool softsign = check_row(row_of(pointwise, "softsign"));
  const bool decayed_sum = check_row(row_of(structured, "decayed_sum"));
  return softsign && decayed_sum ? 0 : 1;
}
