// Compiles generated kernels as C++ for the host: a thread of a block is a fiber that gives way
// where the kernel waits for its block or its warp. Included before a kernel's text; see
// host_kernels.cpp. The instructions of a warp are in cuda_shim_warp.h.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

inline void check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "an emulated kernel: %s\n", what);
  std::abort();
}

/// Where threads wait for each other: those that came, of those that have not ended.
struct Meeting {
  unsigned left = 0, arrived = 0;
  uint64_t round = 0;
  int votes[2] = {};  ///< of this round, and of the one before
  void settle() {
    if (arrived < left || arrived == 0) return;
    arrived = 0;
    votes[(round + 1) % 2] = 0;
    ++round;
  }
};

/// The threads of one block, on one thread of the host. A fiber is started once, by its ucontext;
/// from then on it is entered by a jump, which needs no system call.
struct Block {
  struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
  };
  struct Fiber {
    ucontext_t start;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
    bool started = false, done = false;
    alignas(16) unsigned char given[2][64];  ///< what it passes on to its warp
    std::vector<Copy> copies;                ///< that it has not waited for
  };
  std::vector<std::unique_ptr<Fiber>> fibers;
  Meeting all;
  std::vector<Meeting> warps;
  bool moved = false;  ///< some thread came somewhere
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

inline void meet(Meeting& meeting) {
  const uint64_t round = meeting.round;
  ++meeting.arrived;
  block.moved = true;
  meeting.settle();
  while (meeting.round == round) give_way();
}

inline void fiber() {
  while (true) {
    block.body(block.args);
    Block::Fiber& me = *block.fibers[block.current];
    check(me.copies.empty(), "a thread ends and has copies that it did not wait for");
    me.done = block.moved = true;
    for (Meeting* m : {&block.all, &block.warps[block.current / 32]}) {
      --m->left;
      m->settle();
    }
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
  block.all = {threads};
  block.warps.assign((threads + 31) / 32, {});
  for (unsigned t = 0; t < threads; ++t) ++block.warps[t / 32].left;
  for (bool left = true; left;) {
    left = block.moved = false;
    for (unsigned t = 0; t < threads; ++t) {
      Block::Fiber& f = *block.fibers[t];
      if (f.done) continue;
      block.current = t;
      thread_index.x = t;
      enter(f);
      left = left || !f.done;
    }
    check(!left || block.moved, "threads wait for others that do not come");
  }
}

/// What the lanes of a warp gave: it lasts until the next exchange but one.
template <class T>
struct StreamSimulator {
  unsigned first, slot;
  const T& operator[](unsigned lane) const {
    return *reinterpret_cast<const T*>(block.fibers[first + lane]->given[slot]);
  }
};
template <class T>
StreamSimulator<T> exchange(const T& x) {
  static_assert(sizeof(T) <= 64);
  const unsigned me = block.current;
  Meeting& warp = block.warps[me / 32];
  const auto slot = static_cast<unsigned>(warp.round % 2);
  std::memcpy(block.fibers[me]->given[slot], &x, sizeof(T));
  meet(warp);
  return {me / 32 * 32, slot};
}

template <class T>
T shuffle_xor(T x, int lanes) {
  return exchange(x)[block.current % 32 ^ static_cast<unsigned>(lanes)];
}

/// A bit of every lane.
inline unsigned ballot(bool x) {
  const auto lanes = exchange(x);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(lanes[lane]) << lane;
  return bits;
}

/// Whether any thread of the block that has not ended has a vote.
inline int wait_and_vote(int vote) {
  int& votes = block.all.votes[block.all.round % 2];
  votes |= vote;
  meet(block.all);
  return votes;
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
#define __syncthreads() ::shim::meet(::shim::block.all)
#define __syncthreads_or(x) ::shim::wait_and_vote(x)
#define __syncwarp() ::shim::meet(::shim::block.warps[::shim::block.current / 32])
#define __ballot_sync(mask, x) ::shim::ballot(x)
#define __popc(x) __builtin_popcount(x)
#define __ffs(x) __builtin_ffs(static_cast<int>(x))
#define __shfl_xor_sync(mask, x, lanes) ::shim::shuffle_xor(x, lanes)

inline unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected,
                                    unsigned long long wanted) {
  __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

#include "cuda_shim_warp.h"
