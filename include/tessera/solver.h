// An exact solver for problems of choice: nodes with strategies, tables of costs between nodes,
// memory over time. The planner's search is one user; `tessera solve` reads such problems from
// files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::solver {

/// A cost of at least this (about 5.8e17) means: not allowed.
inline constexpr int64_t kForbidden = int64_t{1} << 59;

/// One thing to choose a strategy for. It holds usage[s] bytes during [begin, end).
struct Node {
  std::vector<int64_t> cost, usage;  ///< by strategy; >= 0
  int64_t begin = 0, end = 0;
};

/// What strategies cost together.
struct Edge {
  std::vector<int> nodes;
  std::vector<int64_t> cost;  ///< row-major over the strategies of `nodes`, the last fastest; >= 0
};

/// Choose a strategy for every node: least sum of node and edge costs, nothing forbidden, and at
/// every time at most `limit` bytes in use.
struct Problem {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::optional<int64_t> limit;
};

/// What a choice costs and needs.
struct Evaluation {
  int64_t cost = 0;   ///< without what is forbidden; at most 2^63 - 1
  int forbidden = 0;  ///< strategies and entries of tables chosen that are not allowed
  int64_t peak = 0;   ///< bytes in use at the worst time
  int64_t at = 0;     ///< that time
};
Evaluation evaluate(const Problem& problem, const std::vector<int>& choice);

/// Throws a usage error that names the node or edge: lengths that do not match, negative numbers,
/// no strategy, a node that does not exist, sums beyond what the solver holds.
void check(const Problem& problem);

/// Reads the format of the ASPLOS 2025 contest on intra-operator parallelism, plain or gzipped.
/// Throws an io error for what cannot be read, a usage error for what is not such a problem.
Problem read_problem(const std::string& path);

struct Options {
  double seconds = 60;  ///< for problems too wide or too tight to be solved exactly
  /// Largest number of table entries and of partial plans that the exact method may use.
  int64_t entries = int64_t{1} << 24, labels = int64_t{1} << 22;
  int threads = 2;
};

struct Solution {
  std::vector<int> choice;  ///< empty: none found
  int64_t cost = 0;
  int64_t bound = 0;     ///< no allowed choice costs less
  bool optimal = false;  ///< cost == bound; not shown where costs are too large to add up exactly
  double seconds = 0, first_seconds = 0;  ///< until the end; until the first allowed choice
  /// What one byte more would save, in cost (the Lagrange multiplier; 0 without a limit that
  /// binds), summed over times.
  double price = 0;
  int nodes = 0;    ///< left after reduction
  std::string how;  ///< "elimination", "elimination and partial plans", "dual ascent and search"

  /// (cost - bound) / cost; 0 where both are 0.
  double gap() const;
};

/// Throws a usage error where nothing is allowed at all (with the node or the time, and the least
/// limit known to work if memory is the reason). Deterministic as long as the time does not run
/// out.
Solution solve(const Problem& problem, const Options& options = {});

}  // namespace tessera::solver
