#include "gpu/library/nvrtc.h"

#include <nvrtc.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/cache_file.h"
#include "base/env.h"
#include "base/hash.h"
#include "gpu/library/shared_library.h"

namespace tessera::cuda {

namespace {

struct Nvrtc {
  Library library{{"libnvrtc.so." TESSERA_TEXT(TESSERA_CUDA_MAJOR), "libnvrtc.so"}};
  decltype(&::nvrtcVersion) version;
  decltype(&::nvrtcGetNumSupportedArchs) count;
  decltype(&::nvrtcGetSupportedArchs) architectures;
  decltype(&::nvrtcCreateProgram) create;
  decltype(&::nvrtcDestroyProgram) destroy;
  decltype(&::nvrtcCompileProgram) compile;
  decltype(&::nvrtcGetCUBINSize) cubin_size;
  decltype(&::nvrtcGetCUBIN) cubin;
  decltype(&::nvrtcGetPTXSize) ptx_size;
  decltype(&::nvrtcGetPTX) ptx;
  decltype(&::nvrtcGetProgramLogSize) log_size;
  decltype(&::nvrtcGetProgramLog) log;
  decltype(&::nvrtcGetErrorString) error;
  Nvrtc() {
    if (!library.is_open()) {
      fail(ErrorKind::unsupported,
           "kernels are compiled by NVRTC of CUDA {}, which is missing; it comes with the CUDA "
           "toolkit, and in Python as a package nvidia-cuda-nvrtc: {}",
           TESSERA_TEXT(TESSERA_CUDA_MAJOR), library.why_not());
    }
    library.get(version, "nvrtcVersion");
    library.get(count, "nvrtcGetNumSupportedArchs");
    library.get(architectures, "nvrtcGetSupportedArchs");
    library.get(create, "nvrtcCreateProgram");
    library.get(destroy, "nvrtcDestroyProgram");
    library.get(compile, "nvrtcCompileProgram");
    library.get(cubin_size, "nvrtcGetCUBINSize");
    library.get(cubin, "nvrtcGetCUBIN");
    library.get(ptx_size, "nvrtcGetPTXSize");
    library.get(ptx, "nvrtcGetPTX");
    library.get(log_size, "nvrtcGetProgramLogSize");
    library.get(log, "nvrtcGetProgramLog");
    library.get(error, "nvrtcGetErrorString");
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc instance;
  return instance;
}

void check_nvrtc(nvrtcResult result, const char* call, int line) {
  check_call(result == NVRTC_SUCCESS, call, nvrtc().error(result), __FILE__, line);
}
#define CHECK_NVRTC(call) check_nvrtc(call, #call, __LINE__)

constexpr const char* kFormat = "tessera-kernel 1";

/// Options of every kernel. a * b + c is not contracted, so that elementwise results have the CPU's
/// bits.
constexpr const char* kOptions[] = {"--std=c++20", "-default-device", "--fmad=false",
                                    "--extra-device-vectorization"};

bool is_virtual(const std::string& arch) { return arch.starts_with("compute_"); }

std::pair<int, int> version_numbers() {
  int major = 0, minor = 0;
  CHECK_NVRTC(nvrtc().version(&major, &minor));
  return {major, minor};
}

/// Precompiled headers came with NVRTC 12.8; an older one refuses the option.
bool can_keep_headers() { return version_numbers() >= std::pair(12, 8); }

/// A cubin, or for a virtual architecture PTX.
std::string code_of(nvrtcProgram program, bool ptx) {
  const Nvrtc& n = nvrtc();
  size_t size = 0;
  CHECK_NVRTC(ptx ? n.ptx_size(program, &size) : n.cubin_size(program, &size));
  std::string code(size, '\0');
  CHECK_NVRTC(ptx ? n.ptx(program, code.data()) : n.cubin(program, code.data()));
  if (ptx) code.resize(code.find('\0'));
  return code;
}

}  // namespace

Compiled compile(const std::string& text, const std::string& arch, bool verbose) {
  const Nvrtc& n = nvrtc();
  std::vector<const char*> names, texts;
  for (int i = 0; i < kHeaderCount; ++i) {
    names.push_back(kHeaders[i].name);
    texts.push_back(kHeaders[i].text);
  }
  nvrtcProgram program = nullptr;
  CHECK_NVRTC(
      n.create(&program, text.c_str(), "kernel.cu", kHeaderCount, texts.data(), names.data()));
  const std::string architecture = "--gpu-architecture=" + arch;
  std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
  options.push_back(architecture.c_str());
  // The headers' state after the first kernel is kept in memory for the next ones: a third of the
  // time. The code is the same, so this is no option that the cache has to know.
  if (can_keep_headers()) options.insert(options.end(), {"--pch", "--diag-suppress=629,630"});
  if (verbose && !is_virtual(arch)) options.push_back("--ptxas-options=-v");
  const nvrtcResult result = n.compile(program, static_cast<int>(options.size()), options.data());
  Compiled compiled;
  size_t size = 0;
  CHECK_NVRTC(n.log_size(program, &size));
  compiled.log.resize(size);
  CHECK_NVRTC(n.log(program, compiled.log.data()));
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  if (result == NVRTC_SUCCESS) compiled.code = code_of(program, is_virtual(arch));
  n.destroy(&program);
  if (result != NVRTC_SUCCESS) {
    fail(ErrorKind::internal, "a generated kernel does not compile for {}: {}\n{}", arch,
         compiled.log.substr(0, 2000), text.substr(0, 4000));
  }
  return compiled;
}

std::string architecture_for(int capability) {
  int count = 0;
  CHECK_NVRTC(nvrtc().count(&count));
  std::vector<int> known(static_cast<size_t>(count));
  CHECK_NVRTC(nvrtc().architectures(known.data()));
  int newest = 0;
  for (const int a : known) {
    if (a <= capability) newest = std::max(newest, a);
  }
  if (newest == 0) {
    fail(ErrorKind::unsupported,
         "NVRTC {} compiles for no GPU of compute capability {}.{} any more; install that of an "
         "older toolkit",
         nvrtc_version(), capability / 10, capability % 10);
  }
  return fmt::format("{}_{}", newest / 10 == capability / 10 ? "sm" : "compute", newest);
}

std::string nvrtc_version() {
  const auto [major, minor] = version_numbers();
  return fmt::format("{}.{}", major, minor);
}

Cache::Cache(const std::string& folder) : folder_(folder), why_not_(why_no_cache(folder)) {}

std::string Cache::code(const std::string& text, const std::string& arch) {
  if (!why_not_.empty()) return compile(text, arch).code;
  const std::string version = nvrtc_version();
  static const uint64_t headers = [] {
    uint64_t h = hash_of("");
    for (const char* option : kOptions) h = hash_of(option, h);
    for (int i = 0; i < kHeaderCount; ++i) h = hash_of(kHeaders[i].text, h);
    return h;
  }();
  const std::string key = fmt::format("{} {} {:016x}\n{}", arch, version, headers, text),
                    path = fmt::format("{}/{:016x}{:016x}-{}-{}.{}", folder_, hash_of(text),
                                       hash_of(key), arch, version,
                                       is_virtual(arch) ? "ptx" : "cubin");
  if (std::optional<std::string> kept = read(path, key)) {
    ++hits_;
    return std::move(*kept);
  }
  std::string code = compile(text, arch).code;
  try {
    write_cache_file(path, cache_entry(kFormat, key, code));
  } catch (const Error& e) {
    why_not_ = e.what();
  }
  return code;
}

std::optional<std::string> Cache::read(const std::string& path, const std::string& key) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  try {
    const std::optional<std::string> file = read_cache_file(path, kMostBytes);
    if (!file) return std::nullopt;
    try {
      return cached_value(*file, kFormat, key);
    } catch (const Error& e) {
      ignored_.insert(fmt::format("'{}': {}", path, e.what()));
    }
  } catch (const Error& e) {
    ignored_.insert(e.what());
  }
  return std::nullopt;
}

}  // namespace tessera::cuda
