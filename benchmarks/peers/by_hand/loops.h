// The loops of the step that are not products; vectorized by the compiler (-O3 -ffast-math).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace by_hand {

/// y = (x - mean) rdev scale + bias over n elements.
inline void norm_row(const float* x, int n, const float* scale, const float* bias, float* y,
                     float& mean, float& rdev) {
  float sum = 0, squares = 0;
  for (int j = 0; j < n; ++j) sum += x[j];
  const float center = sum / static_cast<float>(n);
  for (int j = 0; j < n; ++j) squares += (x[j] - center) * (x[j] - center);
  const float r = 1 / std::sqrt(squares / static_cast<float>(n) + 1e-5f);
  for (int j = 0; j < n; ++j) y[j] = (x[j] - center) * r * scale[j] + bias[j];
  mean = center;
  rdev = r;
}

/// Adds to dx the gradient by x, and to dscale and dbias theirs.
inline void norm_row_backward(const float* x, const float* dy, int n, const float* scale,
                              float mean, float rdev, float* dx, float* dscale, float* dbias) {
  float sum = 0, dot = 0;
  for (int j = 0; j < n; ++j) {
    const float unit = (x[j] - mean) * rdev, d = dy[j] * scale[j];
    sum += d;
    dot += d * unit;
    dscale[j] += dy[j] * unit;
    dbias[j] += dy[j];
  }
  sum /= static_cast<float>(n);
  dot /= static_cast<float>(n);
  for (int j = 0; j < n; ++j) dx[j] += rdev * (dy[j] * scale[j] - sum - (x[j] - mean) * rdev * dot);
}

/// Gelu by tanh of u + bias, as u sigmoid(2 z): y gets the value and u the slope.
inline void gelu_row(float* u, const float* bias, int n, float* y) {
  constexpr float a = 1.5957691216f, b = 0.044715f;  // 2 sqrt(2 / pi)
  for (int j = 0; j < n; ++j) {
    const float x = u[j] + bias[j], square = x * x;
    const float gate = 1 / (1 + std::exp(-a * x * (1 + b * square)));
    y[j] = x * gate;
    u[j] = gate + x * gate * (1 - gate) * a * (1 + 3 * b * square);
  }
}

/// du = dy slope, in place, and its column sums.
inline void gelu_row_backward(float* dy, const float* slope, int n, float* dbias) {
  for (int j = 0; j < n; ++j) {
    dy[j] *= slope[j];
    dbias[j] += dy[j];
  }
}

/// Softmax of the first `seen` of n elements, in place; the rest becomes 0.
inline void softmax_row(float* x, int seen, int n) {
  float most = x[0], sum = 0;
  for (int j = 1; j < seen; ++j) most = std::max(most, x[j]);
  for (int j = 0; j < seen; ++j) x[j] = std::exp(x[j] - most);
  for (int j = 0; j < seen; ++j) sum += x[j];
  const float scale = 1 / sum;
  for (int j = 0; j < seen; ++j) x[j] *= scale;
  std::fill(x + seen, x + n, 0.0f);
}

/// The loss of one row of logits, which become weight times their gradient.
inline float cross_entropy_row(float* x, int n, int target, float weight) {
  float most = x[0], sum = 0;
  for (int j = 1; j < n; ++j) most = std::max(most, x[j]);
  const float picked = x[target] - most;
  for (int j = 0; j < n; ++j) x[j] = std::exp(x[j] - most);
  for (int j = 0; j < n; ++j) sum += x[j];
  const float scale = weight / sum;
  for (int j = 0; j < n; ++j) x[j] *= scale;
  x[target] -= weight;
  return std::log(sum) - picked;
}

inline void add_row(const float* x, int n, float* sum) {
  for (int j = 0; j < n; ++j) sum[j] += x[j];
}

inline float dot_row(const float* a, const float* b, int n) {
  float sum = 0;
  for (int j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

/// c1 and c2: 1 / (1 - beta^step).
inline void adam_loop(float* __restrict p, const float* __restrict g, float* __restrict m,
                      float* __restrict v, int64_t n, float lr, float c1, float c2) {
  constexpr float beta1 = 0.9f, beta2 = 0.95f;
  for (int64_t i = 0; i < n; ++i) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    p[i] -= lr * (m[i] * c1) / (std::sqrt(v[i] * c2) + 1e-8f);
  }
}

}  // namespace by_hand
