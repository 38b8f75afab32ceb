#include "cli/plan_cache.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/cache_file.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/printable.h"

namespace tessera::cli {

namespace {

constexpr const char* kFormat = "tessera-plans 1";
constexpr size_t kMostPlanBytes = size_t{4} << 20;

nlohmann::json to_json(const std::vector<AutoPlan>& plans) {
  nlohmann::json json = nlohmann::json::array();
  for (const AutoPlan& plan : plans) json.push_back({{"layout", plan.layout}, {"sets", plan.sets}});
  return json;
}

std::vector<AutoPlan> plans_of(const nlohmann::json& json) {
  TESSERA_REQUIRE(json.is_array(), "it holds no list of plans");
  std::vector<AutoPlan> plans;
  try {
    for (const nlohmann::json& plan : json)
      plans.push_back(
          {plan.at("layout").get<std::string>(), plan.at("sets").get<std::vector<std::string>>()});
  } catch (const nlohmann::json::exception&) {
    fail(ErrorKind::usage, "plan {} has no 'layout' as text, or no 'sets' as a list of texts",
         plans.size() + 1);
  }
  return plans;
}

}  // namespace

std::string plans_text(const std::vector<AutoPlan>& plans) { return to_json(plans).dump(); }

std::vector<AutoPlan> parse_plans(const std::string& text) { return plans_of(parse_json(text)); }

void require_in(const PlanSpace& space, const AutoPlan& plan) {
  const Layout layout = Layout::parse(plan.layout);
  for (const LayoutRule& rule : layout.rules()) {
    TESSERA_REQUIRE(!rule.automatic, "rule '{}' leaves a split open", rule.text);
    for (const std::string& axis : rule.axes)
      TESSERA_REQUIRE(space.mesh.find(axis) >= 0,
                      "rule '{}' names axis '{}', which mesh '{}' has not", rule.text, axis,
                      space.mesh.to_string());
  }
  for (const std::string& set : plan.sets) {
    const size_t eq = std::min(set.find('='), set.size());
    const auto allowed = space.sets.find(set.substr(0, eq));
    if (allowed == space.sets.end()) {
      std::vector<std::string> keys;
      for (const auto& [key, values] : space.sets) keys.push_back(key);
      fail(ErrorKind::usage, "it sets '{}'; a plan may set only {}", set, fmt::join(keys, ", "));
    }
    TESSERA_REQUIRE(eq < set.size() && allowed->second.contains(set.substr(eq + 1)),
                    "it sets '{}'; for this job the planner chooses {} among {}", set,
                    allowed->first, fmt::join(allowed->second, ", "));
  }
}

std::string plans_file(const std::string& question, const std::vector<AutoPlan>& plans) {
  const nlohmann::json file = {
      {"format", kFormat}, {"question", question}, {"plans", to_json(plans)}};
  return file.dump() + "\n";
}

std::vector<AutoPlan> parse_plans_file(const std::string& text, const std::string& question,
                                       size_t most) {
  const nlohmann::json file = parse_json(text);
  TESSERA_REQUIRE(file.is_object() && file.contains("format") && file["format"] == kFormat,
                  "it is not in the format '{}'", kFormat);
  TESSERA_REQUIRE(file.contains("question") && file["question"] == question,
                  "it answers another question, of which the hash is the same");
  TESSERA_REQUIRE(file.contains("plans"), "it holds no list of plans");
  std::vector<AutoPlan> plans = plans_of(file["plans"]);
  TESSERA_REQUIRE(!plans.empty() && plans.size() <= most, "it holds {} plans instead of 1 to {}",
                  plans.size(), most);
  return plans;
}

PlanCache::PlanCache(const std::string& folder, const std::string& question)
    : question_(printable(question)),
      path_(folder.empty() ? ""
                           : fmt::format("{}/plans/{:016x}.json", folder, hash_of(question_))) {}

std::vector<AutoPlan> PlanCache::read(size_t most,
                                      const std::function<void(const AutoPlan&)>& check) const {
  if (path_.empty()) return {};
  std::string why;
  try {
    const std::optional<std::string> text = read_cache_file(path_, kMostPlanBytes);
    if (!text) return {};
    const std::vector<AutoPlan> plans = parse_plans_file(*text, question_, most);
    for (const AutoPlan& plan : plans) check(plan);
    return plans;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage && e.kind() != ErrorKind::io) throw;
    why = e.what();
  }
  warn_of_ignored_cache(
      fmt::format("the kept plan '{}' is ignored and searched anew: {}", path_, why));
  return {};
}

void PlanCache::write(const std::vector<AutoPlan>& plans) const {
  if (path_.empty()) return;
  try {
    make_folders(std::filesystem::path(path_).parent_path());
    write_cache_file(path_, plans_file(question_, plans));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::io) throw;
  }
}

void warn_of_ignored_cache(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::lock_guard lock(mutex);
  if (read_environment().rank > 0 || !known.insert(text).second) return;
  std::fprintf(stderr, "tessera: warning: %s\n", printable(text).c_str());
}

}  // namespace tessera::cli
