#include "step.h"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <new>

#include "loops.h"

#ifdef TESSERA_HAVE_DNNL
#include <dnnl.h>
#endif

namespace by_hand {

namespace {

/// Queries, or keys, that attention handles at once: it skips whole blocks above the diagonal.
constexpr int kBlock = 64;

struct Matrix {
  const float* data;
  int row;  ///< elements from row to row
  bool transposed = false;
};

struct Product {
  int m, n, k;
  Matrix a, b;
  float* c;
  int c_row;
  float alpha;
};

void by_openblas(const Product& p) {
  cblas_sgemm(CblasRowMajor, p.a.transposed ? CblasTrans : CblasNoTrans,
              p.b.transposed ? CblasTrans : CblasNoTrans, p.m, p.n, p.k, p.alpha, p.a.data, p.a.row,
              p.b.data, p.b.row, 0, p.c, p.c_row);
}

#ifdef TESSERA_HAVE_DNNL
void by_onednn(const Product& p) {
  dnnl_sgemm(p.a.transposed ? 'T' : 'N', p.b.transposed ? 'T' : 'N', p.m, p.n, p.k, p.alpha,
             p.a.data, p.a.row, p.b.data, p.b.row, 0, p.c, p.c_row);
}

/// Which library is faster: the least of five times each.
bool onednn_is_faster(const Product& p) {
  auto seconds = [&](void (*library)(const Product&)) {
    const auto start = std::chrono::steady_clock::now();
    library(p);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double onednn = 1e30, openblas = 1e30;
  for (int i = 0; i < 5; ++i) {
    onednn = std::min(onednn, seconds(by_onednn));
    openblas = std::min(openblas, seconds(by_openblas));
  }
  return onednn < openblas;
}
#endif

/// c[m, n] = alpha a[m, k] b[k, n], by the library that was faster at the first product like it.
void multiply(int m, int n, int k, Matrix a, Matrix b, float* c, int c_row, float alpha = 1) {
  const Product p = {m, n, k, a, b, c, c_row, alpha};
#ifdef TESSERA_HAVE_DNNL
  using Key = std::array<int, 8>;
  static std::map<Key, bool> faster;
  const Key key = {m, n, k, a.row, b.row, c_row, a.transposed, b.transposed};
  auto it = faster.find(key);
  if (it == faster.end()) it = faster.emplace(key, onednn_is_faster(p)).first;
  if (it->second) return by_onednn(p);
#endif
  by_openblas(p);
}

/// y[tokens, out] = x[tokens, in] w[in, out].
void project(const Sizes& s, int in, int out, const float* x, const float* w, float* y) {
  multiply(s.tokens(), out, in, {x, in}, {w, out}, y, out);
}

void project_backward(const Sizes& s, int in, int out, const float* x, const float* w,
                      const float* dy, float* dx, float* dw) {
  multiply(in, out, s.tokens(), {x, in, true}, {dy, out}, dw, out);
  multiply(s.tokens(), in, out, {dy, out}, {w, out, true}, dx, in);
}

}  // namespace

Floats::Floats(int64_t count) {
  const size_t bytes = (static_cast<size_t>(count) * sizeof(float) + 63) / 64 * 64;
  data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);
}

Weights cut(const Sizes& s, float* flat) {
  int64_t at = 0;
  auto take = [&](int64_t count) {
    float* part = flat == nullptr ? nullptr : flat + at;
    at += (count + 15) / 16 * 16;
    return part;
  };
  const int64_t d = s.d, ff = s.ff();
  Weights w = {};
  w.embedding = take(s.vocab * d);
  w.position = take(s.length * d);
  for (int i = 0; i < s.layers; ++i) {
    BlockWeights b;
    b.norm1_scale = take(d), b.norm1_bias = take(d);
    b.qkv = take(d * 3 * d), b.qkv_bias = take(3 * d);
    b.out = take(d * d), b.out_bias = take(d);
    b.norm2_scale = take(d), b.norm2_bias = take(d);
    b.up = take(d * ff), b.up_bias = take(ff);
    b.down = take(ff * d), b.down_bias = take(d);
    w.blocks.push_back(b);
  }
  w.norm_scale = take(d), w.norm_bias = take(d);
  w.head = take(d * s.vocab);
  w.count = at;
  return w;
}

Step::Step(const Sizes& sizes) : s_(sizes) {
  const int64_t count = cut(s_, nullptr).count, n = s_.tokens(), d = s_.d;
  flat_weights_ = Floats(count);
  flat_gradients_ = Floats(count + 1);
  m_ = Floats(count);
  v_ = Floats(count);
  weights_ = cut(s_, flat_weights_.data());
  gradients_ = cut(s_, flat_gradients_.data());
  const int64_t scores = static_cast<int64_t>(s_.length) * s_.length;
  for (int i = 0; i < s_.layers; ++i) {
    kept_.push_back({Floats(n * 3 * d), Floats(s_.batch * s_.heads * scores), Floats(n * d),
                     Floats(n * s_.ff()), Floats(n * s_.ff())});
  }
  for (int i = 0; i < 2 * s_.layers + 1; ++i) {
    x_.emplace_back(n * d);
    normed_.emplace_back(n * d);
    mean_.emplace_back(n);
    rdev_.emplace_back(n);
  }
  logits_ = Floats(n * s_.vocab);
  for (Floats* buffer : {&branch_, &dx_, &dnormed_, &dseen_}) *buffer = Floats(n * d);
  dff_ = Floats(n * s_.ff());
  dqkv_ = Floats(n * 3 * d);
  scores_ = Floats(scores);
}

void Step::residual_norm(int i, const float* bias, const float* norm_scale,
                         const float* norm_bias) {
  const int d = s_.d;
  for (int r = 0; r < s_.tokens(); ++r) {
    const int64_t at = static_cast<int64_t>(r) * d;
    float* x = &x_[i][at];
    if (i > 0) {
      const float *before = &x_[i - 1][at], *branch = &branch_[at];
      for (int j = 0; j < d; ++j) x[j] = before[j] + branch[j] + bias[j];
    }
    norm_row(x, d, norm_scale, norm_bias, &normed_[i][at], mean_[i][r], rdev_[i][r]);
  }
}

void Step::norm_backward(int i, const float* scale, float* dscale, float* dnorm_bias,
                         float* dbias) {
  const int d = s_.d;
  for (int r = 0; r < s_.tokens(); ++r) {
    const int64_t at = static_cast<int64_t>(r) * d;
    norm_row_backward(&x_[i][at], &dnormed_[at], d, scale, mean_[i][r], rdev_[i][r], &dx_[at],
                      dscale, dnorm_bias);
    if (dbias != nullptr) add_row(&dx_[at], d, dbias);
  }
}

void Step::attend(Kept& kept) {
  const int length = s_.length, d = s_.d, dh = s_.d_head();
  const float scale = 1 / std::sqrt(static_cast<float>(dh));
  for (int bh = 0; bh < s_.batch * s_.heads; ++bh) {
    const int64_t row = static_cast<int64_t>(bh / s_.heads) * length;
    const int column = bh % s_.heads * dh;
    const float* query = &kept.qkv[row * 3 * d + column];
    const float *key = query + d, *value = query + 2 * d;
    float* scores = &kept.probabilities[static_cast<int64_t>(bh) * length * length];
    for (int i = 0; i < length; i += kBlock) {
      const int rows = std::min(kBlock, length - i), keys = i + rows;
      float* block = scores + static_cast<int64_t>(i) * length;
      multiply(rows, keys, dh, {query + i * 3 * d, 3 * d}, {key, 3 * d, true}, block, length,
               scale);
      for (int r = 0; r < rows; ++r) softmax_row(block + r * length, i + r + 1, keys);
      multiply(rows, dh, keys, {block, length}, {value, 3 * d}, &kept.seen[(row + i) * d + column],
               d);
    }
  }
}

void Step::attend_backward(Kept& kept) {
  const int length = s_.length, d = s_.d, dh = s_.d_head();
  const float scale = 1 / std::sqrt(static_cast<float>(dh));
  float* dscores = scores_.data();
  for (int bh = 0; bh < s_.batch * s_.heads; ++bh) {
    const int64_t row = static_cast<int64_t>(bh / s_.heads) * length;
    const int column = bh % s_.heads * dh;
    const float* query = &kept.qkv[row * 3 * d + column];
    const float *key = query + d, *value = query + 2 * d;
    float* dquery = &dqkv_[row * 3 * d + column];
    const float* seen = &kept.seen[row * d + column];
    const float* dseen = &dseen_[row * d + column];
    const float* scores = &kept.probabilities[static_cast<int64_t>(bh) * length * length];
    for (int i = 0; i < length; i += kBlock) {
      const int rows = std::min(kBlock, length - i), keys = i + rows;
      float* block = dscores + i * length;
      multiply(rows, keys, dh, {dseen + i * d, d}, {value, 3 * d, true}, block, length);
      for (int r = i; r < i + rows; ++r) {
        const float mean = dot_row(dseen + r * d, seen + r * d, dh);
        const float* p = scores + r * length;
        float* ds = dscores + r * length;
        for (int j = 0; j < keys; ++j) ds[j] = p[j] * (ds[j] - mean) * scale;
      }
      multiply(rows, dh, keys, {block, length}, {key, 3 * d}, dquery + i * 3 * d, 3 * d);
    }
    for (int j = 0; j < length; j += kBlock) {
      const int keys = std::min(kBlock, length - j), rows = length - j;
      const int diagonal = j * length + j;
      multiply(keys, dh, rows, {dscores + diagonal, length, true}, {query + j * 3 * d, 3 * d},
               dquery + d + j * 3 * d, 3 * d);
      multiply(keys, dh, rows, {scores + diagonal, length, true}, {dseen + j * d, d},
               dquery + 2 * d + j * 3 * d, 3 * d);
    }
  }
}

void Step::forward(const int32_t* inputs) {
  const int n = s_.tokens(), d = s_.d, ff = s_.ff();
  const Weights& w = weights_;
  for (int r = 0; r < n; ++r) {
    const float* embedding = w.embedding + static_cast<int64_t>(inputs[r]) * d;
    const float* position = w.position + r % s_.length * d;
    float* x = &x_[0][static_cast<int64_t>(r) * d];
    for (int j = 0; j < d; ++j) x[j] = embedding[j] + position[j];
  }
  const float* bias = nullptr;
  for (int l = 0; l < s_.layers; ++l) {
    const BlockWeights& b = w.blocks[l];
    Kept& kept = kept_[l];
    residual_norm(2 * l, bias, b.norm1_scale, b.norm1_bias);
    project(s_, d, 3 * d, normed_[2 * l].data(), b.qkv, kept.qkv.data());
    for (int r = 0; r < n; ++r)
      add_row(b.qkv_bias, 3 * d, &kept.qkv[static_cast<int64_t>(r) * 3 * d]);
    attend(kept);
    project(s_, d, d, kept.seen.data(), b.out, branch_.data());
    residual_norm(2 * l + 1, b.out_bias, b.norm2_scale, b.norm2_bias);
    project(s_, d, ff, normed_[2 * l + 1].data(), b.up, kept.slope.data());
    for (int r = 0; r < n; ++r) {
      const int64_t at = static_cast<int64_t>(r) * ff;
      gelu_row(&kept.slope[at], b.up_bias, ff, &kept.activated[at]);
    }
    project(s_, ff, d, kept.activated.data(), b.down, branch_.data());
    bias = b.down_bias;
  }
  residual_norm(2 * s_.layers, bias, w.norm_scale, w.norm_bias);
  project(s_, d, s_.vocab, normed_[2 * s_.layers].data(), w.head, logits_.data());
}

void Step::backward(const int32_t* inputs) {
  const int n = s_.tokens(), d = s_.d, ff = s_.ff(), last = 2 * s_.layers;
  const Weights& w = weights_;
  Weights& g = gradients_;
  project_backward(s_, d, s_.vocab, normed_[last].data(), w.head, logits_.data(), dnormed_.data(),
                   g.head);
  std::memset(dx_.data(), 0, sizeof(float) * static_cast<size_t>(n) * static_cast<size_t>(d));
  norm_backward(last, w.norm_scale, g.norm_scale, g.norm_bias, g.blocks.back().down_bias);
  for (int l = s_.layers - 1; l >= 0; --l) {
    const BlockWeights &b = w.blocks[l], &gb = g.blocks[l];
    Kept& kept = kept_[l];
    project_backward(s_, ff, d, kept.activated.data(), b.down, dx_.data(), dff_.data(), gb.down);
    for (int r = 0; r < n; ++r) {
      const int64_t at = static_cast<int64_t>(r) * ff;
      gelu_row_backward(&dff_[at], &kept.slope[at], ff, gb.up_bias);
    }
    project_backward(s_, d, ff, normed_[2 * l + 1].data(), b.up, dff_.data(), dnormed_.data(),
                     gb.up);
    norm_backward(2 * l + 1, b.norm2_scale, gb.norm2_scale, gb.norm2_bias, gb.out_bias);
    project_backward(s_, d, d, kept.seen.data(), b.out, dx_.data(), dseen_.data(), gb.out);
    attend_backward(kept);
    for (int r = 0; r < n; ++r) {  // a bias of the keys would cancel in softmax: there is none
      const float* row = &dqkv_[static_cast<int64_t>(r) * 3 * d];
      add_row(row, d, gb.qkv_bias);
      add_row(row + 2 * d, d, gb.qkv_bias + 2 * d);
    }
    project_backward(s_, d, 3 * d, normed_[2 * l].data(), b.qkv, dqkv_.data(), dnormed_.data(),
                     gb.qkv);
    norm_backward(2 * l, b.norm1_scale, gb.norm1_scale, gb.norm1_bias,
                  l > 0 ? g.blocks[l - 1].down_bias : nullptr);
  }
  for (int r = 0; r < n; ++r) {
    const float* dx = &dx_[static_cast<int64_t>(r) * d];
    add_row(dx, d, g.embedding + static_cast<int64_t>(inputs[r]) * d);
    add_row(dx, d, g.position + r % s_.length * d);
  }
}

void Step::differentiate(const int32_t* inputs, const int32_t* targets) {
  std::memset(sums(), 0, sizeof(float) * static_cast<size_t>(sum_count()));
  forward(inputs);
  const float weight = 1 / static_cast<float>(s_.batch_in_all * s_.length);
  double loss = 0;
  for (int r = 0; r < s_.tokens(); ++r) {
    float* row = &logits_[static_cast<int64_t>(r) * s_.vocab];
    loss += cross_entropy_row(row, s_.vocab, targets[r], weight);
  }
  sums()[weights_.count] = static_cast<float>(loss * weight);
  backward(inputs);
}

void Step::update(float lr) {
  ++steps_;
  const double t = static_cast<double>(steps_);
  adam_loop(flat_weights_.data(), flat_gradients_.data(), m_.data(), v_.data(), weights_.count, lr,
            static_cast<float>(1 / (1 - std::pow(0.9, t))),
            static_cast<float>(1 / (1 - std::pow(0.95, t))));
}

}  // namespace by_hand
