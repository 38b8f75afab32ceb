#include "program/windows.h"

namespace tessera {

bool same_window(const View& x, const View& y) {
  if (x.buffer != y.buffer || x.dtype != y.dtype || x.sizes != y.sizes || x.offset != y.offset ||
      !(x.shift == y.shift))
    return false;
  for (size_t d = 0; d < x.sizes.size(); ++d) {
    if (x.sizes[d] != 1 && x.strides[d] != y.strides[d]) return false;
  }
  return true;
}

bool fills_buffer(const Program& program, const View& result) {
  const Buffer& buffer = program.buffers[static_cast<size_t>(result.buffer)];
  return result.offset == 0 && result.shift == AffineExpr() &&
         result.elements() * size_of(result.dtype) == buffer.bytes;
}

bool is_whole(const Program& program, const View& view) {
  return fills_buffer(program, view) && view.is_contiguous();
}

bool adds_in_place(const Step& step) {
  const auto& code = step.pointwise.code;
  if (step.in.size() != 3 || step.out.size() != 1 || code.size() != 3) return false;
  return code[0].code == PointwiseOp::load && code[1].code == PointwiseOp::load &&
         code[0].slot + code[1].slot == 1 && code[2].code == PointwiseOp::add &&
         code[2].a + code[2].b == 1 && code[2].a != code[2].b && step.pointwise.outputs[0] == 2 &&
         same_window(step.in[2], step.out[0]);
}

}  // namespace tessera
