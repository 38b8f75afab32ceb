// A flag is a row of a table. The help, the parser, shell completion and what the ranks of a job
// must be given alike follow from the row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/cli.h"
#include "tessera/cluster.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// Whether the ranks of a job may be given different values of a flag.
struct Ranks {
  const char* may_differ;    ///< why they may; null: values are compared before the job starts
  bool all_or_none = false;  ///< it is compared whether they have a value
};
inline constexpr Ranks kAgree{nullptr};
inline constexpr Ranks kIsKey{"it sets configuration keys or layout rules, and those are compared"};
inline constexpr Ranks kOfRoot{"the first rank alone reads it, and tells the others what follows"};
inline constexpr Ranks kAllOrNone{"the first rank alone reads the value, and all work for it",
                                  true};
inline constexpr Ranks kOneProcess{"the command runs in one process"};

/// Adds "key=value" to configuration settings.
struct SetsKey {
  std::vector<std::string>* sets;
  const char* key;
};
/// A flag that is repeated for each of its values.
struct Each {
  std::vector<std::string>* values;
};
/// Where the value of a flag is stored.
using Target = std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*,
                            std::optional<double>*, std::optional<std::string>*,
                            std::vector<int64_t>*, std::vector<std::string>*, Each, SetsKey>;

/// Returns what is wrong with a value, or ""; may change the value.
using Check = std::function<std::string(std::string&)>;
/// An integer in [least, most], or a finite number of at least `least`.
Check whole_number(int64_t least, int64_t most = INT64_MAX);
Check finite_number(double least);
/// Any text, "" too.
Check any_text();

struct Flag {
  const char* name;  ///< "--json FILE": a flag and what its value is called; or "MODEL": a position
  Target target;
  Ranks ranks;
  std::string help;  ///< a sentence
  Check check = {};  ///< without one, "" is refused
  bool required = false;

  /// "--json" of "--json FILE".
  std::string word() const;
  /// The value as text: "true", "0.8", "a,b"; "" for SetsKey.
  std::string value() const;
};

/// The rows of a command, in order of their declaration.
class FlagTable {
 public:
  /// heading: the group of a help with groups, and an example; "" for the first group.
  void add(const char* heading, const std::vector<Flag>& rows);
  void add(const std::vector<Flag>& rows) { add("", rows); }
  const std::vector<Flag>& rows() const { return rows_; }
  /// Adds the rows as options of a command's parser, in groups if `grouped`.
  void add_to(CLI::App& app, bool grouped) const;
  /// The flags that ranks must be given alike, with their values.
  std::vector<Cluster::Fact> facts() const;

 private:
  std::vector<Flag> rows_;
  std::vector<std::string> headings_;  ///< of the rows
};

/// What all commands know of how they were started.
struct Invocation {
  std::string program = "tessera";         ///< its name, for commands to copy
  bool alone = false;                      ///< one process runs the command: it needs no ranks, or
                                           ///< only predicts what ranks would do
  std::vector<Cluster::Fact> agreed = {};  ///< FlagTable::facts()
};

/// Of several launched processes all run a command, or only the first one does.
enum class Processes { all, first };

struct Command {
  const char *name, *help, *example;  ///< help: a sentence
  Processes processes;
  std::shared_ptr<Invocation> flags;
  FlagTable table;
  std::function<int(const std::vector<ModelSpec>&)> run;  ///< returns the exit code

  /// Runs the command as `program` with the flags that were parsed.
  int start(const std::string& program, const std::vector<ModelSpec>& models) const;
};

/// The command that calls `run` with its flags. Flags::declare() adds their rows.
template <class Flags>
Command command(const char* name, const char* help, const char* example, Processes processes,
                int (*run)(const Flags&, const std::vector<ModelSpec>&)) {
  const auto flags = std::make_shared<Flags>();
  Command result{
      name, help, example, processes, flags, {}, [=](const std::vector<ModelSpec>& models) {
        return run(*flags, models);
      }};
  flags->declare(result.table);
  return result;
}

}  // namespace tessera::cli
