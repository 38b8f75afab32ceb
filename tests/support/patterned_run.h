// Functions of a model run on a device, with inputs that follow a pattern.
#pragma once

#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "ops/op_cases_run.h"
#include "tessera/tessera.h"

namespace tessera::test {

/// Numbers from -3 to 9.25 that 16 bits hold, of float32 or bfloat16; int32 from 0 to 96.
inline Array pattern(const Session& session, const Tensor& t) {
  const Array shape = session.shape_of(t.name());
  Array values(t.dtype(), shape.dims, shape.sizes);
  for (int64_t i = 0; i < values.elements(); ++i) {
    const auto x = static_cast<float>(i * 37 % 101) / 16 - 3 + static_cast<float>(i % 7);
    if (t.dtype() == DType::int32) {
      values.data<int32_t>()[i] = static_cast<int32_t>(i * 37 % 97);
    } else if (t.dtype() == DType::float32) {
      values.data<float>()[i] = x;
    } else {
      values.data<uint16_t>()[i] = to_bfloat16(x).bits;
    }
  }
  return values;
}

/// The whole values of `wanted`, and the Program's text.
struct PatternedRun {
  std::vector<Whole> values;
  std::string text;
};
inline PatternedRun run_patterned(const Graph& graph, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& wanted, const std::string& device,
                                  const std::string& mesh, const std::string& layout) {
  Clusters clusters;
  CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"f", wanted, false}}};
  options.device = device;
  Session session(graph, clusters.of(options.mesh.size()), options);
  PatternedRun run;
  run.text = session.program().text();
  for (const Tensor& t : inputs) session.feed(t.name(), pattern(session, t));
  session.run("f");
  for (const Tensor& t : wanted) run.values.push_back(whole_of(session.fetch(t.name())));
  return run;
}

}  // namespace tessera::test
