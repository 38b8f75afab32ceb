// A test case that runs in a process of its own: it opens libraries that the others must not see.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/catch.h"
#include "support/io_folder.h"

namespace tessera::test {

/// Runs the hidden case `name` of this program and expects that it passes. If it prints "skipped: "
/// and a reason, that is a warning. Without threads of OpenBLAS: they start before main(), and one
/// that gets no memory since the case limits it tries again for ever, at exit too.
inline void check_in_child(const std::string& name) {
  const Folder folder;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "env OPENBLAS_NUM_THREADS=1 LSAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=report_bugs=0 '" + self +
      "' '" + name + "' > " + folder.dir + "/out.txt 2>&1";
  const int status = std::system(command.c_str());
  const std::string out = folder.read("out.txt");
  INFO(out);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  if (out.find("skipped: ") != std::string::npos) WARN(out.substr(out.find("skipped: ")));
}

}  // namespace tessera::test
