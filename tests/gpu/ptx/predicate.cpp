// Comparisons, and logic of predicates.
#include <cmath>
#include <type_traits>

#include "gpu/ptx/map.h"

namespace tessera::test::ptx {

namespace {

enum class Compare : uint8_t { eq, ne, lt, le, gt, ge, num, nan };
enum class Join : uint8_t { none, with_and, with_or, with_xor };

template <Compare kCompare, class T>
bool compare(T a, T b) {
  switch (kCompare) {
    case Compare::eq:
      return a == b;
    case Compare::ne:
      return a != b;
    case Compare::lt:
      return a < b;
    case Compare::le:
      return a <= b;
    case Compare::gt:
      return a > b;
    case Compare::ge:
      return a >= b;
    case Compare::num:
      return a == a && b == b;
    case Compare::nan:
      return a != a || b != b;
  }
  return false;
}

/// `number`: the Join; 8 more where a NaN makes it true (.equ, .ltu). Operands: the result, its
/// complement if i.count is 2, a, b, and what is joined.
template <Compare kCompare, class T>
void set(Warp& w, const Instruction& i) {
  const Lanes<T> a = w.lanes<T>(i.r[i.count]), b = w.lanes<T>(i.r[i.count + 1U]);
  const bool unordered = (i.number & 8) != 0;
  uint32_t result = 0;
  w.each([&](unsigned lane) {
    const T x = a[lane], y = b[lane];
    bool is = compare<kCompare>(x, y);
    if constexpr (std::is_floating_point_v<T>) {
      const bool is_nan = std::isnan(x) || std::isnan(y);
      if (is_nan && kCompare != Compare::num && kCompare != Compare::nan) is = unordered;
    }
    result |= uint32_t{is} << lane;
  });
  uint32_t other = ~result;
  const auto join = static_cast<Join>(i.number & 7);
  if (join != Join::none) {
    const uint32_t c = w.bits(i.r[i.count + 2U]);
    const auto joined = [&](uint32_t x) {
      return join == Join::with_and ? x & c : join == Join::with_or ? x | c : x ^ c;
    };
    other = joined(other);
    result = joined(result);
  }
  w.set_bits(i.r[0], result);
  if (i.count == 2) w.set_bits(i.r[1], other);
}

template <class T>
Handler set_of(const std::string& how) {
  if (how == "eq") return set<Compare::eq, T>;
  if (how == "ne") return set<Compare::ne, T>;
  if (how == "lt" || how == "lo") return set<Compare::lt, T>;
  if (how == "le" || how == "ls") return set<Compare::le, T>;
  if (how == "gt" || how == "hi") return set<Compare::gt, T>;
  if (how == "ge" || how == "hs") return set<Compare::ge, T>;
  if constexpr (std::is_floating_point_v<T>) {
    if (how == "num") return set<Compare::num, T>;
    if (how == "nan") return set<Compare::nan, T>;
  }
  return nullptr;
}

template <class T>
std::optional<Form> find_set(const Opcode& op) {
  std::string how = op.parts[1];
  int64_t number = 0;
  if (std::is_floating_point_v<T> && how.size() == 3 && how.back() == 'u') {
    how.pop_back();
    number = 8;
  }
  Form f{set_of<T>(how), {kPredicate, sizeof(T), sizeof(T)}};
  if (f.run == nullptr || op.has("ftz")) return std::nullopt;
  const bool joins = op.has("and") || op.has("or") || op.has("xor");
  if (joins) f.widths.push_back(kPredicate);
  const Join join = op.has("and")   ? Join::with_and
                    : op.has("or")  ? Join::with_or
                    : op.has("xor") ? Join::with_xor
                                    : Join::none;
  f.number = number | static_cast<int64_t>(join);
  return f;
}

template <class F>
void logic(Warp& w, const Instruction& i) {
  w.set_bits(i.r[0], F::apply(w.bits(i.r[1]), w.bits(i.r[2])));
}
struct And {
  static uint32_t apply(uint32_t a, uint32_t b) { return a & b; }
};
struct Or {
  static uint32_t apply(uint32_t a, uint32_t b) { return a | b; }
};
struct Xor {
  static uint32_t apply(uint32_t a, uint32_t b) { return a ^ b; }
};

}  // namespace

std::optional<Form> find_predicate(const Opcode& op) {
  const std::string& name = op.parts[0];
  if (name == "setp") {
    if (const auto found = of_integer(
            op.type(), [&](auto tag) { return find_set<typename decltype(tag)::type>(op); }))
      return found;
    return of_floating(op.type(),
                       [&](auto tag) { return find_set<typename decltype(tag)::type>(op); });
  }
  if (op.type() != "pred") return std::nullopt;
  const std::vector<int> two{kPredicate, kPredicate}, three{kPredicate, kPredicate, kPredicate};
  if (name == "and") return Form{logic<And>, three};
  if (name == "or") return Form{logic<Or>, three};
  if (name == "xor") return Form{logic<Xor>, three};
  if (name == "mov")
    return Form{[](Warp& w, const Instruction& i) { w.set_bits(i.r[0], w.bits(i.r[1])); }, two};
  if (name == "not")
    return Form{[](Warp& w, const Instruction& i) { w.set_bits(i.r[0], ~w.bits(i.r[1])); }, two};
  return std::nullopt;
}

}  // namespace tessera::test::ptx
