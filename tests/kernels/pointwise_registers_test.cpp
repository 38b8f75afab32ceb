// Where the registers of a fused pointwise step lie.
#include <set>
#include <tuple>

#include "kernels/pointwise_cases.h"
#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

using cpu::Link;

// Registers take turns in buffers and in the outputs' memory, which may be an input's: random steps
// give the same numbers as when everything has memory of its own.
TEST_CASE("where results lie changes none of them") {
  const DType f = DType::float32;
  std::mt19937 engine(5);
  auto below = [&](int n) { return static_cast<int>(engine() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 400; ++round) {
    const bool rows = round % 2 != 0;
    const int64_t n = rows ? 48 + 80 * (round % 3) : 40 + 700 * (round % 4);
    std::vector<Box> in(3, Box(f, {7, n}));
    for (size_t k = 0; k < in.size(); ++k) fill_random(in[k], static_cast<uint64_t>(round * 3) + k);
    std::vector<Instr> code = {load(f, 0), load(f, 1), load(f, 2)};
    std::vector<int> whole = {0, 1, 2};  // registers that are no number of a row
    for (int i = 3; i < 12; ++i) {
      const int a = below(i), b = below(i);
      if (rows && i % 4 == 0) {
        code.push_back(make(PointwiseOp::row_sum, f, whole[engine() % whole.size()], -1, -1, 1));
        continue;
      }
      const PointwiseOp codes[] = {PointwiseOp::add, PointwiseOp::sub, PointwiseOp::mul,
                                   PointwiseOp::minimum, PointwiseOp::copy};
      const PointwiseOp op = codes[below(5)];
      code.push_back(make(op, f, a, op == PointwiseOp::copy ? -1 : b));
      auto is_whole = [&](int r) {
        return std::find(whole.begin(), whole.end(), r) != whole.end();
      };
      if (is_whole(a) || (op != PointwiseOp::copy && is_whole(b))) whole.push_back(i);
    }
    const Step step = program(code, {whole[engine() % whole.size()], whole.back()});
    std::vector<Box> apart(2, Box(f, {7, n}));
    run_everywhere(step, {&in[0], &in[1], &in[2]}, {&apart[0], &apart[1]});
    std::vector<Box> at = in;
    Box other(f, {7, n});
    const size_t shared = static_cast<size_t>(below(3));
    run_kernel(KernelKind::pointwise, step, {&at[0], &at[1], &at[2]},
               round % 3 == 0 ? std::vector<Box*>{&at[shared], &other}
                              : std::vector<Box*>{&other, &at[shared]});
    const Box& first = round % 3 == 0 ? at[shared] : other;
    const Box& second = round % 3 == 0 ? other : at[shared];
    INFO("round " << round);
    each(first.sizes, [&](const Sizes& i) {
      const auto same = [](double x, double y) {
        return x == y || (std::isnan(x) && std::isnan(y));
      };
      if (!same(first.get(i), apart[0].get(i)) || !same(second.get(i), apart[1].get(i)))
        FAIL("at row " << i[0] << ": " << first.get(i) << " and " << apart[0].get(i) << ", "
                       << second.get(i) << " and " << apart[1].get(i));
    });
  }
}

/// Random instructions of the kind that layer_norm, softmax and their gradients have: sums and
/// differences with numbers of a row, products, quotients, squares, roots, exponentials and sums
/// over rows; `of_numbers`: also instructions of numbers alone.
Step random_rows(std::mt19937& engine, DType f, bool rows, bool of_numbers) {
  auto below = [&](size_t n) { return static_cast<int>(engine() % n); };
  Instr half = make(PointwiseOp::constant, f);
  half.imm = 0.5;
  std::vector<Instr> code = {load(f, 0), load(f, 1), load(f, 2), half};
  std::vector<int> whole = {0, 1, 2}, numbers = {3};
  if (rows) {
    code.push_back(make(PointwiseOp::row_max, f, below(3), -1, -1, 1));
    numbers.push_back(4);
  }
  const auto recent = [&] {  // so that long chains arise
    return below(3) == 0 ? whole[below(whole.size())] : whole.back();
  };
  for (int left = 9 + below(8); left > 0; --left) {
    const int at = static_cast<int>(code.size()), kind = below(of_numbers ? 13 : 12);
    if (rows && (kind == 0 || kind == 9)) {
      code.push_back(make(PointwiseOp::row_sum, f, recent(), -1, -1, 1));
      numbers.push_back(at);
      continue;
    }
    if (kind == 12) {  // of numbers alone
      const int number = numbers[below(numbers.size())];
      code.push_back(below(2) == 0
                         ? make(PointwiseOp::square, f, number)
                         : make(PointwiseOp::add, f, number, numbers[below(numbers.size())]));
      numbers.push_back(at);
      continue;
    }
    if (kind == 1 || kind == 2) {
      const PointwiseOp codes[] = {PointwiseOp::square, PointwiseOp::exp, PointwiseOp::square,
                                   PointwiseOp::sqrt};
      code.push_back(make(codes[below(4)], f, recent()));
    } else if (kind == 10) {
      code.push_back(make(PointwiseOp::div, f, recent(), recent()));
    } else if (kind == 11) {  // of two terms, one of them scaled or shifted
      const PointwiseOp codes[] = {PointwiseOp::add, PointwiseOp::sub, PointwiseOp::sub,
                                   PointwiseOp::mul, PointwiseOp::div};
      const int other = whole.back();
      code.push_back(make(below(3) == 0 ? PointwiseOp::add : PointwiseOp::mul, f, recent(),
                          numbers[below(numbers.size())]));
      const bool first = below(2) == 0;
      code.push_back(make(codes[below(5)], f, first ? at : other, first ? other : at));
      whole.push_back(at + 1);
      continue;
    } else {
      const PointwiseOp codes[] = {PointwiseOp::add, PointwiseOp::sub, PointwiseOp::mul};
      int a = recent(), b = kind < 6 ? numbers[below(numbers.size())] : recent();
      if (below(2) == 0) std::swap(a, b);
      code.push_back(make(codes[below(3)], f, a, b));
    }
    whole.push_back(at);
  }
  return program(code, {whole.back(), whole[below(whole.size())]});
}

/// What chains the rounds reached, and what they computed.
struct Reached {
  std::set<std::tuple<Link, Link, bool, bool, DType>> shapes;
  int numbered = 0;  ///< chains with numbers of a row before and after another register
  int64_t finite = 0, all = 0;

  void note(const std::vector<cpu::Chain>& chains, DType f) {
    for (const cpu::Chain& c : chains) {
      shapes.insert({c.shape.first, c.shape.second, c.shape.scaled, c.shape.sum, f});
      numbered += c.before.any() && c.after.any();
    }
  }
};

void compare_with_single(const Step& step, DType f, int64_t n, uint64_t seed, Reached& reached) {
  std::vector<Box> in(3, Box(f, {5, n})), chained(2, Box(f, {5, n})), single = chained;
  for (size_t k = 0; k < in.size(); ++k) fill_random(in[k], seed + k);
  run_everywhere(step, {&in[0], &in[1], &in[2]}, {&chained[0], &chained[1]});
  const cpu::BlockOps& ops = *cpu::usable_block_ops().back();
  cpu::BlockOps plain = ops;
  plain.find_chain = [](const cpu::ChainShape&, DType) -> cpu::ChainFn { return nullptr; };
  run_kernel(KernelKind::pointwise, step, {&in[0], &in[1], &in[2]}, {&single[0], &single[1]},
             [&](const KernelArgs& args) {
               reached.note(cpu::Pointwise(args, ops).chains(), f);
               return cpu::bind_pointwise_with(args, plain);
             });
  for (size_t k = 0; k < 2; ++k) {
    each(chained[k].sizes, [&](const Sizes& i) {
      const double x = chained[k].get(i), y = single[k].get(i);
      reached.finite += std::isfinite(x);
      ++reached.all;
      if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y)))
        FAIL("output " << k << " at " << i[0] << ", " << i[1] << ": " << x << " and " << y);
    });
  }
}

/// The registers of a step of random_rows(), each from a step of its own, and rows from "reduce".
std::vector<Box> one_at_a_time(const Step& step, const std::vector<Box>& in) {
  const std::vector<Instr>& code = step.pointwise.code;
  const DType f = in[0].dtype;
  const int64_t rows = in[0].sizes[0], n = in[0].sizes[1];
  std::vector<Box> results(code.size());
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i].code == PointwiseOp::constant) continue;
    results[i] = code[i].code == PointwiseOp::load ? in[code[i].slot] : Box(f, {rows, n});
    if (code[i].code == PointwiseOp::load) continue;
    if (reduces_row(code[i].code)) {
      Box number(f, {rows, 1}, {1, 0});
      Step reduce;
      reduce.combiner = code[i].code == PointwiseOp::row_max ? Combiner::max : Combiner::sum;
      run_kernel(KernelKind::reduce, reduce, {&results[code[i].a]}, {&number});
      results[i].strides = {1, 0};
      results[i].memory = number.memory;
      continue;
    }
    std::vector<Instr> alone;
    std::vector<Box*> operands;
    const auto operand = [&](int reg) {
      if (reg < 0) return -1;
      if (code[reg].code == PointwiseOp::constant) {
        alone.push_back(code[reg]);
      } else {
        alone.push_back(load(f, static_cast<int>(operands.size())));
        operands.push_back(&results[reg]);
      }
      return static_cast<int>(alone.size()) - 1;
    };
    const int a = operand(code[i].a), b = operand(code[i].b);
    alone.push_back(make(code[i].code, f, a, b));
    run_kernel(KernelKind::pointwise, program(alone, {static_cast<int>(alone.size()) - 1}),
               operands, {&results[i]});
  }
  return results;
}

// In pieces, and in as many passes as their sums need, which compute registers anew; an output may
// have the memory of an input that later passes still read.
TEST_CASE("rows longer than a block have the bits of instructions that run alone") {
  std::mt19937 engine(11);
  int64_t finite = 0, all = 0;
  for (int round = 0; round < 120; ++round) {
    INFO("round " << round);
    const DType f = round % 2 == 0 ? DType::float64 : DType::float32;
    const Sizes sizes = {3, Sizes{8193, 9000, 10240, 20011}[round / 2 % 4]};
    std::vector<Box> in(3, Box(f, sizes)), out(2, Box(f, sizes));
    for (size_t k = 0; k < in.size(); ++k) fill_random(in[k], static_cast<unsigned>(round) * 3 + k);
    const Step step = random_rows(engine, f, true, false);
    const std::vector<Box> alone = one_at_a_time(step, in);
    std::vector<Box*> to = {&out[0], &out[1]};
    if (round % 3 == 0) {
      run_everywhere(step, {&in[0], &in[1], &in[2]}, to);
    } else {
      to[round % 3 - 1] = &in[round % 5 % 3];
      run_kernel(KernelKind::pointwise, step, {&in[0], &in[1], &in[2]}, to);
    }
    for (size_t k = 0; k < 2; ++k) {
      const Box& want = alone[step.pointwise.outputs[k]];
      each(sizes, [&](const Sizes& i) {
        const double x = to[k]->get(i), y = want.get(i);
        finite += std::isfinite(x);
        ++all;
        if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y)))
          FAIL("output " << k << " at " << i[0] << ", " << i[1] << ": " << x << " and " << y);
      });
    }
  }
  CHECK(finite > all / 2);
}

TEST_CASE("a row has its number's position marked, or none") {
  const DType f = DType::float32;
  for (const DType whole : {DType::int32, DType::int64}) {
    for (const int64_t n : {1, 7, 64, 3000}) {
      Box x(f, {9, n}), label(whole, {9, n}, {1, 0}), hit(f, {9, n}), sum(f, {9, n}, {1, 0});
      fill_random(x, 4);
      for (int64_t r = 0; r < 9; ++r) label.set({r, 0}, static_cast<double>(r * n / 6 - 1));
      Instr position = make(PointwiseOp::index, whole, -1, -1, -1, 1);
      position.expr = 0;
      for (const bool first : {false, true}) {
        const Step step =
            program({load(f, 0), make(PointwiseOp::row_sum, f, 0, -1, -1, 1), load(whole, 1),
                     position, make(PointwiseOp::equal, DType::bool_, first ? 3 : 2, first ? 2 : 3),
                     make(PointwiseOp::where, f, 4, 1, 0)},
                    {5, 1}, {AffineExpr()});
        run_everywhere(step, {&x, &label}, {&hit, &sum});
        int marked = 0;
        each(x.sizes, [&](const Sizes& i) {
          const bool at = label.get(i) == static_cast<double>(i[1]);
          marked += at;
          if (hit.get(i) != (at ? sum : x).get(i))
            FAIL("at " << i[0] << ", " << i[1] << " of " << n << ": " << hit.get(i));
        });
        CHECK(marked > 0);
        CHECK(marked < 9);
      }
    }
  }
}

TEST_CASE("positions and numbers of a long row are those of its pieces") {
  const DType f = DType::float32, whole = DType::int32;
  const int64_t n = 9001;
  Box x(f, {5, n}), label(whole, {5, n}, {1, 0}), hit(f, {5, n}), sum(f, {5, n}, {1, 0});
  fill_random(x, 3);
  for (int64_t r = 0; r < 5; ++r) label.set({r, 0}, static_cast<double>(r * 2249));
  Instr position = make(PointwiseOp::index, whole, -1, -1, -1, 1),
        one = make(PointwiseOp::constant, f);
  position.expr = 0;
  one.imm = 1;
  const Step step =
      program({load(f, 0), make(PointwiseOp::row_sum, f, 0, -1, -1, 1), load(whole, 1), position,
               make(PointwiseOp::equal, DType::bool_, 2, 3), one,
               make(PointwiseOp::where, f, 4, 5, 0), make(PointwiseOp::sub, f, 6, 1)},
              {7, 1}, {AffineExpr()});
  const Box before = x;
  run_everywhere(step, {&x, &label}, {&hit, &sum});
  run_kernel(KernelKind::pointwise, step, {&x, &label}, {&x, &sum});
  CHECK(x.memory == hit.memory);
  each(x.sizes, [&](const Sizes& i) {
    const double at = label.get(i) == static_cast<double>(i[1]) ? 1 : before.get(i);
    if (x.get(i) != static_cast<float>(at) - static_cast<float>(sum.get(i)))
      FAIL("at " << i[0] << ", " << i[1] << ": " << x.get(i));
  });
}

// A register of a narrow type holds floats, and stores round: a cast computes only where somebody
// reads what it rounds.
TEST_CASE("casts between float32 and narrow types round once, where they stand") {
  const DType f = DType::float32;
  for (const DType t : {DType::bfloat16, DType::float16}) {
    for (const bool in_place : {false, true}) {
      Box x(t, {9, 700}), rounded(t, {9, 700}), last(t, {9, 700}), wide(f, {9, 700});
      fill_random(x, 31);
      const Box before = x;
      const Step step =
          program({load(t, 0), make(PointwiseOp::cast, f, 0), make(PointwiseOp::square, f, 1),
                   make(PointwiseOp::cast, t, 2),  // stored, and read
                   make(PointwiseOp::cast, f, 3), make(PointwiseOp::add, f, 4, 1),
                   make(PointwiseOp::cast, t, 5)},  // only stored
                  {3, 6, 5});
      run_everywhere(step, {&x}, {&rounded, &last, &wide});
      if (in_place) run_kernel(KernelKind::pointwise, step, {&x}, {&rounded, &x, &wide});
      const Box& stored = in_place ? x : last;
      each(x.sizes, [&](const Sizes& i) {
        const float given = static_cast<float>(before.get(i));
        const float square = kernels::rounded_to(given * given, t), sum = square + given;
        if (rounded.get(i) != square || wide.get(i) != sum ||
            stored.get(i) != kernels::rounded_to(sum, t))
          FAIL(to_string(t) << " " << given << ": " << rounded.get(i) << ", " << wide.get(i) << ", "
                            << stored.get(i));
      });
    }
  }
}

TEST_CASE("chains of instructions give the bits of each alone, and every kind of chain occurs") {
  std::mt19937 engine(7);
  Reached reached;
  for (int round = 0; round < 12000; ++round) {
    INFO("round " << round);
    const DType f = round % 2 == 0 ? DType::float64 : DType::float32;
    const int64_t n = round % 7 == 0 ? 1024 : 17 + 80 * (round % 5);
    compare_with_single(random_rows(engine, f, round % 8 > 1, false), f, n,
                        static_cast<uint64_t>(round * 3 + 1), reached);
  }
  for (int round = 0; round < 500; ++round) {
    INFO("with numbers of numbers, round " << round);
    const DType f = round % 2 == 0 ? DType::float64 : DType::float32;
    compare_with_single(random_rows(engine, f, round % 4 > 1, true), f, 33,
                        static_cast<uint64_t>(round * 5 + 2), reached);
  }
  CHECK(reached.numbered > 0);
  CHECK(reached.finite > reached.all / 2);
  constexpr int kLinks = static_cast<int>(Link::affine) + 1;
  for (int shape = 0; shape < kLinks * kLinks * 8; ++shape) {
    const Link first = Link(shape / 8 % kLinks), second = Link(shape / 8 / kLinks);
    const DType f = shape % 2 == 0 ? DType::float32 : DType::float64;
    const bool scaled = shape / 2 % 2 != 0, sum = shape / 4 % 2 != 0;
    INFO(int(first) << ", " << int(second) << ", scaled " << scaled << ", sum " << sum << ", "
                    << to_string(f));
    CHECK((cpu::kBaseOps.find_chain({first, second, scaled, sum}, f) != nullptr) ==
          reached.shapes.contains({first, second, scaled, sum, f}));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
