#include "gpu/rules/cudnn/status.h"

#include <cstring>
#include <map>
#include <utility>

namespace tessera::test::rules::cudnn {

namespace {
thread_local std::string last_error;
}  // namespace

cudnnStatus_t told(cudnnStatus_t status, const std::string& text) {
  last_error = text + "\n";
  return status;
}

const char* name_of(cudnnStatus_t status) {
#define TESSERA_STATUS(name) \
  { CUDNN_STATUS_##name, "CUDNN_STATUS_" #name }
  static const std::map<cudnnStatus_t, const char*> all = {
      TESSERA_STATUS(SUCCESS),
      TESSERA_STATUS(NOT_INITIALIZED),
      TESSERA_STATUS(BAD_PARAM),
      TESSERA_STATUS(BAD_PARAM_NULL_POINTER),
      TESSERA_STATUS(BAD_PARAM_MISALIGNED_POINTER),
      TESSERA_STATUS(BAD_PARAM_NOT_FINALIZED),
      TESSERA_STATUS(BAD_PARAM_STREAM_MISMATCH),
      TESSERA_STATUS(BAD_PARAM_ATTRIBUTE_TYPE),
      TESSERA_STATUS(BAD_PARAM_DESCRIPTOR_TYPE),
      TESSERA_STATUS(NOT_SUPPORTED),
      TESSERA_STATUS(INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
      TESSERA_STATUS(EXECUTION_FAILED),
      TESSERA_STATUS(EXECUTION_FAILED_CUDA_DRIVER)};
#undef TESSERA_STATUS
  const auto found = all.find(status);
  return found == all.end() ? "CUDNN_UNKNOWN_STATUS" : found->second;
}

void get_last_error(char* text, size_t most) {
  if (most == 0) return;
  std::strncpy(text, std::exchange(last_error, {}).c_str(), most);
  text[most - 1] = '\0';
}

}  // namespace tessera::test::rules::cudnn
