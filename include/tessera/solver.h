// An exact solver for assignment problems: nodes with strategies, cost tables between nodes, and a
// memory limit over time. The planner uses it; `tessera solve` reads such problems from files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::solver {

/// A cost of at least this (about 5.8e17) forbids the choice.
inline constexpr int64_t kForbidden = int64_t{1} << 59;

/// A node to choose a strategy for. With strategy s it uses usage[s] bytes during [begin, end).
struct Node {
  std::vector<int64_t> cost, usage;  ///< by strategy; >= 0
  int64_t begin = 0, end = 0;
};

/// A cost that depends on the strategies of several nodes.
struct Edge {
  std::vector<int> nodes;
  std::vector<int64_t> cost;  ///< row-major over the strategies of `nodes`, the last fastest; >= 0
};

/// Choose a strategy for every node so that the sum of node and edge costs is minimal, nothing is
/// forbidden, and at most `limit` bytes are in use at any time.
struct Problem {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::optional<int64_t> limit;
};

/// Cost and memory of a choice.
struct Evaluation {
  int64_t cost = 0;   ///< without forbidden entries; at most 2^63 - 1
  int forbidden = 0;  ///< number of forbidden strategies and table entries chosen
  int64_t peak = 0;   ///< maximum of bytes in use
  int64_t at = 0;     ///< time of the peak
};
Evaluation evaluate(const Problem& problem, const std::vector<int>& choice);

/// Throws a usage error that names the node or edge: lengths that do not match, negative numbers,
/// no strategy, a missing node, sums that overflow.
void check(const Problem& problem);

/// Reads the format of the ASPLOS 2025 contest on intra-operator parallelism, plain or gzipped.
/// Throws an io error for an unreadable file, a usage error if it is not such a problem.
Problem read_problem(const std::string& path);

struct Options {
  double seconds = 60;  ///< time limit for problems too large for the exact method
  /// Limits of the exact method: entries of a table, and partial plans (labels).
  int64_t entries = int64_t{1} << 24, labels = int64_t{1} << 22;
  int threads = 2;
};

struct Solution {
  std::vector<int> choice;  ///< empty: none found
  int64_t cost = 0;
  int64_t bound = 0;     ///< lower bound of the cost
  bool optimal = false;  ///< cost == bound; false also if costs are too large to add up exactly
  double seconds = 0, first_seconds = 0;  ///< total; until the first allowed choice
  /// The cost that one more byte of the limit would save: the Lagrange multiplier, summed over
  /// times; 0 if the limit does not bind.
  double price = 0;
  int nodes = 0;    ///< number left after reduction
  std::string how;  ///< "elimination", "elimination and partial plans", "dual ascent and search"

  /// (cost - bound) / cost; 0 if both are 0.
  double gap() const;
};

/// Throws a usage error if no choice is allowed (with the node, or with the time and the least
/// limit known to work). Deterministic unless the time limit is reached.
Solution solve(const Problem& problem, const Options& options = {});

}  // namespace tessera::solver
