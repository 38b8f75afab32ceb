// What a Trace records of runs on threads and on an emulated GPU, and what it writes.
#include "tessera/trace.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "support/reference.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int kSteps = 3;

/// Records training steps of two thread ranks.
void record(Cluster& cluster, Trace& trace, const std::string& device) {
  Graph g;
  const nn::Model model = nn::gpt(g, small_gpt(DType::float32));
  minimize(model.loss, constant(g, 0.01), adam());
  CompileOptions options{
      Mesh::parse("a:2"), Layout::parse("batch:a"), {{"train", {model.loss}, true}}};
  options.device = device;
  options.trace = &trace;
  Session session(g, cluster, options);
  for (int step = 0; step < kSteps; ++step) {
    feed_tokens(session, model, step);
    session.run("train");
  }
}

/// Spans of one lane follow each other, and a collective begins before the wait that ends it.
void check_lanes(const std::vector<Trace::Event>& events) {
  std::map<int, std::vector<Trace::Event>> compute;
  std::map<std::string, int> attention;
  std::map<int, int> transfers;
  int waits = 0;
  for (const Trace::Event& e : events) {
    CHECK(e.seconds >= 0);
    CHECK(!e.name.empty());
    if (e.name.rfind("wait for ", 0) == 0) ++waits;
    if (e.is_transfer) {
      ++transfers[e.rank];
    } else {
      compute[e.rank].push_back(e);
    }
    if (e.name.find("attention") != std::string::npos) ++attention[e.name];
  }
  REQUIRE(compute.size() == 2);
  CHECK(transfers[0] >= kSteps);
  CHECK(transfers[0] == transfers[1]);
  CHECK(waits == transfers[0] + transfers[1]);
  REQUIRE(!attention.empty());
  CHECK(attention.begin()->second % (2 * kSteps) == 0);
  for (auto& [rank, spans] : compute) {
    for (size_t i = 1; i < spans.size(); ++i)
      CHECK(spans[i].begin >= spans[i - 1].begin + spans[i - 1].seconds - 1e-6);
  }
}

TEST_CASE("a trace has every step of every rank, in lanes", "[trace]") {
  Cluster cluster = Cluster::threads(2);
  Trace trace;
  record(cluster, trace, "cpu");
  check_lanes(trace.events());
}

TEST_CASE("a trace of a GPU is by its events", "[trace][cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Cluster cluster = Cluster::threads(2);
  Trace trace;
  record(cluster, trace, "cuda");
  check_lanes(trace.events());
  CHECK(gpu.graph_launches == 0);
}

TEST_CASE("a trace as a file", "[trace]") {
  Cluster cluster = Cluster::threads(2);
  Trace trace(3);
  for (int i = 0; i < 4; ++i)
    trace.add({i % 2, i == 1, "op" + std::to_string(i), "model.cpp:7", 100.0 + i, 0.5});
  const std::string path = std::filesystem::temp_directory_path() / "tessera_trace_test.json";
  trace.write(cluster, path);
  std::ifstream file(path);
  const nlohmann::json all = nlohmann::json::parse(file);
  std::filesystem::remove(path);
  CHECK(all.at("otherData").at("left_out") == 1);
  std::vector<nlohmann::json> spans;
  for (const nlohmann::json& e : all.at("traceEvents")) {
    if (e.at("ph") == "X") spans.push_back(e);
  }
  REQUIRE(spans.size() == 3);
  CHECK(spans[1].at("pid") == 1);
  CHECK(spans[1].at("tid") == 1);
  CHECK(spans[1].at("name") == "op1");
  CHECK(spans[1].at("args").at("source") == "model.cpp:7");
  CHECK(spans[1].at("ts") == 1e6);
  CHECK(spans[1].at("dur") == 5e5);
  expect_error(ErrorKind::io, {"cannot write '/proc/none/trace.json': its folder does not exist"},
               [&] { trace.write(cluster, "/proc/none/trace.json"); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
