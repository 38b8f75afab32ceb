#include <unistd.h>

#include <algorithm>

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/http_server.h"
#include "cli/report.h"
#include "cli/report_json.h"
#include "cli/terminal.h"
#include "tessera/build_info.h"

namespace tessera::cli {

namespace {

struct InfoFlags : Invocation, JsonFlag {
  std::string mesh;
  bool keys = false;
  void declare(FlagTable& table) {
    table.add({{"--mesh AXES", &mesh, kAgree, "Prints which ranks each axis groups."},
               {"--keys",
                &keys,
                {"the first rank alone prints"},
                "Prints every configuration key of every model, with its default, its values and "
                "its meaning."}});
    JsonFlag::declare(table);
  }
};

/// The host of each rank of the mesh. Without a launcher all ranks are threads of this process, so
/// none needs to be started.
std::vector<std::string> hosts_of_mesh(const InfoFlags& args, const Mesh& mesh, bool& is_root) {
  if (launched_ranks() > 0) {
    TESSERA_REQUIRE(launched_ranks() == mesh.size(), "mesh '{}' has {} ranks but {} were started",
                    mesh.to_string(), mesh.size(), launched_ranks());
    Cluster cluster = Cluster::from_environment(mesh.size());
    cluster.require_same(args.agreed);
    is_root = cluster.is_root();
    return cluster.hosts();
  }
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return std::vector<std::string>(static_cast<size_t>(mesh.size()), name);
}

/// The groups of an axis: ranks that differ only in its coordinate.
std::vector<std::vector<int>> groups_of(const Mesh& mesh, int axis) {
  std::vector<std::vector<int>> groups;
  for (int r = 0; r < mesh.size(); ++r) {
    std::vector<int> at = mesh.coordinates(r);
    if (at[axis] != 0) continue;
    groups.emplace_back();
    for (; at[axis] < mesh.axes()[axis].size; ++at[axis]) groups.back().push_back(mesh.rank_of(at));
  }
  return groups;
}

/// The distinct hosts of these ranks.
std::vector<std::string> hosts_in(const std::vector<int>& ranks,
                                  const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (int r : ranks) {
    if (std::find(names.begin(), names.end(), hosts[r]) == names.end()) names.push_back(hosts[r]);
  }
  return names;
}

std::string shortened(const std::vector<int>& ranks) {
  const size_t shown = std::min<size_t>(ranks.size(), 16);
  return fmt::format("{}{}",
                     fmt::join(ranks.begin(), ranks.begin() + static_cast<long>(shown), " "),
                     shown < ranks.size() ? " ..." : "");
}

void print_mesh(const Mesh& mesh, const std::vector<std::string>& hosts, nlohmann::json& report) {
  say("mesh  {} = {} ranks ({})\n", mesh.to_string(), mesh.size(),
      launched_ranks() > 0 ? "processes" : "threads of this process");
  for (int a = 0; a < mesh.rank(); ++a) {
    const MeshAxis& axis = mesh.axes()[a];
    const std::vector<std::vector<int>> groups = groups_of(mesh, a);
    say("  {}: {} group{} of {}\n", axis.name, groups.size(), groups.size() == 1 ? "" : "s",
        axis.size);
    nlohmann::json& entry = report["mesh"][axis.name];
    entry = {{"size", axis.size}, {"groups", nlohmann::json::array()}};
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<std::string> names = hosts_in(groups[g], hosts);
      entry["groups"].push_back({{"ranks", groups[g]}, {"hosts", names}});
      if (g < 8) say("    ranks {} on {}\n", shortened(groups[g]), fmt::join(names, ", "));
    }
    if (groups.size() > 8) say("    and {} more\n", groups.size() - 8);
  }
}

const char* name_of(KeyRange::Kind kind) {
  static constexpr const char* kNames[] = {"any", "word", "whole", "number"};
  return kNames[static_cast<size_t>(kind)];
}

nlohmann::json to_json(const ConfigKey& key) {
  nlohmann::json json = {{"default", key.value}, {"kind", name_of(key.range.kind)}};
  TESSERA_JSON_FIELDS(json, key, name, help)
  TESSERA_JSON_FIELDS(json, key.range, least, most, words)
  return json;
}

void print(const ConfigKey& key) {
  const std::string values = range_text(key.range);
  say("  {} = {}{}\n      {}\n", key.name, key.value.empty() ? "\"\"" : key.value,
      values.empty() ? "" : " (" + values + ")", key.help);
}

/// Prints all keys: those of each model, then once those that all models have.
void print_keys(const std::vector<ModelSpec>& models, nlohmann::json& report) {
  const auto is_own = [](const ConfigKey& key) { return key.name.starts_with("model."); };
  for (const ModelSpec& model : models) {
    const Config config = default_config(model);
    nlohmann::json keys = nlohmann::json::array();
    say("[model] of {}: {}\n", model.name, model.help);
    for (const ConfigKey& key : config.keys()) {
      keys.push_back(to_json(key));
      if (is_own(key)) print(key);
    }
    report["models"].push_back(
        {{"name", model.name}, {"help", model.help}, {"layout", model.layout}, {"keys", keys}});
  }
  std::string table;
  const Config config = default_config(models.at(0));
  for (const ConfigKey& key : config.keys()) {
    if (is_own(key)) continue;
    const std::string own = key.name.substr(0, key.name.find('.'));
    if (own != table) say("[{}]\n", table = own);
    print(key);
  }
}

int run_info(const InfoFlags& args, const std::vector<ModelSpec>& models) {
  const BuildInfo build = build_info();
  bool is_root = true;
  std::vector<std::string> hosts;
  Mesh mesh;
  if (!args.mesh.empty()) {
    mesh = Mesh::parse(args.mesh);
    hosts = hosts_of_mesh(args, mesh, is_root);
  }
  if (!is_root) return 0;
  nlohmann::json report = {
      {"version", build.version},   {"cpu", build.cpu},      {"cores", build.cores},
      {"blas", build.blas},         {"mpi", build.mpi},      {"cuda", build.cuda},
      {"nccl", build.nccl},         {"cudnn", build.cudnn},  {"tokenizers", build.tokenizers},
      {"switches", build.switches}, {"http", http_library()}};
  say("Tessera {}\ncpu   {} ({} cores, {})\nblas  {}\nmpi   {}\ncuda  {}\nnccl  {}\ncudnn "
      "{}\nswitches {}\ntokenizers {}\nhttp  {}\n",
      build.version, build.cpu, build.cores, build.isa, build.blas, build.mpi, build.cuda,
      build.nccl, build.cudnn, build.switches, build.tokenizers, http_library());
  if (!hosts.empty()) print_mesh(mesh, hosts, report);
  if (args.keys) print_keys(models, report);
  write_report(args.json, report);
  return 0;
}

}  // namespace

Command info_command() {
  return command("info", "Prints what this build and machine have.",
                 "tessera info\n  tessera info --keys", Processes::all, run_info);
}

}  // namespace tessera::cli
