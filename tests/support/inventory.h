// What Mesh TensorFlow has, what it is called here, and what shows it:
// docs/reference/mesh-tensorflow.md is written from these rows.
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

/// Sections by family of ops, then layer_inventory().
std::vector<InventorySection> inventory();
/// Layers and what is around a model.
std::vector<InventorySection> layer_inventory();

}  // namespace tessera::test
