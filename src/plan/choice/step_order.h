// What of a step is done before what, in every schedule.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "plan/choice/flat_ops.h"
#include "plan/choice/repeats.h"
#include "plan/choice/step_sum.h"

namespace tessera {

/// Divides ops into those before the gradient begins and those after, and finds a chain of ops each
/// of which waits for the one before.
class StepOrder {
 public:
  /// Keeps a reference. `kernels`: seconds of the kernels of each op, all layers together.
  StepOrder(const FlatOps& flat, const Repeats& repeats, const std::vector<double>& kernels);

  /// False: all ops are "before".
  bool has_phases() const { return has_phases_; }
  Place of(int op) const;
  /// Where a value of this name is computed, in any layer. What has another name may be anywhere.
  Place of(const std::string& name) const;
  /// When a value is moved for one of its readers (-1: for one that is no op), or for all.
  Phase of_read(int value, int op) const;
  Phase of_reads(int value) const;

  bool is_in_chain(int op) const;
  /// True if moving the value to the op is a part of the chain. -1: to any op.
  bool is_link(int value, int op = -1) const;

 private:
  void find_needs();
  void find_phases(const std::vector<double>& kernels);
  void find_chain(const std::vector<double>& kernels);
  void find_beside();
  int64_t copies(int op) const;
  bool is_seam(int value) const;
  bool may_link(int from, int value, int to) const;

  const FlatOps& flat_;
  const Repeats& repeats_;
  std::vector<std::vector<char>> needs_;  ///< [i][j]: op i needs the result of j, or is it
  std::vector<Place> places_;
  std::vector<char> in_chain_;
  std::vector<int> link_;  ///< by value: the op that the chain moves it to, or -1
  bool has_phases_ = false;
  std::unordered_map<std::string, Place> of_name_;  ///< in all layers
};

}  // namespace tessera
