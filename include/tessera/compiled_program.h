// What lowering made of a graph: the Program that a Session runs on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct Program;

/// A view of a Session's Program; valid as long as the Session. Nothing here is collective.
class CompiledProgram {
 public:
  explicit CompiledProgram(const Program& program) : program_(program) {}

  /// Every step with its shapes, axes and buffers.
  std::string text() const;
  /// FNV-1a of text(): equal on all ranks.
  uint64_t hash() const;
  /// Bytes of a rank, planned before the first run and exactly what is allocated.
  int64_t persistent_bytes() const;
  int64_t transient_bytes() const;
  int64_t offloaded_bytes() const;  ///< of host memory
  /// Floating-point operations of one run of `function` on one rank.
  int64_t flops(const std::string& function) const;
  /// Under strict numerics: true if `function` has other bits with other numbers of microbatches,
  /// as with a batch norm, which takes the mean of a microbatch.
  bool depends_on_microbatches(const std::string& function) const;
  /// What Session::fetch() knows after a run of `function` and `glob` matches: outputs, with those
  /// that CompileOptions::keep adds, in the order of the model; then inputs, parameters and state.
  std::vector<std::string> find(const std::string& function, const std::string& glob) const;
  /// All parameters and state, in the order of the model.
  std::vector<std::string> stored_names() const;

 private:
  const Program& program_;
};

}  // namespace tessera
