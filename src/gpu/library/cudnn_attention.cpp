// There is one handle per GPU. A lock covers setting its stream and the call after it, because
// thread ranks may share a GPU. Some versions are refused, as NVIDIA's own front end does: their
// kernels are wrong, or read operands differently from their description. cuDNN compiles its
// kernels anew for each plan, so plans are shared by calls with the same description.
#include "gpu/library/cudnn_attention.h"

#include <array>
#include <limits>

#include "gpu/library/cudnn_attention_graph.h"
#include "gpu/library/driver.h"
#include "kernels/cuda/attention_plan.h"

namespace tessera::cuda {

namespace {

struct CompiledGraph {
  explicit CompiledGraph(const Cudnn& dnn) : nodes(dnn) {}
  Nodes nodes;
  Node plan;
  int64_t workspace = 0;
};

}  // namespace

struct CudnnAttention::Library : Cudnn {
  std::map<std::string, std::weak_ptr<CompiledGraph>> compiled;
  size_t version = 0;

  Library() {
    if (!why_not.empty()) return;
    version = cudnnGetVersion_();
    if (version == 91000 || version == 91001)
      why_not = "cuDNN 9.10.0 and 9.10.1 have attention wrong; newer and older ones do not";
  }
};

#define CHECKED(name) TESSERA_DNN(lib, name)

struct CudnnAttention::Attention {
  cudnnHandle_t handle = nullptr;
  std::shared_ptr<CompiledGraph> compiled;
  CudaAttend part;       ///< of one library call
  int64_t parts = 1;     ///< of the batch: library calls
  int64_t row_sums = 0;  ///< bytes at the front of the workspace
  float scale = 1, unseen = 0, one = 1;
};

CudnnAttention::CudnnAttention(const Contexts& contexts) : contexts_(contexts) {}
CudnnAttention::~CudnnAttention() = default;

CudnnAttention::Library& CudnnAttention::library() {
  const std::lock_guard lock(mutex_);
  if (!library_) library_ = std::make_unique<Library>();
  return *library_;
}

std::string CudnnAttention::why_not() { return library().why_not; }

namespace {

constexpr int64_t kMostWidth = 128, kRowsBytes = 16, kKeyTile = 128;

bool is_packed(const CudaAttend& a, const CudaAttend::Strides& s) {
  return (a.batch == 1 || s.batch == a.heads * a.queries) &&
         (a.heads == 1 || s.head == a.queries) && (a.queries == 1 || s.position == 1);
}

/// True if rows begin at multiples of 16 bytes.
bool is_aligned(const CudaAttend& a, const CudaAttend::Strides& s, bool of_keys) {
  const auto fits = [](int64_t count, int64_t stride) {
    return count == 1 || (stride > 0 && stride * int64_t{sizeof(uint16_t)} % kRowsBytes == 0);
  };
  return fits(a.batch, s.batch) && fits(of_keys ? a.key_heads : a.heads, s.head) &&
         fits(of_keys ? a.keys : a.queries, s.position);
}

/// True for what is known to work. The library itself does not refuse everything else.
bool fits(const CudaAttend& a, int major, size_t version) {
  constexpr int kHopper = 9;
  const bool is_small = a.dtype == DType::bfloat16 || a.dtype == DType::float16;
  bool fits = is_small && major >= 8 && a.queries > 1 && a.keys > 1 && a.heads % a.key_heads == 0 &&
              a.width % (kRowsBytes / 2) == 0 && a.width <= kMostWidth && is_packed(a, a.log_sum) &&
              is_aligned(a, a.query, false) && is_aligned(a, a.key, true) &&
              is_aligned(a, a.value, true) && is_aligned(a, a.out, false);
  if (!a.backward) return fits;
  // A last half tile of keys is not masked: exp(-log_sum) overflows there if all logits of a row
  // are below -88 (NVIDIA/cudnn-frontend pull request 628). A causal mask covers it.
  const bool has_open_tail =
      a.keys % kKeyTile == kKeyTile / 2 && !(a.causal && a.queries <= a.keys);
  // The engines of other GPUs do not say whether they are deterministic.
  return fits && major == kHopper && (a.keys % kKeyTile == 0 || version > 91500) &&
         !has_open_tail && is_aligned(a, a.grad, false) && is_aligned(a, a.query_grad, false) &&
         is_aligned(a, a.key_grad, true) && is_aligned(a, a.value_grad, true);
}

/// False if the engine is marked nondeterministic. True proves little (cudnn_attention_graph.cpp).
bool is_ordered(Nodes& nodes, Node engine) {
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  nodes.get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
  for (const cudnnBackendNumericalNote_t note : notes) {
    if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  }
  return true;
}

/// The GPU that a graph is for: a handle, or a description of an absent one.
struct Gpu {
  cudnnHandle_t handle = nullptr;
  Node described;
};

/// An engine with its settings, and its name.
struct Choice {
  Node settings;
  bool ordered = false;
  std::string name;
};

/// The heuristic's engines, best first; none if the library does not support the graph.
std::vector<Choice> choices(Nodes& nodes, Node graph, const Gpu& gpu, std::string& why) {
  const Node heuristic = nodes.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
#if CUDNN_VERSION >= 90800
  if (gpu.handle == nullptr) nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, gpu.described);
#endif
  if (!nodes.finalize(heuristic, why)) return {};
  constexpr size_t kMost = 16;
  std::vector<Node> found(kMost);
  for (Node& node : found) node = nodes.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  nodes.get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, found);
  if (found.empty()) why = "the heuristic has no engine";
  std::vector<Choice> choices;
  for (const Node settings : found) {
    std::vector<Node> engine{nodes.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR)};
    nodes.get(settings, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    std::vector<int64_t> number(1);
    nodes.get(engine[0], CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number);
    choices.push_back({settings, is_ordered(nodes, engine[0]), std::to_string(number[0])});
  }
  return choices;
}

/// Compiles the first choice that is deterministic and needs at most `most` bytes.
Node compile(Nodes& nodes, const std::vector<Choice>& choices, const Gpu& gpu, int64_t most,
             int64_t& workspace, std::string& why) {
  for (const Choice& choice : choices) {
    why = "engine " + choice.name + ", in no fixed order";
    if (!choice.ordered) continue;
    const Node plan = nodes.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice.settings);
    if (gpu.handle != nullptr) nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, gpu.handle);
#if CUDNN_VERSION >= 90800
    else
      nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, gpu.described);
#endif
    if (!nodes.finalize(plan, why)) continue;
    std::vector<int64_t> bytes(1);
    nodes.get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, bytes);
    workspace = bytes[0];
    why = "engine " + choice.name + " with a workspace of " + std::to_string(workspace) + " bytes";
    if (workspace <= most) return plan;
  }
  return {};
}

int64_t row_sums_of(const CudaAttend& a) {
  return a.backward ? attention_sums_bytes(a.batch, a.heads, a.queries) : 0;
}
int64_t stored_bytes(const CudaAttend& a) {
  return a.backward
             ? attention_stored_bytes(a.batch, a.heads, a.key_heads, a.queries, a.keys, a.width)
             : 0;
}

/// Everything but the scale, which is an argument of a call.
std::string key_of(const CudaAttend& a, int gpu) {
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {} {}", gpu, static_cast<int>(a.dtype), a.backward,
                  a.causal, a.batch, a.heads, a.key_heads, a.queries, a.keys, a.width);
  for (const CudaAttend::Strides* s : {&a.query, &a.key, &a.value, &a.out, &a.log_sum, &a.grad,
                                       &a.query_grad, &a.key_grad, &a.value_grad})
    key += fmt::format(" {} {} {}", s->batch, s->head, s->position);
  return key;
}

}  // namespace

CudaAttention CudnnAttention::prepare(const CudaAttend& whole, int64_t most, std::string& why) {
  const int gpu = current_gpu(), major = contexts_.current().major;
  Library& lib = library();
  why = lib.why_not.empty() ? "it is not among what is known to work" : lib.why_not;
  if (!lib.why_not.empty() || !fits(whole, major, lib.version)) return nullptr;
  auto made = std::make_unique<Attention>();
  Attention& m = *made;
  m.part = whole;
  while (stored_bytes(m.part) + row_sums_of(m.part) > most) {
    do {
      why = fmt::format("it needs more than the {} bytes of workspace there are", most);
      if (++m.parts > whole.batch) return nullptr;
    } while (!attention_may_part(whole.batch, m.parts, whole.heads, whole.queries));
    m.part.batch = whole.batch / m.parts;
  }
  m.scale = static_cast<float>(whole.scale);
  // Before 9.10 the library's kernels need a finite number here.
  m.unseen = lib.version < 91000 ? std::numeric_limits<float>::lowest()
                                 : -std::numeric_limits<float>::infinity();
  m.row_sums = row_sums_of(m.part);
  const std::lock_guard lock(mutex_);
  m.handle = lib.handle(gpu);
  std::weak_ptr<CompiledGraph>& known = lib.compiled[key_of(m.part, gpu)];
  m.compiled = known.lock();
  if (m.compiled == nullptr) {
    m.compiled = std::make_shared<CompiledGraph>(lib);
    Nodes& nodes = m.compiled->nodes;
    const Gpu here{m.handle, {}};
    const Node graph = attention_graph(nodes, m.part, m.handle, why);
    if (graph.at == nullptr) return nullptr;
    m.compiled->plan = compile(nodes, choices(nodes, graph, here, why), here, most - m.row_sums,
                               m.compiled->workspace, why);
    if (m.compiled->plan.at == nullptr) return nullptr;
    known = m.compiled;
  }
  why = fmt::format("it needs {} bytes of workspace, and there are {}",
                    m.row_sums + m.compiled->workspace, most);
  if (m.row_sums + m.compiled->workspace > most) return nullptr;
  return reinterpret_cast<CudaAttention>(made.release());
}

void CudnnAttention::run(CudaAttention given, const CudaAttendOperands& o, void* workspace,
                         CudaStream stream) {
  Attention& a = *reinterpret_cast<Attention*>(given);
  const CudaAttend& p = a.part;
  Library& lib = library();
  const std::lock_guard lock(mutex_);
  CHECKED(cudnnSetStream)(a.handle, reinterpret_cast<cudaStream_t>(stream));
  for (int64_t part = 0; part < a.parts; ++part) {
    std::vector<int64_t> names;
    std::vector<void*> places;
    const auto add = [&](AttentionId name, const void* place, int64_t bytes = 0) {
      names.push_back(name);
      places.push_back(static_cast<char*>(const_cast<void*>(place)) + part * p.batch * bytes);
    };
    constexpr int64_t kSmall = sizeof(uint16_t), kWide = sizeof(float);
    add(kQuery, o.query, p.query.batch * kSmall);
    add(kKey, o.key, p.key.batch * kSmall);
    add(kValue, o.value, p.value.batch * kSmall);
    add(kOut, o.out, p.out.batch * kSmall);
    add(kLogSum, o.log_sum, p.log_sum.batch * kWide);
    add(kScale, &a.scale);
    if (p.causal) add(kUnseen, &a.unseen);
    if (p.backward) {
      add(kGrad, o.grad, p.grad.batch * kSmall);
      add(kQueryGrad, o.query_grad, p.query_grad.batch * kSmall);
      add(kKeyGrad, o.key_grad, p.key_grad.batch * kSmall);
      add(kValueGrad, o.value_grad, p.value_grad.batch * kSmall);
      add(kRowSums, workspace);
      add(kOne, &a.one);
    }
    void* rest = static_cast<char*>(workspace) + a.row_sums;
    Nodes nodes(lib);
    const Node pack = nodes.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    nodes.set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names.data(), names.size());
    nodes.set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, places.data(), places.size());
    nodes.set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, rest);
    nodes.finalize(pack);
    CHECKED(cudnnBackendExecute)(a.handle, a.compiled->plan.at, pack.at);
  }
}

void CudnnAttention::release(CudaAttention given) {
  const std::lock_guard lock(mutex_);
  delete reinterpret_cast<Attention*>(given);
}

}  // namespace tessera::cuda

#if CUDNN_VERSION >= 90800
extern "C" {

/// For tests without a GPU: what prepare() finds for a GPU that is described in cuDNN's JSON.
/// `says` gets a line for each engine of the heuristic, and which one is compiled, or why none is.
/// Compiling needs libcuda. Returns false if `says` has only an error.
bool tessera_cuda_attend(const tessera::CudaAttend& attend, const std::string& gpu, int major,
                         int64_t most, bool compiles, std::string& says) {
  using namespace tessera::cuda;
  try {
    static const Cudnn dnn;
    TESSERA_CHECK(dnn.why_not.empty(), "{}", dnn.why_not);
    Nodes nodes(dnn);
    const Node described = nodes.make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    nodes.set(described, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, gpu.data(), gpu.size());
    nodes.finalize(described);
    const Gpu there{nullptr, described};
    std::string why = "it is not asked for";
    says.clear();
    Node graph, plan;
    if (fits(attend, major, dnn.cudnnGetVersion_()))
      graph = attention_graph(nodes, attend, nullptr, why);
    if (graph.at != nullptr) {
      const std::vector<Choice> found = choices(nodes, graph, there, why);
      for (const Choice& choice : found)
        says += "engine " + choice.name + (choice.ordered ? "\n" : ", in no fixed order\n");
      int64_t workspace = 0;
      if (!compiles && !found.empty()) return true;
      plan = compile(nodes, found, there, most - row_sums_of(attend), workspace, why);
    }
    says += (plan.at == nullptr ? "none: " : "") + why;
    return true;
  } catch (const std::exception& e) {
    says = e.what();
    return false;
  }
}
}
#endif
