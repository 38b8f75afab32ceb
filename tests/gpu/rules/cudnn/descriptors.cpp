// One table says which attributes a descriptor has. The codes are those of cuDNN 9.19, where they
// differ from its documentation.
#include "gpu/rules/cudnn/descriptors.h"

#include <algorithm>

#include "gpu/rules/cudnn/engines.h"
#include "gpu/rules/cudnn/living.h"
#include "gpu/rules/cudnn/operations.h"
#include "gpu/rules/cudnn/status.h"
#include "gpu/rules/driver.h"

namespace tessera::test::rules::cudnn {

namespace {

Living<cudnnBackendDescriptor_t, Descriptor>& living() {
  static Living<cudnnBackendDescriptor_t, Descriptor> all;
  return all;
}

enum class Is : uint8_t { required, optional, result };  ///< a result cannot be set

struct Attribute {
  int name;
  cudnnBackendAttributeType_t type;
  Is is = Is::required;
  bool is_list = false;
  cudnnBackendDescriptorType_t part{};                ///< of a descriptor
  cudnnStatus_t if_missing = CUDNN_STATUS_BAD_PARAM;  ///< what finalizing says
};

Attribute tensor(int name, Is is = Is::required) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, is, false, CUDNN_BACKEND_TENSOR_DESCRIPTOR};
}
Attribute one(int name, cudnnBackendDescriptorType_t part,
              cudnnStatus_t if_missing = CUDNN_STATUS_BAD_PARAM) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, Is::required, false, part, if_missing};
}

const std::vector<Attribute>* attributes_of(cudnnBackendDescriptorType_t type) {
  static const std::map<cudnnBackendDescriptorType_t, std::vector<Attribute>> all = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, Is::required, true},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, Is::required, true},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, Is::optional},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, Is::optional}}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, Is::optional}}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE}}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {one(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, Is::optional),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, Is::optional),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {one(CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
        tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {one(CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC), tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
        one(CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR,
            CUDNN_STATUS_NOT_SUPPORTED)}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, Is::optional},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, Is::required, true}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {one(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
        {CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, Is::result, true,
         CUDNN_BACKEND_ENGINECFG_DESCRIPTOR}}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, Is::result, false,
         CUDNN_BACKEND_ENGINE_DESCRIPTOR}}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, Is::result},
        {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, Is::result, true}}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {one(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
            CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED),
        {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, Is::optional},
        {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, Is::result}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, Is::optional, true},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, Is::optional, true},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, Is::optional}}}};
  const auto found = all.find(type);
  return found == all.end() ? nullptr : &found->second;
}

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return sizeof(int64_t);
    default:
      return sizeof(int);  // enumerations
  }
}

/// The attribute of that name and type; null if there is none, and then `status` says why.
const Attribute* find_attribute(const Descriptor& d, int name, cudnnBackendAttributeType_t type,
                                cudnnStatus_t& status) {
  const std::vector<Attribute>& all = *attributes_of(d.type);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Attribute& a) { return a.name == name; });
  status = found == all.end()    ? told(CUDNN_STATUS_BAD_PARAM, "it has no such attribute")
           : found->type != type ? told(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "the type differs")
                                 : CUDNN_STATUS_SUCCESS;
  return status == CUDNN_STATUS_SUCCESS ? &*found : nullptr;
}

bool may_be(const Attribute& attribute, cudnnBackendDescriptorType_t type) {
  return attribute.name == CUDNN_ATTR_OPERATIONGRAPH_OPS ? is_operation(type)
                                                         : attribute.part == type;
}

/// Null stands for what is not set.
cudnnStatus_t set_parts(Descriptor& d, const Attribute& attribute, int64_t count,
                        const cudnnBackendDescriptor_t* parts) {
  Descriptor::Parts all;
  for (int64_t i = 0; i < count; ++i) {
    if (parts[i] == nullptr) continue;
    const Descriptor* part = find_descriptor(parts[i]);
    if (part == nullptr) return told(CUDNN_STATUS_BAD_PARAM, "it was destroyed");
    if (!may_be(attribute, part->type))
      return told(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor of another type");
    if (attribute.name == CUDNN_ATTR_OPERATIONGRAPH_OPS && !part->is_final)
      return told(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an operation is not finalized");
    all.push_back(std::make_shared<const Descriptor>(*part));
  }
  if (!all.empty()) d.parts[attribute.name] = std::move(all);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t get_parts(const Descriptor::Parts& parts, const Attribute& attribute, int64_t count,
                        const cudnnBackendDescriptor_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    Descriptor* there = find_descriptor(to[i]);
    if (there == nullptr || !may_be(attribute, there->type))
      return told(CUDNN_STATUS_BAD_PARAM, "what is read into must be such a descriptor");
    *there = *parts[static_cast<size_t>(i)];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_pack(const Descriptor& d) {
  const auto ids = d.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto places = d.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  return ids.size() == places.size()
             ? CUDNN_STATUS_SUCCESS
             : told(CUDNN_STATUS_BAD_PARAM, "as many pointers as ids are needed");
}

cudnnStatus_t check_content(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return check_tensor(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return check_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return find_engines(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return compile(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return check_pack(d);
    default:
      return is_operation(d.type) ? check_operation(d) : CUDNN_STATUS_SUCCESS;
  }
}

}  // namespace

Descriptor* find_descriptor(cudnnBackendDescriptor_t descriptor) {
  Descriptor* found = living().find(descriptor);
  Machine* m = Machine::current();
  if (found == nullptr && descriptor != nullptr && m != nullptr) {
    const std::lock_guard lock(m->state.mutex);
    m->state.misuse("a descriptor of cuDNN that was destroyed");
  }
  return found;
}
size_t living_descriptors() { return living().size(); }

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t* descriptor) {
  if (attributes_of(type) == nullptr)
    return told(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no such type");
  *descriptor = living().make({type});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
  if (find_descriptor(descriptor) == nullptr)
    return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no descriptor");
  living().drop(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Descriptor* d = find_descriptor(descriptor);
  if (d == nullptr) return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no descriptor");
  if (d->is_final) return told(CUDNN_STATUS_BAD_PARAM, "it is finalized");
  cudnnStatus_t status{};
  const Attribute* attribute = find_attribute(*d, name, type, status);
  if (attribute == nullptr) return status;
  if (attribute->is == Is::result) return told(CUDNN_STATUS_BAD_PARAM, "it cannot be set");
  if (count < 1 || (!attribute->is_list && count != 1) || values == nullptr)
    return told(CUDNN_STATUS_BAD_PARAM, "the count is wrong, or there are no values");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    return set_parts(*d, *attribute, count, static_cast<const cudnnBackendDescriptor_t*>(values));
  const char* first = static_cast<const char*>(values);
  d->values[name].assign(first, first + static_cast<size_t>(count) * bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}

/// With `most` 0, says how many there are.
cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int64_t most, int64_t* count,
                            void* values) {
  const Descriptor* d = find_descriptor(descriptor);
  if (d == nullptr) return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no descriptor");
  if (!d->is_final) return told(CUDNN_STATUS_NOT_INITIALIZED, "it is not finalized");
  cudnnStatus_t status{};
  const Attribute* attribute = find_attribute(*d, name, type, status);
  if (attribute == nullptr) return status;
  const auto take = [&](size_t all) {
    *count = most == 0 ? static_cast<int64_t>(all) : std::min(most, static_cast<int64_t>(all));
    return most == 0 ? 0 : *count;
  };
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto found = d->parts.find(name);
    const Descriptor::Parts none, &parts = found == d->parts.end() ? none : found->second;
    const int64_t taken = take(parts.size());
    return get_parts(parts, *attribute, taken,
                     static_cast<const cudnnBackendDescriptor_t*>(values));
  }
  const auto found = d->values.find(name);
  const std::vector<char> none, &bytes = found == d->values.end() ? none : found->second;
  const int64_t taken = take(bytes.size() / bytes_of(type));
  if (taken > 0) std::memcpy(values, bytes.data(), static_cast<size_t>(taken) * bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor* d = find_descriptor(descriptor);
  if (d == nullptr) return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no descriptor");
  if (d->is_final) return told(CUDNN_STATUS_BAD_PARAM, "it is finalized already");
  for (const Attribute& attribute : *attributes_of(d->type)) {
    if (attribute.is == Is::required && !d->has(attribute.name))
      return told(attribute.if_missing,
                  "attribute " + std::to_string(attribute.name) + " is needed");
  }
  const cudnnStatus_t status = check_content(*d);
  d->is_final = status == CUDNN_STATUS_SUCCESS;
  return status;
}

}  // namespace tessera::test::rules::cudnn
