#include "gpu/ptx/warp.h"

#include "base/fail.h"

namespace tessera::test::ptx {

Warp::Warp(const Program& p, Memory& m, unsigned n)
    : program(p), memory(m), number(n), registers_(new std::byte[p.register_bytes]()) {}

void Warp::begin(int64_t in_block, int64_t blocks, unsigned threads, const void* arguments) {
  block = in_block;
  args = arguments;
  const unsigned left = threads - number * kLanes;
  alive = left >= kLanes ? kAllLanes : (1U << left) - 1;
  at_barrier = at_meeting = 0;
  at.fill(0);
  using Kind = Program::Value::Kind;
  for (const Program::Value& v : program.values) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      uint64_t x = v.bits;
      if (v.kind == Kind::thread) x = thread(lane);
      if (v.kind == Kind::block) x = static_cast<uint64_t>(block);
      if (v.kind == Kind::threads) x = threads;
      if (v.kind == Kind::blocks) x = static_cast<uint64_t>(blocks);
      if (v.kind == Kind::lane) x = lane;
      if (v.kind == Kind::warp) x = number;
      if (v.kind == Kind::local) x = memory.local_of(thread(lane)) + v.bits;
      std::memcpy(storage(v.to, lane), &x, v.to.bytes == 0 ? sizeof(uint32_t) : v.to.bytes);
    }
  }
}

void Warp::fail(unsigned lane, const std::string& what) const {
  const auto number_of = static_cast<size_t>(now - program.code.data());
  const Place& place = program.places[number_of];
  tessera::fail(ErrorKind::internal, "PTX, line {}, thread {} of block {}: '{}': {}", place.line,
                thread(lane), block, place.text, what);
}

}  // namespace tessera::test::ptx
