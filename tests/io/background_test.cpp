#include "io/background.h"

#include <atomic>
#include <numeric>

#include "support/catch.h"

using namespace tessera;

TEST_CASE("background: tasks run in their order, each with the chunk that was filled for it",
          "[io][fast]") {
  std::vector<int> ran;
  int64_t sum = 0;
  {
    Background background(2 * Background::kChunk);  // fewer chunks than tasks: take_chunk() waits
    for (int i = 0; i < 40; ++i) {
      std::byte* const chunk = background.take_chunk();
      std::fill(chunk, chunk + 1000, static_cast<std::byte>(i));
      background.push(
          [&ran, &sum, chunk, i] {
            ran.push_back(i);
            for (int b = 0; b < 1000; ++b) sum += static_cast<int>(chunk[b]);
          },
          chunk);
    }
    REQUIRE(background.wait(60));
    CHECK(sum == 1000 * (39 * 40 / 2));
    std::vector<int> in_order(40);
    std::iota(in_order.begin(), in_order.end(), 0);
    CHECK(ran == in_order);
  }
}

TEST_CASE("background: after a failure no task runs, until the failure is taken", "[io][fast]") {
  std::atomic<int> ran{0};
  Background background(Background::kChunk);
  background.push([] { throw std::runtime_error("the disk is full"); }, background.take_chunk());
  background.push([&] { ++ran; }, background.take_chunk());
  REQUIRE(background.wait(60));
  CHECK(background.has_failed());
  CHECK(ran == 0);
  const std::exception_ptr failure = background.take_failure();
  REQUIRE(failure);
  CHECK_THROWS_WITH(std::rethrow_exception(failure), "the disk is full");
  background.push([&] { ++ran; }, background.take_chunk());
  REQUIRE(background.wait(60));
  CHECK(ran == 1);
  CHECK_FALSE(background.has_failed());
}

TEST_CASE("background: the end drops what waits, and waits for what runs", "[io][fast]") {
  std::atomic<int> begun{0}, ended{0};
  {
    Background background(Background::kChunk);
    for (int i = 0; i < 3; ++i) {
      background.push([&] {
        ++begun;
        ++ended;
      });
    }
    while (begun == 0) {
    }
  }
  CHECK(begun == ended);
}
