// What expressions of a template compute with: values, operators, filters, tests, methods.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja.h"

namespace tessera::jinja {

inline constexpr size_t kMostText = size_t{1} << 26;  ///< bytes of a text
inline constexpr int kDeepest = 64;                   ///< nested expressions, blocks and macros

Value undefined();
bool is_undefined(const Value& value);
/// "string", "undefined", ...: for messages.
const char* kind_of(const Value& value);
bool truth(const Value& value);
/// As {{ }} writes it, and as Python's repr() does.
std::string text_of(const Value& value);
std::string repr_of(const Value& value);
/// The characters of a text, which are what Python counts.
std::vector<std::string> characters(const std::string& text);
/// What a loop over the value gives: elements, keys or characters. Throws a usage error for another
/// kind.
std::vector<Value> items_of(const Value& value, const char* what);

// These throw usage errors for values that they cannot take, and unsupported errors, by refuse(),
// for names that are not known.
Value arithmetic(const std::string& op, const Value& a, const Value& b);
bool equal(const Value& a, const Value& b);
bool compares(const std::string& op, const Value& a, const Value& b);
Value element(const Value& of, const Value& at);
Value slice(const Value& of, const Value& from, const Value& to, const Value& step);
bool test(const std::string& name, const Value& value, const Arguments& args);
Value filtered(const std::string& name, const Value& value, const Arguments& args);
Value method(const std::string& name, const Value& value, const Arguments& args);
/// A function of the environment; none if there is no such.
std::optional<Value> function(const std::string& name, const Arguments& args);
bool is_function(const std::string& name);

/// The arguments of a call by the names of its parameters.
class Bound {
 public:
  /// Throws a usage error for too many arguments, or one of another name. `what` is the call.
  Bound(const std::string& what, const Arguments& args, std::vector<const char*> names);
  bool has(size_t i) const { return !is_undefined(values_[i]); }
  const Value& operator[](size_t i) const { return values_[i]; }
  /// They throw usage errors for another kind; without a default the argument must be there.
  const std::string& text(size_t i) const;
  std::string text(size_t i, const char* otherwise) const;
  int64_t whole(size_t i, std::optional<int64_t> otherwise = {}) const;
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(values_[i]) : otherwise; }

 private:
  [[noreturn]] void wrong(size_t i, const char* wanted) const;
  std::string what_;
  std::vector<const char*> names_;
  std::vector<Value> values_;
};

/// Throws the unsupported error for a part of Jinja.
[[noreturn]] void refuse(const std::string& what);

}  // namespace tessera::jinja
