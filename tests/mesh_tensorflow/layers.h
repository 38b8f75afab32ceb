// Computations that Mesh TensorFlow was run on (mesh_tensorflow/values_layers.py), built here: what
// went in and what came out is in mesh_tensorflow/layers.safetensors, described in
// values_layers_case.py.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn.h"
#include "tessera/optim.h"
#include "tessera/safetensors.h"

namespace tessera::test {

/// The inputs of a case, by name.
class MtfInputs {
 public:
  MtfInputs(Graph& g, const std::string& row) : graph(g), row_(row) {}
  /// Declares it at its first use.
  Tensor operator()(const std::string& name) const;
  bool has(const std::string& name) const;

  Graph& graph;

 private:
  std::string row_;
  mutable std::map<std::string, Tensor> tensors_;
};

/// Results by name: "y" if there is one.
struct MtfResults {
  MtfResults(Tensor y) : named{{"y", y}} {}
  MtfResults(std::vector<std::pair<std::string, Tensor>> results) : named(std::move(results)) {}
  std::vector<std::pair<std::string, Tensor>> named;
};
using MtfBuild = std::function<MtfResults(const MtfInputs&)>;
using MtfRows = std::map<std::string, MtfBuild>;

void add_mtf_layers(MtfRows& rows);
void add_mtf_convolutions(MtfRows& rows);
void add_mtf_attention(MtfRows& rows);
void add_mtf_experts(MtfRows& rows);
void add_mtf_variants(MtfRows& rows);

/// The recorded tensors.
class MtfValues {
 public:
  static const MtfValues& all();
  /// "case/kind/name".
  bool has(const std::string& name) const;
  Array at(const std::string& name) const;
  /// The names of what is called "case/kind/...".
  std::vector<std::string> names(const std::string& row, const std::string& kind) const;
  /// The parts of names before the first '/'.
  std::vector<std::string> cases() const;

 private:
  MtfValues();
  SafetensorsReader file_;
};

/// The same elements with the dims in another order. Throws if they are not the same dims.
Array with_dims(const Array& x, const std::vector<std::string>& dims);
/// Fails the test where elements differ by more than the rounding of float32 makes of the largest.
void check_mtf(const std::string& what, const Array& got, const Array& want);

}  // namespace tessera::test
