// --watch and --dump: prints summaries of named tensors of a training step, or writes them to
// files.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/progress.h"

namespace tessera::cli {

struct WatchFlags {
  std::vector<std::string> watch, dump;  ///< globs
  std::string dump_dir;
  int64_t dump_every = 1, hash_every = 0;
  void declare(FlagTable& table);
};

class Watch {
 public:
  /// Creates the dump folder. Throws usage errors for flags that require each other, and io errors.
  explicit Watch(const WatchFlags& args);
  /// Globs for CompileOptions::keep.
  std::vector<std::string> keep() const;
  /// Adds the scalars that are asked for and that nothing reads to the outputs of a function of
  /// `graph`: else it would not compute them.
  void add_unread(Graph& graph, FunctionSpec& function) const;
  /// Call after step `step`, counted from 1. Collective.
  void after_step(Session& session, const Graph& graph, int64_t step, Progress& progress);

 private:
  std::vector<std::string> names(const Session& session,
                                 const std::vector<std::string>& globs) const;
  const WatchFlags& args_;
};

}  // namespace tessera::cli
