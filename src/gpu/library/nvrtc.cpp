#include "gpu/library/nvrtc.h"

#include <nvrtc.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/env.h"
#include "base/hash.h"
#include "gpu/library/shared_library.h"

namespace tessera::cuda {

namespace {

struct Nvrtc {
  Library library{{"libnvrtc.so." TESSERA_TEXT(TESSERA_CUDA_MAJOR), "libnvrtc.so"}};
  decltype(&::nvrtcVersion) version;
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
      fail(ErrorKind::unsupported, "kernels are compiled by NVRTC, which is missing: {}",
           library.why_not());
    }
    library.get(version, "nvrtcVersion");
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

/// Options of every kernel. a * b + c is not contracted, so that elementwise results have the CPU's
/// bits.
constexpr const char* kOptions[] = {"--std=c++20", "-default-device", "--fmad=false",
                                    "--extra-device-vectorization"};

bool is_virtual(const std::string& arch) { return arch.starts_with("compute_"); }

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

/// Not cut short. PTX ends with the brace of its function.
bool is_whole(const std::string& code, bool ptx) {
  if (!ptx)
    return code.size() > 4 && code.starts_with(
                                  "\x7f"
                                  "ELF");
  const size_t last = code.find_last_not_of('\n');
  return last != std::string::npos && code[last] == '}' && code.find(".entry") < last;
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

Cache::Cache() : Cache(cache_folder()) {}

Cache::Cache(const std::string& folder) : folder_(folder), why_not_(why_no_cache(folder)) {}

std::string Cache::code(const std::string& text, const std::string& arch) {
  if (!why_not_.empty()) return compile(text, arch).code;
  int major = 0, minor = 0;
  CHECK_NVRTC(nvrtc().version(&major, &minor));
  static const uint64_t headers = [] {
    uint64_t h = hash_of("");
    for (const char* option : kOptions) h = hash_of(option, h);
    for (int i = 0; i < kHeaderCount; ++i) h = hash_of(kHeaders[i].text, h);
    return h;
  }();
  const uint64_t low = hash_of(text), high = hash_of(text + arch, headers);
  const bool ptx = is_virtual(arch);
  const std::string path = fmt::format("{}/{:016x}{:016x}-{}-{}.{}.{}", folder_, low, high, arch,
                                       major, minor, ptx ? "ptx" : "cubin");
  std::ifstream file(path, std::ios::binary);
  if (file) {
    std::string kept((std::istreambuf_iterator<char>(file)), {});
    if (is_whole(kept, ptx)) {
      ++hits_;
      return kept;
    }
  }
  std::string code = compile(text, arch).code;
  keep(path, code);
  return code;
}

/// Renamed into place: a reader sees the whole file or none.
void Cache::keep(const std::string& path, const std::string& code) {
  const std::string part = fmt::format("{}.{}", path, getpid());
  std::ofstream file(part, std::ios::binary);
  file.write(code.data(), static_cast<std::streamsize>(code.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (!file || error) {
    std::filesystem::remove(part, error);
    why_not_ = fmt::format("'{}' could not be written", path);
  }
}

}  // namespace tessera::cuda
