// The recording device notices what a card would get wrong, and regions for capture are cut where
// they have to be.
#include "base/fail.h"
#include "catch.h"
#include "cuda_emulator.h"
#include "expect_error.h"
#include "runtime/regions.h"

namespace tessera::test {

namespace {

/// Two streams of a card, memory, and a place for it on the host.
struct Lanes {
  CudaEmulator card;
  CudaStream a, b;
  CudaEvent event;
  void* memory;
  std::vector<char> host = std::vector<char>(256);
  Lanes() {
    card.use(0);
    a = card.make_stream();
    b = card.make_stream();
    event = card.make_event();
    memory = card.allocate(256);
  }
};

Step step(StepKind kind, int number = -1) {
  Step s;
  s.kind = kind;
  s.number = number;
  s.origin.name = fmt::format("step{}", number);
  return s;
}

std::string text(const std::vector<StepRange>& regions) {
  std::string all;
  for (const StepRange& r : regions)
    all += fmt::format("{}{}-{}", r.captured ? " graph " : " steps ", r.first, r.last);
  return all;
}

}  // namespace

TEST_CASE("the recording device: work on one memory needs an order", "[cuda]") {
  Lanes l;
  l.card.clear(l.memory, 256, l.a);
  expect_error(ErrorKind::internal, {"to_host", "reads what 'clear'", "nothing orders them"},
               [&] { l.card.to_host(l.host.data(), l.memory, 256, l.b); });
  l.card.record(l.event, l.a);
  l.card.wait(l.b, l.event);
  l.card.to_host(l.host.data(), l.memory, 256, l.b);
  expect_error(ErrorKind::internal, {"clear", "writes what 'to_host'", "nothing orders them"},
               [&] { l.card.clear(l.memory, 256, l.a); });
  l.card.synchronize(l.b);
  l.card.clear(l.memory, 256, l.a);
}

TEST_CASE("the recording device: every wait has its signal, every thread its card", "[cuda]") {
  Lanes l;
  expect_error(ErrorKind::internal, {"waits for", "nobody recorded"},
               [&] { l.card.wait(l.a, l.event); });
  CudaEmulator two(2);
  two.use(1);
  CudaStream there = two.make_stream();
  two.use(0);
  void* memory = two.allocate(64);
  expect_error(ErrorKind::internal, {"work for card 1 by a thread that uses card 0"},
               [&] { two.clear(memory, 64, there); });
  expect_error(ErrorKind::internal, {"touches memory that is not the card's"}, [&] {
    l.card.use(0);
    l.card.clear(l.host.data(), 16, l.a);
  });
}

TEST_CASE("the recording device: memory of the host that a copy reads", "[cuda]") {
  Lanes l;
  expect_error(ErrorKind::internal, {"a copy of 64 bytes from memory of the host", "not pinned"},
               [&] { l.card.to_device(l.memory, l.host.data(), 64, l.a); });
  char* pinned = static_cast<char*>(l.card.allocate_host(64));
  std::fill(pinned, pinned + 64, 1);
  l.card.to_device(l.memory, pinned, 64, l.a);
  pinned[3] = 2;
  expect_error(ErrorKind::internal, {"memory of the host changed", "64 bytes", "had ended"},
               [&] { l.card.synchronize(l.a); });
  l.card.release_host(pinned);
}

TEST_CASE("the recording device: memory of another card", "[cuda]") {
  CudaEmulator two(2);
  two.use(0);
  void* memory = two.allocate(64);
  void* before = two.use(1);
  CudaStream there = two.make_stream();
  two.clear(memory, 64, there);
  two.restore(before);
  two.release(memory);
  const std::vector<std::string> misuses = two.take_misuses();
  REQUIRE(misuses.size() == 1);
  CHECK(misuses[0].find("released memory that 'clear'") == 0);
  memory = two.allocate(64);
  two.has_access = false;
  two.use(1);
  expect_error(ErrorKind::internal, {"clear on card 1 touches memory of card 0"},
               [&] { two.clear(memory, 64, there); });
}

TEST_CASE("the recording device: what a capture forbids", "[cuda]") {
  Lanes l;
  l.card.record(l.event, l.a);
  l.card.begin_capture(l.a);
  expect_error(ErrorKind::internal, {"synchronize() of a stream that is captured"},
               [&] { l.card.synchronize(l.a); });
  expect_error(ErrorKind::internal, {"recorded outside"}, [&] { l.card.wait(l.a, l.event); });
  l.card.record(l.event, l.a);
  l.card.wait(l.b, l.event);
  l.card.clear(l.memory, 256, l.b);
  expect_error(ErrorKind::internal, {"was not joined again"}, [&] { l.card.end_capture(l.a); });
  l.card.record(l.event, l.b);
  l.card.wait(l.a, l.event);
  static_cast<char*>(l.memory)[0] = 1;
  const CudaGraph graph = l.card.end_capture(l.a);
  CHECK(static_cast<char*>(l.memory)[0] == 1);  // recorded, not run
  l.card.launch(graph, l.a);
  CHECK(static_cast<char*>(l.memory)[0] == 0);
  l.card.release(graph);
}

TEST_CASE("regions for capture", "[cuda]") {
  using Kind = StepKind;
  const std::string host = "it runs on the host";
  std::vector<Step> plain(6, step(Kind::compute));
  CHECK(text(find_regions(plain, std::vector<std::string>(6), 4)) == " graph 0-4 graph 4-6");
  CHECK(text(find_regions(plain, {"", "", host, host, "", ""}, 6)) ==
        " graph 0-2 steps 2-4 graph 4-6");
  CHECK(text(find_regions(plain, {"", host, "", "", "", ""}, 6)) ==
        " steps 0-1 steps 1-2 graph 2-6");
  CHECK(find_regions(plain, {"", "", host, "", "", ""}, 6)[1].why == "step-1: " + host);
  // A collective is captured with its wait or not at all.
  const std::vector<Step> overlapped = {step(Kind::compute),       step(Kind::collective, 1),
                                        step(Kind::collective, 1), step(Kind::compute),
                                        step(Kind::wait, 1),       step(Kind::compute),
                                        step(Kind::compute)};
  CHECK(text(find_regions(overlapped, std::vector<std::string>(7), 7)) == " graph 0-7");
  CHECK(text(find_regions(overlapped, {"", "", "", host, "", "", ""}, 7)) ==
        " steps 0-1 steps 1-5 graph 5-7");
  CHECK(text(find_regions(overlapped, {"", host, "", "", host, "", ""}, 7)) ==
        " steps 0-1 steps 1-3 steps 3-4 steps 4-5 graph 5-7");
}

}  // namespace tessera::test
