// The shipped machine profiles, and reading of profile files.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct MachineFile {
  const char* name;
  const char* text;
};
/// The files of src/cost/machines, built in.
const std::vector<MachineFile>& machine_files();
/// The content of a file. Throws an io error that names the file.
std::string read_machine_file(const std::string& path);

}  // namespace tessera
