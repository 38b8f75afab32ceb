// Running the command line in a folder of its own.
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "support/io_folder.h"

namespace tessera::test {

struct CliResult {
  int code = -1;
  std::string out, err;
};

/// Starts jobs of several processes. What MPI leaves behind is no leak of ours (scripts/mpi_run).
inline const std::string kLaunchLocal =
    "env LSAN_OPTIONS=detect_leaks=0 " TESSERA_SOURCE_DIR "/scripts/launch_local ";

/// `PROGRAM ARGUMENTS` in the folder; `environment` is "NAME=value ...", `out` gets standard
/// output.
inline CliResult run_in(const Folder& folder, const std::string& program,
                        const std::string& arguments, const std::string& environment = "",
                        const std::string& out = "stdout.txt") {
  const std::string command = "cd '" + folder.dir + "' && env " + environment + " " + program +
                              " " + arguments + " > " + out + " 2> stderr.txt";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out == "stdout.txt" ? folder.read(out) : "",
          folder.read("stderr.txt")};
}

inline CliResult run_cli_in(const Folder& folder, const std::string& arguments,
                            const std::string& environment = "",
                            const std::string& out = "stdout.txt") {
  return run_in(folder, TESSERA_CLI, arguments, environment, out);
}

/// It ends with `code` and exactly one line of `program` on stderr that has all `words`.
inline void expect_failure(const CliResult& result, int code,
                           std::initializer_list<std::string> words,
                           const std::string& program = "tessera") {
  INFO("stderr: " << result.err);
  CHECK(result.code == code);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.rfind(program + ": ", 0) == 0);
  for (const std::string& word : words) {
    INFO("missing: " << word);
    CHECK(result.err.find(word) != std::string::npos);
  }
}

inline void expect_success(const CliResult& result) {
  INFO("stdout: " << result.out << "\nstderr: " << result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
}

/// A JSON file of the folder.
inline nlohmann::json json_of(const Folder& f, const std::string& name) {
  return nlohmann::json::parse(f.read(name));
}

/// The objects of a log; `key` is in all of them. A line that a job still writes is not read.
inline std::vector<nlohmann::json> log_of(const Folder& folder, const std::string& name,
                                          const std::string& key) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(folder.read(name));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains(key)) records.push_back(record);
  }
  return records;
}

/// Loss by step; of a step that was run twice the last.
inline std::map<int64_t, double> losses_of(const Folder& folder, const std::string& name) {
  std::map<int64_t, double> losses;
  for (const nlohmann::json& record : log_of(folder, name, "loss"))
    losses[record["step"].get<int64_t>()] = record["loss"].get<double>();
  return losses;
}

/// 4,000 bytes of text that repeats with variations.
inline std::string some_text() {
  std::string text;
  for (int i = 0; text.size() < 4000; ++i) text += "line " + std::to_string(i * i) + " of it\n";
  return text.substr(0, 4000);
}

/// The smallest gpt that is one.
inline const char* kTinyGpt =
    "gpt --data text.txt --batch 4 --set layers=1 d_model=16 heads=2 ff=16 length=8 "
    "schedule=constant warmup=2 ";

}  // namespace tessera::test
