// Grouped matmuls in the canonical order of sums. Positions are sorted by group. grouped_dot is
// then a matmul of each group's rows; grouped_outer one whose terms are the group's positions.
#include "kernels/cpu/indexed_terms.h"
#include "kernels/cpu/ordered_product.h"

namespace tessera::cpu {

namespace {

bool is_dot(const Step& step) { return step.kernel == KernelKind::grouped_dot; }

/// As a matmul of the operands. Positions and groups are left to the kernel.
struct GroupedMatmul {
  std::vector<matmul_kinds::DimKind> kinds;
  std::vector<int64_t> sizes;
  int64_t positions = 1, groups = 1;
  size_t group_dim = 0;

  explicit GroupedMatmul(const Step& step) {
    static constexpr matmul_kinds::DimKind kKinds[2][5] = {
        {kBatch, kSum, kRow, kColumn, kSum},   // of grouped_outer
        {kBatch, kSum, kSum, kColumn, kSum}};  // of grouped_dot
    for (const GroupedKind kind : step.as<GroupedSpec>().kinds) {
      const size_t d = kinds.size();
      kinds.push_back(kKinds[is_dot(step)][kind]);
      sizes.push_back(std::max(
          {step.in[0].sizes[d], step.in[1].sizes[d], step.in[2].sizes[d], step.out[0].sizes[d]}));
      if (kind == kGroupPosition) positions *= sizes[d];
      if (kind == kGroupIndexed) group_dim = d, groups = sizes[d];
    }
  }

  ProductSizes product(const Step& step) const {
    ProductSizes product(step.order, kinds, sizes);
    if (is_dot(step)) product.rows = positions;
    return product;
  }
};

template <class T>
class OrderedGrouped final : public Kernel {
 public:
  OrderedGrouped(const KernelArgs& args, const GroupedMatmul& matmul, const ProductSizes& sizes)
      : args_(args),
        is_dot_(is_dot(*args.step)),
        walk_(matmul.kinds, matmul.sizes,
              {args.in[0].strides, args.in[1].strides, args.out[0].strides}),
        dim_{OutOfRange::drop, 0, matmul.groups, 0},
        group_stride_((is_dot_ ? args.in[1] : args.out[0]).strides[matmul.group_dim]),
        product_(args, sizes.terms, is_dot_ ? sizes.rows : std::ssize(walk_.rows.in),
                 std::ssize(walk_.columns.in), args.workspace) {
    const TensorArg &x = args.in[0], &y = args.in[1], &z = args.out[0], &indices = args.in[2];
    batch_.strides.resize(4);
    const auto& kinds = args.step->as<GroupedSpec>().kinds;
    Nest positions;
    positions.strides.resize(3);
    for (size_t d = 0; d < kinds.size(); ++d) {
      if (kinds[d] == kGroupBatch)
        batch_.add_dim(matmul.sizes[d],
                       {x.strides[d], y.strides[d], z.strides[d], indices.strides[d]});
      if (kinds[d] == kGroupPosition)
        positions.add_dim(matmul.sizes[d], {x.strides[d], z.strides[d], indices.strides[d]});
    }
    const OrderedPlaces places = ordered_places(args, {x.strides, y.strides, indices.strides});
    if (is_dot_) {
      places_ = terms_of(places);
      OrderedPlace rows;
      for_each<3>(positions, positions.rank(), [&](const auto& at) {
        rows.runs.push_back({{at[0], at[1], at[2]}, 1});
      });
      rows.ends = {std::ssize(rows.runs)};
      rows.numbers = {0};
      by_group_.emplace_back(rows, OrderedPlaces{}, 2, matmul.groups);
    } else {
      TESSERA_CHECK(places.depth < kDeepest, "{} open subtrees", places.depth);
      for (const OrderedPlace& place : places.places)
        by_group_.emplace_back(place, places, 2, matmul.groups);
      places_.resize(by_group_.size());
    }
  }

  void run() override {
    dim_.first = eval(args_, 0);
    dim_.n = eval(args_, 1);
    for_each<4>(batch_, batch_.rank(), [&](const auto& at) {
      for (IndexedTerms& terms : by_group_) terms.sort(args_.in[2], at[3], dim_);
      const T *a = static_cast<const T*>(args_.in[0].data) + at[kA],
              *b = static_cast<const T*>(args_.in[1].data) + at[kB];
      for (int64_t g = 0; g < dim_.size; ++g) {
        if (is_dot_) {
          list_rows(g);
          product_.run(places_, rows_, walk_.columns, a, b + g * group_stride_, at[kC]);
        } else {
          list_terms(g);
          product_.run(places_, walk_.rows, walk_.columns, a, b, at[kC] + g * group_stride_);
        }
      }
      if (!is_dot_) return;
      list_rows(dim_.size);
      product_.run({}, rows_, walk_.columns, a, b, at[kC]);
    });
  }

 private:
  /// The rows of a group.
  void list_rows(int64_t group) {
    rows_.in.clear();
    rows_.out.clear();
    for (const int64_t t : by_group_[0].of_row(group)) {
      rows_.in.push_back(by_group_[0].at(0, t));
      rows_.out.push_back(by_group_[0].at(1, t));
    }
  }

  /// The terms of a group's matrix.
  void list_terms(int64_t group) {
    for (size_t p = 0; p < places_.size(); ++p) {
      PlaceTerms& place = places_[p];
      for (auto* list : {&place.at[kA], &place.at[kB], &place.ends, &place.joins}) list->clear();
      const IndexedTerms& all = by_group_[p];
      const std::span<const int64_t> terms = all.of_row(group);
      OpenSubtrees open;
      for (size_t i = 0; i < terms.size(); ++i) {
        place.at[kA].push_back(all.at(kA, terms[i]));
        place.at[kB].push_back(all.at(kB, terms[i]));
        const uint64_t leaf = all.leaf(terms[i]);
        const bool last = i + 1 == terms.size();
        if (!last && all.leaf(terms[i + 1]) == leaf) continue;
        open.push(leaf);
        place.ends.push_back(std::ssize(place.at[kA]));
        place.joins.push_back(open.joins(last ? 0 : all.leaf(terms[i + 1]), last));
      }
    }
  }

  KernelArgs args_;
  bool is_dot_;
  ProductWalk walk_;
  IndexedDim dim_;
  int64_t group_stride_;
  OrderedProduct<T> product_;
  Nest batch_;                          ///< operands A, B, C, indices
  std::vector<IndexedTerms> by_group_;  ///< of each place; of grouped_dot: its rows
  std::vector<PlaceTerms> places_;
  ProductLines rows_;
};

}  // namespace

int64_t ordered_grouped_workspace(const Step& step) {
  return GroupedMatmul(step).product(step).workspace(step.in[0].dtype);
}

std::unique_ptr<Kernel> bind_ordered_grouped(const KernelArgs& args) {
  const GroupedMatmul matmul(*args.step);
  const ProductSizes sizes = matmul.product(*args.step);
  return make_ordered(args.in[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<OrderedGrouped<decltype(zero)>>(args, matmul, sizes);
  });
}

}  // namespace tessera::cpu
