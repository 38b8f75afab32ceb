#include "cli/cli_run.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "support/catch.h"

namespace tessera::test {

CliResult run_in(const Folder& folder, const std::string& program, const std::string& arguments,
                 const std::string& environment, const std::string& out) {
  const std::string command = "cd '" + folder.dir + "' && env " + environment + " " + program +
                              " " + arguments + " > " + out + " 2> stderr.txt";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out == "stdout.txt" ? folder.read(out) : "",
          folder.read("stderr.txt")};
}

CliResult run_cli_in(const Folder& folder, const std::string& arguments,
                     const std::string& environment, const std::string& out) {
  return run_in(folder, TESSERA_CLI, arguments, environment, out);
}

void expect_failure(const CliResult& result, int code, std::initializer_list<std::string> words,
                    const std::string& program) {
  INFO("stderr: " << result.err);
  CHECK(result.code == code);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.rfind(program + ": ", 0) == 0);
  for (const std::string& word : words) {
    INFO("missing: " << word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

void expect_success(const CliResult& result) {
  INFO("stdout: " << result.out << "\nstderr: " << result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
}

nlohmann::json parsed(const std::string& text) { return nlohmann::json::parse(text); }

nlohmann::json json_of(const Folder& f, const std::string& name) { return parsed(f.read(name)); }

std::vector<nlohmann::json> log_of(const Folder& folder, const std::string& name,
                                   const std::string& key) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(folder.read(name));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const nlohmann::json record = parsed(line);
    if (record.contains(key)) records.push_back(record);
  }
  return records;
}

std::map<int64_t, double> losses_of(const Folder& folder, const std::string& name) {
  std::map<int64_t, double> losses;
  for (const nlohmann::json& record : log_of(folder, name, "loss"))
    losses[record["step"].get<int64_t>()] = record["loss"].get<double>();
  return losses;
}

std::string some_text() {
  std::string text;
  for (int i = 0; text.size() < 4000; ++i) text += "line " + std::to_string(i * i) + " of it\n";
  return text.substr(0, 4000);
}

}  // namespace tessera::test
