// The loops of attention kernels on the CPU: over all dims but those of positions and columns, with
// the keys that each query sees and the random bits of its weights.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/segment_spans.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

constexpr double kNothing = -1e30;  // log of a sum over no keys

/// A matrix of positions x columns at one index of the loops.
template <class W>
struct Matrix {
  W* data = nullptr;
  int64_t row = 0, column = 0;
  W* at(int64_t i) const { return data + i * row; }
};

/// Kernel has run_index<T, W>(sharer) for elements of type T that are computed in W, and begin(),
/// which is called once a run. sharer: which of the `sharing_` loop indices that add to one
/// gradient of key and value.
template <class Derived>
class AttentionLoops : public Kernel {
 public:
  explicit AttentionLoops(const KernelArgs& args)
      : args_(args), plan_(*args.step), ops_(*usable_block_ops().back()), args_in_(args.in.size()) {
    std::vector<std::vector<int64_t>> strides;
    for (size_t i = 0; i < operands(); ++i) strides.push_back(operand(i).strides);
    if (plan_.dropout > 0) {
      drawn_.emplace(*args.step);
      strides.push_back(drawn_->strides);
    }
    loops_ = make_nest(args.in[0].sizes, strides);
    std::vector<int64_t> dims = {plan_.length_dim, plan_.memory_dim, plan_.key_dim};
    if (plan_.value_dim != plan_.key_dim) dims.push_back(plan_.value_dim);
    if (plan_.entries > 0) dims.push_back(plan_.entries_dim);
    std::sort(dims.rbegin(), dims.rend());
    for (int64_t d : dims) loops_.remove_dim(static_cast<int>(d));
    if (plan_.backward) move_shared_in();
    index_.resize(loops_.sizes.size());
    offsets_.resize(strides.size());
  }

  void run() override {
    if (args_.in[0].dtype == DType::float64) return run_as<double, double>();
    if (plan_.narrow)
      return with_narrow(args_.in[0].dtype, [&](auto x) { run_as<decltype(x), float>(); });
    run_as<float, float>();
  }

 protected:
  size_t operands() const { return args_.in.size() + args_.out.size(); }
  const TensorArg& operand(size_t i) const {
    return i < args_in_ ? args_.in[i] : args_.out[i - args_in_];
  }

  Derived& derived() { return static_cast<Derived&>(*this); }

  template <class W>
  W* work(int64_t offset) const {
    return reinterpret_cast<W*>(static_cast<char*>(args_.workspace) + offset);
  }

  /// Makes the loops that the gradients of key and value lack the innermost ones.
  void move_shared_in() {
    const std::vector<int64_t>& stride = loops_.strides[args_in_ + 1];
    for (int d = 0, end = loops_.rank(); d < end;) {
      if (stride[d] != 0 || loops_.sizes[d] == 1) {
        ++d;
        continue;
      }
      std::vector<int64_t> of_operand;
      for (const std::vector<int64_t>& s : loops_.strides) of_operand.push_back(s[d]);
      const int64_t size = loops_.sizes[d];
      TESSERA_CHECK(of_operand[args_in_ + 2] == 0, "attention shares keys, but not values");
      loops_.remove_dim(d);
      loops_.add_dim(size, of_operand);
      sharing_ *= size;
      --end;
    }
  }

  template <class T, class W>
  void run_as() {
    const int64_t query = eval(args_, 0), key = eval(args_, 1);
    if (loops_.elements() == 0) return;
    std::fill(index_.begin(), index_.end(), 0);
    std::fill(offsets_.begin(), offsets_.end(), 0);
    derived().begin();
    segments_at_ = {-1, -1};
    if (drawn_) begin_drawing();
    for (int64_t sharer = 0;; sharer = (sharer + 1) % sharing_) {
      const size_t starts = slopes() - plan_.starts;
      first_query_ = query + (plan_.starts > 0 ? start(starts) : 0);
      first_key_ = key + (plan_.starts > 1 ? start(starts + 1) : 0);
      if (plan_.segments) find_spans();
      derived().template run_index<T, W>(sharer);
      int d = loops_.rank() - 1;
      for (; d >= 0; --d) {
        for (size_t i = 0; i < offsets_.size(); ++i) offsets_[i] += loops_.strides[i][d];
        if (++index_[d] < loops_.sizes[d]) break;
        for (size_t i = 0; i < offsets_.size(); ++i)
          offsets_[i] -= loops_.strides[i][d] * loops_.sizes[d];
        index_[d] = 0;
      }
      if (d < 0) return;
    }
  }

  /// The keys of each query by its segment, at the present loop index.
  void find_spans() {
    const size_t own = args_in_ - 2, theirs = args_in_ - 1;
    const std::pair<int64_t, int64_t> at = {offsets_[own], offsets_[theirs]};
    if (at == segments_at_) return;
    segments_at_ = at;
    const auto ids = [&](size_t i, int64_t size, int dim, int64_t first) {
      const TensorArg& arg = operand(i);
      return SegmentIds{static_cast<const int32_t*>(arg.data) + offsets_[i], size,
                        arg.strides[static_cast<size_t>(dim)], first};
    };
    find_segment_spans(ids(own, plan_.length, plan_.length_dim, first_query_),
                       ids(theirs, plan_.memory, plan_.memory_dim, first_key_),
                       work<Span>(plan_.spans), args_.fault);
  }

  /// The keys that query i may attend to.
  Span seen(int64_t i) const {
    PositionRange keys = keys_seen(plan_.mask, i, first_query_, first_key_);
    if (plan_.segments) {
      const Span segment = work<Span>(plan_.spans)[i];
      keys = intersection(keys, {segment.begin, segment.end});
    }
    return keys.end > keys.begin ? Span{keys.begin, keys.end} : Span{};
  }

  /// One number per query, at the present loop index.
  template <class W>
  Matrix<W> row(size_t i) const {
    const TensorArg& arg = operand(i);
    return {static_cast<W*>(arg.data) + offsets_[i], arg.strides[plan_.length_dim], 0};
  }
  int64_t start(size_t i) const {
    return static_cast<const int32_t*>(operand(i).data)[offsets_[i]];
  }

  /// The operand of biases by distance, and that of slopes, or the one behind the positions.
  size_t entries() const { return args_in_ - (plan_.segments ? 2 : 0) - (plan_.entries > 0); }
  size_t slopes() const { return entries() - (plan_.slopes ? 1 : 0); }

  template <class W>
  W scale() const {
    return static_cast<W>(args_.step->template as<AttentionSpec>().scale);
  }

  /// What does not change in a run: keys, and the number of the first bit.
  void begin_drawing() {
    seed_ = static_cast<uint64_t>(eval(args_, AttentionBits::kSeed));
    stream_ = static_cast<uint64_t>(eval(args_, AttentionBits::kStream));
    int64_t& first = offsets_.back();
    for (int i = 0; i < drawn_->pairs; ++i)
      first += eval(args_, AttentionBits::kFirst + 2 * i) *
               eval(args_, AttentionBits::kFirst + 2 * i + 1);
    if (args_.split_dim >= 0)
      first += args_.split_first * drawn_->strides[static_cast<size_t>(args_.split_dim)];
  }
  /// The factors of the weights of query `query` with these keys: 0, or 1 / (1 - rate). Key 0 is
  /// the key `first` of this rank.
  template <class W>
  const W* draw(const Span& keys, int64_t query, int64_t first) const {
    W* kept = work<W>(plan_.kept);
    int64_t* words = work<int64_t>(plan_.bits);
    const auto& strides = drawn_->strides;
    const int64_t step = strides[static_cast<size_t>(plan_.memory_dim)];
    const int64_t at = offsets_.back() +
                       (first_query_ + query) * strides[static_cast<size_t>(plan_.length_dim)] +
                       (first_key_ + first) * step;
    const W scale = static_cast<W>(1 / (1 - plan_.dropout));
    const int64_t limit = AttentionBits::limit(plan_.dropout);
    TESSERA_CHECK(step == 1, "the random bits of neighbouring keys are {} apart", step);
    if (keys.size() == 0) return kept;
    const int64_t begin = at + keys.begin, skip = begin & 3;
    ops_.random(words, static_cast<uint64_t>(begin) >> 2, stream_, seed_,
                (skip + keys.size() + 3) / 4);
    for (int64_t j = keys.begin; j < keys.end; ++j)
      kept[j] = words[skip + j - keys.begin] >> 9 < limit ? scale : W(0);
    return kept;
  }

  KernelArgs args_;
  AttentionPlan plan_;
  const BlockOps& ops_;
  size_t args_in_;
  Nest loops_;           ///< operands, then results
  int64_t sharing_ = 1;  ///< loop indices that add to one gradient of key and value
  std::vector<int64_t> index_, offsets_;
  int64_t first_query_ = 0, first_key_ = 0;
  /// Offsets of the segments whose spans are known.
  std::pair<int64_t, int64_t> segments_at_ = {-1, -1};
  uint64_t seed_ = 0, stream_ = 0;
  std::optional<AttentionBits> drawn_;  ///< with dropout; the last of the offsets is theirs
};

}  // namespace tessera::cpu
