// What of a step is done before what, in every schedule.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/tensor_layouts/flat_ops.h"
#include "plan/tensor_layouts/repeats.h"
#include "plan/tensor_layouts/step_sum.h"

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
  /// When a value of this name is computed, in any layer.
  std::optional<Place> of(const std::string& name) const;
  Place anywhere() const;
  /// When a value is moved for one of its readers (-1: for one that is no op), or for all.
  Phase of_read(int value, int op) const;
  Phase of_reads(int value) const;

  /// The links of the chain are numbered in its order. Those that the same ops may run beside have
  /// one number.
  int links() const { return static_cast<int>(phases_.size()); }
  Phase of_link(int link) const { return phases_[static_cast<size_t>(link)]; }
  /// The link that the op's own collectives are, or -1.
  int link_in(int op) const;
  /// The link that moving the value to the op is, or -1. Op -1: to any op.
  int link_of(int value, int op = -1) const;
  /// True if only ops that count nothing may be computed beside the link (step_order.cpp). Of other
  /// ops, `around` may contain it all the same.
  bool is_alone(int link) const { return alone_[static_cast<size_t>(link)] != 0; }

 private:
  void find_needs();
  void find_phases(const std::vector<double>& kernels);
  void find_chain(const std::vector<double>& kernels);
  void find_around();
  bool is_there_once(int place) const;
  Links behind(int place) const;
  void find_alone();
  int64_t most_bytes(int op) const;
  std::string named(const std::string& name) const;
  Links around(int op) const;
  void number_links();
  int64_t copies(int op) const;
  bool is_seam(int value) const;
  bool may_link(int from, int value, int to) const;

  const FlatOps& flat_;
  const Repeats& repeats_;
  std::vector<std::vector<char>> needs_;  ///< [i][j]: op i needs the result of j, or is it
  std::vector<Place> places_;
  std::vector<int> chain_;       ///< its ops
  std::vector<int> at_;          ///< by op: its place in the chain, or -1
  std::vector<int> link_;        ///< by value: the op that the chain moves it to, or -1
  std::vector<int> number_;      ///< of places, two for an op: what moves to it, and its own
  std::vector<Phase> phases_;    ///< by link
  std::vector<char> is_kernel_;  ///< by op
  std::vector<char> alone_at_;   ///< by place of the chain, two for an op, as in number_
  std::vector<char> alone_;      ///< by link
  bool has_phases_ = false;
  std::unordered_map<std::string, Place> of_name_;  ///< in all layers
};

}  // namespace tessera
