// The table of what Mesh TensorFlow has: nothing it points to is missing, and the document is
// written from it.
#include "support/inventory.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/fail.h"
#include "ops/op_cases.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

std::string cell(const std::string& text) {
  std::string result;
  for (char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

std::string document() {
  std::string text =
      "# What Mesh TensorFlow has, here\n\n"
      "Written by `TESSERA_UPDATE_GOLDEN=1 tessera_tests \"[inventory]\"` from "
      "`tests/support/inventory.cpp`; "
      "the tests check that all it\npoints to is there. The last column names rows of "
      "`tests/ops/op_cases_*.cpp` (value, gradient and every layout are tested\nfrom each) or "
      "files. "
      "`-` in the first column: Mesh TensorFlow has none.\n"
      "`tests/mesh_tensorflow/ops_test.cpp` compares operations and gradients with what Mesh "
      "TensorFlow itself gives, and\nlists the elements where they differ on purpose.\n";
  for (const InventorySection& section : inventory()) {
    text += fmt::format("\n## {}\n\n| Mesh TensorFlow | Tessera | shown by |\n|---|---|---|\n",
                        section.title);
    for (const InventoryRow& row : section.rows)
      text += fmt::format("| {} | {} | {} |\n", cell(row.theirs), cell(row.ours),
                          fmt::join(words(row.shown), ", "));
  }
  return text;
}

TEST_CASE("the table of Mesh TensorFlow's ops points to tests that exist", "[inventory]") {
  std::set<std::string> cases;
  for (const OpCase& row : op_cases()) cases.insert(row.name);
  for (const InventorySection& section : inventory()) {
    for (const InventoryRow& row : section.rows) {
      INFO(section.title << ": " << row.theirs);
      CHECK(!words(row.shown).empty());
      for (const std::string& word : words(row.shown)) {
        INFO(word);
        const bool is_file = word.find('/') != std::string::npos;
        CHECK((is_file ? std::filesystem::exists(std::string(TESSERA_SOURCE_DIR) + "/" + word)
                       : cases.count(word) > 0));
      }
    }
  }
}

TEST_CASE("docs/reference/mesh-tensorflow.md is the table", "[inventory]") {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/docs/reference/mesh-tensorflow.md";
  if (std::getenv("TESSERA_UPDATE_GOLDEN")) std::ofstream(path) << document();
  std::ifstream file(path);
  std::stringstream recorded;
  recorded << file.rdbuf();
  INFO("TESSERA_UPDATE_GOLDEN=1 writes it");
  CHECK(document() == recorded.str());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
