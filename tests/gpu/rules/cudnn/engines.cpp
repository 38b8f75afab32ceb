#include "gpu/rules/cudnn/engines.h"

#include <algorithm>
#include <set>

#include "gpu/rules/cudnn/handles.h"
#include "gpu/rules/cudnn/operations.h"
#include "gpu/rules/cudnn/status.h"
#include "gpu/rules/cudnn/values.h"

namespace tessera::test::rules::cudnn {

namespace {

constexpr int64_t kUnordered = 7, kRefuses = 5, kLarge = 11, kUsual = 3;  ///< engines
constexpr int64_t kLargeWorkspace = int64_t{1} << 40, kWorkspaceAlignment = 16;

std::shared_ptr<const Descriptor> configuration(int64_t engine, const Descriptor& graph) {
  Descriptor made{CUDNN_BACKEND_ENGINE_DESCRIPTOR, true};
  made.set<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, {engine});
  std::vector<cudnnBackendNumericalNote_t> notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (engine == kUnordered) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  made.set(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
  made.parts[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {std::make_shared<const Descriptor>(graph)};
  Descriptor config{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true};
  config.parts[CUDNN_ATTR_ENGINECFG_ENGINE] = {std::make_shared<const Descriptor>(made)};
  return std::make_shared<const Descriptor>(config);
}

const Descriptor& engine_of(const Descriptor& plan) {
  return *plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->part(CUDNN_ATTR_ENGINECFG_ENGINE);
}
int64_t number_of(const Descriptor& plan) {
  return engine_of(plan).get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
}

/// What an execution has of a graph's tensors.
struct Operands {
  std::map<int64_t, void*> given;  ///< by id
  std::vector<CudaRange> reads, writes;
  Places places;

  cudnnStatus_t add(const TensorInfo& t, bool is_written, const Machine& m);
};

cudnnStatus_t Operands::add(const TensorInfo& t, bool is_written, const Machine& m) {
  if (t.is_virtual) return CUDNN_STATUS_SUCCESS;
  const auto found = given.find(t.id);
  if (found == given.end())
    return told(CUDNN_STATUS_BAD_PARAM, "tensor " + std::to_string(t.id) + " is not in the pack");
  void* at = found->second;
  if (at == nullptr) return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a tensor that is nowhere");
  if (t.is_number) {
    if (m.gpu.memory().gpu_of(at) >= 0)
      return told(CUDNN_STATUS_BAD_PARAM, "a number that is passed by value lies on a GPU");
    places.numbers[t.id] = *static_cast<const float*>(at);
    return CUDNN_STATUS_SUCCESS;
  }
  if (reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(t.alignment) != 0)
    return told(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a tensor is not aligned as it says");
  places.memory[t.id] = at;
  (is_written ? writes : reads).push_back({at, t.span() * bytes_of(t.type)});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t take_operands(const std::vector<Operation>& graph, const Descriptor& pack,
                            const Machine& m, Operands& operands) {
  const auto ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto places = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!operands.given.emplace(ids[i], places[i]).second)
      return told(CUDNN_STATUS_BAD_PARAM, "an id twice");
  }
  std::set<int64_t> seen;
  const auto add = [&](const TensorInfo& t, bool is_written) {
    return seen.insert(t.id).second ? operands.add(t, is_written, m) : CUDNN_STATUS_SUCCESS;
  };
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  for (const Operation& op : graph) {
    for (const TensorInfo& t : op.in) {
      if (status == CUDNN_STATUS_SUCCESS) status = add(t, false);
    }
    if (status == CUDNN_STATUS_SUCCESS) status = add(op.out[0], true);
  }
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return operands.given.size() == operands.places.memory.size() + operands.places.numbers.size()
             ? CUDNN_STATUS_SUCCESS
             : told(CUDNN_STATUS_BAD_PARAM, "an id of no tensor of the graph");
}

}  // namespace

cudnnStatus_t find_engines(Descriptor& heuristic) {
  const Descriptor& graph = *heuristic.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (!graph.is_final)
    return told(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the graph is not finalized");
  if (gpu_of(graph.get<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, nullptr)) < 0)
    return told(CUDNN_STATUS_BAD_PARAM, "for which GPU?");
  for (const int64_t engine : {kUnordered, kRefuses, kLarge, kUsual})
    heuristic.parts[CUDNN_ATTR_ENGINEHEUR_RESULTS].push_back(configuration(engine, graph));
  return CUDNN_STATUS_SUCCESS;
}

/// Kernels are compiled and loaded.
cudnnStatus_t compile(Descriptor& plan) {
  const Entered in;
  const Descriptor& config = *plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (!config.is_final)
    return told(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the configuration is not finalized");
  if (gpu_of(plan.get<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr)) < 0)
    return told(CUDNN_STATUS_BAD_PARAM, "for which GPU?");
  if (in.result != CUDA_SUCCESS || check_unsafe(*in.m) != CUDA_SUCCESS)
    return told(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "a kernel cannot be loaded");
  const std::string why =
      why_not(read_graph(*engine_of(plan).part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH)));
  if (!why.empty()) return told(CUDNN_STATUS_NOT_SUPPORTED, why);
  const int64_t engine = number_of(plan);
  if (engine == kRefuses) return told(CUDNN_STATUS_NOT_SUPPORTED, "not on this GPU");
  plan.set<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                    {engine == kLarge ? kLargeWorkspace : in.m->settings.attention_bytes});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t of_plan,
                      cudnnBackendDescriptor_t of_pack) {
  const OnStream in(handle);
  if (in.status != CUDNN_STATUS_SUCCESS) return in.status;
  const Descriptor *plan = find_descriptor(of_plan), *pack = find_descriptor(of_pack);
  if (plan == nullptr || pack == nullptr || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
      pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
    return told(CUDNN_STATUS_BAD_PARAM, "there is no plan or no pack");
  if (!plan->is_final || !pack->is_final)
    return told(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the plan or the pack is not finalized");
  if (gpu_of(plan->get<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, nullptr)) != gpu_of(handle))
    return told(CUDNN_STATUS_BAD_PARAM, "the plan is for another GPU");
  const auto graph = read_graph(*engine_of(*plan).part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  Operands operands;
  const cudnnStatus_t status = take_operands(graph, *pack, *in.m, operands);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const auto bytes = plan->get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0);
  const auto* workspace = pack->get<const char*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (bytes > 0 && workspace == nullptr)
    return told(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs a workspace");
  if (reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return told(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "the workspace is not aligned");
  if (bytes > 0 && in.m->gpu.memory().gpu_of(workspace + bytes - 1) != in.context->gpu)
    return told(CUDNN_STATUS_BAD_PARAM, "the workspace is not the GPU's");
  if (number_of(*plan) == kUnordered) {
    const std::lock_guard lock(in.m->state.mutex);
    in.m->state.misuse("an engine of cuDNN that adds in no fixed order");
  }
  EmulatorState::Work work{"attention", operands.reads, operands.writes, {}};
  if (bytes > 0) work.writes.push_back({workspace, bytes});
  // Before 9.10 kernels do not get along with infinite logits.
  constexpr int kTakesInfinity = 91000;
  const bool is_finite = in.m->settings.cudnn_version < kTakesInfinity;
  work.run = [graph, places = operands.places, is_finite] { compute(graph, places, is_finite); };
  ++in.m->state.counts.attentions;
  in.m->state.submit(in.stream, std::move(work));
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tessera::test::rules::cudnn
