#include "gpu/rules/libraries.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/fail.h"
#include "gpu/device/cuda_api.h"
#include "gpu/library/shared_library.h"
#include "gpu/rules/cublaslt.h"
#include "gpu/rules/cudnn.h"
#include "gpu/rules/driver.h"
#include "gpu/rules/nccl.h"
#include "gpu/rules/nvrtc.h"

namespace tessera::test::rules {

namespace {

void* find_driver(const std::string& symbol) {
  static const std::map<std::string, void*> all = {
      {"", reinterpret_cast<void*>(&cuInit)},
#define TESSERA_MEMBER(name) {TESSERA_TEXT(name), reinterpret_cast<void*>(&name)},
#include "gpu/library/driver.inc"
#undef TESSERA_MEMBER
  };
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : found->second;
}

/// See FindSymbol.
void* find_symbol(const char* library, const char* symbol) {
  const Machine* m = Machine::current();
  if (m == nullptr || m->settings.missing.count(library) != 0 ||
      m->settings.missing.count(symbol) != 0)
    return nullptr;
  const std::string name = library;
  const auto is = [&](const char* stem) { return name.starts_with(stem); };
  return is("libcuda.so")                             ? find_driver(symbol)
         : is("libnvrtc.so")                          ? find_nvrtc(symbol)
         : is("libcublasLt.so")                       ? find_cublaslt(symbol)
         : is("libcudnn.so") && m->settings.has_cudnn ? find_cudnn(symbol)
         : is("libnccl.so") && m->settings.has_groups ? find_nccl(symbol)
                                                      : nullptr;
}

/// A copy of libtessera_cuda.so with variables of its own: the other one finds real libraries.
void* open_copy() {
  std::string folder = (std::filesystem::temp_directory_path() / "tessera-rules-XXXXXX").string();
  TESSERA_CHECK(mkdtemp(folder.data()) != nullptr, "{} cannot be made", folder);
  const std::string path = folder + "/libtessera_cuda.so";
  std::filesystem::copy_file(TESSERA_CUDA_LIBRARY, path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::filesystem::remove_all(folder);
  TESSERA_CHECK(library != nullptr, "{}", library == nullptr ? dlerror() : "");
  return library;
}

/// Launches, with what the stand-in has to know of them.
class ToldKernels final : public CudaKernelApi {
 public:
  ToldKernels(CudaKernelApi& kernels, EmulatedKernels& emulated)
      : kernels_(kernels), emulated_(emulated) {}
  CudaKernel load(const std::string& text) override { return kernels_.load(text); }
  std::vector<std::string> ignored() override { return emulated_.ignored(); }
  std::string why_from_ptx() override { return kernels_.why_from_ptx(); }
  void launch(const CudaLaunch& launch, CudaStream stream) override {
    const LaunchContents contents{launch.words, {launch.reads, launch.writes, launch.atomics}};
    Machine::launched() = &contents;
    try {
      kernels_.launch(launch, stream);
    } catch (...) {
      Machine::launched() = nullptr;
      throw;
    }
    Machine::launched() = nullptr;
  }

 private:
  CudaKernelApi& kernels_;
  EmulatedKernels& emulated_;
};

/// Matmuls, counted, with the emulator's words for algorithms.
class CountedBlas final : public CudaBlasApi {
 public:
  CountedBlas(CudaBlasApi& blas, EmulatedCuda& emulated)
      : blas_(blas), emulated_(emulated), settings_(emulated.state().settings) {}
  CudaMatmul prepare(const CudaGemm& gemm) override {
    const CudaMatmul made = blas_.prepare(gemm);
    if (made != nullptr) emulated_.blas().count(gemm);
    return made;
  }
  std::string why_not() override { return blas_.why_not(); }
  std::string library() override { return settings_.library + blas_.library(); }
  std::vector<std::string> algorithms(CudaMatmul matmul, int most) override {
    if (settings_.algorithm_seconds.size() < 2) return {};  // nothing to choose from
    return blas_.algorithms(matmul, most);
  }
  bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) override {
    if (!blas_.use_algorithm(matmul, algorithm)) return false;
    const std::lock_guard lock(emulated_.state().mutex);
    emulated_.state().counts.used.push_back(fmt::format("a{}", algorithm.back()));
    return true;
  }
  int64_t workspace() override { return blas_.workspace(); }
  void run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream) override {
    blas_.run(matmul, a, b, added, c, workspace, stream);
  }
  void release(CudaMatmul matmul) override { blas_.release(matmul); }

 private:
  CudaBlasApi& blas_;
  EmulatedCuda& emulated_;
  const EmulatorSettings& settings_;
};

class Libraries final : public CudaApi {
 public:
  explicit Libraries(EmulatedCuda& emulated) : machine_(emulated), emulated_(emulated) {
    // What was opened once stays open, so a machine that lacks something has a copy of its own.
    static void* const usual = open_copy();
    void* const library = emulated.state().settings.missing.empty() ? usual : open_copy();
    const auto open = reinterpret_cast<CudaOpenOn>(dlsym(library, "tessera_cuda_open_on"));
    TESSERA_CHECK(open != nullptr, "libtessera_cuda.so has no tessera_cuda_open_on");
    std::string why;
    opened_.reset(open(&find_symbol, why));
    if (opened_ == nullptr) fail(ErrorKind::unsupported, "no GPU can be used: {}", why);
    kernels_ = std::make_unique<ToldKernels>(opened_->kernels(), emulated.kernels());
    blas_ = std::make_unique<CountedBlas>(opened_->blas(), emulated);
  }
  CudaContextApi& contexts() override { return opened_->contexts(); }
  CudaMemoryApi& memory() override { return opened_->memory(); }
  CudaStreamApi& streams() override { return opened_->streams(); }
  CudaKernelApi& kernels() override { return *kernels_; }
  CudaGraphApi& graphs() override { return opened_->graphs(); }
  CudaBlasApi& blas() override { return *blas_; }
  CudaConvolutionApi* convolution(std::string& why) override { return opened_->convolution(why); }
  CudaAttentionApi* attention(std::string& why) override { return opened_->attention(why); }
  CudaNcclApi* nccl(std::string& why) override { return opened_->nccl(why); }
  CudaProfilerApi* profiler() override { return emulated_.profiler(); }

 private:
  Machine machine_;
  EmulatedCuda& emulated_;
  std::unique_ptr<CudaApi> opened_;
  std::unique_ptr<ToldKernels> kernels_;
  std::unique_ptr<CountedBlas> blas_;
};

}  // namespace

std::unique_ptr<CudaApi> open_libraries(EmulatedCuda& emulated) {
  return std::make_unique<Libraries>(emulated);
}

}  // namespace tessera::test::rules
