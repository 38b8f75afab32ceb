#include "tessera/chat_template.h"

#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "tokenizer/jinja.h"
#include "tokenizer/settings.h"

namespace tessera {

namespace fs = std::filesystem;

struct ChatTemplate::Parts {
  jinja::Statement statement;
  std::map<std::string, std::string> tokens;  ///< "eos_token": "</s>"
};

ChatTemplate::ChatTemplate(const std::string& text, const std::string& bos, const std::string& eos,
                           const std::string& name)
    : parts_(std::make_unique<Parts>()) {
  constexpr size_t kMost = 1 << 20;
  if (text.size() > kMost)
    fail(ErrorKind::unsupported, "'{}': a chat template of {} bytes; it has at most {}", name,
         text.size(), kMost);
  try {
    *parts_ = {jinja::parse(text), {{"bos_token", bos}, {"eos_token", eos}}};
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("'{}': {}", name, e.what()));
  }
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const std::string& folder) {
  const fs::path file = fs::path(folder) / "chat_template.jinja",
                 model = fs::path(folder) / "tokenizer.model";
  const TokenizerSettings settings =
      read_settings(is_there(model) && !is_there(fs::path(folder) / "tokenizer.json")
                        ? model.string()
                        : (fs::path(folder) / "tokenizer.json").string());
  const bool has_file = is_there(file);
  const std::string text =
      has_file ? read_text_file("chat template", file.string()) : settings.chat_template;
  if (text.empty())
    fail(ErrorKind::io,
         "[chat template] '{}' has none: neither chat_template.jinja nor a chat_template in "
         "tokenizer_config.json; write the conversations as prompt and completion",
         folder);
  ChatTemplate result(text, "", "", has_file ? file.string() : settings.path);
  for (const auto& [key, token] : settings.named) result.parts_->tokens[key] = token;
  return result;
}

std::string ChatTemplate::render(const std::vector<Message>& messages, bool prompt) const {
  jinja::Value all = jinja::Value::array();
  for (const Message& m : messages) all.push_back({{"role", m.role}, {"content", m.content}});
  std::map<std::string, jinja::Value> variables = {{"messages", std::move(all)},
                                                   {"add_generation_prompt", prompt},
                                                   {"tools", nullptr},
                                                   {"documents", nullptr}};
  for (const auto& [key, token] : parts_->tokens) variables[key] = token;
  jinja::State state(std::move(variables));
  parts_->statement(state);
  return state.text();
}

}  // namespace tessera
