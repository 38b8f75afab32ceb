// A rank that hangs in one step, and programs that end with an exception: nobody waits for them
// longer than the time-out.
#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/communicator.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace TESSERA_FILE {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What a rank does whose slice starts at `at`.
struct Stall {
  std::atomic<int64_t> at{-1};
  std::atomic<int> milliseconds{0};  ///< then it goes on; 0: when `at` changes
};
Stall stall;

/// Copies its operand; it may hang on the way.
void copy_and_hang(const HostCall& call) {
  const auto start = std::chrono::steady_clock::now();
  while (stall.at == call.dims[0].offset &&
         (stall.milliseconds == 0 || 1000 * seconds_since(start) < stall.milliseconds))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  call.each(
      [&](std::span<const int64_t> i) { call.out[0].at<float>(i) = call.in[0].at<float>(i); });
}

constinit const Op kHang = {
    .name = "may_hang",
    .infer = [](const OpCall& call) { return std::vector<ValueType>{call.in[0]}; },
    .host = copy_and_hang};

/// Six ones through an op that may hang, over three ranks; their sum, if the ranks are to meet.
struct Job {
  explicit Job(bool meets, double timeout) {
    cluster.set_timeout(timeout);
    Tensor x = nn::ones()(graph, {Dim("n", 6)}, DType::float32);
    Tensor y = graph.add(kHang, {x}, {}, Loc::current())[0];
    y = (meets ? sum_all(y) : y).named("y");
    session.emplace(
        graph, cluster,
        CompileOptions{Mesh::parse("a:3"), Layout::parse("n:a"), {{"run", {y}, false}}});
  }
  Graph graph;
  Cluster cluster = Cluster::threads(3);
  std::optional<Session> session;
};

TEST_CASE("a thread rank that hangs in a step ends the run within the time-out", "[fast]") {
  for (const bool meets : {true, false}) {
    INFO((meets ? "its peers wait for it" : "nobody waits for it"));
    {
      Job job(meets, 0.5);
      job.session->run("run");
      stall.at = 2;
      const auto start = std::chrono::steady_clock::now();
      test::expect_error(ErrorKind::comm,
                         {"rank 1 stayed in [may_hang]", "stuck_test.cpp:",
                          "its thread is abandoned", "raise the time-out with set_timeout"},
                         [&] { job.session->run("run"); });
      CHECK(seconds_since(start) < 5);
      const std::vector<Cluster::Activity> now = job.cluster.activity();
      REQUIRE(now.size() == 3);
      CHECK(now[1].step.starts_with("[may_hang]"));
      CHECK(now[1].seconds > 0.4);
      CHECK(now[1].thread != 0);
      CHECK(!now[1].waits);
      CHECK(now[0].step.empty());
      test::expect_error(ErrorKind::usage, {"this session failed before"},
                         [&] { job.session->run("run"); });
      test::expect_error(ErrorKind::comm, {"given up", "rank 1 stayed in", "make a new one"},
                         [&] { job.cluster.run([](int, Communicator&) {}); });
      CHECK(job.session->slices("y").size() == 3);  // what there is stays readable
    }  // neither Session nor Cluster waits for the thread
    stall.at = -1;
    Job next(meets, 0.5);
    next.session->run("run");
    if (meets) CHECK(next.session->fetch_scalar("y") == 6);
  }
}

TEST_CASE("a step that takes nearly the time-out is no hang", "[fast]") {
  Job job(true, 1);
  stall.milliseconds = 700;
  stall.at = 2;
  for (int run = 0; run < 2; ++run) job.session->run("run");
  CHECK(job.session->fetch_scalar("y") == 6);
  stall.at = -1;
  stall.milliseconds = 0;
}

/// Runs `program(rank, cluster)` in two threads, each with a Cluster of its own as processes have.
/// What each of them ended with.
std::vector<std::string> ends_of_two(const std::function<void(int, Cluster&)>& program) {
  std::vector<std::unique_ptr<Communicator>> worlds = make_local_world(2);
  std::vector<std::string> ends(2);
  std::vector<std::thread> processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.emplace_back([&, rank] {
      try {
        Cluster cluster = Cluster::adopt(std::move(worlds[static_cast<size_t>(rank)]));
        program(rank, cluster);
        ends[static_cast<size_t>(rank)] = "well";
      } catch (const CommonFailure& e) {
        ends[static_cast<size_t>(rank)] = std::string("alike: ") + e.what();
      } catch (const std::exception& e) {
        ends[static_cast<size_t>(rank)] = e.what();
      }
    });
  }
  for (std::thread& process : processes) process.join();
  return ends;
}

TEST_CASE("an exception in one program makes its peers fail at once", "[fast]") {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> ends = ends_of_two([](int rank, Cluster& cluster) {
    if (rank == 1) throw std::runtime_error("no such file");
    cluster.gather({1.0});
  });
  CHECK(seconds_since(start) < 30);
  CHECK(ends[1] == "no such file");
  CHECK(ends[0].find("rank 0 stops because rank 1 failed: its program left the scope of its "
                     "Cluster with an exception") != std::string::npos);
}

TEST_CASE("an exception that was caught before, and one that all have, tell nobody", "[fast]") {
  const std::vector<std::string> caught = ends_of_two([](int, Cluster& cluster) {
    try {
      cluster.require_same({{"lr", "1"}});
      throw std::runtime_error("none of the Cluster's business");
    } catch (const std::runtime_error&) {
    }
    cluster.gather({1.0});
  });
  CHECK(caught == std::vector<std::string>{"well", "well"});
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::string> alike = ends_of_two([](int rank, Cluster& cluster) {
      cluster.require_same({{"lr", rank == 0 ? "1" : "2"}});
    });
    for (const std::string& end : alike)
      CHECK(end.starts_with("alike: rank 0 has lr = '1', and rank 1 has lr = '2'"));
  }
}

}  // namespace TESSERA_FILE
