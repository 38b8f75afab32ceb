// Predicted time of single steps of a Program.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "collectives/cost.h"
#include "program/program.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"

namespace tessera {

/// The elements of a view that lie in memory: along a dim of stride 0 there is one.
int64_t elements_stored(const View& view);
/// Bytes that a compute step reads and writes. An element of a view counts once.
int64_t bytes_touched(const Step& step);

/// The kernel rates of a machine that count instructions of pointwise steps: cheap ones (add, mul)
/// and expensive ones (exp, tanh).
inline constexpr std::array kInstructionRates = {"pointwise", "pointwise_hard"};
bool counts_instructions(const KernelRate& rate);

/// A matmul as a machine sees it: `batch` matmuls of [m, k] by [k, n].
struct MatmulSizes {
  int64_t batch = 1, m = 1, n = 1, k = 1;
};
/// The sizes of a "matmul" step.
MatmulSizes matmul_sizes(const Step& step);

/// Prices single steps. Keeps references: machine and axes outlive it.
class Costs {
 public:
  /// Throws a usage error if an axis names a link class that the machine lacks, if the mesh has
  /// several ranks and the machine no links, or if the mesh has more ranks than the machine joins.
  Costs(const Machine& machine, const Mesh& mesh);

  const Machine& machine() const { return machine_; }
  const Mesh& mesh() const { return mesh_; }

  /// Seconds of a compute step, launch included. Throws a usage error if the profile has no rate
  /// for matmuls of its dtype.
  double compute(const Step& step) const;
  /// The same of a share of the step's elements, which lie between 0 and 1.
  double compute(const Step& step, double share) const;
  /// Seconds of one collective by itself, latency included.
  double collective(const Step& step) const;
  /// The same without a step; bytes as for bytes_sent(). axes: mesh axes.
  double collective(CollectiveKind kind, double bytes, const std::vector<int>& axes) const;
  /// Seconds of such a collective without any bytes: its start.
  double start(const Step& step) const;
  /// Seconds of a bucket: transfers add up, the start is paid once.
  double bucket(std::span<const Step> members) const;
  CollectiveChoice algorithm(CollectiveKind kind, double bytes, const std::vector<int>& axes) const;
  /// The link tiers that a group over these axes spans, innermost first; tiers with one member are
  /// left out. Ranks are numbered with the last axis fastest and fill node after node.
  std::vector<LinkHop> hops(const std::vector<int>& axes) const;
  /// The indices of those tiers in Machine::links.
  std::vector<size_t> tiers(const std::vector<int>& axes) const;
  /// The link class of the outermost tier that the group reaches; the innermost class if it has one
  /// rank.
  std::string link(const std::vector<int>& axes) const;

 private:
  double start(const std::vector<int>& axes) const;
  std::vector<int64_t> members(const std::vector<int>& axes) const;
  Machine machine_;
  Mesh mesh_;
};

}  // namespace tessera
