// The recording device notices what a GPU would get wrong, and regions for capture are cut where
// they have to be.
#include "base/fail.h"
#include "gpu/emulator.h"
#include "runtime/graph_capture.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Two streams of a GPU, memory, and a place for it on the host.
struct TwoStreams {
  CudaEmulator gpu;
  CudaStream a, b;
  CudaEvent event;
  void* memory;
  std::vector<char> host = std::vector<char>(256);
  TwoStreams() {
    gpu.direct = true;
    gpu.contexts().use(0);
    a = gpu.streams().make_stream();
    b = gpu.streams().make_stream();
    event = gpu.streams().make_event();
    memory = gpu.memory().allocate(256);
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

TEST_CASE("the recording device: work on one memory needs an order", "[cuda]") {
  TwoStreams l;
  l.gpu.memory().clear(l.memory, 256, l.a);
  expect_error(ErrorKind::internal, {"to_host", "reads what 'clear'", "nothing orders them"},
               [&] { l.gpu.memory().to_host(l.host.data(), l.memory, 256, l.b); });
  l.gpu.streams().record(l.event, l.a);
  l.gpu.streams().wait(l.b, l.event);
  l.gpu.memory().to_host(l.host.data(), l.memory, 256, l.b);
  expect_error(ErrorKind::internal, {"clear", "writes what 'to_host'", "nothing orders them"},
               [&] { l.gpu.memory().clear(l.memory, 256, l.a); });
  l.gpu.streams().synchronize(l.b);
  l.gpu.memory().clear(l.memory, 256, l.a);
}

TEST_CASE("the recording device: every wait has its signal, every thread its GPU", "[cuda]") {
  TwoStreams l;
  expect_error(ErrorKind::internal, {"waits for", "nobody recorded"},
               [&] { l.gpu.streams().wait(l.a, l.event); });
  CudaEmulator two(2);
  two.direct = true;
  two.contexts().use(1);
  CudaStream there = two.streams().make_stream();
  two.contexts().use(0);
  void* memory = two.memory().allocate(64);
  expect_error(ErrorKind::internal, {"work for GPU 1 by a thread that uses GPU 0"},
               [&] { two.memory().clear(memory, 64, there); });
  expect_error(ErrorKind::internal, {"touches memory that is not the GPU's"}, [&] {
    l.gpu.contexts().use(0);
    l.gpu.memory().clear(l.host.data(), 16, l.a);
  });
}

TEST_CASE("the recording device: memory of the host that a copy reads", "[cuda]") {
  TwoStreams l;
  expect_error(ErrorKind::internal, {"a copy of 64 bytes from memory of the host", "not pinned"},
               [&] { l.gpu.memory().to_device(l.memory, l.host.data(), 64, l.a); });
  char* pinned = static_cast<char*>(l.gpu.memory().allocate_host(64));
  std::fill(pinned, pinned + 64, 1);
  l.gpu.memory().to_device(l.memory, pinned, 64, l.a);
  pinned[3] = 2;
  expect_error(ErrorKind::internal, {"memory of the host changed", "64 bytes", "had ended"},
               [&] { l.gpu.streams().synchronize(l.a); });
  l.gpu.memory().release_host(pinned);
}

TEST_CASE("the recording device: memory of the host that a later copy writes", "[cuda]") {
  TwoStreams l;
  char* pinned = static_cast<char*>(l.gpu.memory().allocate_host(64));
  std::fill(pinned, pinned + 64, 3);
  l.gpu.memory().to_device(l.memory, pinned, 64, l.a);
  l.gpu.memory().clear(l.memory, 64, l.a);
  // Behind the first copy in the stream, which has ended when this one writes.
  l.gpu.memory().to_host(pinned, l.memory, 64, l.a);
  l.gpu.streams().synchronize(l.a);
  CHECK(std::all_of(pinned, pinned + 64, [](char c) { return c == 0; }));
  l.gpu.memory().release_host(pinned);
}

TEST_CASE("the recording device: memory of another GPU", "[cuda]") {
  CudaEmulator two(2);
  two.direct = true;
  two.contexts().use(0);
  void* memory = two.memory().allocate(64);
  void* before = two.contexts().use(1);
  CudaStream there = two.streams().make_stream();
  two.memory().clear(memory, 64, there);
  two.contexts().restore(before);
  two.memory().release(memory);
  const std::vector<std::string> misuses = two.take_misuses();
  REQUIRE(misuses.size() == 1);
  CHECK(misuses[0].find("released memory that 'clear'") == 0);
  memory = two.memory().allocate(64);
  two.has_access = false;
  two.contexts().use(1);
  expect_error(ErrorKind::internal, {"clear on GPU 1 touches memory of GPU 0"},
               [&] { two.memory().clear(memory, 64, there); });
}

TEST_CASE("the recording device: what a capture forbids", "[cuda]") {
  TwoStreams l;
  l.gpu.streams().record(l.event, l.a);
  l.gpu.graphs().begin_capture(l.a);
  expect_error(ErrorKind::internal, {"synchronize() of a stream that is captured"},
               [&] { l.gpu.streams().synchronize(l.a); });
  expect_error(ErrorKind::internal, {"recorded outside"},
               [&] { l.gpu.streams().wait(l.a, l.event); });
  l.gpu.streams().record(l.event, l.a);
  l.gpu.streams().wait(l.b, l.event);
  l.gpu.memory().clear(l.memory, 256, l.b);
  expect_error(ErrorKind::internal, {"was not joined again"},
               [&] { l.gpu.graphs().end_capture(l.a); });
  l.gpu.streams().record(l.event, l.b);
  l.gpu.streams().wait(l.a, l.event);
  static_cast<char*>(l.memory)[0] = 1;
  const CudaGraph graph = l.gpu.graphs().end_capture(l.a);
  l.gpu.streams().synchronize(l.a);
  CHECK(static_cast<char*>(l.memory)[0] == 1);  // recorded, not run
  l.gpu.graphs().launch(graph, l.a);
  CHECK(static_cast<char*>(l.memory)[0] == 1);  // enqueued: nothing has waited for it
  l.gpu.streams().synchronize(l.a);
  CHECK(static_cast<char*>(l.memory)[0] == 0);
  l.gpu.graphs().release(graph);
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

}  // namespace TESSERA_FILE
}  // namespace tessera::test
