// Schedules as tables: the pictures of the documentation, and what holds for every schedule.
#include "program/pipeline_table.h"

#include <fmt/format.h>

#include <set>

#include "program/schedules/schedules.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

PipelineTable table_of(const std::string& name, int64_t stages, int64_t chunks,
                       int64_t microbatches) {
  const ScheduleRow& row = schedule_row(name);
  return row.table({passes_of(row, chunks), stages, microbatches, chunks > 1});
}

/// The letter of a pass, and that of its chunk if a stage has several.
std::pair<char, std::string> name_of(const PipelineTable& table, size_t pass) {
  const StageWork work = table.passes()[pass].work;
  int of_work = 0, before = 0;
  for (size_t p = 0; p < table.passes().size(); ++p) {
    of_work += table.passes()[p].work == work;
    before += p < pass && table.passes()[p].work == work;
  }
  const int chunk = work == StageWork::forward ? before : of_work - 1 - before;
  return {" FBW"[static_cast<size_t>(work)],
          of_work > 1 ? std::string(1, static_cast<char>('a' + chunk)) : ""};
}

/// A line for each stage: "F0 F1 .  B0". With several chunks, a letter for each behind: "F0a".
std::string picture_of(const PipelineTable& table) {
  std::string text;
  for (int64_t s = 0; s < table.stages(); ++s) {
    std::vector<std::string> cells(static_cast<size_t>(table.ticks()));
    for (const ScheduledWork& work : table.works_of(s)) {
      const auto [letter, chunk] = name_of(table, work.pass);
      cells[static_cast<size_t>(table.tick_of(work, s))] +=
          fmt::format("{}{}{}", letter, work.microbatch, chunk);
    }
    std::string line;
    for (const std::string& cell : cells) line += fmt::format("{:<4}", cell.empty() ? "." : cell);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

TEST_CASE("schedules as pictures", "[pipeline]") {
  CHECK(picture_of(table_of("1f1b", 2, 1, 4)) ==
        "F0  .   F1  B0  F2  B1  F3  B2  .   B3\n"
        ".   F0  B0  F1  B1  F2  B2  F3  B3  .\n");
  CHECK(picture_of(table_of("gpipe", 2, 1, 2)) ==
        "F0  F1  .   .   B0  B1\n"
        ".   F0  F1  B0  B1  .\n");
  CHECK(picture_of(table_of("1f1b", 2, 2, 2)) ==
        "F0a F1a F0b F1b .   .   B0b B1b B0a B1a\n"
        ".   F0a F1a F0b F1b B0b B1b B0a B1a .\n");
  CHECK(picture_of(table_of("zb_h1", 2, 1, 4)) ==
        "F0  F1  .   B0  W0  F2  B1  W1  F3  B2  W2  B3  W3\n"
        ".   F0  B0  F1  B1  W0  F2  B2  W1  F3  B3  W2  W3\n");
  CHECK(picture_of(table_of("zb_v", 2, 2, 3)) ==
        "F0a F1a F2a F0b B0b W0b F1b B1b W1b B0a W0a F2b B2b B1a W2b B2a W1a W2a .\n"
        ".   F0a F0b F1a F1b B0b W0b F2a B0a W0a F2b B1b B1a B2b B2a W1b W1a W2b W2a\n");
}

TEST_CASE("zb_v: P - 1 idle ticks from 2P - 1 microbatches on, and chunks as two stages have them",
          "[pipeline]") {
  for (const int64_t stages : {1, 2, 3, 4, 8, 16}) {
    for (int64_t m = 1; m <= 40; ++m) {
      INFO(stages << " stages, " << m << " microbatches");
      const PipelineTable table = table_of("zb_v", stages, 2, m);
      const int64_t idle = table.ticks() - 6 * m;
      CHECK(idle >= stages - 1);
      if (m >= 2 * stages - 1) CHECK(idle == stages - 1);
      for (int64_t s = 0; s < stages; ++s) CHECK(table.most_kept(s) <= 2 * std::min(stages, m));
      // Forward of the second chunk begins where that of the first one ends, and so on.
      const auto chain = [&](size_t pass, int64_t stage, size_t next) {
        const std::optional<PassStage> to = table.target(pass, stage);
        REQUIRE(to);
        CHECK(to->pass == next);
        CHECK(to->stage == stage);
      };
      chain(0, stages - 1, 1);
      chain(1, 0, 2);
      chain(2, stages - 1, 4);
    }
  }
}

TEST_CASE("zb_v takes any loops over layers: several, and forward alone", "[pipeline]") {
  const ScheduleRow& row = schedule_row("zb_v");
  const std::vector<PipelinePass> one = passes_of(row, 2);
  std::vector<PipelinePass> two(one.begin(), one.begin() + 2);
  two.insert(two.end(), one.begin(), one.end());
  std::vector<PipelinePass> frozen = two;  // the first loop has no gradients
  two.insert(two.end(), one.begin() + 2, one.end());
  const std::vector<PipelinePass> forward(one.begin(), one.begin() + 2);
  for (const std::vector<PipelinePass>& passes : {two, frozen, forward}) {
    for (const int64_t stages : {1, 2, 3, 4, 8}) {
      for (const int64_t m : {1, 2, 3, 8, 17, 40}) {
        const PipelineTable table = row.table({passes, stages, m, true});
        for (int64_t s = 0; s < stages; ++s) {
          for (const ScheduledWork& work : table.works_of(s)) {
            const int64_t tick = table.tick_of(work, s);
            CHECK(tick >= 0);
            if (const auto source = table.source(work.pass, s))
              CHECK(table.tick_of({source->pass, work.microbatch}, source->stage) < tick);
          }
        }
      }
    }
  }
}

TEST_CASE("in every schedule a stage runs each work once, after that whose result it takes",
          "[pipeline]") {
  for (const ScheduleRow& row : schedule_rows()) {
    for (int64_t chunks = row.what.least_chunks;
         chunks <= std::min<int64_t>(4, row.what.most_chunks); ++chunks) {
      for (const int64_t stages : {2, 3, 4, 8}) {
        for (int64_t m = 1; m <= 17; ++m) {
          INFO(row.what.name << ", " << stages << " stages, " << chunks << " chunks, " << m);
          const PipelineTable table = table_of(row.what.name, stages, chunks, m);
          double kept = 0;
          for (int64_t s = 0; s < stages; ++s) {
            std::set<int64_t> taken;
            std::vector<size_t> weights(static_cast<size_t>(m), 0);  // the last pass, by microbatch
            for (const ScheduledWork& work : table.works_of(s)) {
              const int64_t tick = table.tick_of(work, s);
              CHECK(tick >= 0);
              CHECK(tick < table.ticks());
              CHECK(taken.insert(tick).second);  // one at a time
              if (table.passes()[work.pass].work == StageWork::weights) {
                size_t& last = weights[static_cast<size_t>(work.microbatch)];
                CHECK(last < work.pass);
                last = work.pass;
              }
              const auto source = table.source(work.pass, s);
              if (source)
                CHECK(table.tick_of({source->pass, work.microbatch}, source->stage) < tick);
              if (work.microbatch > 0)
                CHECK(table.tick_of({work.pass, work.microbatch - 1}, s) < tick);
            }
            CHECK(std::ssize(taken) == std::ssize(table.passes()) * m);
            kept = std::max(kept, static_cast<double>(table.most_kept(s)));
          }
          if (m % stages == 0)
            CHECK(kept / static_cast<double>(chunks) <= row.kept(static_cast<double>(stages),
                                                                 static_cast<double>(m),
                                                                 static_cast<double>(chunks)) +
                                                            1e-9);
        }
      }
    }
  }
}

TEST_CASE("interleaved ticks: 2 M v + 2 (P - 1) if P divides M, and any M", "[pipeline]") {
  for (const int64_t stages : {1, 2, 3, 4, 8}) {
    for (const int64_t v : {2, 3, 4}) {
      for (int64_t m = 1; m <= 17; ++m) {
        INFO(stages << " stages, " << v << " chunks, " << m << " microbatches");
        const int64_t ticks = table_of("1f1b", stages, v, m).ticks();
        if (m % stages == 0) CHECK(ticks == 2 * m * v + 2 * (stages - 1));
        CHECK(ticks >= 2 * m * v + 2 * (stages - 1));
      }
    }
  }
}

TEST_CASE("a schedule that is unknown is refused with the nearest name", "[pipeline][errors]") {
  expect_usage({"unknown pipeline_schedule '1fb1'; did you mean '1f1b'?", "gpipe"},
               [] { pipeline_schedule("1fb1"); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
