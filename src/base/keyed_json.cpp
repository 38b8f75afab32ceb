#include "base/keyed_json.h"

#include <cmath>
#include <filesystem>

#include "base/files.h"
#include "base/json.h"
#include "base/known_keys.h"

namespace tessera {

using Json = nlohmann::json;

namespace {
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text.replace(77, text.npos, "...");
  return text;
}
}  // namespace

KeyedJson::KeyedJson(std::string file, Json values, std::string inside, const Topic& topic)
    : file_(std::move(file)),
      inside_(std::move(inside)),
      topic_(topic),
      values_(std::move(values)) {
  if (!values_.is_object())
    fail(ErrorKind::io, "[{}] '{}': {} is not a JSON object", topic_.name, file_,
         inside_.empty() ? "it" : "'" + inside_ + "'");
}

KeyedJson KeyedJson::read(const std::string& path, const Topic& topic) {
  if (!is_there(path)) return KeyedJson(path, Json::object(), "", topic);
  const std::string text = read_text_file(topic.name, path);
  Json values = parse_json(text);
  if (values.is_discarded())
    fail(ErrorKind::io, "[{}] '{}' is not JSON: {}", topic.name, path, json_fault(text));
  return KeyedJson(path, std::move(values), "", topic);
}

std::string KeyedJson::named(const std::string& key) const {
  return inside_.empty() ? key : inside_ + "." + key;
}

void KeyedJson::refuse(const std::string& key, const std::string& why) const {
  const auto it = values_.find(key);
  fail(ErrorKind::io, "[{}] '{}': '{}' is {}; {}", topic_.name, file_, named(key),
       it == values_.end() ? "missing" : shown(*it), why);
}

bool KeyedJson::has(const std::string& key) const {
  const auto it = values_.find(key);
  return it != values_.end() && !it->is_null();
}

bool KeyedJson::is_null(const std::string& key) const {
  const auto it = values_.find(key);
  return it != values_.end() && it->is_null();
}

const Json* KeyedJson::find(const std::string& key) {
  read_.insert(key);
  return has(key) ? &values_[key] : nullptr;
}

template <class Value, class Fits>
Value KeyedJson::get(const std::string& key, std::optional<Value> fallback, Fits fits,
                     const std::string& wanted) {
  const Json* value = find(key);
  if (!value && fallback && (!is_null(key) || nullable_.contains(key))) return *fallback;
  if (!value || !fits(*value)) refuse(key, "it must be " + wanted);
  return value->get<Value>();
}

int64_t KeyedJson::whole(const std::string& key, std::optional<int64_t> fallback, int64_t least,
                         int64_t most) {
  const auto fits = [&](const Json& value) {
    return value.is_number_integer() && value.get<double>() >= double(least) &&
           value.get<double>() <= double(most);
  };
  return get(key, fallback, fits, fmt::format("a whole number from {} to {}", least, most));
}

double KeyedJson::number(const std::string& key, std::optional<double> fallback) {
  const auto fits = [](const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  return get(key, fallback, fits, "a number");
}

bool KeyedJson::flag(const std::string& key, std::optional<bool> fallback) {
  return get(
      key, fallback, [](const Json& value) { return value.is_boolean(); }, "true or false");
}

std::string KeyedJson::text(const std::string& key, std::optional<std::string> fallback) {
  return get(
      key, std::move(fallback), [](const Json& value) { return value.is_string(); }, "a text");
}

std::vector<std::string> KeyedJson::texts(const std::string& key) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  const auto fits = [&](const Json& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
  };
  return get<std::vector<std::string>>(key, {}, fits, "a list of texts");
}

KeyedJson KeyedJson::object(const std::string& key) {
  const Json* value = find(key);
  if (!value || !value->is_object()) refuse(key, "it must be an object");
  KeyedJson inner(file_, *value, named(key), topic_);
  inner.kind_ = kind_;
  return inner;
}

Json KeyedJson::value(const std::string& key) {
  const Json* found = find(key);
  return found ? *found : Json();
}

std::vector<std::string> KeyedJson::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, value] : values_.items()) all.push_back(key);
  return all;
}

void KeyedJson::require_value(const std::string& key, const Json& value) {
  const Json* found = find(key);
  if (found && *found != value)
    refuse(key, fmt::format("Tessera knows only {} here", shown(value)));
}

void KeyedJson::allow_null(std::initializer_list<const char*> keys) {
  nullable_.insert(keys.begin(), keys.end());
}

void KeyedJson::ignore(std::initializer_list<const char*> keys) {
  ignored_.insert(keys.begin(), keys.end());
}

void KeyedJson::require_all_read() const {
  const std::string name = std::filesystem::path(file_).filename().string();
  const std::vector<std::string> known(read_.begin(), read_.end());
  for (const auto& [key, value] : values_.items()) {
    if (read_.count(key) + ignored_.count(key) == 0 && !changes_nothing(named(key), name, kind_))
      refuse(key, fmt::format("Tessera does not know this key, and it may change {}{}; if it does "
                              "not, remove it",
                              topic_.effect, suggestion(key, known)));
  }
}

std::string KeyedJson::read_text() const {
  Json read = Json::object();
  for (const std::string& key : read_) {
    if (has(key)) read[key] = values_[key];
  }
  return read.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera
