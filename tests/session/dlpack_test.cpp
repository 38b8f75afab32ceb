// Buffers across DLPack: nothing is lost, copied needlessly or freed twice.
#include "tessera/interop/dlpack.h"

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

const std::vector<DType> kTypes = {DType::float32, DType::float64, DType::bfloat16, DType::int32,
                                   DType::int64,   DType::uint8,   DType::bool_,    DType::float16};

/// A copy of x [rows, cols], as one session of four ranks on a 2x2 mesh sees it.
struct Copy {
  explicit Copy(DType dtype, int64_t rows = 3, int64_t cols = 5) {
    Tensor x = graph.input("x", {Dim("rows", rows), Dim("cols", cols)}, dtype);
    Tensor y = identity(x).named("y");
    session = std::make_shared<Session>(
        graph, cluster,
        CompileOptions{
            Mesh::parse("a:2;b:2"), Layout::parse("rows:a;cols:b"), {{"run", {y}, false}}});
  }
  Array run() {
    session->run("run");
    return session->fetch("y");
  }
  Graph graph;
  Cluster cluster = Cluster::threads(4);
  std::shared_ptr<Session> session;
};

/// A tensor of someone else's, which counts how often it is let go.
struct Foreign {
  Foreign(std::vector<float> values, std::vector<int64_t> sizes, std::vector<int64_t> steps)
      : data(std::move(values)), shape(std::move(sizes)), strides(std::move(steps)) {
    capsule.dl_tensor = {data.data(),
                         {kDLCPU, 0},
                         static_cast<int32_t>(shape.size()),
                         {kDLFloat, 32, 1},
                         shape.data(),
                         strides.empty() ? nullptr : strides.data(),
                         0};
    capsule.manager_ctx = this;
    capsule.deleter = [](DLManagedTensor* c) { ++static_cast<Foreign*>(c->manager_ctx)->released; };
  }
  std::vector<float> data;
  std::vector<int64_t> shape, strides;
  DLManagedTensor capsule = {};
  int released = 0;
};

TEST_CASE("arrays go through DLPack and back in every type", "[dlpack][fast]") {
  for (DType dtype : kTypes) {
    INFO(to_string(dtype));
    Array x(dtype, {"rows", "cols"}, {3, 5});
    for (size_t i = 0; i < x.bytes.size(); ++i)
      x.bytes[i] = std::byte(dtype == DType::bool_ ? i % 2 : i % 60);
    const std::vector<std::byte> bytes = x.bytes;
    const void* address = x.bytes.data();
    DLManagedTensor* capsule = to_dlpack(std::move(x));
    CHECK(capsule->dl_tensor.data == address);
    CHECK(capsule->dl_tensor.dtype.bits == 8 * size_of(dtype));
    CHECK(from_dlpack(capsule->dl_tensor).dtype == dtype);
    CHECK(from_dlpack(capsule->dl_tensor).strides == std::vector<int64_t>{5, 1});
    Copy copy(dtype);
    feed_dlpack(*copy.session, "x", capsule);
    CHECK(copy.run().bytes == bytes);
  }
}

TEST_CASE("a tensor is fed in place whatever its strides", "[dlpack][fast]") {
  std::vector<float> data(40);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  struct Case {
    std::vector<int64_t> strides;
    int64_t first;
  };
  for (const Case& c : {Case{{}, 0}, Case{{5, 1}, 2}, Case{{1, 3}, 0}, Case{{10, 2}, 1},
                        Case{{-5, 1}, 10}, Case{{1, -3}, 12}, Case{{0, 1}, 4}}) {
    Foreign foreign(data, {3, 5}, c.strides);
    foreign.capsule.dl_tensor.byte_offset = static_cast<uint64_t>(c.first) * sizeof(float);
    Copy copy(DType::float32);
    feed_dlpack(*copy.session, "x", &foreign.capsule);
    CHECK(foreign.released == 1);
    const Array y = copy.run();
    for (int64_t i = 0; i < 15; ++i) {
      const int64_t down = c.strides.empty() ? 5 : c.strides[0];
      const int64_t along = c.strides.empty() ? 1 : c.strides[1];
      INFO("strides " << down << ", " << along << ", element " << i);
      CHECK(y.at(i) == static_cast<double>(c.first + i / 5 * down + i % 5 * along));
    }
  }
}

TEST_CASE("versioned capsules are fed and let go, too", "[dlpack][fast]") {
  Foreign foreign({1, 2, 3, 4, 5, 6}, {2, 3}, {});
  DLManagedTensorVersioned capsule = {};
  capsule.version = {1, 0};
  capsule.dl_tensor = foreign.capsule.dl_tensor;
  capsule.manager_ctx = &foreign;
  capsule.deleter = [](DLManagedTensorVersioned* c) {
    ++static_cast<Foreign*>(c->manager_ctx)->released;
  };
  Copy copy(DType::float32, 2, 3);
  feed_dlpack(*copy.session, "x", &capsule);
  CHECK(foreign.released == 1);
  CHECK(copy.run().at(4) == 5);
}

TEST_CASE("slices are shown in place, and keep their Session", "[dlpack][fast]") {
  Copy copy(DType::float32);
  Foreign foreign(std::vector<float>(15, 2.5f), {3, 5}, {});
  feed_dlpack(*copy.session, "x", &foreign.capsule);
  const Slice slice =
      copy.session->slices("x").back();  // rows 2 .. 3 and cols 3 .. 5: one is padding
  const std::weak_ptr<Session> session = copy.session;
  DLManagedTensor* capsule = to_dlpack(slice, copy.session);
  copy.session.reset();
  CHECK(!session.expired());
  const DLTensor& t = capsule->dl_tensor;
  CHECK(t.data == slice.data);
  CHECK(std::vector<int64_t>(t.shape, t.shape + t.ndim) == std::vector<int64_t>{1, 2});
  CHECK(std::vector<int64_t>(t.strides, t.strides + t.ndim) == std::vector<int64_t>{3, 1});
  CHECK(static_cast<float*>(t.data)[t.strides[1]] == 2.5f);
  capsule->deleter(capsule);
  CHECK(session.expired());
}

TEST_CASE("parameters are assigned in place, and from their own memory", "[dlpack][fast]") {
  Graph g;
  Tensor w = g.parameter("w", {Dim("rows", 3), Dim("cols", 3)}, nn::zeros());
  Tensor x = g.input("x", {Dim("rows", 3), Dim("cols", 3)}, DType::float32);
  Tensor y = identity(x).named("y");
  std::vector<float> data(9);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  for (const char* mesh : {"a:1", "a:2"}) {
    INFO(mesh);
    Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, cluster,
                    {Mesh::parse(mesh), Layout::parse("rows:a"), {{"run", {w, y}, false}}});
    const auto holds = [&](const char* name, int64_t first, int64_t down, int64_t along) {
      const Array whole = session.fetch(name);
      for (int64_t i = 0; i < 9; ++i) {
        INFO(name << ", element " << i);
        CHECK(whole.at(i) == static_cast<double>(first + i / 3 * down + i % 3 * along));
      }
    };
    session.assign("w", ArrayView{&data[6], DType::float32, {3, 3}, {-3, 1}});
    holds("w", 6, -3, 1);
    session.assign("w", ArrayView{data.data(), DType::float32, {3, 3}, {}});
    holds("w", 0, 3, 1);
    session.feed("x", ArrayView{data.data(), DType::float32, {3, 3}, {}});
    if (cluster.size() == 2) continue;
    // What is read here is what is written.
    auto* mine = static_cast<float*>(session.slices("w")[0].data);
    session.assign("w", ArrayView{mine, DType::float32, {3, 3}, {1, 3}});
    holds("w", 0, 1, 3);
    session.assign("w", ArrayView{mine + 6, DType::float32, {3, 3}, {-3, 1}});
    holds("w", 2, -1, 3);
    mine = static_cast<float*>(session.slices("x")[0].data);
    session.feed("x", ArrayView{mine, DType::float32, {3, 3}, {}});
    session.run("run");
    holds("y", 0, 3, 1);
  }
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh::parse("a:1"), {}, {{"run", {w, y}, false}}});
  expect_usage({"[assign]", "'w' has the sizes [3, 3]", "but the array has [9]"}, [&] {
    session.assign("w", ArrayView{data.data(), DType::float32, {9}, {}});
  });
  expect_usage({"[assign]", "no parameter or state 'v'", "known: w"}, [&] {
    session.assign("v", ArrayView{data.data(), DType::float32, {3, 3}, {}});
  });
}

TEST_CASE("what cannot be read is refused, and let go once", "[dlpack][errors][fast]") {
  Copy copy(DType::float32);
  int released = 0;
  const auto feed = [&](auto change) {
    Foreign foreign(std::vector<float>(15), {3, 5}, {});
    change(foreign);
    try {
      feed_dlpack(*copy.session, "x", &foreign.capsule);
    } catch (...) {
      released += foreign.released;
      throw;
    }
  };
  expect_error(ErrorKind::unsupported,
               {"[from_dlpack]", "device 1 of type 2", "copy it to host memory"}, [&] {
                 feed([](Foreign& f) { f.capsule.dl_tensor.device = {kDLCUDA, 1}; });
               });
  expect_error(ErrorKind::unsupported,
               {"[from_dlpack]", "type code 2 with 8 bits and 1 lanes", "float32"},
               [&] { feed([](Foreign& f) { f.capsule.dl_tensor.dtype.bits = 8; }); });
  expect_usage({"'x' has the sizes [3, 5]", "but the array has [5, 3]"},
               [&] { feed([](Foreign& f) { std::swap(f.shape[0], f.shape[1]); }); });
  expect_usage({"'x' is float32 but the array is int32"},
               [&] { feed([](Foreign& f) { f.capsule.dl_tensor.dtype.code = kDLInt; }); });
  expect_usage({"the view for 'x' has no data"},
               [&] { feed([](Foreign& f) { f.capsule.dl_tensor.data = nullptr; }); });
  expect_usage({"[from_dlpack]", "ndim -1", "0 or more"},
               [&] { feed([](Foreign& f) { f.capsule.dl_tensor.ndim = -1; }); });
  expect_usage({"[from_dlpack]", "ndim 2", "shape is NULL"},
               [&] { feed([](Foreign& f) { f.capsule.dl_tensor.shape = nullptr; }); });
  CHECK(released == 7);
  const float one = 1;
  expect_usage({"'x' has 2 dims but the view has 1 strides", "none for row-major"}, [&] {
    copy.session->feed("x", ArrayView{&one, DType::float32, {3, 5}, {1}});
  });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
