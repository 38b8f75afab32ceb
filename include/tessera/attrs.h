// Constant attributes of a node or step: an ordered map from name to value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

class Attrs {
 public:
  using Value = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                             std::vector<double>, std::vector<std::string>>;

  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Value>> items) : items_(items) {}

  bool has(const std::string& name) const { return items_.count(name) > 0; }
  void set(const std::string& name, Value value) { items_[name] = std::move(value); }

  /// The value of type T under `name`. Throws an internal error if it is absent or of another type.
  template <class T>
  const T& get(const std::string& name) const {
    return std::get<T>(at(name));
  }
  /// The same, or `fallback` if absent.
  template <class T>
  T get(const std::string& name, T fallback) const {
    auto it = items_.find(name);
    return it == items_.end() ? fallback : std::get<T>(it->second);
  }

  const std::map<std::string, Value>& items() const { return items_; }
  bool operator==(const Attrs&) const = default;

  /// "axis=2 names=[a, b]", sorted by name; doubles with 17 digits.
  std::string to_string() const;

 private:
  const Value& at(const std::string& name) const;
  std::map<std::string, Value> items_;
};

}  // namespace tessera
