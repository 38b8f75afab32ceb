// The command line, for built-in and user-defined models: `return tessera::run_cli(argc, argv,
// my_model);`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/nn_transformer.h"
#include "tessera/optim.h"

namespace tessera {

/// The allowed values of a key: a finite number from `least` to `most`, or one of `words`.
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

/// One configuration key. The part before the dot is its section ("model", "train", "data",
/// "layout"), a table of the TOML file.
struct ConfigKey {
  std::string name;     ///< "model.layers"
  std::string value;    ///< the default, as text
  std::string help;     ///< a sentence: "Number of blocks."
  KeyRange range = {};  ///< default: any text
};

/// The configuration: known keys with their values.
class Config {
 public:
  explicit Config(const std::vector<ConfigKey>& keys);
  /// `key` may be short ("layers") if only one section has it. Throws usage errors for an unknown
  /// key (with the nearest name) and an ambiguous one (with the candidates).
  void set(const std::string& key, const std::string& value);
  /// Sets every key of a TOML file with the tables model, train, data and layout. The table
  /// [layout] has the mesh as text and one key per rule: batch = "data", "heads,ff" = "model",
  /// batch = ["pod", "data"], "d_model@state" = "data", "@/*norm*/ length" = "model"; or all rules
  /// as one text, rules = "...". Instead of the table, layout = "..." is allowed. Throws usage
  /// errors for an unknown table or key (with the nearest name) and a value that is not text, a
  /// number or a boolean.
  void load_toml(const std::string& path);
  /// The same from a string; `source` names it in messages.
  void load_toml_text(const std::string& text, const std::string& source);
  /// Reads the output of to_toml() of any version, as stored in checkpoints. Keys and values that
  /// were renamed since are read under their new names. Throws a usage error for one of another
  /// model.
  void load_stored(const std::string& text, const std::string& source);

  const std::string& text(const std::string& key) const;
  /// The value of a key. They throw usage errors that name key and value, and the file and line
  /// that gave it.
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  /// Throws a usage error, as above, for the first key whose value is not in its range.
  void require_ranges() const;

  /// Calls `work`, which reads the value of `key`. Its errors name the file and line that gave it.
  void at_place_of(const std::string& key, const std::function<void()>& work) const;

  const std::vector<ConfigKey>& keys() const { return keys_; }
  /// Whether a file or set() gave the value, even if it is the default.
  bool is_given(const std::string& key) const;
  /// The configuration as a TOML file: as printed and stored in checkpoints.
  std::string to_toml() const;

 private:
  /// Where a value was given; file "": by set().
  struct Place {
    std::string file;
    int64_t line = 0;
  };
  size_t find(const std::string& key) const;
  void set_at(const Place& place, const std::string& key, const std::string& value);
  void require_range(const ConfigKey& key) const;
  static void at_place(const Place& place, const std::function<void()>& work);

  std::vector<ConfigKey> keys_;
  std::map<std::string, Place> given_;
};

/// A model for the command line.
struct ModelSpec {
  std::string name;
  std::string help;             ///< a sentence: "Two convolutions that read handwritten digits."
  std::vector<ConfigKey> keys;  ///< its [model] keys
  /// Builds the model for a batch of `batch` examples; `partial`: the batch dim is bounded. Every
  /// command calls it, and a model that breaks one of these rules is a usage error that says so:
  /// - The loss is a scalar. Without a `weight` it is a mean over the examples.
  /// - The inputs are named like the fields of the data and have the dim "batch", of
  /// nn::batch_dim().
  /// - Activations have the dtype of `--dtype`: parse_dtype(config.text("train.dtype")), bfloat16
  ///   for float8. A model that has but one dtype throws a usage error for all others.
  /// - For `generate`: Model::tokens and Model::logits.
  std::function<nn::Model(Graph&, const Config&, int64_t batch, bool partial)> build;
  /// Opens training or held-out data, from data.path if it is a file (an empty path is then an
  /// error). nullptr: there is no held-out data.
  std::function<std::unique_ptr<DataSource>(const Config&, bool held_out)> data;
  /// Tokens of one example, for the tokens/s of the log; 1 for images. Empty: 1.
  std::function<int64_t(const Config&)> tokens;
  /// Configuration overrides for `verify`: a small model.
  std::map<std::string, std::string> tiny;
  /// The default of --layout, e.g. "batch:data;heads,ff,vocab:model". Axes that the mesh lacks are
  /// left out.
  std::string layout;
  /// A custom optimizer, and a custom learning rate for a step (from 0). Empty: as train.optimizer,
  /// train.schedule and train.lr say.
  std::function<Optimizer(const Config&)> optimizer = {};
  std::function<double(const Config&, int64_t step)> learning_rate = {};
  /// The key with the number of equal layers, e.g. "model.layers", and the one that makes them a
  /// loop if it is `true`, e.g. "model.scan"; empty: there is none. With them the planner builds
  /// one or two layers and prices all; without them it builds the whole model.
  std::string layers_key = {}, loop_key = {};
  /// The scope of a layer where layers are a loop: what a plan may recompute.
  std::string layer_scope = "block";
  /// Overwrites the parameters that a run starts from, which no checkpoint gives. Collective.
  /// Empty: they have their initial values.
  std::function<void(Session&, const Config&)> start = {};
  /// Layouts that the model's documentation names, as rules. `verify` checks those whose axes the
  /// mesh has, beside the legal ones: they may have purposes, scopes and axes that two dims share.
  std::vector<std::string> documented = {};
  /// Defaults of the model's own for keys of any table, such as train.batch.
  std::map<std::string, std::string> defaults = {};
  /// The options of the model, if it is nn::transformer() of them: `generate`, `serve` and samples
  /// while training then keep keys and values (tessera/generate.h). Empty: `generate` reads the
  /// whole text for each token.
  std::function<nn::TransformerOptions(const Config&)> transformer = {};
};

/// gpt, mlp, cnn.
const std::vector<ModelSpec>& builtin_models();

/// Runs `tessera ARGS`. Returns the exit code: 0; 1 for an error (one line on stderr) or a failed
/// check; 2 for a wrong command line; 75 if a job saved because of SIGTERM or SIGUSR1 and should be
/// started again; 76 if a rank died, hung or disagreed, or a device failed. Models in `own` come
/// before the built-in ones.
int run_cli(int argc, char** argv, const std::vector<ModelSpec>& own = {});

}  // namespace tessera
