// There is one handle a card; setting its stream and the call behind it belong together, as thread
// ranks may share a card. What is refused by version is what NVIDIA's own front end refuses: there
// the library has wrong kernels, or reads operands otherwise than they are described.
#include "cuda/attentions.h"

#include <array>
#include <limits>

#include "cuda/attentions_graph.h"

namespace tessera::cuda {

struct Attentions::Library : AttentionCalls {
  std::map<int, cudnnHandle_t> handles;  ///< by card
  size_t version = 0;

  Library() {
    if (!why_not.empty()) return;
    version = cudnnGetVersion_();
    if (version == 91000 || version == 91001)
      why_not = "cuDNN 9.10.0 and 9.10.1 have attention wrong; newer and older ones do not";
  }
};

#define CHECKED(name) [&](auto... args) { lib.check(lib.name##_(args...), #name, __LINE__); }

struct Attentions::Attention {
  explicit Attention(const AttentionCalls& calls) : nodes(calls) {}
  cudnnHandle_t handle = nullptr;
  Nodes nodes;
  Node plan;
  bool backward = false, causal = false;
  float scale = 1, unseen = 0;
  int64_t row_sums = 0;   ///< bytes at the front of the workspace
  int64_t workspace = 0;  ///< bytes in all
};

Attentions::Attentions() = default;
Attentions::~Attentions() = default;

Attentions::Library& Attentions::library() {
  const std::lock_guard lock(mutex_);
  if (!library_) library_ = std::make_unique<Library>();
  return *library_;
}

std::string Attentions::why_not() { return library().why_not; }

namespace {

constexpr int64_t kMostWidth = 128, kRowsBytes = 16, kKeyTile = 128, kAlign = 256;

bool is_packed(const CudaAttend& a, const CudaAttend::Strides& s) {
  return (a.batch == 1 || s.batch == a.heads * a.queries) &&
         (a.heads == 1 || s.head == a.queries) && (a.queries == 1 || s.position == 1);
}

/// Rows that begin at multiples of 16 bytes.
bool is_aligned(const CudaAttend& a, const CudaAttend::Strides& s, bool of_keys) {
  const auto fits = [](int64_t count, int64_t stride) {
    return count == 1 || (stride > 0 && stride * int64_t{sizeof(uint16_t)} % kRowsBytes == 0);
  };
  return fits(a.batch, s.batch) && fits(of_keys ? a.key_heads : a.heads, s.head) &&
         fits(of_keys ? a.keys : a.queries, s.position);
}

/// What is known to work: the library itself does not refuse all of the rest.
bool fits(const CudaAttend& a, int major, size_t version) {
  constexpr int kHopper = 9;
  const bool is_small = a.dtype == DType::bfloat16 || a.dtype == DType::float16;
  bool fits = is_small && major >= 8 && a.queries > 1 && a.keys > 1 && a.heads % a.key_heads == 0 &&
              a.width % (kRowsBytes / 2) == 0 && a.width <= kMostWidth && is_packed(a, a.log_sum) &&
              is_aligned(a, a.query, false) && is_aligned(a, a.key, true) &&
              is_aligned(a, a.value, true) && is_aligned(a, a.out, false);
  if (!a.backward) return fits;
  // Of other cards' engines nothing says whether they add in a fixed order.
  return fits && major == kHopper && (a.keys % kKeyTile == 0 || version > 91500) &&
         is_aligned(a, a.grad, false) && is_aligned(a, a.query_grad, false) &&
         is_aligned(a, a.key_grad, true) && is_aligned(a, a.value_grad, true);
}

bool is_ordered(Nodes& nodes, Node engine) {
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  nodes.get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
  for (const cudnnBackendNumericalNote_t note : notes) {
    if (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return false;
  }
  return true;
}

/// The card that a graph is for: a handle, or a description of one that is not there.
struct Card {
  cudnnHandle_t handle = nullptr;
  Node described;
};

/// An engine with its settings, and what says which one it is.
struct Choice {
  Node settings;
  bool ordered = false;
  std::string name;
};

/// Those of the library's heuristic, the best first; none where it does not support the graph.
std::vector<Choice> choices(Nodes& nodes, Node graph, const Card& card, std::string& why) {
  const Node heuristic = nodes.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
#if CUDNN_VERSION >= 90800
  if (card.handle == nullptr)
    nodes.set(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, card.described);
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

/// The first choice that adds in a fixed order and needs at most `most` bytes, compiled for the
/// card.
Node compile(Nodes& nodes, const std::vector<Choice>& choices, const Card& card, int64_t most,
             int64_t& workspace, std::string& why) {
  for (const Choice& choice : choices) {
    why = "engine " + choice.name + " adds in no fixed order";
    if (!choice.ordered) continue;
    const Node plan = nodes.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, choice.settings);
    if (card.handle != nullptr) nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, card.handle);
#if CUDNN_VERSION >= 90800
    else
      nodes.set(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, card.described);
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
  const int64_t bytes = a.batch * a.heads * a.queries * int64_t{sizeof(float)};
  return a.backward ? (bytes + kAlign - 1) / kAlign * kAlign : 0;
}

}  // namespace

CudaAttention Attentions::prepare(const CudaAttend& a, int card, int major, int64_t most) {
  Library& lib = library();
  if (!lib.why_not.empty() || !fits(a, major, lib.version)) return nullptr;
  auto made = std::make_unique<Attention>(lib);
  const std::lock_guard lock(mutex_);
  cudnnHandle_t& handle = lib.handles[card];
  if (handle == nullptr) CHECKED(cudnnCreate)(&handle);
  made->handle = handle;
  made->backward = a.backward;
  made->causal = a.causal;
  made->scale = static_cast<float>(a.scale);
  // Before 9.10 the library's kernels want a number here.
  made->unseen = lib.version < 91000 ? std::numeric_limits<float>::lowest()
                                     : -std::numeric_limits<float>::infinity();
  made->row_sums = row_sums_of(a);
  std::string why;
  const Card here{handle, {}};
  const Node graph = attention_graph(made->nodes, a, handle, why);
  if (graph.at == nullptr) return nullptr;
  int64_t workspace = 0;
  made->plan = compile(made->nodes, choices(made->nodes, graph, here, why), here,
                       most - made->row_sums, workspace, why);
  made->workspace = made->row_sums + workspace;
  if (made->plan.at == nullptr) return nullptr;
  return reinterpret_cast<CudaAttention>(made.release());
}

int64_t Attentions::workspace(CudaAttention given) {
  return reinterpret_cast<Attention*>(given)->workspace;
}

void Attentions::run(CudaAttention given, const CudaAttendOperands& o, void* workspace,
                     CudaStream stream) {
  Attention& a = *reinterpret_cast<Attention*>(given);
  Library& lib = library();
  std::vector<int64_t> names{kQuery, kKey, kValue, kOut, kLogSum, kScale};
  std::vector<void*> places{const_cast<void*>(o.query),
                            const_cast<void*>(o.key),
                            const_cast<void*>(o.value),
                            o.out,
                            o.log_sum,
                            &a.scale};
  const auto add = [&](AttentionId name, void* place) {
    names.push_back(name);
    places.push_back(place);
  };
  float one = 1;
  if (a.causal) add(kUnseen, &a.unseen);
  if (a.backward) {
    add(kGrad, const_cast<void*>(o.grad));
    add(kQueryGrad, o.query_grad);
    add(kKeyGrad, o.key_grad);
    add(kValueGrad, o.value_grad);
    add(kRowSums, workspace);
    add(kOne, &one);
  }
  void* rest = static_cast<char*>(workspace) + a.row_sums;
  Nodes nodes(lib);
  const std::lock_guard lock(mutex_);
  CHECKED(cudnnSetStream)(a.handle, reinterpret_cast<cudaStream_t>(stream));
  const Node operands = nodes.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  nodes.set(operands, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names.data(), names.size());
  nodes.set(operands, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, places.data(), places.size());
  nodes.set(operands, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, rest);
  nodes.finalize(operands);
  CHECKED(cudnnBackendExecute)(a.handle, a.plan.at, operands.at);
}

void Attentions::release(CudaAttention given) { delete reinterpret_cast<Attention*>(given); }

}  // namespace tessera::cuda

#if CUDNN_VERSION >= 90800
extern "C" {

/// Without a card: what prepare() finds on one that is described as cuDNN writes it (JSON). `says`
/// gets a line for each engine of the heuristic, and which one is compiled, or why none; compiling
/// takes libcuda. False: why it says nothing.
bool tessera_cuda_attend(const tessera::CudaAttend& attend, const std::string& card, int major,
                         int64_t most, bool compiles, std::string& says) {
  using namespace tessera::cuda;
  try {
    static AttentionCalls calls;
    tessera::check(calls.why_not.empty(), "{}", calls.why_not);
    Nodes nodes(calls);
    const Node described = nodes.make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    nodes.set(described, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, card.data(), card.size());
    nodes.finalize(described);
    const Card there{nullptr, described};
    std::string why = "it is not asked for";
    says.clear();
    Node graph, plan;
    if (fits(attend, major, calls.cudnnGetVersion_()))
      graph = attention_graph(nodes, attend, nullptr, why);
    if (graph.at != nullptr) {
      const std::vector<Choice> found = choices(nodes, graph, there, why);
      for (const Choice& choice : found)
        says += "engine " + choice.name + (choice.ordered ? " adds in a fixed order\n" : "\n");
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
