#include "kernels/cuda/ordered_text.h"

#include <algorithm>
#include <bit>

namespace tessera::cuda {

namespace {

int64_t here(const SumOrder::Along& a) { return a.slices == 1 ? a.size : a.slice; }

}  // namespace

int64_t most_ordered_terms(const SumOrder& order) {
  int64_t n = 1;
  for (const SumOrder::Along& a : order.along) n *= here(a);
  return n;
}

int64_t most_ordered_leaves(const SumOrder& order) {
  int64_t n = 1;
  for (const SumOrder::Along& a : order.along) n *= (here(a) + a.chunk - 1) / a.chunk;
  return n;
}

OrderedTerms::OrderedTerms(const KernelArgs& args) : order_(args.step->order) {
  std::vector<int64_t> slices;
  for (size_t d = 0; d < order_.along.size(); ++d)
    slices.push_back(kernels::eval(args, static_cast<int>(order_.expr) + static_cast<int>(d)));
  std::vector<size_t> kept;
  for (size_t d = 0; d < order_.along.size(); ++d) {
    const SumOrder::Along& a = order_.along[d];
    if (a.size != 1 || a.slices != 1 || (kept.empty() && d + 1 == order_.along.size()))
      kept.push_back(d);
  }
  for (const size_t d : kept) along_.push_back(order_.along[d]);
  for (const SumRange& subtree : subtrees_of(order_, slices)) {
    Box& box = boxes_.emplace_back();
    for (const size_t d : kept) {
      const SumOrder::Along& a = order_.along[d];
      const auto [begin, end] = subtree.of[d];
      box.n.push_back(end - begin);
      box.first.push_back(begin - (a.slices == 1 ? 0 : slices[d] * a.slice));
    }
  }
  const std::vector<int64_t> none(along_.size(), 0);
  boxes_.resize(static_cast<size_t>(order_.places), {none, none});
  constexpr int64_t kLimit = (int64_t{1} << 31) - 4096;
  if (most() >= kLimit) type_ = "long long";
}

int OrderedTerms::depth() const {
  int bits = 0;
  for (const SumOrder::Along& a : along_)
    bits += std::bit_width(static_cast<uint64_t>((a.size + a.chunk - 1) / a.chunk - 1));
  return std::max(1, bits);
}

int64_t OrderedTerms::count(size_t place) const {
  int64_t n = 1;
  for (const int64_t size : boxes_[place].n) n *= size;
  return n;
}

int64_t OrderedTerms::leaves(size_t place) const {
  int64_t n = 1;
  for (size_t d = 0; d < along_.size(); ++d)
    n *= (boxes_[place].n[d] + along_[d].chunk - 1) / along_[d].chunk;
  return n;
}

int64_t OrderedTerms::most() const { return most_ordered_terms(order_); }
int64_t OrderedTerms::most_leaves() const { return most_ordered_leaves(order_); }

std::string OrderedTerms::declaration(Arguments& arguments, size_t place) const {
  std::vector<std::string> n, chunks, bits;
  for (size_t d = 0; d < along_.size(); ++d) {
    const SumOrder::Along& a = along_[d];
    const int64_t size = boxes_[place].n[d];
    n.push_back(order_.is_split()
                    ? fmt::format("static_cast<{}>({})", type_, arguments.number(size))
                    : std::to_string(size));
    chunks.push_back(std::to_string(a.chunk));
    bits.push_back(std::to_string(
        std::bit_width(static_cast<uint64_t>((a.size + a.chunk - 1) / a.chunk - 1))));
  }
  return fmt::format("  const Terms<{}, {}> terms = {{{{{}}}, {{{}}}, {{{}}}}};\n", type_, dims(),
                     fmt::join(n, ", "), fmt::join(chunks, ", "), fmt::join(bits, ", "));
}

std::string OrderedTerms::offset(Arguments& arguments, size_t place,
                                 const std::vector<int64_t>& strides, int64_t more) const {
  std::string text;
  for (size_t d = 0; d < along_.size(); ++d) {
    const int64_t stride = strides[static_cast<size_t>(along_[d].dim)];
    more += boxes_[place].first[d] * stride;
    if (stride != 0) text += fmt::format(" + k[{}] * {}ll", d, stride);
  }
  return (order_.is_split() ? arguments.number(more) : fmt::format("{}ll", more)) + text;
}

int64_t OrderedTerms::densest(const std::vector<int64_t>& strides) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const SumOrder::Along& a : along_) {
    const int64_t stride = std::abs(strides[static_cast<size_t>(a.dim)]);
    if (stride != 0 && a.size > 1) least = std::min(least, stride);
  }
  return least;
}

std::string OrderedTerms::place_offset(Arguments& arguments, size_t place) const {
  if (!order_.is_split()) return "";
  return " + " + arguments.number(static_cast<int64_t>(place) * order_.stride);
}

/// A thread's open sums lie in local memory, which a GPU sets aside for all of its threads.
OrderedTile::OrderedTile(int64_t m, int64_t n, int depth, DType dtype) {
  constexpr int64_t kMostBytes = 1024;
  const auto side = [](int64_t size) { return size <= 16 ? 1 : size <= 64 ? 4 : 8; };
  rows = side(m);
  columns = side(n);
  const auto bytes = [&] {
    return int64_t{rows} * columns * depth * (size_of(dtype) == 8 ? 8 : 4);
  };
  while (bytes() > kMostBytes && std::max(rows, columns) > 4) (rows > columns ? rows : columns) = 4;
}

}  // namespace tessera::cuda
