#include "cli/watch.h"

#include <algorithm>
#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "cli/report.h"
#include "tessera/inspect.h"

namespace tessera::cli {

void WatchFlags::declare(FlagTable& table) {
  table.add(kSeeingHeading,
            {{"--watch GLOB", &watch, kAgree,
              "Names of tensors (* and ?) whose range and norm are printed after each step."},
             {"--dump GLOB", &dump, kAgree,
              "Names of tensors (* and ?) that are written whole, one file a step."},
             {"--dump-dir DIR", &dump_dir, kOfRoot, "Folder that --dump writes to."},
             {"--dump-every", &dump_every, kAgree, "Number of steps between dumps (1)."},
             {"--hash-every N", &hash_every, kAgree,
              "Writes a hash of parameters and optimizer state to the log every N steps. Under "
              "train.numerics=strict it is the same on every layout; tessera compare takes two "
              "logs."}});
}

Watch::Watch(const WatchFlags& args) : args_(args) {
  TESSERA_REQUIRE(args.dump.empty() == args.dump_dir.empty(),
                  "--dump GLOB and --dump-dir DIR need each other");
  TESSERA_REQUIRE(args.dump_every >= 1, "--dump-every {}: a dump every 1 step or more",
                  args.dump_every);
  TESSERA_REQUIRE(args.hash_every >= 0, "--hash-every {}: a hash every 1 step or more, or 0: none",
                  args.hash_every);
  if (!args.dump_dir.empty()) make_folders(args.dump_dir, "--dump-dir");
}

std::vector<std::string> Watch::keep() const {
  std::vector<std::string> globs = args_.watch;
  globs.insert(globs.end(), args_.dump.begin(), args_.dump.end());
  return globs;
}

void Watch::add_unread(Graph& graph, FunctionSpec& function) const {
  const std::vector<std::string> globs = keep();
  if (globs.empty()) return;
  std::vector<char> read(graph.values().size(), 0);
  const auto note = [&](int value) { read[static_cast<size_t>(value)] = 1; };
  for (const Node& node : graph.nodes()) std::for_each(node.in.begin(), node.in.end(), note);
  for (const Stored& stored : graph.stored()) note(stored.value), note(stored.init);
  for (const Update& update : graph.updates()) note(update.value);
  for (const Tensor& output : function.outputs) note(output.id());
  for (size_t v = 0; v < read.size(); ++v) {
    const Value& value = graph.values()[v];
    const bool is_asked = std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
      return glob_match(glob, value.name);
    });
    const Node& node = graph.producer(static_cast<int>(v));
    if (is_asked && !read[v] && value.shape.rank() == 0 && !node.in.empty() && node.loop < 0)
      function.outputs.emplace_back(&graph, static_cast<int>(v));
  }
}

std::vector<std::string> Watch::names(const Session& session,
                                      const std::vector<std::string>& globs) const {
  std::vector<std::string> names;
  for (const std::string& glob : globs) {
    for (std::string& name : session.program().find("train", glob)) {
      if (std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(std::move(name));
    }
  }
  return names;
}

void Watch::after_step(Session& session, const Graph& graph, int64_t step, Progress& progress) {
  if (!args_.watch.empty() && (progress.shows(step) || progress.has_log())) {
    for (const std::string& name : names(session, args_.watch)) {
      const Array value = session.fetch(name);
      const Summary s = summarize(value);
      const nlohmann::json line = {{"step", step},
                                   {"tensor", name},
                                   {"dtype", to_string(value.dtype)},
                                   {"dims", value.dims},
                                   {"sizes", value.sizes},
                                   {"min", json_number(s.min)},
                                   {"max", json_number(s.max)},
                                   {"mean", json_number(s.mean)},
                                   {"l2", json_number(s.l2)},
                                   {"non_finite", s.non_finite}};
      if (progress.shows(step)) progress.note(fmt::format("  {} {}", name, describe(value)));
      progress.record(line);
    }
  }
  if (args_.hash_every > 0 && step % args_.hash_every == 0) {
    const StateHash hash = state_hash(session);
    nlohmann::json tensors = nlohmann::json::object();
    for (const auto& [name, own] : hash.tensors) tensors[name] = own;
    progress.record({{"step", step}, {"state_hash", hash.all}, {"tensor_hashes", tensors}});
    if (progress.shows(step)) progress.note(fmt::format("  step {}: state {}", step, hash.all));
  }
  if (!args_.dump.empty() && step % args_.dump_every == 0) {
    const std::filesystem::path file = fmt::format("dump-{:08}.safetensors", step);
    dump(session, graph, names(session, args_.dump), (args_.dump_dir / file).string(),
         {{"step", std::to_string(step)}});
  }
}

}  // namespace tessera::cli
