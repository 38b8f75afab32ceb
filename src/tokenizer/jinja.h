// Jinja as chat templates need it; ChatTemplate documents it.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::jinja {

/// None is null; what is not defined is `discarded`. Objects keep the order of their keys.
using Value = nlohmann::ordered_json;

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

class State;
using Macro = std::function<Value(State&, const Arguments&)>;

/// Variables and macros by scope, the innermost last, and the text so far.
class State {
 public:
  explicit State(std::map<std::string, Value> globals);
  Value find(const std::string& name) const;
  void set(const std::string& name, Value value) { scopes_.back().values[name] = std::move(value); }
  /// Sets an attribute of a namespace().
  void set_attribute(const std::string& name, const std::string& attribute, Value value);
  const Macro* find_macro(const std::string& name) const;
  void define(const std::string& name, Macro macro);
  void push() { scopes_.emplace_back(); }
  void pop() { scopes_.pop_back(); }
  /// Runs `body` and returns what it writes. `apart`: in a macro, which sees only the outermost
  /// variables. Throws an unsupported error for macros that call each other without end.
  std::string captured(const std::function<void()>& body, bool apart);
  /// Throws a usage error for a text that grows beyond all sizes.
  void write(const std::string& text);
  const std::string& text() const { return text_; }
  /// Counts a statement. Throws a usage error for a template that does not end.
  void count();

  enum class Flow { next, continues, breaks };
  Flow flow = Flow::next;  ///< what the loop around is to do

 private:
  struct Scope {
    std::map<std::string, Value> values;
    std::map<std::string, Macro> macros;
  };
  std::vector<Scope> scopes_;
  std::string text_;
  int depth_ = 0;
  int64_t statements_ = 0;
};

using Statement = std::function<void(State&)>;

/// Parses a template. Throws unsupported errors for what is not understood and io errors for what
/// is no template, with the line.
Statement parse(const std::string& text);

}  // namespace tessera::jinja
