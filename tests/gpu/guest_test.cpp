// A Session within a program that uses the GPU itself: in order with the program's stream without
// waiting for it, on the program's buffers, within the memory that it was lent.
#include "base/fail.h"
#include "gpu/emulator.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "tessera/interop/cuda.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kRows = 6, kColumns = 4, kBytes = kRows * kColumns * 4;

/// A host program: a stream of its own, x and y on the GPU, and kernels that count x up and y
/// down.
struct Program {
  CudaEmulator& gpu;
  int device;
  int64_t bytes;  ///< of each
  CudaStream stream;
  float *x, *y;

  explicit Program(CudaEmulator& gpu, int device = 0, int64_t bytes = kBytes)
      : gpu(gpu), device(device), bytes(bytes) {
    void* before = gpu.contexts().use(device);
    stream = gpu.streams().make_stream();
    x = static_cast<float*>(gpu.memory().allocate(bytes));
    y = static_cast<float*>(gpu.memory().allocate(bytes));
    gpu.memory().clear(x, bytes, stream);
    gpu.contexts().restore(before);
  }
  CudaGuest guest() const {
    CudaGuest g;
    g.device = device;
    g.stream = reinterpret_cast<CUstream_st*>(stream);
    g.buffers = {{"x", x, bytes}, {"y", y, bytes}};
    return g;
  }
  /// x += by, on the stream.
  void add(float* to, float by) {
    void* before = gpu.contexts().use(device);
    CudaLaunch launch;
    launch.kernel = gpu.kernels().load(
        fmt::format("struct Args {{\n  float* to;\n}};\nextern \"C\" __global__ void "
                    "tessera_kernel(Args a) {{\n  a.to[threadIdx.x] += {}f;\n}}\n",
                    fmt::format("{:.1f}", by)));
    launch.blocks = 1;
    launch.threads = static_cast<int>(bytes / 4);
    launch.words = {reinterpret_cast<uint64_t>(to)};
    launch.reads = launch.writes = {{to, bytes}};
    gpu.kernels().launch(launch, stream);
    gpu.contexts().restore(before);
  }
};

/// y = 2 x + w with a parameter w that counts up.
struct Model {
  Graph g;
  Tensor x, y, dot;
  Model() {
    const Dim rows("rows", kRows), columns("columns", kColumns);
    x = g.input("x", {rows, columns}, DType::float32);
    Tensor w = g.parameter("w", {columns}, nn::zeros());
    y = (x * 2 + w).named("y");
    dot = einsum({x, x}, {}).named("dot");
    g.update(w, w + constant(g, 1));
  }
  CompileOptions options() const { return {Mesh::parse("a:1"), {}, {{"step", {y, dot}, true}}}; }
};

void expect_refused(const CudaGuest& guest, ErrorKind kind, const std::vector<std::string>& words) {
  Model model;
  Cluster cluster = Cluster::threads(1);
  CompileOptions options = model.options();
  adopt_cuda(options, {guest});
  expect_error(kind, words, [&] { Session session(model.g, cluster, options); });
}

TEST_CASE("steps enqueued between a program's own kernels: in order, and nothing waits", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Program program(gpu);
  Model model;
  Cluster cluster = Cluster::threads(1);
  CompileOptions options = model.options();
  adopt_cuda(options, {program.guest()});
  {
    Session session(model.g, cluster, options);
    session.wait();
    gpu.logging = true;
    gpu.take_log();
    for (int step = 0; step < 5; ++step) {
      program.add(program.x, 1);
      session.enqueue("step");
      program.add(program.y, 100);
    }
    for (const std::string& line : gpu.take_log()) {
      CHECK(line.find("synchronize") == std::string::npos);
      CHECK(line.find("passed") == std::string::npos);
    }
    gpu.logging = false;
    CHECK(gpu.graph_launches >= 2);
    CHECK(session.step() == 5);
    const Array y = session.fetch("y");  // in order with the program's last kernel
    for (int64_t i = 0; i < y.elements(); ++i) CHECK(y.at(i) == 2 * 5 + 4 + 100);
    CHECK(session.fetch("w").at(0) == 5);
    CHECK(session.fetch("dot").at(0) == 24 * 25);
    CHECK(session.fetch("x").at(0) == 5);
    session.feed("x", y);  // the program's memory too, before what its stream does next
    program.add(program.x, 1);
    session.run("step");
    CHECK(session.fetch("y").at(0) == 2 * (114 + 1) + 5);
  }
  CHECK(gpu.take_misuses().empty());
  gpu.contexts().use(0);
  gpu.memory().release(program.x);
  gpu.memory().release(program.y);
}

TEST_CASE("each rank of a process has its own GPU, stream and buffers", "[cuda]") {
  for (bool has_groups : {true, false}) {
    CudaEmulator gpus(2);
    gpus.has_groups = has_groups;
    const WithEmulator here(gpus);
    Program first(gpus, 0, kBytes / 2), second(gpus, 1, kBytes / 2);
    Model model;
    Cluster cluster = Cluster::threads(2);
    CompileOptions options = model.options();
    options.mesh = Mesh::parse("a:2");
    options.layout = Layout::parse("rows:a");
    adopt_cuda(options, {first.guest(), second.guest()});
    {
      Session session(model.g, cluster, options);
      for (int step = 1; step <= 3; ++step) {
        first.add(first.x, 1);
        second.add(second.x, 2);
        session.enqueue("step");
      }
      const Array y = session.fetch("y");
      CHECK(y.at(0) == 2 * 3 + 2);
      CHECK(y.at(y.elements() - 1) == 2 * 6 + 2);
      CHECK(session.fetch("dot").at(0) == 12 * 9 + 12 * 36);
    }
    CHECK((gpus.group_calls > 0) == has_groups);
    CHECK(gpus.take_misuses().empty());
  }
}

TEST_CASE("a step that nothing orders with the program's stream is noticed", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Program program(gpu);
  Model model;
  Cluster cluster = Cluster::threads(1);
  CompileOptions options = model.options();
  CudaGuest guest = program.guest();
  gpu.contexts().use(0);
  guest.stream = reinterpret_cast<CUstream_st*>(gpu.streams().make_stream());
  adopt_cuda(options, {guest});
  Session session(model.g, cluster, options);
  program.add(program.x, 1);
  expect_error(ErrorKind::internal, {"reads what 'launch", "nothing orders them"},
               [&] { session.enqueue("step"); });
}

TEST_CASE("a program's own memory: its allocator, and a limit with the breakdown", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Program program(gpu);
  int64_t held = 0;
  CudaGuest guest = program.guest();
  guest.allocate = [&](int64_t bytes) {
    held += bytes;
    return gpu.memory().allocate(bytes);
  };
  guest.release = [&](void* memory, int64_t bytes) {
    held -= bytes;
    gpu.memory().release(memory);
  };
  int64_t needed = 0;
  {
    Model model;
    Cluster cluster = Cluster::threads(1);
    CompileOptions options = model.options();
    adopt_cuda(options, {guest});
    Session session(model.g, cluster, options);
    session.enqueue("step");
    session.wait();
    needed = held;
    CHECK(needed >= session.program().persistent_bytes() + session.program().transient_bytes());
  }
  CHECK(held == 0);
  guest.memory_limit = needed;
  {
    Model model;
    Cluster cluster = Cluster::threads(1);
    CompileOptions options = model.options();
    adopt_cuda(options, {guest});
    Session session(model.g, cluster, options);
  }
  guest.memory_limit = needed - 1;
  expect_refused(guest, ErrorKind::device,
                 {"rank 0 may take", "of cuda:0 but needs", "scalars", "faults", "persistent",
                  "transient", "raise memory_limit", "smaller batch"});
  CHECK(held == 0);
  guest.memory_limit = 2100;  // of what a device takes first
  expect_refused(guest, ErrorKind::device,
                 {"may take 2.05 KiB", "needs 2.25 KiB (scalars 2.00 KiB, faults 0.25 KiB)"});
  CHECK(held == 0);
  guest.memory_limit = 0;
  guest.allocate = [](int64_t) { return nullptr; };
  expect_refused(guest, ErrorKind::device,
                 {"[adopt_cuda] rank 0 asked the host program's allocator for", "bytes on cuda:0",
                  "got 0x0", "multiple of 256"});
}

TEST_CASE("what cannot be lent is one error with the remedy", "[cuda]") {
  CudaEmulator gpu(2);
  const WithEmulator here(gpu);
  Program program(gpu);
  const CudaGuest good = program.guest();
  const auto refused = [&](auto change, std::vector<std::string> words) {
    CudaGuest guest = good;
    change(guest);
    words.insert(words.begin(), "[adopt_cuda]");
    expect_refused(guest, ErrorKind::usage, words);
  };
  refused([](CudaGuest& g) { g.device = 2; },
          {"local rank 0 is lent device 2", "sees 2 (0 to 1)", "CUDA_VISIBLE_DEVICES"});
  refused([](CudaGuest& g) { g.device = -1; }, {"device -1", "sees 2 (0 to 1)"});
  refused([](CudaGuest& g) { g.memory_limit = -5; }, {"memory limit", "-5 bytes", "0 for what"});
  refused([&](CudaGuest& g) { g.release = [](void*, int64_t) {}; },
          {"'release' without 'allocate'", "both or none"});
  refused([](CudaGuest& g) { g.stream = reinterpret_cast<CUstream_st*>(&g); },
          {"rank 0 cannot work with its stream on cuda:0", "invalid resource handle",
           "cudaStreamCreate after cudaSetDevice(0)"});
  refused(
      [](CudaGuest& g) {
        g.device = 1;
        g.buffers.clear();
      },
      {"its stream on cuda:1", "it is one of device 0"});
  refused([](CudaGuest& g) { g.buffers[0].bytes = 95; },
          {"'x' of local rank 0 needs 96 bytes (float32 of [6, 4]) but 95 were lent"});
  refused([](CudaGuest& g) { g.buffers[0].name = "xx"; }, {"no input or output 'xx'", "'x'"});
  refused([](CudaGuest& g) { g.buffers[0].data = &g; },
          {"memory lent for 'x'", "is not memory of device 0", "cudaMalloc"});
  refused([&](CudaGuest& g) { g.buffers[0].data = reinterpret_cast<char*>(program.x) + 1; },
          {"'x'", "is not memory of device 0"});  // its last byte is not
  refused(
      [](CudaGuest& g) {
        g.buffers.push_back({"y", g.buffers[0].data, kBytes});
      },
      {"'y' of local rank 0 was lent two pieces"});

  Model model;
  Cluster cluster = Cluster::threads(1);
  CompileOptions options = model.options();
  adopt_cuda(options, {good, good});
  expect_error(ErrorKind::usage, {"[adopt_cuda]", "2 guests for 1 local ranks"},
               [&] { Session session(model.g, cluster, options); });
  CudaGuest of_thread;
  of_thread.stream = reinterpret_cast<CUstream_st*>(2);
  Cluster two = Cluster::threads(2);
  options.mesh = Mesh::parse("a:2");
  adopt_cuda(options, {of_thread, of_thread});
  expect_error(ErrorKind::usage,
               {"local rank 0 of 2 is lent cudaStreamPerThread", "cudaStreamCreate"},
               [&] { Session session(model.g, two, options); });
}

TEST_CASE("a function that has to wait is not enqueued, and says why", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Cluster cluster = Cluster::threads(1);
  const auto refused = [&](auto change, const std::vector<std::string>& words) {
    Graph g;
    Tensor x = g.input("x", {Dim("n", 3)}, DType::float32);
    Tensor loss = sum_all(x * x).named("loss");
    CompileOptions options{Mesh::parse("a:1"), {}, {{"step", {loss}, false}}};
    options.device = "cuda";
    change(g, loss, options);
    Session session(g, cluster, options);
    expect_error(ErrorKind::usage, words, [&] { session.enqueue("step"); });
    session.feed("x", Array(DType::float32, {"n"}, {3}));
    session.run("step");  // and nothing has changed
  };
  const std::string what = "[enqueue] 'step' has to wait for the GPU", remedy = "call run()";
  refused([](Graph&, Tensor, CompileOptions& o) { o.guards = {"loss"}; },
          {what, "guard 'loss'", "before anything is stored", remedy});
  refused([](Graph&, Tensor, CompileOptions& o) { o.profile = true; },
          {what, "a profile of every step", remedy});
  refused([](Graph&, Tensor loss, CompileOptions&) { check_finite(loss); },
          {what, "check_finite() reads its tensor", "guest_test.cpp", remedy});
  refused(
      [](Graph&, Tensor loss, CompileOptions& o) {
        print(loss);
        o.print = [](const std::string&) {};
      },
      {what, "print() reads its tensor", remedy});
}

TEST_CASE("a stream that is captured takes no step; bad data is told by the next wait", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  Program program(gpu);
  Cluster cluster = Cluster::threads(1);
  Graph g;
  Tensor table = g.parameter("table", {Dim("rows", 4)}, nn::zeros());
  Tensor at = g.input("at", {Dim("n", 3)}, DType::int32);
  Tensor picked = gather(table, at, "rows", OutOfRange::error).named("picked");
  CompileOptions options{Mesh::parse("a:1"), {}, {{"step", {picked}, false}}};
  CudaGuest guest;
  guest.stream = reinterpret_cast<CUstream_st*>(program.stream);
  adopt_cuda(options, {guest});
  Session session(g, cluster, options);
  Array indices(DType::int32, {"n"}, {3});
  session.feed("at", indices);
  session.enqueue("step");
  session.wait();
  indices.data<int32_t>()[2] = 9;
  session.feed("at", indices);
  session.enqueue("step");
  expect_error(ErrorKind::usage, {"index 9", "outside [0, 4)"}, [&] { session.wait(); });
  Session other(g, cluster, options);
  other.feed("at", Array(DType::int32, {"n"}, {3}));
  other.wait();
  gpu.contexts().use(0);
  gpu.graphs().begin_capture(program.stream);
  expect_error(ErrorKind::usage,
               {"[adopt_cuda] the stream lent to rank 0 on cuda:0 is being captured",
                "end the capture before"},
               [&] { other.enqueue("step"); });
  gpu.graphs().release(gpu.graphs().end_capture(program.stream));
}

TEST_CASE("enqueue() on the CPU is run()", "[cuda]") {
  Model model;
  Cluster cluster = Cluster::threads(1);
  Session session(model.g, cluster, model.options());
  session.feed("x", Array(DType::float32, {"rows", "columns"}, {kRows, kColumns}));
  session.enqueue("step");
  session.enqueue("step");
  session.wait();
  CHECK(session.fetch("y").at(0) == 1);
}

TEST_CASE("matmuls of float32 are rounded to tf32 where that is chosen", "[cuda]") {
  for (bool tf32 : {false, true}) {
    CudaEmulator gpu;
    const WithEmulator here(gpu);
    Cluster cluster = Cluster::threads(1);
    Graph g;
    Tensor a = g.input("a", {Dim("m", 4), Dim("k", 8)}, DType::float32);
    Tensor b = g.input("b", {Dim("k", 8), Dim("n", 4)}, DType::float32);
    CompileOptions options{
        Mesh::parse("x:1"),
        {},
        {{"run", {einsum({a, b}, {Dim("m", 4), Dim("n", 4)}).named("c")}, false}}};
    options.device = "cuda";
    options.tf32 = tf32;
    Session session(g, cluster, options);
    CHECK(gpu.tf32_matmuls == (tf32 ? 1 : 0));
  }
}

TEST_CASE("a profiler sees each step with its line, and nothing is named without one", "[cuda]") {
  for (bool profiled : {false, true}) {
    CudaEmulator gpu;
    gpu.profiled = profiled;
    const WithEmulator here(gpu);
    Model model;
    Cluster cluster = Cluster::threads(1);
    CompileOptions options = model.options();
    options.device = "cuda";
    Session session(model.g, cluster, options);
    session.feed("x", Array(DType::float32, {"rows", "columns"}, {kRows, kColumns}));
    for (int again = 0; again < 3; ++again) session.run("step");
    CHECK(gpu.open_ranges == 0);
    CHECK(gpu.shown.empty() == !profiled);
    bool step = false;
    for (const auto& [depth, text] : gpu.shown)
      step = step || text.find("(guest_test.cpp:") != std::string::npos;
    CHECK(step == profiled);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
