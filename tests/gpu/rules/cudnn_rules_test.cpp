// Each rule of cuDNN that its stand-in enforces, broken once. Those that need no GPU are also asked
// of the library itself, where there is one, by a process of its own.
#include <cudnn.h>
#include <dlfcn.h>

#include <cmath>

#include "base/float16.h"
#include "gpu/emulator.h"
#include "gpu/rules/cudnn.h"
#include "gpu/rules/cudnn/descriptors.h"
#include "gpu/rules/driver.h"
#include "support/catch.h"
#include "support/child_case.h"

namespace tessera::test::rules {

namespace TESSERA_FILE {

using Raw = cudnnBackendDescriptor_t;
using Sizes = std::vector<int64_t>;

constexpr char kInChild[] = "what cuDNN itself says of broken rules";
constexpr cudnnStatus_t kFine = CUDNN_STATUS_SUCCESS, kBad = CUDNN_STATUS_BAD_PARAM,
                        kNone = CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                        kOpen = CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                        kNot = CUDNN_STATUS_NOT_SUPPORTED;

/// The library that is asked: the stand-in, or cuDNN.
void* (*find)(const char*) = [](const char* symbol) { return find_cudnn(symbol); };
#define DNN(name) reinterpret_cast<decltype(&::name)>(find(#name))

template <class T>
cudnnStatus_t set(Raw d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<T>& values) {
  return DNN(cudnnBackendSetAttribute)(d, name, type, static_cast<int64_t>(values.size()),
                                       values.data());
}
cudnnStatus_t set(Raw d, cudnnBackendAttributeName_t name, const Sizes& values) {
  return set(d, name, CUDNN_TYPE_INT64, values);
}
cudnnStatus_t set(Raw d, cudnnBackendAttributeName_t name, Raw part) {
  return DNN(cudnnBackendSetAttribute)(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}
cudnnStatus_t finalize(Raw d) { return DNN(cudnnBackendFinalize)(d); }
void destroy(Raw d) { CHECK(DNN(cudnnBackendDestroyDescriptor)(d) == kFine); }
Raw finalized(Raw d) {
  REQUIRE(finalize(d) == kFine);
  return d;
}

/// Descriptors that are destroyed together.
struct Made {
  std::vector<Raw> all;
  Made() = default;
  Made(const Made&) = delete;
  ~Made() {
    for (Raw d : all) destroy(d);
  }
  Raw make(cudnnBackendDescriptorType_t type) {
    Raw d = nullptr;
    REQUIRE(DNN(cudnnBackendCreateDescriptor)(type, &d) == kFine);
    all.push_back(d);
    return d;
  }
  template <class T>
  Raw with(Raw d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    REQUIRE(DNN(cudnnBackendSetAttribute)(d, name, type, 1, &value) == kFine);
    return d;
  }
  Raw with(Raw d, cudnnBackendAttributeName_t name, Raw part) {
    REQUIRE(set(d, name, part) == kFine);
    return d;
  }

  struct How {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    bool is_virtual = false, is_number = false;
    Sizes strides = {};  ///< empty: dense
    int64_t alignment = 16;
  };
  Raw open_tensor(const Sizes& dims, int64_t id, How how) {
    if (how.strides.empty()) {
      how.strides.assign(dims.size(), 1);
      for (size_t i = dims.size() - 1; i > 0; --i) how.strides[i - 1] = how.strides[i] * dims[i];
    }
    Raw d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    with(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, how.type);
    CHECK(set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, dims) == kFine);
    CHECK(set(d, CUDNN_ATTR_TENSOR_STRIDES, how.strides) == kFine);
    CHECK(set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {id}) == kFine);
    CHECK(set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {how.alignment}) == kFine);
    with(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, how.is_virtual);
    return with(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, how.is_number);
  }
  Raw tensor(const Sizes& dims, int64_t id, const How& how) {
    return finalized(open_tensor(dims, id, how));
  }
  Raw tensor(const Sizes& dims, int64_t id) { return tensor(dims, id, How{}); }

  Raw mode(cudnnPointwiseMode_t mode, int64_t axis = -1) {
    Raw d = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    with(d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    with(d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (axis >= 0) CHECK(set(d, CUDNN_ATTR_POINTWISE_AXIS, {axis}) == kFine);
    return finalized(d);
  }
  Raw point(Raw how, Raw x, Raw b, Raw y, Raw chosen = nullptr) {
    Raw d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    with(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    with(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) with(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (chosen != nullptr) with(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, chosen);
    return with(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  }
  Raw exp(Raw x, Raw y) { return finalized(point(mode(CUDNN_POINTWISE_EXP), x, nullptr, y)); }
  Raw matmul(Raw a, Raw b, Raw c) {
    Raw how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    with(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    Raw d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    with(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, finalized(how));
    with(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    with(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    return c == nullptr ? d : with(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  }
  Raw reduction(Raw x, Raw y, cudnnReduceTensorOp_t with_what = CUDNN_REDUCE_TENSOR_ADD) {
    Raw how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    with(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    with(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, with_what);
    Raw d = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    with(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, finalized(how));
    with(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    return with(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  }
  Raw reshape(Raw x, Raw y) {
    Raw d = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    with(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    return with(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  }
  Raw graph(const std::vector<Raw>& operations, cudnnHandle_t handle = nullptr) {
    Raw d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle != nullptr) with(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
    CHECK(set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations) ==
          kFine);
    return d;
  }
  Raw heuristic(Raw graph) {
    Raw d = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    with(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    return with(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
  }
};

void check_attributes() {
  Made made;
  Raw d = nullptr;
  CHECK(DNN(cudnnBackendCreateDescriptor)(static_cast<cudnnBackendDescriptorType_t>(999), &d) ==
        CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
  d = made.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const auto set_type = [&](Raw to, cudnnBackendAttributeType_t as, int64_t count,
                            const void* values) {
    return DNN(cudnnBackendSetAttribute)(to, CUDNN_ATTR_TENSOR_DATA_TYPE, as, count, values);
  };
  CHECK(set_type(nullptr, CUDNN_TYPE_DATA_TYPE, 1, &type) == kNone);
  CHECK(set_type(d, CUDNN_TYPE_INT64, 1, &type) == CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  CHECK(set_type(d, CUDNN_TYPE_DATA_TYPE, 2, &type) == kBad);
  CHECK(set_type(d, CUDNN_TYPE_DATA_TYPE, 0, &type) == kBad);
  CHECK(set_type(d, CUDNN_TYPE_DATA_TYPE, 1, nullptr) == kBad);
  CHECK(set(d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{type}) == kBad);
  Sizes read(9);
  int64_t count = 0;
  const auto get = [&](Raw from, cudnnBackendAttributeType_t as, int64_t most) {
    return DNN(cudnnBackendGetAttribute)(from, CUDNN_ATTR_TENSOR_DIMENSIONS, as, most, &count,
                                         read.data());
  };
  CHECK(get(d, CUDNN_TYPE_INT64, 9) == CUDNN_STATUS_NOT_INITIALIZED);
  d = made.tensor({2, 3, 4}, 1);
  CHECK(finalize(d) == kBad);  // it is already
  CHECK(set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {2}) == kBad);
  CHECK(get(d, CUDNN_TYPE_INT64, 9) == kFine);
  CHECK(count == 3);
  CHECK(read[1] == 3);
  CHECK(get(d, CUDNN_TYPE_INT64, 2) == kFine);
  CHECK(count == 2);
  CHECK(get(d, CUDNN_TYPE_FLOAT, 9) == CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  CHECK(finalize(nullptr) == kNone);
  CHECK(DNN(cudnnBackendDestroyDescriptor)(nullptr) == kNone);
  char text[100] = {};
  DNN(cudnnGetLastErrorString)(text, sizeof text);
  CHECK(std::strlen(text) > 0);
  DNN(cudnnGetLastErrorString)(text, sizeof text);
  CHECK(std::strlen(text) == 0);  // once
}

void check_tensors() {
  Made made;
  const auto finalizes = [&](const Sizes& dims, Made::How how) {
    return finalize(made.open_tensor(dims, 1, how));
  };
  Made::How how;
  how.strides = {3};
  CHECK(finalizes({2, 3}, how) == kBad);
  how.strides = Sizes(9, 1);
  CHECK(finalizes(Sizes(9, 1), how) == kBad);
  how = {};
  how.alignment = 3;
  CHECK(finalizes({2, 3}, how) == kBad);
  how.alignment = 0;
  CHECK(finalizes({2, 3}, how) == kBad);
  for (const bool has_dims : {true, false}) {
    Raw d = made.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.with(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    CHECK(set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {1}) == kFine);
    if (has_dims) {
      CHECK(set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, {2, 3}) == kFine);
      CHECK(set(d, CUDNN_ATTR_TENSOR_STRIDES, {3, 1}) == kFine);
    } else {
      CHECK(set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16}) == kFine);
    }
    CHECK(finalize(d) == kBad);
  }
}

void check_operations() {
  Made m;
  Raw a = m.tensor({1, 6, 3, 4}, 1), c = m.tensor({1, 6, 3, 5}, 2),
      wrong = m.tensor({1, 6, 3, 6}, 3);
  const auto b = [&](int64_t heads) { return m.tensor({1, heads, 4, 5}, 4); };
  CHECK(finalize(m.matmul(a, b(6), c)) == kFine);
  CHECK(finalize(m.matmul(a, b(2), c)) == kFine);  // three heads share one
  CHECK(finalize(m.matmul(a, b(4), c)) == kBad);
  CHECK(finalize(m.matmul(a, b(6), wrong)) == kBad);
  CHECK(finalize(m.matmul(a, b(6), nullptr)) == kNot);
  Raw x = m.tensor({1, 6, 3, 4}, 5), y = m.tensor({1, 6, 3, 4}, 6);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_MUL), x, x, y)) == kFine);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_MUL), x, nullptr, y)) == kBad);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_BINARY_SELECT), x, x, y)) == kBad);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_GEN_INDEX), x, nullptr, y)) == kBad);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_GEN_INDEX, 7), x, nullptr, y)) == kBad);
  CHECK(finalize(m.point(m.mode(CUDNN_POINTWISE_EXP), x, nullptr, m.tensor({6, 3, 4}, 7))) == kBad);
  CHECK(finalize(m.make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR)) == kBad);
  CHECK(finalize(m.reduction(x, m.tensor({1, 2, 3, 1}, 8))) == kFine);
  CHECK(finalize(m.reduction(x, m.tensor({1, 4, 3, 4}, 8))) == kBad);
  CHECK(finalize(m.reduction(x, m.tensor({1, 12, 3, 4}, 8))) == kBad);
  CHECK(finalize(m.reduction(x, m.tensor({1, 6, 3}, 8))) == kBad);
  CHECK(finalize(m.reshape(x, m.tensor({1, 6, 4, 3}, 9))) == kFine);
  CHECK(finalize(m.reshape(x, m.tensor({1, 6, 4, 4}, 9))) == kBad);
}

void check_graphs() {
  Made m;
  Raw x = m.tensor({1, 2, 3, 4}, 1), y = m.tensor({1, 2, 3, 4}, 2);
  CHECK(finalize(m.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)) == kBad);
  CHECK(finalize(m.graph({m.exp(x, y), m.exp(x, y)})) == kBad);  // y twice
  Raw open = m.point(m.mode(CUDNN_POINTWISE_EXP), x, nullptr, y);
  Raw graph = m.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  CHECK(set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, open) == kOpen);
  // What was set is kept as it was.
  Raw late = m.open_tensor({1, 2, 3, 4}, 2, {});
  Raw operation = m.point(m.mode(CUDNN_POINTWISE_EXP), x, nullptr, late);
  finalized(late);
  CHECK(finalize(m.graph({finalized(operation)})) == kBad);
  Made other;
  Raw gone = m.graph({other.exp(other.tensor({1, 2, 3, 4}, 1), other.tensor({1, 2, 3, 4}, 2))});
  for (Raw d : std::exchange(other.all, {})) destroy(d);
  CHECK(finalize(gone) == kFine);
  CHECK(finalize(m.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)) == kBad);
  CHECK(finalize(m.heuristic(m.graph({m.exp(x, y)}))) == kOpen);
  CHECK(finalize(m.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)) == kOpen);
  Raw plan = m.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  m.with(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, m.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
  CHECK(finalize(plan) == kOpen);
  Raw pack = m.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  CHECK(set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {1, 2}) == kFine);
  CHECK(set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
            std::vector<void*>{&pack}) == kFine);
  CHECK(finalize(pack) == kBad);
}

void check_convolution_descriptors() {
  cudnnTensorDescriptor_t t = nullptr;
  cudnnFilterDescriptor_t f = nullptr;
  cudnnConvolutionDescriptor_t c = nullptr;
  CHECK(DNN(cudnnCreateTensorDescriptor)(&t) == kFine);
  CHECK(DNN(cudnnCreateFilterDescriptor)(&f) == kFine);
  CHECK(DNN(cudnnCreateConvolutionDescriptor)(&c) == kFine);
  const auto tensor = [&](int n, int channels, cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW,
                          cudnnDataType_t type = CUDNN_DATA_HALF) {
    return DNN(cudnnSetTensor4dDescriptor)(t, format, type, n, channels, 1, 1);
  };
  CHECK(tensor(1, 0) == kBad);
  CHECK(tensor(-1, 1) == kBad);
  CHECK(tensor(1, 1, static_cast<cudnnTensorFormat_t>(9)) == kBad);
  CHECK(tensor(1, 1, CUDNN_TENSOR_NHWC, static_cast<cudnnDataType_t>(99)) == kBad);
  CHECK(tensor(1 << 15, 1 << 16) == kNot);  // 2^31 elements
  CHECK(tensor((1 << 15) - 1, 1 << 16) == kFine);
  CHECK(DNN(cudnnSetTensor4dDescriptor)(nullptr, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 1, 1, 1, 1) ==
        kBad);
  const auto filter = [&](int inputs) {
    return DNN(cudnnSetFilter4dDescriptor)(f, CUDNN_DATA_HALF, CUDNN_TENSOR_NCHW, 1 << 15, inputs,
                                           1, 1);
  };
  CHECK(filter(0) == kBad);
  CHECK(filter(1 << 16) == kFine);
  const auto how = [&](int pad, int stride, int dilation, int mode) {
    return DNN(cudnnSetConvolution2dDescriptor)(c, pad, 0, stride, 1, dilation, 1,
                                                static_cast<cudnnConvolutionMode_t>(mode),
                                                CUDNN_DATA_FLOAT);
  };
  CHECK(how(-1, 1, 1, CUDNN_CROSS_CORRELATION) == kBad);
  CHECK(how(0, 0, 1, CUDNN_CROSS_CORRELATION) == kBad);
  CHECK(how(0, 1, 0, CUDNN_CROSS_CORRELATION) == kBad);
  CHECK(how(0, 1, 1, 7) == kBad);
  CHECK(how(0, 1, 1, CUDNN_CROSS_CORRELATION) == kFine);
  CHECK(DNN(cudnnSetConvolutionGroupCount)(c, 0) == kBad);
  CHECK(DNN(cudnnSetConvolutionMathType)(c, static_cast<cudnnMathType_t>(9)) == kBad);
  CHECK(DNN(cudnnDestroyTensorDescriptor)(t) == kFine);
  CHECK(DNN(cudnnDestroyFilterDescriptor)(f) == kFine);
  CHECK(DNN(cudnnDestroyConvolutionDescriptor)(c) == kFine);
  CHECK(DNN(cudnnDestroyTensorDescriptor)(nullptr) == kFine);
}

void check_all() {
  check_attributes();
  check_tensors();
  check_operations();
  check_graphs();
  check_convolution_descriptors();
}

/// Two GPUs, the first one current, with a handle and a stream each, and float32 in memory.
struct TwoGpus {
  CudaEmulator gpu{2};
  cudnnHandle_t handles[2] = {};
  CudaStream streams[2] = {};
  float* memory[2] = {};
  static constexpr int64_t kBytes = 1 << 16;

  TwoGpus() {
    gpu.direct = false;
    gpu.has_cudnn = true;
    for (int g = 1; g >= 0; --g) {
      use(g);
      streams[g] = gpu.streams().make_stream();
      memory[g] = static_cast<float*>(gpu.memory().allocate(kBytes));
      gpu.memory().clear(memory[g], kBytes, streams[g]);
      CHECK(DNN(cudnnCreate)(&handles[g]) == kFine);
      CHECK(set_stream(g, g) == kFine);
    }
  }
  void use(int g) { gpu.contexts().use(g); }
  cudnnStatus_t set_stream(int handle, int stream) {
    return DNN(cudnnSetStream)(handles[handle], reinterpret_cast<cudaStream_t>(streams[stream]));
  }
  void begin_capture() { gpu.graphs().begin_capture(streams[0]); }
  /// A call that no capture takes.
  void invalidate_capture() {
    CUdeviceptr at = 0;
    CHECK(rules::cuMemAlloc(&at, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
};

/// y = scale exp(x) on the first of two GPUs, by the last of the heuristic's engines.
struct Scaled : TwoGpus {
  static constexpr int64_t kX = 1, kY = 2, kScale = 3, kCount = 24, kWorkspace = 4096;
  Made m;
  Raw graph, plan = nullptr;
  float scale = 2;
  std::vector<int64_t> ids = {kX, kY, kScale};
  std::vector<void*> places;
  char* workspace;

  Scaled() {
    const Sizes dims{1, 2, 3, 4};
    Made::How inside, number;
    inside.is_virtual = number.is_number = true;
    Raw raised = m.tensor(dims, 9, inside);
    Raw scaled = m.point(m.mode(CUDNN_POINTWISE_MUL), raised,
                         m.tensor({1, 1, 1, 1}, kScale, number), m.tensor(dims, kY));
    // The order of operations does not matter.
    graph = finalized(m.graph({finalized(scaled), m.exp(m.tensor(dims, kX), raised)}, handles[0]));
    places = {memory[0], memory[0] + kCount, &scale};
    workspace = reinterpret_cast<char*>(memory[0]) + kWorkspace;
  }
  std::vector<Raw> configurations() {
    std::vector<Raw> found;
    for (int i = 0; i < 8; ++i) found.push_back(m.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    int64_t count = 0;
    CHECK(DNN(cudnnBackendGetAttribute)(
              finalized(m.heuristic(graph)), CUDNN_ATTR_ENGINEHEUR_RESULTS,
              CUDNN_TYPE_BACKEND_DESCRIPTOR, 8, &count, found.data()) == kFine);
    found.resize(static_cast<size_t>(count));
    return found;
  }
  Raw open_plan(Raw configuration, int handle = 0) {
    Raw d = m.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    m.with(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    return m.with(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handles[handle]);
  }
  void make_plan() { plan = finalized(open_plan(configurations().back())); }
  Raw pack() {
    Raw d = m.make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    CHECK(set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids) == kFine);
    CHECK(set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, places) == kFine);
    return finalized(m.with(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace));
  }
  cudnnStatus_t execute() { return DNN(cudnnBackendExecute)(handles[0], plan, pack()); }
  template <class T>
  cudnnStatus_t execute_with(T& changed, const T& value) {
    const T before = std::exchange(changed, value);
    const cudnnStatus_t status = execute();
    changed = before;
    return status;
  }
};

TEST_CASE(kInChild, "[.cudnn_library]") {
  using Find = bool (*)(const std::string& name, std::string& where);
  void* cuda = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(cuda != nullptr);
  std::string where;
  if (!reinterpret_cast<Find>(dlsym(cuda, "tessera_cuda_find"))("libcudnn.so.9", where)) {
    puts(("skipped: " + where).c_str());
    return;
  }
  static void* library = dlopen(where.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto stand_in =
      std::exchange(find, [](const char* symbol) { return dlsym(library, symbol); });
  check_all();
  find = stand_in;
}

TEST_CASE("rules of cuDNN: attributes, tensors, operations and graphs as the library has them",
          "[cuda]") {
  const size_t before = cudnn::living_descriptors();
  check_all();
  CHECK(cudnn::living_descriptors() == before);
  check_in_child(kInChild);
}

TEST_CASE("rules of cuDNN: what it documents, but does not check", "[cuda]") {
  TwoGpus two;
  Made m;
  Raw d = m.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  CHECK(set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, {2}) == kFine);
  CHECK(set(d, CUDNN_ATTR_TENSOR_STRIDES, {1}) == kFine);
  CHECK(set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16}) == kFine);
  CHECK(set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, {1}) == kFine);
  CHECK(finalize(d) == kBad);  // of which type?
  CHECK(finalize(m.open_tensor({2, 0}, 1, {})) == kBad);
  Raw x = m.tensor({1, 2, 3, 4}, 1);
  Raw operation = m.make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  CHECK(set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, m.mode(CUDNN_POINTWISE_EXP)) ==
        CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  CHECK(set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x) == kFine);
  CHECK(finalize(operation) == kBad);  // without y
  Raw how = m.make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  m.with(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_MUL);
  CHECK(finalize(how) == kBad);  // in which type?
  Raw y = m.tensor({1, 2, 3, 4}, 2);
  CHECK(finalize(m.heuristic(finalized(m.graph({m.exp(x, y)})))) == kBad);  // for which GPU?
  CHECK(two.gpu.take_misuses().empty());
  Raw gone = nullptr;
  CHECK(DNN(cudnnBackendCreateDescriptor)(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &gone) == kFine);
  destroy(gone);
  CHECK(finalize(gone) == kNone);
  CHECK(set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, gone) == kBad);
  CHECK(DNN(cudnnBackendDestroyDescriptor)(gone) == kNone);
  CHECK(two.gpu.take_misuses().size() == 3);
}

TEST_CASE("rules of cuDNN: handles and streams are of one GPU", "[cuda]") {
  TwoGpus two;
  cudnnHandle_t made = nullptr;
  CHECK(two.set_stream(0, 1) == CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
  CHECK(DNN(cudnnSetStream)(two.handles[0], reinterpret_cast<cudaStream_t>(&two)) == kBad);
  CHECK(DNN(cudnnSetStream)(nullptr, nullptr) == kBad);
  two.begin_capture();
  CHECK(DNN(cudnnCreate)(&made) == CUDNN_STATUS_NOT_INITIALIZED);
  CHECK(rules::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(DNN(cudnnCreate)(&made) == CUDNN_STATUS_NOT_INITIALIZED);
}

TEST_CASE("rules of cuDNN: engines, and what they cannot do", "[cuda]") {
  Scaled s;
  const std::vector<Raw> found = s.configurations();
  REQUIRE(found.size() == 4);
  int64_t count = 0, bytes = 0;
  Raw wrong = s.m.make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  CHECK(DNN(cudnnBackendGetAttribute)(finalized(s.m.heuristic(s.graph)),
                                      CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      1, &count, &wrong) == kBad);
  CHECK(set(s.m.heuristic(s.graph), CUDNN_ATTR_ENGINEHEUR_RESULTS, found[0]) == kBad);
  const auto workspace = [&](Raw plan) {
    CHECK(DNN(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &count, &bytes) == kFine);
    return bytes;
  };
  CHECK(finalize(s.open_plan(found[1])) == kNot);
  CHECK(workspace(finalized(s.open_plan(found[2]))) > (int64_t{1} << 30));
  CHECK(workspace(finalized(s.open_plan(found[3]))) == s.gpu.attention_bytes);
  s.begin_capture();
  CHECK(finalize(s.open_plan(found[3])) == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER);
}

TEST_CASE("rules of cuDNN: graphs that no engine computes", "[cuda]") {
  Scaled s;
  Made& m = s.m;
  const Sizes dims{1, 2, 3, 4};
  Made::How inside, flipped;
  inside.is_virtual = true;
  flipped.strides = {24, 12, 1, 4};
  Raw x = m.tensor(dims, 1), y = m.tensor(dims, 2), wide = m.tensor({1, 2, 3, 8}, 2);
  const auto compiles = [&](const std::vector<Raw>& operations) {
    s.graph = finalized(m.graph(operations, s.handles[0]));
    return finalize(s.open_plan(s.configurations().back()));
  };
  CHECK(compiles({m.exp(x, y)}) == kFine);
  CHECK(compiles({m.exp(m.tensor(dims, 3, inside), y)}) == kNot);
  CHECK(compiles({m.exp(x, wide)}) == kNot);
  CHECK(compiles({m.exp(m.tensor({2, 3, 4}, 1), m.tensor({2, 3, 4}, 2))}) == kNot);
  CHECK(compiles({m.exp(x, m.tensor(dims, 3)),
                  m.exp(m.tensor({1, 2, 3, 5}, 3), m.tensor({1, 2, 3, 5}, 4))}) == kNot);
  CHECK(compiles({finalized(m.point(m.mode(CUDNN_POINTWISE_BINARY_SELECT), x, x, y, x))}) == kNot);
  CHECK(compiles({finalized(m.reshape(x, m.tensor({1, 2, 4, 3}, 5)))}) == kFine);
  CHECK(compiles({finalized(m.reshape(
            x, m.tensor({1, 2, 4, 3}, 5, {CUDNN_DATA_FLOAT, false, false, {48, 24, 6, 1}})))}) ==
        kNot);
}

TEST_CASE("rules of cuDNN: an execution has all operands, aligned, and a workspace", "[cuda]") {
  Scaled s;
  s.make_plan();
  using Ids = std::vector<int64_t>;
  using Pointers = std::vector<void*>;
  const Pointers p = s.places;
  void* odd = static_cast<char*>(p[0]) + 4;
  CHECK(s.execute_with(s.ids, Ids{1, 2, 4}) == kBad);
  CHECK(s.execute_with(s.ids, Ids{1, 2, 2}) == kBad);
  s.ids.push_back(17);
  CHECK(s.execute_with(s.places, Pointers{p[0], p[1], p[2], p[0]}) == kBad);
  s.ids.pop_back();
  CHECK(s.execute_with(s.places, Pointers{nullptr, p[1], p[2]}) == kNone);
  CHECK(s.execute_with(s.places, Pointers{odd, p[1], p[2]}) ==
        CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  CHECK(s.execute_with(s.places, Pointers{p[0], p[1], p[0]}) == kBad);  // a number on the GPU
  char* const end = reinterpret_cast<char*>(s.memory[0]) + Scaled::kBytes;
  CHECK(s.execute_with<char*>(s.workspace, nullptr) == kNone);
  CHECK(s.execute_with(s.workspace, s.workspace + 8) == CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  CHECK(s.execute_with(s.workspace, end - Scaled::kWorkspace / 2) == kBad);
  CHECK(s.execute_with(s.workspace, reinterpret_cast<char*>(s.memory[1])) == kBad);
  Raw other = finalized(s.open_plan(s.configurations().back(), 1));
  CHECK(s.execute_with(s.plan, other) == kBad);  // of another GPU
  CHECK(s.execute_with(s.plan, s.open_plan(s.configurations().back())) == kOpen);
  CHECK(s.execute_with(s.plan, s.graph) == kBad);
  s.use(1);
  CHECK(s.execute() == kBad);
  s.use(0);
  CHECK(rules::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(s.execute() == CUDNN_STATUS_EXECUTION_FAILED);
  s.use(0);
  CHECK(s.gpu.attentions == 0);
  CHECK(s.execute() == kFine);
  s.scale = 5;  // it was read
  s.gpu.streams().synchronize(s.streams[0]);
  for (int64_t i = 0; i < Scaled::kCount; ++i) CHECK(s.memory[0][Scaled::kCount + i] == 2);
  CHECK(s.gpu.take_misuses().empty());
  CHECK(s.execute_with(s.plan, finalized(s.open_plan(s.configurations().front()))) == kFine);
  CHECK(s.gpu.take_misuses() ==
        std::vector<std::string>{"an engine of cuDNN that adds in no fixed order"});
}

TEST_CASE("rules of cuDNN: an execution is captured, unless the capture was invalidated",
          "[cuda]") {
  Scaled s;
  s.make_plan();
  s.begin_capture();
  CHECK(s.execute() == kFine);
  const CudaGraph graph = s.gpu.graphs().end_capture(s.streams[0]);
  s.memory[0][Scaled::kCount] = 0;
  s.gpu.graphs().launch(graph, s.streams[0]);
  s.gpu.streams().synchronize(s.streams[0]);
  CHECK(s.memory[0][Scaled::kCount] == 2);
  s.gpu.graphs().release(graph);
  s.begin_capture();
  s.invalidate_capture();
  CHECK(s.execute() == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER);
}

TEST_CASE("rules of cuDNN: memory that another stream writes is waited for", "[cuda]") {
  Scaled s;
  s.make_plan();
  const CudaStream other = s.gpu.streams().make_stream();
  s.gpu.streams().synchronize(s.streams[0]);
  s.gpu.memory().clear(s.places[0], 4, other);
  CHECK_THROWS(s.execute());
  s.gpu.streams().synchronize(other);
  CHECK(s.execute() == kFine);
}

TEST_CASE("rules of cuDNN: convolutions", "[cuda]") {
  TwoGpus two;
  const cudnnDataType_t half = CUDNN_DATA_HALF;
  const auto tensor = [](cudnnDataType_t type, int channels, int size,
                         cudnnTensorFormat_t format = CUDNN_TENSOR_NHWC) {
    cudnnTensorDescriptor_t d = nullptr;
    CHECK(DNN(cudnnCreateTensorDescriptor)(&d) == kFine);
    CHECK(DNN(cudnnSetTensor4dDescriptor)(d, format, type, 2, channels, size, size) == kFine);
    return d;
  };
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t how = nullptr, unset = nullptr, doubled = nullptr;
  CHECK(DNN(cudnnCreateFilterDescriptor)(&filter) == kFine);
  CHECK(DNN(cudnnSetFilter4dDescriptor)(filter, half, CUDNN_TENSOR_NHWC, 4, 3, 3, 3) == kFine);
  for (cudnnConvolutionDescriptor_t* d : {&how, &unset, &doubled})
    CHECK(DNN(cudnnCreateConvolutionDescriptor)(d) == kFine);
  for (const auto& [d, type] : {std::pair{how, CUDNN_DATA_FLOAT}, {doubled, half}})
    CHECK(DNN(cudnnSetConvolution2dDescriptor)(d, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                               type) == kFine);
  CHECK(DNN(cudnnSetConvolutionMathType)(how, CUDNN_TENSOR_OP_MATH) == kFine);
  const cudnnTensorDescriptor_t x = tensor(half, 3, 8), y = tensor(half, 4, 8);
  cudnnConvolutionFwdAlgoPerf_t found[16];
  int count = 0;
  const auto suggest = [&](cudnnTensorDescriptor_t from, cudnnTensorDescriptor_t to,
                           cudnnConvolutionDescriptor_t by, int most = 16) {
    return DNN(cudnnGetConvolutionForwardAlgorithm_v7)(two.handles[0], from, filter, by, to, most,
                                                       &count, found);
  };
  CHECK(suggest(x, y, how) == kFine);
  CHECK(count == 6);
  CHECK(suggest(x, y, how, 0) == kBad);
  CHECK(suggest(x, y, unset) == kBad);
  CHECK(suggest(x, y, doubled) == kNot);
  CHECK(suggest(nullptr, y, how) == kBad);
  CHECK(suggest(tensor(CUDNN_DATA_FLOAT, 3, 8), y, how) == kBad);
  CHECK(suggest(tensor(half, 3, 8, CUDNN_TENSOR_NCHW), y, how) == kNot);
  CHECK(suggest(tensor(half, 5, 8), y, how) == kBad);
  CHECK(suggest(x, tensor(half, 5, 8), how) == kBad);
  CHECK(suggest(x, tensor(half, 4, 7), how) == kNot);
  CHECK(suggest(tensor(half, 3, 1), tensor(half, 4, 1), how) == kFine);
  CHECK(DNN(cudnnSetConvolutionGroupCount)(how, 3) == kFine);
  CHECK(suggest(x, y, how) == kBad);
  CHECK(DNN(cudnnSetConvolutionGroupCount)(how, 1) == kFine);
  two.use(1);
  CHECK(suggest(x, y, how) == kBad);  // a handle of another GPU
  two.use(0);

  constexpr size_t kWorkspace = 4096;
  char* memory = reinterpret_cast<char*>(two.memory[0]);
  char *px = memory, *pf = memory + 4096, *py = memory + 8192, *workspace = memory + 12288;
  const float one = 1, zero = 0;
  const auto run = [&](const float* alpha, const char* from, char* space, size_t bytes,
                       cudnnConvolutionFwdAlgo_t algorithm =
                           CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM) {
    return DNN(cudnnConvolutionForward)(two.handles[0], alpha, x, from, filter, pf, how, algorithm,
                                        space, bytes, &zero, y, py);
  };
  CHECK(run(&one, nullptr, workspace, kWorkspace) == kBad);
  CHECK(run(&zero, px, workspace, kWorkspace) == kNot);
  CHECK(run(&one, px + 2, workspace, kWorkspace) == kNot);
  CHECK(run(&one, px, workspace, kWorkspace / 2) == kBad);
  CHECK(run(&one, px, nullptr, kWorkspace) == kBad);
  CHECK(run(&one, px, workspace, kWorkspace, CUDNN_CONVOLUTION_FWD_ALGO_FFT) == kNot);
  CHECK(run(&one, px, workspace, kWorkspace, CUDNN_CONVOLUTION_FWD_ALGO_DIRECT) == kNot);
  CHECK(two.gpu.convolutions == 0);
  CHECK(run(&one, px, workspace, kWorkspace) == kFine);
  CHECK(two.gpu.take_misuses().empty());
  CHECK(DNN(cudnnConvolutionBackwardData)(two.handles[0], &one, filter, pf, y, py, how,
                                          CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, workspace, kWorkspace,
                                          &zero, x, px) == kFine);
  CHECK(two.gpu.take_misuses() ==
        std::vector<std::string>{"a convolution of cuDNN that adds in no fixed order"});
  CHECK(DNN(cudnnDestroyTensorDescriptor)(x) == kFine);
  CHECK(DNN(cudnnDestroyTensorDescriptor)(x) == kBad);
  CHECK(suggest(x, y, how) == kBad);
}

TEST_CASE("cuDNN's convolutions round float32 where that is chosen, and fit into 2^31 elements",
          "[cuda]") {
  CudaEmulator gpu;
  gpu.direct = false;
  gpu.has_cudnn = true;
  gpu.contexts().use(0);
  const CudaStream stream = gpu.streams().make_stream();
  float* memory = static_cast<float*>(gpu.memory().allocate(1 << 16));
  gpu.memory().clear(memory, 1 << 16, stream);
  gpu.streams().synchronize(stream);
  std::string why;
  REQUIRE(gpu.convolution(why) != nullptr);
  CudaConvolutionApi& library = *gpu.convolution(why);
  memory[0] = memory[1] = 1.0001f;
  for (const bool tf32 : {false, true}) {
    CudaConv c;
    c.tf32 = tf32;
    const CudaConvolution prepared = library.prepare(c);
    REQUIRE(prepared != nullptr);
    library.run(prepared, memory, memory + 1, memory + 2, memory + 1024, stream);
    library.release(prepared);
    gpu.streams().synchronize(stream);
    CHECK(memory[2] == (tf32 ? 1 : 1.0001f * 1.0001f));
  }
  CudaConv large;
  large.images = int64_t{1} << 31;
  CHECK(library.prepare(large) == nullptr);
  large.images = 1 << 16;
  large.dims[0].in = large.dims[0].out = 1 << 15;
  CHECK(library.prepare(large) == nullptr);
  CHECK(gpu.take_misuses().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test::rules
