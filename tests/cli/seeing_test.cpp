// What a job leaves to look at: CSV, TensorBoard's event files, profile, report; and the commands
// on checkpoints.
#include <cstring>
#include <map>

#include "base/crc32c.h"
#include "base/printable.h"
#include "cli/cli_background.h"
#include "cli/forecast.h"
#include "cli/profile.h"
#include "cli/report_page.h"
#include "cli/tensorboard.h"
#include "cli/training.h"
#include "tessera/ops.h"
#include "tessera/safetensors.h"
#include "tessera/session.h"

using namespace tessera::test;

namespace TESSERA_FILE {

CliResult train(const Folder& f, const std::string& more) {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more);
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

uint32_t number_at(const std::string& bytes, size_t at) {
  uint32_t v = 0;
  REQUIRE(at + 4 <= bytes.size());
  std::memcpy(&v, bytes.data() + at, 4);
  return v;
}

/// The records of an event file, whose checksums are compared.
std::vector<std::string> records_of(const std::string& bytes) {
  const auto masked = [](const char* data, size_t n) {
    const uint32_t crc = tessera::crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = number_at(bytes, at);
    CHECK(number_at(bytes, at + 4) == 0);
    CHECK(number_at(bytes, at + 8) == masked(bytes.data() + at, 8));
    REQUIRE(at + 16 + length <= bytes.size());
    records.push_back(bytes.substr(at + 12, length));
    CHECK(number_at(bytes, at + 12 + length) == masked(records.back().data(), length));
    at += 16 + length;
  }
  return records;
}

std::string event_file(const Folder& f, const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(f(folder)))
    return folder + "/" + entry.path().filename().string();
  return "";
}

bool can_run(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

TEST_CASE("event files: records with their checksums", "[seeing]") {
  const Folder f;
  std::string path;
  {
    tessera::cli::EventFile file(f("tb"));
    file.add(300, {{"train/loss", 2.5}, {"train/lr", 0.125}});
    path = file.path();
  }
  const auto records = records_of(f.read(event_file(f, "tb")));
  REQUIRE(records.size() == 2);
  CHECK(contains(records[0], "brain.Event:2"));
  // step 300 as a varint, then the summary with two values
  CHECK(contains(records[1], std::string("\x10\xac\x02\x2a", 4)));
  CHECK(contains(records[1], std::string("\x0a\x0atrain/loss\x15", 13)));
  const float loss = 2.5, rate = 0.125;
  CHECK(contains(records[1], std::string(reinterpret_cast<const char*>(&loss), 4)));
  CHECK(contains(records[1], std::string(reinterpret_cast<const char*>(&rate), 4)));
  CHECK(f.error([&] { tessera::cli::EventFile("/proc/none"); }) ==
        "io cannot make the folder '/proc/none' of --tensorboard: No such file or directory; "
        "choose another path");
}

TEST_CASE("seeing: CSV and event files have the numbers of the log", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const std::string files = "--mesh data:2 --log log.jsonl --csv log.csv --tensorboard tb ";
  expect_success(train(f, files + "--steps 3 --checkpoint ck"));
  expect_success(train(f, files + "--steps 5 --checkpoint ck --resume"));
  const std::string csv = f.read("log.csv");
  CHECK(csv.rfind("step,loss,grad_norm,lr,ms,", 0) == 0);
  CHECK(count(csv, "step") == 1);
  CHECK(count(csv, "\n") == 6);
  const auto losses = losses_of(f, "log.jsonl");
  REQUIRE(losses.size() == 5);
  std::istringstream rows(csv);
  std::string row;
  std::getline(rows, row);
  for (const auto& [step, loss] : losses) {
    std::getline(rows, row);
    CHECK(row.rfind(std::to_string(step) + ",", 0) == 0);
    CHECK(std::strtod(row.c_str() + row.find(',') + 1, nullptr) == loss);
  }
  int steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(f("tb"))) {
    for (const std::string& record : records_of(f.read("tb/" + entry.path().filename().string())))
      steps += contains(record, "train/loss");
  }
  CHECK(steps == 5);
  expect_failure(train(f, "--csv no/such/file"), 1, {"cannot write 'no/such/file'", "--csv"});
}

TEST_CASE("seeing: TensorBoard's own reader takes the event files", "[slow]") {
  const std::string reader = "from tensorboard.backend.event_processing import event_accumulator";
  if (!can_run("python3 -c '" + reader + "'")) {
    WARN("the Python package tensorboard is not installed: not run");
    return;
  }
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--steps 4 --tensorboard tb --log log.jsonl"));
  f.write("read.py", reader + "\na = event_accumulator.EventAccumulator('tb'); a.Reload()\n" +
                         "print([e.step for e in a.Scalars('train/loss')])\n");
  REQUIRE(std::system(("cd '" + f.dir + "' && python3 read.py > seen.txt").c_str()) == 0);
  CHECK(f.read("seen.txt") == "[1, 2, 3, 4]\n");
}

TEST_CASE("seeing: steps beside what was planned, and what is off by name", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  const CliResult result = train(
      f,
      "--mesh data:2 --steps 42 --machine h100 --log log.jsonl --set d_model=128 ff=512 length=32");
  expect_success(result);
  CHECK(contains(result.out, " ms (planned "));
  for (const char* part : {"steps 2 to 21 took ", " ms, planned were ", " ms instead of "})
    CHECK(contains(result.out, part));
  CHECK(count(result.out, "planned were") < 3);
  for (const auto& step : log_of(f, "log.jsonl", "loss"))
    CHECK(step["planned_ms"].get<double>() > 0);
  CHECK(contains(train(f, "--mesh data:2 --steps 2 --machine nothing").err, "nothing"));
}

TEST_CASE("forecast: parts that are off are named, most first", "[seeing]") {
  using tessera::cli::work_off_plan;
  const double ms = 1e-3;
  CHECK(work_off_plan({{"a", 10 * ms, 10.9 * ms}, {"b", 5 * ms, 4.6 * ms}}, 20 * ms) == "");
  CHECK(work_off_plan({{"a", 1 * ms, 1.3 * ms}}, 20 * ms) == "");  // too little to matter
  CHECK(
      work_off_plan(
          {{"a", 4 * ms, 6 * ms}, {"collectives over data", 1 * ms, 9 * ms}, {"c", 8 * ms, 5 * ms}},
          20 * ms) ==
      "collectives over data 9.00 ms instead of 1.00, c 5.00 ms instead of 8.00, a 6.00 ms instead "
      "of 4.00");
}

TEST_CASE("seeing: a profile by op and source line", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  for (const char* layers :
       {"layers=1", "layers=3 scan=true", "layers=2 scan=true microbatches=2"}) {
    INFO(layers);
    const CliResult result =
        train(f, std::string("--mesh data:2 --steps 3 --profile --log log.jsonl --set ") + layers);
    expect_success(result);
    for (const char* part : {"profile of a training step:", "FLOP/s", "B/s",
                             "transformer.cpp:", "all_reduce", "in all, on the first local rank"})
      CHECK(contains(result.out, part));
    const auto records = log_of(f, "log.jsonl", "profile");
    REQUIRE(records.size() == 1);
    double flops = 0, results = 0, loops = 0, all = 0, hidden = 0;
    for (const auto& row : records[0]["profile"]) {
      flops += row["flops"].get<double>();
      // Kernels skip the half of the pairs that causal order hides.
      if (row["op"].get<std::string>().starts_with("attention"))
        hidden += row["flops"].get<double>();
      results += row["result_bytes"].get<double>();
      all += row["ms"].get<double>();
      if (row["op"] == "loop") loops += row["ms"].get<double>();
      CHECK(row["ms"].get<double>() >= 0);
    }
    const auto step = log_of(f, "log.jsonl", "loss").back();
    const double per_step =
        step["flops_per_s"].get<double>() * step["ms"].get<double>() * 1e-3 / 2;  // two ranks
    CHECK(hidden > 0);
    CHECK(flops + hidden == Approx(per_step).epsilon(1e-4));
    CHECK(results > 0);
    CHECK(loops < 0.5 * all);  // its steps have the time
  }
}

TEST_CASE("seeing: a contraction's result is what it stores, a sum's work what it reads",
          "[seeing]") {
  using namespace tessera;
  Graph g;
  const Dim m("m", 4), k("k", 8), n("n", 2);
  Tensor a = g.input("a", {m, k}, DType::float32), b = g.input("b", {k, n}, DType::float32);
  Cluster ranks = Cluster::threads(2);
  CompileOptions options{
      Mesh::parse("x:2"),
      Layout::parse("m:x"),
      {{"f", {einsum({a, b}, {m, n}).named("c"), reduce_sum(a, "k").named("s")}}}};
  options.profile = true;
  Session session(g, ranks, options);
  session.feed("a", Array(DType::float32, {"m", "k"}, {4, 8}));
  session.feed("b", Array(DType::float32, {"k", "n"}, {8, 2}));
  session.run("f");
  session.run("f");
  std::map<std::string, StepTime> by_name;
  for (const StepTime& s : session.profile()) CHECK(by_name.emplace(s.name, s).second);
  REQUIRE(by_name.count("einsum") == 1);
  REQUIRE(by_name.count("reduce_sum") == 1);
  CHECK(by_name["einsum"].runs == 2);
  CHECK(by_name["einsum"].results <= 2 * 2 * 4);  // half of the rows, and none of k
  CHECK(by_name["einsum"].flops == 2 * 4 * 8 * 2 / 2);
  CHECK(by_name["reduce_sum"].results <= 2 * 4);
  CHECK(by_name["reduce_sum"].flops == 4 * 8 / 2);
}

TEST_CASE("profile rows: steps of one op and line are added up", "[seeing]") {
  using namespace tessera;
  const std::vector<StepTime> steps = {
      {"train", "a", "x.cpp:1", "matmul", 2, 0.004, 100, 10, 8, ""},
      {"train", "b", "x.cpp:2", "wait", 2, 0.010, 0, 0, 0, ""},
      {"train", "c", "x.cpp:1", "matmul", 2, 0.002, 50, 20, 4, ""},
      {"train", "d", "x.cpp:3", "fused", 0, 0, 1, 1, 1, ""}};
  const auto rows = cli::profile_rows(steps);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].op == "wait");
  CHECK(rows[1].steps == 2);
  CHECK(rows[1].ms == Approx(3));
  CHECK(rows[1].flops == 150);
  CHECK(rows[1].results == 12);
  const std::string table = cli::profile_table(rows, 1e5);
  CHECK(contains(table, "50.0 kFLOP/s"));
  CHECK(contains(table, "50%"));
  CHECK(contains(table, "8.000 in all"));
  CHECK(table.ends_with("; the peak is 100 kFLOP/s"));
  // No share is above 100 %: an op that is faster than the measured peak raises it.
  const std::string raised = cli::profile_table(rows, 1e4);
  CHECK(contains(raised, "  100% "));
  CHECK(contains(raised,
                 "; the peak is 50.0 kFLOP/s of the fastest op, more than the 10.0 kFLOP/s "
                 "of a matmul before the first step"));
}

TEST_CASE("a step that is faster than the peak is the peak", "[seeing]") {
  tessera::cli::StepRecord r;
  r.flops_per_s = 150;
  r.peak_share = 1.5;
  CHECK(tessera::cli::raised_peak(r, 100) == 150);
  CHECK(r.peak_share == 1);
  r.flops_per_s = 50;
  r.peak_share = 0.5;
  CHECK(tessera::cli::raised_peak(r, 100) == 100);
  CHECK(r.peak_share == 0.5);
}

TEST_CASE("buckets of a profile: predictions have columns only if there are any", "[seeing]") {
  using namespace tessera;
  BucketTime bucket{};
  bucket.kind = "all_reduce";
  bucket.axes = "data";
  bucket.tensor = "w";
  bucket.source = "x.cpp:1";
  bucket.collectives = 1;
  bucket.bytes = 2000;
  bucket.exposed = 0.001;
  bucket.predicted_exposed = 0.004;
  CHECK(cli::bucket_table({bucket}, "") ==
        "exposed ms  hidden ms      bytes  collective\n"
        "     1.000      0.000    2.00 kB  all_reduce over data: w, x.cpp:1\n"
        "     1.000      0.000    2.00 kB  in all; exposed from when the last rank has come");
  CHECK(contains(cli::bucket_table({bucket}, "m"), "     1.000      0.000      4.000      0.000"));
}

TEST_CASE("reports: records that make no sense are left out", "[seeing]") {
  const std::string head = "{\"config\":{}}\n";
  const auto page = [&](const std::string& record) {
    return tessera::cli::report_page({{head + record + "\n", "log"}}).html;
  };
  const std::string none = "Train with --profile";
  for (const std::string steps : {"[]", "[[\"a\",\"b\"]]", "[3]", "[[1,2,3]]", "{}", "null", "7",
                                  "[[\"a\",\"b\",-1]]", "[[\"a\",\"b\",\"c\"]]"})
    CHECK(contains(page("{\"time_line\":" + steps + "}"), none));
  for (const std::string bytes : {"4321098", "1e17", "1e300", "-5", "\"many\"", "null"}) {
    const std::string log = "{\"config\":{},\"memory\":{\"params\":" + bytes + "}}\n";
    const std::string html = tessera::cli::report_page({{log, "log"}}).html;
    CHECK(contains(html, "memory of a rank") == (bytes == "4321098"));
    CHECK(contains(html, "4321098") == (bytes == "4321098"));
  }
  const std::string one = page("{\"time_line\":[[\"w\",\"wait\",2.5],[1],[\"x\"],{}]}");
  CHECK(contains(one, "one step, 2.50 ms"));
  CHECK(tessera::cli::report_page(
            {{head + "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n", "log"}})
            .steps == 2);
  const auto torn = tessera::cli::report_page(
      {{head + "{\"step\":1,\"loss\":2}\n{\"st{\"ep\n{\"step\":2,\"loss\":1}\n", "log"}});
  CHECK(torn.steps == 2);
  CHECK(contains(torn.html, "1 line "));
}

TEST_CASE("seeing: the report is one page that needs nothing else", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f,
                       "--mesh \"data:2;model:2\" --steps 12 --log run.jsonl --profile "
                       "--checkpoint ck --save-every 4 --set eval_every=4"));
  expect_success(run_cli_in(f, "report run.jsonl"));
  const std::string page = f.read("run.html");
  for (const char* id : {"curves", "layout", "memory", "communication", "timeline", "profile",
                         "start", "configuration"})
    CHECK(contains(page, "<section id=\"" + std::string(id) + "\">"));
  CHECK(contains(page, "held out"));
  CHECK(contains(page, "all_reduce"));
  CHECK(contains(page, "batch:data"));
  CHECK(count(page, "<figure>") >= 9);
  CHECK(contains(page, "default-src 'none'"));
  for (const char* link : {"https:", "<link", " src=", "@import"})
    CHECK_FALSE(contains(page, link));
  // A log that was cut by a kill is read up to there.
  f.write("cut.jsonl", f.read("run.jsonl") + "{\"step\": 13, \"lo");
  expect_success(run_cli_in(f, "report cut.jsonl --out cut.html"));
  CHECK(contains(f.read("cut.html"), "ends in the middle of a line"));
  // What goes on behind such a line begins a line of its own, and the rest is read.
  f.write("run.jsonl", f.read("run.jsonl") + "{\"step\": 13, \"lo");
  expect_success(train(f,
                       "--mesh \"data:2;model:2\" --steps 14 --log run.jsonl --profile "
                       "--checkpoint ck --save-every 4 --set eval_every=4 --resume"));
  expect_success(run_cli_in(f, "report run.jsonl"));
  CHECK(contains(f.read("run.html"), "; step 14 of 14"));
  CHECK(contains(f.read("run.html"), "1 line of the log is not whole"));
  f.write("late.jsonl", R"({"step": 1, "loss": 2})"
                        "\n");
  expect_success(run_cli_in(f, "report late.jsonl"));
  f.write("other.jsonl", "not a log\n{}\n");
  expect_failure(run_cli_in(f, "report other.jsonl"), 1,
                 {"line 1 of 'other.jsonl'", "train --log"});
  f.write("empty.jsonl", "");
  expect_failure(run_cli_in(f, "report empty.jsonl"), 1, {"no step of a training job"});
  f.write("wrong.jsonl", R"({"config": 3, "step": 1, "loss": 2})"
                         "\n");
  expect_failure(run_cli_in(f, "report wrong.jsonl"), 1, {"is not what train --log writes"});
  expect_failure(run_cli_in(f, "report none.jsonl"), 1, {"cannot open the log 'none.jsonl'"});
  expect_failure(run_cli_in(f, "report run.jsonl --out run.jsonl"), 1, {"would replace the log"});
}

TEST_CASE("seeing: a log that nests too deep is no log", "[cli]") {
  const Folder f;
  std::string deep = "{\"step\": 1, \"loss\": " + std::string(2'000'000, '[');
  f.write("deep.jsonl", deep + std::string(2'000'000, ']') + "}\n{}\n");
  expect_failure(run_cli_in(f, "report deep.jsonl --out deep.html"), 1,
                 {"line 1 of 'deep.jsonl' is not a JSON object"});
  f.write("quoted.jsonl",
          "{\"step\": 1, \"loss\": 2, \"note\": \"" + std::string(200, '[') + "\\\" [[\"}\n");
  expect_success(run_cli_in(f, "report quoted.jsonl --out quoted.html"));
}

TEST_CASE("seeing: names in files do not steer the terminal", "[cli]") {
  using tessera::printable;
  CHECK(printable("na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x99\x82\ttab\nline") ==
        "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x99\x82\ttab\nline");
  CHECK(printable("\x1b]0;title\x07") == "\\x1b]0;title\\x07");
  CHECK(printable("a\rb\x7f\xC2\x9B") == "a\\x0db\\x7f\\xc2\\x9b");
  for (const char* bad :
       {"\xff", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\xE2\x82"})
    CHECK(printable(bad).find("\\x") == 0);
  const Folder f;
  f.write("w\x1b[2J.safetensors", "no header");
  const CliResult show = run_cli_in(f, "checkpoint show 'w\x1b[2J.safetensors'");
  CHECK_FALSE(contains(show.out + show.err, "\x1b"));
  CHECK(contains(show.err, "w\\x1b[2J"));
  // Names of tensors and of machines.
  for (const float value : {1.0f, 2.0f}) {
    tessera::SafetensorsWriter file(f(value == 1 ? "a.safetensors" : "b.safetensors"),
                                    {{"w\x1b[2J", tessera::DType::float32, {1}}}, {});
    file.write("w\x1b[2J", &value, sizeof value);
    file.finish();
  }
  const CliResult compared = run_cli_in(f, "compare a.safetensors b.safetensors");
  CHECK_FALSE(contains(compared.out + compared.err, "\x1b"));
  CHECK(contains(compared.out, "first difference: w\\x1b[2J"));
  std::string profile;
  for (const char* part :
       {"format = 2\nname = \"m\\u001b[2J\"\nmemory = 8e10\n",
        "[[memory_rate]]\nbandwidth = 1e12\n", "[[matmul]]\ndtype = \"float32\"\nflops = 1e14\n",
        "[[link]]\nname = \"node\"\nbandwidth = 1e11\n"})
    profile += part;
  f.write("m.toml", profile);
  const CliResult simulated = run_cli_in(f, "simulate mlp --mesh data:1 --machine m.toml");
  INFO(simulated.err);
  CHECK_FALSE(contains(simulated.out + simulated.err, "\x1b"));
  CHECK(contains(simulated.out, "ranks of m\\x1b[2J"));
}

TEST_CASE("cli: checkpoint show and verify, convert", "[cli]") {
  const Folder f;
  f.write("text.txt", some_text());
  expect_success(train(f, "--mesh data:2 --steps 2 --save-every 1 --checkpoint ck"));
  const CliResult show = run_cli_in(f, "checkpoint show ck");
  expect_success(show);
  for (const char* part :
       {"ck/step-00000002: step 2, serial 2", "ck/step-00000001: step 1",
        "data_fingerprint = ", "numerics = ", "gpt.embedding", "float32", "rank-00000.safetensors"})
    CHECK(contains(show.out, part));
  const CliResult verified = run_cli_in(f, "checkpoint verify ck");
  expect_success(verified);
  CHECK(count(verified.out, "every checksum agrees") == 2);
  expect_success(run_cli_in(f, "convert ck whole.safetensors --rename \"gpt.*=transformer.*\""));
  expect_success(run_cli_in(f, "convert whole.safetensors back/ --rename \"transformer.*=gpt.*\""));
  const CliResult e = run_cli_in(f, "eval gpt --data text.txt --set batch=4 --checkpoint ck");
  expect_success(e);
  const CliResult again = run_cli_in(f,
                                     "eval gpt --data text.txt --set model.layers=1 d_model=16 "
                                     "heads=2 ff=16 length=8 batch=4 --checkpoint back");
  expect_success(again);
  CHECK(again.out.substr(again.out.find("loss")) == e.out.substr(e.out.find("loss")));
  const std::string shard = f.read("ck/step-00000002/rank-00000.safetensors");
  std::string bad = shard;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  f.write("ck/step-00000002/rank-00000.safetensors", bad);
  expect_failure(run_cli_in(f, "checkpoint verify ck/step-00000002"), 1,
                 {"rank-00000.safetensors' is damaged in its bytes", "tensor"});
  const CliResult resumed = train(f, "--mesh data:2 --steps 3 --checkpoint ck --resume");
  expect_success(resumed);
  CHECK(contains(resumed.out, "cannot be loaded: [checkpoint] 'ck/step-00000002/"));
  CHECK(contains(resumed.out, "resumed from ck/step-00000001 at step 1"));
  std::filesystem::remove(f("ck/step-00000001/rank-00000.safetensors"));
  expect_failure(run_cli_in(f, "checkpoint look ck"), 1, {"it is show or verify"});
  expect_failure(run_cli_in(f, "checkpoint show none"), 1, {"none"});
  expect_failure(run_cli_in(f, "convert none x"), 1, {"'none' does not exist"});
  expect_failure(run_cli_in(f, "convert whole.safetensors z --rename \"foo.*=x.*\""), 1,
                 {"no tensor is called like 'foo.*' of the rule 'foo.*=x.*'"});
  expect_failure(run_cli_in(f, "convert ck y --rename a"), 1, {"'a' is not OLD=NEW"});
}

}  // namespace TESSERA_FILE
