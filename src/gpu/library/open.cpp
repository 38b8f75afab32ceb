// What libtessera_cuda.so exports: CUDA as CudaApi, and entry points for tests that need no GPU.
#include <mutex>

#include "base/env.h"
#include "gpu/device/cuda_api.h"
#include "gpu/library/cublaslt.h"
#include "gpu/library/driver.h"
#include "gpu/library/nvrtc.h"
#include "gpu/library/nvtx.h"
#ifdef TESSERA_HAVE_CUDNN
#include "gpu/library/cudnn_attention.h"
#include "gpu/library/cudnn_convolution.h"
#endif
#ifdef TESSERA_HAVE_NCCL
#include "gpu/library/nccl.h"
#endif

namespace tessera::cuda {

namespace {

class OpenedCuda final : public CudaApi {
 public:
  OpenedCuda() = default;
  /// For tests: nothing is cached.
  explicit OpenedCuda(const CublasLt::Options& options)
      : kernels_(driver_, contexts_, ""), cublaslt_(&driver_, &contexts_, options) {}
  CudaContextApi& contexts() override { return contexts_; }
  CudaMemoryApi& memory() override { return memory_; }
  CudaStreamApi& streams() override { return streams_; }
  CudaKernelApi& kernels() override { return kernels_; }
  CudaGraphApi& graphs() override { return graphs_; }
  CudaBlasApi& blas() override { return cublaslt_; }
#ifdef TESSERA_HAVE_CUDNN
  CudaConvolutionApi* convolution(std::string& why) override {
    why = convolution_.why_not();
    return why.empty() ? &convolution_ : nullptr;
  }
  CudaAttentionApi* attention(std::string& why) override {
    why = attention_.why_not();
    return why.empty() ? &attention_ : nullptr;
  }
#else
  CudaConvolutionApi* convolution(std::string& why) override { return no_cudnn(why); }
  CudaAttentionApi* attention(std::string& why) override { return no_cudnn(why); }
#endif
#ifdef TESSERA_HAVE_NCCL
  CudaNcclApi* nccl(std::string& why) override {
    const std::lock_guard lock(mutex_);
    if (!nccl_) nccl_ = std::make_unique<Nccl>();
    why = nccl_->why_not();
    return why.empty() ? nccl_.get() : nullptr;
  }
#else
  CudaNcclApi* nccl(std::string& why) override {
    why = "this build has no NCCL: nccl.h was not found";
    return nullptr;
  }
#endif
  CudaProfilerApi* profiler() override { return nvtx_.has_profiler() ? &nvtx_ : nullptr; }

 private:
#ifndef TESSERA_HAVE_CUDNN
  static std::nullptr_t no_cudnn(std::string& why) {
    why = "this build has no cuDNN: cudnn.h of version 9 was not found";
    return nullptr;
  }
#endif

  Driver driver_;
  Contexts contexts_{driver_};
  Memory memory_{driver_};
  Streams streams_{driver_, contexts_};
  Kernels kernels_{driver_, contexts_, cache_folder()};
  Graphs graphs_{driver_};
  CublasLt cublaslt_{&driver_, &contexts_};
#ifdef TESSERA_HAVE_CUDNN
  CudnnConvolution convolution_{CublasLt::kWorkspace};
  CudnnAttention attention_{contexts_};
#endif
#ifdef TESSERA_HAVE_NCCL
  std::mutex mutex_;
  std::unique_ptr<Nccl> nccl_;
#endif
  Nvtx nvtx_;
};

}  // namespace

}  // namespace tessera::cuda

extern "C" {

/// See CudaOpen.
tessera::CudaApi* tessera_cuda_open(std::string& why) {
  try {
    static tessera::cuda::OpenedCuda opened;
    return &opened;
  } catch (const std::exception& e) {
    why = e.what();
    return nullptr;
  }
}

/// See CudaOpenOn. Matmuls in 8 bits are used even if they do not pay, and workspaces are small:
/// tests make many Sessions at once.
tessera::CudaApi* tessera_cuda_open_on(tessera::cuda::FindSymbol find, std::string& why) {
  try {
    tessera::cuda::replace_libraries(find);
    constexpr int64_t kWorkspace = 4096;
    return new tessera::cuda::OpenedCuda({"", true, kWorkspace});
  } catch (const std::exception& e) {
    why = e.what();
    return nullptr;
  }
}

/// For tests without a GPU, with a `library` that works on the host: prepares a matmul, selects the
/// last algorithm that the library finds, and runs it. Returns false and sets `log` on failure.
bool tessera_cuda_multiply(const std::string& library, const tessera::CudaGemm& gemm, const void* a,
                           const void* b, const void* added, void* c, std::string& log) {
  try {
    tessera::cuda::CublasLt cublaslt(nullptr, nullptr, {library, true});
    const tessera::CudaMatmul matmul = cublaslt.prepare(gemm);
    if (matmul == nullptr) {
      log = cublaslt.why_not();
      return false;
    }
    const std::vector<std::string> words = cublaslt.algorithms(matmul, 8);
    const bool done =
        !cublaslt.use_algorithm(matmul, "nonsense") && cublaslt.use_algorithm(matmul, words.back());
    if (done) cublaslt.run(matmul, a, b, added, c, nullptr, nullptr);
    cublaslt.release(matmul);
    log = cublaslt.version();
    return done;
  } catch (const std::exception& e) {
    log = e.what();
    return false;
  }
}

/// For tests: where a library was found, or why it was not.
bool tessera_cuda_find(const std::string& name, std::string& where) {
  const tessera::cuda::Library library({name});
  where = library.is_open() ? library.name() : library.why_not();
  return library.is_open();
}

/// For tests without a GPU: compiles a kernel for an architecture. With a folder it uses a cache
/// there, and `log` is "found", "kept", "replaced " and why a file was not used, or why it was not
/// kept. Returns false and sets `log` on failure.
bool tessera_cuda_compile(const std::string& text, const std::string& arch,
                          const std::string& folder, std::string& code, std::string& log) {
  try {
    if (folder.empty()) {
      tessera::cuda::Compiled compiled = tessera::cuda::compile(text, arch, true);
      code = std::move(compiled.code);
      log = std::move(compiled.log);
      return true;
    }
    tessera::cuda::Cache cache(folder);
    code = cache.code(text, arch);
    log = !cache.why_not_kept().empty() ? cache.why_not_kept()
          : cache.hits() > 0            ? "found"
          : cache.ignored().empty()     ? "kept"
                                        : "replaced " + *cache.ignored().begin();
    return true;
  } catch (const std::exception& e) {
    log = e.what();
    return false;
  }
}
}
