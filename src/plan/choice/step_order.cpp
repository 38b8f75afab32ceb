// One layer stands for all. The chain passes from layer to layer where they hand on (seams), so it
// begins and ends outside of them. It may enter a layer elsewhere: what it moves there is moved
// once, and is no part of it.
#include "plan/choice/step_order.h"

#include <algorithm>
#include <optional>

#include "plan/choice/layer_names.h"

namespace tessera {

namespace {

constexpr double kBeside = 0.01;  ///< share of a step in kernels that may be at any time
constexpr double kOp = 1e-12;     ///< seconds: of equal ways the chain takes that with more ops

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

StepOrder::StepOrder(const FlatOps& flat, const Repeats& repeats,
                     const std::vector<double>& kernels)
    : flat_(flat),
      repeats_(repeats),
      places_(flat.ops.size()),
      in_chain_(flat.ops.size(), 0),
      link_(flat.values.size(), -1) {
  find_needs();
  find_phases(kernels);
  find_chain(kernels);
  find_beside();
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    for (const int v : flat_.ops[n].out) {
      const auto [known, is_new] =
          of_name_.emplace(in_all_layers(flat_.values[at(v)].name), places_[n]);
      if (is_new) continue;
      if (known->second.phase != places_[n].phase) known->second.phase = Phase::either;
      known->second.beside |= places_[n].beside;
    }
  }
}

int64_t StepOrder::copies(int op) const {
  return repeats_.of_node.empty() ? 1 : repeats_.of_node[at(flat_.ops[at(op)].node)];
}

bool StepOrder::is_seam(int value) const {
  const int of = flat_.values[at(value)].of;
  return of >= 0 && std::any_of(repeats_.seams.begin(), repeats_.seams.end(),
                                [&](const auto& s) { return s.first == of || s.second == of; });
}

void StepOrder::find_needs() {
  const size_t n = flat_.ops.size();
  needs_.assign(n, std::vector<char>(n, 0));
  for (size_t i = 0; i < n; ++i) {
    needs_[i][i] = 1;
    for (const int v : flat_.ops[i].in) {
      const int by = flat_.values[at(v)].made_by;
      if (by < 0) continue;
      for (size_t j = 0; j < n; ++j) needs_[i][j] |= needs_[at(by)][j];
    }
  }
}

/// An op with which nearly all kernels before and behind it are in order divides a step, if layers
/// stand on one side of it, not around it. Of these the last with kernels behind it is what the
/// gradient begins with.
void StepOrder::find_phases(const std::vector<double>& kernels) {
  const size_t n = flat_.ops.size();
  std::optional<size_t> cut;
  double most = 0;
  for (size_t i = 0; i < n; ++i) {
    if (copies(static_cast<int>(i)) > 1) continue;
    double before = 0, after = 0, beside = 0;
    for (size_t j = 0; j < n; ++j)
      (needs_[i][j] ? before : needs_[j][i] ? after : beside) += kernels[j];
    if (beside <= kBeside * (before + after) && after > 0 && before > most) most = before, cut = i;
  }
  has_phases_ = cut.has_value();
  if (!cut) return;
  for (size_t j = 0; j < n; ++j) {
    places_[j].phase = needs_[*cut][j]   ? Phase::before
                       : needs_[j][*cut] ? Phase::after
                                         : Phase::either;
  }
}

/// False where the chain would leave a layer for something that not all layers hand on to.
bool StepOrder::may_link(int from, int value, int to) const {
  return copies(from) == 1 || copies(to) > 1 || is_seam(value);
}

void StepOrder::find_chain(const std::vector<double>& kernels) {
  const size_t n = flat_.ops.size();
  std::vector<double> longest(n, -1);
  std::vector<int> value_before(n, -1);
  int last = -1;
  for (size_t i = 0; i < n; ++i) {
    const auto op = static_cast<int>(i);
    if (copies(op) == 1) longest[i] = 0;
    for (const int v : flat_.ops[i].in) {
      const int by = flat_.values[at(v)].made_by;
      if (by < 0 || longest[at(by)] < 0 || !may_link(by, v, op)) continue;
      if (longest[at(by)] > longest[i]) longest[i] = longest[at(by)], value_before[i] = v;
    }
    if (longest[i] >= 0) longest[i] += kernels[i] + kOp;
    const bool may_end = copies(op) == 1 && longest[i] >= 0;
    if (may_end && (last < 0 || longest[i] > longest[at(last)])) last = op;
  }
  for (int op = last; op >= 0;) {
    in_chain_[at(op)] = 1;
    const int v = value_before[at(op)];
    if (v < 0) break;
    const int by = flat_.values[at(v)].made_by;
    const bool enters = copies(by) == 1 && copies(op) > 1 && !is_seam(v);
    if (!enters && of_read(v, op) != Phase::either) link_[at(v)] = op;
    op = by;
  }
}

/// An op that is neither before nor behind a move of the chain may run beside it. If it is in
/// layers, it may run beside those of other layers, too, unless it is in the chain itself.
void StepOrder::find_beside() {
  for (size_t o = 0; o < flat_.ops.size(); ++o) {
    if (in_chain_[o]) continue;
    for (size_t v = 0; v < link_.size() && !places_[o].beside; ++v) {
      if (link_[v] < 0) continue;
      const int from = flat_.values[v].made_by;
      places_[o].beside = !needs_[at(from)][o] && !needs_[o][at(link_[v])];
    }
  }
}

Place StepOrder::of(int op) const { return places_[at(op)]; }

Place StepOrder::of(const std::string& name) const {
  const auto known = of_name_.find(in_all_layers(name));
  if (known != of_name_.end()) return known->second;
  return {has_phases_ ? Phase::either : Phase::before, true};
}

Phase StepOrder::of_read(int value, int op) const {
  const int made_by = flat_.values[at(value)].made_by;
  if (op >= 0 && of(op).phase == Phase::before) return Phase::before;
  if (made_by >= 0 && of(made_by).phase == Phase::after) return Phase::after;
  return has_phases_ ? Phase::either : Phase::before;
}

Phase StepOrder::of_reads(int value) const {
  for (const int op : flat_.values[at(value)].readers) {
    if (of(op).phase == Phase::before) return Phase::before;
  }
  return of_read(value, -1);
}

bool StepOrder::is_in_chain(int op) const {
  return in_chain_[at(op)] != 0 && of(op).phase != Phase::either;
}

bool StepOrder::is_link(int value, int op) const {
  const int to = link_[at(value)];
  return to >= 0 && (op < 0 || op == to);
}

}  // namespace tessera
