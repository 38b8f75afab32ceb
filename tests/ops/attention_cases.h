// Attention as a step with operands in memory: what a generated kernel is given, what it says, and
// what it should have said, in float64.
#pragma once

#include <string>
#include <vector>

#include "gpu/host_kernels.h"
#include "kernels/cuda/generate.h"

namespace tessera::test {

/// How the queries, keys and values lie.
enum class Lie : uint8_t {
  heads_first,   ///< [heads, group, rows, width]
  rows_first,    ///< [rows, heads, group, width]
  columns_last,  ///< [heads, group, width, rows]
  odd            ///< as heads_first, but each row is one element longer and the first is skipped
};

struct AttentionCase {
  DType type = DType::bfloat16;
  int64_t width = 64, length = 64, memory = 64;
  bool causal = true;
  int64_t heads = 1, group = 1;  ///< so many queries share a key
  Lie lie = Lie::heads_first;
  int64_t first_query = 0, first_key = 0;
  int64_t all_keys = 0;  ///< of all parts, if this is a part
  int64_t window = 0;    ///< 0: none
  int64_t segments = 0;  ///< documents in a row, between padding; 0: there are none
  double soft_cap = 0;   ///< 0: none
  double slope = 0;      ///< of the first head and group, a multiple of it of the others; 0: none
  int64_t entries = 0;   ///< of biases by distance; 0: there are none
  double dropout = 0;
  std::string name() const;
};

class AttentionRun {
 public:
  explicit AttentionRun(const AttentionCase& c);
  AttentionRun(const AttentionRun&) = delete;

  DType type() const { return case_.type; }
  /// The kernels in the order that they run in: of the result, then of the gradient.
  const std::vector<cuda::Source>& sources() const { return sources_; }
  /// Runs them by the host, and says what is not as expected: "dq is off by 0.3".
  std::string errors(KernelsAs as = kernels_by_default());
  /// `kernels`: what to run for each of sources().
  std::string errors(const std::vector<const HostKernel*>& kernels);

 private:
  struct Matrix {
    std::vector<unsigned char> bytes;
    int64_t row = 0, head = 0, of_group = 0, column = 0, offset = 0;
    bool by_query = true;
  };
  struct Expected {
    std::vector<double> out, dq, dk, dv, log_sum, of_entries;
  };

  Matrix make(bool by_query, bool grouped, unsigned seed) const;
  double at(const Matrix& m, int64_t h, int64_t g, int64_t row, int64_t column) const;
  TensorArg argument(Matrix& m) const;
  TensorArg numbers(std::vector<float>& values) const;
  TensorArg argument(std::vector<int32_t>& ids, bool by_query) const;
  int32_t segment(int64_t head, int64_t position) const;
  bool sees(int64_t head, int64_t query, int64_t key) const;
  Step step(bool backward, const KernelArgs& args) const;
  void add(KernelArgs& args, bool backward);
  void add_dim_of_entries(KernelArgs& args);
  double keeps(int64_t head, int64_t query, int64_t key) const;
  void add_row(Expected& expected, int64_t h, int64_t g, int64_t query) const;
  Expected expect();
  std::string compare(const char* what, const Matrix& got, const std::vector<double>& expected,
                      int64_t group) const;

  AttentionCase case_;
  Matrix q_, k_, v_, grad_, out_, dq_, dk_, dv_;
  std::vector<float> log_sum_, given_log_sum_, product_;
  int32_t start_[2] = {0, 0};
  std::vector<int32_t> query_ids_, key_ids_;
  std::vector<float> slopes_;                ///< by head and group
  std::vector<float> entries_, of_entries_;  ///< [entries, heads, group], [heads, group, entries]
  Step forward_, backward_;
  KernelArgs forward_args_, backward_args_;
  std::vector<cuda::Source> sources_;
  size_t forward_sources_ = 0;
  std::vector<uint64_t> workspace_;
};

}  // namespace tessera::test
