// Bad indices are rare: the kernels only notice them, and a second, slow pass finds the first one.
#include "kernels/common/indexed.h"

namespace tessera::kernels {

void report_bad_index(const KernelArgs& args, const TensorArg& indices,
                      const std::vector<int64_t>& sizes, int64_t n) {
  if (args.fault == nullptr || args.fault->set) return;
  Nest nest;
  nest.strides.resize(1);
  std::vector<int64_t> first;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (indices.strides[d] == 0) continue;
    nest.add_dim(sizes[d], {indices.strides[d]});
    first.push_back(static_cast<int>(d) == args.split_dim ? args.split_first : 0);
  }
  int64_t position = 0, bad_position = -1, bad = 0;
  for_each<1>(nest, nest.rank(), [&](const auto& at) {
    const int64_t i = index_at(indices, at[0]);
    if (bad_position < 0 && (i < 0 || i >= n)) {
      bad_position = position;
      bad = i;
    }
    ++position;
  });
  if (bad_position < 0) return;
  std::vector<int64_t> where(nest.sizes.size());
  for (int d = nest.rank() - 1; d >= 0; --d) {
    where[d] = first[d] + bad_position % nest.sizes[d];
    bad_position /= nest.sizes[d];
  }
  args.fault->set = true;
  args.fault->message =
      fmt::format("index {} at [{}] is outside [0, {}); mend the indices, or give an OutOfRange",
                  bad, fmt::join(where, ", "), n);
}

}  // namespace tessera::kernels
