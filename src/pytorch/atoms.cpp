#include "pytorch/atoms.h"

#include <algorithm>

namespace tessera::pytorch {

Axis Atoms::add(int64_t size) {
  if (size == 1) return {};
  atoms_.push_back({size});
  return {{static_cast<int>(atoms_.size()) - 1, 0}};
}

Axis Atoms::expand(const Axis& axis) const {
  Axis result;
  for (const Use& use : axis) {
    const std::vector<int>& to = atoms_[static_cast<size_t>(use.atom)].to;
    if (to.empty()) {
      result.push_back(use);
      continue;
    }
    Axis inner;
    for (const int atom : to) inner.push_back({atom, use.copy});
    for (const Use& part : expand(inner)) result.push_back(part);
  }
  return result;
}

int64_t Atoms::size(const Axis& axis) const {
  int64_t n = 1;
  for (const Use& use : axis) n *= size(use.atom);
  return n;
}

bool Atoms::cut(const Axis& axis, int64_t inner) {
  const Axis parts = expand(axis);
  int64_t behind = 1;
  for (auto use = parts.rbegin(); use != parts.rend() && behind < inner; ++use) {
    const int64_t n = size(use->atom);
    if (behind * n > inner) {
      if (inner % behind != 0 || (behind * n) % inner != 0) return false;
      const int64_t low = inner / behind;
      const int high_atom = add(n / low)[0].atom, low_atom = add(low)[0].atom;
      atoms_[static_cast<size_t>(use->atom)].to = {high_atom, low_atom};
      return true;
    }
    behind *= n;
  }
  return behind == inner;
}

std::vector<int64_t> Atoms::bounds(const Axis& axis) const {
  std::vector<int64_t> result;
  const Axis parts = expand(axis);
  int64_t behind = 1;
  for (auto use = parts.rbegin(); use != parts.rend(); ++use)
    result.push_back(behind *= size(use->atom));
  return result;
}

bool Atoms::unify(const Axis& a, const Axis& b) {
  if (size(a) != size(b)) return false;
  while (bounds(a) != bounds(b)) {  // a cut of one may cut an atom of the other
    for (const int64_t bound : bounds(a))
      if (!cut(b, bound)) return false;
    for (const int64_t bound : bounds(b))
      if (!cut(a, bound)) return false;
  }
  const Axis x = expand(a), y = expand(b);
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) join(x[i].atom, y[i].atom);
  return true;
}

void Atoms::join(int a, int b) {
  a = expand({{a, 0}})[0].atom, b = expand({{b, 0}})[0].atom;
  if (a != b) atoms_[static_cast<size_t>(std::max(a, b))].to = {std::min(a, b)};
}

std::pair<Axis, Axis> halves(const Atoms& atoms, const Axis& axis, int64_t inner) {
  size_t at = axis.size();
  for (int64_t behind = 1; behind < inner && at > 0;) behind *= atoms.size(axis[--at].atom);
  return {Axis(axis.begin() + static_cast<long>(at), axis.end()),
          Axis(axis.begin(), axis.begin() + static_cast<long>(at))};
}

}  // namespace tessera::pytorch
