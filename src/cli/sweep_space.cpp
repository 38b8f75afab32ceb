// The configurations and meshes of a sweep.
#include <algorithm>

#include "base/fail.h"
#include "cli/sweep.h"
#include "tessera/cluster.h"

namespace tessera::cli {

namespace {

/// True for keys whose values are lists, so that a comma does not separate values.
bool is_list(const std::string& key) {
  for (const char* name : {"rates", "recompute", "reshard_after_forward", "rules", "mesh", "path",
                           "targets", "trainable"}) {
    if (key.ends_with(name)) return true;
  }
  return false;
}

}  // namespace

std::vector<std::vector<std::string>> combinations(const std::vector<std::string>& sets) {
  std::vector<std::vector<std::string>> result = {{}};
  for (const std::string& set : sets) {
    const auto [key, list] = key_and_value(set);
    std::vector<std::string> values;
    for (size_t at = 0; at <= list.size();) {
      const size_t end = is_list(key) ? list.size() : std::min(list.find(',', at), list.size());
      values.push_back(key + "=" + list.substr(at, end - at));
      at = end + 1;
    }
    std::vector<std::vector<std::string>> longer;
    for (const auto& head : result) {
      for (const std::string& value : values) {
        longer.push_back(head);
        longer.back().push_back(value);
      }
    }
    result = std::move(longer);
  }
  return result;
}

namespace {
/// Meshes of `ranks` ranks with at most three axes a, b, c of non-increasing size.
void factor(int ranks, int most, const std::string& mesh, char axis,
            std::vector<std::string>& out) {
  if (ranks == 1 && !mesh.empty()) out.push_back(mesh);
  if (axis > 'c') return;
  for (int size = std::min(most, ranks); size >= 2; --size) {
    if (ranks % size == 0)
      factor(ranks / size, size,
             fmt::format("{}{}{}:{}", mesh, mesh.empty() ? "" : ";", axis, size),
             static_cast<char>(axis + 1), out);
  }
}

}  // namespace

std::vector<std::string> meshes_of(const SweepFlags& args) {
  const int launched = launched_ranks();
  TESSERA_REQUIRE(args.meshes.empty() || args.meshes == "all", "--meshes '{}'; only all is known",
                  args.meshes);
  TESSERA_REQUIRE(args.mesh.empty() || (args.devices == 0 && args.meshes.empty()),
                  "--mesh '{}' and --devices or --meshes: give one of them", args.mesh);
  if (!args.mesh.empty()) return {args.mesh};
  const int ranks = args.devices > 0 ? static_cast<int>(args.devices) : std::max(1, launched);
  if (ranks == 1) return {"a:1"};
  std::vector<std::string> meshes;
  factor(ranks, ranks, "", 'a', meshes);
  return meshes;
}

}  // namespace tessera::cli
