// Published training runs: what was run, and what we predict that it took.
//
// The model of a row is built from public ops and lowered on the row's tensor- and context-parallel
// ranks (one layer and two: the difference is a layer), so its products, kernels, collectives and
// kept activations are those of a Program. What lies outside of one layer is composed: pipeline
// stages event by event, sharded data parallelism as lanes of gathers and reductions, the
// optimizer's update by bytes. What a framework does is a fact of a row (Framework), not a fit.
#pragma once

#include <string>
#include <vector>

#include "cost/cost.h"
#include "tessera/graph.h"

namespace tessera::runs {

/// One row of a file with the columns of data/published_runs (docs/how-to/simulating.md).
struct Run {
  int line = 0;  ///< in the file
  std::string system, model, gpu_kind, recompute, dtype, source;
  double params = 0;  ///< in all
  int64_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, ffn = 0, seq = 0, vocab = 0;
  int64_t global_batch = 0, micro_batch = 0, gpus = 0;  ///< micro_batch 0: not printed
  int64_t tp = 1, pp = 1, dp = 1, cp = 1;
  int64_t interleave = 0;  ///< chunks of a stage; 0: not printed
  bool sp = false;
  double seconds = 0;    ///< printed, or from a printed rate; 0: unknown
  bool ran_out = false;  ///< printed as out of memory
  std::string failure;   ///< why the row cannot be predicted, or ""
};

/// Throws io (cannot be read) and usage errors (no header, a missing column). What is wrong with a
/// row (bad number, sizes that do not divide) is its `failure`, which names file, line and column.
std::vector<Run> read_runs(const std::string& path);

/// How a framework runs what the layout leaves open.
enum class Fusion { eager, parts, compiled };
struct Framework {
  const char* match = "";  ///< lower-case substring of Run::system
  const char* gpu = "";    ///< what Run::gpu_kind begins with, in lower case
  Fusion fusion = Fusion::parts;
  bool flash = false;        ///< attention without its scores in memory
  bool interleaves = false;  ///< stages, also where a row does not say in how many chunks
  bool sharded = false;      ///< parameters, gradients and state over dp: FSDP
  bool keeps = false;        ///< sharded: parameters stay gathered between forward and backward
  int grad_bytes = 2;        ///< of an element that is reduced over dp
  bool overlaps = false;     ///< gradients are reduced, stages send, while others compute
  int zero = 0;              ///< 1: the optimizer's state is split over dp
  double dropout = 0;
  double traffic = 1;    ///< bytes moved by memory-bound kernels, over those that they must
  double attention = 1;  ///< rate of its attention kernels, over those of FlashAttention-2
  double selective = 0;  ///< recompute "selective": this share of products; 0: the attention core
};
Framework framework_of(const Run& run);

/// Measured seconds that its model needs at a rate: 6 P + 12 L h s per token.
double model_flops(const Run& run);

/// Puts steps together that are one kernel in a framework. eager: each op, each gradient of one;
/// parts: pointwise chains, norms, softmax, each by itself; compiled: whatever is neighbours.
void join_kernels(const Program& program, Fusion fusion, Function& function);
/// Puts a conversion to 8 bits before each operand of a product.
void quantize(Function& function);

/// Times of one microbatch on one device, and what it stores.
struct BlockTimes {
  double forward = 0, backward = 0;
  double transfer_forward = 0, transfer_backward = 0;  ///< exposed, included above
  double params = 0;                                   ///< elements on one device
  double kept = 0;                                     ///< bytes alive between forward and backward
};
struct ModelTimes {
  BlockTimes layer, embedding, head;
};
/// Lowers the model of a run for microbatches of that size.
ModelTimes lower_blocks(const Run& run, const Framework& framework, int64_t micro_batch,
                        const Machine& machine);

/// The profile of Run::gpu_kind, with the network that Run::source states ("1600 Gbps").
Machine machine_of(const Run& run);

struct Prediction {
  double seconds = 0, compute = 0, tensor = 0, data = 0, bubble = 0, update = 0;
  double memory = 0;  ///< bytes at the peak
  int64_t micro_batch = 0;
  bool fits = true;
};
Prediction predict(const Run& run, const Machine& machine);

}  // namespace tessera::runs
