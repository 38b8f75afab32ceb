// config.json, read key by key. Every key has to be read or ignored: what is left may change
// numbers, and is refused.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fail.h"

namespace tessera {

inline constexpr int64_t kMostLayers = 10000, kMostExperts = 10000;

class ModelConfig {
 public:
  /// `file` names it in messages. Throws an io error unless `values` is an object. `inside` is the
  /// key of an object within the file, or "".
  ModelConfig(std::string file, nlohmann::json values, std::string inside = "");

  const std::string& file() const { return file_; }
  /// Present and not null. Does not read it.
  bool has(const std::string& key) const;
  bool is_null(const std::string& key) const;
  /// The values, which are then read. Throw io errors for a missing key (without a `fallback`) and
  /// for another type or a number out of range.
  int64_t whole(const std::string& key, std::optional<int64_t> fallback = {}, int64_t least = 1,
                int64_t most = int64_t{1} << 40);
  double number(const std::string& key, std::optional<double> fallback = {});
  bool flag(const std::string& key, std::optional<bool> fallback = {});
  std::string text(const std::string& key, std::optional<std::string> fallback = {});
  std::vector<std::string> texts(const std::string& key);
  ModelConfig object(const std::string& key);
  /// The value, null if there is none.
  nlohmann::json value(const std::string& key);

  /// Reads `key` and throws an io error if it is present and not `value`.
  void require_value(const std::string& key, const nlohmann::json& value);
  /// Keys that change no numbers.
  void ignore(std::initializer_list<const char*> keys);
  void ignore_key(const std::string& key) { ignored_.insert(key); }
  /// Throws an io error that names the first key that was neither read nor ignored, with its value.
  void require_all_read() const;
  /// The keys that were read, with their values, as text.
  std::string read_text() const;

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

 private:
  const nlohmann::json* find(const std::string& key);
  std::string named(const std::string& key) const;

  std::string file_, inside_;
  nlohmann::json values_;
  std::set<std::string> read_, ignored_;
};

}  // namespace tessera
