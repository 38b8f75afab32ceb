// The layouts that the manual's pages name: verify knows them. That they equal one rank in every
// dtype is in a page of the reference, which scripts/reference checks.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "cli/choices.h"
#include "cli/cli_run.h"
#include "support/expect_error.h"
#include "tessera/cli.h"
#include "tessera/ops.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::filesystem::path> pages() {
  const std::filesystem::path root(TESSERA_SOURCE_DIR);
  std::vector<std::filesystem::path> found = {root / "README.md"};
  for (const char* part : {"tutorial", "how-to", "explanation"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root / "docs" / part))
      if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  return found;
}

/// Layouts of a page's commands (`--layout RULES`); lines that end in a backslash go on.
std::set<std::string> named_in(const std::string& page) {
  const std::string joined = std::regex_replace(page, std::regex("\\\\\n\\s*"), " ");
  static const std::regex option("--layout (?:\"([^\"]+)\"|([^ `|\n]+))");
  std::set<std::string> found;
  for (std::sregex_iterator it(joined.begin(), joined.end(), option), end; it != end; ++it) {
    const std::string rules = (*it)[1].matched ? (*it)[1] : (*it)[2];
    const bool is_rule =
        rules.find(':') != std::string::npos && rules.find_first_of("<$") == std::string::npos;
    if (is_rule && rules.find("auto") == std::string::npos) found.insert(rules);
  }
  return found;
}

std::set<std::string> documented() {
  std::set<std::string> known;
  for (const ModelSpec& spec : builtin_models()) {
    for (const std::string& rules : spec.documented) known.insert(Layout::parse(rules).to_string());
  }
  return known;
}

TEST_CASE("the layouts of the manual's commands are those that verify checks", "[cli]") {
  const std::set<std::string> known = documented();
  // A mistake on purpose, models of the reader's own, and layers that are a loop.
  const std::set<std::string> others = {"btach:data",
                                        "batch:a",
                                        "batch:data;hidden:model",
                                        "batch:data; @state layers:data",
                                        "layers:pipe",
                                        "layers:pipe;batch:data",
                                        "layers:pipe*2",
                                        "layers:pipe*2;batch:data",
                                        "layers:pipe;vocab:pipe",
                                        "layers:pipe;vocab:pipe;batch:data"};
  size_t found = 0;
  for (const std::filesystem::path& page : pages()) {
    for (const std::string& rules : named_in(text_of(page))) {
      INFO(page.string() << ": " << rules);
      CHECK((others.contains(rules) || known.contains(Layout::parse(rules).to_string())));
      ++found;
    }
  }
  CHECK(found >= 20);
}

TEST_CASE(
    "cli: verify of experts checks the layouts that the model names, and knows a flipped choice",
    "[cli]") {
  const Folder f;
  const CliResult r = run_in(f, TESSERA_EXPERTS,
                             "verify experts --mesh 'data:2;expert:2' --layouts documented --dtype "
                             "bfloat16 --json v.json");
  expect_success(r);
  const nlohmann::json report = json_of(f, "v.json");
  std::set<std::string> layouts;
  for (const auto& row : report["by_layout"]) layouts.insert(row["layout"].get<std::string>());
  CHECK(layouts == std::set<std::string>{"batch,experts:expert", "batch:data;experts:expert",
                                         "batch:data+expert;experts:expert"});
  CHECK(report["max_flip_margin"].get<double>() <= 16.0 / 256);
  const std::string in_loop = "verify '" TESSERA_SOURCE_DIR
                              "/tests/models/mixtral' --mesh a:2 --layout ff:a --dtype bfloat16 "
                              "--set length=16 batch=4 scan=true --tolerance 1e-9";
  const CliResult hidden = run_cli_in(f, in_loop);
  CHECK(hidden.code == 1);
  CHECK(hidden.out.find("chooses (argmax, top_k) inside of a loop") != std::string::npos);
  expect_failure(run_cli_in(f, "verify gpt --mesh a:2 --layouts documented"), 1,
                 {"the documentation of gpt names no layout for the axes of mesh 'a:2'",
                  "it names 'batch:data'"});
}

TEST_CASE("a choice between equal scores is told from one between others", "[cli]") {
  const auto chosen = [](std::vector<float> scores, std::vector<int32_t> indices) {
    cli::Chosen c{"argmax", "e", Array(DType::float32, {"t", "e"}, {2, 3}),
                  Array(DType::int32, {"t"}, {2})};
    std::copy(scores.begin(), scores.end(), c.scores.data<float>());
    std::copy(indices.begin(), indices.end(), c.indices.data<int32_t>());
    return std::vector<cli::Chosen>{c};
  };
  const auto one = chosen({0.2F, 0.5F, 0.3F, 0.41F, 0.4F, 0.19F}, {1, 0});
  CHECK(cli::flips_of(one, one).name.empty());
  const cli::Flips near = cli::flips_of(one, chosen({0, 0, 0, 0, 0, 0}, {1, 1}));
  CHECK(near.count == 1);
  CHECK(near.of == 2);
  CHECK(near.margin == Approx(0.01 / 0.41).epsilon(1e-5));
  const cli::Flips far = cli::flips_of(one, chosen({0, 0, 0, 0, 0, 0}, {2, 1}));
  CHECK(far.count == 2);
  CHECK(far.margin == Approx(0.4).epsilon(1e-5));
  Graph g;
  const Dim t("t", 2), e("e", 3);
  Tensor x = g.input("x", {t, e}, DType::float32);
  argmax(x, "e");
  top_k(x, "e", Dim("k", 2));
  argmax(cast(x, DType::int32), "e");
  CHECK(cli::choices_in(g).size() == 2);
}

}  // namespace TESSERA_FILE
