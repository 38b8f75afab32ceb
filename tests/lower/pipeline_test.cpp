// Layers in stages: a rule that splits the dim of repeated layers. The microbatches of a step pass
// through the stages, and every layout computes what one rank does.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "support/catch.h"
#include "support/check_equal.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"
#include "tessera/loops.h"
#include "tessera/nn.h"
#include "tessera/optim.h"
#include "tessera/pipeline_schedules.h"
#include "tessera/session.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Build = std::function<std::vector<Tensor>(Graph&)>;

Values run(const Build& build, const std::string& mesh, const std::string& layout) {
  Graph g;
  std::vector<Tensor> outputs = build(g);
  for (size_t i = 0; i < outputs.size(); ++i)
    outputs[i] = identity(outputs[i]).named("out" + std::to_string(i));
  const Mesh on = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(on.size());
  Session session(g, cluster, {on, Layout::parse(layout), {{"run", outputs, true}}});
  session.run("run");
  session.run("run");
  Values values;
  for (const Tensor& t : outputs) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

const Dim kModel("model", 6), kFf("ff", 4);

/// A residual layer with dropout that also reads `memory`, which is the same for all layers.
Tensor layer(Tensor x, Tensor memory) {
  Graph& g = x.graph();
  const Scope scope(g, "block");
  Tensor up = g.parameter("up", {kModel, kFf}, nn::normal(0.5), DType::float64);
  Tensor down = g.parameter("down", {kFf, kModel}, nn::normal(0.5), DType::float64);
  Tensor h = tanh(einsum({x + memory, up}, {x.dim("batch"), kFf}));
  return x + einsum({dropout(h, 0.25), down}, {x.dim("batch"), kModel});
}

/// An encoder of `encoder` layers, and a decoder of `layers` that all read what the encoder makes.
/// The outputs have an element for each example.
std::vector<Tensor> train(Graph& g, int64_t layers, int64_t microbatches, int64_t encoder) {
  const Dim batch("batch", 12 / microbatches);
  const auto loss = [&] {
    Tensor x = g.input("x", {batch, kModel}, DType::float64);
    Tensor in = x * g.parameter("scale", {kModel}, nn::ones(), DType::float64);
    Tensor memory, y;
    {
      const Scope scope(g, "encoder");
      memory = repeat({"layers", encoder}, in, [&](Tensor t) { return layer(t, x); });
    }
    {
      const Scope scope(g, "decoder");
      y = repeat({"layers", layers}, in, [&](Tensor t) { return layer(t, memory); });
    }
    return Loss(mean_all(square(y)), {}, {}, {y, reduce_sum(memory, "model")});
  };
  const Minimized step = minimize_in_microbatches(
      g, "batch", microbatches, loss, constant(g, 0.05, DType::float64), adam(), {.clip = 1});
  std::vector<Tensor> out{step.loss};
  out.insert(out.end(), step.gradients.begin(), step.gradients.end());
  out.insert(out.end(), step.outputs.begin(), step.outputs.end());
  return out;
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b"};
constexpr const char* kAllSchedules[] = {"gpipe", "1f1b", "zb_h1"};  ///< with one chunk a stage

/// Two steps, and what they make.
Values trained(int64_t layers, int64_t microbatches, const std::string& mesh,
               const std::string& layout, const std::string& schedule = "gpipe",
               int64_t encoder = 4) {
  Graph g;
  std::vector<Tensor> outputs = train(g, layers, microbatches, encoder);
  for (size_t i = 0; i < outputs.size(); ++i)
    outputs[i] = identity(outputs[i]).named("out" + std::to_string(i));
  const Mesh on = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(on.size());
  CompileOptions options{on, Layout::parse(layout), {{"train", outputs, true}}};
  options.pipeline_schedule = schedule;
  Session session(g, cluster, options);
  Array x(DType::float64, {"batch", "model"}, {12, 6});
  for (int64_t i = 0; i < x.elements(); ++i)
    x.data<double>()[i] = 0.1 * static_cast<double>(i % 17);
  Values values;
  for (int i = 0; i < 2; ++i) {
    session.feed("x", x);
    session.run("train");
  }
  for (const Tensor& t : outputs) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

/// A training step of a gpt whose layers are a loop, with `batch` examples a microbatch.
Explanation explain_gpt(const std::string& mesh, const std::string& layout, int64_t microbatches,
                        const std::string& schedule, int64_t batch = 3, bool tied = false,
                        const Machine* machine = nullptr, int64_t layers = 4) {
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = layers;
  o.scan = true;
  o.batch = batch;
  o.tied = tied;
  Graph g;
  const Minimized step = minimize_in_microbatches(
      g, "batch", microbatches, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam());
  CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"train", {step.loss}, true}}};
  options.pipeline_schedule = schedule;
  return explain(g, options, {}, machine);
}

/// A device of 1 GFLOP/s behind a link of 1 MB/s.
Machine slow_link() {
  Machine m;
  m.name = "slow link";
  m.memory_rates = {{0, 1e12}};
  m.matmuls = {{"float32", 1e9, 1, 1, 1, 0, 0, 0, 0, 1}};
  m.links = {{"link", 0, 0, 1e6, 0}};
  return m;
}

/// The lines of a gpt's step on four stages behind the last pass, and the next line of each.
std::vector<std::pair<std::string, std::string>> steps_of_stages(const std::string& layout,
                                                                 bool overlap) {
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = 8;
  o.scan = true;
  o.batch = 3;
  Graph g;
  const Minimized step = minimize_in_microbatches(
      g, "batch", 8, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam());
  CompileOptions options{
      Mesh::parse("pipe:4"), Layout::parse(layout), {{"train", {step.loss}, true}}};
  options.overlap = overlap;
  std::vector<std::pair<std::string, std::string>> lines;
  explain(g, options, [&](const std::string& pass, const std::function<std::string()>& text) {
    if (pass != "plan_memory") return;
    std::istringstream all(text());
    for (std::string line; std::getline(all, line); lines.push_back({line, ""})) {
      if (!lines.empty()) lines.back().second = line;
    }
  });
  return lines;
}

/// How many exchanges between stages are not awaited at once.
int64_t sent_ahead(const std::string& layout, bool overlap) {
  const auto lines = steps_of_stages(layout, overlap);
  return std::count_if(lines.begin(), lines.end(), [](const auto& line) {
    return line.first.find("gpt.loop") != std::string::npos &&  // not parameters
           line.first.find("= exchange #") != std::string::npos &&
           line.second.find("exchange #") == std::string::npos &&
           line.second.find("wait #") == std::string::npos;
  });
}

TEST_CASE("layers in stages train as on one rank, with any number of microbatches", "[pipeline]") {
  const std::pair<const char*, const char*> layouts[] = {
      {"pipe:2", "layers:pipe"},
      {"pipe:3", "layers:pipe"},
      {"pipe:4", "layers:pipe"},
      {"data:2;pipe:2", "layers:pipe;batch:data"},
      {"pipe:2;model:2", "layers:pipe;ff:model"},
      {"pipe:2;data:2", "layers:pipe;batch:data;@params model:data"},
      {"pipe:2;data:2", "layers:pipe;@state model:data"},
      // Other rules pad the layers to more than a multiple of the stages.
      {"pipe:2;data:2", "layers:pipe;@params layers:data"},
      {"pipe:2;data:2", "layers:pipe;batch:data;@state layers:data"},
      {"pipe:2;data:3", "layers:pipe;batch:data;@grads layers:data"},
      {"pipe:2;data:2", "layers:pipe;@/*up/ layers:data+pipe"}};
  for (const auto& [layers, microbatches] :
       {std::pair<int64_t, int64_t>{4, 6}, {5, 3}, {2, 1}, {6, 2}}) {
    const Values plain = trained(layers, microbatches, "a:1", "");
    for (const auto& [mesh, layout] : layouts) {
      for (const char* schedule : kAllSchedules) {
        INFO(layers << " layers, " << microbatches << " microbatches, " << mesh << " " << layout
                    << ", " << schedule);
        check_equal(plain, trained(layers, microbatches, mesh, layout, schedule));
      }
    }
  }
}

TEST_CASE("stages of several chunks train as on one rank, with any number of microbatches",
          "[pipeline]") {
  struct Case {
    int64_t encoder, layers, microbatches;
    const char *mesh, *layout;
  };
  const Case cases[] = {{4, 4, 6, "pipe:2", "layers:pipe*2"},
                        {4, 8, 3, "pipe:2", "layers:pipe*2"},
                        {8, 4, 1, "pipe:2;data:2", "layers:pipe*2;batch:data"},
                        {6, 12, 4, "pipe:3", "layers:pipe*2"},
                        {6, 6, 6, "pipe:2;model:2", "layers:pipe*3;ff:model"},
                        {8, 8, 6, "pipe:4", "layers:pipe*2"},
                        {8, 8, 4, "pipe:2;data:2", "layers:pipe*4;batch:data;@params model:data"},
                        {4, 4, 6, "pipe:2;data:2", "layers:pipe*2;@state model:data"},
                        {4, 8, 6, "pipe:2;data:3", "layers:pipe*2;@params layers:data"},
                        {4, 4, 2, "pipe:2;data:2", "layers:pipe*2;@/*up/ layers:data+pipe"}};
  for (const Case& c : cases) {
    INFO(c.encoder << " and " << c.layers << " layers, " << c.microbatches << " microbatches, "
                   << c.mesh << " " << c.layout);
    const auto values = [&](const char* mesh, const char* layout, const char* schedule) {
      return trained(c.layers, c.microbatches, mesh, layout, schedule, c.encoder);
    };
    const Values plain = values("a:1", "", "1f1b");
    const int64_t chunks = Layout::parse(c.layout).rules()[0].intervals;
    for (const char* schedule : {"1f1b", "zb_h1", "zb_v"}) {
      if (takes_chunks(pipeline_schedule(schedule), chunks))
        check_equal(plain, values(c.mesh, c.layout, schedule));
    }
  }
}

TEST_CASE("layers in stages outside of microbatches run stage after stage", "[pipeline]") {
  const Dim batch("batch", 4);
  const auto build = [&](Graph& g) {
    Tensor x =
        cast(iota(g, batch), DType::float64) * 0.1 + cast(iota(g, kModel), DType::float64) * 0.2;
    Tensor y = repeat({"layers", 5}, x, [&](Tensor t) { return layer(t, x); });
    Tensor loss = mean_all(square(y));
    const Minimized step = minimize(loss, 0.05, adam(), {.clip = 1});
    return std::vector<Tensor>{loss, y, step.gradient_norm};
  };
  const Values plain = run(build, "a:1", "");
  check_equal(plain, run(build, "pipe:2", "layers:pipe"));
  check_equal(plain, run(build, "pipe:3;data:2", "layers:pipe;batch:data"));
  check_equal(plain, run(build, "pipe:5", "layers:pipe"));
}

TEST_CASE("what is not finite is told of the op that made it, in whatever stage", "[pipeline]") {
  const Dim batch("batch", 2);
  for (const char* layers : {"layers:pipe", ""}) {
    for (const char* schedule : kSchedules) {
      INFO(layers << ", schedule " << schedule);
      Graph g;
      int line = 0;
      const auto loss = [&] {
        Tensor x = g.input("x", {batch, kModel}, DType::float64);
        Tensor in = x * g.parameter("scale", {kModel}, nn::ones(), DType::float64);
        Tensor y = repeat({"layers", 4}, in, [&](Tensor t) {
          line = __LINE__ + 1;
          return t + log(t) * 0.01;
        });
        return mean_all(square(y));
      };
      const Minimized step =
          minimize_in_microbatches(g, "batch", 6, loss, constant(g, 0.05, DType::float64), adam());
      Tensor guard = identity(step.loss).named("loss");
      Cluster cluster = Cluster::threads(2);
      CompileOptions options{
          Mesh::parse("pipe:2"), Layout::parse(layers), {{"train", {guard}, true}}};
      options.pipeline_schedule = schedule;
      options.guards = {"loss"};
      Session session(g, cluster, options);
      Array x(DType::float64, {"batch", "model"}, {12, 6});
      for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = i == 50 ? -1 : 1;
      session.feed("x", x);
      expect_usage({fmt::format("is the first that is not finite (pipeline_test.cpp:{})", line)},
                   [&] { session.run("train"); });
    }
  }
}

TEST_CASE("a stage computes and keeps its own layers", "[pipeline]") {
  for (const char* schedule : kSchedules) {
    const Explanation one = explain_gpt("pipe:1", "", 4, schedule),
                      two = explain_gpt("pipe:2", "layers:pipe", 4, schedule);
    const FunctionReport &whole = one.functions.back(), &half = two.functions.back();
    CHECK(half.flops < whole.flops * 6 / 10);
    for (const RedundantReport& r : half.redundant) {
      INFO(r.node);
      CHECK(r.node.find("block") == std::string::npos);
    }
    CHECK(two.memory.params < one.memory.params * 7 / 10);
  }
}

/// Bytes that go forward and backward between stages, a rank's mean, and those from the last one.
std::pair<int64_t, int64_t> sent_between_stages(int stages, int64_t microbatches,
                                                const std::string& schedule,
                                                const std::string& rule = "layers:pipe") {
  const Explanation e = explain_gpt("pipe:" + std::to_string(stages), rule, microbatches, schedule);
  int64_t next = 0, last = 0;
  for (const CollectiveReport& c : e.functions.back().collectives) {
    CHECK(c.kind != "all_gather");  // no layer's parameters are sent
    if (c.rule == rule + ": to the next stage") next += c.bytes;
    if (c.rule == rule + ": from the last stage") last += c.bytes;
  }
  return {next, last};
}

TEST_CASE("between stages go the activations of a microbatch", "[pipeline]") {
  const int64_t activations = 3 * 6 * 12 * 4;

  for (const int64_t m : {3, 8}) {
    for (const char* schedule : kSchedules) {
      const auto [next, last] = sent_between_stages(4, m, schedule);
      CHECK(last == 2 * m * activations * 3 / 4);  // the mean over the ranks
      // Of 4 ranks 3 receive: in m + 2 ticks; or one of them in m ticks and two in m + 1.
      CHECK(next == 2 * activations *
                        (schedule == std::string("gpipe") ? (m + 2) * 3 : m + 2 * (m + 1)) / 4);
    }
    CHECK(sent_between_stages(2, m, "1f1b").first == 2 * m * activations / 2);
  }
}

TEST_CASE("with one forward and one backward, memory is that of as many microbatches as stages",
          "[pipeline]") {
  for (const char* layout : {"layers:pipe", "layers:pipe;vocab:pipe"}) {
    for (const bool tied : {false, true}) {
      const auto bytes = [&](int64_t microbatches, const std::string& schedule) {
        return explain_gpt("pipe:4", layout, microbatches, schedule, 2, tied).memory.transient;
      };
      const int64_t few = bytes(8, "1f1b");
      CHECK(few == bytes(16, "1f1b"));
      CHECK(few == bytes(32, "1f1b"));
      CHECK(few < bytes(8, "gpipe") * 7 / 10);
    }
  }
}

TEST_CASE("with chunks, memory does not grow with microbatches either", "[pipeline]") {
  const auto bytes = [&](int64_t microbatches) {
    return explain_gpt("pipe:2", "layers:pipe*2", microbatches, "1f1b", 2).memory.transient;
  };
  CHECK(bytes(8) == bytes(16));
  CHECK(bytes(16) == bytes(32));
}

TEST_CASE("between chunks go the activations of a microbatch, once each way", "[pipeline]") {
  const int64_t activations = 3 * 6 * 12 * 4;
  for (const int64_t m : {4, 6, 8}) {
    const auto [next, last] = sent_between_stages(2, m, "1f1b", "layers:pipe*2");
    CHECK(last == 2 * m * activations / 2);
    // 3 transfers a microbatch to 2 ranks; the mean of a tick is rounded up.
    const int64_t sent = 2 * m * activations * 3 / 2, ticks = 2 * (4 * m + 2 + 1);
    CHECK(next >= sent);
    CHECK(next < sent + ticks);
  }
}

TEST_CASE("what the last layers made is on its way while stages compute", "[pipeline]") {
  CHECK(sent_ahead("layers:pipe", true) == 1);
  CHECK(sent_ahead("layers:pipe*2", true) == 6);  // what chunks send, too: in lanes, 3 and 2
  CHECK(sent_ahead("layers:pipe", false) == 0);
}

TEST_CASE("a transfer between stages takes as long as the stage that sends most", "[pipeline]") {
  const Machine machine = slow_link();
  const double activations = 3 * 6 * 12 * 4;
  for (const int stages : {2, 4}) {
    const Explanation e =
        explain_gpt("pipe:" + std::to_string(stages), "layers:pipe", 8, "1f1b", 3, false, &machine);
    double last = 0;
    for (const CollectiveReport& c : e.functions.back().collectives)
      last += c.rule == "layers:pipe: from the last stage" ? c.seconds : 0;
    CHECK(last == Approx(2 * 8 * (stages - 1) * activations / 1e6));
  }
}

TEST_CASE("stages that wait for each other take the longer pass in each tick", "[pipeline]") {
  Machine machine = slow_link();
  machine.links[0].bandwidth = 1e15;
  const auto time = [&](const char* layout) {
    return explain_gpt("pipe:4", layout, 8, "1f1b", 3, false, &machine).functions.back().time;
  };
  const TimeReport free = time("layers:pipe"), in_step = time("layers:pipe;vocab:pipe");
  CHECK(in_step.compute < free.compute);
  // A backward has twice the products of a forward. 18 of 22 ticks have one on some stage, 4 have
  // only forwards, and a stage runs 8 of each: 18 * 2 + 4 - 8 * 3 are waited for, 9 if it is free.
  const double forward = free.bubble / 9;
  CHECK(in_step.bubble > 15 * forward);
  CHECK(in_step.bubble < 17 * forward);
}

TEST_CASE("a stage with chunks awaits only what it runs next", "[pipeline]") {
  Machine machine = slow_link();
  machine.links[0].bandwidth = 1e15;
  const auto bubble = [&](const char* layout, int64_t microbatches) {
    return explain_gpt("pipe:8", layout, microbatches, "1f1b", 3, false, &machine, 16)
        .functions.back()
        .time.bubble;
  };
  CHECK(bubble("layers:pipe*2", 16) == Approx(bubble("layers:pipe", 16) / 2).epsilon(0.01));
}

TEST_CASE("explain says how long stages are idle", "[pipeline]") {
  const auto notes = [](int64_t microbatches, const std::string& schedule = "gpipe") {
    return explain_gpt("pipe:4", "layers:pipe", microbatches, schedule).notes;
  };
  REQUIRE(notes(8).size() == 1);  // one for forward and backward
  CHECK(notes(8)[0] ==
        "8 microbatches pass through 4 stages along 'pipe' in 22 ticks: a stage is idle in 27 % of "
        "them; more microbatches make that less, but each of them has smaller matmuls: only times, "
        "of a machine's profile, say which is faster");
  CHECK(
      notes(2)[0].find("2 microbatches pass through 4 stages along 'pipe' in 10 ticks: a stage is "
                       "idle in 60 %") == 0);
  CHECK(notes(1)[0].find("1 microbatch passes through 4 stages along 'pipe' in 8 ticks: a stage is "
                         "idle in 75 %") == 0);
  const auto both = notes(8, "1f1b");
  const auto few = explain_gpt("pipe:6", "layers:pipe", 8, "gpipe").notes;
  CHECK(std::count(few.begin(), few.end(),
                   "dim 'layers' of 4 is padded to 6: 33 % of its memory and work is wasted; give "
                   "it fewer ranks") == 1);
  const auto chunks = explain_gpt("pipe:2", "layers:pipe*2", 8, "1f1b").notes;
  REQUIRE(chunks.size() == 1);
  CHECK(chunks[0].find("8 microbatches pass through 2 stages along 'pipe' in 34 ticks: a stage is "
                       "idle in 6 %") == 0);
  REQUIRE(both.size() == 1);
  CHECK(both[0].find("8 microbatches pass through 4 stages along 'pipe' in 22 ticks: a stage is "
                     "idle in 27 %") == 0);
}

TEST_CASE("a schedule that does not take the chunks of a rule is an error", "[pipeline][errors]") {
  expect_usage({"layout rule 'layers:pipe': pipeline_schedule=interleaved wants 2 chunks of layers",
                "write the rule with '*2', or take pipeline_schedule=1f1b"},
               [] { explain_gpt("pipe:2", "layers:pipe", 4, "interleaved"); });
  expect_usage({"layout rule 'layers:pipe*2': 2 chunks of layers a stage need",
                "pipeline_schedule=1f1b", "gpipe has at most 1"},
               [] { explain_gpt("pipe:2", "layers:pipe*2", 4, "gpipe"); });
  expect_usage({"unknown pipeline_schedule 'zb_h2'; did you mean 'zb_h1'?"},
               [] { explain_gpt("pipe:2", "layers:pipe", 4, "zb_h2"); });
}

TEST_CASE("with zb_h1 stages are idle in fewer ticks, and memory does not grow with microbatches",
          "[pipeline]") {
  const auto report = [](int64_t microbatches, const char* schedule) {
    return explain_gpt("pipe:4", "layers:pipe", microbatches, schedule, 2);
  };
  // P - 1 of 3 M + P - 1 ticks, as the paper has it for works that take equally long.
  const PipelineReport p = report(8, "zb_h1").functions.back().pipelines.at(0);
  CHECK(p.ticks == 3 * 8 + 4 - 1);
  CHECK(p.busy == 3 * 8);
  CHECK(report(16, "zb_h1").memory.transient == report(32, "zb_h1").memory.transient);
  CHECK(report(16, "zb_h1").memory.transient < report(16, "gpipe").memory.transient);
}

TEST_CASE(
    "with zb_v stages are idle for P - 1 ticks of a chunk, and between chunks nothing is sent",
    "[pipeline]") {
  const auto report = [](int64_t microbatches, const char* layout, const char* schedule) {
    return explain_gpt("pipe:4", layout, microbatches, schedule, 2, false, nullptr, 8);
  };
  const auto zb_v = [&](int64_t microbatches) {
    return report(microbatches, "layers:pipe*2", "zb_v");
  };
  const Explanation e = zb_v(8);
  const PipelineReport p = e.functions.back().pipelines.at(0);
  CHECK(p.ticks == 2 * 3 * 8 + 4 - 1);
  CHECK(p.busy == 2 * 3 * 8);
  CHECK(zb_v(16).memory.transient == zb_v(32).memory.transient);
  // A microbatch goes down three links and up three, where interleaved 1F1B has a fourth between
  // its chunks: from the last stage to the first.
  const auto sent = [](const Explanation& of) {
    int64_t bytes = 0;
    for (const CollectiveReport& c : of.functions.back().collectives) {
      if (c.rule.find("to the next stage") != std::string::npos) bytes += c.bytes;
    }
    return bytes;
  };
  CHECK(sent(e) * 7 == Approx(sent(report(8, "layers:pipe*2", "zb_h1")) * 6).epsilon(0.01));
}

/// 20 steps of a gpt in stages, and what a checkpoint has of them.
Values trained_gpt(const std::string& mesh, const std::string& layout, const char* schedule) {
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = 8, o.scan = true, o.batch = 2, o.dropout = 0.1;
  Graph g;
  nn::Model model;
  const auto part = [&] {
    model = nn::gpt(g, o);
    return model.loss;
  };
  const Minimized step =
      minimize_in_microbatches(g, "batch", 4, part, constant(g, 0.01), adam(), {.clip = 1});
  const Tensor loss = identity(step.loss).named("loss");
  const Mesh on = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(on.size());
  CompileOptions options{on, Layout::parse(layout), {{"train", {loss}, true}}};
  options.pipeline_schedule = schedule;
  Session session(g, cluster, options);
  for (int64_t i = 0; i < 20; ++i) {
    for (const char* name : {"inputs", "targets"}) {
      Array tokens(DType::int32, {"batch", "length"}, {8, o.length});
      for (int64_t k = 0; k < tokens.elements(); ++k)
        tokens.data<int32_t>()[k] = static_cast<int32_t>((i * 7 + k * k + (name[0] == 't')) % 17);
      session.feed(name, tokens);
    }
    session.run("train");
  }
  Values values{{"loss", session.fetch("loss")}};
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

TEST_CASE("every schedule trains to the same bits", "[pipeline]") {
  for (const auto& [mesh, others] : {std::pair{"pipe:2", ""},
                                     {"pipe:4", ""},
                                     {"pipe:2;data:2", ";batch:data"},
                                     {"pipe:2;model:2", ";ff,vocab:model"}}) {
    const Values want = trained_gpt(mesh, std::string("layers:pipe") + others, "1f1b");
    for (const PipelineSchedule& schedule : pipeline_schedules()) {
      for (const int64_t chunks : {1, 2}) {
        if (!takes_chunks(schedule, chunks)) continue;
        INFO(mesh << ", " << schedule.name << ", " << chunks << " chunks");
        const std::string rule = chunks == 1 ? "layers:pipe" : "layers:pipe*2";
        const Values got = trained_gpt(mesh, rule + others, schedule.name.c_str());
        REQUIRE(got.size() == want.size());
        for (const auto& [name, value] : want) {
          INFO(name);
          REQUIRE(got.at(name).bytes == value.bytes);
        }
      }
    }
  }
}

TEST_CASE("a layer that another rule splits over the axis of its stages is an error",
          "[pipeline]") {
  Graph g;
  const Dim batch("batch", 4), others("others", 2);
  Tensor x = g.input("x", {batch, kModel}, DType::float64);
  Tensor y = repeat({"layers", 4}, x, [&](Tensor t) {
    Tensor more = broadcast(layer(t, x), Shape{batch, others, kModel});
    return reduce_mean(square(more), "others");
  });
  const auto compile = [&](const char* layout) {
    explain(g, {Mesh::parse("pipe:2;a:2"), Layout::parse(layout), {{"run", {y}, false}}});
  };
  expect_usage(
      {"is split along 'others' over mesh axis 'pipe', whose ranks are stages of 'layers'",
       "'others:pipe' and 'layers:pipe'", "give 'others' another axis", "pipeline_test.cpp:"},
      [&] { compile("layers:pipe;others:pipe"); });
  compile("layers:pipe;others:a");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
