#include "gpu/ptx/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fail.h"
#include "base/hash.h"
#include "gpu/ptx/run.h"

namespace tessera::test::ptx {

namespace {

#ifndef TESSERA_CUDA_LIBRARY  // a build without the toolkit
#define TESSERA_CUDA_LIBRARY ""
#define TESSERA_PTX_FOLDER ""
#endif
constexpr const char* kLibrary = TESSERA_CUDA_LIBRARY;
/// compute_90, or TESSERA_PTX_ARCH.
std::string architecture() {
  const char* wanted = std::getenv("TESSERA_PTX_ARCH");
  return wanted == nullptr ? "compute_90" : wanted;
}

using Compile = bool (*)(const std::string& text, const std::string& arch,
                         const std::string& folder, std::string& code, std::string& log);

Compile compiler() {
  static void* library = kLibrary[0] == 0 ? nullptr : dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  static const auto found =
      library ? reinterpret_cast<Compile>(dlsym(library, "tessera_cuda_compile")) : nullptr;
  if (found == nullptr)
    fail(ErrorKind::unsupported, "PTX is made by NVRTC, and this build has no CUDA toolkit");
  return found;
}

/// A file with the kernel's text, to look at.
std::string kept(const std::string& text) {
  const std::string path = fmt::format("{}/{:016x}.cu", TESSERA_PTX_FOLDER, hash_of(text));
  std::ofstream(path) << text;
  return path;
}

class PtxKernel final : public HostKernel {
 public:
  PtxKernel(const std::string& text, const std::string& ptx) : text_(text), program_(decode(ptx)) {
    executed_.resize(program_.code.size());
  }

  void run(const void* args, int64_t blocks, int threads,
           const KernelMemory* memory) const override {
    std::vector<uint8_t> executed;
    try {
      ptx::run(program_, args, blocks, threads, memory, executed);
    } catch (const Error& e) {
      fail(ErrorKind::internal, "{}; the kernel is in {}", e.what(), kept(text_));
    }
    const std::lock_guard lock(mutex_);
    ++launches_;
    for (size_t i = 0; i < executed.size(); ++i) executed_[i] |= executed[i];
  }

  void add_coverage(std::map<std::string, Executed>& all) {
    const std::lock_guard lock(mutex_);
    if (launches_ == 0) return;
    std::map<std::string, Executed> mine;
    for (size_t i = 0; i < executed_.size(); ++i) {
      Executed& form = mine[program_.places[i].form];
      ++form.places;
      form.executed += executed_[i];
    }
    for (const auto& [form, counts] : mine) {
      ++all[form].kernels;
      all[form].places += counts.places;
      all[form].executed += counts.executed;
    }
  }
  int64_t launches() const {
    const std::lock_guard lock(mutex_);
    return launches_;
  }

 private:
  const std::string text_;
  const Program program_;
  mutable std::mutex mutex_;
  mutable std::vector<uint8_t> executed_;
  mutable int64_t launches_ = 0;
};

class PtxKernels {
 public:
  void announce(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (kept_.try_emplace(text).second) waiting_.push_back(text);
  }

  PtxKernel& get(const std::string& text) {
    announce(text);
    const std::lock_guard lock(mutex_);
    if (kept_[text] == nullptr) compile_waiting();
    if (kept_[text] == nullptr) kept_[text] = std::make_unique<PtxKernel>(text, compile(text));
    return *kept_[text];
  }

  std::vector<PtxKernel*> all() {
    const std::lock_guard lock(mutex_);
    std::vector<PtxKernel*> kernels;
    for (const auto& [text, kernel] : kept_) {
      if (kernel != nullptr) kernels.push_back(kernel.get());
    }
    return kernels;
  }

 private:
  /// By a thread for each processor.
  void compile_waiting() {
    std::vector<std::string> errors(waiting_.size());
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next++) < waiting_.size();) {
        try {
          kept_.at(waiting_[i]) = std::make_unique<PtxKernel>(waiting_[i], compile(waiting_[i]));
        } catch (const std::exception& e) {
          errors[i] = fmt::format("{}; the kernel is in {}", e.what(), kept(waiting_[i]));
        }
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t)
      threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
    waiting_.clear();
    for (const std::string& e : errors) TESSERA_CHECK(e.empty(), "{}", e);
  }

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<PtxKernel>> kept_;
  std::vector<std::string> waiting_;
};

PtxKernels& kernels() {
  static PtxKernels instance;
  return instance;
}

}  // namespace

bool can_compile() { return kLibrary[0] != 0; }

std::unique_ptr<HostKernel> make_kernel(const std::string& text, const std::string& ptx) {
  return std::make_unique<PtxKernel>(text, ptx);
}

std::string compile(const std::string& text) {
  std::string code, log;
  if (!compiler()(text, architecture(), TESSERA_PTX_FOLDER, code, log))
    fail(ErrorKind::internal, "{}", log);
  return code;
}

void announce(const std::string& text) { kernels().announce(text); }
const HostKernel& kernel(const std::string& text) { return kernels().get(text); }

std::map<std::string, Executed> coverage() {
  std::map<std::string, Executed> all;
  for (PtxKernel* k : kernels().all()) k->add_coverage(all);
  return all;
}

Counts counts() {
  Counts c;
  for (const PtxKernel* k : kernels().all()) {
    const int64_t launches = k->launches();
    c.kernels += launches > 0 ? 1 : 0;
    c.launches += launches;
  }
  return c;
}

}  // namespace tessera::test::ptx
