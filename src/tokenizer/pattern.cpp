// PCRE2 with Unicode properties, compiled to machine code where that is possible. The texts were
// checked to be UTF-8 before, so PCRE2 does not check them at every match.
#include "tokenizer/pattern.h"

#include "base/fail.h"

#ifdef TESSERA_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace tessera {

#ifdef TESSERA_HAVE_PCRE2

namespace {

/// The name behind \p at `at`: "Han" of "{Han}"; "" if there is none.
std::string property_at(const std::string& expression, size_t at) {
  const size_t end = expression.find('}', at);
  if (at >= expression.size() || expression[at] != '{' || end == expression.npos) return "";
  return expression.substr(at + 1, end - at - 1);
}

bool compiles(const std::string& text) {
  int error = 0;
  size_t at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// The expression with Unicode's own properties for \s and \w, which PCRE2 takes otherwise, and not
/// alike in all of its versions; and with \p{Han} for the script alone, without the characters that
/// scripts share.
std::string with_properties(const std::string& what, const std::string& expression) {
  static const std::string kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c != '\\' || i + 1 == expression.size()) {
      in_class = c == '[' || (in_class && c != ']');
      result += c;
      continue;
    }
    const char next = expression[++i];
    const std::string name = next == 'p' || next == 'P' ? property_at(expression, i + 1) : "";
    if (name.size() > 2 && compiles("\\p{sc:" + name + "}")) {
      result += fmt::format("\\{}{{sc:{}}}", next, name);
      i += name.size() + 2;
      continue;
    }
    if (next == 's' || next == 'S')
      result += next == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else if (next == 'w')
      result += in_class ? kWord : "[" + kWord + "]";
    else if (next == 'W' && !in_class)
      result += "[^" + kWord + "]";
    else if (next == 'W' || (next == 'b' && !in_class) || next == 'B')
      fail(ErrorKind::unsupported,
           "[tokenizer] {}: the pattern '{}' has \\{}, which versions of PCRE2 take in different "
           "ways; write it with classes such as \\p{{L}}",
           what, expression, next);
    else
      (result += '\\') += next;
  }
  return result;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct MatchSpace::Parts {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 16 << 20, nullptr);
  Parts() {
    pcre2_set_match_limit(context, 100'000'000);  // a pattern may take exponential time
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Parts() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

struct Pattern::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Pattern::Pattern(const std::string& what, const std::string& expression, Dialect dialect)
    : what_(what), code_(std::make_unique<Code>()) {
  const std::string text = with_properties(what, expression);
  int error = 0;
  size_t at = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY |
                                  (dialect == Dialect::oniguruma ? PCRE2_MULTILINE : 0),
                              &error, &at, nullptr);
  TESSERA_REQUIRE(
      code_->code != nullptr,
      "[tokenizer] {}: the pattern '{}' is no regular expression of PCRE2 {}: {} at byte {}", what,
      expression, library(), message_of(error), at);
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // without it, pcre2_match interprets
}

bool Pattern::find(std::string_view text, size_t from, MatchSpace& space, TextRange& match) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_->code, subject, text.size(), from, options | PCRE2_NO_UTF_CHECK,
                       space.parts_->data, space.parts_->context);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    fail(ErrorKind::unsupported,
         "[tokenizer] {}: PCRE2 gave up on a text of {} bytes: {}; split the text", what_,
         text.size(), message_of(found));
  }
  const size_t* range = pcre2_get_ovector_pointer(space.parts_->data);
  match = {range[0], range[1]};
  return true;
}

std::string Pattern::library() {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_VERSION, version);
  return std::string(version).substr(0, std::string_view(version).find(' '));
}

#else

struct MatchSpace::Parts {};
struct Pattern::Code {};

Pattern::Pattern(const std::string& what, const std::string& expression, Dialect) {
  fail(ErrorKind::unsupported,
       "[tokenizer] {} cuts text by the pattern '{}', but this build has no PCRE2; install "
       "libpcre2-dev and configure again",
       what, expression);
}

bool Pattern::find(std::string_view, size_t, MatchSpace&, TextRange&) const { return false; }
std::string Pattern::library() { return ""; }

#endif

MatchSpace::MatchSpace() : parts_(std::make_unique<Parts>()) {}
MatchSpace::~MatchSpace() = default;
Pattern::~Pattern() = default;

}  // namespace tessera
