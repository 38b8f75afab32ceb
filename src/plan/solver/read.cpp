// The format of the ASPLOS 2025 contest: {"problem": {"name", "nodes": {"intervals", "costs",
// "usages"}, "edges": {"nodes", "costs"}, "usage_limit"}}. zlib reads plain and compressed files
// alike.
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/json.h"
#include "tessera/solver.h"

namespace tessera::solver {

namespace {

using nlohmann::json;

std::string read_all(const std::string& path) {
  struct stat status {};
  const bool is_pipe = stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
  if (is_pipe && !path.starts_with("/dev/"))
    fail(ErrorKind::io, "[solve] cannot open '{}': it is a pipe; give the path of a file", path);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail(ErrorKind::io, "[solve] cannot open '{}'; check the path", path);
  gzbuffer(file.get(), 1 << 18);
  std::string text;
  std::vector<char> part(1 << 20);
  int got = 0;
  while ((got = gzread(file.get(), part.data(), static_cast<unsigned>(part.size()))) > 0) {
    text.append(part.data(), static_cast<size_t>(got));
  }
  int code = Z_OK;
  const char* why = gzerror(file.get(), &code);
  if (got < 0 || code == Z_BUF_ERROR) {
    fail(ErrorKind::io, "[solve] cannot read '{}': {}; is the file complete?", path,
         code == Z_BUF_ERROR ? "it ends too early" : why);
  }
  return text;
}

const json& part(const json& of, const char* key) {
  TESSERA_REQUIRE(of.is_object() && of.contains(key), "[solve] there is no '{}' where one belongs",
                  key);
  return of.at(key);
}

/// Checks lists of lists of 64-bit integers.
void expect_whole(const json& numbers, const char* what) {
  for (const json& row : numbers) {
    for (const json& number : row) {
      const bool fits = number.is_number_integer() &&
                        (!number.is_number_unsigned() ||
                         number.get<uint64_t>() <= std::numeric_limits<int64_t>::max());
      if (!fits)
        fail(ErrorKind::usage,
             "[solve] {} are whole numbers up to 2^63 - 1, and one is {}; scale them", what,
             number.dump());
    }
  }
}

using Lists = std::vector<std::vector<int64_t>>;
Lists lists(const json& of, const char* key, const char* what) {
  const json& numbers = part(of, key);
  expect_whole(numbers, what);
  return numbers.get<Lists>();
}

Problem convert(const json& root) {
  const json& p = part(root, "problem");
  Problem problem;
  const json& nodes = part(p, "nodes");
  problem.name = p.value("name", "");
  const Lists intervals = lists(nodes, "intervals", "intervals"),
              costs = lists(nodes, "costs", "costs"), usages = lists(nodes, "usages", "usages");
  TESSERA_REQUIRE(
      costs.size() == intervals.size() && usages.size() == costs.size(),
      "[solve] there are {} intervals, {} costs and {} usages; every node has one of each",
      intervals.size(), costs.size(), usages.size());
  for (size_t v = 0; v < costs.size(); ++v) {
    TESSERA_REQUIRE(intervals[v].size() == 2,
                    "[solve] the interval of node {} has {} numbers instead of 2", v,
                    intervals[v].size());
    problem.nodes.push_back({costs[v], usages[v], intervals[v][0], intervals[v][1]});
  }
  const json& edges = part(p, "edges");
  const Lists ends = lists(edges, "nodes", "nodes of edges");
  Lists tables = lists(edges, "costs", "costs of edges");
  TESSERA_REQUIRE(ends.size() == tables.size(), "[solve] there are {} edges and {} tables of costs",
                  ends.size(), tables.size());
  for (size_t e = 0; e < ends.size(); ++e) {
    problem.edges.push_back({{}, std::move(tables[e])});
    for (const int64_t end : ends[e])
      problem.edges.back().nodes.push_back(
          static_cast<int>(std::clamp<int64_t>(end, -1, std::numeric_limits<int>::max())));
  }
  if (p.contains("usage_limit")) {
    expect_whole(json::array({json::array({p.at("usage_limit")})}), "usage limits");
    problem.limit = p.at("usage_limit").get<int64_t>();
  }
  return problem;
}

}  // namespace

Problem read_problem(const std::string& path) {
  const std::string text = read_all(path);
  TESSERA_REQUIRE(nesting_of(text) <= kMostNesting, "[solve] '{}' nests more than {} brackets",
                  path, kMostNesting);
  Problem problem;
  try {
    problem = convert(json::parse(text));
  } catch (const json::parse_error& e) {
    fail(ErrorKind::usage,
         "[solve] '{}' is not JSON from byte {} on; it must be a problem, plain or gzipped", path,
         e.byte);
  } catch (const json::exception& e) {
    fail(ErrorKind::usage, "[solve] '{}' is not a problem of choice: {}", path, e.what());
  }
  check(problem);
  return problem;
}

}  // namespace tessera::solver
