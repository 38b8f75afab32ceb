#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "base/fail.h"
#include "collectives/collectives_cases.h"
#include "collectives/cost.h"
#include "support/catch.h"

using namespace tessera;

namespace TESSERA_FILE {

/// Runs `body` for every rank in a thread of its own; returns what each threw ("" if nothing).
std::vector<std::string> on_threads(int ranks, const std::function<void(Communicator&)>& body) {
  auto world = make_local_world(ranks);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*world[r]);
      } catch (const Error& error) {
        errors[r] = std::string(to_string(error.kind())) + ": " + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

Collective all_reduce(std::vector<float>& data, int64_t number = -1, std::string text = "") {
  Collective c;
  c.kind = CollectiveKind::all_reduce;
  c.count = static_cast<int64_t>(data.size());
  c.in = data.data();
  c.out = data.data();
  c.site = {number, std::move(text)};
  return c;
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

void collectives_equal_the_naive(int ranks) {
  std::atomic<int> failures{0};
  const auto errors = on_threads(ranks, [&](Communicator& world) {
    failures += collectives_test::collectives_selftest(world);
  });
  INFO(ranks << " ranks");
  CHECK(failures == 0);
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("every collective on threads equals the naive result", "[collectives]") {
  for (const int ranks : {1, 2}) collectives_equal_the_naive(ranks);
}

TEST_CASE("every collective on more threads equals the naive result", "[collectives][slow]") {
  for (const int ranks : {3, 4, 8}) collectives_equal_the_naive(ranks);
}

TEST_CASE("many more ranks than processors", "[collectives]") {
  std::atomic<int> failures{0};
  const auto errors = on_threads(64, [&](Communicator& world) {
    std::vector<float> data(3000);
    const auto operation = world.prepare(all_reduce(data));
    for (int round = 0; round < 20; ++round) {
      std::fill(data.begin(), data.end(), static_cast<float>(world.rank()));
      operation->start();
      operation->wait();
      failures += data[0] != 2016 || data[2999] != 2016;
    }
  });
  CHECK(failures == 0);
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("a time-out names the missing rank, its last call and the call", "[collectives]") {
  const auto errors = on_threads(3, [](Communicator& world) {
    std::vector<float> data(8, 1.0f);
    const auto first = world.prepare(all_reduce(data, 6, "warm-up"));
    const auto second = world.prepare(all_reduce(data, 7, "grad of w, model.cpp:41"));
    world.set_timeout(0.2);
    first->start();
    first->wait();
    if (world.rank() == 1) return;
    second->start();
    second->wait();
  });
  CHECK(errors[1] == "");
  // One of the others notices first and the other reports it.
  const bool zero = errors[0].find("stops because") == std::string::npos;
  contains(errors[zero ? 0 : 2], "comm: [all_reduce] call 7 (grad of w, model.cpp:41): rank");
  contains(errors[zero ? 0 : 2],
           "waited 0.2 s for rank 1 (last seen at [all_reduce] call 6 (warm-up))");
  contains(errors[zero ? 2 : 0], "rank 1");
}

TEST_CASE("the root of small broadcasts waits for nobody, until it is far ahead", "[collectives]") {
  constexpr int kAhead = 60;  // of 64 slots
  std::atomic<bool> ahead{false};
  const auto run = [&](bool comes) {
    return on_threads(2, [&, comes](Communicator& world) {
      int32_t value = 0;
      Collective c;
      c.kind = CollectiveKind::broadcast;
      c.dtype = DType::int32;
      c.out = &value;
      c.count = 1;
      c.site = {5, "a seed"};
      const auto operation = world.prepare(c);
      world.set_timeout(comes ? 30 : 0.2);
      if (world.rank() == 1 && !comes) return;
      while (world.rank() == 1 && !ahead) std::this_thread::yield();
      for (int i = 0; i < 2 * kAhead; ++i) {
        value = world.rank() == 0 ? i : -1;
        operation->start();
        operation->wait();
        if (value != i) throw Error(ErrorKind::internal, "a broadcast went wrong");
        if (i == kAhead) ahead = true;
      }
    });
  };
  for (const std::string& error : run(true)) CHECK(error == "");
  contains(run(false)[0],
           "[broadcast] call 5 (a seed): rank 0 waited 0.2 s for rank 1 (last seen at [broadcast] "
           "call 5 (a seed) while it is prepared)");
}

TEST_CASE("fail() reaches peers that wait, peers of other groups, and later calls",
          "[collectives]") {
  const auto errors = on_threads(4, [](Communicator& world) {
    std::vector<float> data(50000, 1.0f);
    const auto pair = world.split(world.rank() / 2, 0);
    if (world.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      pair->fail("[load] no such file 'x'");
      pair->fail("a second failure");
      return;
    }
    Communicator& where = world.rank() == 2 ? *pair : world;
    try {
      where.run(all_reduce(data, 3, "loss"));
    } catch (const Error&) {
      world.run(all_reduce(data, 4, "later"));
    }
  });
  CHECK(errors[3] == "");
  for (int r = 0; r < 3; ++r) {
    contains(errors[r], "[all_reduce] call 4 (later)");
    contains(errors[r], "rank 3 failed: [load] no such file 'x'");
  }
}

TEST_CASE("an operand may go away after a failure", "[collectives]") {
  for (int round = 0; round < 20; ++round) {
    on_threads(4, [&](Communicator& world) {
      auto data = std::make_unique<std::vector<float>>(100000, 1.0f);
      auto operation = world.prepare(all_reduce(*data));
      operation->start();
      if (world.rank() == round % 4) operation.reset();
      if (operation) operation->wait();
      data.reset();
    });
  }
}

TEST_CASE("ranks that disagree are told so", "[collectives]") {
  const auto errors = on_threads(3, [](Communicator& world) {
    std::vector<float> data(world.rank() == 2 ? 9 : 8, 1.0f);
    world.run(all_reduce(data, 5, "loss"));
  });
  for (const std::string& error : errors) {
    contains(error,
             "comm: [all_reduce] call 5 (loss) while it is prepared: the ranks disagree: rank 0");
    contains(error,
             "8 elements, but rank 2 prepares call 5, all_reduce of float32, sum, 9 elements");
  }
}

TEST_CASE("wrong calls are usage errors", "[collectives]") {
  const auto world = make_local_world(1);
  auto message = [&](Collective c) -> std::string {
    try {
      world[0]->prepare(c);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      return error.what();
    }
    return "";
  };
  std::vector<float> data(8);
  Collective c = all_reduce(data, 1, "loss");
  CHECK(message(c) == "");
  c.combiner = Combiner::any;
  CHECK(message(c) ==
        "[all_reduce] any takes bool or uint8, not float32; compare with 0 first (loss)");
  c.combiner = Combiner::sum;
  c.dtype = DType::bool_;
  contains(message(c), "[all_reduce] sum does not take bool; use any or all, or cast to int32");
  c = all_reduce(data);
  c.count = -1;
  contains(message(c), "[all_reduce] a count is -1; counts are 0 or more");
  c.count = INT64_MAX;
  contains(message(c), "the operand has more than 2^63 bytes");
  c.count = 4;
  c.out = data.data() + 1;
  contains(message(c), "in and out overlap; only all_reduce works in place");
  c.in = nullptr;
  contains(message(c), "[all_reduce] in is null");
  c.in = data.data();
  c.out = nullptr;
  contains(message(c), "[all_reduce] out is null");
  c.kind = CollectiveKind::broadcast;
  c.root = 1;
  contains(message(c), "[broadcast] root 1 is not a rank of a group of 1");
  c = {};
  c.kind = CollectiveKind::exchange;
  contains(message(c), "[exchange] 0 lists of runs for 1 ranks");
  c.send = c.recv = {{{0, 2}}};
  c.recv[0][0].length = 3;
  contains(message(c), "[exchange] rank 0 sends itself 2 elements but expects 3");
  c.recv[0][0].length = -3;
  contains(message(c), "[exchange] a run of -3 elements at 0");
  auto together = [&](const std::vector<Collective>& list) -> std::string {
    try {
      world[0]->prepare(list);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(together({}) == "[prepare] no collective is given");
  contains(together({all_reduce(data), Collective{}}),
           "[barrier] cannot be one of 2 collectives of an operation; prepare it alone");
  const int32_t counts[] = {1};
  c = all_reduce(data);
  c.counts = counts;
  contains(message(c), "[all_reduce] only an all_to_all has counts");
  c.kind = CollectiveKind::all_to_all;
  c.post = 8;
  c.row = 3;
  c.out = data.data() + 8;
  contains(message(c),
           "[all_to_all] counts of rows of 3 elements in blocks of 1 x 1 x 1 x 1 x 8; a block "
           "consists of whole rows");
  c.row = 4;
  contains(together({c, c}), "[all_to_all] with counts cannot be one of 2 collectives");
  CHECK_THROWS_AS(world[0]->set_timeout(0), Error);
  CHECK_THROWS_AS(world[0]->allocate(-1), Error);
  CHECK_THROWS_AS(make_local_world(0), Error);
}

TEST_CASE("an exchange whose totals differ is refused by all", "[collectives]") {
  const auto errors = on_threads(2, [](Communicator& world) {
    std::vector<float> data(8), out(8);
    Collective c;
    c.kind = CollectiveKind::exchange;
    c.in = data.data();
    c.out = out.data();
    c.send.resize(2);
    c.recv.resize(2);
    if (world.rank() == 0) c.send[1] = {{0, 5}};
    if (world.rank() == 1) c.recv[0] = {{0, 4}};
    world.run(c);
  });
  for (const std::string& error : errors) {
    contains(error, "usage: [exchange]: rank 0 sends 5 elements to rank 1, which expects 4");
  }
}

TEST_CASE("combine rounds bfloat16 once, to nearest even, and keeps NaN", "[collectives]") {
  // 256 + 1 + 1 is 258; rounding after each step would stay at 256.
  const uint16_t big = 0x4380, one = 0x3f80, nan = 0x7fff;
  const void* inputs[] = {&big, &one, &one};
  uint16_t out = 0;
  local_reduce(inputs, 3, &out, 1, DType::bfloat16, Combiner::sum);
  CHECK(out == 0x4381);
  local_reduce(inputs, 2, &out, 1, DType::bfloat16, Combiner::sum);
  CHECK(out == 0x4380);
  const void* with_nan[] = {&one, &nan};
  for (const Combiner combiner : {Combiner::sum, Combiner::max, Combiner::min}) {
    local_reduce(with_nan, 2, &out, 1, DType::bfloat16, combiner);
    CHECK((out & 0x7fff) > 0x7f80);
  }
}

TEST_CASE("bytes sent", "[collectives]") {
  CHECK(bytes_sent(CollectiveKind::all_reduce, 1000, 4) == 1500);
  CHECK(bytes_sent(CollectiveKind::all_reduce, 1000, 1) == 0);
  CHECK(bytes_sent(CollectiveKind::reduce_scatter, 1000, 4) == 750);
  CHECK(bytes_sent(CollectiveKind::all_gather, 1000, 4) == 750);
  CHECK(bytes_sent(CollectiveKind::all_to_all, 1000, 2) == 500);
  CHECK(bytes_sent(CollectiveKind::broadcast, 1000, 4) == 1000);
  CHECK(bytes_sent(CollectiveKind::exchange, 1000, 4) == 1000);
  CHECK(bytes_sent(CollectiveKind::barrier, 1000, 4) == 0);
  static_assert(bytes_sent(CollectiveKind::all_gather, int64_t{1} << 62, 16384) > 0);
}

}  // namespace TESSERA_FILE
