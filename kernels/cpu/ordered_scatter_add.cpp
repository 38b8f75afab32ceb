// Scatter-add in the canonical order (program/sum_order.h): the terms of a row of the result are
// the updates with its index. They are sorted by row, and each row is summed like any other sum;
// leaves without an update of the row are left out, which changes no bit.
#include <algorithm>
#include <numeric>

#include "kernels/common/indexed.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_places.h"
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
    for (const OrderedPlace& from : places.places) add_place(from, places);
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
    first_.resize(static_cast<size_t>(dim_.size) + 2);
  }

  void run() override {
    dim_.first = eval(args_, 0);
    dim_.n = eval(args_, 1);
    const bool is_wide = args_.out[0].dtype != args_.in[1].dtype;
    bool bad = false;
    for (int64_t p = 0; p < args_.step->order.places; ++p) {
      Place* place = p < std::ssize(places_) ? &places_[static_cast<size_t>(p)] : nullptr;
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
  struct Place {
    std::vector<int64_t> updates, indices;  ///< offsets of the terms, in order
    std::vector<uint64_t> leaves;           ///< the numbers of their leaves
    std::vector<int64_t> sorted;            ///< terms by row
  };

  void add_place(const OrderedPlace& from, const OrderedPlaces& places) {
    Place& place = places_.emplace_back();
    size_t run = 0;
    for (size_t leaf = 0; leaf < from.ends.size(); ++leaf) {
      for (; run < static_cast<size_t>(from.ends[leaf]); ++run) {
        for (int64_t i = 0; i < from.runs[run].count; ++i) {
          place.updates.push_back(from.runs[run].at[0] + i * places.strides[0]);
          place.indices.push_back(from.runs[run].at[1] + i * places.strides[1]);
          place.leaves.push_back(from.numbers[leaf]);
        }
      }
    }
    place.sorted.resize(place.updates.size());
  }

  template <class At, class Out>
  bool add(Place* place, const At& at, Out* out) {
    bool bad = false;
    if (place != nullptr) bad = sort_by_row(*place, at[2]);
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

  /// A counting sort that keeps the order of a row's terms.
  bool sort_by_row(Place& place, int64_t at) {
    return args_.in[0].dtype == DType::int64
               ? sort(place, static_cast<const int64_t*>(args_.in[0].data) + at)
               : sort(place, static_cast<const int32_t*>(args_.in[0].data) + at);
  }
  template <class Index>
  bool sort(Place& place, const Index* indices) {
    bool bad = false;
    std::fill(first_.begin(), first_.end(), 0);
    for (const int64_t i : place.indices) {
      const int64_t row = dim_.local(indices[i], bad);
      if (row >= 0) ++first_[static_cast<size_t>(row) + 2];
    }
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    for (size_t t = 0; t < place.indices.size(); ++t) {
      const int64_t row = dim_.local(indices[place.indices[t]], bad);
      if (row >= 0)
        place.sorted[static_cast<size_t>(first_[static_cast<size_t>(row) + 1]++)] =
            static_cast<int64_t>(t);
    }
    return bad;
  }

  /// The sum of a row's terms, or null if it has none.
  const W* sum_of_row(const Place& place, int64_t row, int64_t at) {
    const int64_t begin = first_[static_cast<size_t>(row)],
                  end = first_[static_cast<size_t>(row) + 1];
    const T* updates = static_cast<const T*>(args_.in[1].data) + at;
    if (begin == end) return nullptr;
    OpenSubtrees open;
    for (int64_t i = begin; i < end;) {
      const uint64_t leaf = leaf_of(place, i);
      W* acc = stack_.data() + width_ * open.size();
      std::fill(acc, acc + width_, W(kNoTerms));
      for (; i < end && leaf_of(place, i) == leaf; ++i) {
        const T* from =
            updates + place.updates[static_cast<size_t>(place.sorted[static_cast<size_t>(i)])];
        for (int64_t j = 0; j < width_; ++j)
          acc[j] = wrapping_add(acc[j], W(load_as(from[from_[static_cast<size_t>(j)]])));
      }
      open.push(leaf);
      const bool last = i == end;
      for (int64_t joins = open.joins(last ? 0 : leaf_of(place, i), last); joins > 0; --joins) {
        W* to = stack_.data() + width_ * (open.size() + joins - 2);
        for (int64_t j = 0; j < width_; ++j) to[j] = wrapping_add(to[j], to[j + width_]);
      }
    }
    return stack_.data();
  }

  static uint64_t leaf_of(const Place& place, int64_t sorted) {
    return place.leaves[static_cast<size_t>(place.sorted[static_cast<size_t>(sorted)])];
  }

  KernelArgs args_;
  int64_t stride_;  ///< of the result, from row to row
  IndexedDim dim_;
  std::vector<Place> places_;
  Nest each_, row_;  ///< dims of the indices that the result has, and those of a row
  std::vector<int64_t> to_, from_;
  int64_t width_ = 1, depth_ = 1;
  std::vector<W> stack_;
  std::vector<int64_t> first_;  ///< of a row: its first sorted term
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
