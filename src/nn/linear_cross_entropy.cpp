#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"
#include "tessera/loops.h"
#include "tessera/nn_linear_cross_entropy.h"
#include "tessera/op.h"

namespace tessera::nn {

namespace {

constexpr const char* kBlocks = "loss_blocks";

/// `dim` of x as [dim / blocks, loss_blocks].
Tensor in_blocks(Tensor x, const LinearCrossEntropyOptions& o, Loc at) {
  std::vector<Dim> dims;
  for (const Dim& d : x.shape()) {
    if (d.name != o.dim) {
      dims.push_back(d);
      continue;
    }
    dims.emplace_back(o.dim, d.size / o.blocks);
    dims.emplace_back(kBlocks, o.blocks);
  }
  return reshape(x, Shape(dims), at);
}

/// The sum over the examples of x, and its gradients by x and w.
std::vector<Tensor> sum_with_gradients(Tensor x, Tensor w, Tensor labels, Tensor weights,
                                       const LinearCrossEntropyOptions& o, DType exact, Loc at) {
  Tensor z = einsum({x, w}, x.shape().without({o.contracted}).united(Shape{w.dim(o.classes)}), at);
  if (o.scale != 1) z = mul(z, constant(x.graph(), o.scale, z.dtype(), {}, at), at);
  if (o.cap > 0) z = capped(z, o.cap, at);
  Tensor losses = read_as(cross_entropy(z, labels, o.classes, o.z_loss, at), exact, at);
  Tensor sum = sum_all(weights.empty() ? losses : mul(losses, weights, at), at);
  std::vector<Tensor> results = gradients(sum, {x, w}, at);
  results[1] = read_as(results[1], exact, at);
  results.insert(results.begin(), sum);
  return results;
}

/// The constant 1, as the gradient of a loss by itself is.
bool is_one(Tensor x) {
  const Node& from = x.graph().producer(x.id());
  return std::string_view(from.op->name) == "constant" && from.attrs.get<double>("value") == 1;
}

}  // namespace

Tensor linear_cross_entropy(Tensor x, Tensor w, Tensor labels, Tensor weights,
                            const LinearCrossEntropyOptions& o, Loc at) {
  return on_behalf_of("linear_cross_entropy", at, [&] {
    for (const auto& [tensor, dims] :
         {std::pair{x, std::vector{o.contracted, o.dim}}, {w, {o.contracted, o.classes}}}) {
      for (const std::string& d : dims)
        TESSERA_REQUIRE(tensor.shape().has(d), "[linear_cross_entropy] {} {} has no dim '{}' ({})",
                        tensor.id() == x.id() ? "x" : "w", tensor.shape().to_string(), d,
                        where(at));
    }
    const Dim cut = x.dim(o.dim);
    TESSERA_REQUIRE(
        !cut.is_bounded,
        "[linear_cross_entropy] '{}' is bounded and cannot be cut into blocks; cut another dim "
        "({})",
        o.dim, where(at));
    TESSERA_REQUIRE(
        o.blocks >= 1 && cut.size % o.blocks == 0,
        "[linear_cross_entropy] {} blocks do not divide '{}' of {}; take a divisor ({})", o.blocks,
        o.dim, cut.size, where(at));
    const DType exact = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    const Dim over(kBlocks, o.blocks);
    const Tensor fixed = weights.empty() ? weights : read_as(stop_gradient(weights, at), exact, at);
    return custom_gradient(
        {x, w},
        [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
          std::vector<Tensor> sliced = {in_blocks(in[0], o, at), in_blocks(labels, o, at)};
          const bool is_cut = !fixed.empty() && fixed.shape().has(o.dim);
          if (is_cut) sliced.push_back(in_blocks(fixed, o, at));
          IterationResults all = scan(
              x.graph(), over, {}, sliced,
              [&](const Iteration& i) -> IterationResults {
                const std::vector<Tensor> r = sum_with_gradients(
                    i.slices[0], in[1], i.slices[1], is_cut ? i.slices[2] : fixed, o, exact, at);
                return {{}, {r[1]}, {r[0], r[2]}};
              },
              {}, at);
          Tensor dx = reshape(transpose(all.stacked[0], sliced[0].shape(), at), x.shape(), at);
          return {all.sums[0], dx, all.sums[1]};
        },
        [exact, at](const std::vector<Tensor>& in, const std::vector<Tensor>& results,
                    const std::vector<Tensor>& grads) -> std::vector<Tensor> {
          Tensor dx = read_as(results[1], exact, at), dw = results[2], g = grads[0];
          if (!is_one(g)) {  // else two passes over them would change nothing
            dx = mul(dx, g, at);
            dw = mul(dw, g, at);
          }
          return {read_as(dx, in[0].dtype(), at), read_as(dw, in[1].dtype(), at)};
        },
        at)[0];
  });
}

}  // namespace tessera::nn
