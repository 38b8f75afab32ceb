#include "tessera/chat_template.h"

#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "tokenizer/jinja.h"

namespace tessera {

namespace fs = std::filesystem;

struct ChatTemplate::Parts {
  jinja::Statement statement;
  std::string bos, eos;
};

namespace {

/// A token of tokenizer_config.json: its text, or an object with it.
std::string token_of(const nlohmann::json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  return it->is_object() ? it->value("content", std::string()) : "";
}

/// The template of a configuration: a text, or the one called "default" of several.
std::string template_of(const nlohmann::json& config) {
  const auto it = config.find("chat_template");
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) return "";
  for (const nlohmann::json& each : *it) {
    if (each.is_object() && each.value("name", std::string()) == "default")
      return each.value("template", std::string());
  }
  return "";
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& text, const std::string& bos, const std::string& eos,
                           const std::string& name)
    : parts_(std::make_unique<Parts>()) {
  constexpr size_t kMost = 1 << 20;
  if (text.size() > kMost)
    fail(ErrorKind::unsupported, "'{}': a chat template of {} bytes; it has at most {}", name,
         text.size(), kMost);
  try {
    *parts_ = {jinja::parse(text), bos, eos};
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("'{}': {}", name, e.what()));
  }
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const std::string& folder) {
  const fs::path file = fs::path(folder) / "chat_template.jinja",
                 config_file = fs::path(folder) / "tokenizer_config.json";
  nlohmann::json config = nlohmann::json::object();
  if (is_there(config_file)) {
    config = parse_json(read_text_file("chat template", config_file.string()));
    if (!config.is_object())
      fail(ErrorKind::io, "[chat template] '{}' is no JSON object", config_file.string());
  }
  const bool has_file = is_there(file);
  const std::string text =
      has_file ? read_text_file("chat template", file.string()) : template_of(config);
  if (text.empty())
    fail(ErrorKind::io,
         "[chat template] '{}' has none: neither chat_template.jinja nor a chat_template in "
         "tokenizer_config.json; write the conversations as prompt and completion",
         folder);
  return ChatTemplate(text, token_of(config, "bos_token"), token_of(config, "eos_token"),
                      (has_file ? file : config_file).string());
}

std::string ChatTemplate::render(const std::vector<Message>& messages, bool prompt) const {
  jinja::Value all = jinja::Value::array();
  for (const Message& m : messages) all.push_back({{"role", m.role}, {"content", m.content}});
  jinja::State state({{"messages", std::move(all)},
                      {"add_generation_prompt", prompt},
                      {"bos_token", parts_->bos},
                      {"eos_token", parts_->eos}});
  parts_->statement(state);
  return state.text();
}

}  // namespace tessera
