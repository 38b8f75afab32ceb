// The planner's answers for `--layout auto`, kept in the cache folder.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

/// Plans as JSON: [{"layout": "...", "sets": ["key=value", ...]}, ...].
std::string plans_text(const std::vector<AutoPlan>& plans);
/// The reverse. Throws a usage error that says what is wrong with the text.
std::vector<AutoPlan> parse_plans(const std::string& text);

/// What a plan for a job may say.
struct PlanSpace {
  Mesh mesh;
  std::map<std::string, std::set<std::string>> sets;  ///< keys of the planner, and their values
};
/// Throws a usage error unless the planner could give this plan: a layout that leaves nothing open,
/// on axes of the mesh, and keys and values of `space`.
void require_in(const PlanSpace& space, const AutoPlan& plan);

/// The text of a file with the plans for `question`, and the reverse, which throws a usage error
/// unless the text holds 1 to `most` plans for this question.
std::string plans_file(const std::string& question, const std::vector<AutoPlan>& plans);
std::vector<AutoPlan> parse_plans_file(const std::string& text, const std::string& question,
                                       size_t most);

/// The file of one question to the planner. Its name is a hash of the question; the file holds the
/// question as a whole, which is compared.
class PlanCache {
 public:
  /// `question`: everything that its plans depend on. Keeps nothing if `folder` is "".
  PlanCache(const std::string& folder, const std::string& question);

  /// 1 to `most` plans, each accepted by `check`, which throws a usage error for a plan that the
  /// planner would not give. Empty if there is no file; also, with a warning, if it is not good.
  std::vector<AutoPlan> read(size_t most, const std::function<void(const AutoPlan&)>& check) const;
  /// A plan that cannot be kept is searched again.
  void write(const std::vector<AutoPlan>& plans) const;

 private:
  std::string question_, path_;
};

/// "tessera: warning: <text>" on stderr: once per text and process, and of a launched job only by
/// rank 0. `text` names the file, the cause, and what is done instead.
void warn_of_ignored_cache(const std::string& text);

}  // namespace tessera::cli
