// The part of Jinja that chat templates need, as ChatTemplate documents it.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::jinja {

/// None is null; what is not defined is `discarded`.
using Value = nlohmann::json;

/// Variables by scope, the innermost last, and the text so far.
class State {
 public:
  explicit State(std::map<std::string, Value> globals) { scopes_.push_back(std::move(globals)); }
  Value find(const std::string& name) const;
  void set(const std::string& name, Value value) { scopes_.back()[name] = std::move(value); }
  /// Sets an attribute of a namespace().
  void set_attribute(const std::string& name, const std::string& attribute, Value value);
  void push() { scopes_.emplace_back(); }
  void pop() { scopes_.pop_back(); }
  /// Throws a usage error for a text that grows beyond all sizes.
  void write(const std::string& text);
  const std::string& text() const { return text_; }

 private:
  std::vector<std::map<std::string, Value>> scopes_;
  std::string text_;
};

using Statement = std::function<void(State&)>;

/// Parses a template. Throws unsupported errors for what is not understood and io errors for what
/// is no template, with the line.
Statement parse(const std::string& text);

}  // namespace tessera::jinja
