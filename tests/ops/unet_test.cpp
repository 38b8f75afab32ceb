// A U-Net whose space is cut over ranks is the U-Net on one: loss, every gradient, and what a step
// stores; and each rank needs its share of the memory, as planned.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "compile/lowering.h"
#include "lower/lower.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/program_run.h"
#include "support/reference.h"
#include "tessera/explain.h"
#include "tessera/nn.h"
#include "tessera/optim.h"
#include "tessera/session.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr const char* kOneRank = "one:1";

struct Built {
  Graph graph;
  nn::Model model;
  std::vector<Tensor> wanted;
};

void build(const nn::UnetOptions& options, Built& built) {
  built.model = nn::unet(built.graph, options);
  std::vector<Tensor> parameters = built.graph.parameters();
  built.wanted = gradients(built.model.loss, parameters);
  built.wanted.push_back(built.model.loss);
  built.wanted.push_back(built.model.logits);
}

/// `machine`: by whose prices to schedule; "" for none.
CompileOptions options_of(const Built& built, const std::string& mesh, const std::string& layout,
                          const std::string& machine = "") {
  CompileOptions options;
  if (!machine.empty()) options.machine = std::make_shared<const Machine>(Machine::load(machine));
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  options.functions = {{"step", built.wanted, true}};
  options.seed = 3;
  return options;
}

Array filled(const Tensor& t, int64_t below) {
  std::vector<int64_t> sizes;
  for (const Dim& d : t.shape()) sizes.push_back(d.size);
  Whole whole(t.shape().names(), sizes);
  for (int64_t i = 0; i < whole.elements(); ++i) {
    const auto n = static_cast<double>(i);
    whole.data[static_cast<size_t>(i)] =
        below > 0 ? static_cast<double>((i * i / 7 + i) % below) : std::sin(n * 0.37) + n * 1e-3;
  }
  return array_of(whole, t.dtype());
}

/// What one step gives: gradients, loss, logits, and the stored running statistics.
Wholes run(const nn::UnetOptions& unet, const std::string& mesh, const std::string& layout,
           const std::string& machine = "", int64_t strict_chunks = 0) {
  Built built;
  build(unet, built);
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  CompileOptions options = options_of(built, mesh, layout, machine);
  options.strict_chunks = strict_chunks;
  Session session(built.graph, cluster, options);
  session.feed("images", filled(built.model.inputs[0], 0));
  session.feed("labels", filled(built.model.inputs[1], unet.classes));
  session.run("step");
  Wholes values;
  for (const Tensor& t : built.wanted) values[t.name()] = whole_of(session.fetch(t.name()));
  for (const Update& u : built.graph.updates()) {
    const std::string& name = built.graph.value(u.stored).name;
    values[name] = whole_of(session.fetch(name));
  }
  return values;
}

nn::UnetOptions small(std::vector<Dim> spatial) {
  nn::UnetOptions o;
  o.filters = 2;
  o.levels = 2;
  o.convolutions = 2;
  o.spatial = std::move(spatial);
  o.dtype = DType::float64;
  return o;
}

void compare(const nn::UnetOptions& o, const std::string& mesh, const std::string& layout,
             const std::string& machine = "") {
  const Wholes whole = run(o, kOneRank, ""), split = run(o, mesh, layout, machine);
  INFO(mesh << " " << layout);
  REQUIRE(whole.size() == split.size());
  REQUIRE(whole.size() >= 20);
  double largest = 0;
  for (const auto& [name, value] : whole) largest = std::max(largest, std::abs(value.data[0]));
  for (const auto& [name, value] : whole) {
    INFO(name);
    CHECK(relative_error(split.at(name), value, 1e-6 * largest) < 1e-5);
  }
  if (!machine.empty()) return;
  constexpr int64_t kChunks = 4;
  const Wholes strict = run(o, kOneRank, "", "", kChunks),
               split_strictly = run(o, mesh, layout, "", kChunks);
  for (const auto& [name, value] : strict) {
    INFO(name << ", strict numerics");
    CHECK(split_strictly.at(name).data == value.data);
    CHECK(relative_error(value, whole.at(name), 1e-6 * largest) < 1e-5);
  }
}

TEST_CASE("a U-Net in three dims, height and depth split, is the whole one", "[unet]") {
  const nn::UnetOptions o = small({{"depth", 4}, {"height", 8}, {"width", 4}});
  compare(o, "rows:2;cols:2", "height:rows;depth:cols");
}

TEST_CASE("a U-Net in two dims is the same under every split of space", "[unet]") {
  nn::UnetOptions o = small({{"height", 8}, {"width", 8}});
  o.batch = 2;
  o.channels = 2;
  for (const char* layout : {"height:rows;width:cols", "height:rows+cols", "width:cols;batch:rows",
                             "height:rows;filters:cols", "@params filters2:rows;height:cols"})
    compare(o, "rows:2;cols:2", layout);
}

TEST_CASE("uneven levels of a U-Net split exactly", "[unet]") {
  nn::UnetOptions o = small({{"height", 6}, {"width", 4}});
  compare(o, "rows:4", "height:rows");
  o.convolutions = 1;
  compare(o, "rows:3", "height:rows");
}

TEST_CASE("a U-Net whose waits are filled is the whole one", "[unet][overlap]") {
  nn::UnetOptions o = small({{"height", 8}, {"width", 8}});
  o.batch = 4;
  for (const char* layout : {"batch:rows+cols", "height:rows;width:cols", "batch:rows;filters:cols",
                             "batch:rows+cols;@/*moments*/ batch:-"})
    compare(o, "rows:2;cols:2", layout, "h100");
}

TEST_CASE("a batch norm waits once for other ranks forward, and once backward", "[unet]") {
  Graph g;
  const Dim batch("batch", 64), in("in", 8), out("out", 8);
  const Tensor w = g.parameter("w", {in, out}, nn::zeros());
  const Tensor y = nn::batch_norm(
      einsum({g.input("x", {batch, in}, DType::float32), w}, {batch, out}), "n", "out");
  const std::vector<Tensor> parameters = g.parameters();
  CompileOptions options;
  options.mesh = Mesh::parse("a:4");
  options.layout = Layout::parse("batch:a");
  LowerOptions lowering =
      lowering_of(options, {{"step", gradients(sum_all(y * y * y), parameters), true}});
  lowering.init = false;
  const Program program = lower(g, lowering);
  const std::vector<Step>& steps = program.functions[0].steps;
  const auto waits = std::count_if(steps.begin(), steps.end(),
                                   [](const Step& step) { return step.kind == StepKind::wait; });
  INFO(to_string(program));
  CHECK(waits == 3);  // moments, both sums of backward, the weight's gradient
}

TEST_CASE("a batch norm of float32 stands a mean of 1000 deviations", "[unet]") {
  const Dim batch("batch", 8), height("height", 64), out("out", 3);
  const int64_t rows = batch.size * height.size, channels = out.size;
  std::vector<float> x;
  for (int64_t i = 0; i < rows * channels; ++i)
    x.push_back(static_cast<float>(1000 + std::sin(0.7 * static_cast<double>(i * i % 4099))));
  const auto at = [&](int64_t row, int64_t c) {
    return static_cast<double>(x[static_cast<size_t>(row * channels + c)]);
  };
  for (const char* layout : {"", "batch:a", "height:a", "batch:a;@/*moments*/ batch:-"}) {
    INFO(layout);
    Graph g;
    const Tensor in = g.input("x", {batch, height, out}, DType::float32);
    const Tensor y = nn::batch_norm(in, "n", "out", {.momentum = 0, .eps = 0}).named("y");
    CompileOptions options;
    options.mesh = Mesh::parse("a:4");
    options.layout = Layout::parse(layout);
    options.functions = {{"step", {y}, true}};
    Cluster cluster = Cluster::threads(4);
    Session session(g, cluster, options);
    session.feed("x", Array::of<float>(in.shape(), x));
    session.run("step");
    const Whole got = whole_of(session.fetch("y")), means = whole_of(session.fetch("n.mean")),
                variances = whole_of(session.fetch("n.variance"));
    for (int64_t c = 0; c < channels; ++c) {
      const auto n = static_cast<double>(rows);
      double mean = 0, variance = 0, most = 0;
      for (int64_t r = 0; r < rows; ++r) mean += at(r, c) / n;
      for (int64_t r = 0; r < rows; ++r) variance += std::pow(at(r, c) - mean, 2) / n;
      CHECK(std::abs(means.data[static_cast<size_t>(c)] - mean) < 2e-4);
      CHECK(std::abs(variances.data[static_cast<size_t>(c)] / variance - 1) < 1e-5);
      for (int64_t r = 0; r < rows; ++r) {
        const double error = got.data[static_cast<size_t>(r * channels + c)] -
                             (at(r, c) - mean) / std::sqrt(variance);
        most = std::max(most, std::abs(error));
      }
      CHECK(most < 2e-4);
    }
  }
}

TEST_CASE("no gradient of a filter delays what a batch norm waits for", "[unet][overlap]") {
  nn::UnetOptions o;
  o.batch = 512;
  o.spatial = {{"height", 256}, {"width", 256}};
  Built built;
  build(o, built);
  CompileOptions options = options_of(built, "a:8;b:8", "batch:a+b", "h100");
  options.device = "cuda";
  LowerOptions lowering = lowering_of(options, options.functions);
  lowering.init = false;
  std::map<int, std::pair<bool, bool>> buckets;  // has the gradient of a filter, of a norm
  const Program program = lower(built.graph, lowering);
  for (const Step& step : program.functions[0].steps) {
    if (step.kind != StepKind::collective) continue;
    auto& [filter, norm] = buckets[step.number];
    filter |= step.origin.name.find(".conv.grad.") != std::string::npos;
    norm |= step.origin.name.find("norm.") != std::string::npos;
  }
  int filters = 0, norms = 0;
  for (const auto& [number, has] : buckets) {
    filters += has.first, norms += has.second;
    CHECK_FALSE((has.first && has.second));
  }
  CHECK(filters >= 1);
  CHECK(norms == 4 * 7);  // forward and backward of two in each block
}

TEST_CASE("waits for a batch norm's sums are filled where that is faster", "[unet][overlap]") {
  nn::UnetOptions o;
  o.batch = 64;
  o.spatial = {{"height", 256}, {"width", 256}};
  o.filters = 32;
  Built built;
  build(o, built);
  CompileOptions options = options_of(built, "a:8", "batch:a", "h100");
  options.device = "cuda";
  LowerOptions lowering = lowering_of(options, options.functions);
  lowering.init = false;
  const auto seconds = lowering.seconds;
  const double filled = seconds(lower(built.graph, lowering));
  lowering.seconds = {};
  const double idle = seconds(lower(built.graph, lowering));
  INFO(filled << " s, or " << idle);
  CHECK(filled < 0.98 * idle);
}

TEST_CASE("a rank of a split U-Net needs its share of memory", "[unet]") {
  nn::UnetOptions o;
  o.filters = 8;
  o.levels = 3;
  o.spatial = {{"depth", 16}, {"height", 32}, {"width", 16}};
  Built built;
  build(o, built);
  const Explanation whole = explain(built.graph, options_of(built, kOneRank, "")),
                    split = explain(built.graph,
                                    options_of(built, "rows:2;cols:2", "height:rows;depth:cols"));
  const double share =
      static_cast<double>(split.memory.transient) / static_cast<double>(whole.memory.transient);
  INFO(to_string(split));
  CHECK(share < 0.36);  // a quarter, and the halos
  for (const CollectiveReport& c : split.functions.back().collectives) {
    INFO(c.tensor << " " << c.kind << " " << c.rule);
    CHECK(c.kind != "all_gather");
    CHECK(c.rule != "");
  }
}

TEST_CASE("a U-Net in evaluation uses the running statistics", "[unet]") {
  nn::UnetOptions o = small({{"height", 4}, {"width", 4}});
  o.training = false;
  Built built;
  build(o, built);
  CHECK(built.graph.updates().empty());
}

TEST_CASE("what is no U-Net is said", "[unet]") {
  auto fails = [](const std::vector<std::string>& parts, auto change) {
    nn::UnetOptions o;
    change(o);
    Graph g;
    expect_usage(parts, [&] { nn::unet(g, o); });
  };
  fails({"[unet] 1 spatial dims; there are two or three"},
        [](nn::UnetOptions& o) { o.spatial.pop_back(); });
  fails({"[unet] 0 levels of 2 convolutions with 32 filters; each is at least 1"},
        [](nn::UnetOptions& o) { o.levels = 0; });
  fails({"[unet] 3 class weights for 4 classes"}, [](nn::UnetOptions& o) { o.classes = 4; });
  fails({"[unet] dim 'height' of size 12 cannot be halved 3 times; take a multiple of 8"},
        [](nn::UnetOptions& o) { o.spatial[0] = Dim("height", 12); });
}

TEST_CASE("a batch norm's running statistics are in the order of its channels", "[unet]") {
  const Dim rows("rows", 2), cols("cols", 3), ch("ch", 4);
  for (const std::vector<std::string>& channels :
       {std::vector<std::string>{"cols", "ch"}, {"ch", "cols"}}) {
    for (const char* layout : {"", "rows:a", "cols:a", "ch:a"}) {
      INFO(fmt::format("{}", fmt::join(channels, ",")) << " under '" << layout << "'");
      Graph g;
      const Tensor x = g.input("x", {rows, cols, ch}, DType::float32);
      const Tensor y = nn::batch_norm(x, "n", channels, {.momentum = 0});
      Cluster ranks = Cluster::threads(2);
      Session session(g, ranks, {Mesh::parse("a:2"), Layout::parse(layout), {{"f", {y}, true}}});
      Whole in({"rows", "cols", "ch"}, {2, 3, 4});
      for (size_t i = 0; i < in.data.size(); ++i) in.data[i] = std::sin(static_cast<double>(i * i));
      session.feed("x", array_of(in, DType::float32));
      session.run("f");
      const Whole mean = whole_of(session.fetch("n.mean"));
      CHECK(mean.dims == channels);
      const std::vector<int64_t> steps = mean.strides_over({"cols", "ch"});
      for (int64_t i = 0; i < 12; ++i) {
        const auto at = static_cast<size_t>(i);
        CHECK(mean.data[static_cast<size_t>(dot({i / 4, i % 4}, steps))] ==
              Approx((in.data[at] + in.data[at + 12]) / 2).margin(1e-6));
      }
    }
  }
}

/// Batch norm over all dims but `channels`, with statistics of its own, by plain ops.
Tensor written_out(const Tensor& x, const Axes& channels, const Tensor& scale, const Tensor& bias,
                   double eps) {
  const Axes others(x.shape().without(channels.names()).names());
  const Tensor mean = reduce_mean(x, others), centered = x - mean;
  return centered * rsqrt(reduce_mean(square(centered), others) + eps) * scale + bias;
}

TEST_CASE("a batch norm's gradients have gradients, and so have its statistics", "[unet]") {
  const Dim batch("batch", 6), place("place", 3), a("a", 2), b("b", 4);
  for (const std::vector<std::string>& channels :
       {std::vector<std::string>{"a"}, {"a", "b"}, {"b", "a"}, {"place", "b"}}) {
    for (const char* layout : {"", "batch:x", "a:x"}) {
      INFO(fmt::format("{}", fmt::join(channels, ",")) << " under '" << layout << "'");
      Graph g;
      const Tensor x = g.input("x", {batch, a, place, b}, DType::float64);
      std::vector<Dim> own;
      for (const std::string& dim : channels) own.push_back(x.dim(dim));
      const Tensor scale = g.parameter("scale", Shape(own), nn::normal(1), DType::float64),
                   bias = g.parameter("bias", Shape(own), nn::normal(1), DType::float64);
      const Axes others(x.shape().without(channels).names());
      std::vector<Tensor> fetched;
      const auto penalty = [&](const Tensor& y) {
        const std::vector<Tensor> first = gradients(sum_all(y * y * y), {x, scale});
        const Tensor loss = sum_all(square(first[0])) + sum_all(square(first[1]));
        std::vector<Tensor> second = gradients(loss, {x, scale, bias});
        second.push_back(loss);
        fetched.insert(fetched.end(), second.begin(), second.end());
      };
      penalty(batch_normed(x, scale, bias, others, 1e-3).y);
      penalty(written_out(x, channels, scale, bias, 1e-3));
      const auto of_statistics = [&](const Tensor& mean, const Tensor& variance) {
        fetched.push_back(gradients(sum_all(mean * scale) + sum_all(variance * bias), {x})[0]);
      };
      const BatchNormed normed = batch_normed(x, scale, bias, others, 1e-3);
      CHECK(normed.mean.shape() == Shape(own));
      of_statistics(normed.mean, normed.variance);
      const Tensor mean = reduce_mean(x, others);
      of_statistics(mean, reduce_mean(square(x - mean), others));
      Cluster ranks = Cluster::threads(2);
      Session session(g, ranks, {Mesh::parse("x:2"), Layout::parse(layout), {{"f", fetched}}});
      Whole values({"batch", "a", "place", "b"}, {6, 2, 3, 4});
      for (size_t i = 0; i < values.data.size(); ++i)
        values.data[i] = std::sin(1.3 * static_cast<double>(i * i % 101));
      session.feed("x", array_of(values, DType::float64));
      session.run("f");
      const auto same = [&](size_t i, size_t j) {
        CHECK(relative_error(whole_of(session.fetch(fetched[i].name())),
                             whole_of(session.fetch(fetched[j].name()))) < 1e-9);
      };
      for (size_t i = 0; i < 4; ++i) same(i, i + 4);
      same(8, 9);
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
