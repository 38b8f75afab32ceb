// The discrete Fourier transform as products with small matrices of roots of unity (Cooley and
// Tukey): a dim of n1 * n2 elements is transformed along n1, multiplied by twiddle factors and
// transformed along n2, so the cost is n * (n1 + n2 + ...). Built from public ops, which split, pad
// and differentiate it.
#include <cmath>
#include <numbers>

#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

constexpr int64_t kDirect = 32;  // up to this size, and for primes: one matmul

/// The largest divisor of n up to kDirect, or n if there is none.
int64_t first_factor(int64_t n) {
  if (n <= kDirect) return n;
  for (int64_t d = kDirect; d > 1; --d) {
    if (n % d == 0) return d;
  }
  return n;
}

class Fft {
 public:
  Fft(Tensor like, bool inverse, Loc at)
      : g_(like.graph()), dtype_(like.dtype()), sign_(inverse ? 1 : -1), at_(at) {}

  /// Transforms x, whose dims may be in any order, along `dim`. The order of dims may change.
  Complex along(const Complex& x, const std::string& dim) const {
    const int64_t n = x.re.dim(dim).size, n1 = first_factor(n);
    if (n1 == n || x.re.dim(dim).is_bounded) return direct(x, dim);
    const Dim major(dim + "/1", n1), minor(dim + "/2", n / n1);
    Complex y{split(x.re, dim, major, minor), x.im.empty() ? x.im : split(x.im, dim, major, minor)};
    y = direct(y, major.name);
    y = times(y, roots(major, minor, n));
    y = along(y, minor.name);
    return {join(y.re, dim, minor, major), join(y.im, dim, minor, major)};
  }

 private:
  Tensor number(double value, DType dtype) const { return constant(g_, value, dtype, {}, at_); }

  /// exp(sign * 2 pi i j k / n) over [j, k].
  Complex roots(const Dim& j, const Dim& k, int64_t n) const {
    const Tensor rows = iota(g_, j, DType::int64, at_);
    const Tensor columns =  // a bounded k has the size of j from here on
        j.is_bounded ? rename(rows, j.name, k.name, at_) : iota(g_, k, DType::int64, at_);
    const double circle = sign_ * 2 * std::numbers::pi;
    const Tensor products = mul(rows, columns, at_);
    Tensor x;
    if (j.is_bounded) {  // n is the size of the run
      const Tensor turn = mod(products, dim_size(g_, j, DType::int64, at_), at_);
      const Tensor angle =
          div(number(circle, DType::float64), dim_size(g_, j, DType::float64, at_), at_);
      x = mul(cast(turn, DType::float64, at_), angle, at_);
    } else {
      const Tensor turn = mod(products, number(static_cast<double>(n), DType::int64), at_);
      x = mul(cast(turn, DType::float64, at_),
              number(circle / static_cast<double>(n), DType::float64), at_);
    }
    const auto as = [&](Tensor t) { return t.dtype() == dtype_ ? t : cast(t, dtype_, at_); };
    return {as(cos(x, at_)), as(sin(x, at_))};
  }

  Complex times(const Complex& a, const Complex& b) const {
    return {sub(mul(a.re, b.re, at_), mul(a.im, b.im, at_), at_),
            add(mul(a.re, b.im, at_), mul(a.im, b.re, at_), at_)};
  }

  /// One product with the full matrix.
  Complex direct(const Complex& x, const std::string& dim) const {
    const Dim from = x.re.dim(dim), to = from.renamed(dim + "/out");
    const Complex matrix = roots(from, to, from.size);
    std::vector<Dim> dims = x.re.shape().dims();
    for (Dim& d : dims) d = d.name == dim ? to : d;
    auto product = [&](Tensor a, Tensor b) { return einsum({a, b}, Shape(dims), at_); };
    Tensor re = product(x.re, matrix.re), im = product(x.re, matrix.im);
    if (!x.im.empty()) {
      re = sub(re, product(x.im, matrix.im), at_);
      im = add(im, product(x.im, matrix.re), at_);
    }
    return {rename(re, to.name, dim, at_), rename(im, to.name, dim, at_)};
  }

  Tensor split(Tensor x, const std::string& dim, const Dim& major, const Dim& minor) const {
    std::vector<Dim> dims;
    for (const Dim& d : x.shape()) {
      dims.push_back(d.name == dim ? major : d);
      if (d.name == dim) dims.push_back(minor);
    }
    return reshape(x, Shape(dims), at_);
  }

  /// Merges the dims major and minor, in any positions, into one dim at the position of minor.
  Tensor join(Tensor x, const std::string& dim, const Dim& major, const Dim& minor) const {
    std::vector<Dim> apart, joined;
    for (const Dim& d : x.shape()) {
      if (d.name == major.name) continue;
      if (d.name == minor.name) {
        apart.push_back(major);
        joined.emplace_back(dim, major.size * minor.size);
      } else {
        joined.push_back(d);
      }
      apart.push_back(d);
    }
    return reshape(transpose(x, Shape(apart), at_), Shape(joined), at_);
  }

  Graph& g_;
  DType dtype_;
  double sign_;
  Loc at_;
};

}  // namespace

Complex fft(const Complex& x, const std::string& dim, bool inverse, Loc at) {
  return on_behalf_of("fft", at, [&]() -> Complex {
    const int64_t n = x.re.dim(dim).size;
    TESSERA_REQUIRE(is_floating(x.re.dtype()), "the operand is {}; it must be floating",
                    to_string(x.re.dtype()));
    TESSERA_REQUIRE(x.im.empty() || (x.im.shape() == x.re.shape() && x.im.dtype() == x.re.dtype()),
                    "the parts are {} {} and {} {}; they must agree", to_string(x.re.dtype()),
                    x.re.shape().to_string(), x.im.empty() ? "" : to_string(x.im.dtype()),
                    x.im.empty() ? "" : x.im.shape().to_string());
    const Complex y = Fft(x.re, inverse, at).along(x, dim);
    auto finished = [&](Tensor t) {
      if (inverse && x.re.dim(dim).is_bounded)
        t = div(t, dim_size(t.graph(), x.re.dim(dim), t.dtype(), at), at);
      else if (inverse)
        t = mul(t, constant(t.graph(), 1.0 / static_cast<double>(n), t.dtype(), {}, at), at);
      return t.shape() == x.re.shape() ? t : transpose(t, x.re.shape(), at);
    };
    return {finished(y.re), finished(y.im)};
  });
}

}  // namespace tessera
