// What expressions of a template compute with: values, operators, filters, tests, methods.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/jinja.h"

namespace tessera::jinja {

inline constexpr size_t kMostText = size_t{1} << 26;  ///< bytes of a text
inline constexpr int kDeepest = 64;                   ///< nested expressions and blocks

Value undefined();
bool is_undefined(const Value& value);
/// "string", "undefined", ...: for messages.
const char* kind_of(const Value& value);
bool truth(const Value& value);
/// As {{ }} writes it.
std::string text_of(const Value& value);

// These throw usage errors for values that they cannot take, and unsupported errors, by refuse(),
// for names that are not known.
Value arithmetic(const std::string& op, const Value& a, const Value& b);
bool compares(const std::string& op, const Value& a, const Value& b);
bool test(const std::string& name, const Value& value);
Value element(const Value& of, const Value& at);
Value slice(const Value& of, const Value& from, const Value& to, const Value& step);
Value filtered(const std::string& name, const Value& value, const std::vector<Value>& args);
Value method(const std::string& name, const Value& value, const std::vector<Value>& args);

/// Throws the unsupported error for a part of Jinja.
[[noreturn]] void refuse(const std::string& what);

}  // namespace tessera::jinja
