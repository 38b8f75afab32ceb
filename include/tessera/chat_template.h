// Conversations as text, as a model's tokenizer writes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// The chat template of a tokenizer: how messages become text. A template is a program in Jinja, of
/// which this part is understood:
/// - text, {{ }}, {% for x in LIST %} with loop.first, last, index, index0, revindex, revindex0,
///   length, previtem and nextitem, {% if %}, {% elif %}, {% else %}, {% set %}, {% generation %},
///   {# #}, and - at the ends of all of them;
/// - strings, numbers, lists, true, false, none; indices, attributes, slices; + - * // % ~, == != <
///   <= > >=, in, and, or, not, A if B else C; the tests defined, undefined, none, string, mapping;
/// - the filters trim, length, upper, lower, default, first, last, join, replace, string, tojson
///   (not of objects); the methods strip, lstrip, rstrip, startswith, endswith, replace, split;
///   namespace(), range() and raise_exception().
/// Line breaks behind and blanks before a statement are left out, as transformers does it. What is
/// not understood is refused by name where it is needed: a template may have parts for tools.
class ChatTemplate {
 public:
  struct Message {
    std::string role, content;
  };
  /// The template of a folder: chat_template.jinja, or that of tokenizer_config.json, with its
  /// bos_token and eos_token. Throws io errors, one if there is none, and unsupported errors.
  static ChatTemplate load(const std::string& folder);
  /// The same from the text of a template; `name` is for messages.
  explicit ChatTemplate(const std::string& text, const std::string& bos = {},
                        const std::string& eos = {}, const std::string& name = "chat template");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  /// The text of a conversation; with `prompt` followed by what an answer begins with
  /// (add_generation_prompt). Throws usage errors: the template's own, and for what it cannot do
  /// with these messages; unsupported errors.
  std::string render(const std::vector<Message>& messages, bool prompt = false) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera
