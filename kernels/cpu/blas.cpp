// Matmuls by CBLAS. A row-major C with unit column stride is computed directly, one with
// unit row stride as its transpose. Vectors use gemv, which reads its matrix once. Products of
// float32 that are small, or have few rows or columns, are our own (small_gemm.h, thin_gemm.h).
#include "kernels/cpu/blas.h"

#include <cblas.h>
#include <fmt/format.h>
#include <strings.h>
#ifdef TESSERA_HAVE_DNNL
#include <dnnl.h>

#include "kernels/cpu/onednn_call.h"
#endif

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/isa.h"
#include "kernels/cpu/small_gemm.h"
#include "kernels/cpu/thin_gemm.h"

namespace tessera::cpu {

std::string blas_description() {
  std::string text = openblas_get_config();
#ifdef TESSERA_HAVE_DNNL
  const dnnl_version_t* v = dnnl_version();
  text = fmt::format("oneDNN {}.{}.{}, {}", v->major, v->minor, v->patch, text);
#endif
  return text;
}

void prepare_libraries() {
  static std::once_flag once;
  std::call_once(once, [] {
    openblas_set_num_threads(1);
#ifdef TESSERA_HAVE_DNNL
    // Refused if a primitive was made before, as by a host program: its set is then the
    // processor's.
    if (cpu_isa() == Isa::avx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
    if (cpu_isa() == Isa::base) dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
#endif
  });
}

namespace {

#ifdef TESSERA_HAVE_DNNL
bool has(dnnl_cpu_isa_t wanted) {
  static const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return (isa & wanted) == wanted;
}

/// Whether OpenBLAS has a kernel with AVX2 for this processor. One that it does not know, as is
/// newer than it, gets the kernel of a processor of 2004 (Prescott), at a tenth to a fifth of the
/// rate.
bool openblas_knows_processor() {
  static const bool knows = [] {
    constexpr const char* kWithAvx2[] = {"Haswell",  "Zen",        "Excavator",
                                         "SkylakeX", "Cooperlake", "SapphireRapids"};
    return std::any_of(std::begin(kWithAvx2), std::end(kWithAvx2), [](const char* name) {
      return strcasecmp(name, openblas_get_corename()) == 0;
    });
  }();
  return knows;
}

/// Fitted to measured products of 32 to 4096 rows, columns and terms, with oneDNN 2.6 and OpenBLAS
/// 0.3.21. With AVX-512, oneDNN is about 10 % faster, except for small products, narrow results,
/// and few rows with B transposed. With AVX2 it is up to 1.5 times faster while a panel of B (or a
/// transposed A) stays in the L2 cache; beyond that, power-of-two strides cost its kernels up to a
/// factor of two. With A transposed, rows of B that are multiples of 2 KiB apart cost it a quarter
/// to four fifths of its rate; OpenBLAS copies them first.
bool onednn_is_faster(bool ta, bool tb, int m, int n, int k, int ldb) {
  if (has(dnnl_cpu_isa_avx2) && !openblas_knows_processor()) return true;
  if (has(dnnl_cpu_isa_avx512_core)) {
    const int64_t terms = int64_t{m} * n * k;
    if ((ta && tb) || n <= 16) return false;
    return tb ? terms > (1 << 19) && (m >= 96 || k <= 256) : terms >= (1 << 20);
  }
  if (m < 24 && n > 24) return false;
  if (ta) return int64_t{m} * k <= 40000 && ldb % 512 != 0;
  return k <= 64 || int64_t{k} * n <= (1 << 17) || (k <= 256 && m >= 512);
}

/// Columns of a product of few rows that oneDNN computes at a time with AVX-512, so that what it
/// packs of B stays in the L2 cache. 256 rows by 131,072 columns take 5 to 10 % less time so, 1,024
/// rows no less.
int columns_at_a_time(bool ta, bool tb, int m, int n, int k) {
  constexpr int kFewRows = 512, kPanel = 1 << 18, kLeast = 256;
  const int columns = kPanel / std::max(k, 1) / kLeast * kLeast;
  const bool cut = has(dnnl_cpu_isa_avx512_core) && !ta && !tb && m <= kFewRows;
  return cut && columns >= kLeast && columns <= n / 4 ? columns : n;
}
#endif

void call_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const float* a, int lda,
               const float* b, int ldb, float beta, float* c, int ldc) {
  int done = 0;  // columns
#ifdef TESSERA_HAVE_DNNL
  if (onednn_is_faster(ta == CblasTrans, tb == CblasTrans, m, n, k, ldb)) {
    const OneDnnCall call;
    const auto letter = [](CBLAS_TRANSPOSE t) { return t == CblasTrans ? 'T' : 'N'; };
    const int step = columns_at_a_time(ta == CblasTrans, tb == CblasTrans, m, n, k);
    while (done < n && dnnl_sgemm(letter(ta), letter(tb), m, std::min(step, n - done), k, 1.0f, a,
                                  lda, b + done, ldb, beta, c + done, ldc) == dnnl_success)
      done += step;
  }
#endif
  if (done >= n) return;
  cblas_sgemm(CblasRowMajor, ta, tb, m, n - done, k, 1.0f, a, lda, b + done, ldb, beta, c + done,
              ldc);
}
void call_gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const double* a,
               int lda, const double* b, int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, 1.0, a, lda, b, ldb, beta, c, ldc);
}
void call_gemv(CBLAS_TRANSPOSE t, int m, int n, const float* a, int lda, const float* x, int incx,
               float* y, int incy) {
  cblas_sgemv(CblasRowMajor, t, m, n, 1.0f, a, lda, x, incx, 1.0f, y, incy);
}
void call_gemv(CBLAS_TRANSPOSE t, int m, int n, const double* a, int lda, const double* x, int incx,
               double* y, int incy) {
  cblas_dgemv(CblasRowMajor, t, m, n, 1.0, a, lda, x, incx, 1.0, y, incy);
}

/// How a matrix of rows x columns is passed to BLAS.
struct BlasMatrix {
  CBLAS_TRANSPOSE transpose;
  int leading;
};

BlasMatrix blas_matrix(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  const bool plain = column == 1 || columns == 1;
  if (plain && (row >= columns || rows == 1)) {
    return {CblasNoTrans, static_cast<int>(std::max(rows == 1 ? columns : row, columns))};
  }
  return {CblasTrans, static_cast<int>(std::max(columns == 1 ? rows : column, rows))};
}

/// y[m] += a[m, k] x[k].
template <class T>
void gemv(int64_t m, int64_t k, const T* a, int64_t row, int64_t column, const T* x,
          int64_t x_stride, T* y, int64_t y_stride) {
  const BlasMatrix ma = blas_matrix(m, k, row, column);
  const int incx = static_cast<int>(k == 1 ? 1 : x_stride),
            incy = static_cast<int>(m == 1 ? 1 : y_stride);
  const bool plain = ma.transpose == CblasNoTrans;
  call_gemv(ma.transpose, static_cast<int>(plain ? m : k), static_cast<int>(plain ? k : m), a,
            ma.leading, x, incx, y, incy);
}

template <class T>
void gemm_of(const Gemm& g, const T* a, const T* b, T* c, bool overwrite) {
  if (g.m == 1 || g.n == 1) {
    const int64_t count = g.m == 1 ? g.n : g.m, stride = g.m == 1 ? g.c_column : g.c_row;
    for (int64_t i = 0; overwrite && i < count; ++i) c[i * stride] = T(0);
    if (g.m == 1) return gemv(g.n, g.k, b, g.b_column, g.b_row, a, g.a_column, c, g.c_column);
    return gemv(g.m, g.k, a, g.a_row, g.a_column, b, g.b_row, c, g.c_row);
  }
  if (g.c_column != 1) {  // C^T = B^T A^T
    return gemm_of(transposed(g), b, a, c, overwrite);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (is_small(g)) return small_gemm(g, a, b, c, overwrite);
  }
  const BlasMatrix ma = blas_matrix(g.m, g.k, g.a_row, g.a_column),
                   mb = blas_matrix(g.k, g.n, g.b_row, g.b_column);
  call_gemm(ma.transpose, mb.transpose, static_cast<int>(g.m), static_cast<int>(g.n),
            static_cast<int>(g.k), a, ma.leading, b, mb.leading, overwrite ? T(0) : T(1), c,
            static_cast<int>(std::max(g.c_row, g.n)));
}

}  // namespace

void gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite) {
  prepare_libraries();
  if (is_thin(g)) return thin_gemm(g, a, b, c, overwrite);
  gemm_of(g, a, b, c, overwrite);
}
void gemm(const Gemm& g, const double* a, const double* b, double* c, bool overwrite) {
  prepare_libraries();
  gemm_of(g, a, b, c, overwrite);
}

}  // namespace tessera::cpu
