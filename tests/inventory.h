// What Mesh TensorFlow has, what it is called here, and what shows it: docs/mesh_tensorflow.md is
// written from these rows.
#pragma once

#include <vector>

namespace tessera::test {

struct InventoryRow {
  const char* theirs;
  const char* ours;   ///< what to write, or why it is left out and what replaces it
  const char* shown;  ///< rows of op_cases, or files of this repository, separated by blanks
};

struct InventorySection {
  const char* title;
  std::vector<InventoryRow> rows;
};

/// Sections by family of ops.
std::vector<InventorySection> inventory();

}  // namespace tessera::test
