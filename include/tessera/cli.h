// The command line, also for a model of the user's own: `return tessera::run_cli(argc, argv,
// my_model);`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera {

/// What the value of a key may be: a finite number from `least` to `most`, or one of `words`.
struct KeyRange {
  enum class Kind { any, word, whole, number };
  Kind kind = Kind::any;
  double least = 0, most = 0;
  std::vector<std::string> words = {};

  static KeyRange one_of(std::vector<std::string> words) { return {Kind::word, 0, 0, words}; }
  static KeyRange whole(double least, double most = 1e15, std::vector<std::string> words = {}) {
    return {Kind::whole, least, most, words};
  }
  static KeyRange number(double least, double most = 1e300) {
    return {Kind::number, least, most, {}};
  }
};

/// One configuration key: its section is the table it stands in ("model", "train", "data",
/// "layout").
struct ConfigKey {
  std::string name;     ///< "model.layers"
  std::string value;    ///< the default, as text
  std::string help;     ///< a sentence: "Number of blocks."
  KeyRange range = {};  ///< any text
};

/// Resolved configuration: keys with values. Only known keys exist.
class Config {
 public:
  explicit Config(const std::vector<ConfigKey>& keys);
  /// `key` may be short ("layers") where only one section has it. Throws usage errors: an unknown
  /// key (with the nearest name), an ambiguous one (with the candidates).
  void set(const std::string& key, const std::string& value);
  /// Sets every key of a TOML file: tables model, train, data and layout. A table [layout] has the
  /// mesh as text and a rule a key: batch = "data", "heads,ff" = "model", batch = ["pod", "data"],
  /// "d_model@state" = "data", "@/*norm*/ length" = "model"; or all of them as text, rules = "..."
  /// or, instead of the table, layout = "...". Throws usage errors: an unknown table or key (with
  /// the nearest name), a value that is no text, number or true/false.
  void load_toml(const std::string& path);
  /// The same from text that `source` names in messages.
  void load_toml_text(const std::string& text, const std::string& source);
  /// The same of to_toml() of any version, as a checkpoint stores it: keys and values that have
  /// been renamed since are read under their new names.
  void load_stored(const std::string& text, const std::string& source);

  const std::string& text(const std::string& key) const;
  /// Throw usage errors that name key and value.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  /// Throws a usage error for the first key whose value is not in its range.
  void require_ranges() const;

  const std::vector<ConfigKey>& keys() const { return keys_; }
  /// Whether a file or set() said what it is, be it the default.
  bool is_given(const std::string& key) const;
  /// As a TOML file: what is printed and stored in checkpoints.
  std::string to_toml() const;

 private:
  size_t find(const std::string& key) const;
  std::vector<ConfigKey> keys_;
  std::set<std::string> given_;
};

/// A model that the command line can train, evaluate and check.
struct ModelSpec {
  std::string name;
  std::string help;             ///< a sentence: "Two convolutions that read handwritten digits."
  std::vector<ConfigKey> keys;  ///< its [model] keys
  /// Builds the model for a batch of that many examples; `partial`: the batch is a bound.
  std::function<nn::Model(Graph&, const Config&, int64_t batch, bool partial)> build;
  /// Opens training (or held-out) data, at data.path where it comes from a file (then an empty path
  /// is an error). nullptr: there is no held-out data.
  std::function<std::unique_ptr<DataSource>(const Config&, bool held_out)> data;
  /// Tokens of one example, for the tokens/s of the log: 1 for images.
  std::function<int64_t(const Config&)> tokens;
  /// Overrides for `verify`: a tiny configuration.
  std::map<std::string, std::string> tiny;
  /// Rules for --layout's default, e.g. "batch:data;heads,ff,vocab:model"; names of absent axes are
  /// left out.
  std::string layout;
  /// An optimizer and a learning rate (of a step from 0) of the user's own; empty: those of
  /// train.optimizer, train.schedule and train.lr.
  std::function<Optimizer(const Config&)> optimizer = {};
  std::function<double(const Config&, int64_t step)> learning_rate = {};
};

/// gpt, mlp, cnn.
const std::vector<ModelSpec>& builtin_models();

/// Runs `tessera ARGS` and returns the exit code: 0, 1 for an error (one line on stderr) or a
/// failed check, 2 for a wrong command line; 75 where a job saved because of SIGTERM or SIGUSR1 and
/// is to be started again, 76 where a rank died, hung or disagreed, or a device failed. The models
/// of the user's own come first.
int run_cli(int argc, char** argv, const std::vector<ModelSpec>& own = {});

}  // namespace tessera
