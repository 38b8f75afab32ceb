// A profiler for the tests: NVTX loads it by NVTX_INJECTION64_PATH, and it notes what it is told.
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace {

std::string& notes() {
  static std::string all;
  return all;
}

nvtxDomainHandle_t NVTX_API create(const char* name) {
  notes() += std::string("domain ") + name + "\n";
  return reinterpret_cast<nvtxDomainHandle_t>(&notes());
}
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  notes() += std::string("push ") + event->message.ascii + "\n";
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  notes() += "pop\n";
  return 0;
}

}  // namespace

extern "C" {

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

const char* listener_notes() { return notes().c_str(); }
}
