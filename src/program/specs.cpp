#include "program/specs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "program/spec_names.h"

namespace tessera {

namespace {

std::string text_of(int64_t value) { return fmt::format("{}", value); }
std::string text_of(bool value) { return value ? "1" : "0"; }
std::string text_of(double value) { return fmt::format("{:.17g}", value); }
std::string text_of(const ReslicingSpec::Interval& i) {
  return fmt::format("[{},{},{},{}]", i.dim, i.size, i.extent, text_of(i.wraps));
}
std::string text_of(const SumOrder::Along& a) {
  return fmt::format("[{},{},{},{},{}]", a.dim, a.size, a.chunk, a.slices, a.slice);
}
template <class E>
requires std::is_enum_v<E> std::string text_of(E value) {
  return names_of(value)[static_cast<size_t>(value)];
}
std::string text_of(int axis) { return text_of(int64_t{axis}); }
template <class T>
std::string text_of(const std::vector<T>& list) {
  std::string text;
  for (const T& item : list) text += (text.empty() ? "" : ",") + text_of(item);
  return "[" + text + "]";
}

struct FieldWriter {
  std::string text = {};

  template <class T>
  void operator()(const char* name, const T& value) {
    text += fmt::format(" {}={}", name, text_of(value));
  }
  template <class T>
  void operator()(const char* name, const T& value, const std::type_identity_t<T>& absent) {
    if (!(value == absent)) (*this)(name, value);
  }
};

}  // namespace

std::string to_string(const StepSpec& spec) {
  FieldWriter writer;
  std::visit(
      [&](const auto& s) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(s)>, std::monostate>)
          s.fields(s, writer);
      },
      spec);
  return writer.text;
}

std::string to_string(const SumOrder& order) {
  FieldWriter writer;
  order.fields(order, writer);
  return writer.text;
}

}  // namespace tessera
