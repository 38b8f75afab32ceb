// Copies between strided views of one dtype. Dims are ordered by the output's strides, so that
// writes are dense. If another dim is dense in the input, it becomes the second innermost, and the
// two are walked in tiles.
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

StridedCopy::StridedCopy(const std::vector<int64_t>& sizes, const std::vector<int64_t>& out_strides,
                         const std::vector<int64_t>& in_strides)
    : nest_(simple_nest(sizes, {out_strides, in_strides})) {
  const int rank = nest_.rank();
  if (rank < 2 || nest_.strides[0][rank - 1] != 1 || nest_.strides[1][rank - 1] == 1) return;
  if (nest_.strides[1][rank - 1] == 0 || nest_.sizes[rank - 1] < 4) return;
  for (int d = 0; d < rank - 1; ++d) {
    if (nest_.strides[1][d] != 1 || nest_.sizes[d] < 4) continue;
    const std::vector<int64_t> strides = {nest_.strides[0][d], nest_.strides[1][d]};
    const int64_t size = nest_.sizes[d];
    const std::vector<int64_t> last = {nest_.strides[0][rank - 1], nest_.strides[1][rank - 1]};
    const int64_t last_size = nest_.sizes[rank - 1];
    nest_.remove_dim(rank - 1);
    nest_.remove_dim(d);
    nest_.add_dim(size, strides);
    nest_.add_dim(last_size, last);
    transposed_ = true;
    return;
  }
}

namespace {

class Copy final : public Kernel {
 public:
  explicit Copy(const KernelArgs& args)
      : in_(args.in.at(0)), out_(args.out.at(0)), copy_(in_.sizes, out_.strides, in_.strides) {
    TESSERA_CHECK(in_.sizes == out_.sizes && in_.dtype == out_.dtype,
                  "copy needs two views of one dtype and the same sizes");
  }

  void run() override {
    with_bits(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      copy_.copy(static_cast<T*>(out_.data), static_cast<const T*>(in_.data));
    });
  }

 private:
  TensorArg in_, out_;
  StridedCopy copy_;
};

}  // namespace

Sharing share_copy(const Step& step, int threads) {
  const View& out = step.out.at(0);
  return {outermost_dim(out, std::vector<char>(out.sizes.size(), 1), threads),
          static_cast<double>(out.elements() * size_of(out.dtype)) * 0.1};
}

std::unique_ptr<Kernel> bind_copy(const KernelArgs& args) { return std::make_unique<Copy>(args); }

}  // namespace tessera::cpu
