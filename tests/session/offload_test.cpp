// Optimizer state in memory of the host: who has it there, what a GPU still needs, no bit changed.
#include <cstring>

#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Run {
  std::string mesh = "data:2", layout = "batch:data", device = "cpu";
  bool offload = true, scan = false;
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Array> stored;
  int64_t persistent = 0, offloaded = 0;
};

struct Job {
  Graph graph;
  nn::Model model;
  CompileOptions options;

  explicit Job(const Run& run) {
    nn::GptOptions size = small_gpt(DType::float32);
    size.scan = run.scan;
    model = nn::gpt(graph, size);
    MinimizeOptions minimizing;
    minimizing.clip = 1;
    minimize(model.loss, constant(graph, 0.01), adam({.weight_decay = 0.1}), minimizing);
    options = {Mesh::parse(run.mesh), Layout::parse(run.layout), {{"train", {model.loss}, true}}};
    options.device = run.device;
    options.offload_state = run.offload;
  }
};

Outcome train(const Run& run) {
  Job job(run);
  Cluster ranks = Cluster::threads(job.options.mesh.size());
  Session session(job.graph, ranks, job.options);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    feed_tokens(session, job.model, step);
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(job.model.loss.name()));
  }
  for (const std::string& name : session.program().stored_names())
    outcome.stored.emplace(name, session.fetch(name));
  outcome.persistent = session.program().persistent_bytes();
  outcome.offloaded = session.program().offloaded_bytes();
  return outcome;
}

bool same_bits(const Array& a, const Array& b) {
  return a.bytes.size() == b.bytes.size() &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

void check_equal(const Outcome& here, const Outcome& there) {
  CHECK(here.losses == there.losses);
  REQUIRE(here.stored.size() == there.stored.size());
  for (const auto& [name, whole] : here.stored) {
    INFO(name);
    CHECK(same_bits(whole, there.stored.at(name)));
  }
}

TEST_CASE("state in memory of the host changes no bit", "[offload]") {
  for (const bool scan : {false, true}) {
    for (const char* layout : {"batch:data", "batch:data;@state d_model,ff:data"}) {
      INFO(layout << " scan " << scan);
      const Outcome without = train({.layout = layout, .offload = false, .scan = scan});
      const Outcome with = train({.layout = layout, .scan = scan});
      check_equal(without, with);
      CHECK(without.offloaded == 0);
      CHECK(with.offloaded > 0);
      CHECK(with.persistent + with.offloaded == without.persistent);
    }
  }
}

TEST_CASE("all state but single numbers goes to the host, and nothing else", "[offload]") {
  Job with({}), without({.offload = false});
  const MemoryReport there = explain(with.graph, with.options).memory;
  const MemoryReport here = explain(without.graph, without.options).memory;
  CHECK(here.offloaded == 0);
  CHECK(there.offloaded > 0.99 * static_cast<double>(here.state));
  CHECK(there.state + there.offloaded == here.state);
  CHECK(there.params == here.params);
  CHECK(there.inputs <= here.inputs);        // what state was aligned with counts there
  CHECK(there.transient == here.transient);  // a step reads and writes it in place
  CHECK(to_string(explain(with.graph, with.options)).find("in host memory") != std::string::npos);
}

TEST_CASE("an emulated GPU updates state in the host's memory", "[offload][cuda]") {
  const Outcome cpu = train({.mesh = "data:1", .layout = ""});
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  const Outcome on_gpu = train({.mesh = "data:1", .layout = "", .device = "cuda"});
  CHECK(on_gpu.offloaded == cpu.offloaded);
  for (size_t s = 0; s < cpu.losses.size(); ++s)
    CHECK(on_gpu.losses[s] == Approx(cpu.losses[s]).epsilon(1e-5));
  const Outcome whole = train({.mesh = "data:1", .layout = "", .device = "cuda", .offload = false});
  check_equal(on_gpu, whole);
  CHECK(on_gpu.persistent + on_gpu.offloaded == whole.persistent);
  CHECK(gpu.graph_launches > 0);  // the update is part of what is replayed
}

TEST_CASE("a GPU that gets no memory of the host says so", "[offload][cuda]") {
  CudaEmulator gpu;
  gpu.host_memory = 4096;
  const WithEmulator here(gpu);
  expect_error(ErrorKind::device,
               {"rank 0 needs", "of the host's memory for optimizer state", "out of memory",
                "train.offload=none", "--zero 1"},
               [] { train({.mesh = "data:1", .layout = "", .device = "cuda"}); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
