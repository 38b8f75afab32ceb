// Scatter-add in the canonical order (program/sum_order.h): the terms of a row of the result are
// the updates with its index. They are sorted by row, and each row is summed like any other sum;
// leaves without an update of the row are left out, which changes no bit.
#include <algorithm>

#include "kernels/common/types.h"
#include "kernels/cpu/indexed_terms.h"
#include "kernels/cpu/tables.h"
#include "program/sum_order.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

template <class T>
class OrderedScatterAdd final : public Kernel {
  using W = Compute<T>;

 public:
  explicit OrderedScatterAdd(const KernelArgs& args)
      : args_(args), stride_(args.step->as<IndexedSpec>().stride) {
    const IndexedSpec& spec = args.step->as<IndexedSpec>();
    const TensorArg &indices = args.in[0], &updates = args.in[1];
    dim_.rule = spec.out_of_range;
    dim_.size = spec.size;
    const OrderedPlaces places = ordered_places(args, {updates.strides, indices.strides});
    for (const OrderedPlace& from : places.places) places_.emplace_back(from, places, 1, dim_.size);
    depth_ = places.depth + 1;
    each_.strides.resize(3);
    row_.strides.resize(2);
    const auto& along = args.step->order.along;
    for (size_t d = 0; d < updates.sizes.size(); ++d) {
      if (updates.sizes[d] == 1 || std::any_of(along.begin(), along.end(), [&](const auto& a) {
            return a.dim == static_cast<int64_t>(d);
          }))
        continue;
      if (indices.strides[d] == 0) {
        row_.add_dim(updates.sizes[d], {spec.strides[d], updates.strides[d]});
      } else {
        each_.add_dim(updates.sizes[d], {spec.strides[d], updates.strides[d], indices.strides[d]});
      }
    }
    row_.order_by(0);
    row_.merge();
    width_ = row_.elements();
    for_each<2>(row_, row_.rank(), [&](const auto& at) {
      to_.push_back(at[0]);
      from_.push_back(at[1]);
    });
    stack_.resize(static_cast<size_t>(depth_ * width_));
  }

  void run() override {
    dim_.first = eval(args_, 0);
    dim_.n = eval(args_, 1);
    const bool is_wide = args_.out[0].dtype != args_.in[1].dtype;
    bool bad = false;
    for (int64_t p = 0; p < args_.step->order.places; ++p) {
      IndexedTerms* place = p < std::ssize(places_) ? &places_[static_cast<size_t>(p)] : nullptr;
      const int64_t to = p * args_.step->order.stride;
      for_each<3>(each_, each_.rank(), [&](const auto& at) {
        if (is_wide) {
          bad |= add(place, at, static_cast<W*>(args_.out[0].data) + to);
        } else {
          bad |= add(place, at, static_cast<T*>(args_.out[0].data) + to);
        }
      });
    }
    if (bad) report_bad_index(args_, args_.in[0], args_.in[1].sizes, dim_.n);
  }

 private:
  template <class At, class Out>
  bool add(IndexedTerms* place, const At& at, Out* out) {
    bool bad = false;
    if (place != nullptr) bad = place->sort(args_.in[0], at[2], dim_);
    for (int64_t row = 0; row < dim_.size; ++row) {
      const W* sum = place == nullptr ? nullptr : sum_of_row(*place, row, at[1]);
      Out* to = out + at[0] + row * stride_;
      const bool is_complete = !args_.step->order.is_split();
      for (int64_t j = 0; j < width_; ++j) {
        W x = sum == nullptr ? W(kNoTerms) : sum[j];
        if (is_complete) x += W(0);
        if constexpr (std::is_same_v<Out, W>)
          to[to_[static_cast<size_t>(j)]] = x;
        else
          to[to_[static_cast<size_t>(j)]] = store_as<Out>(x);
      }
    }
    return bad;
  }

  /// The sum of a row's terms, or null if it has none.
  const W* sum_of_row(const IndexedTerms& place, int64_t row, int64_t at) {
    const std::span<const int64_t> terms = place.of_row(row);
    const T* updates = static_cast<const T*>(args_.in[1].data) + at;
    if (terms.empty()) return nullptr;
    OpenSubtrees open;
    for (size_t i = 0; i < terms.size();) {
      const uint64_t leaf = place.leaf(terms[i]);
      W* acc = stack_.data() + width_ * open.size();
      std::fill(acc, acc + width_, W(kNoTerms));
      for (; i < terms.size() && place.leaf(terms[i]) == leaf; ++i) {
        const T* from = updates + place.at(0, terms[i]);
        for (int64_t j = 0; j < width_; ++j)
          acc[j] = wrapping_add(acc[j], W(load_as(from[from_[static_cast<size_t>(j)]])));
      }
      open.push(leaf);
      const bool last = i == terms.size();
      for (int64_t joins = open.joins(last ? 0 : place.leaf(terms[i]), last); joins > 0; --joins) {
        W* to = stack_.data() + width_ * (open.size() + joins - 2);
        for (int64_t j = 0; j < width_; ++j) to[j] = wrapping_add(to[j], to[j + width_]);
      }
    }
    return stack_.data();
  }

  KernelArgs args_;
  int64_t stride_;  ///< of the result, from row to row
  IndexedDim dim_;
  std::vector<IndexedTerms> places_;
  Nest each_, row_;  ///< dims of the indices that the result has, and those of a row
  std::vector<int64_t> to_, from_;
  int64_t width_ = 1, depth_ = 1;
  std::vector<W> stack_;
};

}  // namespace

std::unique_ptr<Kernel> bind_ordered_scatter_add(const KernelArgs& args) {
  const DType dtype = args.in[1].dtype;
  if (dtype == DType::float64) return std::make_unique<OrderedScatterAdd<double>>(args);
  if (dtype == DType::float32) return std::make_unique<OrderedScatterAdd<float>>(args);
  return with_narrow(dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<OrderedScatterAdd<decltype(zero)>>(args);
  });
}

}  // namespace tessera::cpu
