// A mixture of experts split over ranks: what its Program sends, and that it is the whole one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/catch.h"
#include "support/counted_world.h"
#include "support/expect_error.h"
#include "support/fed_experts.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using nn::Gating, nn::MoeOptions, nn::Overflow, nn::RoutingOptions;
using Types = std::vector<ValueType>;

struct Layer {
  Graph graph;
  Tensor loss, dropped;
  std::vector<Tensor> gradients;
};

/// A pre-norm transformer layer whose feed-forward part is a mixture of experts, and its gradients.
void build(Layer& layer, const MoeOptions& moe, int64_t batch_size = 8) {
  Graph& g = layer.graph;
  const Dim batch("batch", batch_size), length("length", 6), model("d_model", 8);
  Tensor x = g.input("x", {batch, length, model}, DType::float64);
  nn::MultiHeadOptions attention;
  attention.heads = 2;
  attention.d_head = 4;
  attention.attention.causal = true;
  Tensor h =
      x + nn::self_attention(nn::norm(x, "norm1", "d_model"), "attention", "d_model", attention);
  const nn::Moe mixed = nn::moe(nn::norm(h, "norm2", "d_model"), "moe", "d_model", moe);
  layer.dropped = mixed.routing.dropped.named("dropped");
  layer.loss = (mean_all(square(h + mixed.y - 1.0)) + mixed.loss).named("loss");
  layer.gradients = minimize(layer.loss, constant(g, 0.02, DType::float64), adam()).gradients;
}

CompileOptions options_of(const Layer& layer, const std::string& mesh, const std::string& layout) {
  std::vector<Tensor> outputs = layer.gradients;
  outputs.push_back(layer.loss);
  outputs.push_back(layer.dropped);
  return {Mesh::parse(mesh), Layout::parse(layout), {{"train", outputs, true}}};
}

using Values = std::map<std::string, Array>;

/// Two steps: the loss, what was dropped, every gradient and every parameter after them.
Values train(const MoeOptions& moe, const std::string& mesh, const std::string& layout,
             int64_t capacity = 0) {
  Layer layer;
  build(layer, moe);
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  Session session(layer.graph, cluster, options_of(layer, mesh, layout));
  Array x(DType::float64, {"batch", "length", "d_model"}, {8, 6, 8});
  for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = std::sin(0.37 * i * i);
  Values values;
  for (int step = 0; step < 2; ++step) {
    if (capacity > 0) session.set_size("capacity", capacity);
    session.feed("x", x);
    session.run("train");
  }
  values["loss"] = session.fetch("loss");
  values["dropped"] = session.fetch("dropped");
  for (const Tensor& t : layer.gradients) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

void check_equal(const Values& want, const Values& got) {
  REQUIRE(want.size() == got.size());
  for (const auto& [name, value] : want) {
    for (int64_t i = 0; i < value.elements(); ++i) {
      INFO(name << " element " << i);
      REQUIRE(got.at(name).at(i) == Approx(value.at(i)).epsilon(1e-9).margin(1e-9));
    }
  }
}

MoeOptions four_experts() {
  MoeOptions o;
  o.experts = Dim("experts", 4);
  o.hidden = Dim("ff", 12);
  o.routing.least_capacity = 1;
  o.dropless = false;
  return o;
}

/// The same without a capacity, with gated experts.
MoeOptions dropless() {
  MoeOptions o = four_experts();
  o.dropless = true;
  o.expert.activations = {"silu", "linear"};
  return o;
}

struct Mapping {
  const char *mesh, *layout;
};
const Mapping kMappings[] = {{"x:4", "batch,experts:x"},
                             {"x:2;y:2", "batch,experts:x;ff,heads:y"},
                             {"x:2;y:2", "batch:x;experts:y"},
                             {"x:2;y:2", "batch:x+y;experts:y"},
                             {"x:2;y:2", "batch,experts:x+y"},
                             {"x:2;y:2", "batch:x;experts:x+y"},
                             {"x:3", "length,experts:x"},
                             {"x:2;y:2", "batch:x;ff:y"},
                             {"x:2;y:2", "batch,experts:x;d_model:y"},
                             {"x:2;y:2", "batch,experts:x;@params d_model:y"},
                             {"x:2;y:2", "batch:x;length:y;experts:x+y"},
                             {"x:2;y:2", "batch:y;length:x;experts:x+y"},
                             {"x:2;y:2", "batch:x;experts:y+x"},
                             {"x:3;y:2", "batch:x;experts:x+y"},
                             {"x:2;y:3", "batch:x+y;experts:y"},
                             {"x:2;y:3", "batch:x;length,experts:y"},
                             {"x:2;y:3", "batch,experts:y;length:x"}};

/// How many collectives of each kind move tokens or what was made of them: all but those of
/// parameters, the loss and statistics without a dim of tokens, which send little.
std::map<std::string, int> collectives(const MoeOptions& moe, const std::string& mesh,
                                       const std::string& layout, bool backward) {
  Layer layer;
  build(layer, moe);
  CompileOptions options = options_of(layer, mesh, layout);
  if (!backward) options.functions = {{"forward", {layer.loss}, false}};
  std::map<std::string, int> count;
  for (const FunctionReport& f : explain(layer.graph, options).functions) {
    if (f.is_init) continue;
    for (const CollectiveReport& c : f.collectives) {
      const bool of_parameter =
          c.kind == "all_gather" && (c.tensor == "moe.router.w" || c.bytes < 64);
      count[c.kind] += !of_parameter;
    }
  }
  return count;
}

TEST_CASE("tokens go to experts and back by two all_to_alls forward and two backward") {
  for (const char* layout : {"batch,experts:x", "experts,batch:x"}) {
    INFO(layout);
    for (int64_t choices : {1, 2}) {
      MoeOptions o = four_experts();
      o.routing.choices = choices;
      auto forward = collectives(o, "x:4", layout, false);
      auto both = collectives(o, "x:4", layout, true);
      CHECK(forward["all_to_all"] == 2);
      CHECK(both["all_to_all"] == 4);
      for (const char* other : {"all_gather", "exchange"}) {
        INFO(other);
        CHECK(forward[other] == 0);
        CHECK(both[other] == 0);
      }
      CHECK(forward["reduce_scatter"] == 0);
      CHECK(both["reduce_scatter"] == 1);  // of the gradient of the router's weights
    }
  }
}

TEST_CASE("a mixture of experts is laid out alike in every dtype") {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (const char* layout :
         {"", "batch:x; experts:x", "batch:x+y; experts:y", "batch,experts:x; ff:y"}) {
      INFO(to_string(dtype) << " " << layout);
      Graph g;
      const Dim batch("batch", 8), length("length", 6), model("d_model", 8);
      Tensor x = g.input("x", {batch, length, model}, dtype);
      const nn::Moe mixed = nn::moe(x, "moe", "d_model", four_experts());
      Tensor loss =
          (mean_all(square(cast(x + mixed.y, DType::float32))) + cast(mixed.loss, DType::float32))
              .named("loss");
      const Minimized step = minimize(loss, 0.02, adam());
      Cluster ranks = Cluster::threads(4);
      Session session(g, ranks,
                      {Mesh::parse("x:2;y:2"), Layout::parse(layout), {{"train", {loss}, true}}});
      session.feed_slices("x", [](const Slice& slice) {
        const size_t bytes = static_cast<size_t>(slice.valid[0] * slice.strides[0]) *
                             static_cast<size_t>(size_of(slice.dtype));
        std::memset(slice.data, 0, bytes);
      });
      for (int s = 0; s < 2; ++s) session.run("train");
      CHECK(std::isfinite(session.fetch_scalar("loss")));
    }
  }
}

TEST_CASE("what keeps the elements keeps what a model prefers") {
  Graph g;
  const Dim a("a", 4), b("b", 4), c("c", 4);
  Tensor x = g.input("x", {a, b}, DType::float32).prefer("b");
  const auto prefers = [&](Tensor t) { return g.value(t.id()).prefer; };
  using Names = std::vector<std::string>;
  CHECK(prefers(cast(x, DType::bfloat16)) == Names{"b"});
  CHECK(prefers(transpose(x, {b, a})) == Names{"b"});
  CHECK(prefers(identity(x)) == Names{"b"});
  CHECK(prefers(stop_gradient(x)) == Names{"b"});
  CHECK(prefers(rename(x, "b", "d")) == Names{"d"});
  CHECK(prefers(reshape(x, {a, Dim("b1", 2), Dim("b2", 2)})).empty());
  CHECK(prefers(relu(x)).empty());  // as before: PreferScope says so
  explain(g, {Mesh::parse("m:2"),
              Layout::parse("a:m; b:m"),
              {{"f", {cast(transpose(x, {b, a}), DType::float16)}}}});
}

TEST_CASE("gates that are equal but for rounding go to the lower index under every layout") {
  for (const Gating gating : {Gating::tokens_choose, Gating::experts_choose}) {
    std::vector<std::vector<double>> found;
    for (const char* layout : {"", "experts:m", "model:m", "tokens:m"}) {
      Graph g;
      const Dim tokens("tokens", 6), experts("experts", 3), model("model", 7);
      // Every token is a permutation of the same numbers, and so is every expert's weight.
      Tensor x = cast(mod(iota(g, tokens) * 3.0 + iota(g, model), constant(g, 7, DType::int32)),
                      DType::float32) *
                     0.1 +
                 0.3;
      Tensor logits = einsum({x, ones_like(einsum({x}, {model, experts}))}, {tokens, experts});
      nn::RoutingOptions o;
      o.gating = gating;
      o.choices = 1;
      o.capacity = {Dim("capacity", 2)};
      Tensor dispatch = nn::route(logits, "tokens", "experts", o).dispatch.named("dispatch");
      Cluster ranks = Cluster::threads(3);
      Session session(g, ranks, {Mesh::parse("m:3"), Layout::parse(layout), {{"f", {dispatch}}}});
      session.run("f");
      const Array array = session.fetch("dispatch");
      std::vector<double>& values = found.emplace_back();
      for (int64_t i = 0; i < array.elements(); ++i) values.push_back(array.at(i));
      CHECK(found.front() == found.back());
    }
  }
}

TEST_CASE("a mixture of experts split over ranks is the whole one, in value and gradient") {
  for (const Gating gating :
       {Gating::tokens_choose, Gating::rescue, Gating::strongest, Gating::experts_choose}) {
    MoeOptions o = four_experts();
    o.routing.gating = gating;
    o.routing.capacity_per_choice = false;  // tokens are dropped
    o.z = 1e-3;
    const Values whole = train(o, "x:1", "");
    CHECK(whole.at("dropped").at(0) > 0);
    for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
             {"x:4", "batch,experts:x"},
             {"x:2;y:2", "batch,experts:x;ff,heads:y"},
             {"x:2;y:2", "batch:x;experts:y"},
             {"x:2;y:2", "batch,experts:x+y"},
             {"x:3", "length,experts:x"},
             {"x:2;y:2", "batch,experts:x;@state d_model:y"}}) {
      INFO(static_cast<int>(gating) << " " << mesh << " " << layout);
      check_equal(whole, train(o, mesh, layout));
    }
  }
}

TEST_CASE("without a capacity no layout changes anything, whatever routes the tokens") {
  std::vector<MoeOptions> all(6, dropless());
  all[1].routing.choices = 3;
  all[1].routing.scores = nn::Scores::sigmoid;
  all[1].routing.scale = 2.5;
  all[1].experts = Dim("experts", 6);
  all[1].routing.groups = 3;
  all[1].routing.best_groups = 2;
  all[1].shared = {Dim("shared_ff", 8)};
  all[2].bias_step = 0.01;
  all[2].z = 1e-3;
  all[3].experts = Dim("experts", 5);  // padded
  all[3].routing.choices = 1;
  all[4].routing.further = nn::Further::threshold;
  all[4].routing.threshold = 0.45;
  all[5].expert.activations = {"gelu_erf"};
  all[5].routing.renormalize = false;
  for (const MoeOptions& o : all) {
    const Values whole = train(o, "x:1", "");
    CHECK(whole.at("dropped").at(0) == 0);
    for (const auto& [mesh, layout] : kMappings) {
      INFO(&o - all.data() << " " << mesh << " " << layout);
      check_equal(whole, train(o, mesh, layout));
    }
  }
}

TEST_CASE("without a capacity the layer is the one whose capacity suffices") {
  for (const int64_t choices : {1, 2, 3}) {
    MoeOptions o = dropless(), large = o;
    o.routing.choices = large.routing.choices = choices;
    large.dropless = false;
    large.routing.capacity = {Dim("capacity", 6)};
    large.shared = o.shared = {Dim("shared_ff", 8)};
    check_equal(train(large, "x:1", ""), train(o, "x:1", ""));
  }
}

TEST_CASE("a rank computes its own experts from end to end, and nothing twice") {
  const Machine machine = Machine::load("h100");
  for (const auto& [mesh, layout] : kMappings) {
    INFO(mesh << " " << layout);
    Layer layer;
    build(layer, dropless());
    CompileOptions options = options_of(layer, mesh, layout);
    options.functions.push_back({"forward", {layer.loss}, false});
    for (const FunctionReport& f : explain(layer.graph, options, {}, &machine).functions) {
      std::map<std::string, int64_t> times;
      for (const KernelReport& k : f.kernels) times[k.kernel] += k.times;
      CHECK(times["grouped_dot"] == (f.name == "train" ? 6 : f.name == "forward" ? 3 : 0));
      CHECK(times["grouped_outer"] == (f.name == "train" ? 3 : 0));
    }
  }
}

TEST_CASE("tokens that choose as many experts as there are ranks travel once") {
  const auto forward = [](int64_t choices) {
    Layer layer;
    MoeOptions o = dropless();
    o.routing.choices = choices;
    build(layer, o);
    CompileOptions options = options_of(layer, "x:2", "batch,experts:x");
    options.functions = {{"forward", {layer.loss}, false}};
    return explain(layer.graph, options).functions.back().bytes;
  };
  // All but the indices and gates of two more choices of 48 tokens, half of them from another rank.
  CHECK(forward(4) - forward(2) == 48 / 2 * 2 * (4 + 8));
}

/// Ranks of a mesh x, y (4 or 6 ranks), their tokens and experts.
struct Travel {
  const char *mesh, *layout;
  int (*holder)(int64_t batch, int64_t token);  ///< the rank with a token of [16, 4]
  int (*owner)(int holder, int64_t slice);      ///< the rank to which that rank sends its rows
  int64_t slices;                               ///< of the experts
  int gathers;  ///< where ranks had the same tokens: of y, and the gradients of x and the gates
};
const Travel kTravels[] = {
    {"x:4", "batch,experts:x", [](int64_t b, int64_t) { return static_cast<int>(b / 4); },
     [](int, int64_t e) { return static_cast<int>(e); }, 4, 0},
    {"x:2;y:2", "batch,experts:x+y", [](int64_t b, int64_t) { return static_cast<int>(b / 4); },
     [](int, int64_t e) { return static_cast<int>(e); }, 4, 0},
    {"x:2;y:2", "batch:x;experts:x+y", [](int64_t b, int64_t) { return static_cast<int>(b / 4); },
     [](int, int64_t e) { return static_cast<int>(e); }, 4, 3},
    {"x:2;y:2", "batch:x;length:y;experts:x+y",
     [](int64_t b, int64_t t) { return static_cast<int>(b / 8 * 2 + t / 2); },
     [](int, int64_t e) { return static_cast<int>(e); }, 4, 0},
    {"x:2;y:2", "batch:y;length:x;experts:x+y",
     [](int64_t b, int64_t t) { return static_cast<int>(t / 2 * 2 + b / 8); },
     [](int, int64_t e) { return static_cast<int>(e); }, 4, 0},
    {"x:2;y:3", "batch:x+y;experts:y", [](int64_t b, int64_t) { return static_cast<int>(b / 3); },
     [](int from, int64_t e) { return from / 3 * 3 + static_cast<int>(e); }, 3, 0},
    {"x:2;y:3", "batch,experts:y;length:x",
     [](int64_t b, int64_t t) { return static_cast<int>(t / 2 * 3 + b / 6); },
     [](int from, int64_t e) { return from / 3 * 3 + static_cast<int>(e); }, 3, 0},
};

TEST_CASE("rows travel to the owners of their experts, as many as there are") {
  const int64_t experts = 6, rows = 4;
  for (const Travel& t : kTravels) {
    for (const double share : {0.0, 0.6}) {
      INFO(t.layout << " " << share);
      FedExperts model(experts, rows);
      const int count = Mesh::parse(t.mesh).size();
      CountedWorld world(count);
      Cluster ranks = Cluster::adopt(world.communicators());
      Session session(model.g, ranks, model.options(t.mesh, t.layout));
      const Choices choices(experts, rows, 4, share, 8);
      session.feed("x", wave(rows));
      session.feed("indices", choices.array);
      world.clear();
      session.run("train");
      int64_t to_others = 0, from_others = 0, all = 0;  // rows of rank 0, and of all ranks
      for (int64_t i = 0; i < choices.array.elements(); ++i) {
        const int64_t each = (experts + t.slices - 1) / t.slices,
                      slice = choices.array.data<int32_t>()[i] / each;
        const int from = t.holder(i / (2 * rows), i / 2 % rows), to = t.owner(from, slice);
        to_others += from == 0 && to != 0;
        from_others += from != 0 && to == 0;
        all += from != to;
      }
      REQUIRE(to_others != from_others);
      const int64_t row = 8 * sizeof(double);
      int64_t there = 0, back = 0, gathered = 0, moved = 0;
      for (const StepTime& step : session.profile()) {
        if (step.function != "train" || !step.collective) continue;
        there += step.bytes == to_others * row;
        back += step.bytes == from_others * row;
        gathered += *step.collective == CollectiveKind::all_gather;
      }
      CHECK(there == 2);  // x, the gradient of y
      CHECK(back == 2);   // y, the gradient of x
      CHECK(gathered == t.gathers);
      for (const auto& [call, counted] : world.counted())
        moved += call.kind == CollectiveKind::all_to_all && counted.bytes[0] == all * row;
      CHECK(moved == 4);
    }
  }
}

TEST_CASE("1,000 steps of skewed routing: nothing is dropped, and bounds are raised as told") {
  const int64_t experts = 6, rows = 32, steps = 1000;
  FedExperts one(experts, rows), many(experts, rows);
  Cluster single = Cluster::threads(1), ranks = Cluster::threads(4);
  Session whole(one.g, single, one.options("x:1", ""));
  Session split(many.g, ranks, many.options("x:4", "batch,experts:x"));
  const int64_t bound =
      2 * 256 / 4;  // the usual dispatch_capacity: twice the mean from a rank to another
  const int64_t before = split.program().transient_bytes();
  const Array x = wave(rows);
  whole.feed("x", x);
  split.feed("x", x);
  int64_t exceeded = -1;
  for (int64_t step = 0; step < steps; ++step) {
    const Choices choices(experts, rows, 4, 0.5 * static_cast<double>(step) / steps,
                          static_cast<uint32_t>(step));
    if (choices.most > bound && exceeded < 0) exceeded = step;
    for (Session* s : {&whole, &split}) {
      s->feed("indices", choices.array);
      s->run("train");
    }
    INFO(step);
    REQUIRE(split.fetch_scalar("loss") == Approx(whole.fetch_scalar("loss")).epsilon(1e-9));
    REQUIRE(split.fallbacks().size() == (exceeded < 0 ? 0u : 1u));
  }
  REQUIRE(exceeded > 0);
  CHECK(
      split.fallbacks()[0] ==
      fmt::format(
          "step {}: more rows went from one rank to another than dispatch_capacity of the experts "
          "has places for; the step is repeated with 4 times as many places",
          exceeded));
  CHECK(split.step() == steps);
  CHECK(split.program().transient_bytes() > before);
  for (const std::string& name : whole.program().stored_names()) {
    const Array want = whole.fetch(name), got = split.fetch(name);
    for (int64_t i = 0; i < want.elements(); ++i)
      REQUIRE(got.at(i) == Approx(want.at(i)).epsilon(1e-7).margin(1e-9));
  }
}

TEST_CASE("dispatch_capacity says how many rows have places, and changes no result", "[ragged]") {
  const int64_t experts = 6, rows = 32, mean = 16 * rows * 2 / 4 / 4, all = 4 * mean;
  const Choices choices(experts, rows, 4, 0.3, 1);
  REQUIRE(choices.most > 2 * mean);
  FedExperts whole(experts, rows);
  Cluster single = Cluster::threads(1), ranks = Cluster::threads(4);
  Session one(whole.g, single, whole.options("x:1", ""));
  one.feed("x", wave(rows));
  one.feed("indices", choices.array);
  one.run("train");
  std::map<int64_t, int64_t> transient;  // bytes, by places
  for (const double bound : {1.0, 1.5, 2.0, 4.0, 100.0, 0.0}) {
    INFO(bound);
    FedExperts model(experts, rows, bound);
    Session split(model.g, ranks, model.options("x:4", "batch,experts:x"));
    int64_t places = bound == 0 ? all : std::min(all, static_cast<int64_t>(bound * mean));
    transient[places] = split.program().transient_bytes();
    size_t raised = 0;
    for (; places < choices.most; ++raised) places = std::min(all, 4 * places);
    split.feed("x", wave(rows));
    split.feed("indices", choices.array);
    split.run("train");
    CHECK(split.fetch_scalar("loss") == Approx(one.fetch_scalar("loss")).epsilon(1e-9));
    CHECK(split.fallbacks().size() == raised);
    CHECK(raised == (bound == 0 || bound >= 4 ? 0 : 1));
  }
  REQUIRE(transient.size() == 4);
  int64_t less = 0;
  for (const auto& [places, bytes] : transient) {
    CHECK(bytes > less);
    less = bytes;
  }
}

Types type_of_rows(const OpCall& call) { return {call.in[0]}; }
constinit const Op kCounted = {.name = "counted", .infer = type_of_rows, .counts_rows = true};

TEST_CASE("an op of a user's own that counts rows moves only those, as ragged() does", "[ragged]") {
  const Dim from("from", 4), to("to", 4), place("place", 8), width("width", 5);
  Graph g;
  const Tensor x = g.input("x", {from, to, place, width}, DType::float64).prefer("from"),
               counts = g.input("counts", {from, to}, DType::int32).prefer("from");
  Tensor moved, y;
  {
    const PreferScope prefer(g, x);
    const Tensor rows = where(greater(counts, iota(g, place)), x, zeros_like(x));
    const Attrs attrs = {{"dim", std::string("place")}, {"used", 0.5}};
    moved = g.add(kCounted, {rows, counts}, attrs, Loc::current())[0].prefer("to");
  }
  {
    const PreferScope prefer(g, moved);
    y = (moved * 2.0).named("y");
  }
  CompileOptions options{Mesh::parse("m:4"), Layout::parse("from,to:m"), {{"f", {y}, false}}};
  options.profile = true;
  Cluster ranks = Cluster::threads(4);
  Session session(g, ranks, options);
  Array values(DType::float64, {"from", "to", "place", "width"}, {4, 4, 8, 5}),
      counted(DType::int32, {"from", "to"}, {4, 4});
  for (int64_t i = 0; i < values.elements(); ++i) values.data<double>()[i] = std::sin(i);
  int64_t to_others = 0;  // rows of rank 0
  for (int i = 0; i < 16; ++i) {
    counted.data<int32_t>()[i] = (5 * i + 2) % 9;
    if (i > 0 && i < 4) to_others += counted.data<int32_t>()[i];
  }
  session.feed("x", values);
  session.feed("counts", counted);
  session.run("f");
  int64_t sent = 0;
  for (const StepTime& step : session.profile()) {
    if (step.collective && *step.collective == CollectiveKind::all_to_all) sent += step.bytes;
  }
  CHECK(sent == to_others * 5 * static_cast<int64_t>(sizeof(double)));
  const Array found = session.fetch("y");
  for (int64_t i = 0; i < found.elements(); ++i) {
    const bool is_there = i / 5 % 8 < counted.data<int32_t>()[i / 40];
    CHECK(found.at(i) == (is_there ? 2 * std::sin(i) : 0));
  }
}

TEST_CASE("128 experts, of which a token takes 8: what is counted and kept") {
  const auto compiled = [](int64_t tokens, bool backward) {
    Graph g;
    const Dim batch("batch", 4), length("length", tokens / 4), model("d_model", 64);
    Tensor x = g.input("x", {batch, length, model}, DType::float32);
    MoeOptions o;
    o.experts = Dim("experts", 128);
    o.hidden = Dim("ff", 64);
    o.expert.activations = {"silu", "linear"};
    o.routing.choices = 8;
    const nn::Moe mixed = nn::moe(x, "moe", "d_model", o);
    Tensor loss = (mean_all(square(mixed.y)) + mixed.loss).named("loss");
    std::vector<Tensor> outputs = {loss};
    if (backward) {
      const std::vector<Tensor> all = gradients(loss, g.parameters());
      outputs.insert(outputs.end(), all.begin(), all.end());
    }
    const Explanation e = explain(g, {Mesh::parse("x:1"), {}, {{"step", outputs, false}}});
    return std::make_pair(e.functions.back().flops, e.memory.transient);
  };
  const double useful = 2.0 * 512 * 8 * 3 * 64 * 64;  // a product and a sum for each weight
  CHECK(compiled(512, false).first <= 1.2 * useful);
  CHECK(compiled(512, true).first <= 1.2 * 3 * useful);
  const double hidden = 8 * 64 * sizeof(float);  // of a token: the hidden rows of its choices
  for (const int64_t tokens : {512, 1024, 2048}) {
    const int64_t more = compiled(2 * tokens, true).second - compiled(tokens, true).second;
    INFO(tokens << ": " << more);
    CHECK(static_cast<double>(more) <= 8 * hidden * static_cast<double>(tokens));
  }
}

/// The router of DeepSeek-V3 by plain loops, for one token: experts with their gates.
std::map<int, double> chosen_by_loops(const std::vector<double>& logits,
                                      const std::vector<double>& bias, const RoutingOptions& o) {
  const int experts = static_cast<int>(logits.size());
  const int each = experts / static_cast<int>(o.groups);
  std::vector<double> gates, scores;
  for (int e = 0; e < experts; ++e) {
    gates.push_back(1 / (1 + std::exp(-logits[e])));
    scores.push_back(gates[e] + bias[e]);
  }
  std::vector<std::pair<double, int>> groups, best;
  for (int g = 0; g < o.groups; ++g) {
    std::vector<double> own(scores.begin() + g * each, scores.begin() + (g + 1) * each);
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(-own[0] - own[1], g);
  }
  std::sort(groups.begin(), groups.end());
  for (int g = 0; g < o.best_groups; ++g) {
    for (int e = 0; e < each; ++e) {
      const int expert = groups[g].second * each + e;
      best.emplace_back(-scores[expert], expert);
    }
  }
  std::sort(best.begin(), best.end());
  double sum = 0;
  for (int k = 0; k < o.choices; ++k) sum += gates[best[k].second];
  std::map<int, double> chosen;
  for (int k = 0; k < o.choices; ++k)
    chosen[best[k].second] = gates[best[k].second] / sum * o.scale;
  return chosen;
}

TEST_CASE("sigmoids, a bias, groups and a scale route as in DeepSeek-V3") {
  for (const char* layout : {"", "length:x", "experts:x"}) {
    Graph g;
    const Dim tokens("length", 12), experts("experts", 8);
    Tensor logits = g.input("logits", {tokens, experts}, DType::float64),
           bias = g.input("bias", Shape{experts}, DType::float64);
    RoutingOptions o;
    o.choices = 3;
    o.scores = nn::Scores::sigmoid;
    o.bias = bias;
    o.groups = 4;
    o.best_groups = 2;
    o.scale = 2.5;
    const nn::Routing r = nn::choose(logits, "length", "experts", o);
    Tensor indices = r.indices.named("indices"), gates = r.gates.named("gates"),
           loads = r.loads.named("loads");
    Cluster ranks = Cluster::threads(2);
    Session session(g, ranks,
                    {Mesh::parse("x:2"), Layout::parse(layout), {{"f", {indices, gates, loads}}}});
    Array in(DType::float64, {"length", "experts"}, {12, 8}),
        bias_in(DType::float64, {"experts"}, {8});
    std::vector<double> biases;
    for (int e = 0; e < 8; ++e)
      biases.push_back(bias_in.data<double>()[e] = 0.3 * std::cos(3.0 * e));
    for (int i = 0; i < 96; ++i) in.data<double>()[i] = 2 * std::sin(0.37 * i * i);
    session.feed("logits", in);
    session.feed("bias", bias_in);
    session.run("f");
    const Array found = session.fetch("indices"), weights = session.fetch("gates"),
                counts = session.fetch("loads");
    std::vector<double> load(8);
    for (int t = 0; t < 12; ++t) {
      const double* row = in.data<double>() + t * 8;
      std::map<int, double> got;
      for (int k = 0; k < 3; ++k)
        got[static_cast<int>(found.at(t * 3 + k))] = weights.at(t * 3 + k);
      const auto want = chosen_by_loops(std::vector<double>(row, row + 8), biases, o);
      INFO(layout << " token " << t);
      REQUIRE(got.size() == 3);
      for (const auto& [e, gate] : want) {
        REQUIRE(got.count(e) == 1);
        CHECK(got[e] == Approx(gate).epsilon(1e-8));
        ++load[static_cast<size_t>(e)];
      }
    }
    for (int e = 0; e < 8; ++e) CHECK(counts.at(e) == load[static_cast<size_t>(e)]);
  }
}

TEST_CASE("a bias moves tokens to experts that have few, and the gates do not see it") {
  Graph g;
  const Dim tokens("length", 64), model("d_model", 4);
  Tensor x = g.input("x", {tokens, model}, DType::float32);
  MoeOptions o;
  o.experts = Dim("experts", 4);
  o.hidden = Dim("ff", 4);
  o.routing.choices = 1;
  o.routing.scores = nn::Scores::sigmoid;
  o.bias_step = 0.02;
  const nn::Moe mixed = nn::moe(x + 3.0, "moe", "d_model", o);  // all tokens are much alike
  Tensor load = mixed.routing.load.named("load"), y = mixed.y.named("y");
  Cluster ranks = Cluster::threads(2);
  Session session(
      g, ranks,
      {Mesh::parse("x:2"), Layout::parse("length,experts:x"), {{"step", {load, y}, true}}});
  Array in(DType::float32, {"length", "d_model"}, {64, 4});
  for (int64_t i = 0; i < in.elements(); ++i)
    in.data<float>()[i] = static_cast<float>(std::sin(0.37 * i * i));
  session.feed("x", in);
  std::vector<double> loads;
  for (int step = 0; step < 60; ++step) {
    session.run("step");
    loads.push_back(session.fetch_scalar("load"));
  }
  CHECK(loads.front() >= 40);
  CHECK(loads.back() <= 28);
}

TEST_CASE("experts that no axis divides are padded") {
  MoeOptions o = four_experts();
  o.experts = Dim("experts", 5);
  check_equal(train(o, "x:1", ""), train(o, "x:4", "batch,experts:x"));
  check_equal(train(o, "x:1", ""), train(o, "x:3", "batch,experts:x"));
}

TEST_CASE(
    "with a bounded capacity nothing is dropped; a run may hold less and counts what it drops") {
  MoeOptions o = four_experts();
  o.routing.capacity = {Dim::bounded("capacity", 6)};
  const Values all = train(o, "x:1", "", 6);
  CHECK(all.at("dropped").at(0) == 0);
  check_equal(all, train(o, "x:4", "batch,experts:x", 6));
  const Values less = train(o, "x:1", "", 2);
  CHECK(less.at("dropped").at(0) > 0);
  check_equal(less, train(o, "x:4", "batch,experts:x", 2));
  MoeOptions fixed = four_experts();
  fixed.routing.capacity = {Dim("capacity", 2)};
  check_equal(less, train(fixed, "x:1", ""));
}

TEST_CASE("the usual capacity counts choices: top-8 of 64 experts drops nothing if even") {
  // Token t takes the experts with the largest (e - t) mod 64, so each expert has 32 of the 2048.
  for (const char* layout : {"", "tokens:m", "experts:m"}) {
    for (const bool per_choice : {true, false}) {
      INFO(layout << " " << per_choice);
      Graph g;
      const Dim tokens("tokens", 256), experts("experts", 64);
      Tensor rank = mod(iota(g, tokens) * 63.0 + iota(g, experts), constant(g, 64, DType::int32));
      RoutingOptions o;
      o.choices = 8;
      if (!per_choice) o.capacity_per_choice = false;
      const nn::Routing r = nn::route(cast(rank, DType::float32) * 0.1, "tokens", "experts", o);
      CHECK(r.dispatch.dim("capacity").size == (per_choice ? 40 : 5));
      Tensor dropped = r.dropped.named("dropped"), load = r.load.named("load");
      Cluster ranks = Cluster::threads(2);
      Session session(g, ranks,
                      {Mesh::parse("m:2"), Layout::parse(layout), {{"f", {dropped, load}}}});
      session.run("f");
      CHECK(session.fetch_scalar("load") == 32);
      CHECK(session.fetch_scalar("dropped") == (per_choice ? 0 : 2048 - 64 * 5));  // 84 %
    }
  }
}

TEST_CASE("an overflow of capacity is an error where the model says so") {
  MoeOptions o = four_experts();
  o.routing.overflow = Overflow::error;
  o.routing.capacity = {Dim::bounded("capacity", 6)};
  for (const auto& [mesh, layout] :
       std::vector<std::pair<const char*, const char*>>{{"x:1", ""}, {"x:2", "batch,experts:x"}}) {
    INFO(mesh);
    CHECK(train(o, mesh, layout, 6).at("dropped").at(0) == 0);
    expect_usage({"more tokens than the 6 places 'capacity' of an expert hold; a larger "
                  "capacity_factor or capacity has more places, and Overflow::count drops tokens",
                  "moe_test.cpp"},
                 [&] { train(o, mesh, layout, 1); });
  }
}

TEST_CASE("with a second place that is drawn the others have the whole gate") {
  for (const double probability : {0.25, 1.0}) {
    Graph g;
    const Dim tokens("tokens", 400), experts("experts", 3);
    Tensor logits = broadcast(iota(g, experts, DType::float32), {tokens, experts});
    const nn::Routing r = nn::route(
        logits, "tokens", "experts",
        {.choices = 1, .capacity_factor = 3, .second_place = probability, .second_sample = 1});
    Tensor gates = reduce_sum(r.combine, "tokens");
    Tensor got = reduce_sum(gates, "capacity").named("gates");
    Cluster cluster = Cluster::threads(1);
    Session session(g, cluster, {Mesh::parse("x:1"), {}, {{"f", {got}, false}}});
    session.run("f");
    const Array found = session.fetch("gates");
    const double first = 400 * std::exp(2) / (1 + std::exp(1) + std::exp(2)) * (1 - probability);
    CHECK(std::abs(found.at(2) - first) < 25);
    const double others = 400 * probability, share = 1 / (1 + std::exp(1));
    CHECK(std::abs(found.at(0) - others * share) < 25);
    CHECK(std::abs(found.at(1) - others * (1 - share)) < 35);
  }
}

TEST_CASE("routers say what is wrong with their options") {
  const auto error = [](std::initializer_list<std::string> words, const RoutingOptions& o,
                        const std::string& tokens = "length") {
    expect_usage(words, [&] {
      Graph g;
      Tensor logits = g.input("logits", {Dim("length", 8), Dim("experts", 4)}, DType::float32);
      nn::route(logits, tokens, "experts", o);
    });
  };
  error({"lenght", "'length'"}, {}, "lenght");
  error({"[route] capacity 0", "8 tokens", "capacity_factor 0.1"},
        {.capacity_factor = 0.1, .least_capacity = 0});
  error({"[route] 5 choices of 4 experts"}, {.choices = 5});
  error({"[route]", "capacity_factor -1 and least_capacity 4; neither is negative"},
        {.capacity_factor = -1});
  error({"[route] 3 groups of 4 experts", "equal size"}, {.groups = 3});
  error({"[route] 0 groups of 4 experts"}, {.groups = 0});
  error({"[route] best_groups is 3; a token chooses in 1 to 2 groups, as there are 2"},
        {.groups = 2, .best_groups = 3});
  error({"[route] a token has 2 choices, but its best_groups 1 of 4 groups have 1 experts; give "
         "more best_groups, or fewer choices"},
        {.groups = 4});
  expect_usage({"[choose] the gating has a capacity"}, [] {
    Graph g;
    Tensor logits = g.input("logits", {Dim("length", 8), Dim("experts", 4)}, DType::float32);
    nn::choose(logits, "length", "experts", {.gating = Gating::rescue});
  });
  const auto layer = [](std::initializer_list<std::string> words, const MoeOptions& o) {
    expect_usage(words, [&] {
      Graph g;
      nn::moe(g.input("x", {Dim("length", 8), Dim("d_model", 4)}, DType::float32), "moe", "d_model",
              o);
    });
  };
  layer({"[moe] experts with biases", "dropless to false"}, {.expert = {.dense = {.bias = true}}});
  layer({"[moe] dispatch_capacity 0.5 is a bound below the mean: 16 rows for 8 experts are 2 for "
         "each, "
         "of which 1 would have places; give at least 1, or 0 for places for all rows",
         "moe_test.cpp:"},
        {.dispatch_capacity = 0.5});
  layer({"[moe] dispatch_capacity -2 is a bound below the mean", "of which 0 would have places"},
        {.dispatch_capacity = -2});
  layer({"[moe] dispatch_capacity nan is a bound below the mean"},
        {.dispatch_capacity = std::nan("")});
  layer({"[moe] bias_step 0.1 with a capacity"}, {.dropless = false, .bias_step = 0.1});
  layer({"[moe] the shared expert and the others have the hidden dim 'ff'; give the shared one "
         "another name"},
        {.shared = {Dim("ff", 3)}});
  layer({"[moe] 2 shared dims; there is at most one shared expert"},
        {.shared = {Dim("a", 3), Dim("b", 3)}});
  for (const double step : {-0.1, std::nan("")})
    layer({"[moe] bias_step ", "; it is positive and finite, or 0 for no bias"},
          {.bias_step = step});
  layer({"[moe] weights of the losses: balance nan and z 0; each is positive and finite",
         "moe_test.cpp:"},
        {.balance = std::nan("")});
  layer({"[moe] weights of the losses: balance 0.01 and z -1;"}, {.z = -1});
  layer({"[moe] the gates have the scale inf; it is finite"}, {.routing = {.scale = INFINITY}});
  layer({"unknown function 'swiglu'; it is a product of two: {\"silu\", \"linear\"}",
         "moe_test.cpp:"},
        {.expert = {.activations = {"swiglu"}, .dense = {.bias = false}}});
  expect_usage({"[route]", "a bias where experts choose tokens"}, [] {
    Graph g;
    const Dim experts("experts", 4);
    Tensor logits = g.input("logits", {Dim("length", 8), experts}, DType::float32);
    RoutingOptions o;
    o.gating = Gating::strongest;
    o.bias = g.input("bias", {experts}, DType::float32);
    nn::route(logits, "length", "experts", o);
  });
  error({"[route] 0 choices"}, {.choices = 0});
  error({"[route] threshold 0"}, {.threshold = 0});
  error({"[route] second_place 1.5 and second_sample 0; the first is a probability"},
        {.second_place = 1.5});
  error({"[route] second_place 0.1 of 4 experts, which choose their tokens"},
        {.gating = Gating::experts_choose, .second_place = 0.1});
  error({"[route] capacity 9 for 8 tokens"},
        {.gating = Gating::experts_choose, .capacity = {Dim::bounded("capacity", 9)}});
  for (const nn::Embedded how : {nn::Embedded::appended, nn::Embedded::added}) {
    const bool appended = how == nn::Embedded::appended;
    const char* dims =
        appended ? "the same dims, of the same sizes but 'model'" : "the same dims (";
    expect_usage({"[moe] the embedding [length=8, model=3] beside x [length=7, model=4]", dims},
                 [&] {
                   Graph g;
                   Tensor x = g.input("x", {Dim("length", 7), Dim("model", 4)}, DType::float32);
                   Tensor e = g.input("e", {Dim("length", 8), Dim("model", 3)}, DType::float32);
                   nn::moe(x, "moe", "model", {.embedding = e, .embedded = how});
                 });
  }
  expect_usage({"[moe]", "'experts' already"}, [] {
    Graph g;
    Tensor x = g.input("x", {Dim("length", 8), Dim("experts", 4)}, DType::float32);
    nn::moe(x, "moe", "experts", {.experts = Dim("experts", 4)});
  });
}

TEST_CASE("gates that are renormalized sum to 1 whatever the logits are") {
  const Dim tokens("length", 4), experts("experts", 4);
  for (const nn::Scores scores : {nn::Scores::softmax, nn::Scores::sigmoid}) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      for (const bool plain : {true, false}) {
        Graph g({.eager = true});
        Array in(dtype, {"length", "experts"}, {4, 4});
        const std::vector<double> logits = {-20, -20, -30, -40, -200, -201, -300, -300,
                                            80,  79,  0,   0,   1,    0.5,  -1,   -2};
        for (size_t i = 0; i < logits.size(); ++i) {
          if (dtype == DType::float32) in.data<float>()[i] = static_cast<float>(logits[i]);
          if (dtype == DType::float64) in.data<double>()[i] = logits[i];
        }
        RoutingOptions o;
        o.choices = 2;
        o.scores = scores;
        if (!plain) o.importance = constant(g, 1, dtype, Shape{tokens});
        // The best two are the first two, whatever becomes of their gates.
        o.bias = cast(constant(g, Array::of<float>(Shape{experts}, {4, 3, 0, 0})), dtype);
        const Array gates = g.fetch(nn::choose(constant(g, in), "length", "experts", o).gates);
        for (int64_t t = 0; t < 4; ++t) {
          INFO("token " << t << " in " << to_string(dtype));
          const double a = logits[static_cast<size_t>(4 * t)],
                       b = logits[static_cast<size_t>(4 * t + 1)];
          const double of_a = 1 / (1 + std::exp(b - a));  // of softmax, and of small sigmoids
          const double other = 1 / (1 + (1 + std::exp(-a)) / (1 + std::exp(-b)));
          const double right = scores == nn::Scores::softmax || t < 2 ? of_a : other;
          CHECK(gates.at(2 * t) + gates.at(2 * t + 1) == Approx(1).epsilon(1e-6));
          CHECK(gates.at(2 * t) == Approx(right).epsilon(dtype == DType::float64 ? 1e-13 : 2e-6));
        }
      }
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
