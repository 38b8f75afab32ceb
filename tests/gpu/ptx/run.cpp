#include "gpu/ptx/run.h"

#include <algorithm>

#include "base/fail.h"
#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

namespace {

constexpr uint32_t kNowhere = ~0U;
constexpr int64_t kMostJumps = 100'000'000;  ///< of the warps of a block

class Runner {
 public:
  Runner(const Program& program, int threads, const KernelMemory* given,
         std::vector<uint8_t>& executed)
      : program_(program),
        threads_(static_cast<unsigned>(threads)),
        memory_(program, given, threads_),
        executed_(executed) {
    for (unsigned n = 0; n * kLanes < threads_; ++n)
      warps_.push_back(std::make_unique<Warp>(program, memory_, n));
  }

  void block(int64_t number, int64_t blocks, const void* args) {
    memory_.shared.begin_block();
    jumps_ = kMostJumps;
    for (const auto& w : warps_) w->begin(number, blocks, threads_, args);
    while (true) {
      bool is_left = false;
      for (const auto& w : warps_) {
        run(*w);
        is_left = is_left || w->alive != 0;
      }
      if (!is_left) return;
      pass_barrier();
    }
  }

 private:
  /// The first lanes that can go on: all at one instruction.
  static uint32_t first(const Warp& w, uint32_t& at, uint32_t& next) {
    uint32_t lanes = 0;
    at = next = kNowhere;
    for (uint32_t left = w.alive & ~w.at_barrier & ~w.at_meeting; left != 0; left &= left - 1) {
      const auto lane = static_cast<unsigned>(std::countr_zero(left));
      const uint32_t here = w.at[lane];
      if (here < at) {
        next = at;
        at = here;
        lanes = 0;
      } else if (here > at) {
        next = std::min(next, here);
      }
      if (here == at) lanes |= 1U << lane;
    }
    return lanes;
  }

  static void place(Warp& w, uint32_t lanes, uint32_t at) {
    for (; lanes != 0; lanes &= lanes - 1)
      w.at[static_cast<unsigned>(std::countr_zero(lanes))] = at;
  }

  /// Until every lane has ended or waits for the block.
  void run(Warp& w) {
    uint32_t at = 0, next = 0;
    while (const uint32_t lanes = first(w, at, next)) {
      bool together = true;
      while (together && at < next) {
        const Instruction& i = program_.code[at];
        w.now = &i;
        w.active = lanes;
        if (i.guarded) w.active &= i.negated ? ~w.bits(i.guard) : w.bits(i.guard);
        if (w.active == 0) {
          ++at;
          continue;
        }
        executed_[at] = 1;
        if (i.flow == Flow::next) {
          i.run(w, i);
          ++at;
          continue;
        }
        if (--jumps_ == 0)
          w.fail(0, fmt::format("its block has jumped {} times: it may never end", kMostJumps));
        place(w, lanes, at + 1);
        together = leaves(w, i, at, lanes);
        at = w.at[static_cast<unsigned>(std::countr_zero(lanes))];
      }
      if (together) place(w, lanes, at);
    }
    if (w.at_meeting != 0) unmet(w);
  }

  /// Control flow. False: the lanes are not together any more.
  bool leaves(Warp& w, const Instruction& i, uint32_t at, uint32_t lanes) {
    switch (i.flow) {
      case Flow::branch:
        place(w, w.active, i.target);
        return w.active == lanes;
      case Flow::table:
        w.each([&](unsigned lane) {
          const uint32_t which = w.lanes<uint32_t>(i.r[0])[lane];
          const std::vector<uint32_t>& table = program_.tables[i.target];
          if (which >= table.size())
            w.fail(lane, fmt::format("place {} of {}", which, table.size()));
          w.at[lane] = table[which];
        });
        return false;
      case Flow::end:
        end(w);
        return false;
      case Flow::warp:
        place(w, w.active, at);
        w.at_meeting |= w.active;
        meet(w, i, at);
        return false;
      case Flow::block:
        place(w, w.active, at);
        arrive(w, i, at);
        return false;
      case Flow::next:
        break;
    }
    return true;
  }

  static void end(Warp& w) {
    w.each([&](unsigned lane) {
      if (!w.copies[lane].under_way.empty())
        w.fail(lane, "the thread ends and has copies that it did not wait for");
      w.copies[lane] = {};
    });
    w.alive &= ~w.active;
  }

  /// Executes it if all lanes that it names are there.
  static void meet(Warp& w, const Instruction& i, uint32_t at) {
    uint32_t here = 0;
    for (uint32_t left = w.at_meeting; left != 0; left &= left - 1) {
      const auto lane = static_cast<unsigned>(std::countr_zero(left));
      if (w.at[lane] == at) here |= 1U << lane;
    }
    const auto lane = static_cast<unsigned>(std::countr_zero(here));
    const uint32_t wanted = wanted_of(w, i, lane);
    if ((wanted & ~w.alive) != 0)
      w.fail(lane,
             fmt::format("it needs lane {}, which has ended", std::countr_zero(wanted & ~w.alive)));
    if ((here & ~wanted) != 0)
      w.fail(static_cast<unsigned>(std::countr_zero(here & ~wanted)),
             fmt::format("its mask is {:#x}, and it is none of these lanes", wanted));
    if (here != wanted) return;
    w.active = here;
    w.each([&](unsigned l) {
      if (wanted_of(w, i, l) != wanted) w.fail(l, "its lanes have different masks");
    });
    i.run(w, i);
    w.at_meeting &= ~here;
    place(w, here, at + 1);
  }
  static uint32_t wanted_of(const Warp& w, const Instruction& i, unsigned lane) {
    return i.whole_warp ? kAllLanes : w.lanes<uint32_t>(i.mask)[lane];
  }

  /// Lanes wait for others of the warp, which have ended, or wait elsewhere.
  [[noreturn]] void unmet(Warp& w) const {
    const auto lane = static_cast<unsigned>(std::countr_zero(w.at_meeting));
    const uint32_t here = w.at[lane];
    w.now = &program_.code[here];
    const uint32_t wanted = wanted_of(w, *w.now, lane);
    uint32_t missing = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      if ((wanted >> l & 1) != 0 && ((w.alive >> l & 1) == 0 || w.at[l] != here))
        missing |= 1U << l;
    }
    const auto other = static_cast<unsigned>(std::countr_zero(missing));
    w.fail(lane, fmt::format("divergence: it waits for thread {}, which {}", w.thread(other),
                             where(w, other)));
  }

  std::string where(const Warp& w, unsigned lane) const {
    if ((w.alive >> lane & 1) == 0) return "has ended";
    const Place& p = program_.places[w.at[lane]];
    return fmt::format("waits at line {}: '{}'", p.line, p.text);
  }

  void arrive(Warp& w, const Instruction& i, uint32_t at) {
    if (barrier_ == nullptr) barrier_ = &i;
    if (barrier_ != &i) {
      const auto other = static_cast<size_t>(barrier_ - program_.code.data());
      w.fail(static_cast<unsigned>(std::countr_zero(w.active)),
             fmt::format("divergence: other threads wait at line {}: '{}'",
                         program_.places[other].line, program_.places[other].text));
    }
    if (i.count != 0) {
      const uint32_t votes = w.bits(i.r[1]) & w.active;
      any_ = any_ || votes != 0;
      all_ = all_ && votes == w.active;
    }
    w.at_barrier |= w.active;
    place(w, w.active, at);
  }

  /// All threads of the block wait at the same barrier.
  void pass_barrier() {
    for (const auto& w : warps_) {
      const unsigned left = threads_ - w->number * kLanes;
      const uint32_t all = left >= kLanes ? kAllLanes : (1U << left) - 1;
      if (w->at_barrier == all) continue;
      const auto missing = static_cast<unsigned>(std::countr_zero(all & ~w->at_barrier));
      for (const auto& v : warps_) {
        if (v->at_barrier == 0) continue;
        v->now = barrier_;
        v->fail(static_cast<unsigned>(std::countr_zero(v->at_barrier)),
                fmt::format("divergence: it waits for thread {}, which {}", w->thread(missing),
                            where(*w, missing)));
      }
    }
    const Instruction& i = *barrier_;
    for (const auto& w : warps_) {
      w->active = std::exchange(w->at_barrier, 0);
      if (i.count != 0) w->set_bits(i.r[0], (i.number == 0 ? any_ : all_) ? kAllLanes : 0);
      for (unsigned lane = 0; lane < kLanes; ++lane) ++w->at[lane];
    }
    memory_.shared.barrier();
    barrier_ = nullptr;
    any_ = false;
    all_ = true;
  }

  const Program& program_;
  const unsigned threads_;
  Memory memory_;
  std::vector<uint8_t>& executed_;
  std::vector<std::unique_ptr<Warp>> warps_;
  const Instruction* barrier_ = nullptr;  ///< where threads wait now
  bool any_ = false, all_ = true;         ///< their votes
  int64_t jumps_ = 0;                     ///< that are left
};

}  // namespace

void run(const Program& program, const void* args, int64_t blocks, int threads,
         const KernelMemory* given, std::vector<uint8_t>& executed) {
  if (program.most_threads != 0 && threads > program.most_threads)
    fail(ErrorKind::internal, "PTX: a block of {} threads; its .maxntid is {}", threads,
         program.most_threads);
  executed.resize(program.code.size());
  Runner runner(program, threads, given, executed);
  for (int64_t b = 0; b < blocks; ++b) runner.block(b, blocks, args);
}

}  // namespace tessera::test::ptx
