// Checkpoints and batches of real Sessions: what one mesh and layout writes, any other reads.
#include "tessera/checkpoint.h"

#include "support/io_folder.h"
#include "tessera/data.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::Folder;

namespace TESSERA_FILE {

/// A small gpt with Adam: parameters, two pieces of state each, sizes that do not divide.
struct Trained {
  Graph g;
  nn::Model model;
  Cluster ranks;
  std::unique_ptr<Session> session;

  Trained(const std::string& mesh, const std::string& layout, uint64_t seed, int64_t ff = 10)
      : ranks(Cluster::threads(Mesh::parse(mesh).size())) {
    nn::GptOptions o;
    o.layers = 1;
    o.d_model = 6;
    o.heads = 3;
    o.ff = ff;
    o.length = 5;
    o.vocab = 11;
    o.batch = 4;
    model = nn::gpt(g, o);
    minimize(model.loss, constant(g, 0.05), adam());
    session =
        std::make_unique<Session>(g, ranks,
                                  CompileOptions{Mesh::parse(mesh),
                                                 Layout::parse(layout),
                                                 {{"train", {model.loss.named("loss")}, true}},
                                                 seed});
  }
  double step() {
    for (const char* name : {"inputs", "targets"}) {
      Array tokens(DType::int32, {"batch", "length"}, {4, 5});
      for (int i = 0; i < 20; ++i) {
        const int64_t at = session->step() * 3 + i + (name[0] == 't' ? 1 : 0);
        tokens.data<int32_t>()[i] = static_cast<int32_t>(at * at % 11);
      }
      session->feed(name, tokens);
    }
    session->run("train");
    return session->fetch_scalar("loss");
  }
};

void check_equal(Session& a, Session& b) {
  REQUIRE(a.program().stored_names() == b.program().stored_names());
  for (const std::string& name : a.program().stored_names()) {
    INFO(name);
    const Array x = a.fetch(name), y = b.fetch(name);
    CHECK(x.dims == y.dims);
    CHECK(x.sizes == y.sizes);
    CHECK(x.bytes == y.bytes);
  }
}

const std::vector<std::pair<const char*, const char*>> kLayouts = {
    {"one:1", ""},
    {"data:2", "batch:data"},
    {"data:2;model:2", "batch:data;heads,ff,vocab:model"},
    {"a:3", "d_model:a;@state ff:a"},
    {"a:3;b:2", "ff,vocab:a+b;d_head:a"},
    {"data:4", "batch:data;@params d_model:data"}};

/// Data whose element says where it is from: values [example * 100 + 10 * row + col].
class Grid : public DataSource {
 public:
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return 10; }
  void read(int64_t example, int, const DataBox& box) const override {
    for (int64_t r = 0; r < box.extent[0]; ++r) {
      for (int64_t c = 0; c < box.extent[1]; ++c) {
        static_cast<float*>(box.data)[r * box.strides[0] + c * box.strides[1]] =
            static_cast<float>(example * 100 + (box.offset[0] + r) * 10 + box.offset[1] + c);
      }
    }
  }

 private:
  std::vector<DataField> fields_ = {{"x", DType::float32, {Dim("rows", 5), Dim("cols", 3)}}};
};

/// The message of feeding `shape` from the grid, or "".
std::string feeding(const Shape& shape, DType dtype, int64_t batch,
                    const std::string& layout = "") {
  Graph g;
  Tensor x = g.input("x", shape, dtype);
  Cluster ranks = Cluster::threads(2);
  Session s(g, ranks, {Mesh::parse("a:2"), Layout::parse(layout), {{"run", {sum_all(x)}, false}}});
  const Grid grid;
  const Batcher batches(grid, batch);
  try {
    batches.feed(s, 0);
  } catch (const Error& e) {
    return std::string(to_string(e.kind())) + " " + e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

TEST_CASE("checkpoint: saved under one layout, loaded under every other", "[checkpoint]") {
  const Folder f;
  for (size_t from = 0; from < kLayouts.size(); ++from) {
    Trained a(kLayouts[from].first, kLayouts[from].second, 7);
    for (int i = 0; i < 2; ++i) a.step();
    Checkpoint saved;
    {
      Checkpoints directory(a.ranks, f("ck" + std::to_string(from)));
      saved = directory.save(*a.session, 2, {{"note", "mine"}});
    }
    CHECK(saved.metadata.at("note") == "mine");
    for (const auto& [mesh, layout] : kLayouts) {
      INFO(kLayouts[from].second << " to " << layout);
      Trained b(mesh, layout, 8);
      CHECK(load_checkpoint(*b.session, saved.path).step == 2);
      CHECK(b.session->step() == 2);
      check_equal(*a.session, *b.session);
    }
  }
}

TEST_CASE("checkpoint: training goes on with the same bits", "[checkpoint]") {
  const Folder f;
  for (const auto& [mesh, layout] : kLayouts) {
    INFO(layout);
    Trained a(mesh, layout, 7), b(mesh, layout, 8);
    for (int i = 0; i < 3; ++i) a.step();
    Checkpoints directory(a.ranks, f(std::string("go") + mesh));
    load_checkpoint(*b.session, directory.save(*a.session, a.session->step()).path);
    for (int i = 0; i < 3; ++i) CHECK(a.step() == b.step());
    check_equal(*a.session, *b.session);
  }
}

TEST_CASE("checkpoint: the file of another model changes nothing", "[checkpoint]") {
  const Folder f;
  Trained a("one:1", "", 7), wide("data:2", "ff:data", 7, 12), before("data:2", "ff:data", 7, 12);
  Checkpoints directory(a.ranks, f("ck"));
  const std::string path = directory.save(*a.session, 1).path;
  const std::string text = f.error([&] { load_checkpoint(*wide.session, path); });
  has(text, "usage");
  has(text, "ff");
  check_equal(*wide.session, *before.session);
  // What fits can be loaded, and the rest keeps its values.
  const Checkpoint fitting = load_fitting(*wide.session, path);
  has(fitting.warning, " are loaded, the others start anew; different: ");
  CHECK(wide.session->step() == 1);
  int same = 0, kept = 0;
  for (const std::string& name : wide.session->program().stored_names()) {
    const bool fits = wide.session->shape_of(name).sizes == a.session->shape_of(name).sizes;
    const Array is = wide.session->fetch(name), want = (fits ? a : before).session->fetch(name);
    for (int64_t i = 0; i < is.elements(); ++i) CHECK(is.at(i) == want.at(i));
    (fits ? same : kept) += 1;
  }
  CHECK(same > 0);
  CHECK(kept > 0);
  Graph g;
  Cluster ranks = Cluster::threads(1);
  Session none(
      g, ranks,
      {Mesh::parse("one:1"), {}, {{"run", {g.parameter("v", {Dim("a", 3)}, nn::ones())}, false}}});
  has(f.error([&] { load_fitting(none, path); }),
      "is a checkpoint of another model; the file lacks v");
}

TEST_CASE("batches: every layout gets the same examples", "[checkpoint]") {
  const Grid grid;
  const Shape shape = {Dim("cols", 3), Dim("batch", 4), Dim("rows", 5)};  // in another order
  for (const char* layout : {"", "batch:a", "rows:a", "cols:a;batch:b", "rows:a+b", "batch:b+a"}) {
    INFO(layout);
    Graph g;
    Tensor x = g.input("x", shape, DType::float32);
    Cluster ranks = Cluster::threads(6);
    Session s(g, ranks,
              {Mesh::parse("a:3;b:2"), Layout::parse(layout), {{"run", {sum_all(x)}, false}}});
    BatchOptions options;
    options.seed = 3;
    const Batcher batches(grid, 4, options);
    for (int64_t step = 0; step < 4; ++step) {
      CHECK(batches.feed(s, step) == 4);
      const Array got = s.fetch("x");
      for (int64_t i = 0; i < got.elements(); ++i) {
        const int64_t rows = i % 5, batch = i / 5 % 4, cols = i / 20;
        CHECK(got.at(i) ==
              static_cast<double>(batches.example(step, batch) * 100 + rows * 10 + cols));
      }
    }
  }
}

TEST_CASE("batches: what a source throws names field and example", "[checkpoint]") {
  struct Burning : Grid {
    void read(int64_t, int, const DataBox&) const override {
      throw std::runtime_error("disk on fire");
    }
  };
  const Burning source;
  Graph g;
  Tensor x = g.input("x", {Dim("batch", 4), Dim("rows", 5), Dim("cols", 3)}, DType::float32);
  Cluster ranks = Cluster::threads(1);
  Session s(g, ranks, {Mesh::parse("a:1"), {}, {{"run", {sum_all(x)}, false}}});
  const Batcher batches(source, 4, {});
  const Folder f;
  const std::string number = std::to_string(batches.example(0, 0));
  CHECK(f.error([&] { batches.feed(s, 0); }) ==
        "io [data] the source could not read 'x' of example " + number + ": disk on fire");
}

TEST_CASE("batches: a shorter last batch of a bounded dim", "[checkpoint]") {
  const Grid grid;
  Graph g;
  Tensor x =
      g.input("x", {Dim::bounded("batch", 4), Dim("rows", 5), Dim("cols", 3)}, DType::float32);
  Tensor count = sum_all(constant(g, 1, DType::float32, {x.dim("batch")})).named("count");
  Tensor total = sum_all(x).named("total");
  Cluster ranks = Cluster::threads(3);
  Session s(g, ranks,
            {Mesh::parse("a:3"), Layout::parse("batch:a"), {{"run", {count, total}, false}}});
  BatchOptions options = BatchOptions::evaluation();
  options.bounded = true;
  const Batcher batches(grid, 4, options);
  REQUIRE(batches.steps() == 3);
  double sum = 0;
  for (int64_t step = 0; step < 3; ++step) {
    const int64_t rows = batches.feed(s, step);
    CHECK(rows == (step < 2 ? 4 : 2));
    s.run("run");
    CHECK(s.fetch_scalar("count") == static_cast<double>(rows));
    sum += s.fetch_scalar("total");
  }
  CHECK(sum == 15.0 * 100 * 45 + 10 * (15 * 20 + 15));
}

TEST_CASE("batches: inputs that do not fit the data", "[checkpoint]") {
  const Dim batch("batch", 4), rows("rows", 5), cols("cols", 3);
  CHECK(feeding({batch, rows, cols}, DType::float32, 4) == "");
  CHECK(feeding({batch, Dim("rows", 2), cols}, DType::float32, 4, "rows:a") == "");
  has(feeding({batch, rows, cols}, DType::int32, 4),
      "input 'x' is int32, but the data has float32");
  has(feeding({batch, rows}, DType::float32, 4), "not 'cols' of the data");
  has(feeding({rows, cols}, DType::float32, 4), "not 'batch'");
  has(feeding({batch, rows, cols, Dim("more", 2)}, DType::float32, 4), "more than the data");
  has(feeding({batch, Dim("rows", 6), cols}, DType::float32, 4), "reaches 6, but");
  has(feeding({batch, rows, cols}, DType::float32, 2), "reaches 4, but the batch has 2");
  has(feeding({batch, rows, cols}, DType::float32, 5), "but a batch has 5");
  has(feeding({batch, rows, cols}, DType::float32, 5, "batch:a"), "but a batch has 5");
}

TEST_CASE("checkpoint: a count of steps in float32, as older files have it, is read",
          "[checkpoint]") {
  const Folder folder;
  Cluster ranks = Cluster::threads(2);
  const auto session_of = [&](Graph& g, DType dtype) {
    const Tensor count = g.state(
        "optimizer.step", {},
        [](Graph& h, const Shape& shape, DType t) { return constant(h, 0, t, shape); }, dtype);
    return std::make_unique<Session>(
        g, ranks, CompileOptions{Mesh::parse("x:2"), Layout(), {{"f", {count + 0.0}}}});
  };
  Graph older, newer;
  const auto from = session_of(older, DType::float32), to = session_of(newer, DType::int64);
  from->assign("optimizer.step", Array::of<float>(Shape{}, {12345}));
  Checkpoints directory(ranks, folder("older"));
  load_checkpoint(*to, directory.save(*from, 12345).path);
  CHECK(to->fetch("optimizer.step").data<int64_t>()[0] == 12345);
}

}  // namespace TESSERA_FILE
