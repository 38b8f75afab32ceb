// Keys of memos: the bytes of what a question depends on. Two keys are equal if their parts are.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "tessera/op.h"

namespace tessera {

class Key {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T> Key& add(
      const T& part) {
    text_.append(reinterpret_cast<const char*>(&part), sizeof(part));
    return *this;
  }
  Key& add(std::string_view part) {
    add(part.size());
    text_.append(part);
    return *this;
  }
  Key& add(const std::string& part) { return add(std::string_view(part)); }
  template <class T>
  Key& add(const std::vector<T>& parts) {
    add(parts.size());
    for (const T& part : parts) add(part);
    return *this;
  }
  Key& add(const Shape& shape) {
    add(shape.rank());
    for (const Dim& d : shape) add(d.name).add(d.size).add(d.is_bounded);
    return *this;
  }
  Key& add(const ValueType& type) { return add(type.shape).add(type.dtype); }
  /// What the layout splits and what is partial; not its padding state.
  Key& add(const TensorLayout& layout) {
    return add(layout.dims).add(layout.partial).add(layout.combiner);
  }
  Key& add(const Attrs& attrs) {
    add(attrs.items().size());
    for (const auto& [name, value] : attrs.items()) {
      add(name).add(value.index());
      std::visit([&](const auto& v) { add(v); }, value);
    }
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace tessera
