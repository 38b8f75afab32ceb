#include "tessera/attrs.h"

#include "base/fail.h"

namespace tessera {

const Attrs::Value& Attrs::at(const std::string& name) const {
  auto it = items_.find(name);
  if (it == items_.end())
    fail(ErrorKind::internal, "attribute '{}' is missing from {{{}}}", name, to_string());
  return it->second;
}

namespace {
struct Printer {
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const { return fmt::format("{:.17g}", v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<int64_t>& v) const {
    return fmt::format("[{}]", fmt::join(v, ","));
  }
  std::string operator()(const std::vector<double>& v) const {
    return fmt::format("[{:.17g}]", fmt::join(v, ","));
  }
  std::string operator()(const std::vector<std::string>& v) const {
    return fmt::format("[{}]", fmt::join(v, ","));
  }
};
}  // namespace

std::string Attrs::to_string() const {
  std::string text;
  for (const auto& [name, value] : items_) {
    if (!text.empty()) text += ' ';
    text += name + '=' + std::visit(Printer{}, value);
  }
  return text;
}

}  // namespace tessera
