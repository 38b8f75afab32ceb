// Operators of tensors. A plain number may be an operand: it becomes a scalar of the tensor's
// dtype, or a usage error if that dtype cannot hold it. Part of ops.h.
#pragma once

#include <concepts>

#include "tessera/ops.h"

namespace tessera {

/// `value` as a scalar of x's dtype, for an operand of `op`.
Tensor scalar_like(const char* op, At x, double value);
/// The same for a quotient of x and a floating number. Throws a usage error if x is an integer
/// tensor, whose quotients are truncated.
Tensor quotient_like(At x, double value);

// clang-format off
#define TESSERA_OPERATOR(symbol, name)                                                      \
  inline Tensor operator symbol(At a, At b) { return name(a.tensor, b.tensor, a.at); }      \
  inline Tensor operator symbol(At a, double b) {                                           \
    return name(a.tensor, scalar_like(#name, a, b), a.at);                                  \
  }                                                                                         \
  inline Tensor operator symbol(double a, At b) {                                           \
    return name(scalar_like(#name, b, a), b.tensor, b.at);                                  \
  }
// clang-format on
TESSERA_OPERATOR(+, add)
TESSERA_OPERATOR(-, sub)
TESSERA_OPERATOR(*, mul)
TESSERA_OPERATOR(<, less)
TESSERA_OPERATOR(<=, less_equal)
TESSERA_OPERATOR(>, greater)
TESSERA_OPERATOR(>=, greater_equal)
#undef TESSERA_OPERATOR
// As in C++, `i / 2` of integers truncates; `i / 2.0` is an error, as integers cannot hold it.
inline Tensor operator/(At a, At b) { return div(a.tensor, b.tensor, a.at); }
inline Tensor operator/(At a, double b) { return div(a.tensor, quotient_like(a, b), a.at); }
inline Tensor operator/(double a, At b) { return div(quotient_like(b, a), b.tensor, b.at); }
inline Tensor operator/(At a, std::integral auto b) {
  return div(a.tensor, scalar_like("div", a, static_cast<double>(b)), a.at);
}
inline Tensor operator/(std::integral auto a, At b) {
  return div(scalar_like("div", b, static_cast<double>(a)), b.tensor, b.at);
}
// The functions also take a number for one of their two operands.
// clang-format off
#define X(name)                                                                                 \
  inline Tensor name(At a, double b) { return name(a.tensor, scalar_like(#name, a, b), a.at); } \
  inline Tensor name(double a, At b) { return name(scalar_like(#name, b, a), b.tensor, b.at); }
X(add) X(sub) X(mul) X(floor_div) X(mod) X(pow) X(minimum) X(maximum)
X(less) X(less_equal) X(greater) X(greater_equal) X(equal) X(not_equal)
X(logical_and) X(logical_or) X(logical_xor)
#undef X
inline Tensor div(At a, double b) { return div(a.tensor, quotient_like(a, b), a.at); }
inline Tensor div(double a, At b) { return div(quotient_like(b, a), b.tensor, b.at); }
inline Tensor where(Tensor condition, At a, double b) {
  return where(condition, a.tensor, scalar_like("where", a, b), a.at);
}
inline Tensor where(Tensor condition, double a, At b) {
  return where(condition, scalar_like("where", b, a), b.tensor, b.at);
}

/// A tensor that is assigned to, and the source line.
struct Assigned {
  Assigned(Tensor& tensor, Loc at = Loc::current()) : tensor(tensor), at(at) {}
  Tensor& tensor;
  Loc at;
};
#define X(symbol)                                                                                 \
  inline Tensor& operator symbol##=(Assigned a, At b) {                                           \
    return a.tensor = At(a.tensor, a.at) symbol b;                                                \
  }                                                                                               \
  inline Tensor& operator symbol##=(Assigned a, double b) {                                       \
    return a.tensor = At(a.tensor, a.at) symbol b;                                                \
  }
X(+) X(-) X(*) X(/)
#undef X
inline Tensor& operator/=(Assigned a, std::integral auto b) {
  return a.tensor = At(a.tensor, a.at) / b;
}
inline Tensor operator-(At x) { return neg(x.tensor, x.at); }
// clang-format on

}  // namespace tessera
