// Published training runs: what was run, and what we predict for it.
//
// The model of a row is built from public ops and lowered on the row's tensor- and context-parallel
// ranks (with one layer and two: the difference is a layer). So its matmuls, kernels, collectives
// and kept activations are those of a Program. The rest is composed: pipeline stages are simulated
// event by event, sharded data parallelism as lanes of gathers and reductions, the optimizer's
// update by bytes. What a framework does is a fact about a row (Framework), not a fit.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "tessera/graph.h"

namespace tessera::runs {

/// ASCII letters in lower case.
std::string lower_case(std::string text);

/// One row of a file with the columns of data/published_runs (docs/how-to/simulating.md).
struct Run {
  int line = 0;  ///< line of the file
  std::string system, model, gpu_kind, recompute, dtype, source;
  double params = 0;  ///< total, those of all experts included
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, seq = 0, vocab = 0;
  int64_t head_dim = 0;  ///< of queries, keys and values; hidden / heads unless published
  /// Mixtures of experts: each token takes `topk` of `experts` feed-forward layers of width `ffn`,
  /// which lie on `ep` ranks. 0 experts: one feed-forward layer.
  int64_t experts = 0, topk = 1, ep = 1;
  int64_t global_batch = 0, micro_batch = 0, gpus = 0;  ///< micro_batch 0: not published
  int64_t tp = 1, pp = 1, dp = 1, cp = 1;
  int64_t interleave = 0;  ///< chunks per stage; 0: not published
  bool sp = false;
  double release = 0;    ///< of the framework, if the source names it: 26.0201 for "26.02.01"
  bool normed = false;   ///< Qwen3: queries and keys are normalized
  bool biased = false;   ///< GPT-OSS: its experts have biases
  int64_t window = 0;    ///< GPT-OSS: tokens that attention sees in every second layer
  double seconds = 0;    ///< per step, published or from a published rate; 0: unknown
  bool ran_out = false;  ///< published as out of memory
  /// Constants that were fitted on its system have values from elsewhere (fitted.cpp).
  bool left_out = false;
  std::string failure;  ///< why the row cannot be predicted, or ""
};

/// Throws io (unreadable file) and usage errors (no header, a missing column). An error in a row
/// (bad number, sizes that do not divide) becomes its `failure`, which names file, line and column.
std::vector<Run> read_runs(const std::string& path);

/// What was fitted on published runs.
enum class Constant {
  a100_products,   ///< rates of matmuls, relative to the machine's profile
  h100_products,   ///< of H100 and H200
  ultra_products,  ///< of GB300, relative to the share of the data sheet that GB200 holds
  odd_products,    ///< what products of experts take on Blackwell with sides of no multiple of 128
  hidden_sending,  ///< share of the shorter of sending and computing that hides
  eager_traffic    ///< bytes that kernels move, one op at a time
};

/// How matmuls of a dtype read their operands.
struct Precision {
  const char* product = "bfloat16";  ///< dtype of the machine's [[matmul]]
  double bytes = 2;                  ///< of an operand's element, with its share of the scales
  int reads = 0;  ///< how often an operand is read to convert it; 0: it is not converted
  bool tensorwise =
      true;               ///< one scale a tensor: gathered in this dtype, and its transpose as well
  bool rescales = false;  ///< results of backward are scaled in a pass of their own
};
/// For the words of a row: "bf16", "amp_fp8", "fp8-rowwise", "mxfp8", ...; "" is bf16. Throws a
/// usage error with those that are known.
Precision precision_of(const std::string& dtype);

/// What backward computes again, for the words of a row.
struct Recompute {
  /// full: layers. modules: `scopes`, `discarded`. per_op: all but attention and every second
  /// product. selective: what the framework means by it (Framework::selective).
  enum class Kind { none, full, modules, per_op, selective };
  Kind kind = Kind::none;
  std::vector<std::string> scopes = {};  ///< of a block, whose results are kept: core, mlp
  /// Scopes whose results are computed again too: layernorm, projections, activation.
  std::vector<std::string> discarded = {};
  int64_t layers = 0;  ///< full: so many layers of each chunk of a stage; 0: see `every`
  int64_t every = 0;   ///< full: every so manieth layer; 0: all
};
/// "full", "full:5", "selective:2", "selective-per-op", "core_attn+mlp", ... Throws a usage error
/// with those that are known.
Recompute recompute_of(const std::string& policy);

/// How a framework runs what the layout leaves open. eager: one kernel per op; parts: fused
/// composites; compiled: everything fused.
enum class Fusion { eager, parts, compiled };
struct Framework {
  const char* match = "";  ///< lower-case substring of Run::system
  const char* gpu = "";    ///< prefix of Run::gpu_kind, in lower case
  Fusion fusion = Fusion::parts;
  bool flash = false;        ///< attention without storing its scores
  bool interleaves = false;  ///< stages are interleaved even if the row gives no number of chunks
  bool sharded = false;      ///< FSDP: parameters, gradients and state are sharded over dp
  bool keeps = false;        ///< if sharded: parameters stay gathered between forward and backward
  bool releases = false;     ///< if sharded: recomputed layers are gathered a third time
  int adapters = 0;          ///< of a node that gathers use; 0: all
  int grad_bytes = 2;        ///< per element of a gradient that is reduced over dp
  bool float8_gather =
      false;  ///< parameters are gathered in the dtype of the matmuls, if tensorwise
  /// Backward reads forward's converted operands, any dtype is gathered over tp, and products add
  /// to the gradients of parameters (Transformer Engine).
  bool keeps_converted = false;
  bool reruns =
      false;  ///< recomputed layers run to their end, not until all that is needed is there
  bool overlaps = false;         ///< gradient reductions and stage transfers overlap with compute
  bool overlaps_tensor = false;  ///< collectives over tp overlap with the matmul beside them
  bool batch_first = false;      ///< what is gathered or scattered over tp is copied: not dim 0
  bool traced_context = false;   ///< context parallelism as torch.compile runs it (context.cpp)
  int zero = 0;                  ///< 1: the optimizer state is sharded over dp
  double dropout = 0;
  /// Bytes moved by memory-bound kernels, relative to the minimum; nothing: 1.
  std::optional<Constant> traffic = {};
  double attention = 1;  ///< rate of the attention kernels, relative to FlashAttention-2
  Recompute::Kind selective = Recompute::Kind::modules;  ///< "selective": the attention core
};
Framework framework_of(const Run& run);

/// Which parts of a layer are CUDA graphs: the router; attention too; the whole step, so that the
/// host launches nothing.
enum class Graphs { none, router, attention, step };
/// How a framework runs experts.
struct Experts {
  bool unique = false;  ///< a token goes to a rank or a host once, whatever experts it has there
  bool consecutive = false;  ///< a token's experts are neighbours; else random
  bool overlaps = false;     ///< sending hides behind the compute of another microbatch
  double hidden = 0;         ///< then, so much of the shorter of the two
  Graphs graphs = Graphs::none;
  bool fused = false;          ///< activations and conversions are parts of the experts' products
  bool slow_gradient = false;  ///< a known fault of a release, see kSlowBiasGradient
  bool clamps = false;         ///< GPT-OSS: what an activation reads is clamped by other kernels
  const char* recompute = "none";  ///< if a row says nothing: the recipe's policy
};
Experts experts_of(const Run& run);
/// True for B200, GB200, B300 and GB300.
bool is_blackwell(const Run& run);

/// Its value for a run.
double value_of(Constant constant, const Run& run);
/// The rate of a machine's matmuls for a run, relative to the profile.
double product_rate(const std::string& machine, const Run& run);

/// Model FLOPs of a step: 6 P + 12 L h s per token.
double model_flops(const Run& run);

/// A scope of renames that are no steps of a framework.
inline constexpr const char* kWhole = "reshape_whole";
/// Joins steps that are one kernel in a framework. eager: each op is one, and each gradient of an
/// op; parts: pointwise chains, norms and softmax are one each; compiled: all neighbours.
void join_kernels(const Program& program, Fusion fusion, Function& function);
/// Inserts the conversions of matmul operands: one for each operand in forward, and one for each in
/// backward. If the framework keeps what it converted, there is one for both, which writes a
/// transpose as well, and the update converts `weights` (buffers). What is all-gathered over `axis`
/// is converted before, unless its scales do not allow it. A fused kernel finds the scale of what
/// it writes.
void quantize(const Precision& precision, const Framework& framework, const std::set<int>& weights,
              int axis, Function& function);
/// Copies what is gathered and scattered over `axis`, as its dim is not the first.
void copy_gathered(int axis, Function& function);
/// Hides collectives over `axis`, of `ranks` ranks, behind the matmul beside them. It runs in
/// `ranks` parts, own part first; the last part of a reduction stays visible.
void overlap_products(int axis, int64_t ranks, Function& function);
/// Removes the gathers over `axis`, and the reductions that belong to them.
void drop_gathers(int axis, Function& function);
/// What PyTorch's context parallelism over `axis` takes beyond its attention, if it is compiled.
double ring_seconds(const Function& function, const Costs& costs, int axis);
/// True for what quantize() inserts.
bool is_conversion(const Step& step);
/// Removes the kernels between products, and the conversions of what they write: they are parts of
/// the products.
void drop_fused(Function& function);
/// Removes what a policy keeps (Recompute::Kind::per_op), so that the rest is what backward
/// computes again. Returns the bytes that it keeps.
double drop_kept(Function& function);
/// Removes all but the compute steps of these scopes.
void keep_scopes(const std::vector<std::string>& scopes, Function& function);

/// Times of one microbatch on one device, and what it stores there.
struct BlockTimes {
  double forward = 0, backward = 0;
  double transfer_forward = 0, transfer_backward = 0;  ///< exposed, included above
  double params = 0;                                   ///< elements on one device
  double expert_params = 0;                            ///< of these, those of experts
  double kept = 0;                                     ///< bytes alive between forward and backward
  double launches_forward = 0, launches_backward = 0;  ///< kernels
};
BlockTimes operator+(const BlockTimes& a, const BlockTimes& b);
/// To send `tokens` of a rank to their experts, or back, and to order them.
double send_seconds(const Run& run, const Experts& experts, const Machine& machine, double tokens);
/// What the biases of experts take, and their clamps, which backward may do `again`.
BlockTimes biases_of(const Run& run, const Experts& experts, const Machine& machine, double tokens,
                     bool again);
/// A layer of experts, from all but its experts, these, and what is sent in a pass.
BlockTimes routed_layer(const Experts& experts, const BlockTimes& dense, const BlockTimes& own,
                        const BlockTimes& sent);
struct ModelTimes {
  BlockTimes layer, embedding, head;
};
/// Lowers the model of a run with microbatches of `micro_batch` examples.
ModelTimes lower_blocks(const Run& run, const Framework& framework, int64_t micro_batch,
                        const Machine& machine);

/// The profile for Run::gpu_kind, with the network bandwidth that Run::source gives ("1600 Gbps").
Machine machine_of(const Run& run);

struct Prediction {
  double seconds = 0, compute = 0, tensor = 0, data = 0, bubble = 0, update = 0;
  double memory = 0;  ///< peak bytes per device
  int64_t micro_batch = 0;
  bool fits = true;
};
Prediction predict(const Run& run, const Machine& machine);

}  // namespace tessera::runs
