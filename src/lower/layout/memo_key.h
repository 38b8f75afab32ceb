// Keys for memoization: the bytes of everything that an answer depends on.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "tessera/op.h"

namespace tessera {

class MemoKey {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T> MemoKey& add(
      const T& x) {
    text_.append(reinterpret_cast<const char*>(&x), sizeof(x));
    return *this;
  }
  MemoKey& add(std::string_view text) {
    add(text.size());
    text_.append(text);
    return *this;
  }
  MemoKey& add(const std::string& text) { return add(std::string_view(text)); }
  template <class T>
  MemoKey& add(const std::vector<T>& all) {
    add(all.size());
    for (const T& x : all) add(x);
    return *this;
  }
  MemoKey& add(const Shape& shape) {
    add(shape.rank());
    for (const Dim& d : shape) add(d.name).add(d.size).add(d.is_bounded);
    return *this;
  }
  MemoKey& add(const ValueType& type) { return add(type.shape).add(type.dtype); }
  /// The split and the partial axes, but not the padding state.
  MemoKey& add(const TensorLayout& layout) {
    return add(layout.dims).add(layout.partial).add(layout.combiner);
  }
  MemoKey& add(const Attrs& attrs) {
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
