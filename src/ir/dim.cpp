#include "tessera/dim.h"

#include <algorithm>

#include "base/sizes.h"

namespace tessera {

Shape::Shape(std::initializer_list<Dim> dims) : dims_(dims) { validate(); }
Shape::Shape(std::vector<Dim> dims) : dims_(std::move(dims)) { validate(); }

void Shape::validate() const {
  Wide elements = 1;
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (dims_[i].name.empty())
      fail(ErrorKind::usage, "dim {} of shape {} has an empty name", i, to_string());
    TESSERA_REQUIRE(dims_[i].size >= 1, "dim '{}' has size {}; sizes are at least 1", dims_[i].name,
                    dims_[i].size);
    for (size_t j = 0; j < i; ++j) {
      if (dims_[i].name != dims_[j].name) continue;
      fail(ErrorKind::usage,
           "dim '{}' occurs twice in shape {}; names in one shape are distinct, rename one of them",
           dims_[i].name, to_string());
    }
    elements *= dims_[i].size;
    TESSERA_REQUIRE(elements <= kMostElements,
                    "shape {} has {:.4g} elements or more; at most 2^60 can be counted",
                    to_string(), static_cast<double>(elements));
  }
}

int Shape::find(const std::string& name) const {
  for (int i = 0; i < rank(); ++i) {
    if (dims_[i].name == name) return i;
  }
  return -1;
}

const Dim& Shape::dim(const std::string& name) const {
  const int i = find(name);
  if (i < 0)
    fail(ErrorKind::usage, "shape {} has no dim '{}'{}", to_string(), name,
         suggestion(name, names()));
  return dims_[i];
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (const Dim& d : dims_) n *= d.size;
  return n;
}

std::vector<std::string> Shape::names() const {
  std::vector<std::string> result;
  for (const Dim& d : dims_) result.push_back(d.name);
  return result;
}

Shape Shape::without(const std::vector<std::string>& names) const {
  std::vector<Dim> kept;
  for (const Dim& d : dims_) {
    if (std::find(names.begin(), names.end(), d.name) == names.end()) kept.push_back(d);
  }
  return Shape(std::move(kept));
}

bool Shape::has_same_dims(const Shape& other) const {
  return rank() == other.rank() && std::is_permutation(begin(), end(), other.begin(), other.end());
}

Shape Shape::united(const Shape& other) const {
  std::vector<Dim> dims = dims_;
  for (const Dim& d : other) {
    if (!has(d.name)) dims.push_back(d);
  }
  return Shape(std::move(dims));
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (const Dim& d : dims_) {
    text += fmt::format("{}{}{}{}", text.size() > 1 ? ", " : "", d.name, d.is_bounded ? "<=" : "=",
                        d.size);
  }
  return text + "]";
}

}  // namespace tessera
