// Collectives on the memory of emulated GPUs, in each of the three ways, give what the ranks' own
// communicator gives; and which GPU a rank takes.
#include "base/fail.h"
#include "collectives/blocks.h"
#include "gpu/device/cuda_device.h"
#include "gpu/emulator.h"
#include "session/devices.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/cluster.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A communicator that does not say "threads": its ranks go through the host, as those of MPI do.
class Elsewhere final : public Communicator {
 public:
  explicit Elsewhere(std::unique_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)) {}
  const char* backend() const override { return "elsewhere"; }
  void fail(const std::string& message) override { inner_->fail(message); }

 private:
  std::unique_ptr<Operation> do_prepare(const std::vector<Collective>& all) override {
    return inner_->prepare(all);
  }
  std::unique_ptr<Communicator> do_split(int color, int key) override {
    return std::make_unique<Elsewhere>(inner_->split(color, key));
  }
  void* do_allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<Communicator> inner_;
};

/// apart: a GPU each, without groups, that do not reach each other.
enum class Way { groups, peers, host, apart };

Collective described(CollectiveKind kind, int ranks, int rank) {
  Collective c;
  c.kind = kind;
  c.count = 37;
  c.outer = 3;
  c.inner = 5;
  c.pre = 2;
  c.s = 3;
  c.mid = 2;
  c.c = 4;
  c.post = 3;
  c.root = ranks - 1;
  c.site.text = to_string(kind);
  if (kind != CollectiveKind::exchange) return c;
  c.send.resize(static_cast<size_t>(ranks));
  c.recv.resize(static_cast<size_t>(ranks));
  for (int q = 0; q < ranks; ++q) {  // rank q gets two runs of q + 1 elements from every rank
    c.send[static_cast<size_t>(q)] = {{3 * q, q + 1}, {30 + 3 * q, q + 1}};
    c.recv[static_cast<size_t>(q)] = {{20 * q + 2, 2 * (rank + 1)}};
  }
  return c;
}

/// A collective with its operands and what it gives on the host.
struct Sample {
  Collective collective;
  std::vector<float> in, out, expected;
  void *in_there = nullptr, *out_there = nullptr;
  std::unique_ptr<Operation> operation;

  Sample(CollectiveKind kind, Communicator& world)
      : collective(described(kind, world.size(), world.rank())) {
    const Extent extent = extent_of(collective, world.size(), world.rank());
    in.resize(static_cast<size_t>(extent.in) + 1);
    out.resize(static_cast<size_t>(extent.out) + 1);
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<float>(static_cast<int>(i * 7) % 23 + world.rank() * 100);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = -static_cast<float>(i) - static_cast<float>(world.rank());
    expected = out;
    Collective c = collective;
    c.in = in.data();
    c.out = expected.data();
    world.run(c);
  }
  static int64_t bytes(const std::vector<float>& x) {
    return static_cast<int64_t>(x.size() * sizeof(float));
  }
  void prepare(CudaDevice& device, Communicator& group) {
    in_there = device.allocate(bytes(in), "in");
    out_there = device.allocate(bytes(out), "out");
    collective.in = in_there;
    collective.out = out_there;
    operation = device.prepare(group, {collective});
  }
  std::vector<float> run(CudaDevice& device) {
    device.write(in_there, in.data(), bytes(in));
    device.write(out_there, out.data(), bytes(out));
    operation->start();
    operation->wait();
    std::vector<float> seen(out.size());
    device.read(seen.data(), out_there, bytes(out));
    return seen;
  }
};

void compare(Way way, int ranks) {
  const bool own_gpus = way == Way::groups || way == Way::apart;
  CudaEmulator gpus(own_gpus ? ranks : 1);
  gpus.has_groups = way == Way::groups;
  gpus.has_access = way != Way::apart;
  const WithEmulator here(gpus);
  Cluster cluster = Cluster::threads(ranks);
  std::mutex mutex;
  cluster.run([&](int, Communicator& world) {
    std::unique_ptr<Communicator> group = world.split(0, world.rank());
    if (way == Way::host) group = std::make_unique<Elsewhere>(std::move(group));
    const int gpu = own_gpus ? world.rank() : 0;
    CudaDevice device(gpus, gpu, world, {way == Way::groups});
    const UseGpu here(gpus.contexts(), gpu);
    using Kind = CollectiveKind;
    std::vector<Sample> samples;
    for (Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all,
                      Kind::exchange, Kind::broadcast}) {
      samples.emplace_back(kind, world);
      samples.back().prepare(device, *group);
    }
    world.barrier();  // the kernels of all are known: they are compiled together
    for (int again = 0; again < 2; ++again) {
      for (Sample& sample : samples) {
        const std::vector<float> seen = sample.run(device);
        const std::lock_guard lock(mutex);
        INFO(to_string(sample.collective.kind) << " on rank " << world.rank() << " of " << ranks);
        CHECK(seen == sample.expected);
      }
    }
    world.barrier();  // peers read each other's memory
    for (Sample& sample : samples) sample.operation.reset();
  });
  CHECK((way == Way::groups) == (gpus.group_calls > 0));
}

TEST_CASE("collectives on GPUs: by groups, by peers of one process, through the host", "[cuda]") {
  for (Way way : {Way::groups, Way::peers, Way::host, Way::apart}) {
    for (int ranks : {2, 3}) compare(way, ranks);
  }
}

TEST_CASE("what goes through the host ends too where a group of GPUs does not", "[cuda]") {
  CudaEmulator gpus(2);
  gpus.has_groups = true;
  Cluster cluster = Cluster::threads(2);
  cluster.set_timeout(0.3);
  expect_error(ErrorKind::comm, {"waited 0 s for collectives with other GPUs"}, [&] {
    cluster.run([&](int, Communicator& world) {
      CudaDevice device(gpus, world.rank(), world, {true});
      const UseGpu here(gpus.contexts(), world.rank());
      Sample reduced(CollectiveKind::all_reduce, world), moved(CollectiveKind::broadcast, world);
      reduced.prepare(device, world);
      moved.prepare(device, world);
      reduced.run(device);
      world.barrier();
      gpus.stuck = true;
      moved.operation->start();
    });
  });
  CHECK(gpus.take_misuses().empty());
}

TEST_CASE("memory of the caller's is free after a write, and copies go through pinned memory",
          "[cuda]") {
  CudaEmulator gpu;
  Cluster cluster = Cluster::threads(1);
  cluster.run([&](int, Communicator& world) {
    CudaDevice device(gpu, 0, world, {});
    std::vector<int> numbers(3 << 20), seen(numbers.size());
    const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(int));
    void* there = device.allocate(bytes, "numbers");
    for (int again = 0; again < 3; ++again) {
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(i) + again;
      device.write(there, numbers.data(), bytes);
      std::fill(numbers.begin(), numbers.end(), -1);
      device.read(seen.data(), there, bytes);
      CHECK(seen[12345] == 12345 + again);
      CHECK(seen.back() == static_cast<int>(seen.size()) - 1 + again);
    }
    gpu.logging = true;
    for (int small = 0; small < 1000; ++small) device.write(there, numbers.data(), 256);
    for (const std::string& line : gpu.take_log())
      CHECK(line.find("synchronize") == std::string::npos);
  });
}

TEST_CASE("a rank takes the GPU of its number on its host, or the only one that it sees",
          "[cuda]") {
  CHECK(gpu_of(3, 8) == 3);
  CHECK(gpu_of(9, 8) == 1);
  CHECK(gpu_of(5, 1) == 0);
  require_own_gpus({"GPU-1 on a", "GPU-2 on a", "GPU-1 on b"});
  expect_error(ErrorKind::usage,
               {"ranks 0 and 2 would share one GPU (GPU-1 on a)", "at most one process a GPU",
                "--device cuda:share"},
               [] {
                 require_own_gpus({"GPU-1 on a", "GPU-2 on a", "GPU-1 on a"});
               });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
