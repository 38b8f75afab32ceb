#include "gpu/host_kernels.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

#include "base/fail.h"
#include "gpu/ptx/kernels.h"

#ifndef TESSERA_KERNEL_INCLUDES  // flags: where headers are looked for first
#define TESSERA_KERNEL_INCLUDES ""
#endif

namespace tessera::test {

namespace {

bool has_fma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

using Function = void (*)(const void* args, int64_t blocks, int threads);

class CompiledKernel final : public HostKernel {
 public:
  void run(const void* args, int64_t blocks, int threads,
           const KernelMemory* /*memory*/) const override {
    function(args, blocks, threads);
  }
  int number = 0;
  Function function = nullptr;
};

class HostKernels {
 public:
  void announce(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!kept_.count(text)) {
      kept_[text].number = static_cast<int>(kept_.size());
      waiting_.push_back(text);
    }
  }

  const HostKernel& get(const std::string& text) {
    announce(text);
    const std::lock_guard lock(mutex_);
    if (kept_[text].function == nullptr) compile();
    return kept_[text];
  }

 private:
  static constexpr size_t kFiles = 2;  ///< compiled side by side

  std::string body(const std::string& original) {
    std::string text = original;
    const bool waits =
        text.find("__syncthreads") != std::string::npos ||
        text.find("__shfl") != std::string::npos || text.find("attention") != std::string::npos ||
        text.find("find_spans") != std::string::npos || text.find("_threads<") != std::string::npos;
    for (const char* without :
         {"#include \"kernels/cuda/device.h\"\n", "#include \"kernels/cuda/attention.h\"\n",
          "#include \"kernels/cuda/attention_tensor.h\"\n",
          "#include \"kernels/cuda/attention_tensor_grad.h\"\n",
          "#include \"kernels/cuda/segment_spans.h\"\n", "#include \"kernels/cuda/float8.h\"\n",
          "extern \"C\" "}) {
      if (const size_t at = text.find(without); at != std::string::npos)
        text.erase(at, std::strlen(without));
    }
    return fmt::format(
        "namespace k{0} {{\n{1}}}\nextern \"C\" void run_{0}(const void* args, int64_t blocks, int "
        "threads) {{\n  shim::run([](const void* a) {{ k{0}::tessera_kernel(*static_cast<const "
        "k{0}::Args*>(a)); }}, args, blocks, threads, {2});\n}}\n",
        kept_[original].number, text, waits);
  }

  void compile() {
    std::string folder =
        (std::filesystem::temp_directory_path() / "tessera-kernels-XXXXXX").string();
    check(mkdtemp(folder.data()) != nullptr, "no folder for kernels: {}", folder);
    std::array<std::ofstream, kFiles> files;
    std::string command;
    const char* fma = has_fma() ? " -mfma" : "";  // else the same bits by calls, slowly
    for (size_t f = 0; f < kFiles; ++f) {
      files[f].open(fmt::format("{}/{}.cpp", folder, f));
      files[f] << "#include \"kernels/cuda/attention_tensor_grad.h\"\n"
               << "#include \"kernels/cuda/float8.h\"\n";
      command += fmt::format(
          "{} -std=c++20 -O1 -w{} -ffp-contract=off -fno-math-errno -shared -fPIC {} -I{} -I{}/src "
          "-include "
          "{}/tests/gpu/cuda_shim.h {}/{}.cpp -o {}/{}.so 2> {}/{}.log & ",
          TESSERA_CXX, fma, TESSERA_KERNEL_INCLUDES, TESSERA_SOURCE_DIR, TESSERA_SOURCE_DIR,
          TESSERA_SOURCE_DIR, folder, f, folder, f, folder, f);
    }
    for (size_t k = 0; k < waiting_.size(); ++k) files[k % kFiles] << body(waiting_[k]);
    for (std::ofstream& file : files) file.close();
    check(std::system((command + "wait").c_str()) != -1, "no shell to run the compiler in");
    for (size_t f = 0; f < kFiles; ++f) open(fmt::format("{}/{}", folder, f), f);
    waiting_.clear();
    std::filesystem::remove_all(folder);
  }

  void open(const std::string& path, size_t first) {
    void* library = dlopen((path + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::ifstream log(path + ".log");
      const std::string text((std::istreambuf_iterator<char>(log)), {});
      fail(ErrorKind::internal, "generated kernels do not compile: {}", text.substr(0, 3000));
    }
    for (size_t k = first; k < waiting_.size(); k += kFiles) {
      CompiledKernel& kernel = kept_[waiting_[k]];
      kernel.function =
          reinterpret_cast<Function>(dlsym(library, fmt::format("run_{}", kernel.number).c_str()));
    }
  }

  std::mutex mutex_;
  std::map<std::string, CompiledKernel> kept_;
  std::vector<std::string> waiting_;
};

HostKernels& kernels() {
  static HostKernels instance;
  return instance;
}

}  // namespace

bool has_ptx() { return ptx::can_compile(); }

KernelsAs kernels_by_default() {
  const char* wanted = std::getenv("TESSERA_TEST_KERNELS");
  const std::string name = wanted == nullptr ? "c++" : wanted;
  check(name == "c++" || name == "ptx", "TESSERA_TEST_KERNELS is '{}'; it may be c++ or ptx", name);
  return name == "ptx" ? KernelsAs::ptx : KernelsAs::cpp;
}

void announce_host_kernel(const std::string& text, KernelsAs as) {
  if (as == KernelsAs::ptx) return ptx::announce(text);
  kernels().announce(text);
}

const HostKernel& host_kernel(const std::string& text, KernelsAs as) {
  return as == KernelsAs::ptx ? ptx::kernel(text) : kernels().get(text);
}

}  // namespace tessera::test
