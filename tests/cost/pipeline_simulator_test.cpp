// Pipelines event by event, against the formulas for equal stages.
#include "cost/pipeline_simulator.h"

#include "cost/stream_simulator.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

Pipeline equal(int stages, int per_stage, int64_t microbatches) {
  Pipeline p;
  p.stages = stages;
  p.microbatches = microbatches;
  p.chunks.assign(static_cast<size_t>(stages * per_stage), {1.0 / per_stage, 2.0 / per_stage});
  return p;
}

TEST_CASE("1F1B of equal stages takes microbatches + stages - 1", "[pipeline]") {
  for (int stages : {1, 2, 4, 7}) {
    for (int64_t m : {1, 2, 5, 16}) {
      const PipelineTime t = simulate(equal(stages, 1, m));
      CHECK(t.seconds == Approx(3.0 * static_cast<double>(m + stages - 1)));
      CHECK(t.bubble() == Approx((stages - 1.0) / static_cast<double>(m + stages - 1)));
      CHECK(t.spans.size() == static_cast<size_t>(2 * stages * m));
    }
  }
}

TEST_CASE("interleaved stages have a bubble as many times smaller", "[pipeline]") {
  for (int stages : {2, 4}) {
    for (int v : {2, 3}) {
      for (int64_t m : {4, 8, 16}) {
        const PipelineTime t = simulate(equal(stages, v, m));
        INFO(stages << " stages, " << v << " chunks, " << m << " microbatches");
        CHECK(t.seconds == Approx(3.0 * static_cast<double>(m) + 3.0 * (stages - 1) / v));
        for (double busy : t.busy) CHECK(busy == Approx(3.0 * static_cast<double>(m)));
      }
    }
  }
}

TEST_CASE(
    "ZB-H1: a bubble of (P - 1)(F + B - W) beside (P - 1)(F + B + W), with the memory of 1F1B",
    "[pipeline]") {
  for (const auto& [backward, weights] : {std::pair{1.0, 1.0}, {1.2, 0.8}, {1.1, 0.9}}) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int chunks : {1, 2, 4}) {
        for (const int64_t m : {2 * stages, 4 * stages}) {
          INFO(stages << " stages, " << chunks << " chunks, " << m << " microbatches");
          Pipeline p = equal(stages, chunks, m);
          for (ChunkTime& chunk : p.chunks)
            chunk = {1.0 / chunks, (backward + weights) / chunks, weights / chunks};
          const double work = static_cast<double>(m) * (1 + backward + weights);
          CHECK(simulate(p).seconds - work ==
                Approx((stages - 1) * (1 + backward + weights) / chunks));
          const double kept = microbatches_kept(p, 0);
          p.schedule = "zb_h1";
          CHECK(simulate(p).seconds - work ==
                Approx((stages - 1) * (1 + backward - weights) / chunks));
          for (int s = 0; s < stages; ++s) CHECK(microbatches_kept(p, s) <= kept);
        }
      }
    }
  }
}

TEST_CASE("ZB-V: a bubble of (P - 1) max(F, B, W) / 2 with the memory of 1F1B, and chunks in a V",
          "[pipeline]") {
  for (const auto& [backward, weights] :
       {std::pair{1.0, 1.0}, {1.2, 0.8}, {1.1, 0.9}, {1.3, 1.0}, {0.9, 1.1}}) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int64_t m : {2 * stages, 4 * stages, 16 * stages}) {
        INFO(stages << " stages, " << m << " microbatches, B " << backward << ", W " << weights);
        Pipeline p = equal(stages, 2, m);
        for (ChunkTime& chunk : p.chunks) chunk = {0.5, (backward + weights) / 2, weights / 2};
        p.schedule = "zb_v";
        const PipelineTime time = simulate(p);
        const double work = static_cast<double>(m) * (1 + backward + weights);
        CHECK(time.seconds - work == Approx((stages - 1) * std::max({1.0, backward, weights}) / 2));
        for (int s = 0; s < stages; ++s) {
          // Whoever has begun never waits, and so ends as many ticks before the last one.
          if (backward == weights)
            CHECK(time.stage_end[static_cast<size_t>(s)] == Approx(work + s * 0.5));
          CHECK(microbatches_kept(p, s) <= stages);
        }
        for (const PipelineSpan& span : time.spans)
          CHECK(span.stage == (span.chunk < stages ? span.chunk : 2 * stages - 1 - span.chunk));
      }
    }
  }
}

TEST_CASE("no stage holds more microbatches than there are stages behind it", "[pipeline]") {
  const PipelineTime t = simulate(equal(4, 1, 12));
  std::vector<std::pair<double, int>> change;  // of stage 1
  for (const PipelineSpan& s : t.spans) {
    if (s.stage == 1)
      change.emplace_back(s.work == StageWork::forward ? s.begin : s.begin + s.seconds,
                          s.work == StageWork::forward ? 1 : -1);
  }
  std::sort(change.begin(), change.end());
  int held = 0, most = 0;
  for (const auto& [at, by] : change) most = std::max(most, held += by);
  CHECK(most == 3);
  CHECK(held == 0);
}

TEST_CASE("uneven stages and transfers count", "[pipeline]") {
  Pipeline p = equal(2, 1, 4);
  p.chunks[1] = {2, 4};
  CHECK(simulate(p).seconds == Approx(1 + 4 * 6 + 2));
  p = equal(2, 1, 1);
  p.transfer = 0.5;
  p.blocking = false;
  CHECK(simulate(p).seconds == Approx(1 + 0.5 + 1 + 2 + 0.5 + 2));
  p.blocking = true;
  p.microbatches = 8;
  const double blocked = simulate(p).seconds;
  p.blocking = false;
  CHECK(blocked > simulate(p).seconds);
}

TEST_CASE("pipelines that cannot be are refused", "[pipeline][errors]") {
  expect_usage({"interleaved stages", "4 stages divide; 6 are given"},
               [] { simulate(equal(4, 2, 6)); });
  Pipeline p = equal(3, 1, 2);
  p.chunks.pop_back();
  expect_usage({"2 chunks", "3 stages"}, [&] { simulate(p); });
  p = equal(2, 2, 4);
  p.schedule = "gpipe";
  expect_usage({"schedule gpipe does not take 2 chunks"}, [&] { simulate(p); });
  p.stages = 0;
  expect_usage({"a pipeline of 0 stages"}, [&] { simulate(p); });
}

TEST_CASE("lanes remember who waited for whom", "[pipeline]") {
  StreamSimulator lanes({true, 1, 1});
  const int a = lanes.start(3, 1), b = lanes.start(2, 1), c = lanes.start(4, 2);
  lanes.compute(1);
  lanes.wait(b);
  CHECK(lanes.now() == Approx(5));
  CHECK(lanes.exposed(a) == Approx(2));
  CHECK(lanes.exposed(b) == Approx(2));
  lanes.wait(c);
  CHECK(lanes.exposed(c) == 0);
  CHECK(lanes.now() == Approx(5));
  lanes.start(0, 1);
  lanes.wait_all();
  CHECK(lanes.now() == Approx(5));
  CHECK(lanes.computed() == Approx(1));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
