#include "program/read_spec.h"

#include <fmt/ranges.h>

#include "program/spec_names.h"

namespace tessera {

namespace {

struct FieldReader {
  Values& values;
  const TextLine& line;

  template <class T>
  void operator()(const char* name, T& member) {
    const auto found = values.find(name);
    if (found == values.end()) line.refuse("'{}' is missing", name);
    TextLine text(found->second, line.number());
    read(text, member);
    if (!text.at_end()) text.refuse("'{}' is too much in '{}'", text.rest(), name);
    values.erase(found);
  }
  template <class T>
  void operator()(const char* name, T& member, const std::type_identity_t<T>& absent) {
    member = absent;
    if (values.contains(name)) (*this)(name, member);
  }

 private:
  static void read(TextLine& text, int64_t& v) { v = text.integer(); }
  static void read(TextLine& text, int& v) { v = static_cast<int>(text.integer()); }
  static void read(TextLine& text, double& v) { v = text.value<double>(); }
  static void read(TextLine& text, bool& v) { v = text.index(2, "flag") == 1; }
  static void read(TextLine& text, ReslicingSpec::Interval& v) {
    text.expect("[");
    for (int64_t* n : {&v.dim, &v.size, &v.extent}) {
      *n = text.integer();
      text.expect(",");
    }
    read(text, v.wraps);
    text.expect("]");
  }
  static void read(TextLine& text, SumOrder::Along& v) {
    text.expect("[");
    for (int64_t* n : {&v.dim, &v.size, &v.chunk, &v.slices}) {
      *n = text.integer();
      text.expect(",");
    }
    read(text, v.slice);
    text.expect("]");
  }
  template <class E>
  requires std::is_enum_v<E>
  static void read(TextLine& text, E& v) {
    const std::string name = text.word(",]");
    const auto names = names_of(E{});
    for (size_t i = 0; i < names.size(); ++i) {
      if (name == names[i]) {
        v = static_cast<E>(i);
        return;
      }
    }
    text.refuse("'{}' is none of {}", name, fmt::join(names, ", "));
  }
  template <class T>
  static void read(TextLine& text, std::vector<T>& v) {
    v.clear();
    text.list([&] { read(text, v.emplace_back()); });
  }
};

/// An empty spec of the type that the step has.
StepSpec empty_spec(const Step& step, const Values& values) {
  if (step.kind == StepKind::collective) {
    switch (step.collective) {
      case CollectiveKind::all_reduce:
        return AllReduceSpec{};
      case CollectiveKind::all_gather:
      case CollectiveKind::reduce_scatter:
        return BlocksSpec{};
      case CollectiveKind::all_to_all:
        return AllToAllSpec{};
      case CollectiveKind::exchange:
        if (values.contains("to_extents")) return RenumberingSpec{};
        return ReslicingSpec{};
      default:
        return {};
    }
  }
  if (values.contains("tensors")) return TensorGroup{};
  if (values.contains("column_sums")) return ColumnSums{};
  return info_of(step.kernel).spec();
}

/// 3, 0.5 or "text".
Attrs::Value item(TextLine& l, std::string_view ends) {
  if (l.is_at("\"")) return l.name("");
  const std::string text = l.word(ends);
  TextLine number(text, l.number());
  const bool is_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return is_whole ? Attrs::Value(number.integer()) : Attrs::Value(number.value<double>());
}

}  // namespace

void read_spec(Values values, const TextLine& line, Step& step) {
  step.order.fields(step.order, FieldReader{values, line});
  step.spec = empty_spec(step, values);
  std::visit(
      [&](auto& spec) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(spec)>, std::monostate>)
          spec.fields(spec, FieldReader{values, line});
      },
      step.spec);
  if (!values.empty()) line.refuse("{} has no '{}'", name_of(step), values.begin()->first);
}

Attrs::Value read_attribute(TextLine& l) {
  if (!l.is_at("[")) return item(l, " ");
  std::vector<Attrs::Value> items;
  TextLine ahead = l;
  ahead.expect("[");
  if (ahead.accept("]")) {
    l.expect("[]");
    if (l.accept("i")) return std::vector<int64_t>{};
    if (l.accept("d")) return std::vector<double>{};
    l.expect("s");
    return std::vector<std::string>{};
  }
  l.list([&] { items.push_back(item(l, ",]")); });
  return std::visit(
      [&](const auto& first) -> Attrs::Value {
        using T = std::decay_t<decltype(first)>;
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
                      std::is_same_v<T, std::string>) {
          std::vector<T> list;
          for (const Attrs::Value& v : items) {
            if (!std::holds_alternative<T>(v)) l.refuse("a list of several types");
            list.push_back(std::get<T>(v));
          }
          return list;
        } else {
          l.refuse("a list of lists");
        }
      },
      items[0]);
}

}  // namespace tessera
