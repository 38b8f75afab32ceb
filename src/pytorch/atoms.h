// Dims of a graph without names. Every axis of a tensor is an ordered product of atoms. A pointwise
// op or a product says that two axes are one (unify), a view where an axis has a boundary (cut).
// What is left are the dims of a model: heads and d_head of one axis of 4096 that is viewed as 32 x
// 128.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::pytorch {

/// A dim of one tensor. A tensor may have an atom twice, as logits of queries by keys have
/// positions: then the second use is another copy, a dim with a name of its own.
struct Use {
  int atom = -1, copy = 0;
  bool operator==(const Use&) const = default;
  auto operator<=>(const Use&) const = default;
};
/// Major to minor; empty for an axis of size 1.
using Axis = std::vector<Use>;
/// Axes of a tensor. What a file says of a tensor's rank may be wrong: an axis that is not there
/// throws std::out_of_range.
struct AxisList : std::vector<Axis> {
  using std::vector<Axis>::vector;
  Axis& operator[](size_t i) { return at(i); }
  const Axis& operator[](size_t i) const { return at(i); }
  Axis& back() { return at(size() - 1); }
  const Axis& back() const { return at(size() - 1); }
};

class Atoms {
 public:
  /// An axis of one new atom.
  Axis add(int64_t size);
  /// The axis in atoms that are neither cut nor the same as another one.
  Axis expand(const Axis& axis) const;
  int64_t size(int atom) const { return atoms_[static_cast<size_t>(atom)].size; }
  int64_t size(const Axis& axis) const;
  /// Refines the axis so that a boundary lies in front of its last `inner` elements. False if there
  /// can be none: 12 = 4 x 3 has none in front of 2.
  bool cut(const Axis& axis, int64_t inner);
  /// Makes both axes one. False if their sizes differ or no boundaries fit.
  bool unify(const Axis& a, const Axis& b);
  /// Atoms of these two numbers are one. Their sizes are equal.
  void join(int a, int b);

 private:
  struct Atom {
    int64_t size;
    std::vector<int> to = {};  ///< what it was cut into, or the one that it is the same as
  };
  std::vector<int64_t> bounds(const Axis& axis) const;
  std::vector<Atom> atoms_;
};

/// The last uses of an expanded axis, with `inner` elements, and those in front of them. The
/// boundary was cut.
std::pair<Axis, Axis> halves(const Atoms& atoms, const Axis& axis, int64_t inner);

}  // namespace tessera::pytorch
