// The stages of a pipeline, tick by tick, with times that are worked out by hand.
#include "cost/stage_simulator.h"

#include "program/slicing.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

using enum StageOp::Kind;

constexpr int64_t kBytes = 100;  ///< of a stage's slice

/// A message of a slice takes 1 + 10 s, of which the link is busy for 10.
Machine machine(const Overlap& overlap = {}) {
  Machine m;
  m.name = "toy";
  m.links = {{"link", 0, 1, 10, 0}};
  m.overlap = overlap;
  return m;
}

/// Stage s takes the slice of stage (first + by_stage * s) / kBytes; of beyond the last: none.
Step exchange(int stages, int64_t first, int64_t by_stage) {
  Step step;
  Slicing from{{stages * kBytes}, {{0}}, {}}, to{{stages * kBytes}, {{}}, {}};
  AffineExpr begin;
  begin.constant = first;
  begin.axis_terms = {{0, by_stage}};
  to.intervals = {{0, begin, kBytes, stages * kBytes, false}};
  describe_exchange(from, to, step);
  step.kind = StepKind::collective;
  step.collective = CollectiveKind::exchange;
  step.in = step.out = {View{0, DType::uint8, {kBytes}, {1}, 0, {}}};
  step.bytes = kBytes;
  step.axes = {0};
  return step;
}
Step to_second() { return exchange(2, 2 * kBytes, -2 * kBytes); }
Step to_first() { return exchange(2, kBytes, kBytes); }
Step both_ways() { return exchange(2, kBytes, -kBytes); }
Step sum_of_all() {
  Step step;
  step.kind = StepKind::collective;
  step.collective = CollectiveKind::all_reduce;
  step.in = step.out = {View{0, DType::uint8, {kBytes}, {1}, 0, {}}};
  step.axes = {0};
  return step;
}

/// Simulates `ticks` ticks in which each stage runs its list of ops. Starts name a step of `steps`.
StagesTime simulate(std::vector<Step> steps, const std::vector<std::vector<StageOp>>& lists,
                    const Machine& on = machine(), int64_t ticks = 1) {
  Step loop;
  loop.kernel = KernelKind::loop;
  loop.loop = {ticks, 0, false, {}};
  loop.body.emplace_back();
  loop.body[0].steps = std::move(steps);
  const std::span<const Step> all(loop.body[0].steps);
  std::vector<std::vector<StageOp>> ops = lists;
  for (std::vector<StageOp>& list : ops) {
    for (StageOp& op : list) {
      if (op.kind == start) op.bucket = all.subspan(static_cast<size_t>(op.number), 1);
    }
  }
  const Mesh mesh = Mesh::parse("pipe:" + std::to_string(lists.size()));
  const Costs costs(on, mesh);
  StageSimulator simulator(
      costs, loop, 0, 0, [&](std::span<const Step>, int, int stage) -> const std::vector<StageOp>& {
        return ops[static_cast<size_t>(stage)];
      });
  return simulator.simulate();
}

StageOp work_of(double seconds) { return {.kind = work, .seconds = seconds, .compute = seconds}; }
StageOp start_of(int number) { return {.kind = start, .step = number, .number = number}; }
StageOp wait_of(int number) { return {.kind = wait, .number = number}; }

/// The same ops on both stages, but for the first: so much work.
std::vector<std::vector<StageOp>> after_work(double first, double second,
                                             const std::vector<StageOp>& then) {
  std::vector<std::vector<StageOp>> lists(2);
  for (const auto& [list, seconds] : {std::pair{&lists[0], first}, {&lists[1], second}}) {
    list->push_back(work_of(seconds));
    list->insert(list->end(), then.begin(), then.end());
  }
  return lists;
}

TEST_CASE("stages: a link passes both directions at once, and each in turn", "[pipeline]") {
  const std::vector<StageOp> one = {start_of(0), wait_of(0)},
                             two = {start_of(0), start_of(1), wait_of(0), wait_of(1)};
  CHECK(simulate({to_second()}, after_work(0, 0, one)).seconds == Approx(11));
  CHECK(simulate({both_ways()}, after_work(0, 0, one)).seconds == Approx(11));
  CHECK(simulate({to_second(), to_first()}, after_work(0, 0, two)).seconds == Approx(11));
  CHECK(simulate({to_second(), to_second()}, after_work(0, 0, two)).seconds == Approx(21));
  // To two stages from a third one, and from two of them to it: one direction.
  const std::vector<std::vector<StageOp>> three(3, one);
  CHECK(simulate({exchange(3, 0, 0)}, three).seconds == Approx(21));
  const std::vector<std::vector<StageOp>> two_of_three(3, two);
  const Step from_second = exchange(3, kBytes, 3 * kBytes),  // to the first
      from_third = exchange(3, 2 * kBytes, 3 * kBytes);
  CHECK(simulate({from_second, from_third}, two_of_three).seconds == Approx(21));
}

TEST_CASE("stages: waiting for a transfer is exposed, waiting for work is the bubble",
          "[pipeline]") {
  // The second stage has its data at 4 + 11, and began to wait at 1.
  const StagesTime t = simulate({to_second()}, after_work(4, 1, {start_of(0), wait_of(0)}));
  CHECK(t.seconds == Approx(15));
  REQUIRE(t.transfers.size() == 1);
  CHECK(t.transfers[0].exposed == Approx(11));
  CHECK(t.exposed == Approx(11));
  CHECK(t.work == Approx(2.5));
  CHECK(t.only_compute == Approx(4));
  // What came before it is needed costs nothing.
  const StagesTime before = simulate({to_second()}, after_work(1, 30, {start_of(0), wait_of(0)}));
  CHECK(before.seconds == Approx(30));
  CHECK(before.exposed == Approx(0));
  // A stage that only sends goes on.
  CHECK(t.runs[0].end == Approx(4));
}

TEST_CASE("stages: a late transfer counts where it makes the pipeline late, and once",
          "[pipeline]") {
  // There and back: the first stage goes on 22 s later than with a link that takes no time.
  const StagesTime t =
      simulate({to_second(), to_first()},
               after_work(1, 0, {start_of(0), wait_of(0), work_of(1), start_of(1), wait_of(1)}));
  CHECK(t.seconds == Approx(1 + 11 + 1 + 11));
  CHECK(t.exposed == Approx(22));
  CHECK(t.transfers[0].exposed == Approx(22.0 / 3));  // one stage was late by 11, then one by 22
  CHECK(t.transfers[1].exposed == Approx(44.0 / 3));
  // The second stage is late, but has nothing to do before the first one is done.
  const StagesTime slack = simulate(
      {to_second(), to_second()}, {{start_of(0), wait_of(0), work_of(40), start_of(1), wait_of(1)},
                                   {start_of(0), wait_of(0), work_of(1), start_of(1), wait_of(1)}});
  CHECK(slack.seconds == Approx(40 + 11));
  CHECK(slack.exposed == Approx(11));
}

TEST_CASE("stages: a message does not wait for one that is sent later", "[pipeline]") {
  // The third stage sends at 100 in an earlier step than the second one, which sends at 1.
  const Step from_third = exchange(3, 2 * kBytes, 3 * kBytes),
             from_second = exchange(3, kBytes, 3 * kBytes);
  const std::vector<StageOp> then = {start_of(0), start_of(1), wait_of(1), work_of(1), wait_of(0)};
  std::vector<std::vector<StageOp>> lists;
  for (const double seconds : {0.0, 1.0, 100.0}) {
    lists.push_back({work_of(seconds)});
    lists.back().insert(lists.back().end(), then.begin(), then.end());
  }
  const StagesTime t = simulate({from_third, from_second}, lists);
  CHECK(t.runs[0].begins[4] == Approx(1 + 11));
  CHECK(t.seconds == Approx(100 + 11));
}

TEST_CASE("stages: other collectives keep all of them in step", "[pipeline]") {
  const Machine on = machine();
  const Mesh mesh = Mesh::parse("pipe:2");
  const Step sum = sum_of_all();
  const double seconds = Costs(on, mesh).collective(sum);
  const StagesTime t = simulate({sum}, after_work(4, 1, {start_of(0), wait_of(0)}));
  CHECK(t.seconds == Approx(4 + seconds));
  CHECK(t.exposed == Approx(seconds));
  CHECK(t.only_compute == Approx(4));
  CHECK(simulate({sum}, after_work(4, 1, {{.kind = meet}, work_of(2)})).runs[1].end == Approx(6));
  // In each tick they wait for the slower one.
  CHECK(simulate({sum}, after_work(4, 1, {start_of(0), wait_of(0)}), on, 3).seconds ==
        Approx(3 * (4 + seconds)));
}

TEST_CASE("stages: where transfers and computing do not overlap, one passes while a stage waits",
          "[pipeline]") {
  const Machine on = machine({.possible = false});
  const StagesTime t = simulate({to_second()}, after_work(1, 30, {start_of(0), wait_of(0)}), on);
  CHECK(t.seconds == Approx(41));
  CHECK(t.exposed == Approx(11));
  const StagesTime sum = simulate({sum_of_all()}, after_work(1, 30, {start_of(0), wait_of(0)}), on);
  CHECK(sum.seconds == Approx(30 + sum.transfers[0].seconds));
}

TEST_CASE("stages: transfers and computing slow each other down", "[pipeline]") {
  // The first stage computes for 10 s while its message leaves: half as fast.
  const StagesTime t =
      simulate({to_second()}, after_work(0, 0, {start_of(0), work_of(20), wait_of(0)}),
               machine({.possible = true, .compute = 2}));
  CHECK(t.runs[0].end == Approx(25));
  CHECK(t.slowed == Approx((5 + 5.5) / 2));
  // It arrives while the second one computes, which takes twice as long as the message does alone.
  const StagesTime late = simulate({to_second()}, after_work(1, 6, {start_of(0), wait_of(0)}),
                                   machine({.possible = true, .transfer = 2}));
  CHECK(late.seconds == Approx(1 + 5 + (11 - 2.5)));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
