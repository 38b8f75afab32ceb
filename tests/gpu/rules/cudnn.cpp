#include "gpu/rules/cudnn.h"

#include "gpu/rules/cudnn/convolutions.h"
#include "gpu/rules/cudnn/descriptors.h"
#include "gpu/rules/cudnn/engines.h"
#include "gpu/rules/cudnn/handles.h"
#include "gpu/rules/cudnn/status.h"

namespace tessera::test::rules {

namespace {
size_t version() { return static_cast<size_t>(Machine::current()->settings.cudnn_version); }
}  // namespace

void* find_cudnn(const std::string& symbol) {
#define TESSERA_FUNCTION(name, function) \
  { #name, reinterpret_cast < void*>(static_cast <decltype(&::name)>(&function)) }
  static const std::map<std::string, void*> functions = {
      {"", reinterpret_cast<void*>(&version)},
      TESSERA_FUNCTION(cudnnGetVersion, version),
      TESSERA_FUNCTION(cudnnGetErrorString, cudnn::name_of),
      TESSERA_FUNCTION(cudnnGetLastErrorString, cudnn::get_last_error),
      TESSERA_FUNCTION(cudnnCreate, cudnn::create_handle),
      TESSERA_FUNCTION(cudnnSetStream, cudnn::set_stream),
      TESSERA_FUNCTION(cudnnBackendCreateDescriptor, cudnn::create_descriptor),
      TESSERA_FUNCTION(cudnnBackendDestroyDescriptor, cudnn::destroy_descriptor),
      TESSERA_FUNCTION(cudnnBackendSetAttribute, cudnn::set_attribute),
      TESSERA_FUNCTION(cudnnBackendGetAttribute, cudnn::get_attribute),
      TESSERA_FUNCTION(cudnnBackendFinalize, cudnn::finalize),
      TESSERA_FUNCTION(cudnnBackendExecute, cudnn::execute)};
#undef TESSERA_FUNCTION
  const auto found = functions.find(symbol);
  return found == functions.end() ? cudnn::find_convolution(symbol) : found->second;
}

}  // namespace tessera::test::rules
