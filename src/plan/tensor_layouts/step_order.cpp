// One layer stands for all. The chain passes from layer to layer where they hand on (seams), so it
// begins and ends outside of them. It may enter a layer elsewhere: what it moves there is moved
// once, and is no part of it.
//
// Steps keep the order of the graph's ops, but for those that are merged with others, and
// fill_waits moves none past a kernel. So beside a transfer of the chain is only what lies between
// the two kernels of the chain around it: other ops, and a step of the chain before the transfer,
// whose result a reduction may compute again for itself (fuse_prologues) so that it is stored
// later, if anything else reads it. If there are only small ones, the transfer stands alone. Where
// layers repeat that is not examined.
#include "plan/tensor_layouts/step_order.h"

#include <algorithm>
#include <optional>

#include "plan/tensor_layouts/layer_names.h"

namespace tessera {

namespace {

constexpr double kBeside = 0.01;     ///< share of a step in kernels that may be at any time
constexpr int64_t kSmall = 1 << 22;  ///< bytes of an op's largest tensor: hardly more than a launch
constexpr double kByte = 1e-21;  ///< seconds: of equal ways the chain takes that with more bytes

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

StepOrder::StepOrder(const FlatOps& flat, const Repeats& repeats,
                     const std::vector<double>& kernels)
    : flat_(flat),
      repeats_(repeats),
      places_(flat.ops.size()),
      at_(flat.ops.size(), -1),
      link_(flat.values.size(), -1) {
  for (const double seconds : kernels) is_kernel_.push_back(seconds > 0);
  find_needs();
  find_phases(kernels);
  find_chain(kernels);
  find_around();
  find_alone();
  number_links();
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    for (const int v : flat_.ops[n].out) {
      const auto [known, is_new] = of_name_.emplace(named(flat_.values[at(v)].name), places_[n]);
      if (is_new) continue;
      if (known->second.phase != places_[n].phase) known->second.phase = Phase::either;
      Links& around = known->second.around;
      around.first = std::min(around.first, places_[n].around.first);
      around.last = std::max(around.last, places_[n].around.last);
      known->second.in_chain &= places_[n].in_chain;
      known->second.near_alone |= places_[n].near_alone;
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
    if (longest[i] >= 0) longest[i] += kernels[i] + kByte * static_cast<double>(most_bytes(op));
    const bool may_end = copies(op) == 1 && longest[i] >= 0;
    if (may_end && (last < 0 || longest[i] > longest[at(last)])) last = op;
  }
  for (int op = last; op >= 0;) {
    chain_.push_back(op);
    const int v = value_before[at(op)];
    if (v < 0) break;
    const int by = flat_.values[at(v)].made_by;
    const bool enters = copies(by) == 1 && copies(op) > 1 && !is_seam(v);
    if (!enters && of_read(v, op) != Phase::either) link_[at(v)] = op;
    op = by;
  }
  std::reverse(chain_.begin(), chain_.end());
  for (size_t p = 0; p < chain_.size(); ++p) {
    at_[at(chain_[p])] = static_cast<int>(p);
    places_[at(chain_[p])].in_chain = true;
  }
}

/// The places of the chain that are neither before nor behind an op that is not in it. In layers
/// they stand for those of all layers, so the op may be beside more of them: beside those of other
/// layers, unless in its own layer the chain is both before and behind it.
Links StepOrder::around(int op) const {
  const auto n = static_cast<int>(chain_.size());
  int before = -1, behind = n;  // ops of the chain
  for (int p = 0; p < n; ++p) {
    if (needs_[at(op)][at(chain_[at(p)])]) before = p;
    if (behind == n && needs_[at(chain_[at(p)])][at(op)]) behind = p;
  }
  Links around{2 * before + 2, std::min(2 * behind + 1, 2 * n)};
  if (copies(op) == 1) return around;
  for (const Phase phase : {Phase::before, Phase::after}) {
    int first = n, last = -1;  // ops of the chain in layers, in this phase
    for (int p = 0; p < n; ++p) {
      const int other = chain_[at(p)];
      const bool is_here = !has_phases_ || of(other).phase == phase;
      if (copies(other) > 1 && is_here) first = std::min(first, p), last = p;
    }
    if (last < 0 || before > last || behind < first) continue;
    if (has_phases_ && before >= first && behind <= last) continue;
    around.first = std::min(around.first, 2 * first);
    around.last = std::max(around.last, 2 * last + 2);
  }
  return around;
}

void StepOrder::find_around() {
  for (size_t o = 0; o < flat_.ops.size(); ++o) {
    const int p = at_[o];
    places_[o].around = p < 0 ? around(static_cast<int>(o)) : behind(p);
    places_[o].in_chain = p >= 0 && places_[o].around.first >= places_[o].around.last;
  }
}

/// True if the result of the op at this place is that of a kernel or a reduction, which is not
/// computed again, or if all that becomes of it is the operand of one.
bool StepOrder::is_there_once(int place) const {
  const auto n = static_cast<int>(chain_.size());
  for (; place < n; ++place) {
    const FlatOp& op = flat_.ops[at(chain_[at(place)])];
    if (is_kernel_[at(chain_[at(place)])] || op.op->kernel == KernelKind::reduce) return true;
    const FlatValue& result = flat_.values[at(op.out[0])];
    const bool is_known = op.out.size() == 1 && op.equal == 1 && !result.is_root;
    if (!is_known || place + 1 == n || result.readers != std::vector<int>{chain_[at(place + 1)]})
      return false;
  }
  return false;
}

/// The places of the chain beside which the stored result of its op may be computed: up to the next
/// kernel.
Links StepOrder::behind(int place) const {
  const auto op = at(chain_[at(place)]);
  if (is_there_once(place)) return {2 * place + 2, 2 * place + 1};
  const auto n = static_cast<int>(chain_.size());
  int next = place + 1;
  while (next < n && !is_kernel_[at(chain_[at(next)])]) ++next;
  Links places{2 * place + 2, std::min(2 * next + 1, 2 * n)};
  const bool leaves = next == n || copies(chain_[at(next)]) == 1;
  for (int p = 0; p < place && leaves && copies(static_cast<int>(op)) > 1; ++p) {
    if (copies(chain_[at(p)]) > 1) places.first = std::min(places.first, 2 * p);  // the next layer
  }
  return places;
}

/// Of the largest tensor that the op reads or makes.
int64_t StepOrder::most_bytes(int op) const {
  int64_t most = 0;
  for (const std::vector<int>* values : {&flat_.ops[at(op)].in, &flat_.ops[at(op)].out}) {
    for (const int v : *values) {
      const FlatValue& value = flat_.values[at(v)];
      most = std::max(most, value.shape.elements() * size_of(value.dtype));
    }
  }
  return most;
}

void StepOrder::find_alone() {
  const auto n = static_cast<int>(chain_.size());
  alone_at_.assign(2 * chain_.size(), 0);
  if (!repeats_.of_node.empty()) return;
  const auto is_kernel = [&](int p) { return is_kernel_[at(chain_[at(p)])] != 0; };
  for (int i = 0; i < 2 * n; ++i) {
    const int p = i / 2;
    int first = p - 1, last = p + i % 2;  // the kernels around it
    while (first >= 0 && !is_kernel(first)) --first;
    while (last < n && !is_kernel(last)) ++last;
    const int begin = first < 0 ? 0 : chain_[at(first)] + 1;
    const int end = last >= n ? static_cast<int>(flat_.ops.size()) : chain_[at(last)];
    std::vector<int> small;
    bool alone = true;
    for (int op = begin; op < end && alone; ++op) {
      const Links& own = places_[at(op)].around;
      if (flat_.ops[at(op)].is_again || i < own.first || i >= own.last) continue;
      alone = most_bytes(op) <= kSmall;
      small.push_back(op);
    }
    alone_at_[at(i)] = alone;
    for (const int op : small) places_[at(op)].near_alone |= alone;
  }
}

/// A name by which a value is known: in all layers, if they repeat.
std::string StepOrder::named(const std::string& name) const {
  return repeats_.of_node.empty() ? name : in_all_layers(name);
}

/// A link ends where what may run beside it changes, and where a phase ends.
void StepOrder::number_links() {
  std::vector<char> ends(2 * chain_.size() + 1, 0);
  for (const Place& place : places_) {
    if (place.in_chain) continue;
    ends[at(place.around.first)] = ends[at(place.around.last)] = 1;
  }
  for (size_t i = 0; i < 2 * chain_.size(); ++i) {
    const Phase phase = of(chain_[i / 2]).phase == Phase::before ? Phase::before : Phase::after;
    if (i == 0 || ends[i] != 0 || phase != phases_.back() || alone_at_[i] != alone_at_[i - 1]) {
      phases_.push_back(phase);
      alone_.push_back(alone_at_[i]);
    }
    number_.push_back(links() - 1);
  }
  number_.push_back(links());
  for (Place& place : places_) {
    Links& around = place.around;
    around.first = number_[at(around.first)];
    around.last = around.last == 0 ? 0 : number_[at(around.last - 1)] + 1;
  }
}

Place StepOrder::of(int op) const { return places_[at(op)]; }

std::optional<Place> StepOrder::of(const std::string& name) const {
  const auto known = of_name_.find(named(name));
  if (known == of_name_.end()) return {};
  return known->second;
}

Place StepOrder::anywhere() const {
  return {has_phases_ ? Phase::either : Phase::before, {0, links()}, false};
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

int StepOrder::link_in(int op) const {
  const int p = at_[at(op)];
  return p < 0 || of(op).phase == Phase::either ? -1 : number_[at(2 * p + 1)];
}

int StepOrder::link_of(int value, int op) const {
  const int to = link_[at(value)];
  return to < 0 || (op >= 0 && op != to) ? -1 : number_[at(2 * at_[at(to)])];
}

}  // namespace tessera
