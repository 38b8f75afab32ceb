// An option of the file is a value, or says how to get one: a key of config.json or another option,
// changed by a table of values, a power and a factor. The values are computed when a model is read.
#include "io/families/family_file.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "base/json.h"
#include "base/toml.h"
#include "io/families/decoder.h"
#include "io/families/option_names.h"

namespace tessera {

namespace {

using Json = nlohmann::json;

constexpr int kMostSteps = 16;  ///< options that refer to options
const std::vector<std::string> kDims = {
    "vocab",     "d_model",          "heads",       "heads_per_key", "d_head", "ff", "experts",
    "positions", "relative_buckets", "token_types", "d_transform"};

int line_of(const toml::node& node) { return static_cast<int>(node.source().begin.line); }

class FamilyFile {
 public:
  FamilyFile(std::string path, toml::table table)
      : path_(std::move(path)), table_(std::move(table)) {}

  /// Checks all but the values of config.json.
  Family family(const std::shared_ptr<const FamilyFile>& self) const {
    require_fields(
        table_, "",
        {"model_type", "options", "tensors", "config", "ignored_tensors", "optional_prefix"});
    Family family;
    family.file = path_;
    family.model_type = text_of("model_type");
    if (family.model_type.empty() ||
        family.model_type.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
            std::string::npos)
      refuse(table_,
             "model_type is missing or has letters other than a-z, A-Z, 0-9, _ and -; it "
             "is the model_type of config.json");
    family.ignored = texts_of(table_, "ignored_tensors");
    family.optional_prefix = text_of("optional_prefix");
    check_options(table_of(table_, "options"), "");
    check_config();
    family.weights = [rules = rules()](const nn::TransformerOptions&) { return rules; };
    family.options = [self](KeyedJson& config) { return self->options(config); };
    return family;
  }

 private:
  template <class Node>
  [[noreturn]] void refuse(const Node& at, const std::string& fault) const {
    fail(ErrorKind::io, "[model] '{}': line {}: {}", path_, line_of(at), fault);
  }

  void require_fields(const toml::table& table, const std::string& of,
                      const std::vector<std::string>& known) const {
    for (const auto& [key, node] : table) {
      if (std::find(known.begin(), known.end(), key.str()) == known.end())
        refuse(node, fmt::format("{} '{}' is not known{}", of.empty() ? "the key" : of + ":",
                                 key.str(), suggestion(std::string(key.str()), known)));
    }
  }

  std::string text_of(const char* key) const {
    const toml::node* node = table_.get(key);
    if (!node) return "";
    if (!node->is_string()) refuse(*node, fmt::format("{} is a text", key));
    return *node->value<std::string>();
  }

  std::vector<std::string> texts_of(const toml::table& table, const char* key) const {
    std::vector<std::string> texts;
    const toml::node* node = table.get(key);
    if (!node) return texts;
    if (!node->is_array()) refuse(*node, fmt::format("{} is a list of texts", key));
    for (const toml::node& each : *node->as_array()) {
      if (!each.is_string()) refuse(each, fmt::format("{} is a list of texts", key));
      texts.push_back(*each.value<std::string>());
    }
    return texts;
  }

  const toml::table& table_of(const toml::table& table, const char* key) const {
    const toml::node* node = table.get(key);
    if (!node || !node->is_table())
      refuse(node ? *node : table, fmt::format("there is no table [{}]", key));
    return *node->as_table();
  }

  // ------------------------------------------------------------------------------------- options
  void check_options(const toml::table& table, const std::string& scope) const {
    for (const auto& [key, node] : table) {
      const std::string name = scope + std::string(key.str());
      std::vector<std::string> known;
      bool is_option = false, is_scope = false;
      for (const OptionName& o : option_names()) {
        known.push_back(o.name);
        is_option = is_option || o.name == name;
        is_scope = is_scope || o.name.starts_with(name + ".");
      }
      if (is_option) {
        check_value(node, name);
      } else if (is_scope && node.is_table()) {
        check_options(*node.as_table(), name + ".");
      } else {
        refuse(node, fmt::format("there is no option '{}'{}", name, suggestion(name, known)));
      }
    }
    if (!scope.empty()) return;
    for (const OptionName& o : option_names()) {
      if (o.is_required && !find_option(o.name))
        refuse(table, fmt::format("[options] lacks '{}', which every family gives", o.name));
    }
  }

  void check_value(const toml::node& node, const std::string& name) const {
    const toml::table* table = node.as_table();
    if (!table) {
      if (!node.is_string() && !node.is_number() && !node.is_boolean())
        refuse(node, fmt::format("option '{}' is a text, a number, true or false, or {{key = "
                                 "\"...\"}}",
                                 name));
      return;
    }
    require_fields(*table, fmt::format("option '{}'", name),
                   {"key", "option", "default", "values", "power", "times"});
    const toml::node *key = table->get("key"), *option = table->get("option");
    if ((key != nullptr) == (option != nullptr) || !(key ? key : option)->is_string())
      refuse(node, fmt::format("option '{}' has a key of config.json or another option", name));
    if (option && !find_option(*option->value<std::string>()))
      refuse(node, fmt::format("option '{}' is that of '{}', which [options] lacks", name,
                               *option->value<std::string>()));
    if (const toml::node* values = table->get("values"); values && !values->is_table())
      refuse(*values, fmt::format("values of option '{}' is a table", name));
    for (const char* field : {"power", "times"}) {
      if (const toml::node* number = table->get(field); number && !number->is_number())
        refuse(*number, fmt::format("{} of option '{}' is a number", field, name));
    }
    if (const toml::node* otherwise = table->get("default")) check_value(*otherwise, name);
  }

  const toml::node* find_option(const std::string& name) const {
    return table_.at_path("options." + name).node();
  }

  struct Value {
    Json json;
    const toml::node* node;  ///< of the file
    std::string key;         ///< of config.json; "" if the file itself has the value
  };

  [[noreturn]] void refuse(const Value& value, const KeyedJson& config, const std::string& name,
                           const std::string& why) const {
    if (value.key.empty())
      refuse(*value.node, fmt::format("option '{}' is {}; {}", name, value.json.dump(), why));
    config.refuse(value.key, fmt::format("{} for the option '{}' ('{}', line {})", why, name, path_,
                                         line_of(*value.node)));
  }

  Value value_of(const toml::node& node, const std::string& name, KeyedJson& config,
                 int steps) const {
    if (steps > kMostSteps)
      refuse(node, fmt::format("option '{}' refers to itself by other options", name));
    Value value{{}, &node, ""};
    const toml::table* table = node.as_table();
    if (!table) {
      if (node.is_string()) value.json = *node.value<std::string>();
      if (node.is_boolean()) value.json = *node.value<bool>();
      if (node.is_integer()) value.json = *node.value<int64_t>();
      if (node.is_floating_point()) value.json = *node.value<double>();
      return value;
    }
    if (const toml::node* option = table->get("option")) {
      const auto other = *option->value<std::string>();
      value.json = value_of(*find_option(other), other, config, steps + 1).json;
    } else {
      value.key = *table->get("key")->value<std::string>();
      value.json = config.value(value.key);
      const toml::node* otherwise = table->get("default");
      if (value.json.is_null() && otherwise) return value_of(*otherwise, name, config, steps + 1);
      if (value.json.is_null())
        config.refuse(value.key, fmt::format("the option '{}' ('{}', line {}) has no default", name,
                                             path_, line_of(node)));
    }
    if (const toml::node* values = table->get("values"))
      value.json = replaced(value, *values->as_table(), name, config);
    for (const char* field : {"power", "times"}) {
      const toml::node* number = table->get(field);
      if (!number) continue;
      if (!value.json.is_number()) refuse(value, config, name, "it must be a number");
      const double by = *number->value<double>(), was = value.json.get<double>(),
                   is = *field == 'p' ? std::pow(was, by) : was * by;
      value.json = is;
      if (is == std::floor(is) && std::abs(is) < 1e15) value.json = static_cast<int64_t>(is);
    }
    return value;
  }

  /// What the table has for a value, or for each of a list.
  Json replaced(const Value& value, const toml::table& values, const std::string& name,
                const KeyedJson& config) const {
    if (value.json.is_array()) {
      Json all = Json::array();
      for (const Json& each : value.json)
        all.push_back(replaced({each, value.node, value.key}, values, name, config));
      return all;
    }
    const toml::node* found = values.get(tessera::text_of(value.json));
    if (!found) {
      std::vector<std::string> known;
      for (const auto& [key, node] : values) known.emplace_back(key.str());
      refuse(value, config, name, fmt::format("there are values of {}", fmt::join(known, ", ")));
    }
    if (found->is_boolean()) return *found->value<bool>();
    if (found->is_integer()) return *found->value<int64_t>();
    if (found->is_floating_point()) return *found->value<double>();
    if (found->is_string()) return *found->value<std::string>();
    refuse(*found, fmt::format("values of option '{}' are texts, numbers, true or false", name));
  }

  void set(const OptionName& option, NamedOptions& options, const Value& value,
           KeyedJson& config) const {
    const OptionField field = option.field(options);
    const auto no = [&](const std::string& why) { refuse(value, config, option.name, why); };
    const auto whole = [&](int64_t most) {
      if (!value.json.is_number_integer() || value.json.get<double>() < double(option.least) ||
          value.json.get<double>() > double(most))
        no(fmt::format("it must be a whole number from {} to {}", option.least, most));
      return value.json.get<int64_t>();
    };
    const auto choice = [&]() -> int {
      std::vector<std::string> words;
      for (const auto& [word, number] : choices_of(field)) {
        if (value.json == word) return number;
        words.push_back(word);
      }
      no(fmt::format("it must be one of {}", fmt::join(words, ", ")));
      return 0;
    };
    if (auto* const* n = std::get_if<int64_t*>(&field)) **n = whole(option.most);
    if (auto* const* n = std::get_if<int32_t*>(&field))
      **n = static_cast<int32_t>(whole(options.model.vocab - 1));
    if (auto* const* x = std::get_if<double*>(&field)) {
      if (!value.json.is_number() || !std::isfinite(value.json.get<double>()))
        no("it must be a finite number");
      **x = value.json.get<double>();
    }
    if (auto* const* b = std::get_if<bool*>(&field)) {
      if (!value.json.is_boolean()) no("it must be true or false");
      **b = value.json.get<bool>();
    }
    if (auto* const* a = std::get_if<nn::Activation*>(&field)) **a = nn::Activation(choice());
    if (auto* const* k = std::get_if<nn::NormOptions::Kind*>(&field))
      **k = nn::NormOptions::Kind(choice());
    if (auto* const* p = std::get_if<nn::NormPlacement*>(&field)) **p = nn::NormPlacement(choice());
    if (auto* const* r = std::get_if<nn::RotaryOptions*>(&field)) {
      // An object with rope_type, factor and so on; false stands for none.
      if (value.json == false) return;
      if (value.key.empty()) no("it is an object of config.json; give its key");
      const nn::RotaryOptions given = **r;
      **r = rotation_of(config.object(value.key), given.base, options.model.length);
      (*r)->interleaved = given.interleaved;
      (*r)->share = given.share;
    }
    if (auto* const* w = std::get_if<std::vector<bool>*>(&field)) {
      bool good = value.json.is_array();
      for (const Json& each : value.json) good = good && each.is_boolean();
      if (!good) no("it must be a list of true and false; name the values of its words");
      **w = value.json.get<std::vector<bool>>();
    }
  }

  nn::TransformerOptions options(KeyedJson& config) const {
    read_config(config);
    NamedOptions options;
    options.model.heads.d_head = 0;
    options.rotary = find_option("rotary") != nullptr;
    for (const OptionName& option : option_names()) {
      if (const toml::node* node = find_option(option.name))
        set(option, options, value_of(*node, option.name, config, 0), config);
    }
    try {
      return finish(std::move(options));
    } catch (const Error& e) {
      fail(ErrorKind::io, "[model] '{}': the options that it makes of '{}' do not fit: {}", path_,
           config.file(), e.what());
    }
  }

  // ------------------------------------------------------------------------------ other keys
  void check_config() const {
    if (!table_.get("config")) return;
    const toml::table& config = table_of(table_, "config");
    require_fields(config, "[config]", {"ignored", "fixed"});
    texts_of(config, "ignored");
    if (!config.get("fixed")) return;
    for (const auto& [key, node] : table_of(config, "fixed")) {
      if (!node.is_string() && !node.is_number() && !node.is_boolean())
        refuse(node, fmt::format("the fixed value of '{}' is a text, a number, true or false",
                                 key.str()));
    }
  }

  void read_config(KeyedJson& config) const {
    if (!table_.get("config")) return;
    const toml::table& table = table_of(table_, "config");
    for (const std::string& key : texts_of(table, "ignored")) config.ignore_key(key);
    if (!table.get("fixed")) return;
    for (const auto& [key, node] : table_of(table, "fixed"))
      config.require_value(std::string(key.str()), value_of(node, "", config, 0).json);
  }

  // ------------------------------------------------------------------------------------- tensors
  std::vector<WeightRule> rules() const {
    std::vector<WeightRule> rules;
    for (const auto& [key, node] : table_of(table_, "tensors")) {
      const std::string name(key.str());
      if (const toml::array* several = node.as_array()) {
        for (const toml::node& each : *several) rules.push_back(rule(name, each));
      } else {
        rules.push_back(rule(name, node));
      }
    }
    // The library sorts by name.
    std::stable_sort(rules.begin(), rules.end(),
                     [](const WeightRule& a, const WeightRule& b) { return a.line < b.line; });
    return rules;
  }

  WeightRule rule(const std::string& name, const toml::node& node) const {
    const toml::table* table = node.as_table();
    const auto text = [&](const char* key) -> std::string {
      const toml::node* field = table ? table->get(key) : nullptr;
      if (!field || !field->is_string())
        refuse(node,
               fmt::format("tensor '{}' is no {{is = \"PARAMETER\", dims = \"DIM, DIM\"}}: it "
                           "lacks '{}', or its name has dots and no quotes",
                           name, key));
      return *field->value<std::string>();
    };
    WeightRule rule{name, text("dims"), text("is")};
    require_fields(*table, fmt::format("tensor '{}'", name), {"is", "dims", "copy", "or_copy_of"});
    rule.line = line_of(node);
    rule.otherwise = table->get("or_copy_of") ? text("or_copy_of") : "";
    if (const toml::node* copy = table->get("copy")) {
      if (!copy->is_boolean())
        refuse(*copy, fmt::format("copy of tensor '{}' is true or false", name));
      rule.is_copy = *copy->value<bool>();
    }
    for (size_t begin = 0; begin <= rule.dims.size();) {
      const size_t end = std::min(rule.dims.find_first_of(",*", begin), rule.dims.size());
      std::string dim = rule.dims.substr(begin, end - begin);
      dim.erase(std::remove(dim.begin(), dim.end(), ' '), dim.end());
      const bool is_place = dim.find('/') != std::string::npos;
      if (!is_place && std::find(kDims.begin(), kDims.end(), dim) == kDims.end())
        refuse(node,
               fmt::format("tensor '{}' has a dim '{}'{}", name, dim, suggestion(dim, kDims)));
      begin = end + 1;
    }
    return rule;
  }

  std::string path_;
  toml::table table_;
};

}  // namespace

Family read_family(const std::string& path, const std::string& text) {
  const auto file =
      std::make_shared<const FamilyFile>(path, parse_toml(text, fmt::format("[model] '{}'", path)));
  Family family = file->family(file);
  family.text = text;
  return family;
}

}  // namespace tessera
