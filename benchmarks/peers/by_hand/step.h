// A training step of gpt written by hand for one rank on one thread: forward, backward and AdamW on
// float32, with products from a BLAS and everything else as plain loops. Sums over ranks are the
// caller's: all gradients lie in one flat buffer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace by_hand {

struct Sizes {
  int layers = 4, d = 256, heads = 8, length = 128, vocab = 256;
  int batch = 8;         ///< examples of this rank
  int batch_in_all = 8;  ///< examples of all ranks: the loss is their mean
  int ff() const { return 4 * d; }
  int d_head() const { return d / heads; }
  int tokens() const { return batch * length; }
};

/// Zeroed floats on a cache line of their own.
class Floats {
 public:
  Floats() = default;
  explicit Floats(int64_t count);
  float* data() { return data_.get(); }
  float& operator[](int64_t i) { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

/// Parts of a flat buffer, row-major: qkv [d, 3 d] with query, key and value side by side, out [d,
/// d], up [d, ff], down [ff, d].
struct BlockWeights {
  float *norm1_scale, *norm1_bias, *qkv, *qkv_bias, *out, *out_bias;
  float *norm2_scale, *norm2_bias, *up, *up_bias, *down, *down_bias;
};
struct Weights {
  float *embedding, *position;  ///< [vocab, d], [length, d]
  std::vector<BlockWeights> blocks;
  float *norm_scale, *norm_bias, *head;  ///< head [d, vocab]
  int64_t count;                         ///< elements of the buffer, with padding between the parts
};
Weights cut(const Sizes& s, float* flat);

class Step {
 public:
  explicit Step(const Sizes& sizes);
  const Sizes& sizes() const { return s_; }
  Weights& weights() { return weights_; }
  Weights& gradients() { return gradients_; }
  /// Elements to sum over the ranks: all gradients and, at the end, the loss.
  int64_t sum_count() const { return weights_.count + 1; }
  float* sums() { return flat_gradients_.data(); }
  float loss() { return flat_gradients_[weights_.count]; }

  /// This rank's share of the loss and of the gradients; inputs and targets are [batch, length].
  void differentiate(const int32_t* inputs, const int32_t* targets);
  /// AdamW with betas 0.9 and 0.95, eps 1e-8, no decay.
  void update(float lr);

 private:
  /// What forward keeps of a block for backward.
  struct Kept {
    Floats qkv, probabilities, seen, activated, slope;
  };
  void forward(const int32_t* inputs);
  void backward(const int32_t* inputs);
  void attend(Kept& kept);
  void attend_backward(Kept& kept);
  /// x[i] = x[i - 1] + branch + bias, then its norm.
  void residual_norm(int i, const float* bias, const float* norm_scale, const float* norm_bias);
  /// Adds to dx what flows through the norm of x[i], then to dbias the column sums of dx.
  void norm_backward(int i, const float* scale, float* dscale, float* dnorm_bias, float* dbias);

  Sizes s_;
  Floats flat_weights_, flat_gradients_, m_, v_;
  Weights weights_, gradients_;
  int64_t steps_ = 0;
  std::vector<Kept> kept_;
  std::vector<Floats> x_, normed_, mean_, rdev_;  ///< of the 2 layers + 1 points of the stream
  Floats logits_, branch_, dx_, dnormed_, dff_, dqkv_, dseen_, scores_;
};

}  // namespace by_hand
