// What a real GPU, its driver or its libraries may lack or refuse: Tessera does without where it
// can and tells it, or ends with one message that says what to do.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/fail.h"
#include "gpu/device/cuda_device.h"
#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "support/io_folder.h"
#include "tessera/cli.h"
#include "tessera/cluster.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// An environment variable for the time of a test.
class With {
 public:
  With(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~With() { unsetenv(name_); }
  With(const With&) = delete;

 private:
  const char* name_;
};

GptOutcome train(CudaEmulator& gpu, int ranks, int steps = 4) {
  gpu.direct = false;
  const WithEmulator here(gpu);
  Clusters clusters;
  return train_small_gpt(clusters.of(ranks), Mesh::parse(fmt::format("a:{}", ranks)),
                         ranks > 1 ? "batch:a" : "", DType::float32, steps, "cuda");
}

/// It has the losses of the CPU, and tells what was left out with all of these words in one line.
void check_told(const GptOutcome& outcome, const std::vector<std::string>& words) {
  Clusters clusters;
  const auto expected =
      train_small_gpt(clusters.of(1), Mesh::parse("a:1"), "", DType::float32, 4, "cpu");
  REQUIRE(outcome.losses.size() == expected.losses.size());
  for (size_t i = 0; i < outcome.losses.size(); ++i)
    CHECK(std::abs(outcome.losses[i] - expected.losses[i]) < 2e-5);
  INFO(fmt::format("{}", fmt::join(outcome.fallbacks, "\n")));
  CHECK(std::any_of(outcome.fallbacks.begin(), outcome.fallbacks.end(), [&](const auto& line) {
    return std::all_of(words.begin(), words.end(),
                       [&](const auto& word) { return line.find(word) != line.npos; });
  }));
}

void expect_refused(CudaEmulator& gpu, int ranks, ErrorKind kind,
                    const std::vector<std::string>& words) {
  expect_error(kind, words, [&] { train(gpu, ranks, 1); });
}

TEST_CASE("soft landing: nothing is told where nothing is left out", "[cuda]") {
  CudaEmulator gpus(2);
  gpus.has_groups = true;
  CHECK(train(gpus, 2).fallbacks.empty());
  CHECK(gpus.replayed_calls > 0);
  CHECK(gpus.take_misuses().empty());
}

TEST_CASE("soft landing: a capture that fails is run step by step, on all ranks", "[cuda]") {
  const std::vector<std::pair<CaptureFault, const char*>> faults = {
      {CaptureFault::begin, "cuStreamBeginCapture: operation not permitted"},
      {CaptureFault::work, "cuStreamEndCapture: operation failed due to a previous error"},
      {CaptureFault::instantiate, "cuGraphInstantiateWithFlags: out of memory"}};
  for (const auto& [fault, text] : faults) {
    INFO(text);
    CudaEmulator gpu;
    gpu.fails_capture = fault;
    check_told(train(gpu, 1), {"enqueued one by one, as their capture failed", text,
                               "TESSERA_GRAPHS=off leaves captures out"});
    CHECK(gpu.graph_launches == 0);
    CudaEmulator gpus(2);
    gpus.has_groups = true;
    gpus.fails_capture = fault;
    gpus.fails_on = 0;  // the other one could, but NCCL mixes no graphs with calls
    check_told(train(gpus, 2), {"capture failed", text});
    CHECK(gpus.group_calls > 0);
    CHECK(gpus.replayed_calls == 0);
    CHECK(gpus.take_misuses().empty());
  }
}

TEST_CASE("soft landing: train prints what the device tells after it has tried", "[cuda][slow]") {
  CudaEmulator gpu;
  gpu.direct = false;
  gpu.fails_capture = CaptureFault::work;
  const WithEmulator here(gpu);
  const Folder folder;
  std::vector<std::string> words = {
      "tessera", "train", "gpt",       "--data",   TESSERA_SOURCE_DIR "/data/moby-dick.txt",
      "--steps", "3",     "--batch",   "2",        "--device",
      "cuda",    "--set", "layers=1",  "length=8", "d_model=16",
      "heads=2", "ff=32", "held_out=0"};
  std::vector<char*> args;
  for (std::string& word : words) args.push_back(word.data());
  const std::string path = folder.dir + "/out.txt";
  const int kept = dup(1), file = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(file >= 0);
  std::fflush(stdout);
  dup2(file, 1);
  const int code = run_cli(static_cast<int>(args.size()), args.data());
  std::fflush(stdout);
  dup2(kept, 1);
  close(kept);
  close(file);
  std::ifstream in(path);
  const std::string out((std::istreambuf_iterator<char>(in)), {});
  INFO(out);
  CHECK(code == 0);
  const std::string note = "note    steps are enqueued one by one, as their capture failed";
  CHECK(out.find(note) != out.npos);
  CHECK(out.find(note) == out.rfind(note));
  CHECK(out.find(note) > out.find("step"));
}

TEST_CASE("soft landing: TESSERA_GRAPHS=off captures nothing", "[cuda]") {
  const With off("TESSERA_GRAPHS", "off");
  CudaEmulator gpu;
  check_told(train(gpu, 1), {"enqueued one by one: TESSERA_GRAPHS is off"});
  CHECK(gpu.captures == 0);
}

TEST_CASE("soft landing: without NCCL the ranks do their collectives another way", "[cuda]") {
  const auto trained = [](auto change, const std::vector<std::string>& words) {
    CudaEmulator gpus(2);
    gpus.has_groups = true;
    change(gpus);
    check_told(train(gpus, 2), words);
    CHECK(gpus.group_calls == 0);
  };
  trained(
      [](CudaEmulator& g) {
        g.missing = {"libnccl.so.2", "libnccl.so"};
      },
      {"collectives read the memory of peers", "there is no NCCL: libnccl.so.2 is not there"});
  trained([](CudaEmulator& g) { g.nccl_version = 21003; },
          {"read the memory of peers", "this NCCL is 2.10.3, and 2.14 or newer is needed"});
  trained([](CudaEmulator& g) { g.missing = {"ncclCommInitRankConfig"}; },
          {"too old: libnccl.so.2 has no function ncclCommInitRankConfig", "2.14 or newer"});
  trained(
      [](CudaEmulator& g) {
        g.missing = {"libnccl.so.2", "libnccl.so"};
        g.has_access = false;
      },
      {"collectives go through host memory", "there is no NCCL"});
  const With off("TESSERA_NCCL", "off");
  trained([](CudaEmulator&) {}, {"read the memory of peers: TESSERA_NCCL is off"});
}

TEST_CASE("soft landing: without cuBLASLt matmuls are Tessera's own kernels", "[cuda]") {
  const auto trained = [](const std::set<std::string>& missing, const std::string& word) {
    CudaEmulator gpu;
    gpu.missing = missing;
    check_told(train(gpu, 1), {"matmuls run by Tessera's own kernels", word});
    CHECK(gpu.matmuls == 0);
  };
  trained({"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, "there is no cuBLASLt");
  trained({"cublasLtMatmulAlgoCheck"},
          "this cuBLASLt is too old: libcublasLt.so.13 has no function cublasLtMatmulAlgoCheck");
}

TEST_CASE("soft landing: a cuDNN that is missing or too old is named with its version", "[cuda]") {
  CudaEmulator none, old, half;
  std::string why;
  none.direct = old.direct = half.direct = false;
  CHECK(none.convolution(why) == nullptr);
  CHECK(why.find("cuDNN is missing: libcudnn.so.9 is not there") == 0);
  old.has_cudnn = half.has_cudnn = true;
  old.cudnn_version = 8907;
  CHECK(old.attention(why) == nullptr);
  CHECK(why == "this cuDNN is 8.9.7, and 9.0 or newer is needed");
  half.cudnn_version = 90000;
  half.missing = {"cudnnBackendFinalize"};
  CHECK(half.convolution(why) == nullptr);
  CHECK(
      why ==
      "this cuDNN is too old: libcudnn.so.9 has no function cudnnBackendFinalize; 9.0 or newer is "
      "needed");
}

TEST_CASE("soft landing: with a cuDNN that is not used attention is Tessera's own kernels",
          "[cuda]") {
  const auto trained = [](int version, const std::string& word) {
    CudaEmulator gpu;
    gpu.direct = false;
    gpu.has_cudnn = true;
    gpu.cudnn_version = version;
    const WithEmulator here(gpu);
    Clusters clusters;
    nn::GptOptions size = small_gpt(DType::bfloat16);
    size.d_model = 24;
    const auto train = [&](const char* device) {
      return train_gpt(size, clusters.of(1), Mesh::parse("a:1"), "", 4, device);
    };
    const GptOutcome outcome = train("cuda"), expected = train("cpu");
    for (size_t i = 0; i < expected.losses.size(); ++i)
      CHECK(std::abs(outcome.losses[i] - expected.losses[i]) < 0.02);
    INFO(fmt::format("{}", fmt::join(outcome.fallbacks, "\n")));
    CHECK(gpu.attentions == 0);
    CHECK(fmt::format("{}", fmt::join(outcome.fallbacks, " ")).find(word) != word.npos);
  };
  trained(8907, "own kernel: this cuDNN is 8.9.7, and 9.0 or newer is needed");
  trained(91001, "own kernel: cuDNN 9.10.0 and 9.10.1 have attention wrong");
}

TEST_CASE("soft landing: a driver that lacks a function is named", "[cuda]") {
  CudaEmulator driver;
  driver.missing = {"cuGraphInstantiateWithFlags"};
  expect_refused(
      driver, 1, ErrorKind::unsupported,
      {"no GPU can be used", "libcuda.so.1 has no function cuGraphInstantiateWithFlags"});
}

TEST_CASE("soft landing: a machine with a driver and without NVRTC says where that comes from",
          "[cuda]") {
  CudaEmulator none, half;
  none.missing = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  expect_refused(none, 1, ErrorKind::unsupported,
                 {"kernels are compiled by NVRTC of CUDA 1", "which is missing",
                  "with the CUDA toolkit, and in Python as a package nvidia-cuda-nvrtc",
                  "libnvrtc.so.1", "is not there"});
  half.missing = {"nvrtcGetCUBIN"};
  expect_refused(half, 1, ErrorKind::unsupported,
                 {"libnvrtc.so.1", " has no function nvrtcGetCUBIN"});
}

TEST_CASE("soft landing: kernels for a GPU that the compiler does not know come as PTX", "[cuda]") {
  CudaEmulator gpu;
  gpu.major = 12;
  gpu.architectures = {80, 90};
  check_told(train(gpu, 1), {"the driver compiles kernels from PTX",
                             "NVRTC 0.1 knows no GPU of compute capability 12.0"});
  CudaEmulator related;  // runs what was compiled for an older one of its generation
  related.minor = 3;
  CHECK(train(related, 1).fallbacks.empty());
  CudaEmulator behind;
  behind.major = 12;
  behind.architectures = {80, 90};
  behind.driver_version = 12080;
  expect_refused(behind, 1, ErrorKind::unsupported,
                 {"NVRTC 0.1 knows no GPU of compute capability 12.0", "PTX, which is newer than",
                  "install a newer driver"});
  CudaEmulator left;
  left.major = 8;
  left.architectures = {90, 100};
  expect_refused(left, 1, ErrorKind::unsupported,
                 {"NVRTC 0.1 compiles for no GPU of compute capability 8.0 any more"});
}

TEST_CASE("soft landing: memory that others have, and what is left to the libraries", "[cuda]") {
  constexpr int64_t kAll = int64_t{1} << 30;
  CudaEmulator taken;
  taken.taken = kAll - (1 << 20);
  expect_refused(
      taken, 1, ErrorKind::device,
      {"rank 0 needs", "GiB are free", "of its 1.00 GiB this rank has 0.00 and others 1.00",
       "nvidia-smi", "smaller batch"});
  CudaEmulator broken;
  broken.largest_allocation = 4096;
  expect_refused(broken, 1, ErrorKind::device,
                 {"rank 0 needs", "are free", "the driver does not give them in one piece",
                  "cuMemAlloc: out of memory", "smaller batch"});
  CudaEmulator full;  // its arenas would fit, and then nothing else would
  full.taken = kAll - (8 << 20);
  expect_refused(full, 1, ErrorKind::device,
                 {"rank 0 needs", "of which 0.02 are left to CUDA's libraries"});
}

TEST_CASE("soft landing: a group of NCCL that never forms ends with the remedy", "[cuda]") {
  CudaEmulator gpus(2);
  gpus.direct = false;
  gpus.has_groups = true;
  gpus.never_joins = true;
  const WithEmulator here(gpus);
  Cluster cluster = Cluster::threads(2);
  cluster.set_timeout(0.3);
  expect_error(
      ErrorKind::comm,
      {"of 2 waited 0 s for the others to join a group of NCCL", "NCCL_DEBUG=INFO",
       "TESSERA_NCCL=off"},
      [&] { train_small_gpt(cluster, Mesh::parse("a:2"), "batch:a", DType::float32, 1, "cuda"); });
}

TEST_CASE("soft landing: a peer that dies ends the others, with the collective that they wait for",
          "[cuda]") {
  const bool first = GENERATE(false, true);  // already in the first collective
  CudaEmulator gpus(2);
  gpus.direct = false;
  gpus.has_groups = true;
  Cluster cluster = Cluster::threads(2);
  cluster.set_timeout(0.3);
  std::string told;
  std::atomic<int> left{2};
  cluster.run([&](int, Communicator& world) {
    CudaDevice device(gpus, world.rank(), world, {true});
    const UseGpu here(gpus.contexts(), world.rank());
    Collective sum;
    sum.kind = CollectiveKind::all_reduce;
    sum.count = 16;
    sum.in = sum.out = device.allocate(64, "numbers");
    sum.site.text = "sum of numbers";
    const std::unique_ptr<Operation> operation = device.prepare(world, {sum});
    std::vector<float> host(16);
    const auto run = [&] {
      operation->start();
      operation->wait();
      device.read(host.data(), sum.out, 64);
    };
    if (!first) run();
    if (world.rank() == 0) {
      try {
        run();
      } catch (const Error& e) {
        told = e.what();
      }
    }
    --left;  // rank 1 has its group until the other one has given up
    while (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  INFO(told);
  CHECK(told.find("rank 0 on cuda:0: waited 0 s for collectives with other GPUs; the last "
                  "collective that ended is " +
                  std::string(first ? "none" : "'sum of numbers'")) != told.npos);
  CHECK(gpus.aborts == 2);
  CHECK(gpus.take_misuses() ==
        std::vector<std::string>{"aborted a group whose calls may not have ended"});  // rank 0's
}

TEST_CASE("soft landing: a kernel at an illegal address ends the run at a later call", "[cuda]") {
  for (const int64_t launch : {1, 2, 3, 5, 8, 13, 21, 30}) {  // some while algorithms are measured
    CudaEmulator gpu;
    gpu.illegal_launch = launch;
    expect_refused(gpu, 1, ErrorKind::device, {"an illegal memory access was encountered"});
  }
}

TEST_CASE("the stream of transfers goes before that of kernels", "[cuda]") {
  CudaEmulator gpu;
  train(gpu, 1, 1);
  const auto& streams = gpu.state().streams;
  REQUIRE(streams.size() == 2);
  CHECK(!streams[0]->is_urgent);
  CHECK(streams[1]->is_urgent);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
