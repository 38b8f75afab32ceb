// Sessions on one Cluster in random order: made, run, stopped by data that does not fit, destroyed.
// Each has a twin on one rank that sees only the runs which end well; both stay equal.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kRows = 5, kBatch = 6, kWidth = 4;

/// What may stop a run.
enum class Fault { none, index, check, guard };
constexpr Fault kFaults[] = {Fault::none, Fault::index, Fault::check, Fault::guard};

struct Model {
  Graph g;
  FunctionSpec train;
  int log_line = 0;

  explicit Model(bool is_bounded) {
    const Dim batch = is_bounded ? Dim::bounded("batch", kBatch) : Dim("batch", kBatch);
    const Dim rows("rows", kRows), width("width", kWidth), out("out", 3);
    Tensor ids = g.input("ids", {batch}, DType::int32);
    Tensor checked = g.input("checked", {batch, width}, DType::float32);
    Tensor guarded = g.input("guarded", {batch}, DType::float32);
    Tensor table = g.parameter("table", {rows, width}, nn::normal(0.5));
    Tensor w = g.parameter("w", {width, out}, nn::normal(0.5));
    Tensor x = gather(table, ids, "rows") + check_finite(checked);
    Tensor square_error = mean_all(square(einsum({x, w}, {batch, out})));
    log_line = __LINE__ + 1;
    Tensor loss = (square_error + mean_all(log(guarded))).named("loss");
    minimize(loss, 0.1, adam());
    train = {"train", {loss}, true};
  }
};

/// A Session of a model, with its model.
struct Running {
  Running(bool is_bounded, Cluster& cluster, const std::string& mesh, const std::string& layout,
          uint64_t seed)
      : model(is_bounded),
        session(model.g, cluster,
                {Mesh::parse(mesh), Layout::parse(layout), {model.train}, seed, 1, {"loss"}}) {}

  void feed(int64_t size, uint64_t seed, Fault fault) {
    std::mt19937_64 random(seed);
    const auto draw = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    const auto which = static_cast<int64_t>(random() % static_cast<uint64_t>(size));
    if (size < kBatch || session.shape_of("ids").elements() != size)
      session.set_size("batch", size);
    Array ids(DType::int32, {"batch"}, {size}), guarded(DType::float32, {"batch"}, {size}),
        checked(DType::float32, {"batch", "width"}, {size, kWidth});
    for (int64_t i = 0; i < size; ++i) {
      ids.data<int32_t>()[i] = static_cast<int32_t>(draw() * kRows);
      guarded.data<float>()[i] = static_cast<float>(1 + draw());
      for (int64_t j = 0; j < kWidth; ++j)
        checked.data<float>()[i * kWidth + j] = static_cast<float>(draw() - 0.5);
    }
    if (fault == Fault::index) ids.data<int32_t>()[which] = kRows;
    if (fault == Fault::check) checked.data<float>()[which * kWidth + 1] = NAN;
    if (fault == Fault::guard) guarded.data<float>()[which] = -1;
    session.feed("ids", ids);
    session.feed("checked", checked);
    session.feed("guarded", guarded);
  }

  Model model;
  Session session;
};

struct Pair {
  bool is_bounded = false;
  std::unique_ptr<Running> split, twin;
};

std::string words_of(Fault fault, const Model& model) {
  return fault == Fault::index   ? "index 5"
         : fault == Fault::check ? "'checked'"
                                 : fmt::format("(random_sessions_test.cpp:{})", model.log_line);
}

/// "" or what was wrong.
std::string play(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
  const std::vector<std::pair<const char*, std::vector<const char*>>> choices = {
      {"a:2", {"", "batch:a", "rows:a", "width:a", "out:a;@state width:a"}},
      {"a:3", {"batch:a", "rows:a", "batch:a;@params width:a"}},
      {"a:2;b:2", {"batch:a;width:b", "rows:a+b", "batch:b;rows:a", "batch:a;@state width:b"}}};
  const auto& [mesh, layouts] = choices[draw(choices.size())];
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size()), one = Cluster::threads(1);
  cluster.set_timeout(20);
  std::vector<Pair> pairs;
  for (int action = 0; action < 16; ++action) {
    if (pairs.empty() || (pairs.size() < 3 && draw(4) == 0)) {
      Pair pair;
      pair.is_bounded = draw(2) == 0;
      const uint64_t own = draw(100);
      pair.split = std::make_unique<Running>(pair.is_bounded, cluster, mesh,
                                             layouts[draw(layouts.size())], own);
      pair.twin = std::make_unique<Running>(pair.is_bounded, one, "a:1", "", own);
      pairs.push_back(std::move(pair));
    }
    const size_t which = draw(pairs.size());
    Pair& pair = pairs[which];
    const Fault fault = kFaults[draw(std::size(kFaults))];
    const uint64_t data = random();
    const int64_t size = pair.is_bounded ? 1 + static_cast<int64_t>(draw(kBatch)) : kBatch;
    pair.split->feed(size, data, fault);
    std::string message;
    try {
      pair.split->session.run("train");
    } catch (const Error& e) {
      message = e.what();
      if (e.kind() != ErrorKind::usage) return "another kind of error: " + message;
    }
    if (fault == Fault::none && !message.empty()) return "a good run failed: " + message;
    const std::string words = words_of(fault, pair.split->model);
    if (fault != Fault::none && message.find(words) == std::string::npos)
      return fmt::format("not told as '{}': '{}'", words, message);
    if (fault == Fault::none) {
      pair.twin->feed(size, data, fault);
      pair.twin->session.run("train");
    }
    for (const char* name : {"table", "w"}) {
      const double error = relative_error(whole_of(pair.split->session.fetch(name)),
                                          whole_of(pair.twin->session.fetch(name)));
      if (!(error < 1e-4)) return fmt::format("'{}' is off by {:.3g}", name, error);
    }
    if (draw(3) == 0) pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(which));
  }
  return "";
}

TEST_CASE("sessions of one cluster go on after others were stopped or destroyed",
          "[random_sessions]") {
  const uint64_t seed = seed_of_run(1);
  const char* wanted = std::getenv("TESSERA_SESSIONS");
  const int games = wanted ? std::atoi(wanted) : 25;
  int failures = 0;
  for (int n = 0; n < games && failures < 3; ++n) {
    std::string wrong;
    try {
      wrong = play(seed * 1000003 + static_cast<uint64_t>(n));
    } catch (const Error& e) {
      wrong = fmt::format("{} error: {}", to_string(e.kind()), e.what());
    }
    failures += !wrong.empty();
    INFO("seed " << seed << " game " << n);
    CHECK(wrong == "");
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
