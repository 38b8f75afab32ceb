// Named dimensions and shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace tessera {

/// A named dimension. The run-time size of a bounded dim may be smaller: memory is planned for
/// `size`; masks, means and counts use the size set with Session::set_size.
struct Dim {
  Dim(std::string name, int64_t size) : name(std::move(name)), size(size) {}
  /// A dim with at most `size` elements at run time.
  static Dim bounded(std::string name, int64_t size) {
    Dim dim(std::move(name), size);
    dim.is_bounded = true;
    return dim;
  }
  /// A Dim of this size and bound under another name. Of a bounded dim that is a size of its own,
  /// to be set by Session::set_size(); only rename() of a tensor ties the sizes of two names.
  Dim renamed(std::string new_name) const {
    Dim dim = *this;
    dim.name = std::move(new_name);
    return dim;
  }

  /// A Dim may stand wherever the name of a dim is wanted: reduce_sum(x, batch), sort(x, batch).
  operator const std::string&() const { return name; }

  std::string name;
  int64_t size;
  bool is_bounded = false;
  bool operator==(const Dim&) const = default;
};

/// Ordered dims with distinct names; the order is the memory order (row-major, last dim fastest).
class Shape {
 public:
  Shape() = default;
  /// Maximum number of dims of a tensor.
  static constexpr int kMostDims = 24;

  /// Throws a usage error for a repeated or empty name, a size below 1, and 2^60 elements or more.
  Shape(std::initializer_list<Dim> dims);
  explicit Shape(std::vector<Dim> dims);

  int rank() const { return static_cast<int>(dims_.size()); }
  const Dim& operator[](int i) const { return dims_[i]; }
  const std::vector<Dim>& dims() const { return dims_; }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }

  /// Position of the dim called `name`, or -1.
  int find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) >= 0; }
  /// The dim called `name`. Throws a usage error with the nearest name if there is none.
  const Dim& dim(const std::string& name) const;
  /// Number of elements (1 for a scalar).
  int64_t elements() const;
  std::vector<std::string> names() const;

  /// This shape without the dims of the given names (absent names are ignored).
  Shape without(const std::vector<std::string>& names) const;
  /// This shape followed by the dims of `other` whose names it lacks.
  Shape united(const Shape& other) const;

  /// True if `other` has the same dims, in this or another order.
  bool has_same_dims(const Shape& other) const;

  /// "[batch=4, hidden=8]"; a bounded dim is shown as "batch<=4".
  std::string to_string() const;
  bool operator==(const Shape&) const = default;

 private:
  void validate() const;
  std::vector<Dim> dims_;
};

/// One or several dims, as names or as Dims: the argument of reductions and softmax. Write
/// `"hidden"`, `hidden`, `{"rows", "cols"}` or `{rows, cols}`.
class Axes {
  struct Name : std::string {
    Name(const char* name) : std::string(name) {}
    Name(std::string name) : std::string(std::move(name)) {}
    Name(const Dim& dim) : std::string(dim.name) {}
  };

 public:
  Axes(const char* name) : names_{name} {}
  Axes(std::string name) : names_{std::move(name)} {}
  Axes(const Dim& dim) : names_{dim.name} {}
  Axes(std::initializer_list<Name> names) : names_(names.begin(), names.end()) {}
  Axes(std::vector<std::string> names) : names_(std::move(names)) {}
  Axes(const Shape& dims) : names_(dims.names()) {}
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

}  // namespace tessera
