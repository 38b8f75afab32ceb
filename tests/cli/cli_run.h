// Running the command line in a folder of its own.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
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
CliResult run_in(const Folder& folder, const std::string& program, const std::string& arguments,
                 const std::string& environment = "", const std::string& out = "stdout.txt");

CliResult run_cli_in(const Folder& folder, const std::string& arguments,
                     const std::string& environment = "", const std::string& out = "stdout.txt");

/// It ends with `code` and exactly one line of `program` on stderr that has all `words`.
void expect_failure(const CliResult& result, int code, std::initializer_list<std::string> words,
                    const std::string& program = "tessera");

void expect_success(const CliResult& result);

/// A JSON text. Compiled once, as JSON's parser takes seconds in each file that has it.
nlohmann::json parsed(const std::string& text);

/// A JSON file of the folder.
nlohmann::json json_of(const Folder& f, const std::string& name);

/// The objects of a log; `key` is in all of them. A line that a job still writes is not read.
std::vector<nlohmann::json> log_of(const Folder& folder, const std::string& name,
                                   const std::string& key);

/// Loss by step; of a step that was run twice the last.
std::map<int64_t, double> losses_of(const Folder& folder, const std::string& name);

/// 4,000 bytes of text that repeats with variations.
std::string some_text();

/// The smallest gpt that is one.
inline const char* kTinyGpt =
    "gpt --data text.txt --batch 4 --set layers=1 d_model=16 heads=2 ff=16 length=8 "
    "schedule=constant warmup=2 ";

}  // namespace tessera::test
