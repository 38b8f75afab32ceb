// Where the registers of a fused pointwise step lie.
#include "catch.h"
#include "pointwise_cases.h"

namespace tessera::test {
namespace {

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
        code.push_back(make(Code::row_sum, f, whole[engine() % whole.size()], -1, -1, 1));
        continue;
      }
      const Code codes[] = {Code::add, Code::sub, Code::mul, Code::minimum, Code::copy};
      const Code op = codes[below(5)];
      code.push_back(make(op, f, a, op == Code::copy ? -1 : b));
      auto is_whole = [&](int r) {
        return std::find(whole.begin(), whole.end(), r) != whole.end();
      };
      if (is_whole(a) || (op != Code::copy && is_whole(b))) whole.push_back(i);
    }
    const Step step = program(code, {whole[engine() % whole.size()], whole.back()});
    std::vector<Box> apart(2, Box(f, {7, n}));
    run_everywhere(step, {&in[0], &in[1], &in[2]}, {&apart[0], &apart[1]});
    std::vector<Box> at = in;
    Box other(f, {7, n});
    const size_t shared = static_cast<size_t>(below(3));
    run_kernel("pointwise", step, {&at[0], &at[1], &at[2]},
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

}  // namespace
}  // namespace tessera::test
