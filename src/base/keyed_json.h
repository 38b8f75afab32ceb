// A JSON file of a model's folder, read key by key. Every key has to be read or known to change
// nothing (base/known_keys.cpp): what is left may change results, and is refused.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fail.h"

namespace tessera {

class KeyedJson {
 public:
  /// What messages begin with, "[model] ", and what an unknown key may change.
  struct Topic {
    const char *name, *effect;
  };
  static constexpr Topic kModel = {"model", "the model's numbers"},
                         kTokenizer = {"tokenizer", "ids"}, kGeneration = {"generate", "texts"};

  /// `file` names it in messages, and its last part in the table of known keys. Throws an io error
  /// unless `values` is an object. `inside` is the key of an object within the file, or "".
  KeyedJson(std::string file, nlohmann::json values, std::string inside = "",
            const Topic& topic = kModel);
  /// The file `path`; without keys if it is not there. Throws an io error if it is no JSON object.
  static KeyedJson read(const std::string& path, const Topic& topic);

  const std::string& file() const { return file_; }
  /// Present and not null. Does not read it.
  bool has(const std::string& key) const;
  bool is_null(const std::string& key) const;
  /// The values, which are then read. Throw io errors for a missing key (without a `fallback`), for
  /// null, and for another type or a number out of range.
  int64_t whole(const std::string& key, std::optional<int64_t> fallback = {}, int64_t least = 1,
                int64_t most = int64_t{1} << 40);
  double number(const std::string& key, std::optional<double> fallback = {});
  bool flag(const std::string& key, std::optional<bool> fallback = {});
  std::string text(const std::string& key, std::optional<std::string> fallback = {});
  std::vector<std::string> texts(const std::string& key);
  KeyedJson object(const std::string& key);
  /// The value, null if there is none.
  nlohmann::json value(const std::string& key);
  /// All keys.
  std::vector<std::string> keys() const;

  /// For these keys null is as good as no key.
  void allow_null(std::initializer_list<const char*> keys);
  /// Reads `key` and throws an io error if it is present, not null and not `value`.
  void require_value(const std::string& key, const nlohmann::json& value);
  /// Keys that are read elsewhere, or that another key overrides.
  void ignore(std::initializer_list<const char*> keys);
  void ignore_key(const std::string& key) { ignored_.insert(key); }
  /// Keys that the table knows for `kind` alone change nothing, too.
  void set_kind(const std::string& kind) { kind_ = kind; }
  /// Throws an io error that names the first key that was neither read nor ignored and that the
  /// table does not know, with its value.
  void require_all_read() const;
  /// The keys that were read, with their values, as text.
  std::string read_text() const;

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

 private:
  const nlohmann::json* find(const std::string& key);
  template <class Value, class Fits>
  Value get(const std::string& key, std::optional<Value> fallback, Fits fits,
            const std::string& wanted);
  std::string named(const std::string& key) const;

  std::string file_, inside_, kind_;
  Topic topic_;
  nlohmann::json values_;
  std::set<std::string> read_, ignored_, nullable_;
};

}  // namespace tessera
