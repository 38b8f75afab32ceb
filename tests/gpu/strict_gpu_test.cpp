// Strict numerics on a GPU: the bits of the CPU's kernels, on one rank and under any layout.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/inspect.h"
#include "tessera/nn.h"
#include "tessera/nn_transformer.h"
#include "tessera/ops.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kChunks = 4;

/// A row of op_cases, compiled for the GPU under a layout.
struct StrictRow {
  std::unique_ptr<BuiltCase> built;
  MeshLayout at;
  std::unique_ptr<Session> session;
};

/// What differs from one rank of the CPU.
std::string errors_of(const StrictRow& row, Cluster& one) {
  std::string errors;
  const auto cpu = row.built->compile(one, Mesh::parse("x:1"), "", "cpu", kChunks);
  for (size_t r = 0; r < row.built->rounds.size(); ++r) {
    for (Session* session : {cpu.get(), row.session.get()}) {
      row.built->feed(*session, row.built->rounds[r]);
      session->run("all");
    }
    for (const Tensor& t : row.built->fetched()) {
      const Array a = cpu->fetch(t.name()), b = row.session->fetch(t.name());
      if (same_bits(a, b)) continue;
      errors += fmt::format("\n{} on mesh '{}' layout '{}' run {}: '{}' has other bits",
                            row.built->row().name, row.at.mesh, row.at.layout, r + 1, t.name());
      for (int64_t i = 0; i < a.elements(); ++i)
        if (std::bit_cast<uint64_t>(a.at(i)) != std::bit_cast<uint64_t>(b.at(i))) {
          errors += fmt::format(": {} is {}, not {}", i, b.at(i), a.at(i));
          break;
        }
    }
  }
  return errors;
}

/// Every `step`th row of op_cases, on one rank and under a layout of several.
std::string errors_of_ops(DType dtype, size_t first, size_t step) {
  Clusters clusters;
  std::mt19937_64 random(seed_of_run(5));
  std::vector<StrictRow> rows;
  std::string errors;
  for (size_t k = first; k < op_cases().size(); k += step) {
    for (const std::string mesh : {"x:1", random() % 2 == 0 ? "x:2" : "x:3"}) {
      StrictRow row;
      try {
        row.built = std::make_unique<BuiltCase>(op_cases()[k], dtype);
        const auto layouts =
            layouts_of(dims_in(row.built->graph(), op_cases()[k].splits), mesh, random);
        row.at = mesh == "x:1" ? MeshLayout{mesh, ""} : layouts[random() % layouts.size()];
        const Mesh m = Mesh::parse(mesh);
        row.session = row.built->compile(clusters.of(m.size()), m, row.at.layout, "cuda", kChunks);
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::usage)
          errors += fmt::format("\n{}: {}", op_cases()[k].name, e.what());
        continue;  // a row may not have the type, and its rules may claim an axis twice
      }
      rows.push_back(std::move(row));
    }
  }
  for (const StrictRow& row : rows) {
    try {
      errors += errors_of(row, clusters.of(1));
    } catch (const Error& e) {
      errors += fmt::format("\n{} {} '{}': {}", row.built->row().name, row.at.mesh, row.at.layout,
                            e.what());
      return errors;  // its ranks have failed
    }
  }
  return errors;
}

std::string errors_of_sample(DType dtype, size_t step, KernelsAs as) {
  CudaEmulator gpu;
  gpu.kernels_as = as;
  const WithEmulator here(gpu);
  std::string errors = errors_of_ops(dtype, seed_of_run(5) % step, step);
  for (const std::string& misuse : gpu.take_misuses()) errors += "\n" + misuse;
  return errors;
}

/// TESSERA_STRICT_STEP, or `step`.
size_t step_of_run(size_t step) {
  const char* wanted = std::getenv("TESSERA_STRICT_STEP");
  return wanted ? static_cast<size_t>(std::atoi(wanted)) : step;
}

TEST_CASE("ops have the CPU's bits on a GPU under strict numerics", "[cuda][strict]") {
  CHECK(errors_of_sample(DType::float32, step_of_run(80), KernelsAs::cpp) == "");
}

TEST_CASE("ops have the CPU's bits as PTX under strict numerics", "[cuda][ptx][strict]") {
  if (!has_ptx()) return;
  for (const DType dtype : {DType::float32, DType::bfloat16})
    CHECK(errors_of_sample(dtype, step_of_run(80), KernelsAs::ptx) == "");
}

/// TESSERA_PART as in real_gpu_test.cpp.
TEST_CASE("ops have the CPU's bits on the GPU of this machine under strict numerics",
          "[slow][gpu]") {
  int part = 0, parts = 1;
  if (const char* given = std::getenv("TESSERA_PART"))
    REQUIRE(std::sscanf(given, "%d/%d", &part, &parts) == 2);
  for (const DType dtype : {DType::float32, DType::bfloat16})
    CHECK(errors_of_ops(dtype, static_cast<size_t>(part), static_cast<size_t>(parts)) == "");
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (const Dim& d : shape) sizes.push_back(d.size);
  return sizes;
}

/// The sums of a graph of random sizes: of a contraction with several batch, row, column and summed
/// dims, whose operands have them in any order; of a reduction; of a gather's gradient; of a
/// grouped matmul and its gradients.
struct Sums {
  explicit Sums(std::mt19937_64& random) {
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % uint64_t(n)); };
    const auto side = [&] { return int64_t{1} << below(7) | below(7); };
    constexpr DType kTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
    type = kTypes[below(4)];
    chunks = int64_t{2} << below(4);
    const Dim batch("batch", 1 + below(3)), m("m", side()), n("n", side()), j("j", 1 + below(9)),
        k("k", 1 + below(90)), rows("rows", 1 + below(40));
    const auto input = [&](const std::string& name, std::vector<Dim> dims) {
      std::shuffle(dims.begin(), dims.end(), random);
      in.push_back(g.input(name, Shape(dims), type));
      return in.back();
    };
    const Tensor a = input("a", {batch, m, j, k}), b = input("b", {batch, n, j, k}),
                 c = einsum({a, b}, {batch, m, n}).named("c");
    wanted = {c, reduce_sum(a, {"j", "k"}).named("over_last"),
              reduce_sum(a, {"batch", "m"}).named("over_first"), sum_all(b).named("over_all")};
    at = g.input("at", {j, k}, DType::int32);
    const Tensor table = input("table", {rows, m}), weights = input("weights", {rows, m, n});
    wanted.push_back(
        gradients(sum_all(gather(table, at, "rows") * reduce_sum(a, {"batch"})), {table})[0].named(
            "scattered"));
    const Tensor y =
        grouped_dot(reduce_sum(a, {"batch"}), weights, at, "rows", {j, k, n}).named("y");
    wanted.push_back(y);
    for (const Tensor& t : gradients(sum_all(y * reduce_sum(b, {"batch"})), {weights}))
      wanted.push_back(t.named("of_weights"));
    limit = rows.size;
  }

  std::vector<Array> run(Cluster& ranks, const std::string& mesh, const std::string& layout,
                         const std::string& device, int64_t strict_chunks) {
    CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"all", wanted, false}}};
    options.device = device;
    options.strict_chunks = strict_chunks;
    Session session(g, ranks, options);
    std::mt19937_64 numbers(1);
    for (const Tensor& t : in) {
      Whole whole(t.shape().names(), sizes_of(t.shape()));
      for (double& x : whole.data)
        x = std::ldexp(static_cast<double>(numbers() % 2001) - 1000,
                       -static_cast<int>(numbers() % 12));
      session.feed(t.name(), array_of(whole, t.dtype()));
    }
    Whole indices(at.shape().names(), sizes_of(at.shape()));
    for (double& x : indices.data) x = static_cast<double>(numbers() % uint64_t(limit));
    session.feed("at", array_of(indices, DType::int32));
    session.run("all");
    std::vector<Array> values;
    for (const Tensor& t : wanted) values.push_back(session.fetch(t.name()));
    return values;
  }

  Graph g;
  DType type = DType::float32;
  int64_t chunks = 2, limit = 1;
  std::vector<Tensor> in, wanted;
  Tensor at;
};

/// Draws sums and compares the GPU's with the CPU's. Returns what differs; counts those whose bits
/// depend on the number of chunks.
std::string errors_of_sums(int count, KernelsAs as, int& ordered) {
  CudaEmulator gpu;
  gpu.kernels_as = as;
  const WithEmulator here(gpu);
  Clusters clusters;
  std::mt19937_64 random(seed_of_run(9));
  std::string errors;
  for (int i = 0; i < count; ++i) {
    Sums sums(random);
    const auto cpu = sums.run(clusters.of(1), "x:1", "", "cpu", sums.chunks),
               other = sums.run(clusters.of(1), "x:1", "", "cpu", 1);
    const char* layouts[][2] = {{"x:1", ""}, {"x:2", "k:x"}, {"x:3", "j:x"}, {"x:2", "m:x"}};
    const auto& [mesh, layout] = layouts[random() % 4];
    const auto found =
        sums.run(clusters.of(Mesh::parse(mesh).size()), mesh, layout, "cuda", sums.chunks);
    for (size_t t = 0; t < cpu.size(); ++t) {
      ordered += same_bits(cpu[t], other[t]) ? 0 : 1;
      if (!same_bits(cpu[t], found[t]))
        errors += fmt::format("\n{}: '{}' of {} {}, {} chunks, mesh '{}' layout '{}'", i,
                              sums.wanted[t].name(), to_string(sums.type),
                              sums.wanted[t].shape().to_string(), sums.chunks, mesh, layout);
    }
  }
  for (const std::string& misuse : gpu.take_misuses()) errors += "\n" + misuse;
  return errors;
}

TEST_CASE("sums of random sizes and orders have the CPU's bits on a GPU", "[cuda][strict]") {
  int ordered = 0;
  CHECK(errors_of_sums(1, KernelsAs::cpp, ordered) == "");
  if (has_ptx()) CHECK(errors_of_sums(4, KernelsAs::ptx, ordered) == "");
  CHECK(ordered > 5);
}

TEST_CASE("many results are summed by a thread each, few by one for each leaf", "[cuda][strict]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Tensor x = g.input("x", {{"many", 33000}, {"k", 5}}, DType::float32);
  const std::vector<Tensor> wanted = {reduce_sum(x, {"k"}).named("by_row"),
                                      sum_all(x).named("all")};
  std::vector<Array> values;
  for (const char* device : {"cpu", "cuda"}) {
    CompileOptions options{Mesh::parse("x:1"), {}, {{"f", wanted, false}}};
    options.device = device;
    options.strict_chunks = kChunks;
    Session session(g, clusters.of(1), options);
    Whole whole({"many", "k"}, {33000, 5});
    for (size_t i = 0; i < whole.data.size(); ++i) whole.data[i] = std::sin(static_cast<double>(i));
    session.feed("x", array_of(whole, DType::float32));
    session.run("f");
    for (const Tensor& t : wanted) values.push_back(session.fetch(t.name()));
  }
  CHECK(same_bits(values[0], values[2]));
  CHECK(same_bits(values[1], values[3]));
}

using Build = nn::Model (*)(Graph&);

nn::Model of_gpt(Graph& g) {
  nn::GptOptions o = small_gpt(DType::float32);
  o.dropout = 0.1;
  return nn::gpt(g, o);
}
nn::Model of_experts(Graph& g) {
  nn::TransformerOptions o;
  o.layers = 1;
  o.d_model = 12;
  o.length = 6;
  o.vocab = 17;
  o.batch = 10;
  o.heads.count = 3;
  o.heads.d_head = 4;
  o.mlp.ff = 14;
  o.mlp.experts = 4;
  o.dtype = DType::bfloat16;
  return nn::transformer(g, o);
}
nn::Model of_cnn(Graph& g) {
  nn::CnnOptions o;
  o.batch = 6;
  o.rows = o.cols = 8;
  o.channels1 = 2;
  o.channels2 = 3;
  o.hidden = 5;
  return nn::cnn(g, o);
}

void feed_model(Session& session, const nn::Model& model, int64_t step) {
  for (const Tensor& input : model.inputs) {
    Whole whole(input.shape().names(), sizes_of(input.shape()));
    for (size_t i = 0; i < whole.data.size(); ++i) {
      const auto at = static_cast<double>(i) * static_cast<double>(i + 3) + 7.0 * step;
      whole.data[i] = is_floating(input.dtype()) ? std::sin(at) : std::fmod(at, 10);
    }
    session.feed(input.name(), array_of(whole, input.dtype()));
  }
}

std::string hash_of(Build build, Cluster& ranks, const std::string& mesh, const std::string& layout,
                    const std::string& device) {
  Graph g;
  MinimizeOptions options;
  options.clip = 0.5;
  const nn::Model model = build(g);
  const Minimized step = minimize(model.to_minimize(), constant(g, 0.01), adam(), options);
  CompileOptions compile{Mesh::parse(mesh), Layout::parse(layout), {{"train", {step.loss}, true}}};
  compile.device = device;
  compile.strict_chunks = 16;
  Session session(g, ranks, compile);
  for (int64_t i = 0; i < 2; ++i) {
    feed_model(session, model, i);
    session.run("train");
  }
  return state_hash(session).all;
}

TEST_CASE("a step has one hash on CPUs and GPUs and under any layout", "[cuda][strict]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  const std::pair<Build, std::vector<std::pair<const char*, const char*>>> kModels[] = {
      {of_gpt, {{"a:3", "batch:a"}, {"a:2;b:2", "batch:a;heads,ff,vocab:b;@params d_model:a"}}},
      {of_experts, {{"a:1", ""}, {"a:2", "batch,experts:a"}}},
      {of_cnn, {{"a:1", ""}, {"a:2", "rows:a"}}}};
  for (const auto& [build, layouts] : kModels) {
    const std::string expected = hash_of(build, clusters.of(1), "a:1", "", "cpu");
    for (const auto& [mesh, layout] : layouts) {
      INFO(mesh << " " << layout);
      CHECK(hash_of(build, clusters.of(Mesh::parse(mesh).size()), mesh, layout, "cuda") ==
            expected);
    }
  }
  CHECK(gpu.matmuls == 0);
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("strict: a split table keeps the sign of its zeros on a GPU", "[cuda][strict]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Graph g;
    const Dim rows("rows", 4), width("width", 3), n("n", 4);
    const Tensor table = g.parameter("table", {rows, width}, nn::zeros(), dtype),
                 at = g.input("at", {n}, DType::int32), y = gather(table, at, "rows").named("y");
    CompileOptions options{Mesh::parse("x:2"), Layout::parse("rows:x"), {{"run", {y}, false}}};
    options.device = "cuda";
    options.strict_chunks = kChunks;
    Session session(g, clusters.of(2), options);
    session.assign("table", array_of(Whole({"rows", "width"}, {4, 3}, -0.0), dtype));
    Whole indices({"n"}, {4});
    indices.data = {3, 0, 2, 1};
    session.feed("at", array_of(indices, DType::int32));
    session.run("run");
    const Array found = session.fetch("y");
    for (int64_t i = 0; i < found.elements(); ++i) CHECK(std::signbit(found.at(i)));
  }
}

TEST_CASE("strict numerics on a GPU refuse tf32", "[cuda][strict]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Tensor x = g.input("x", {{"a", 4}}, DType::float32);
  CompileOptions options{Mesh::parse("x:1"), {}, {{"run", {sum_all(x)}, false}}};
  options.device = "cuda";
  options.strict_chunks = kChunks;
  options.tf32 = true;
  expect_error(ErrorKind::usage,
               {"strict numerics", "not in tf32", "leave train.matmul_precision=tf32 out"},
               [&] { const Session session(g, clusters.of(1), options); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
