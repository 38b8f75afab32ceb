// Pages: their components, what they make of bad input, and how they look and behave in a browser.
#include <cmath>

#include "cli/cli_background.h"
#include "cli/report_page.h"
#include "cli/run_log.h"
#include "cli/slow_ranks.h"
#include "cli/source_text.h"
#include "cli/sweep.h"
#include "pages/page.h"
#include "tessera/placement.h"

using namespace tessera::test;

namespace TESSERA_FILE {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

std::string config(const std::string& keys, int first_step = 0) {
  return "{\"config\": {" + keys +
         "}, \"ranks\": 2, \"first_step\": " + std::to_string(first_step) + "}\n";
}
std::string step(int n, double loss, const std::string& more = "") {
  return "{\"step\": " + std::to_string(n) + ", \"steps\": 4, \"loss\": " + std::to_string(loss) +
         more + "}\n";
}

/// A log as that of a long job, with everything that a page can show.
std::string long_log(int steps) {
  std::string text = config("\"train.lr\": \"0.001\", \"layout.mesh\": \"data:4\"");
  text.reserve(static_cast<size_t>(steps) * 220);
  for (int n = 1; n <= steps; ++n) {
    const double loss = 2 + 8.0 / std::sqrt(n) + 0.1 * std::sin(n * 12.9898);
    text += "{\"step\":" + std::to_string(n) + ",\"steps\":" + std::to_string(steps) +
            ",\"loss\":" + std::to_string(loss) +
            ",\"grad_norm\":" + std::to_string(0.5 + 0.2 * std::cos(n * 78.233)) +
            ",\"lr\":0.001,\"ms\":" + std::to_string(40 + n % 7) +
            ",\"tokens_per_s\":" + std::to_string(4096e3 / (40 + n % 7)) +
            ",\"peak_share\":0.51,\"slowest_rank\":" + std::to_string(n % 997 < 900 ? 3 : n % 4) +
            ",\"slowest_ms\":" + std::to_string(38 + n % 5) + ",\"median_ms\":37}\n";
    if (n == steps / 2) {
      text += "{\"step\":" + std::to_string(n) + ",\"spike\":\"loss 9 is above 4\"}\n";
      text += config("\"train.lr\": \"0.001\", \"layout.mesh\": \"data:4\"", n);
    }
    if (n % (steps / 10) == 0) {
      text +=
          "{\"step\":" + std::to_string(n) + ",\"eval_loss\":" + std::to_string(loss + 0.1) + "}\n";
      text += "{\"step\":" + std::to_string(n) + ",\"save_ms\":12.5,\"save_wait_ms\":0}\n";
    }
  }
  return text;
}

TEST_CASE("pages: texts of any kind stay texts", "[pages]") {
  using tessera::pages::Page;
  const std::string evil = "</script><script>alert(1)</script>\" & \xFF";
  Page page(evil, evil);
  page.note(evil);
  page.command(evil);
  page.section("one\"two", evil);
  page.pairs({{evil, evil}});
  page.table({{"a", evil}, {"n", "n", "s"}}, {{{"a", evil}, {"n", 0.002}}, 7, {{"a", nullptr}}},
             "");
  page.chart({{"kind", "bars"},
              {"title", evil},
              {"unit", "s"},
              {"rows", {{{"label", evil}, {"parts", tessera::pages::Json::array()}}}}});
  page.table({{"a", "a"}}, tessera::pages::Json::array(), "nothing <here>");
  const std::string html = page.html();
  CHECK(count(html, "<script>") == 1);  // our own
  CHECK(count(html, "</script>") == 2);
  CHECK(count(html, "alert(1)") > 5);
  CHECK(contains(html, "data-v=\"0.002\">2 ms</td>"));
  CHECK(count(html, ">-</td>") == 2);
  CHECK(contains(html, "nothing &lt;here&gt;"));
  CHECK(contains(html, "id=\"one&quot;two\""));
}

TEST_CASE("pages: numbers with their units", "[pages]") {
  using tessera::pages::with_unit;
  CHECK(with_unit(0.25, "%") == "25.0 %");
  CHECK(with_unit(2.5e-5, "s") == "25 us");
  CHECK(with_unit(0, "s") == "0 s");
  CHECK(with_unit(900, "s") == "15.0 min");
  CHECK(with_unit(1.5e9, "B") == "1.5 GB");
  CHECK(with_unit(-1200, "FLOP/s") == "-1.2 kFLOP/s");
  CHECK(with_unit(123456, "#") == "123456");
  CHECK(with_unit(NAN, "s") == "-");
}

TEST_CASE("pages: thinned curves keep their extremes, and no gaps", "[pages]") {
  std::vector<double> x, y;
  for (int i = 0; i < 10000; ++i) {
    x.push_back(i);
    y.push_back(i == 7003 ? 1000 : i == 4999 ? -5 : i % 100 == 0 ? NAN : 1);
  }
  tessera::pages::thin(x, y, 500);
  REQUIRE(x.size() == 500);
  CHECK(y.size() == 500);
  CHECK(*std::max_element(y.begin(), y.end()) == 1000);
  CHECK(*std::min_element(y.begin(), y.end()) == -5);
  CHECK(std::is_sorted(x.begin(), x.end()));
  CHECK(tessera::pages::numbers({1, 0.1234567, NAN, 1e300}).dump() == "[1,0.123457,null,1e+300]");
}

TEST_CASE("reports: several jobs, two in one file, two at once, and none with timing", "[pages]") {
  using tessera::cli::read_run_logs;
  using tessera::cli::report_page;
  const std::string a = config("\"train.lr\": \"1\", \"train.seed\": \"3\"") + step(1, 4) +
                        step(2, 3),
                    b = config("\"train.lr\": \"2\", \"train.seed\": \"3\"") + step(1, 5) +
                        step(2, 2);
  const auto both = report_page({{a, "a.jsonl"}, {b, "b.jsonl"}});
  CHECK(both.steps == 4);
  CHECK(contains(both.html, "2 training jobs"));
  CHECK(contains(both.html, "<td>train.lr</td>"));
  CHECK_FALSE(contains(both.html, "<td>train.seed</td>"));
  CHECK_FALSE(contains(both.html, "\"tokens\",\"label\""));  // no timing: curves by step only
  CHECK_FALSE(both.finished);
  // One behind the other.
  const auto two = read_run_logs(a + b, "x.jsonl");
  REQUIRE(two.size() == 2);
  CHECK(two[1].name == "x.jsonl (2)");
  CHECK(two[1].column("loss").back() == 2);
  // Resumed: the same job.
  const auto resumed = read_run_logs(a + config("\"train.lr\": \"1\"", 2) + step(3, 1), "x");
  REQUIRE(resumed.size() == 1);
  REQUIRE(resumed[0].events.size() == 1);
  CHECK(resumed[0].events[0].kind == "resumed");
  CHECK(resumed[0].events[0].step == 2);
  CHECK(resumed[0].back == 0);
  // Two jobs that write one file at the same time.
  const auto mixed = report_page({{config("") + step(1, 4) + step(2, 3) + step(1, 5), "m"}});
  CHECK(contains(mixed.html, "m: 1 step comes after a later one"));
  // A rollback is a reason to begin again.
  const auto back = read_run_logs(config("") + step(1, 4) + step(2, 9) +
                                      "{\"step\": 2, \"spike\": \"loss\"}\n"
                                      "{\"step\": 2, \"rolled_back_to\": 0}\n" +
                                      step(1, 3) + step(2, 2) + step(4, 1),
                                  "r");
  CHECK(back[0].back == 0);
  CHECK(back[0].steps.size() == 3);
  CHECK(back[0].last == 4);
  // Resumed a while before its last step, with a save among the steps that ran again.
  const auto again = read_run_logs(a + config("\"train.lr\": \"1\"", 1) +
                                       "{\"step\": 1, \"save_ms\": 1, \"save_wait_ms\": 0}\n" +
                                       step(2, 3) + step(3, 2) + step(3, 5),
                                   "x");
  REQUIRE(again.size() == 1);
  CHECK(again[0].back == 1);  // the second step 3
  CHECK(report_page({{a + step(4, 1), "a"}}).finished);
  // A later version: more fields, others of another type.
  const auto later =
      report_page({{"{\"config\": {}, \"version\": 9, \"memory\": [1], "
                    "\"communication\": 3}\n" +
                        step(1, 2,
                             ", \"ms\": \"fast\", \"new\": {\"a\": [1]}, "
                             "\"balance\": 0.5") +
                        step(2, 1, ", \"balance\": 0.75"),
                    "v"}});
  CHECK(contains(later.html, "<figcaption>balance</figcaption>"));
  CHECK(count(later.html, "The log has no plan.") == 1);  // it has collectives
  CHECK_FALSE(contains(later.html, "A step has no collectives."));
  CHECK(contains(later.html, "Tessera 9"));
}

TEST_CASE("reports: slow ranks in a sentence", "[pages]") {
  using tessera::cli::slow_ranks_text;
  using tessera::cli::SlowestRank;
  const auto host = [](int64_t rank) { return rank == 5 ? std::string("node2") : std::string(); };
  std::vector<SlowestRank> even, slow, busy;
  for (int n = 1; n <= 400; ++n) {
    even.push_back({double(n), n % 8, 1 + 0.001 * (n % 30)});
    slow.push_back({double(n), n < 120 ? n % 8 : 5, n < 120 ? 1.02 : 1.8});
    busy.push_back({double(n), n * 7 % 8, 1.1 + 0.01 * (n % 60)});
  }
  CHECK(slow_ranks_text({}, host).empty());
  CHECK(slow_ranks_text(even, host) ==
        "No rank is slow: in 95 % of the steps all ranks are within 3 % of the median.");
  CHECK(slow_ranks_text(slow, host) ==
        "Rank 5 (node2) is slow: it needs 1.8 times as long as the median rank, from step 120 on.");
  slow.resize(119);
  for (int n = 120; n <= 400; ++n) slow.push_back({double(n), n % 8, n < 200 ? 1.02 : 1.03});
  for (int n = 130; n < 230; ++n) slow[static_cast<size_t>(n - 1)] = {double(n), 3, 2.5};
  CHECK(slow_ranks_text(slow, host) ==
        "Rank 3 is slow: it needs 2.5 times as long as the median rank, from step 130 to 229.");
  CHECK(slow_ranks_text(busy, host).find("No rank is slow all the time: the slowest one changes") ==
        0);
  // A short stretch of another rank, in which little is lost, is no verdict.
  std::vector<SlowestRank> bursts;
  for (int n = 1; n <= 120; ++n) bursts.push_back({double(n), n % 4, 1.1});
  for (size_t n = 10; n < 18; ++n) bursts[n] = {double(n + 1), 0, 1.2};
  for (const size_t n : {20, 34, 52, 53, 77, 90, 101}) bursts[n] = {double(n + 1), 2, 4};
  CHECK(slow_ranks_text(bursts, host) ==
        "Rank 2 is slow now and then: in 7 of 120 steps it needs 1.5 times as long as the median "
        "rank or longer, 4.0 times in half of those. 93 % of the time that slow ranks cost is lost "
        "by it, nearly all in steps 21 to 102.");
  // Of two ranks one is the slowest in half of the steps.
  for (int n = 1; n <= 120; ++n) bursts[static_cast<size_t>(n - 1)] = {double(n), n % 2, 1.6};
  CHECK(slow_ranks_text(bursts, host).find("No rank is slow all the time") == 0);
  for (SlowestRank& s : slow) s = {s.step, 0, 1.6};
  CHECK(slow_ranks_text(slow, host) ==
        "Rank 0 is slow: it needs 1.6 times as long as the median rank, in all steps.");
}

TEST_CASE("reports: curves mark where a rank began to be slow", "[pages]") {
  std::string log = config("\"layout.mesh\": \"data:2\"");
  for (int n = 1; n <= 120; ++n) {
    log += step(n, 3);
    if (n == 20 || n == 40 || n == 60 || n == 120)
      log += "{\"step\": " + std::to_string(n) +
             ", \"slow_rank\": 1, \"why\": \"rank 1 on n is slow\"}\n";
  }
  const auto logs =
      tessera::cli::read_run_logs(log + "{\"step\": 120, \"slow_rank\": \"x\"}\n", "a");
  REQUIRE(logs[0].events.size() == 2);  // still slow at 40 and 60, again at 120
  CHECK(logs[0].events[0].step == 20);
  CHECK(logs[0].events[1].step == 120);
  CHECK(logs[0].events[1].kind == "slow rank");
  CHECK(
      contains(tessera::cli::report_page({{log, "a"}}).html, "\"slow rank: rank 1 on n is slow\""));
}

TEST_CASE("reports: the measured step by cause, and the ranks of a job whose first one is slow",
          "[pages]") {
  using tessera::cli::report_page;
  std::string log = config("\"layout.mesh\": \"data:2\"");
  for (int n = 1; n <= 12; ++n)
    log += step(n, 3,
                n == 1 ? ", \"ms\": 900, \"data_ms\": 800, \"median_ms\": 850, "
                         "\"slowest_ms\": 850, \"slowest_rank\": 0"
                       : ", \"ms\": 100, \"data_ms\": 10, \"median_ms\": 70, "
                         "\"slowest_ms\": 105, \"slowest_rank\": 0");
  log += "{\"step\": 6, \"save_ms\": 22, \"save_wait_ms\": 33}\n";
  const std::string page = report_page({{log, "a"}}).html;
  for (const char* part :
       {"[\"compute\",0.06]", "[\"reading data\",0.01]", "[\"waiting for other ranks\",0.03]",
        "[\"saving\",0.005]", "mean of 11 steps",
        "Rank 0 is slow: it needs 1.5 times as long as the median rank, from step 2 on."}) {
    INFO(part);
    CHECK(contains(page, part));
  }
  // With a profile waiting is told by axes.
  const std::string profiled =
      report_page({{log + "{\"buckets\": [{\"axes\": \"data\", \"exposed_ms\": 20}, {\"axes\": "
                          "\"model\", \"exposed_ms\": 5}, {\"axes\": \"data\", "
                          "\"exposed_ms\": 1}]}\n",
                    "a"}})
          .html;
  for (const char* part : {"[\"waiting for data\",0.021]", "[\"waiting for model\",0.005]",
                           "[\"compute\",0.06]", "[\"waiting for slower ranks\",0.004]"})
    CHECK(contains(profiled, part));
  // Beside another job the page says how they differ; by axes only where both have a profile.
  std::string faster = log;
  for (size_t at; (at = faster.find("\"ms\": 100")) != std::string::npos;)
    faster.replace(at, 9, "\"ms\": 80");
  const std::string buckets = "{\"buckets\": [{\"axes\": \"data\", \"exposed_ms\": 8}]}\n";
  CHECK(contains(
      report_page({{log, "a"}, {faster + buckets, "b"}}).html,
      "b takes 20.000 ms (19 %) less than a, most of it waiting for other ranks (-20.000)."));
  CHECK(contains(report_page({{log + buckets, "a"}, {faster + buckets, "b"}}).html,
                 "b takes 20.000 ms (19 %) less than a, most of it waiting for slower ranks "
                 "(-20.000)."));
  CHECK(contains(page, "\"high\":1,"));  // the colours of slow ranks do not depend on the job
  // Without timing there is none.
  CHECK_FALSE(contains(report_page({{config("") + step(1, 2) + step(2, 1), "a"}}).html,
                       "a measured step by cause"));
}

TEST_CASE("reports: a log may end in the middle of a line", "[pages]") {
  using tessera::cli::read_run_logs;
  const std::string whole = config("\"train.lr\": \"1\"") + step(1, 4) + step(2, 3),
                    next = step(3, 2);
  for (size_t length = 1; length + 2 < next.size(); ++length) {
    INFO(next.substr(0, length));
    const auto logs = read_run_logs(whole + next.substr(0, length), "x");
    REQUIRE(logs.size() == 1);
    CHECK(logs[0].steps.size() == 2);
    CHECK(logs[0].column("loss").back() == 3);
  }
  const Folder f;
  f.write("head.jsonl", whole.substr(0, 12));
  expect_failure(run_cli_in(f, "report head.jsonl"), 1,
                 {"'head.jsonl' has no step of a training job"});
}

TEST_CASE("reports: a page of 100,000 steps is small", "[pages]") {
  const auto page = tessera::cli::report_page({{long_log(100000), "long.jsonl"}});
  CHECK(page.steps == 100000);
  CHECK(page.finished);
  CHECK(page.html.size() < (5u << 20));
  CHECK(contains(page.html, "rank 3 was slowest"));
  CHECK(contains(page.html, "\"spike: loss 9 is above 4\""));
  CHECK(contains(page.html, "\"kind\":\"xy\",\"marks\""));
}

TEST_CASE("sweeps: a page of nothing, of failures, and without predictions", "[pages]") {
  const Folder f;
  const auto page = [&](const std::vector<tessera::cli::SweepRow>& rows) {
    tessera::cli::write_sweep_report(f("s.csv"), "gpt", rows);
    return f.read("s.html");
  };
  CHECK(contains(page({}), "The sweep has no layouts."));
  const tessera::cli::SweepRow failed{"", "data:2", "x<y", "", "does not & fit", 0, 0, 0, 0};
  CHECK(contains(page({failed}), "No layout ran"));
  CHECK(contains(page({failed}), "does not &amp; fit"));
  const tessera::cli::SweepRow slow{"", "data:2", "", "p1", "", 9, 0, 0.2, 0.19},
      fast{"", "data:2", "batch:data", "p2", "", 9, 0, 0.1, 0.09};
  const std::string unknown = page({slow, fast, failed});
  CHECK(contains(unknown, "Nothing is predicted"));
  CHECK_FALSE(contains(unknown, "0 s<"));
  CHECK(unknown.find("<td>batch:data") < unknown.find("<td>nothing split"));
  const tessera::cli::SweepRow known{"a=1 b=2", "data:2", "", "p1", "", 9, 0.15, 0.2, 0.19},
      other{"a=2 b=1", "data:2", "batch:data", "p2", "", 9, 0.11, 0.1, 0.09};
  const std::string predicted = page({known, other});
  CHECK(contains(predicted, "rank correlation"));
  CHECK(contains(predicted, "best measured time by a and b"));
}

TEST_CASE("reports: names with markup, wherever a log has names", "[pages]") {
  const std::string evil = "<img src=x onerror=alert(1)>";
  const std::string log = "{\"config\": {\"layout.mesh\": \"data:2\", \"" + evil + "\": \"" + evil +
                          "\"}, \"ranks\": 2, \"hosts\": [[\"" + evil +
                          "\", 1], [\"two\", 1]], \"communication\": " + "[{\"kind\": \"" + evil +
                          "\", \"tensor\": \"" + evil + "\", \"rule\": \"" + evil +
                          "\", \"source\": \"" + evil + "\"}]}\n" +
                          step(1, 2, ", \"median_ms\": 1, \"slowest_ms\": 2, \"slowest_rank\": 0") +
                          "{\"step\": 1, \"samples\": [{\"text\": \"" + evil + "\"}]}\n" +
                          "{\"kernels\": [{\"kernel\": \"" + evil + "\", \"tensor\": \"" + evil +
                          "\", \"ms\": 3}]}\n" + "{\"step\": 1, \"spike\": \"" + evil + "\"}\n";
  const std::string html = tessera::cli::report_page({{log, evil}, {log, "b"}}).html;
  CHECK(contains(html, "&lt;img"));
  // In what the browser reads as elements; the data of a chart is text up to its end tag.
  std::string elements;
  for (size_t at = 0, begin; at != html.npos; at = html.find("</script>", begin)) {
    begin = html.find("<script", at);
    elements += html.substr(at, begin - at);
    if (begin == html.npos) break;
  }
  CHECK_FALSE(contains(elements, "<img"));
  CHECK(count(html, "<script>") == 1);
}

TEST_CASE("sweeps: a terminal's table has what differs, fastest first", "[pages]") {
  using tessera::cli::sweep_table;
  CHECK(sweep_table({}) == "the sweep has no layouts; ");
  CHECK(sweep_table({{"a=1 b=2", "data:2", "", "p1", "", 9, 0.3, 0.2, 0.19},
                     {"a=1 b=3", "data:2", "x:data", "p2", "does not fit", 9, 0, 0, 0},
                     {"a=1 b=3", "data:2", "batch:data", "p3", "", 9, 0, 0.1, 0.09},
                     {"a=1 b=2", "data:2", "y:data", "p4", "", 9, 0, 0, 0}}) ==
        "    measured  predicted  ms a step, fastest first; all with a=1\n"
        "     100.000             b=3 data:2 batch:data\n"
        "     200.000    300.000  b=2 data:2 nothing split\n"
        "           -             b=3 data:2 x:data: failed: does not fit\n"
        "           -             b=2 data:2 y:data: not run: the budget was spent\n"
        "2 layouts ran as 2 Programs, 1 failed; predictions: error 50.0 %, rank correlation 1.00, "
        "regret 100.0 %; ");
  CHECK(sweep_table({{"", "data:2", "", "p1", "", 9, 0, 0.2, 0.19}}) ==
        "    measured  ms a step, fastest first\n"
        "     200.000  data:2 nothing split\n"
        "1 layout ran as 1 Program, 0 failed; ");
}

TEST_CASE("sketches: slices, copies, partial sums and padding", "[pages]") {
  using tessera::Mesh;
  using tessera::PlacedTensor;
  const PlacedTensor w{"mlp.w",  "m.cpp:1", "parameter",
                       "stored", "float32", {{"d_model", 6, 6, {}}, {"ff", 7, 8, {"model"}}},
                       {},       "",        96};
  CHECK(tessera::sketch(w, Mesh::parse("data:2;model:2")) ==
        "mlp.w: float32 [d_model 6, ff 7], parameter, stored\n"
        "each rank holds [6, 4], 96 B\n"
        "down: ff over model\n"
        "ranks\n"
        "+------+\n"
        "| 0, 2 |\n"
        "+------+\n"
        "| 1, 3 |\n"
        "+------+\n"
        "2 copies, along data\n"
        "ff 7 is padded to 8: the last 1 are no part of the tensor\n");
  const PlacedTensor y{
      "mlp.y",   "m.cpp:2",  "activation",
      "einsum",  "bfloat16", {{"batch", 4, 4, {"data"}}, {"d_model", 6, 6, {"more"}}},
      {"model"}, "sum",      12};
  CHECK(tessera::sketch(y, Mesh::parse("data:2;model:2;more:2")) ==
        "mlp.y: bfloat16 [batch 4, d_model 6], einsum\n"
        "each rank holds [2, 3], 12 B\n"
        "down: batch over data\n"
        "across: d_model over more\n"
        "ranks\n"
        "+------+------+\n"
        "| 0, 2 | 1, 3 |\n"
        "+------+------+\n"
        "| 4, 6 | 5, 7 |\n"
        "+------+------+\n"
        "partial sum over model: the value is the sum of what these ranks hold\n");
  // A large mesh: the middle is left out, and lines stay narrow.
  const PlacedTensor x{
      "x",     "",        "input",
      "input", "float32", {{"batch", 512, 512, {"data"}}, {"length", 64, 64, {"context"}}},
      {},      "",        4};
  const std::string large = tessera::sketch(x, Mesh::parse("data:128;context:16;model:4"), 60);
  CHECK(contains(large, "  ...  "));
  CHECK(contains(large, "8188-8191"));
  std::istringstream lines(large);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 72);
}

TEST_CASE("explain --show sketches tensors of the step", "[cli]") {
  const Folder f;
  const std::string explain =
      "explain gpt --set layers=1 d_model=16 heads=2 ff=16 length=8 batch=4 "
      "--mesh \"data:2;model:2\" --layout \"batch:data;heads,ff:model\" ";
  const CliResult shown = run_cli_in(f, explain + "--show \"gpt.block0.mlp.*\"");
  expect_success(shown);
  for (const char* part : {"parameter, stored", "down: ff over model", "2 copies, along data",
                           "partial sum over model", ", all_reduce\n"})
    CHECK(contains(shown.out, part));
  expect_failure(run_cli_in(f, explain + "--show gpt.block0.mlp.wup"), 1,
                 {"--show gpt.block0.mlp.wup: no tensor of the step is called like that"});
}

TEST_CASE("explain names the line of a parameter, and of what a loop stacks", "[cli]") {
  const Folder f;
  expect_success(run_cli_in(f,
                            "explain gpt --set layers=3 scan=true d_model=16 heads=2 ff=16 "
                            "length=8 batch=4 --mesh data:2 --layout batch:data --html e.html"));
  const std::string page = f.read("e.html");
  const auto source_of = [&](const std::string& tensor) {
    const size_t name = page.find("\"name\":\"" + tensor + "\",\"partial\"");
    INFO(tensor);
    REQUIRE(name != page.npos);
    const std::string key = "\"source\":\"";
    const size_t begin = page.find(key, name) + key.size();
    return page.substr(begin, page.find('"', begin) - begin);
  };
  const std::string up = source_of("gpt.block.mlp.add");
  CHECK(contains(up, "transformer.cpp:"));
  CHECK(source_of("gpt.block.mlp.add.stacked") == up);
  CHECK(contains(source_of("gpt.block.mlp.up.w"), ".cpp:"));
}

TEST_CASE("report --follow writes the page until the job is finished", "[cli]") {
  const Folder f;
  f.write("run.jsonl", config("") + step(1, 4));
  BackgroundJob follow(f, std::string("'") + TESSERA_CLI + "' report run.jsonl --follow");
  REQUIRE(eventually([&] { return std::filesystem::exists(f("run.html")); }));
  CHECK(contains(f.read("run.html"), "http-equiv=\"refresh\""));
  CHECK(follow.is_running());
  f.write("run.jsonl", config("") + step(1, 4) + step(4, 2));
  CHECK(follow.wait(60) == 0);
  CHECK_FALSE(contains(f.read("run.html"), "http-equiv=\"refresh\""));
  CHECK(contains(f.read("run.html"), "step 4 of 4"));
  // A job that ended early, by train.patience, is finished too.
  f.write("early.jsonl", config("") + step(1, 9) + "{\"step\": 1, \"stopped_early\": true}\n");
  expect_success(run_cli_in(f, "report early.jsonl --follow"));
}

TEST_CASE("report --follow waits for a log, and tells of a job that was killed", "[cli]") {
  const Folder f;
  const std::string follow = std::string("'") + TESSERA_CLI + "' report run.jsonl --follow";
  BackgroundJob waits(f, follow, "said.txt");
  REQUIRE(eventually([&] { return contains(f.read("said.txt"), "waiting for run.jsonl"); }));
  CHECK(waits.is_running());
  f.write("text.txt", some_text());
  {
    BackgroundJob train(f, std::string("'") + TESSERA_CLI + "' train " + kTinyGpt +
                               " --steps 1000000 --log run.jsonl");
    REQUIRE(eventually([&] { return contains(f.read("run.html"), "step 2"); }));
    CHECK(waits.is_running());
  }  // killed
  CHECK(waits.wait(60) == 1);
  CHECK(contains(f.read("said.txt"), "the job of 'run.jsonl' has ended at step "));
  CHECK(contains(f.read("run.html"), "run.jsonl: the job has ended at step "));
  CHECK_FALSE(contains(f.read("run.html"), "http-equiv=\"refresh\""));
  expect_success(run_cli_in(f, "report run.jsonl --out once.html"));
  CHECK(contains(f.read("once.html"), "run.jsonl: the job has ended at step "));
  expect_failure(run_cli_in(f, "report no/such.jsonl --follow --out x.html"), 1,
                 {"cannot wait for 'no/such.jsonl': there is no folder 'no'"});
}

TEST_CASE("reports: a job that is silent, and one that ended early", "[pages]") {
  using namespace tessera::cli;
  const std::string text = config("") + step(1, 4, ", \"ms\": 20") + step(2, 3, ", \"ms\": 40");
  const auto html = [&](JobState state) {
    return report_page({{text, "a.jsonl"}}, 5,
                       [&](const ReportJob& job) {
                         CHECK(job.step == 2);
                         CHECK(job.last == 4);
                         CHECK(job.seconds == Approx(0.04));
                         CHECK(job.process == 0);
                         return state;
                       })
        .html;
  };
  CHECK(contains(html(JobState::ended), "the job has ended at step 2 of 4, before its last one"));
  CHECK_FALSE(contains(html(JobState::ended), "http-equiv=\"refresh\""));
  CHECK(contains(html(JobState::silent),
                 "nothing was written for long after step 2 of 4, and a "
                 "step takes 40 ms; is the job running?"));
  CHECK(contains(html(JobState::silent), "http-equiv=\"refresh\""));
  CHECK_FALSE(contains(html(JobState::running), "class=\"note\""));
  CHECK(contains(html(JobState::running), "http-equiv=\"refresh\""));
}

TEST_CASE("reports: kernels, buckets, hosts and code of a log", "[pages]") {
  using tessera::cli::report_page;
  const std::string head =
      "{\"config\": {\"layout.mesh\": \"data:2;model:2\"}, \"hosts\": [[\"one\", 2], "
      "[\"two\", 2]], \"process\": 7, \"code\": {\"m.cpp\": {\"41\": \"y = x;\", \"42\": 3}}, "
      "\"communication\": [{\"kind\": \"all_reduce\", \"source\": \"m.cpp:41\"}]}\n";
  const std::string profile =
      "{\"kernels\": [{\"kernel\": \"matmul\", \"tensor\": \"w\", \"source\": \"m.cpp:41\", "
      "\"ms\": 3, \"roofline_ms\": 1, \"predicted_ms\": 2}, 4], \"buckets\": [{\"kind\": "
      "\"all_reduce\", \"axes\": \"data\", \"exposed_ms\": 5, \"hidden_ms\": 0.5, "
      "\"predicted_exposed_ms\": 4, \"predicted_hidden_ms\": 0}]}\n";
  const std::string page = report_page({{head + step(1, 2) + profile, "a"}}).html;
  for (const char* part :
       {"<section id=\"kernels\">", "over the roofline", "data-v=\"0.002\">2 ms</td>",
        "<section id=\"buckets\">", "exposed, predicted", ">5 ms</td>", ">500 us</td>",
        "\"hosts\":[[\"one\",2],[\"two\",2]]", "<td class=\"at\">m.cpp:41</td>",
        "id=\"code\" type=\"application/json\">{\"m.cpp\":{\"41\":\"y = x;\"}}</script>"})
    CHECK(contains(page, part));
  // Two jobs of different code: the lines that differ are left out.
  std::string other = head;
  other.replace(other.find("y = x"), 5, "y = z");
  CHECK(contains(report_page({{head + step(1, 2), "a"}, {other + step(1, 2), "b"}}).html,
                 "{\"m.cpp\":{\"41\":null}}"));
  for (const char* hosts : {"3", "[[\"one\", -2]]", "[[1, 2]]", "[[\"one\", 3]]", "[[\"one\"]]"}) {
    INFO(hosts);
    const std::string odd =
        "{\"config\": {\"layout.mesh\": \"data:2\"}, \"hosts\": " + std::string(hosts) + "}\n";
    CHECK_FALSE(contains(report_page({{odd + step(1, 2), "a"}}).html, "\"kind\":\"mesh\""));
  }
}

TEST_CASE("pages: the code at places, where the files can be read", "[pages]") {
  const Folder f;
  std::string text;
  for (int n = 1; n <= 12; ++n)
    text += "line " + std::to_string(n) + (n == 6 ? std::string(300, 'x') : "") + "\n";
  f.write("m.cpp", text);
  const auto code = tessera::cli::code_around(
      {"m.cpp:5", "m.cpp:12", "m.cpp:90", "m.cpp:0", "none.cpp:1", "twice.cpp:1", "", "a:b"},
      {{"m.cpp", f("m.cpp")}, {"none.cpp", f("none.cpp")}, {"twice.cpp", ""}});
  CHECK(code.size() == 1);
  const auto& lines = code["m.cpp"];
  CHECK(lines.size() == 9);  // 3 to 8, 10 to 12
  CHECK(lines["5"] == "line 5");
  CHECK(lines["6"].get<std::string>().size() == 164);
  CHECK_FALSE(lines.contains("9"));
}

TEST_CASE("explain and diff show the code of the model", "[cli]") {
  const Folder f;
  const std::string job = "--machine h100 --mesh \"data:2;model:2\" --set layers=1 ";
  expect_success(run_cli_in(f, "explain gpt " + job +
                                   "--layout \"batch:data;ff:model\" "
                                   "--html explain.html"));
  expect_success(
      run_cli_in(f, "diff gpt \"batch:data\" \"batch:data;ff:model\" " + job + "--html diff.html"));
  for (const char* name : {"explain.html", "diff.html"}) {
    const std::string page = f.read(name);
    INFO(name);
    CHECK(contains(page, "<td class=\"at\">transformer.cpp:"));
    CHECK(contains(page, "id=\"code\" type=\"application/json\">{"));
    CHECK(contains(page, "because of"));
    CHECK(contains(page, "\"transformer.cpp\":{\""));
  }
  CHECK(contains(f.read("explain.html"), "\"kind\":\"mesh\""));
  CHECK(contains(f.read("explain.html"), "\"links\":[\"node\",\"node\"]"));
}

TEST_CASE("pages of a pipeline: one picture of its ticks, one count, a cause for the idle ones",
          "[cli]") {
  const Folder f;
  const std::string job =
      "gpt --mesh pipe:2 --machine h100 --layout layers:pipe --set layers=4 scan=true batch=8 "
      "microbatches=4 ";
  const CliResult explained = run_cli_in(f, "explain " + job + "--html explain.html"),
                  planned = run_cli_in(
                      f, "plan " + job + "pipeline_schedule=1f1b --time 2 --html plan.html");
  expect_success(explained);
  expect_success(planned);
  expect_success(run_cli_in(f, "explain " + job + "pipeline_schedule=zb_h1 --html zb_h1.html"));
  CHECK(contains(f.read("zb_h1.html"), "\"gradients of parameters\""));
  CHECK(!contains(f.read("explain.html"), "\"gradients of parameters\""));
  CHECK(contains(explained.out,
                 "4 microbatches pass through 2 stages along 'pipe' in 10 ticks: a "
                 "stage is idle in 20 % of them, "));
  for (const std::string& text : {explained.out, planned.out, f.read("explain.html")})
    CHECK(contains(text, "idle: pipeline bubble"));
  for (const char* name : {"explain.html", "plan.html"}) {
    INFO(name);
    const std::string page = f.read(name);
    for (const char* part : {"stage 1, microbatch 3", "works in 8 of 10 ticks",
                             "[\"idle: pipeline bubble\",", "all stages: head, loss, hand over"})
      CHECK(contains(page, part));
  }
  // Advice is priced, with reasons: the numbers of microbatches beside this one.
  for (const std::string& text : {explained.out, f.read("explain.html")}) {
    for (const char* part : {"with 8 microbatches instead of 4 a step would take ",
                             "with 2 microbatches instead of 4 a step would take ",
                             " ms less idle, ", " ms more idle, ", " ms more computing, "})
      CHECK(contains(text, part));
  }
  CHECK_FALSE(contains(explained.out, "warning: with "));
  // Without a machine it says what it does not know.
  const CliResult plain =
      run_cli_in(f,
                 "explain gpt --mesh pipe:2 --layout layers:pipe --set layers=4 scan=true batch=8 "
                 "microbatches=4",
                 "TESSERA_CACHE=" + f.dir);
  CHECK(contains(plain.out, "only times, of a machine's profile, say which is faster"));
}

TEST_CASE("every page in a browser: texts, contrast, tables, hover, zoom", "[slow]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string slowest = ", \"slowest_rank\": 1, \"slowest_ms\": 50, \"median_ms\": 10";
  const std::string model = std::string(kTinyGpt) + " ";
  const std::string job = "--mesh \"data:2;model:2\" ";
  expect_success(
      run_cli_in(f, "train " + model + job +
                        "--steps 12 --log a.jsonl --profile --checkpoint ck --save-every "
                        "4 --sample-every 6 --set eval_every=4"));
  expect_success(
      run_cli_in(f, "train " + model + "--mesh data:2 --steps 12 --log b.jsonl --set lr=1e-3"));
  f.write("long.jsonl", long_log(100000));
  f.write("none.jsonl", "{\"config\": {}}\n");
  f.write("once.jsonl", config("\"layout.mesh\": \"data:2\"") + step(1, 3, slowest) +
                            step(2, 2, slowest) + "{\"step\": 2, \"eval_loss\": 2.5}\n");
  // Times of a wide range, which a scale of logarithms shows too.
  tessera::cli::write_sweep_report(f("wide.csv"), "gpt",
                                   {{"a=1 b=1", "data:2", "x", "p1", "", 9, 0.5, 0.0002, 0.0001},
                                    {"a=2 b=1", "data:2", "y", "p2", "", 9, 0.001, 0.03, 0.02},
                                    {"a=1 b=2", "data:2", "z", "p3", "", 9, 0.002, 0.04, 0.02}});
  const std::string layout = "--layout \"batch:data;heads,ff,vocab:model\" ",
                    large = "gpt --machine h100 " + job + layout + "--set layers=2 ";
  expect_success(run_cli_in(f, "report a.jsonl"));
  expect_success(run_cli_in(f, "report a.jsonl b.jsonl --out both.html"));
  expect_success(run_cli_in(f, "report long.jsonl"));
  expect_success(run_cli_in(f, "report none.jsonl"));
  expect_success(run_cli_in(f, "report once.jsonl"));
  expect_success(run_cli_in(f, "explain " + large + "--html explain.html"));
  expect_success(run_cli_in(f, "simulate " + large + "--html simulate.html --stragglers 0.1"));
  expect_success(run_cli_in(f,
                            "simulate gpt --machine h100 --mesh data:2 --stages 2 --set layers=4 "
                            "microbatches=4 --html stages.html"));
  expect_success(run_cli_in(f, "diff gpt \"batch:data\" \"batch:data;ff:model\" --machine h100 " +
                                   job + "--set layers=2 --html diff.html"));
  expect_success(
      run_cli_in(f,
                 "plan gpt --devices 4 --machine h100 --time 5 --set layers=2 "
                 "batch=8 --why-not length:data --why-not-mesh data:4 --html plan.html"));
  expect_success(run_cli_in(f,
                            "plan gpt --mesh pipe:2 --machine h100 --layout layers:pipe --time 2 "
                            "--set layers=4 scan=true microbatches=4 --html pipeline.html"));
  expect_success(run_cli_in(f,
                            "explain gpt --mesh pipe:2 --machine h100 --layout layers:pipe "
                            "--set layers=4 scan=true microbatches=4 --html ticks.html"));
  CHECK(!contains(f.read("plan.html"), "microbatches in the stages"));
  CHECK(f.read("plan.html").find("tessera train gpt --data PATH --set layers=2 batch=8 --mesh ") !=
        std::string::npos);
  expect_success(
      run_cli_in(f, "verify mlp --mesh \"data:2;model:2\" --steps 1 --html verify.html"));
  expect_success(
      run_cli_in(f, "calibrate --mesh data:2 --threads 1 --out here.toml --html calibrate.html"));
  expect_success(
      run_cli_in(f,
                 "sweep gpt --set layers=1 d_model=16 heads=2 ff=32 length=8 batch=4,6 "
                 "--steps 2 --threads 1 --mesh data:2 --machine here.toml --out sweep.csv"));
  if (std::system("python3 --version > /dev/null 2>&1") != 0) {
    WARN("there is no Python: not run");
    return;
  }
  const int status =
      std::system(("cd '" + f.dir + "' && timeout -k 5 400 python3 '" +
                   std::string(TESSERA_SOURCE_DIR) + "/tests/cli/pages.py' *.html > seen.txt 2>&1")
                      .c_str());
  if (WEXITSTATUS(status) == 77) {
    WARN("no Chromium is installed: not run");
    return;
  }
  INFO(f.read("seen.txt"));
  CHECK(status == 0);
}

}  // namespace TESSERA_FILE
