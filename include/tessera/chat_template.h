// Conversations as text, as a model's tokenizer writes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// The chat template of a tokenizer: how messages become text. A template is a program in Jinja,
/// and gives what it gives in transformers. Understood are:
/// - {{ }}, {% for %} with conditions, {% else %} and loop (but not recursive ones), {% break %},
///   {% continue %}, {% if %}, {% set %}, {% macro %}, {% call %}, {% filter %}, {% with %},
///   {% raw %}, {% generation %}, {# #};
/// - all operators and literals (a tuple is a list);
/// - the filters abs, batch, capitalize, center, count, default, dictsort, escape, first, float,
///   format, indent, int, items, join, last, length, list, lower, map, max, min, reject,
///   rejectattr, replace, reverse, round, safe, select, selectattr, sort, string, sum, title,
///   tojson, trim, truncate, unique, upper, wordcount; all tests but callable, filter, test and
///   escaped;
/// - Python's methods of texts, lists and objects that change none; dict(), namespace(), range(),
///   raise_exception() and strftime_now(). Letters beyond ASCII have no upper and lower case.
/// The variables are messages, add_generation_prompt, the special tokens by their names, and tools
/// and documents, which are none. What is not understood is refused by name where it is needed.
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
