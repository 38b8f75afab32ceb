// Instructions that the lanes of a warp execute together: exchanges, votes, and matmuls on tensor
// cores.
#include <fmt/format.h>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "gpu/ptx/map.h"

namespace tessera::test::ptx {

namespace {

enum class From : uint8_t { up, down, butterfly, index };

/// Operands: the result, with i.count 2 a predicate, the value, b, c. The manual's pseudocode.
template <From kFrom>
void shuffle(Warp& w, const Instruction& i) {
  const unsigned first = i.count;
  const auto to = w.lanes<uint32_t>(i.r[0]), value = w.lanes<uint32_t>(i.r[first]),
             b = w.lanes<uint32_t>(i.r[first + 1]), c = w.lanes<uint32_t>(i.r[first + 2]);
  uint32_t result[kLanes] = {}, within = 0;
  w.each([&](unsigned lane) {
    const unsigned segment = c[lane] >> 8 & 31, by = b[lane] & 31;
    const unsigned least = lane & segment, most = least | (c[lane] & 31 & ~segment);
    int from = 0;
    bool is_within = false;
    switch (kFrom) {
      case From::up:
        from = static_cast<int>(lane) - static_cast<int>(by);
        is_within = from >= static_cast<int>(most);
        break;
      case From::down:
        from = static_cast<int>(lane + by);
        is_within = from <= static_cast<int>(most);
        break;
      case From::butterfly:
        from = static_cast<int>(lane ^ by);
        is_within = from <= static_cast<int>(most);
        break;
      case From::index:
        from = static_cast<int>(least | (by & ~segment));
        is_within = from <= static_cast<int>(most);
        break;
    }
    if (!is_within) from = static_cast<int>(lane);
    if ((w.active >> from & 1) == 0)
      w.fail(lane, fmt::format("it shuffles from lane {}, which does not take part", from));
    result[lane] = value[static_cast<unsigned>(from)];
    within |= uint32_t{is_within} << lane;
  });
  w.each([&](unsigned lane) { to.set(lane, result[lane]); });
  if (i.count == 2) w.set_bits(i.r[1], within);
}

void ballot(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint32_t>(i.r[0]);
  const uint32_t votes = w.bits(i.r[1]) & w.active;
  w.each([&](unsigned lane) { to.set(lane, votes); });
}
template <int kMode>  // 0: any, 1: all, 2: all alike
void vote(Warp& w, const Instruction& i) {
  const uint32_t votes = w.bits(i.r[1]) & w.active;
  const bool all = votes == w.active;
  w.set_bits(i.r[0], (kMode == 0 ? votes != 0 : all || (kMode == 2 && votes == 0)) ? kAllLanes : 0);
}

void active_mask(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint32_t>(i.r[0]);
  w.each([&](unsigned lane) { to.set(lane, w.active); });
}

void meet(Warp& w, const Instruction& /*i*/) {
  w.each([&](unsigned lane) { ++w.meetings[lane]; });
}

/// The manual's mma.m16n8k16: lane l is in group l / 4, at place l % 4 of it. Element e of A's
/// eight, two a register: row group, + 8 for e % 4 >= 2; column 2 place + e % 2, + 8 for e >= 4. Of
/// B's four: row 2 place + e % 2, + 8 for e >= 2; column group. Of C's four: row group, + 8 for
/// e >= 2; column 2 place + e % 2.
template <class Half>
void multiply(Warp& w, const Instruction& i) {
  float a[16][16], b[16][8];
  const auto half = [&](unsigned r, unsigned lane, unsigned upper) {
    return to_float(Half{static_cast<uint16_t>(w.lanes<uint32_t>(i.r[r])[lane] >> upper * 16)});
  };
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned group = lane / 4, place = lane % 4;
    for (unsigned e = 0; e < 8; ++e)
      a[group + (e % 4 >= 2 ? 8 : 0)][2 * place + e % 2 + (e >= 4 ? 8 : 0)] =
          half(4 + e / 2, lane, e % 2);
    for (unsigned e = 0; e < 4; ++e)
      b[2 * place + e % 2 + (e >= 2 ? 8 : 0)][group] = half(8 + e / 2, lane, e % 2);
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned group = lane / 4, place = lane % 4;
    float sums[4];
    for (unsigned e = 0; e < 4; ++e) {
      const unsigned row = group + (e >= 2 ? 8 : 0), column = 2 * place + e % 2;
      sums[e] = w.lanes<float>(i.r[10 + e])[lane];
      for (unsigned k = 0; k < 16; ++k) sums[e] += a[row][k] * b[k][column];
    }
    for (unsigned e = 0; e < 4; ++e) w.lanes<float>(i.r[e]).set(lane, sums[e]);
  }
}

std::optional<Form> find_shuffle(const Opcode& op) {
  if (op.type() != "b32" || !op.has("sync")) return std::nullopt;
  Form f{nullptr, {4, 4, 4, 4, 4}, Flow::warp};
  if (op.has("up")) f.run = shuffle<From::up>;
  if (op.has("down")) f.run = shuffle<From::down>;
  if (op.has("bfly")) f.run = shuffle<From::butterfly>;
  if (op.has("idx")) f.run = shuffle<From::index>;
  f.mask = 4;
  return f;
}

std::optional<Form> find_vote(const Opcode& op) {
  if (!op.has("sync")) return std::nullopt;
  Form f{nullptr, {op.has("ballot") ? 4 : kPredicate, kPredicate, 4}, Flow::warp};
  if (op.has("ballot")) f.run = ballot;
  if (op.has("any")) f.run = vote<0>;
  if (op.has("all")) f.run = vote<1>;
  if (op.has("uni")) f.run = vote<2>;
  f.mask = 2;
  if (f.run == nullptr) return std::nullopt;
  return f;
}

}  // namespace

std::optional<Form> find_warp(const Opcode& op) {
  const std::string& name = op.parts[0];
  if (name == "shfl") return find_shuffle(op);
  if (name == "vote") return find_vote(op);
  if (name == "activemask") return Form{active_mask, {4}};
  if (op.text == "bar.warp.sync") {
    Form f{meet, {4}, Flow::warp};
    f.mask = 0;
    return f;
  }
  const bool bfloat = op.text == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32";
  if (bfloat || op.text == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
    return Form{bfloat ? multiply<BFloat16> : multiply<Float16>, std::vector<int>(14, 4),
                Flow::warp};
  return std::nullopt;
}

}  // namespace tessera::test::ptx
