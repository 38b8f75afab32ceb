#include "plan/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fail.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

constexpr double kSmallTensor = 1.0 / 64;  ///< relative to the largest tensor

std::vector<int> axes_with(const Assignment& a, DimSet dims) {
  std::vector<int> axes;
  for (size_t i = 0; i < a.picks.size(); ++i) {
    if ((a.picks[i] & dims) != 0 && a.mesh.axes()[i].size > 1) axes.push_back(static_cast<int>(i));
  }
  return axes;
}

}  // namespace

Estimates::Estimates(const StepSummary& summary, const Machine& machine,
                     const std::string& microbatch_dim, const Passes& passes, SharedWork shared)
    : summary_(summary),
      machine_(machine),
      microbatch_dim_(summary.find(microbatch_dim)),
      passes_(passes),
      shared_(std::move(shared)) {}

/// Elements of a rank's slice of a tensor with these dims, per microbatch.
double Estimates::local(DimSet dims, const Assignment& a, int64_t microbatches) const {
  double n = 1;
  for (; dims != 0; dims &= dims - 1) {
    const int d = std::countr_zero(dims);
    int64_t slices = 1;
    for (size_t i = 0; i < a.picks.size(); ++i) {
      if (a.picks[i] >> d & 1) slices *= a.mesh.axes()[i].size;
    }
    int64_t size = summary_.sizes[d];
    if (d == microbatch_dim_) size = std::max<int64_t>(1, size / microbatches);
    n *= static_cast<double>((size + slices - 1) / slices);
  }
  return n;
}

int64_t Estimates::stages(const Assignment& a) const {
  int64_t stages = 1;
  for (size_t i = 0; i < a.picks.size(); ++i) {
    if ((a.picks[i] & summary_.stages) != 0) stages *= a.mesh.axes()[i].size;
  }
  return stages;
}

/// The least share of the layers that the fullest stage has.
double Estimates::of_stage(const Assignment& a) const { return 1 / static_cast<double>(stages(a)); }

/// How often a rank runs a piece of work in a step, or waits while other stages run it.
double Estimates::runs(const Work& w, const Assignment& a, const Microbatching& by) const {
  const bool repeats = microbatch_dim_ >= 0 && ((w.in | w.out) >> microbatch_dim_ & 1);
  const auto times = static_cast<double>(repeats ? by.microbatches : 1);
  const auto others = static_cast<double>(stages(a) - 1);
  const double idle = others > 0 ? others * schedule_row(by.schedule).least_idle : 0;
  const double filled = 1 + idle / static_cast<double>(by.microbatches * by.chunks);
  return times * (w.count - w.in_layers + w.in_layers * of_stage(a) * filled);
}

Estimates::Known& Estimates::known(const Assignment& a) const {
  if (!(known_.of == a)) known_ = {a, nullptr, {}, {}, {}, {}};
  return known_;
}

/// Seconds of each piece of work with known FLOPs on a rank, for one microbatch.
const std::vector<double>& Estimates::products(const Assignment& a, int64_t microbatches) const {
  const auto [it, is_new] = known(a).products.try_emplace(microbatches);
  for (size_t i = 0; is_new && i < summary_.work.size(); ++i) {
    const Work& w = summary_.work[i];
    double& once = it->second.emplace_back(0);
    if (w.flops <= 0) continue;
    const DimSet all = w.in | w.out;
    if (w.k != 0) {
      const auto size = [&](DimSet dims) {
        return static_cast<int64_t>(local(dims, a, microbatches));
      };
      const int64_t m = size(w.m), n = size(w.n), k = size(w.k), batch = size(w.batch);
      once = std::min(machine_.matmul_seconds(w.dtype, m, n, k, batch),
                      machine_.matmul_seconds(w.dtype, n, m, k, batch));
    } else {
      const double cut = summary_.elements(all) / local(all, a, 1);
      const bool repeats = microbatch_dim_ >= 0 && (all >> microbatch_dim_ & 1);
      once = w.flops / static_cast<double>(repeats ? microbatches : 1) /
             std::min(cut, static_cast<double>(a.mesh.size())) / w.rate;
    }
    // Ranks that compute a parameter's gradient alike may share it, if it is stored in slices.
    if (!w.of_layer) once /= static_cast<double>(alike(a, all));
  }
  return it->second;
}

/// How many ranks have the same slices of these dims.
int64_t Estimates::alike(const Assignment& a, DimSet dims) const {
  int64_t ranks = 1;
  for (size_t i = 0; i < a.picks.size(); ++i) {
    if ((a.picks[i] & (dims | summary_.stages)) == 0) ranks *= a.mesh.axes()[i].size;
  }
  return ranks;
}

double Estimates::least(const Assignment& a, const Microbatching& by) const {
  const std::vector<double>& products = this->products(a, by.microbatches);
  double seconds = shared_.seconds(a.mesh.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const Work& w = summary_.work[i];
    if (w.flops > 0) seconds += runs(w, a, by) * (machine_.launch + products[i]);
  }
  return seconds;
}

/// Without samples, the machine's rate for a product is no better for a part of it. So the whole
/// step takes no longer than several microbatches, and of these most fill the stages best.
double Estimates::least_of(const Assignment& a, const std::vector<int64_t>& microbatches,
                           const std::string& schedule, int64_t chunks) const {
  if (machine_.samples.empty()) {
    const int64_t filling = microbatches.back() * chunks;
    return least(a, {1, schedule, filling});
  }
  double least = 1e300;
  for (const int64_t m : microbatches)
    least = std::min(least, this->least(a, {m, schedule, chunks}));
  return least;
}

const Costs& Estimates::costs(const Mesh& mesh) const {
  std::string key;
  for (const MeshAxis& axis : mesh.axes()) key += fmt::format("{}@{};", axis.size, axis.link);
  return costs_.try_emplace(key, machine_, mesh).first->second;
}

double Estimates::collective(CollectiveKind kind, double bytes, const std::vector<int>& axes,
                             const Assignment& a) const {
  if (axes.empty()) return 0;
  Known& known = this->known(a);
  if (known.costs == nullptr) known.costs = &costs(a.mesh);
  return known.costs->collective(kind, bytes, axes);
}

namespace {
/// True if one axis splits both dims of a pair; the op is then computed blockwise (Op::by_slices).
bool is_together(const Assignment& a, const Work& w) {
  return std::any_of(w.together.begin(), w.together.end(), [&](DimSet pair) {
    return std::any_of(a.picks.begin(), a.picks.end(),
                       [&](DimSet pick) { return (pick & pair) == pair; });
  });
}
}  // namespace

Estimates::Activations Estimates::activations(const Assignment& a, const Microbatching& by) const {
  const auto [it, is_new] = known(a).activations.try_emplace({by.microbatches, by.chunks});
  Activations& sum = it->second;
  if (!is_new) return sum;
  const int64_t microbatches = by.microbatches;
  for (const Work& w : summary_.work) {
    if (!w.of_layer || (w.inside != 0 && axes_with(a, w.inside).empty()) || is_together(a, w))
      continue;
    // A layer's slice of a stacked tensor is where its stage is.
    const std::vector<int> partial = axes_with(a, w.reduced & ~summary_.stages);
    const double times = runs(w, a, by);
    const double bytes = local(w.out, a, microbatches) * static_cast<double>(w.item);
    const double reducing = times * collective(CollectiveKind::all_reduce, bytes, partial, a);
    sum.blocking += reducing;
    if (w.awaited) sum.exposed += reducing;
    std::vector<int> gathered;
    for (const int axis : axes_with(a, w.in & ~w.reduced & ~summary_.stages)) {
      if ((a.picks[axis] & (w.out | w.reduced)) == 0) gathered.push_back(axis);
    }
    if (gathered.empty()) continue;
    const double gathering = times * collective(CollectiveKind::all_gather, bytes, gathered, a);
    sum.blocking += gathering;
    if (w.gather_awaited) sum.exposed += gathering;
  }
  sum.blocking += handing(a, by);
  return sum;
}

/// The dims over which all gradients of parameters with these dims are sums.
DimSet Estimates::summed_in_gradient(const Kept& params) const {
  DimSet summed = 0;
  bool any = false;
  for (const Work& w : summary_.work) {
    const bool is_gradient = !w.of_layer && ((w.out ^ params.dims) & ~summary_.stages) == 0;
    if (!is_gradient || w.reduced == 0) continue;
    summed = any ? summed & w.reduced : w.reduced;
    any = true;
  }
  return summed;
}

Estimates::Parameters Estimates::parameters(const Assignment& a, const Storage& storage) const {
  const auto [it, is_new] = known(a).parameters.try_emplace(storage.axes);
  Parameters& sum = it->second;
  if (!is_new) return sum;
  std::vector<int> others;
  for (int axis = 0; axis < static_cast<int>(a.picks.size()); ++axis) {
    const bool stores =
        std::find(storage.axes.begin(), storage.axes.end(), axis) != storage.axes.end();
    const bool makes_stages = (a.picks[axis] & summary_.stages) != 0;
    if (!stores && !makes_stages && a.picks[axis] != 0 && a.mesh.axes()[axis].size > 1 &&
        copies(a, axis) > 0.5)
      others.push_back(axis);
  }
  // Small tensors are free: they share a bucket with larger ones.
  double most = 0;
  for (const Kept& kept : summary_.params) most = std::max(most, kept.bytes / kept.count);
  for (const Kept& kept : summary_.params) {
    if (kept.bytes / kept.count < most * kSmallTensor) continue;
    const double sent = kept.sent / kept.bytes / kept.count;
    const double widened = 4 * summary_.elements(kept.dims) / kept.bytes;
    const double summed_bytes = passes_.wide ? std::max(sent, widened) : sent;
    const double count = kept.count * share(kept, a);
    const double whole = sum_of_bytes({kept}, a, {}, 1) / share(kept, a),
                 sliced = sum_of_bytes({kept}, a, storage, 1) / share(kept, a);
    // Axes that split the tensor anyway store nothing more of it, and its gradient is whole there.
    const auto of_tensor = [&](const std::vector<int>& axes, DimSet among) {
      std::vector<int> left;
      for (const int axis : axes) {
        const DimSet pick = a.picks[static_cast<size_t>(axis)];
        if ((pick & kept.dims) == 0 && (among == 0 || (pick & among) != 0)) left.push_back(axis);
      }
      return left;
    };
    const DimSet summed = summed_in_gradient(kept);
    const auto seconds = [&](CollectiveKind kind, double n, const std::vector<int>& axes) {
      return count * collective(kind, n, axes, a);
    };
    const std::vector<int> stored = of_tensor(storage.axes, 0);
    sum.gather += seconds(CollectiveKind::all_gather, sent * whole, stored);
    const double scatter = seconds(CollectiveKind::reduce_scatter, summed_bytes * whole, stored);
    sum.scatter += scatter;
    sum.reduce += seconds(CollectiveKind::all_reduce, summed_bytes * sliced, of_tensor(others, 0));
    if (summed == 0) continue;
    if (of_tensor(storage.axes, summed) == stored) sum.scatter_partial += scatter;
    sum.reduce_partial +=
        seconds(CollectiveKind::all_reduce, summed_bytes * sliced, of_tensor(others, summed));
  }
  return sum;
}

Estimates::Communication Estimates::communication(const Assignment& a, const Storage& storage,
                                                  const Microbatching& by) const {
  const Activations held = activations(a, by);
  Communication sum;
  sum.blocking = held.blocking;
  sum.exposed = held.exposed;
  const Parameters of = parameters(a, storage);
  // Below ZeRO 3, parameters are gathered once, after the update, else for each microbatch.
  const double times = storage.stage == 3 ? static_cast<double>(by.microbatches) : 1;
  sum.lower_bound = std::max(times * of.gather + of.scatter_partial, of.reduce_partial);
  const double gathers = storage.stage == 3 ? passes_.gathers * times : 1;
  const double sums = by.each ? static_cast<double>(by.microbatches) : 1;
  const bool is_after = by.microbatches > 1 && !by.each;
  (is_after ? sum.after : sum.overlappable) = sums * (of.reduce + of.scatter);
  sum.overlappable += gathers * of.gather;
  return sum;
}

/// The share of these tensors that a stage has.
double Estimates::share(const Kept& kept, const Assignment& a) const {
  const double in_layers =
      (kept.dims & summary_.stages) != 0 ? 1 : kept.in_layers / std::max(kept.bytes, 1.0);
  return 1 - in_layers * (1 - of_stage(a));
}

/// Seconds in which stages hand microbatches over, and the last one hands them to all.
double Estimates::handing(const Assignment& a, const Microbatching& by) const {
  const std::vector<int> axes = axes_with(a, summary_.stages);
  if (axes.empty()) return 0;
  const int64_t microbatches = by.microbatches;
  const auto others = static_cast<double>(stages(a) - 1),
             times = static_cast<double>(microbatches * by.chunks);
  double seconds = 0;
  for (const Kept& kept : summary_.handed) {
    const double whole = summary_.elements(kept.dims);
    const double part = kept.bytes * local(kept.dims, a, microbatches) / whole;
    seconds += (times + static_cast<double>(microbatches) + others) *
               collective(CollectiveKind::exchange, part, axes, a);
  }
  return seconds;
}

std::vector<int64_t> Estimates::cuts(const Assignment& a) const {
  std::vector<int64_t> cuts(summary_.dims.size(), 1);
  for (size_t d = 0; d < cuts.size(); ++d) {
    bool by_stages = false;
    for (size_t i = 0; i < a.picks.size(); ++i) {
      if ((a.picks[i] >> d & 1) == 0) continue;
      cuts[d] *= a.mesh.axes()[i].size;
      by_stages = by_stages || (a.picks[i] & summary_.stages) != 0;
    }
    if (by_stages) cuts[d] = -cuts[d];
  }
  return cuts;
}

/// Bytes on a rank. A storage axis shards a tensor further unless it already splits one of its
/// dims.
double Estimates::bytes(const std::vector<Kept>& all, const Assignment& a, const Storage& storage,
                        int64_t microbatches) const {
  const auto [it, is_new] =
      known(a).bytes.try_emplace({all.data(), storage.axes, microbatches}, 0.0);
  if (is_new) it->second = sum_of_bytes(all, a, storage, microbatches);
  return it->second;
}

double Estimates::sum_of_bytes(const std::vector<Kept>& all, const Assignment& a,
                               const Storage& storage, int64_t microbatches) const {
  double sum = 0;
  for (const Kept& kept : all) {
    double more = 1;
    for (const int axis : storage.axes) {
      if ((a.picks[axis] & kept.dims) == 0) more *= a.mesh.axes()[axis].size;
    }
    const double whole = summary_.elements(kept.dims);
    const bool by_dim = (kept.dims & summary_.stages) != 0;
    const double stored = kept.bytes * (by_dim ? 1 : share(kept, a));
    sum += stored * local(kept.dims, a, microbatches) / whole / std::min(more, whole);
  }
  return sum;
}

MemoryEstimate Estimates::memory(const Assignment& a, const Storage& storage,
                                 const Microbatching& by) const {
  const int64_t microbatches = by.microbatches;
  const Storage none;
  MemoryEstimate m;
  m.stored = bytes(summary_.params, a, storage.stage >= 3 ? storage : none, 1);
  if (!passes_.offloads)
    m.stored += bytes(summary_.state, a, storage.stage >= 1 ? storage : none, 1);
  double kept = bytes(summary_.kept, a, none, microbatches);
  if (const int64_t depth = stages(a); depth > 1) {  // a place for each microbatch under way
    kept *= schedule_row(by.schedule)
                .kept(static_cast<double>(depth), static_cast<double>(microbatches),
                      static_cast<double>(by.chunks));
  }
  if (microbatches > 1) {  // gradient accumulation: the sums are whole unless reduced each time
    const Storage& sums = by.each && storage.stage >= 1 ? storage : none;
    m.transient = passes_.gradients * bytes(summary_.params, a, sums, 1) + kept;
    // Parameters are stored without chunks, and brought to the stages that use them.
    if (by.chunks > 1) m.transient += bytes(summary_.params, a, none, 1);
  } else {
    m.transient = std::max(bytes(summary_.params, a, storage.stage >= 2 ? storage : none, 1), kept);
  }
  return m;
}

double Estimates::copies(const Assignment& a, int axis) const {
  double whole = 0, all = 0;
  for (const Kept& kept : summary_.params) {
    all += kept.bytes;
    const bool makes_stages = (a.picks[axis] & summary_.stages) != 0;
    if ((kept.dims & a.picks[axis]) == 0) whole += kept.bytes - (makes_stages ? kept.in_layers : 0);
  }
  return all > 0 ? whole / all : 0;
}

}  // namespace tessera
