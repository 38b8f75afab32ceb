// Losses and what they are made of where terms would cancel, vanish or leave the range of float32:
// exact numbers in float64, under layouts, too.
#include <cmath>
#include <functional>

#include "support/catch.h"
#include "support/reference.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Values = std::vector<double>;
using Build = std::function<Tensor(const Tensor& x)>;

/// The value of `build` for x [rows, n] in float32, and its gradient by x.
struct Found {
  Values value, gradient;
};
Found found(const Build& build, const Values& x, int64_t rows, const std::string& layout) {
  Graph g;
  const Dim row("rows", rows), n("n", std::ssize(x) / rows);
  const Tensor in = g.input("x", {row, n}, DType::float32);
  const Tensor y = build(in).named("y"), dx = gradients(sum_all(y), {in})[0].named("dx");
  const Mesh mesh = Mesh::parse(layout.empty() ? "a:1" : "a:3");
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks, {mesh, Layout::parse(layout), {{"f", {y, dx}}}});
  session.feed("x", array_of(
                        [&] {
                          Whole whole({"rows", "n"}, {rows, n.size});
                          whole.data = x;
                          return whole;
                        }(),
                        DType::float32));
  session.run("f");
  return {whole_of(session.fetch("y")).data, whole_of(session.fetch("dx")).data};
}

/// Each within `most` of the largest of what is right.
void check_near(const Values& got, const Values& right, double most) {
  REQUIRE(got.size() == right.size());
  double scale = 1e-37;  // below it float32 has few digits
  for (const double v : right) scale = std::max(scale, std::isfinite(v) ? std::abs(v) : 0);
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i << ": " << got[i] << ", right " << right[i]);
    CHECK((got[i] == right[i] || std::abs(got[i] - right[i]) <= most * scale));
  }
}

/// Labels of rows, in parts of 3 ranks in turn.
int label_of(size_t row) { return static_cast<int>(row * 3 + 1) % 7; }
Tensor labels_of(const Tensor& x) {
  std::vector<int32_t> labels;
  for (int64_t r = 0; r < x.dim("rows").size; ++r)
    labels.push_back(label_of(static_cast<size_t>(r)));
  return constant(x.graph(), Array::of<int32_t>(Shape{x.dim("rows")}, labels));
}

/// Cross-entropy of these labels and its gradient.
Found cross_entropy_of(const Values& x, int64_t rows) {
  const size_t n = x.size() / static_cast<size_t>(rows);
  Found f;
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    const double* row = &x[r * n];
    const double top = *std::max_element(row, row + n);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(row[i] - top);
    f.value.push_back(std::log(sum) - (row[label_of(r)] - top));
    for (size_t i = 0; i < n; ++i)
      f.gradient.push_back(std::exp(row[i] - top) / sum -
                           (static_cast<int>(i) == label_of(r) ? 1 : 0));
  }
  return f;
}

TEST_CASE("cross-entropy keeps its digits whatever offset the logits have", "[losses]") {
  const auto hard = [&](const Tensor& x) { return cross_entropy(x, labels_of(x), "n"); };
  const auto soft = [&](const Tensor& x) {
    return cross_entropy(x, one_hot(labels_of(x), x.dim("n"), 1, 0, DType::float32), "n");
  };
  for (const double offset : {0.0, 1e2, 1e4, -1e4, 1e6, -1e30, 1e30}) {
    Values x;
    for (int i = 0; i < 28; ++i)
      x.push_back(static_cast<float>(offset + 1.7 * std::sin(2.3 * i * i)));
    const Found right = cross_entropy_of(x, 4);
    for (const char* layout : {"", "n:a", "rows:a"}) {
      for (const Build& build : {Build(hard), Build(soft)}) {
        INFO("offset " << offset << " layout " << layout);
        const Found got = found(build, x, 4, layout);
        check_near(got.value, right.value, 1e-6);
        check_near(got.gradient, right.gradient, 1e-6);
      }
    }
  }
  // Far apart, and with tokens that cannot come.
  const Values far = {-INFINITY, 1e4, 9999, -1e4, 0, 5, 3e38, 0, 1, 2, 3, -INFINITY, -3e38, 5};
  const Found right = cross_entropy_of(far, 2);
  for (const char* layout : {"", "n:a"}) {
    const Found got = found(hard, far, 2, layout);
    check_near({got.value[0]}, {right.value[0]}, 1e-6);
    check_near({got.value[1]}, {right.value[1]}, 1e-6);
    check_near(got.gradient, right.gradient, 1e-6);
  }
}

TEST_CASE("sigmoid cross-entropy of sure logits does not cancel", "[losses]") {
  const Values x = {-100, -20, -3, 0, 3, 20, 100, 1e4};
  for (const double label : {0.0, 0.25, 1.0}) {
    Found right;
    for (const double v : x) {
      const double up = std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))),
                   down = std::max(-v, 0.0) + std::log1p(std::exp(-std::abs(v)));
      right.value.push_back(label * down + (1 - label) * up);
      right.gradient.push_back((1 - label) / (1 + std::exp(-v)) - label / (1 + std::exp(v)));
    }
    for (const char* layout : {"", "n:a"}) {
      const Found got = found(
          [label](const Tensor& logits) {
            const Tensor labels =
                broadcast(constant(logits.graph(), label, DType::float32), logits.shape());
            return nn::sigmoid_cross_entropy(logits, labels);
          },
          x, 1, layout);
      for (size_t i = 0; i < x.size(); ++i) {  // each by itself: small losses have digits, too
        INFO("logit " << x[i] << " label " << label);
        check_near({got.value[i]}, {right.value[i]}, 1e-6);
        check_near({got.gradient[i]}, {right.gradient[i]}, 1e-6);
      }
    }
  }
}

TEST_CASE("the gradient of a product is right where the product leaves the range", "[losses]") {
  const auto product = [](const Tensor& x) { return reduce_prod(x, "n"); };
  for (const Values& x : {Values{1e-30, 1e-30},
                          {1e30, 1e30},
                          {1e-30, 1e-10, 3},
                          {1e-25, 1e-25, 1e25, 2},
                          {0, 1e-30},
                          {0, 0, 1e30},
                          {2, -3, 4}}) {
    Values right;
    for (size_t i = 0; i < x.size(); ++i) {
      right.push_back(1);
      for (size_t j = 0; j < x.size(); ++j)
        right.back() *= j == i ? 1 : static_cast<double>(static_cast<float>(x[j]));
    }
    for (const char* layout : {"", "n:a"}) {
      const Found got = found(product, x, 1, layout);
      for (size_t i = 0; i < x.size(); ++i) check_near({got.gradient[i]}, {right[i]}, 1e-6);
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
