// What the command line refuses before anything is built: numbers out of range, and paths that are
// not what they should be.
#include <sys/stat.h>

#include "cli/cli_run.h"

using namespace tessera::test;

namespace TESSERA_FILE {

struct TextFolder : Folder {
  TextFolder() { write("text.txt", some_text()); }
};

CliResult train(const Folder& f, const std::string& more, const std::string& environment = "") {
  return run_cli_in(f, std::string("train ") + kTinyGpt + more, environment);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("refused: keys out of range, whatever is done with them", "[cli]") {
  const TextFolder f;
  const std::pair<const char*, const char*> wrong[] = {
      {"layers=0", "'model.layers' is 0; it must be a whole number from 1 to 2000"},
      {"layers=100000000000", "'model.layers' is 100000000000"},
      {"heads=0", "'model.heads' is 0; it must be a whole number from 1 to 1000000"},
      {"d_model=-4", "'model.d_model' is -4"},
      {"dropout=-0.1", "'model.dropout' is -0.1; it must be a number from 0 to 1"},
      {"batch=0", "'train.batch' is 0; it must be a whole number from 1 to"},
      {"batch=-4", "'train.batch' is -4"},
      {"microbatches=0", "'train.microbatches' is 0; it must be auto, or a whole number from 1"},
      {"warmup=-3", "'train.warmup' is -3; it must be a whole number of at least 0"},
      {"start=2", "'train.start' is 2; it must be a number from 0 to 1"},
      {"flat=-1", "'train.flat' is -1; it must be a whole number of at least 0"},
      {"floor=-1", "'train.floor' is -1; it must be a number from 0 to 1"},
      {"cooldown=1.1", "'train.cooldown' is 1.1; it must be a number from 0 to 1"},
      {"eval_every=-1", "'train.eval_every' is -1"},
      {"clip=-1", "'train.clip' is -1; it must be a number of at least 0"},
      {"threads=-1", "'train.threads' is -1; it must be a whole number from 0 to 1024"},
      {"threads=20000", "'train.threads' is 20000"},
      {"lr=nan", "'train.lr' is nan; it must be a number of at least 0"},
      {"lr=1e999", "'train.lr' is '1e999', which is not a number"},
      {"weight_decay=nan", "'train.weight_decay' is nan"},
      {"held_out=1", "'data.held_out' is 1; it must be a number from 0 to 0.99"},
      {"schedule=cosin", "unknown schedule 'cosin'; did you mean 'cosine'?"}};
  for (const auto& [set, words] : wrong) {
    INFO(set);
    const bool has_flag = std::string(set).starts_with("batch");  // of kTinyGpt, which comes later
    if (!has_flag) expect_failure(train(f, std::string("--set ") + set), 1, {words});
    CHECK_FALSE(contains(f.read("stdout.txt"), "mesh"));
    for (const std::string command : {"plan gpt --devices 4 --machine h100", "explain gpt"})
      expect_failure(run_cli_in(f, command + " --set " + set), 1, {words});
  }
  expect_failure(run_cli_in(f, "plan gpt --devices 4 --machine h100 --batch 0"), 1,
                 {"'train.batch' is 0"});
}

TEST_CASE("refused: flags out of range", "[cli]") {
  const Folder f;
  const std::pair<const char*, const char*> wrong[] = {
      {"verify gpt --tolerance nan", "--tolerance: 'nan' is not a number of at least 0"},
      {"verify gpt --tolerance -1", "--tolerance: '-1' is not a number"},
      {"compare a b --tolerance nan", "--tolerance: 'nan'"},
      {"verify gpt --steps 0", "--steps: '0' is not a whole number of at least 1"},
      {"compare a b --steps 0", "--steps: '0'"},
      {"sweep gpt --steps 0", "--steps: '0'"},
      {"bench matmul --steps -1", "--steps: '-1'"},
      {"plan gpt --devices 0", "--devices: '0' is not a whole number from 1 to 1000000"},
      {"plan gpt --devices 99999999", "--devices: '99999999'"},
      {"plan gpt --devices 99999999999", "--devices: '99999999999'"},
      {"sweep gpt --devices 0", "--devices: '0'"},
      {"generate gpt --checkpoint c --tokens -1", "--tokens: '-1'"},
      {"generate gpt --checkpoint c --temperature nan", "--temperature: 'nan'"},
      {"generate gpt --checkpoint c --temperature -1", "--temperature: '-1'"},
      {"train gpt --threads -1", "--threads: '-1' is not a whole number from 0 to 1024"},
      {"train gpt --threads 20000", "--threads: '20000'"},
      {"train gpt --timeout nan", "--timeout: 'nan'"}};
  for (const auto& [arguments, words] : wrong) {
    INFO(arguments);
    expect_failure(run_cli_in(f, arguments), 2, {words, "--help"});
  }
}

TEST_CASE("refused: --why-not names what is not there, before the search", "[cli]") {
  const Folder f;
  const std::string plan = "plan gpt --machine h100 --set layers=2 --time 600 ";
  const auto refuses = [&](const std::string& more, std::initializer_list<std::string> words) {
    expect_failure(run_cli_in(f, plan + more, "timeout 60"), 1, words);
    CHECK_FALSE(contains(f.read("stdout.txt"), "best"));
  };
  refuses("--devices 4 --why-not btach:data", {"no tensor has a dim 'btach'", "'batch'?"});
  refuses("--mesh data:4 --why-not batch:date", {"has no axis 'date'", "'data'?"});
  refuses("--devices 4 --why-not batch:date --why-not-mesh data:4", {"has no axis 'date'"});
}

TEST_CASE("refused: a pipe is not opened, whatever it stands for", "[cli]") {
  const TextFolder f;
  REQUIRE(mkfifo(f("pipe").c_str(), 0600) == 0);
  REQUIRE(mkfifo(f("pipe.toml").c_str(), 0600) == 0);
  const std::string soon = "timeout 30";  // it would wait for ever
  expect_failure(run_cli_in(f, "train gpt --data pipe", soon), 1,
                 {"[data] 'pipe' is not a regular file"});
  for (const std::string flag : {"--log", "--csv", "--json", "--trace"})
    expect_failure(train(f, flag + " pipe", soon), 1,
                   {"cannot write 'pipe': it is a pipe; give the path of a file"});
  expect_failure(run_cli_in(f, "train pipe.toml", soon), 1,
                 {"cannot open configuration 'pipe.toml': it is a pipe"});
  expect_failure(train(f, "--machine pipe.toml", soon), 1, {"machine profile 'pipe.toml'"});
  expect_failure(train(f, "--layout @pipe", soon), 1, {"layout file 'pipe': it is a pipe"});
  expect_failure(run_cli_in(f, "verify gpt --layouts pipe", soon), 1, {"layouts 'pipe'"});
  expect_failure(run_cli_in(f, "report pipe", soon), 1, {"the log 'pipe': it is a pipe"});
  expect_failure(run_cli_in(f, "solve pipe", soon), 1, {"[solve]", "'pipe': it is a pipe"});
  expect_failure(run_cli_in(f, "train gpt --data /dev/null"), 1, {"not a regular file"});
  expect_failure(train(f, "--machine /tmp"), 1,
                 {"cannot open machine profile '/tmp': it is a directory"});
}

TEST_CASE("refused: outputs that cannot be written are told before the work", "[cli]") {
  const TextFolder f;
  for (const std::string flag : {"--log", "--csv", "--json", "--trace"}) {
    const CliResult r = train(f, flag + " /proc/report");
    expect_failure(r, 1, {"cannot write '/proc/report': "});
    CHECK_FALSE(contains(r.out, "step 1"));
  }
  expect_failure(run_cli_in(f, "calibrate --out /proc/here.toml"), 1,
                 {"cannot write '/proc/here.toml': "});
  for (const std::string flag : {"--log", "--csv", "--json", "--trace"})
    expect_failure(train(f, flag + " -"), 1,
                   {"cannot write '-': standard output has the text already", "/dev/stdout"});
}

TEST_CASE("refused: a full disk leaves nothing, and what was there", "[cli]") {
  const TextFolder f;
  const std::string full = "sh -c 'trap \"\" XFSZ; ulimit -f 1; exec \"$@\"' sh";  // 512 or 1024
  f.write("old.json", "old");
  const std::string simulate = "simulate gpt --machine h100 --mesh data:2 --trace ";
  for (const std::string name : {"new.json", "old.json"})
    expect_failure(run_cli_in(f, simulate + name, full), 1,
                   {"cannot write the ", "bytes of '" + name + "': File too large", "make room"});
  CHECK(f.read("old.json") == "old");
  CHECK(f.names() == std::set<std::string>{"text.txt", "old.json", "stdout.txt", "stderr.txt"});
  expect_success(run_cli_in(f, simulate + "old.json"));
  CHECK(json_of(f, "old.json").is_object());
}

TEST_CASE("refused: layouts of files that have none", "[cli]") {
  const TextFolder f;
  f.write("empty.txt", "\n# nothing\n");
  std::filesystem::create_directory(f("folder"));
  expect_failure(train(f, "--layout @folder"), 1,
                 {"cannot open layout file 'folder': it is a directory"});
  expect_failure(train(f, "--layout @empty.txt"), 1,
                 {"layout file 'empty.txt' has no rule", "--layout ';'"});
  expect_failure(train(f, "--layout @none.txt"), 1, {"layout file 'none.txt' does not exist"});
  for (const std::string command : {"verify", "sweep"}) {
    expect_failure(run_cli_in(f, command + " gpt --layouts empty.txt"), 1,
                   {"'empty.txt' has no layouts, one a line"});
    expect_failure(run_cli_in(f, command + " gpt --layouts folder"), 1,
                   {"cannot open layouts 'folder': it is a directory"});
  }
  f.write("rules.txt", "batch:data\n# all else is whole\n");
  expect_success(train(f, "--steps 1 --mesh data:2 --layout @rules.txt"));
}

TEST_CASE("refused: a rule of a purpose that has no such dim", "[cli]") {
  const TextFolder f;
  for (const std::string rule : {"@params batch:data", "@state batch:data", "@grads length:data"}) {
    INFO(rule);
    const std::string dim = rule.substr(rule.find(' ') + 1, rule.find(':') - rule.find(' ') - 1);
    if (dim == "length") continue;  // positions have it
    expect_failure(train(f, "--steps 1 --mesh data:2 --layout \"" + rule + "\""), 1,
                   {"layout rule '" + rule + "': no tensor of '@", "has a dim '" + dim + "'",
                    "write '" + dim + "?'"});
  }
  expect_failure(train(f, "--steps 1 --mesh data:2 --layout \"@params/*none*/ ff:data\""), 1,
                 {"named like '*none*'"});
  for (const std::string fine : {"@params batch?:data", "@params ff:data", "@state ff:data"})
    expect_success(train(f, "--steps 1 --mesh data:2 --layout \"" + fine + "\""));
}

TEST_CASE("refused: more ranks than threads can be", "[cli]") {
  const TextFolder f;
  expect_failure(train(f, "--mesh data:100000"), 1,
                 {"100000 ranks would be threads of this process", "at most", "mpirun"});
}

TEST_CASE("refused: threads that the system does not start", "[cli]") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("a sanitizer's memory has no limit: not run");
#else
  const TextFolder f;
  const std::string large =
      "--set d_model=512 ff=2048 batch=16 length=64 ";  // there is work for all
  expect_failure(
      train(f, large + "--steps 1 --threads 1024", "sh -c 'ulimit -v 3000000; exec \"$@\"' sh"), 1,
      {"a rank is given 1024 threads, and the system starts", "--threads"});
#endif
}

TEST_CASE("refused: of launched processes the first says so first", "[cli]") {
  const Folder f;
  const std::string of = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=";
  expect_failure(run_cli_in(f, "train gpt --stpes 3", of + "0"), 2, {"'--stpes'"});
  const CliResult other = run_cli_in(f, "train gpt --stpes 3", of + "1");
  CHECK(other.code == 2);  // nobody would tell it if this process alone had such a flag
  CHECK(contains(other.err, "'--stpes'"));
  CHECK(run_cli_in(f, "--help", of + "1").out.empty());
  if (contains(run_cli_in(f, "info").out, "http  libmicrohttpd "))
    expect_failure(run_cli_in(f, "serve gpt --checkpoint c", of + "0"), 1,
                   {"serve runs in one process", "this one is one of 2", "without a launcher"});
}

TEST_CASE("refused: memory in units that there are not", "[cli]") {
  const TextFolder f;
  expect_failure(train(f, "--checkpoint c --staging abc"), 1,
                 {"--staging 'abc' is not a number of bytes", "KiB"});
  for (const std::string text : {"16gb", "1KB", "nan"})
    expect_failure(run_cli_in(f, "explain gpt --memory " + text), 1,
                   {"--memory '" + text + "' is not a number of bytes", "MiB, GiB and TiB"});
  expect_failure(run_cli_in(f, "explain gpt --memory 1e40GB"), 1,
                 {"--memory '1e40GB' is 1e+49 bytes", "at most"});
  expect_failure(run_cli_in(f, "explain gpt --memory 1"), 1, {"--memory is 1 B"});
}

TEST_CASE("refused: what stands beside the thing that is meant is named", "[cli]") {
  const TextFolder f;
  expect_failure(
      run_cli_in(f, "train mlp --data " TESSERA_SOURCE_DIR "/data"), 1,
      {"/data' has no train-images-idx3-ubyte.gz, but '", "/data/digits' has; use --data "});
  expect_failure(run_cli_in(f, "train /tmp"), 1,
                 {"'/tmp' is a folder without config.json", "a TOML file"});
  expect_failure(run_cli_in(f, "report ."), 1, {"cannot open the log '.': it is a directory"});
  f.write("problem.json", "{\"problem\": ]");
  expect_failure(run_cli_in(f, "solve problem.json"), 1,
                 {"[solve] 'problem.json' is not JSON from byte 13 on"});
  expect_failure(train(f, "--microbatch-size 6"), 1, {"the nearest batch is 6"});
}

}  // namespace TESSERA_FILE
