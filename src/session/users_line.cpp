#include "session/users_line.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "base/fail.h"

namespace tessera {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// True for "... (file.cpp:41)" and "... (file.cpp:41, scope)" anywhere in the text.
bool names_a_line(std::string_view text) {
  for (size_t colon = text.find(':'); colon != text.npos; colon = text.find(':', colon + 1)) {
    size_t end = colon + 1;
    while (end < text.size() && is_digit(text[end])) ++end;
    const bool closes =
        end > colon + 1 && end < text.size() && (text[end] == ')' || text[end] == ',');
    const size_t open = text.rfind('(', colon), space = text.rfind(' ', colon);
    if (closes && open != text.npos && (space == text.npos || space < open)) return true;
  }
  return false;
}

/// True for "[name] ...".
bool has_name(std::string_view text) {
  const auto end = std::find_if(text.begin() + (text.empty() ? 0 : 1), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_';
  });
  return text.starts_with('[') &&
         text.substr(static_cast<size_t>(end - text.begin())).starts_with("] ");
}

}  // namespace

Error with_users_line(std::string_view method, const std::source_location& at, const Error& e) {
  const bool is_users = e.kind() == ErrorKind::usage || e.kind() == ErrorKind::unsupported;
  if (!is_users || is_of_library(at)) return e;
  const std::string text = e.what();
  return Error(e.kind(),
               fmt::format("{}{}{}", has_name(text) ? "" : fmt::format("[{}] ", method), text,
                           names_a_line(text) ? "" : fmt::format(" ({})", where(at))));
}

}  // namespace tessera
