#include "tokenizer/json_reader.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

JsonPart::JsonPart(const std::string& path, const std::string& name, const nlohmann::json& value)
    : path_(path), name_(name), value_(value) {
  if (!value.is_object()) fail_damaged("it is no object");
}

void JsonPart::fail_damaged(const std::string& what) const {
  fail(ErrorKind::io, "[tokenizer] '{}': {}: {}; the file is damaged, or no tokenizer.json", path_,
       name_, what);
}

void JsonPart::fail_unknown(const std::string& what) const {
  fail(ErrorKind::unsupported,
       "[tokenizer] '{}': {} has {}, which is not known and could change ids; use a tokenizer "
       "without it",
       path_, name_, what);
}

std::string JsonPart::type() {
  const std::string name = text("type");
  name_ += " " + name;
  return name;
}

void JsonPart::require_keys(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : value_.items()) {
    if (key != "type" && std::find(known.begin(), known.end(), key) == known.end())
      fail_unknown(fmt::format("the key '{}'", key));
  }
}

const nlohmann::json& JsonPart::at(const char* key) const {
  static const nlohmann::json none;
  const auto it = value_.find(key);
  return it == value_.end() ? none : *it;
}

bool JsonPart::flag(const char* key, bool otherwise) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) fail_damaged(fmt::format("'{}' is neither true nor false", key));
  return value.get<bool>();
}

std::string JsonPart::text(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) fail_damaged(fmt::format("'{}' is no text", key));
  return value.get<std::string>();
}

std::string JsonPart::text(const char* key, const std::string& otherwise) const {
  return has(key) ? text(key) : otherwise;
}

int64_t JsonPart::integer(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number_integer()) fail_damaged(fmt::format("'{}' is no whole number", key));
  return value.get<int64_t>();
}

JsonPart JsonPart::part(const char* key) const { return JsonPart(path_, key, at(key)); }

std::vector<JsonPart> JsonPart::list(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_array()) fail_damaged(fmt::format("'{}' is no list", key));
  std::vector<JsonPart> parts;
  for (const nlohmann::json& element : value) parts.emplace_back(path_, name_, element);
  return parts;
}

}  // namespace tessera
