// Reductions on a GPU of more elements than its threads for one result, and the additions of many
// updates to one row.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gpu/emulator.h"
#include "support/apart.h"
#include "support/catch.h"
#include "support/patterned_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Whole numbers from -4 to 4: their sums are exact in any order.
Tensor whole_numbers(Graph& g, const Shape& shape) {
  return floor(random_uniform(g, shape, -4, 5, DType::float32));
}

std::vector<std::vector<double>> values_of(const std::string& device,
                                           const std::vector<Tensor>& wanted, Graph& g) {
  Clusters clusters;
  CompileOptions options{Mesh::parse("x:1"), {}, {{"f", wanted, false}}};
  options.device = device;
  Session session(g, clusters.of(1), options);
  session.run("f");
  std::vector<std::vector<double>> values;
  for (const Tensor& t : wanted) values.push_back(whole_of(session.fetch(t.name())).data);
  return values;
}

int count_with(const std::vector<std::string>& texts, const std::string& part) {
  return static_cast<int>(std::count_if(texts.begin(), texts.end(), [&](const std::string& text) {
    return text.find(part) != std::string::npos;
  }));
}

TEST_CASE("few results of many elements are reduced in parts", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Graph g;
  const Dim rows("rows", 1500), columns("columns", 70), few("few", 3), other("other", 5),
      line("line", 20011);
  std::vector<Tensor> wanted;
  for (const DType t : {DType::float32, DType::bfloat16, DType::int32}) {
    const Tensor table = cast(whole_numbers(g, {rows, columns}), t),
                 lines = cast(whole_numbers(g, {few, line}), t),
                 cube = cast(whole_numbers(g, {few, rows, other}), t);
    for (const Tensor& sum :
         {reduce_sum(table, rows), reduce_max(table, rows), sum_all(table), reduce_sum(lines, line),
          reduce_min(lines, line), reduce_sum(cube, rows), reduce_sum(cube, {"few", "other"}),
          reduce_sum(cube, {"few", "rows"})})
      wanted.push_back(cast(sum, DType::float32).named(fmt::format("sum{}", wanted.size())));
  }
  const Tensor line_numbers = whole_numbers(g, {few, line});
  const Tensor is_four = cast(relu(line_numbers - 3.0), DType::bool_);
  wanted.push_back(reduce_any(is_four, line).named("any"));
  wanted.push_back(reduce_all(is_four, line).named("all"));
  const auto expected = values_of("cpu", wanted, g), found = values_of("cuda", wanted, g);
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(wanted[i].name() << ", first value " << found[i].at(0));
    CHECK(found[i] == expected[i]);
  }
  // Two kernels each, which share their memory: every type's table, lines and sums over rows.
  CHECK(count_with(gpu.texts(), "* workspace;") >= 12);
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("NaN is chosen on a GPU, too, and what is computed of it is NaN", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Graph g;
  const Dim rows("rows", 4), line("line", 301);
  std::vector<Tensor> wanted;
  for (const DType t : {DType::float32, DType::float64, DType::bfloat16}) {
    const Tensor numbers = whole_numbers(g, {rows, line}),
                 at = iota(g, line) + iota(g, rows) * 90,  // two in each row, not at one place
        hit = logical_or(equal(at, 270), equal(at, 300));
    const Tensor x = cast(where(hit, std::nan(""), numbers), t);
    const TopK top = top_k(x, "line", Dim("k", 5));
    for (const Tensor& y :
         {argmax(x, "line"), argmin(x, "line"), top.indices, argsort(x, "line"),
          reduce_max(x, "line"), reduce_min(x, "line"), reduce_max(x, "rows"),
          reduce_min(x, "rows"), maximum(x, 0.0), minimum(0.0, x), clip(x, -1, 1), top.values})
      wanted.push_back(cast(y, DType::float32).named(fmt::format("y{}", wanted.size())));
  }
  const auto expected = values_of("cpu", wanted, g), found = values_of("cuda", wanted, g);
  for (size_t i = 0; i < wanted.size(); ++i) {
    INFO(wanted[i].name());
    REQUIRE(found[i].size() == expected[i].size());
    for (size_t j = 0; j < found[i].size(); ++j) {
      INFO("element " << j << ": " << found[i][j] << ", on the CPU " << expected[i][j]);
      CHECK((found[i][j] == expected[i][j] ||
             (std::isnan(found[i][j]) && std::isnan(expected[i][j]))));
    }
  }
  CHECK(expected[0] == std::vector<double>{270, 180, 90, 0});  // the first NaN of each row
  CHECK(expected[1] == expected[0]);
}

TEST_CASE("reductions compute what they alone read", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Graph g;
  const Dim rows("rows", 40), line("line", 5000), columns("columns", 70);
  const Tensor logits = g.input("logits", {rows, line}, DType::float32),
               weights = g.input("weights", {rows, columns}, DType::bfloat16),
               scale = g.input("scale", {columns}, DType::float32);
  const Tensor top = reduce_max(logits, "line");
  const Tensor squares = square(logits);
  std::vector<Tensor> wanted = {
      reduce_sum(exp(logits - top), "line"),                            // rows too long to keep
      sum_all(square(cast(weights, DType::float32))),                   // a norm
      reduce_sum(cast(weights, DType::float32) * scale, "rows"),        // columns
      reduce_max(cast(weights, DType::float32) * scale + 2.0, "rows"),  // its neighbour in a step
      reduce_sum(squares, "rows"),
      reduce_sum(squares, "line"),  // two readers: stored
      reduce_sum(random_uniform(g, {rows, line}, 0, 1, DType::float32), "rows")};
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i].named(fmt::format("sum{}", i));
  const auto run = [&](const char* device, const char* mesh, const char* layout) {
    return run_patterned(g, {logits, weights, scale}, wanted, device, mesh, layout);
  };
  const PatternedRun expected = run("cpu", "a:1", "");
  for (const auto& [mesh, layout] :
       {std::pair("a:1", ""), std::pair("a:2", "rows:a"), std::pair("a:3", "line:a;columns:a")}) {
    const auto& [found, text] = run("cuda", mesh, layout);
    INFO(mesh << " " << layout << "\n" << text);
    for (size_t i = 0; i < wanted.size(); ++i)
      CHECK(relative_error(found[i], expected.values[i], 1e-3) < 1e-5);
    size_t begun = 0;
    for (size_t at = 0; (at = text.find(" = reduce ", at)) != text.npos; ++at) {
      const std::string step = text.substr(at, text.find('\n', at) - at);
      begun += step.find("{r0") != step.npos;
    }
    CHECK(begun >= (mesh == std::string("a:3") ? 2 : 4));  // short rows are kept, padding is masked
  }
  setenv("TESSERA_EPILOGUES", "off", 1);
  const std::string text = run("cuda", "a:1", "").text;
  unsetenv("TESSERA_EPILOGUES");
  CHECK(text.find("reduce sum(logits") == text.npos);
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("many updates of few rows are added in order", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  for (const int64_t width : {1, 7, 2500}) {  // one sum a thread, several, and more than it keeps
    Graph g;
    const Dim vocab("vocab", 11), tokens("tokens", 700), wide("wide", width);
    const Tensor table = whole_numbers(g, {vocab, wide});
    const Tensor ids = cast(floor(random_uniform(g, {tokens}, 0, 9, DType::float32)), DType::int32);
    const Tensor seed = random_normal(g, {tokens, wide}, 0, 1, DType::float32);
    const Tensor picked = gather(table, ids, "vocab");
    const std::vector<Tensor> wanted = {
        gradients(sum_all(picked * seed), {table}).at(0).named("gradient")};
    const auto expected = values_of("cpu", wanted, g), found = values_of("cuda", wanted, g);
    double worst = 0;
    for (size_t i = 0; i < expected[0].size(); ++i)
      worst = std::max(worst, apart(expected[0][i], found[0].at(i)));
    CHECK(worst < 1e-4);
    CHECK(std::any_of(found[0].begin(), found[0].end(), [](double x) { return x != 0; }));
    CHECK(count_with(gpu.texts(), "__ballot_sync") > 0);
  }
  CHECK(gpu.take_misuses().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
