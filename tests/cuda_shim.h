// Compiles generated kernels as C++ for the host: a thread of a block is a fiber that gives way
// where the kernel waits for its block. Included before a kernel's text; see cuda_emulator.cpp.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local

namespace shim {

struct Index {
  unsigned x = 0;
};

/// The threads of one block, on one thread of the host. A fiber is started once, by its ucontext;
/// from then on it is entered by a jump, which needs no system call.
struct Block {
  struct Fiber {
    ucontext_t start;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    uint64_t lane = 0;  ///< what a shuffle passes on
  };
  std::vector<std::unique_ptr<Fiber>> fibers;
  jmp_buf scheduler;
  unsigned current = 0;
  void (*body)(const void*) = nullptr;
  const void* args = nullptr;
};
inline thread_local Block block;
inline thread_local Index thread_index, block_index;

inline void give_way() {
  if (_setjmp(block.fibers[block.current]->place) == 0) _longjmp(block.scheduler, 1);
}

inline void fiber() {
  while (true) {
    block.body(block.args);
    block.fibers[block.current]->done = true;
    give_way();
  }
}

inline void enter(Block::Fiber& f) {
  if (_setjmp(block.scheduler) != 0) return;
  if (f.started) _longjmp(f.place, 1);
  f.started = true;
  setcontext(&f.start);
}

/// Lets every thread run to its next wait, in turn, until all have ended.
inline void run_fibers(void (*body)(const void*), const void* args, unsigned threads) {
  constexpr size_t kStack = 64 << 10;
  block.body = body;
  block.args = args;
  while (block.fibers.size() < threads) {
    auto f = std::make_unique<Block::Fiber>();
    f->stack = std::make_unique<char[]>(kStack);
    getcontext(&f->start);
    f->start.uc_stack.ss_sp = f->stack.get();
    f->start.uc_stack.ss_size = kStack;
    makecontext(&f->start, fiber, 0);
    block.fibers.push_back(std::move(f));
  }
  for (unsigned t = 0; t < threads; ++t) block.fibers[t]->done = false;
  for (bool left = true; left;) {
    left = false;
    for (unsigned t = 0; t < threads; ++t) {
      Block::Fiber& f = *block.fibers[t];
      if (f.done) continue;
      block.current = t;
      thread_index.x = t;
      enter(f);
      left = left || !f.done;
    }
  }
}

template <class T>
T shuffle_xor(T x, int lanes) {
  static_assert(sizeof(T) <= 8);
  const unsigned me = block.current;
  std::memcpy(&block.fibers[me]->lane, &x, sizeof(T));
  give_way();
  T other;
  std::memcpy(&other, &block.fibers[me ^ static_cast<unsigned>(lanes)]->lane, sizeof(T));
  give_way();
  return other;
}

/// waits: the kernel has places where its threads wait for each other.
inline void run(void (*body)(const void*), const void* args, int64_t blocks, int threads,
                bool waits) {
  for (int64_t b = 0; b < blocks; ++b) {
    block_index.x = static_cast<unsigned>(b);
    if (waits) {
      run_fibers(body, args, static_cast<unsigned>(threads));
      continue;
    }
    for (int t = 0; t < threads; ++t) {
      thread_index.x = static_cast<unsigned>(t);
      body(args);
    }
  }
}

}  // namespace shim

#define threadIdx (::shim::thread_index)
#define blockIdx (::shim::block_index)
#define __syncthreads() ::shim::give_way()
#define __shfl_xor_sync(mask, x, lanes) ::shim::shuffle_xor(x, lanes)

inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected,
                                    unsigned long long wanted) {
  __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
