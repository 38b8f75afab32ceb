// Reads the parts of a tokenizer.json, with errors that name the part. Every key of a part must be
// known: one that is not could change ids.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// One object of the file, with the name that messages call it by: "pre_tokenizer Split".
class JsonPart {
 public:
  /// Throws an io error unless `value` is an object.
  JsonPart(const std::string& path, const std::string& name, const nlohmann::json& value);

  /// The value of "type"; adds it to the name of the part.
  std::string type();
  /// Throws an unsupported error that names the first key besides "type" that is not in `known`.
  void require_keys(std::initializer_list<std::string_view> known) const;
  /// The member; a null value if there is none.
  const nlohmann::json& at(const char* key) const;
  bool has(const char* key) const { return !at(key).is_null(); }
  /// They throw io errors for values of another kind. Without a default the key must be there.
  bool flag(const char* key, bool otherwise) const;
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& otherwise) const;
  int64_t integer(const char* key) const;
  JsonPart part(const char* key) const;
  /// The elements of a list of objects.
  std::vector<JsonPart> list(const char* key) const;

  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  const nlohmann::json& json() const { return value_; }
  /// Throws an io error: "'PATH': NAME: WHAT".
  [[noreturn]] void fail_damaged(const std::string& what) const;
  /// Throws an unsupported error: "'PATH': NAME has WHAT, which is not known".
  [[noreturn]] void fail_unknown(const std::string& what) const;

 private:
  std::string path_, name_;
  const nlohmann::json& value_;
};

}  // namespace tessera
