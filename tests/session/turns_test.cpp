// Two threads at one Cluster, a Cluster that was moved from, and a fork: usage errors, and nothing
// changes.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "collectives/communicator.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

/// Keeps the ranks of a Cluster busy by work of another thread.
class Busy {
 public:
  explicit Busy(Cluster& cluster)
      : thread_([this, &cluster] {
          cluster.run([this](int, Communicator&) {
            ++working_;
            for (int i = 0; i < 6000 && !leave_; ++i)
              std::this_thread::sleep_for(std::chrono::milliseconds(5));
          });
        }) {
    while (working_ < cluster.local_ranks())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~Busy() {
    leave_ = true;
    thread_.join();
  }

 private:
  std::atomic<int> working_{0};
  std::atomic<bool> leave_{false};
  std::thread thread_;
};

struct Doubled {
  Graph g;
  Dim n{"n", 4};
  Tensor x = g.input("x", {n}, DType::float32), w = g.parameter("w", {n}, nn::ones());
  Tensor y = sum_all(x * w * 2.0).named("y");

  Doubled() { g.update(w, w + 1.0); }
  CompileOptions options(int ranks) const {
    return {Mesh::parse("a:" + std::to_string(ranks)), Layout::parse("n:a"), {{"f", {y}, true}}};
  }
  Array ones() const { return Array::of<float>({n}, {1, 1, 1, 1}); }
};

TEST_CASE("a second thread at a Cluster is told, and both sides go on", "[errors]") {
  for (const int count : {1, 2}) {
    const Doubled m;
    Cluster ranks = Cluster::threads(count);
    Session s(m.g, ranks, m.options(count));
    s.feed("x", m.ones());
    s.run("f");
    CHECK(s.fetch_scalar("y") == 8);
    {
      const Busy other(ranks);
      expect_usage({"[run] another thread runs work on this Cluster", "one thread at a time",
                    "lock a mutex", "a Cluster for each thread", "(turns_test.cpp:"},
                   [&] { s.run("f"); });
      expect_usage({"[enqueue] another thread runs work"}, [&] { s.enqueue("f"); });
      expect_usage({"[Session] another thread runs work"},
                   [&] { Session(m.g, ranks, m.options(count)); });
      expect_usage({"another thread runs work"}, [&] { ranks.run([](int, Communicator&) {}); });
      ranks.recover();  // does nothing now
      CHECK(s.fetch_scalar("y") == 8);
      CHECK(s.step() == 1);
    }
    s.run("f");
    CHECK(s.fetch_scalar("y") == 16);
    CHECK(s.step() == 2);
  }
}

TEST_CASE("a Cluster that was moved from says so", "[errors]") {
  const Doubled m;
  Cluster ranks = Cluster::threads(2);
  std::optional<Cluster> moved;
  Session s(m.g, ranks, m.options(2));
  s.feed("x", m.ones());
  moved.emplace(std::move(ranks));
  expect_usage({"[run] this Cluster was moved from", "move a Cluster before Sessions are made",
                "(turns_test.cpp:"},
               [&] { s.run("f"); });
  expect_usage({"this Cluster was moved from"}, [&] { ranks.size(); });
  expect_usage({"this Cluster was moved from"}, [&] { ranks.set_timeout(3); });
  expect_usage({"this Cluster was moved from"}, [&] { ranks.activity(); });
  expect_usage({"this Cluster was moved from"}, [&] { Session(m.g, ranks, m.options(2)); });
  Session t(m.g, *moved, m.options(2));
  t.feed("x", m.ones());
  t.run("f");
  CHECK(t.fetch_scalar("y") == 8);
}

// A fork inside of a test case would report twice: the child ends by _exit, with what it found.
TEST_CASE("a fork of a process has no Clusters of it", "[errors]") {
  for (const int count : {1, 2}) {
    const Doubled m;
    auto ranks = std::make_unique<Cluster>(Cluster::threads(count));
    auto s = std::make_unique<Session>(m.g, *ranks, m.options(count));
    s->feed("x", m.ones());
    s->run("f");
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int status = 1;
      try {
        s->run("f");
      } catch (const Error& e) {
        const std::string text = e.what();
        status = text.find("this Cluster is of process") != text.npos &&
                         text.find("make Clusters and Sessions after the fork") != text.npos
                     ? 0
                     : 2;
      }
      s.reset();  // waits for no thread that is not there
      ranks.reset();
      Cluster own = Cluster::threads(count);
      Session t(m.g, own, m.options(count));
      t.feed("x", m.ones());
      t.run("f");
      _exit(status == 0 && t.fetch_scalar("y") == 8 ? 0 : status + 10);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    s->run("f");
    CHECK(s->fetch_scalar("y") == 16);
  }
}

}  // namespace TESSERA_FILE
