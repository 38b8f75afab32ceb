// The thin table between the CUDA device and CUDA: everything that the device asks of a driver, of
// NVRTC, cuBLASLt and NCCL goes through one of these calls. libtessera_cuda.so implements them; the
// tests implement them on the host and check every wait. No CUDA header is needed to include this.
//
// A call that fails throws Error(device) that names the call of CUDA, its error and where it was
// made. Streams run in order; a record() marks a place in a stream, and wait() makes another stream
// wait for the last such place. Nothing here waits but synchronize() and copies from the device to
// memory that was not given out by allocate_host(). Copies to the device are from that memory only:
// from any other the driver may wait first, or read it after the call.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

using CudaStream = struct CudaStreamTag*;
using CudaEvent = struct CudaEventTag*;
using CudaKernel = struct CudaKernelTag*;
using CudaGraph = struct CudaGraphTag*;
using CudaProduct = struct CudaProductTag*;
using CudaConvolution = struct CudaConvolutionTag*;
using CudaAttention = struct CudaAttentionTag*;
using CudaGroup = struct CudaGroupTag*;

/// Bytes [first, first + bytes) of device memory.
struct CudaRange {
  const void* first = nullptr;
  int64_t bytes = 0;
};

/// A kernel with its arguments. reads and writes say what it touches: only checks use them.
struct CudaLaunch {
  CudaKernel kernel = nullptr;
  int64_t blocks = 0;
  int threads = 0;
  std::vector<uint64_t> words;  ///< the argument struct
  std::vector<CudaRange> reads, writes;
};

/// C = A B for a batch of row-major matrices: C[m, n] = sum_k A[m, k] B[k, n]. A transposed operand
/// lies as [k, m] or [n, k]; leading dims and batch strides are elements. Sums are float32
/// (float64 for float64).
struct CudaGemm {
  DType dtype = DType::float32;
  bool tf32 = false;  ///< float32 operands are rounded to tf32
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposed_a = false, transposed_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  /// Bytes, powers of two up to 256, that divide the addresses of all calls.
  int64_t align_a = 1, align_b = 1, align_c = 1;
  /// Of C and of what goes into it: that of the operands, or float32 for 16-bit ones.
  DType result = DType::float32;
  /// C = act(A B + added + bias), where what is null or false is left out. Matrices lie as C does.
  bool adds = false;             ///< run() is given `added`, which may be C itself
  const void* bias = nullptr;    ///< an element a column
  bool gelu = false;             ///< the tanh form
  void* kept = nullptr;          ///< gets the operand of gelu
  const void* before = nullptr;  ///< act is a product with the slope of gelu there
  /// The operands are numbers of 8 bits instead of dtype's, a as [m, k] and b as [n, k]; nothing
  /// but `adds` is done with their sums.
  std::optional<std::array<Float8, 2>> float8 = {};
};

/// A convolution without flipping, over two spatial dims: y from x and filter, x (its gradient)
/// from y and filter, or the filter from x and y. All are dense: x [images, groups * inputs, in,
/// in], y [images, groups * outputs, out, out], filter [groups * outputs, inputs, window, window],
/// or with the channels (of the filter: the inputs) behind the spatial dims. Sums are float32.
struct CudaConv {
  DType dtype = DType::float32;
  bool tf32 = false, channels_last = false;
  int result = 0;  ///< 0: y, 1: x, 2: the filter
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  struct Dim {
    int64_t in = 1, window = 1, out = 1, stride = 1, dilation = 1, pad = 0;
  } dims[2];
};

/// softmax(scale q k) v over the keys of each head, bfloat16 or float16, or its gradients. Elements
/// lie by strides, those of a row of `width` next to each other. Sums are float32. Forward writes
/// out and log_sum, float32 [batch, heads, queries]: the natural logarithm of the sum of exp(scale
/// q k). Backward reads both.
struct CudaAttend {
  DType dtype = DType::bfloat16;
  bool backward = false;
  bool causal = false;  ///< query i sees keys 0 to i
  double scale = 1;
  /// key_heads divides heads; as many heads as it goes in, one behind the other, share a key head.
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1;
  struct Strides {
    int64_t batch = 0, head = 0, position = 0;
  } query, key, value, out, log_sum, grad, query_grad, key_grad, value_grad;
};

/// Where its operands begin, at multiples of 16 bytes. Forward leaves the gradients out.
struct CudaAttendOperands {
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  void *out = nullptr, *log_sum = nullptr;
  const void* grad = nullptr;  ///< of out
  void *query_grad = nullptr, *key_grad = nullptr, *value_grad = nullptr;
};

struct CudaCard {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int64_t memory = 0;        ///< bytes
  std::string id;            ///< of the card itself, whatever number this process gives it
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual std::vector<CudaCard> cards() = 0;
  /// The calling thread's calls are for this card from now on. Returns what restore() takes to give
  /// the thread the context back that it had.
  virtual void* use(int card) = 0;
  virtual void restore(void* context) = 0;
  /// Whether kernels of one card may read the memory of another. Both have been used.
  virtual bool reaches(int card, int other) = 0;
  virtual int64_t free_memory() = 0;

  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  /// The card whose memory it is, or -1.
  virtual int card_of(const void* memory) = 0;
  /// Pinned memory of the host, which kernels may write.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void release_host(void* memory) = 0;

  virtual CudaStream make_stream() = 0;
  virtual void release(CudaStream stream) = 0;
  virtual void synchronize(CudaStream stream) = 0;
  /// Why the thread's card cannot work with a stream that another program made; empty if it can.
  virtual std::string why_not_adopted(CudaStream stream) = 0;
  /// Whether what the stream is given is recorded instead of run.
  virtual bool is_capturing(CudaStream stream) = 0;
  virtual CudaEvent make_event() = 0;
  virtual void release(CudaEvent event) = 0;
  virtual void record(CudaEvent event, CudaStream stream) = 0;
  /// An event that keeps the time, and the seconds between two that have come to pass.
  virtual CudaEvent make_timer() = 0;
  virtual double seconds_between(CudaEvent first, CudaEvent second) = 0;
  virtual void wait(CudaStream stream, CudaEvent event) = 0;
  /// Whether the place that was recorded last has come to pass: to wait for it with an end.
  virtual bool passed(CudaEvent event) = 0;

  virtual void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) = 0;
  virtual void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) = 0;
  virtual void clear(void* memory, int64_t bytes, CudaStream stream) = 0;

  /// The kernel of a translation unit (kernels/cuda/generate.h): compiled, or taken from the cache.
  virtual CudaKernel load(const std::string& text) = 0;
  virtual void launch(const CudaLaunch& launch, CudaStream stream) = 0;

  /// Null where the card's library has no such product, or one in 8 bits would not pay for the
  /// copies that it needs.
  virtual CudaProduct prepare(const CudaGemm& gemm) = 0;
  /// What the library's algorithms are good for: "cuBLASLt 130100 on NVIDIA H200, driver 13000".
  virtual std::string product_library() = 0;
  /// The algorithms that the library expects to be fast for a product, the fastest first, at most
  /// `most`: a word each, which another process with the same library understands.
  virtual std::vector<std::string> algorithms(CudaProduct product, int most) = 0;
  /// What run() uses from now on, instead of the first of them. False if it cannot.
  virtual bool use_algorithm(CudaProduct product, const std::string& algorithm) = 0;
  /// Bytes of the card's memory that run() may use: one piece serves the products of a stream.
  virtual int64_t product_workspace() = 0;
  virtual void run(CudaProduct product, const void* a, const void* b, const void* added, void* c,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaProduct product) = 0;

  /// Why there are no convolutions (no cuDNN); empty if there are. Opens the library.
  virtual std::string why_no_convolutions() = 0;
  /// Null where the library has none with a fixed order of sums that needs no more memory than
  /// product_workspace(), which run() may use.
  virtual CudaConvolution prepare(const CudaConv& conv) = 0;
  virtual void run(CudaConvolution convolution, const void* first, const void* second, void* result,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaConvolution convolution) = 0;

  /// Why there is no attention (no cuDNN); empty if there is. Opens the library.
  virtual std::string why_no_attentions() = 0;
  /// Null where the library has none with a fixed order of sums that needs at most `workspace`
  /// bytes, for the whole batch or a few of it at a time: `why` says what is amiss. The first with
  /// a description takes seconds: the library compiles it.
  virtual CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) = 0;
  /// `workspace`: as many bytes as prepare() was given, at a multiple of 256.
  virtual void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
                   CudaStream stream) = 0;
  virtual void release(CudaAttention attention) = 0;

  /// What `stream`, and streams that wait for its events, are given between the two calls is
  /// recorded instead of run.
  virtual void begin_capture(CudaStream stream) = 0;
  virtual CudaGraph end_capture(CudaStream stream) = 0;
  virtual void launch(CudaGraph graph, CudaStream stream) = 0;
  virtual void release(CudaGraph graph) = 0;

  /// A profiler that shows ranges is attached, since before the first call of this.
  virtual bool has_profiler() = 0;
  /// Ranges of the calling thread, one in the other.
  virtual void push_range(const char* text) = 0;
  virtual void pop_range() = 0;

  /// Why there are no groups (no NCCL); empty if there are.
  virtual std::string why_no_groups() = 0;
  /// 128 bytes that name a group, made by its rank 0.
  virtual std::string group_id() = 0;
  /// Collective over the ranks of the group; bounded by `seconds`.
  virtual CudaGroup join(const std::string& id, int rank, int size, double seconds) = 0;
  virtual void begin_calls() = 0;
  virtual void end_calls() = 0;
  virtual void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          Combiner combiner, CudaStream stream) = 0;
  virtual void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, Combiner combiner, CudaStream stream) = 0;
  virtual void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          CudaStream stream) = 0;
  /// The error that a call of the group ran into since, or empty.
  virtual std::string trouble(CudaGroup group) = 0;
  /// Ends pending calls without waiting for peers, and the group: it is not used again.
  virtual void abort(CudaGroup group) noexcept = 0;
};

/// What there is of CUDA on this machine, without a card being touched.
struct CudaSupport {
  std::string toolkit;  ///< "13.0" that libtessera_cuda.so was built with; empty if there is none
  std::string driver;   ///< "13.0" that the driver can do; empty if there is none
  int cards = 0;
  std::string why_not;  ///< empty if a card can be used
};
CudaSupport cuda_support();

/// The table of this process: loads libtessera_cuda.so at the first call. Throws unsupported with
/// the reason (no such build, no driver, driver too old, no card).
CudaApi& cuda_api();
/// For tests: what cuda_api() returns from now on; null undoes it.
void replace_cuda_api(CudaApi* api);

/// What libtessera_cuda.so exports as "tessera_cuda_open": the table, or null and why.
using CudaOpen = CudaApi* (*)(std::string& why);

}  // namespace tessera
