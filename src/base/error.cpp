#include "tessera/error.h"

#include <algorithm>
#include <cctype>

#include "base/edit_distance.h"
#include "base/fail.h"
#include "tessera/caller.h"

namespace tessera {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::device:
      return "device";
    case ErrorKind::comm:
      return "comm";
    case ErrorKind::io:
      return "io";
    case ErrorKind::internal:
      return "internal";
  }
  return "unknown";
}

void fail_formatted(ErrorKind kind, fmt::string_view text, fmt::format_args args) {
  throw Error(kind, fmt::vformat(text, args));
}

std::string where(const std::source_location& at) {
  if (const CallerScope* caller = CallerScope::current())
    return fmt::format("{}:{}", caller->file(), caller->line());
  const std::string file = at.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), at.line());
}

bool is_of_library(const std::source_location& at) {
  const std::string_view here = std::source_location::current().file_name(), file = at.file_name();
  return file.starts_with(here.substr(0, here.rfind("base/"))) ||
         file.find("/include/c++/") != file.npos;
}

namespace {
thread_local int open_on_behalf = 0;
}
OnBehalf::OnBehalf() { ++open_on_behalf; }
OnBehalf::~OnBehalf() { --open_on_behalf; }
bool OnBehalf::is_open() { return open_on_behalf > 0; }

bool is_users_call(const std::source_location& at) {
  return !OnBehalf::is_open() && !is_of_library(at);
}

Error in_name_of(std::string_view op, const std::source_location& at, const Error& e) {
  std::string text = e.what();
  const std::string line = where(at);
  const bool has_line = text.find("(" + line + ")") != std::string::npos ||
                        text.find("(" + line + ",") != std::string::npos;
  size_t end = 1;  // of the name in "[name] ..."
  while (end < text.size() &&
         (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
    ++end;
  if (!text.starts_with('[') || text.compare(end, 2, "] ") != 0)
    return Error(e.kind(), fmt::format("[{}] {}{}", op, text, has_line ? "" : " (" + line + ")"),
                 e.code());
  if (has_line) text.replace(1, end - 1, op);
  return Error(e.kind(), text, e.code());
}

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  if (known.empty()) return "";
  for (const std::string& full : known) {
    if (!name.empty() && full.ends_with("." + name))
      return fmt::format("; did you mean '{}'?", full);
  }
  auto best = std::min_element(known.begin(), known.end(), [&](const auto& x, const auto& y) {
    return edit_distance(name, x) < edit_distance(name, y);
  });
  const size_t distance = edit_distance(name, *best);
  if (distance <= std::max<size_t>(1, name.size() / 3) && distance < name.size()) {
    return fmt::format("; did you mean '{}'?", *best);
  }
  const size_t shown = std::min<size_t>(known.size(), 12);
  return fmt::format("; known: {}{}", fmt::join(known.begin(), known.begin() + shown, ", "),
                     shown < known.size() ? ", ..." : "");
}

}  // namespace tessera
