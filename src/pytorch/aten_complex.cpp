// Complex numbers: a real part and an imaginary one, each a tensor of the same dims.
#include <algorithm>
#include <cmath>

#include "pytorch/aten.h"

namespace tessera::pytorch {

namespace {

/// Axes of operands that broadcast, and parts that `build` makes of theirs; an imaginary part that
/// is zero is empty.
Value complex_pointwise(Call& c, const std::vector<Value>& xs,
                        const std::function<Complex(const std::vector<Complex>&)>& build) {
  std::vector<Value> parts;
  for (const Value& x : xs) {
    parts.push_back(x);
    if (!x.is_complex) continue;
    Value imaginary = x;
    imaginary.tensor = x.imaginary;
    parts.push_back(imaginary);
  }
  Tensor im;
  Value y = c.pointwise(parts, c.dtype(), [&](const std::vector<Tensor>& t) {
    std::vector<Complex> all;
    size_t i = 0;
    for (const Value& x : xs) {
      const Tensor re = t[i++];
      all.push_back({re, x.is_complex ? t[i++] : Tensor()});
    }
    const Complex made = build(all);
    im = made.im;
    return made.re;
  });
  y.imaginary = im;
  return y;
}

Tensor squared_size(const Complex& x) { return square(x.re) + square(x.im); }

std::vector<Value> of_parts(Call& c) {
  return {complex_pointwise(c, {c.value("real"), c.value("imag")}, [](const auto& x) {
    return Complex{x[0].re, x[1].re};
  })};
}

std::vector<Value> of_angle(Call& c) {
  return {complex_pointwise(c, {c.value("abs"), c.value("angle")}, [](const auto& x) {
    return Complex{x[0].re * cos(x[1].re), x[0].re * sin(x[1].re)};
  })};
}

template <bool imaginary>
std::vector<Value> one_part(Call& c) {
  Value x = c.value("self");
  if (imaginary) x.tensor = x.imaginary;
  return {c.moved(x, x.axes)};
}

std::vector<Value> absolute(Call& c) {
  return {complex_pointwise(c, {c.value("self")}, [](const auto& x) {
    return Complex{x[0].im.empty() ? abs(x[0].re) : sqrt(squared_size(x[0])), {}};
  })};
}

/// Its angle; 0 or pi for a real number.
std::vector<Value> angle(Call& c) {
  return {complex_pointwise(c, {c.value("self")}, [](const auto& x) {
    return Complex{arc_tangent(x[0].im.empty() ? zeros_like(x[0].re) : x[0].im, x[0].re), {}};
  })};
}

std::vector<Value> conjugate(Call& c) {
  return {complex_pointwise(c, {c.value("self")}, [](const auto& x) {
    return Complex{x[0].re, neg(x[0].im)};
  })};
}

std::vector<Value> exponential(Call& c) {
  return {complex_pointwise(c, {c.value("self")}, [](const auto& x) {
    return Complex{exp(x[0].re) * cos(x[0].im), exp(x[0].re) * sin(x[0].im)};
  })};
}

std::vector<Value> complex_quotient(Call& c) {
  return {complex_pointwise(c, {c.value("self"), c.value("other")}, [](const auto& x) {
    const Complex &a = x[0], &b = x[1];
    const auto over = [](const Tensor& t, const Tensor& by) { return t.empty() ? t : t / by; };
    if (b.im.empty()) return Complex{a.re / b.re, over(a.im, b.re)};
    const Tensor all = squared_size(b);
    if (a.im.empty()) return Complex{a.re * b.re / all, neg(a.re * b.im) / all};
    return Complex{(a.re * b.re + a.im * b.im) / all, (a.im * b.re - a.re * b.im) / all};
  })};
}

/// A last axis of real and imaginary parts.
std::vector<Value> viewed_as_real(Call& c) {
  const Value x = c.value("self");
  Value imaginary = x;
  imaginary.tensor = x.imaginary;
  return {stacked(c, {x, imaginary}, x.axes.size(), c.dtype())};
}

std::vector<Value> viewed_as_complex(Call& c) {
  const Value x = c.value("self");
  if (x.axes.empty() || c.size(x.axes.back()) != 2) c.refuse("has no axis of two parts");
  Value y = element(c, x, x.axes.size() - 1, 0);
  y.imaginary = element(c, x, x.axes.size() - 1, 1).tensor;
  return {y};
}

/// The transform along one axis, of which n elements count; `half`: a real signal has only the
/// frequencies 0 to n / 2.
enum class Half { neither, of_result, of_operand };
Value transformed(Call& c, const Value& x, size_t d, int64_t n, bool inverse, Half half,
                  const std::string& norm) {
  const int64_t given = c.size(x.axes[d]), size = half == Half::of_result ? n / 2 + 1 : n;
  AxisList axes = x.axes;
  if (size != given) axes[d] = {}, axes[d] = c.fresh(size, axes);
  Tensor im;
  Value y = c.made(axes, [&] {
    const Dim from("fft__from", given), to("fft__to", n);
    const auto prepared = [&](const Tensor& t) {
      Tensor part = one_dim(c, cast(t, c.dtype()), x.axes[d], from);
      const int64_t most = half == Half::of_operand ? n / 2 + 1 : n;
      if (given > most) part = slice(part, from.name, 0, most);
      if (given < most) part = pad(part, from.name, 0, most - given);
      return part;
    };
    Complex z{prepared(x.tensor), x.is_complex ? prepared(x.imaginary) : Tensor()};
    if (z.im.empty()) z.im = zeros_like(z.re);
    if (half == Half::of_operand) {  // frequency n - k is the conjugate of frequency k
      Array at(DType::int32, {to.name}, {n}), sign(DType::float32, {to.name}, {n});
      for (int64_t k = 0; k < n; ++k) {
        at.data<int32_t>()[k] = static_cast<int32_t>(std::min(k, n - k));
        sign.data<float>()[k] = k == 0 || 2 * k == n ? 0.0f : 2 * k < n ? 1.0f : -1.0f;
      }
      const Tensor index = tessera::constant(c.graph(), at);
      z.re = gather(z.re, index, from.name);
      z.im = gather(z.im, index, from.name) * cast(tessera::constant(c.graph(), sign), c.dtype());
    } else {
      z.re = rename(z.re, from.name, to.name), z.im = rename(z.im, from.name, to.name);
    }
    Complex made = fft(z, to.name, inverse);
    const double count = static_cast<double>(n);
    const double factor = norm == "ortho"     ? (inverse ? std::sqrt(count) : 1 / std::sqrt(count))
                          : norm == "forward" ? (inverse ? count : 1 / count)
                                              : 1;
    const auto finished = [&](Tensor t) {
      if (size != n) t = slice(t, to.name, 0, size);
      if (factor != 1) t = t * factor;
      return dims_again(c, t, Dim(to.name, size), axes[d]);
    };
    if (half != Half::of_operand) im = finished(made.im);
    return finished(made.re);
  });
  y.imaginary = im;
  y.is_complex = half != Half::of_operand;
  return y;
}

/// fft, ifft, rfft, irfft and those of several axes, of which the last one is halved.
std::vector<Value> fourier(Call& c) {
  Value x = c.value("self");
  const std::string op = c.node().target.substr(std::string("aten.fft_").size());
  const bool inverse = op.starts_with("i"), real = op[inverse ? 1 : 0] == 'r';
  const std::string norm = c.text("norm", "backward");
  const bool one = op.find("fft.") != std::string::npos;
  std::vector<int64_t> dims;
  if (one) {
    dims = {c.whole("dim", -1)};
  } else if (op.find("fft2.") != std::string::npos) {
    dims = c.list("dim", std::vector<int64_t>{-2, -1});
  } else {
    const size_t count = c.list("s", std::vector<int64_t>(x.axes.size())).size();
    std::vector<int64_t> last;
    for (size_t i = 0; i < count; ++i)
      last.push_back(static_cast<int64_t>(x.axes.size() - count + i));
    dims = c.list("dim", last);
  }
  std::vector<int64_t> sizes = one && c.is_given("n") ? std::vector<int64_t>{c.whole("n")}
                                                      : c.list("s", std::vector<int64_t>());
  // A real signal is halved first along its last axis; its inverse doubles that axis at the end.
  const size_t count = dims.size();
  for (size_t k = 0; k < count; ++k) {
    const size_t i = real && !inverse ? count - 1 - k : k;
    const auto d = static_cast<size_t>(dims[i] < 0 ? dims[i] + std::ssize(x.axes) : dims[i]);
    if (d >= x.axes.size()) c.refuse("transforms an axis that there is not");
    const bool halves_it = real && i + 1 == count;
    const int64_t n = c.size(x.axes[d]);
    const int64_t given = i < sizes.size() && sizes[i] > 0 ? sizes[i]
                          : halves_it && inverse           ? 2 * (n - 1)
                                                           : n;
    x = transformed(c, x, d, given, inverse,
                    !halves_it ? Half::neither
                    : inverse  ? Half::of_operand
                               : Half::of_result,
                    norm);
  }
  return {x};
}

/// The same in core ATen: the normalization is 0, or that of `ortho` (1) or of all (2).
std::vector<Value> core_fourier(Call& c) {
  Value x = c.value("self");
  const bool to_real = c.is_given("last_dim_size"), of_real = c.is_given("onesided");
  const bool inverse = to_real || (!of_real && !c.flag("forward", true));
  const int64_t scaling = c.whole("normalization");
  const char* const norm = scaling == 1                 ? "ortho"
                           : (scaling == 0) == !inverse ? "backward"
                                                        : "forward";
  const std::vector<int64_t> dims = c.list("dim");
  for (size_t k = 0; k < dims.size(); ++k) {
    const int64_t i = dims[of_real ? dims.size() - 1 - k : k];
    const auto d = static_cast<size_t>(i < 0 ? i + std::ssize(x.axes) : i);
    if (d >= x.axes.size()) c.refuse("transforms an axis that there is not");
    const bool halves_it = i == dims.back() && (to_real || (of_real && c.flag("onesided", true)));
    x = transformed(c, x, d, halves_it && to_real ? c.whole("last_dim_size") : c.size(x.axes[d]),
                    inverse,
                    !halves_it ? Half::neither
                    : to_real  ? Half::of_operand
                               : Half::of_result,
                    norm);
  }
  return {x};
}

const Row kComplex[] = {
    {"complex.default", of_parts},
    {"polar.default", of_angle},
    {"real.default", one_part<false>},
    {"imag.default", one_part<true>},
    {"abs.default", absolute},
    {"angle.default", angle},
    {"conj.default _conj.default conj_physical.default", conjugate},
    {"exp.default", exponential},
    {"div.Tensor", complex_quotient},
    {"view_as_real.default", viewed_as_real},
    {"view_as_complex.default", viewed_as_complex},
    {"fft_fft.default fft_ifft.default fft_rfft.default fft_irfft.default fft_fft2.default "
     "fft_ifft2.default fft_rfft2.default fft_irfft2.default fft_fftn.default fft_ifftn.default "
     "fft_rfftn.default fft_irfftn.default",
     fourier},
    {"_fft_r2c.default _fft_c2r.default _fft_c2c.default", core_fourier},
};

}  // namespace

std::span<const Row> complex_rows() { return kComplex; }

}  // namespace tessera::pytorch
