#include "gpu/rules/nvrtc.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "gpu/rules/driver.h"

namespace tessera::test::rules {

namespace {

struct Made {
  std::string text, code;
};
Made& made(nvrtcProgram program) { return *reinterpret_cast<Made*>(program); }

nvrtcResult version(int* major, int* minor) {
  *major = 0;  // of no real NVRTC: what is cached is not mixed up
  *minor = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult count(int* archs) {
  *archs = static_cast<int>(Machine::current()->settings.architectures.size());
  return NVRTC_SUCCESS;
}
nvrtcResult architectures(int* archs) {
  const std::vector<int>& all = Machine::current()->settings.architectures;
  std::copy(all.begin(), all.end(), archs);
  return NVRTC_SUCCESS;
}
nvrtcResult create(nvrtcProgram* program, const char* text, const char*, int, const char* const*,
                   const char* const*) {
  *program = reinterpret_cast<nvrtcProgram>(new Made{text, ""});
  return NVRTC_SUCCESS;
}
nvrtcResult destroy(nvrtcProgram* program) {
  delete &made(*program);
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult compile(nvrtcProgram program, int options, const char* const* all) {
  const std::string option = "--gpu-architecture=";
  for (int i = 0; i < options; ++i) {
    if (std::strncmp(all[i], option.c_str(), option.size()) != 0) continue;
    const std::string name = all[i] + option.size();
    const std::vector<int>& known = Machine::current()->settings.architectures;
    const int arch = std::atoi(name.c_str() + name.find('_') + 1);
    if (std::find(known.begin(), known.end(), arch) == known.end())
      return NVRTC_ERROR_INVALID_OPTION;
    made(program).code = name + "\n" + made(program).text;
    return NVRTC_SUCCESS;
  }
  return NVRTC_ERROR_INVALID_OPTION;
}
/// PTX ends with a zero, which its size counts.
nvrtcResult size(nvrtcProgram program, size_t* bytes) {
  *bytes = made(program).code.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult code(nvrtcProgram program, char* to) {
  std::strcpy(to, made(program).code.c_str());
  return NVRTC_SUCCESS;
}
nvrtcResult log_size(nvrtcProgram, size_t* bytes) {
  *bytes = 1;
  return NVRTC_SUCCESS;
}
nvrtcResult log(nvrtcProgram, char* to) {
  *to = '\0';
  return NVRTC_SUCCESS;
}
const char* error(nvrtcResult) { return "NVRTC_ERROR_INVALID_OPTION"; }

template <class F>
void* as(F function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

std::optional<Image> read_image(const char* code) {
  Image image;
  const char* line = std::strchr(code, '\n');
  image.is_ptx = std::strncmp(code, "compute_", 8) == 0;
  if (line == nullptr || (!image.is_ptx && std::strncmp(code, "sm_", 3) != 0)) return std::nullopt;
  image.arch = std::atoi(std::strchr(code, '_') + 1);
  image.text = line + 1;
  return image;
}

void* find_nvrtc(const std::string& symbol) {
  static const std::map<std::string, void*> all = {
      {"", as(&version)},
      {"nvrtcVersion", as<decltype(&nvrtcVersion)>(&version)},
      {"nvrtcGetNumSupportedArchs", as<decltype(&nvrtcGetNumSupportedArchs)>(&count)},
      {"nvrtcGetSupportedArchs", as<decltype(&nvrtcGetSupportedArchs)>(&architectures)},
      {"nvrtcCreateProgram", as<decltype(&nvrtcCreateProgram)>(&create)},
      {"nvrtcDestroyProgram", as<decltype(&nvrtcDestroyProgram)>(&destroy)},
      {"nvrtcCompileProgram", as<decltype(&nvrtcCompileProgram)>(&compile)},
      {"nvrtcGetCUBINSize", as<decltype(&nvrtcGetCUBINSize)>(&size)},
      {"nvrtcGetCUBIN", as<decltype(&nvrtcGetCUBIN)>(&code)},
      {"nvrtcGetPTXSize", as<decltype(&nvrtcGetPTXSize)>(&size)},
      {"nvrtcGetPTX", as<decltype(&nvrtcGetPTX)>(&code)},
      {"nvrtcGetProgramLogSize", as<decltype(&nvrtcGetProgramLogSize)>(&log_size)},
      {"nvrtcGetProgramLog", as<decltype(&nvrtcGetProgramLog)>(&log)},
      {"nvrtcGetErrorString", as<decltype(&nvrtcGetErrorString)>(&error)}};
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace tessera::test::rules
