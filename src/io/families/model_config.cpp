#include "io/families/model_config.h"

#include <cmath>

namespace tessera {

using Json = nlohmann::json;

namespace {
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text.replace(77, text.npos, "...");
  return text;
}
}  // namespace

ModelConfig::ModelConfig(std::string file, Json values, std::string inside)
    : file_(std::move(file)), inside_(std::move(inside)), values_(std::move(values)) {
  if (!values_.is_object())
    fail(ErrorKind::io, "[model] '{}': {} is not a JSON object", file_,
         inside_.empty() ? "it" : "'" + inside_ + "'");
}

std::string ModelConfig::named(const std::string& key) const {
  return inside_.empty() ? key : inside_ + "." + key;
}

void ModelConfig::refuse(const std::string& key, const std::string& why) const {
  const auto it = values_.find(key);
  fail(ErrorKind::io, "[model] '{}': '{}' is {}; {}", file_, named(key),
       it == values_.end() ? "missing" : shown(*it), why);
}

bool ModelConfig::has(const std::string& key) const {
  const auto it = values_.find(key);
  return it != values_.end() && !it->is_null();
}

bool ModelConfig::is_null(const std::string& key) const {
  const auto it = values_.find(key);
  return it != values_.end() && it->is_null();
}

const Json* ModelConfig::find(const std::string& key) {
  read_.insert(key);
  return has(key) ? &values_[key] : nullptr;
}

int64_t ModelConfig::whole(const std::string& key, std::optional<int64_t> fallback, int64_t least,
                           int64_t most) {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_number_integer() || value->get<double>() < double(least) ||
      value->get<double>() > double(most))
    refuse(key, fmt::format("it must be a whole number from {} to {}", least, most));
  return value->get<int64_t>();
}

double ModelConfig::number(const std::string& key, std::optional<double> fallback) {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_number() || !std::isfinite(value->get<double>()))
    refuse(key, "it must be a number");
  return value->get<double>();
}

bool ModelConfig::flag(const std::string& key, std::optional<bool> fallback) {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_boolean()) refuse(key, "it must be true or false");
  return value->get<bool>();
}

std::string ModelConfig::text(const std::string& key, std::optional<std::string> fallback) {
  const Json* value = find(key);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_string()) refuse(key, "it must be a text");
  return value->get<std::string>();
}

std::vector<std::string> ModelConfig::texts(const std::string& key) {
  const Json* value = find(key);
  std::vector<std::string> all;
  bool good = value && value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) {
    good = (*value)[i].is_string();
    if (good) all.push_back((*value)[i].get<std::string>());
  }
  if (!good) refuse(key, "it must be a list of texts");
  return all;
}

ModelConfig ModelConfig::object(const std::string& key) {
  const Json* value = find(key);
  if (!value || !value->is_object()) refuse(key, "it must be an object");
  return ModelConfig(file_, *value, named(key));
}

Json ModelConfig::value(const std::string& key) {
  const Json* found = find(key);
  return found ? *found : Json();
}

void ModelConfig::require_value(const std::string& key, const Json& value) {
  const Json* found = find(key);
  if (found && *found != value)
    refuse(key, fmt::format("Tessera knows only {} here", shown(value)));
}

void ModelConfig::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) ignored_.insert(key);
}

void ModelConfig::require_all_read() const {
  std::vector<std::string> known(read_.begin(), read_.end());
  for (const auto& [key, value] : values_.items()) {
    if (read_.count(key) + ignored_.count(key) == 0)
      refuse(key, fmt::format("Tessera does not know this key, and it may change the model's "
                              "numbers{}; if it does not, remove it",
                              suggestion(key, known)));
  }
}

std::string ModelConfig::read_text() const {
  Json read = Json::object();
  for (const std::string& key : read_) {
    if (has(key)) read[key] = values_[key];
  }
  return read.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tessera
