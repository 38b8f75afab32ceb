// bfloat16 matmuls: thin ones by our own loops, others with oneDNN, if the processor
// multiplies pairs of them and adds in float32: twice the rate of float32. Otherwise operands are
// widened and go to gemm().
#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "base/isa.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/thin_gemm.h"

#ifdef TESSERA_HAVE_DNNL
#include <dnnl.hpp>

#include "kernels/cpu/onednn_call.h"
#endif

namespace tessera::cpu {

#ifdef TESSERA_HAVE_DNNL

namespace {

using Memory = dnnl::memory;

Memory::desc matrix(int64_t rows, int64_t columns, int64_t row, int64_t column, DType dtype) {
  // The stride of a dim of size 1 may be anything; oneDNN wants a plausible one.
  if (columns == 1) column = 1;
  if (rows == 1) row = std::max(columns * column, row);
  return Memory::desc({rows, columns},
                      dtype == DType::bfloat16 ? Memory::data_type::bf16 : Memory::data_type::f32,
                      Memory::dims{row, column});
}

dnnl::matmul::primitive_desc product(const dnnl::engine& engine, const Memory::desc& a,
                                     const Memory::desc& b, const Memory::desc& c, bool add) {
  dnnl::primitive_attr attr;
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
}

}  // namespace

struct BfloatGemm::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Memory a, b, c;
  dnnl::matmul set, add;

  State(const Gemm& g, DType result)
      : a(matrix(g.m, g.k, g.a_row, g.a_column, DType::bfloat16), engine, nullptr),
        b(matrix(g.k, g.n, g.b_row, g.b_column, DType::bfloat16), engine, nullptr),
        c(matrix(g.m, g.n, g.c_row, g.c_column, result), engine, nullptr),
        set(product(engine, a.get_desc(), b.get_desc(), c.get_desc(), false)) {
    if (result == DType::float32)
      add = dnnl::matmul(product(engine, a.get_desc(), b.get_desc(), c.get_desc(), true));
  }
  void run(const void* x, const void* y, void* z, bool overwrite);
};

bool BfloatGemm::is_fast() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool fast = cpu_isa() >= Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  return fast;
#else
  return false;
#endif
}

/// Nothing if the library declines.
std::unique_ptr<BfloatGemm::State> BfloatGemm::library(const Gemm& g, DType result) {
  prepare_libraries();
  const OneDnnCall call;
  try {
    return std::make_unique<State>(g, result);
  } catch (const dnnl::error&) {
    return nullptr;
  }
}

void BfloatGemm::State::run(const void* x, const void* y, void* z, bool overwrite) {
  const OneDnnCall call;
  a.set_data_handle(const_cast<void*>(x));
  b.set_data_handle(const_cast<void*>(y));
  c.set_data_handle(z);
  // The C++ wrapper would allocate in every run.
  const dnnl_exec_arg_t args[] = {
      {DNNL_ARG_SRC, a.get()}, {DNNL_ARG_WEIGHTS, b.get()}, {DNNL_ARG_DST, c.get()}};
  const dnnl_status_t status =
      dnnl_primitive_execute((overwrite ? set : add).get(), stream.get(), 3, args);
  TESSERA_CHECK(status == dnnl_success, "oneDNN ended a matmul with status {}",
                static_cast<int>(status));
  stream.wait();
}

#else

struct BfloatGemm::State {
  void run(const void*, const void*, void*, bool) {}
};

bool BfloatGemm::is_fast() { return false; }
std::unique_ptr<BfloatGemm::State> BfloatGemm::library(const Gemm&, DType) { return nullptr; }

#endif

std::optional<BfloatGemm> BfloatGemm::prepare(const Gemm& g, DType result) {
  BfloatGemm product;
  product.thin_ = g;
  product.result_ = result;
  if (is_thin(g)) return product;
  if (!is_fast()) return {};
  Gemm rows = g;
  product.swapped_ = g.c_column != 1;
  if (product.swapped_) rows = transposed(g);
  product.state_ = library(rows, result);
  if (!product.state_) return {};
  return product;
}

void BfloatGemm::run(const void* a, const void* b, void* c, bool overwrite) {
  if (swapped_) std::swap(a, b);
  if (state_) return state_->run(a, b, c, overwrite);
  const auto* x = static_cast<const BFloat16*>(a);
  const auto* y = static_cast<const BFloat16*>(b);
  if (result_ == DType::float32) return thin_gemm(thin_, x, y, static_cast<float*>(c), overwrite);
  thin_gemm(thin_, x, y, static_cast<BFloat16*>(c));
}

BfloatGemm::BfloatGemm() = default;
BfloatGemm::BfloatGemm(BfloatGemm&&) noexcept = default;
BfloatGemm::~BfloatGemm() = default;

}  // namespace tessera::cpu
