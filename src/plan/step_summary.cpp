#include "plan/step_summary.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>

#include "cost/cost.h"
#include "ir/body.h"
#include "ir/loop.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "plan/exposed_reductions.h"
#include "tessera/op.h"

namespace tessera {

namespace {

constexpr size_t kMostDims = 60;

double fastest_rate(const Machine& machine) {
  double rate = 0;
  for (const MatmulRate& p : machine.matmuls) rate = std::max(rate, p.flops);
  for (const MatmulSample& s : machine.samples) {
    const double flops =
        2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    if (s.seconds > 0) rate = std::max(rate, flops / s.seconds);
  }
  for (const KernelRate& k : machine.kernels) {
    if (!counts_instructions(k)) rate = std::max(rate, k.flops);
  }
  return rate > 0 ? rate : 1e30;
}

/// The loops whose iterations a rule can deal to stages: those of repeated layers, and of their
/// gradients.
std::set<int> loops_over_layers(const Graph& graph) {
  std::set<std::string> counted;
  for (const Stored& s : graph.stored()) {
    for (int d = 0; d < s.layers; ++d) counted.insert(graph.value(s.value).shape[d].name);
  }
  std::set<int> loops;
  for (size_t l = 0; l < loops_of(graph).size(); ++l) {
    const Loop& loop = loops_of(graph)[l];
    if (loop.condition < 0 && !loop.carries.empty() && counted.contains(loop.over.name))
      loops.insert(static_cast<int>(l));
  }
  return loops;
}

class Reader {
 public:
  /// in_layers: the share of what is outside of loops over layers that counts as inside, relative
  /// to `factor`.
  Reader(StepSummary& to, const SummarizedGraph& from, double factor, double in_layers,
         const Machine& machine)
      : to_(to),
        graph_(from.graph),
        factor_(factor),
        in_layers_(in_layers),
        over_layers_(loops_over_layers(from.graph)),
        machine_(machine),
        fastest_(fastest_rate(machine)) {
    std::vector<int> roots;
    for (const FunctionSpec& f : from.functions) {
      const std::vector<int> more = roots_of(graph_, f);
      roots.insert(roots.end(), more.begin(), more.end());
    }
    needed_ = needed_nodes(graph_, roots);
    for (const Value& value : graph_.values()) set_of(value.shape);
    for (size_t n = graph_.nodes().size(); n-- > 0;) {
      const Node& node = graph_.nodes()[n];
      if (!needed_[n] || (!node.op->converts && node.op != &kLoop)) continue;
      for (size_t i = 0; i < node.in.size(); ++i) {
        if (is_gradient(graph_, node.out[i])) becomes_gradient_.insert(node.in[i]);
      }
    }
  }

  void read() {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (needed_[n]) read_node(graph_.nodes()[n]);
    }
    for (const Stored& s : graph_.stored()) {
      const Value& value = graph_.value(s.value);
      double count = 1;
      for (int d = 0; d < s.layers; ++d) count *= static_cast<double>(value.shape[d].size);
      const bool is_param = s.purpose == Purpose::params;
      Kept& kept =
          add(is_param ? to_.params : to_.state, set_of(value.shape), bytes_of(value), count);
      if (is_param)
        kept.sent += factor_ * bytes_of(value) * travels(s.value) / size_of(value.dtype);
    }
    read_kept();
  }

 private:
  DimSet set_of(const Shape& shape) {
    DimSet set = 0;
    for (const Dim& dim : shape) {
      int d = to_.find(dim.name);
      if (d < 0 && to_.dims.size() == kMostDims) continue;
      if (d < 0) {
        d = static_cast<int>(to_.dims.size());
        to_.dims.push_back(dim.name);
        to_.sizes.push_back(1);
        to_.conflicts.push_back(0);
      }
      to_.sizes[d] = std::max(to_.sizes[d], dim.size);
      set |= DimSet{1} << d;
    }
    return set;
  }

  static double bytes_of(const Value& v) {
    return static_cast<double>(v.shape.elements() * size_of(v.dtype));
  }

  /// Bytes per element of a stored tensor when it is gathered. If only casts to a narrower dtype
  /// read it, it is cast before it is gathered.
  double travels(int value) const {
    double most = 0;
    for (const Node& node : graph_.nodes()) {
      if (std::find(node.in.begin(), node.in.end(), value) == node.in.end()) continue;
      const Value& out = graph_.value(node.out[0]);
      if (node.op == &kLoopSlice) {
        most = std::max(most, travels(node.out[0]));
      } else if (out.purpose == Purpose::none && node.op != &kLoop) {
        const int64_t own = size_of(graph_.value(value).dtype);
        const int64_t read = node.op->converts ? std::min<int64_t>(own, size_of(out.dtype)) : own;
        most = std::max(most, static_cast<double>(read));
      }
    }
    return most;
  }

  Kept& add(std::vector<Kept>& to, DimSet dims, double bytes, double count = 1) {
    auto at = std::find_if(to.begin(), to.end(), [&](const Kept& k) { return k.dims == dims; });
    if (at == to.end()) at = to.insert(at, {dims});
    at->bytes += factor_ * bytes;
    at->count += factor_ * count;
    at->in_layers += in_layers_ * bytes;
    return *at;
  }

  /// The product of the iterations of all loops around a node.
  double iterations(const Node& node) const {
    double iterations = 1;
    for (int l = node.loop; l >= 0; l = loops_of(graph_)[l].parent)
      iterations *= static_cast<double>(loops_of(graph_)[l].over.size);
    return iterations;
  }

  bool is_in_layers(const Node& node) const {
    for (int l = node.loop; l >= 0; l = loops_of(graph_)[l].parent) {
      if (over_layers_.contains(l)) return true;
    }
    return false;
  }

  void add_conflicts(const Value& value, const std::vector<DimSet>& together = {}) {
    const DimSet mine = set_of(value.shape);
    DimSet preferred = 0;
    for (const std::string& name : value.prefer) {
      if (to_.find(name) >= 0) preferred |= DimSet{1} << to_.find(name);
    }
    for (DimSet rest = mine & ~preferred; rest != 0; rest &= rest - 1) {
      const DimSet one = rest & -rest;
      DimSet others = mine & ~one & ~preferred;
      for (const DimSet pair : together) {
        if (pair & one) others &= ~pair;
      }
      to_.conflicts[std::countr_zero(rest)] |= others;
    }
  }

  /// Pairs of dims that one axis may split, because the op is then computed blockwise.
  std::vector<DimSet> cut_together(const OpCall& call, const IndexSpace& space) {
    std::vector<DimSet> pairs;
    if (!may_be_sharded(call.op)) return pairs;
    for (size_t i = 1; i < call.in.size(); ++i) {
      for (const Factor& f : space.factors) {
        if (!is_inside(f.role) || !call.in[i].shape.has(f.name) || call.in[0].shape.has(f.name))
          continue;
        for (const Dim& like : call.in[0].shape) {
          if (call.in[i].shape.has(like.name) || !can_be_sharded(call, f.name, like.name, 2))
            continue;
          pairs.push_back(set_of(Shape({like})) | set_of(Shape({Dim(f.name, f.size)})));
        }
      }
    }
    return pairs;
  }

  /// A composite may be expanded: reads the communication inside its body, and which dims share a
  /// tensor there.
  void read_body(const OpCall& call, const IndexSpace& space, const Work& whole) {
    if (call.op.body == nullptr) return;
    DimSet inside = whole.inside;
    std::vector<DimSet> together = whole.together;
    for (const DimSet pair : cut_together(call, space)) {
      together.push_back(pair);
      const auto end = to_.together.end();
      if (std::find(to_.together.begin(), end, pair) == end) to_.together.push_back(pair);
    }
    for (const Factor& f : space.factors) {
      if (is_inside(f.role) && to_.find(f.name) >= 0) inside |= DimSet{1} << to_.find(f.name);
    }
    const Body body = body_of(call);
    for (const Value& value : body.graph.values()) add_conflicts(value, together);
    const std::vector<char> all(body.graph.nodes().size(), 1);
    for (const Node& node : body.graph.nodes()) {
      if (!node.in.empty())
        read_call(body.graph, all, node, inside, together, {whole.count, whole.in_layers});
    }
  }

  void read_node(const Node& node) {
    for (const int v : node.out) add_conflicts(graph_.value(v));
    if (node.in.empty() || node.op == &kLoop) return;
    const double times = iterations(node);
    read_call(graph_, needed_, node, 0, {},
              {factor_ * times, (is_in_layers(node) ? factor_ : in_layers_) * times});
  }

  struct Count {
    double all = 0, in_layers = 0;
  };

  void read_call(const Graph& graph, const std::vector<char>& needed, const Node& node,
                 DimSet inside, const std::vector<DimSet>& together, Count count) {
    const CallTypes types = call_types(graph, node);
    const OpCall call{*node.op, types.in, types.out, node.attrs};
    if (types.out.empty()) return;
    Work w;
    for (const ValueType& in : types.in) w.in |= set_of(in.shape);
    for (const ValueType& out : types.out) w.out |= set_of(out.shape);
    w.dtype = to_string(types.in[0].dtype);
    w.item = size_of(types.out[0].dtype);
    w.inside = inside;
    w.together = together;
    if (w.in == w.out && !node.op->flops && !node.op->body) return;  // pointwise
    const IndexSpace space = index_space(graph, node);
    for (const Factor& f : space.factors) {
      if (f.role == Role::reduce && to_.find(f.name) >= 0)
        w.reduced |= DimSet{1} << to_.find(f.name);
    }
    if (node.op->flops && inside == 0) add_flops(w, call);
    w.of_layer = !is_gradient(graph, node.out[0]);
    const int number = graph.value(node.out[0]).node;
    const bool follows = !node.op->flops && follows_operand(graph, needed, number);
    const bool awaited = (w.reduced != 0 || follows) && is_awaited(graph, needed, number);
    w.awaited = awaited && w.reduced != 0;
    w.gather_awaited = awaited && follows;
    w.count = count.all;
    w.in_layers = count.in_layers;
    add_work(w);
    read_body(call, space, w);
  }

  /// True for the gradient of a parameter, or a value that casts or loops turn into one.
  bool is_gradient(const Graph& graph, int value) const {
    if (graph.value(value).purpose == Purpose::grads) return true;
    return &graph == &graph_ && becomes_gradient_.contains(value);
  }

  void add_flops(Work& w, const OpCall& call) {
    const bool is_causal = call.attrs.get<int64_t>("causal", 0) != 0;
    w.flops = static_cast<double>(call.op.flops(call)) / (is_causal ? 2 : 1);
    w.rate = machine_.kernel(std::string(call.op.name), w.dtype).flops;
    if (w.rate <= 0) w.rate = fastest_;
    // A matmul has two operands and 2 FLOPs per index of their joint dims.
    if (call.in.size() != 2 ||
        call.op.flops(call) != 2 * call.in[0].shape.united(call.in[1].shape).elements())
      return;
    const DimSet a = set_of(call.in[0].shape), b = set_of(call.in[1].shape);
    w.batch = a & b & w.out;
    w.m = a & w.out & ~b;
    w.n = b & w.out & ~a;
    w.k = w.in & ~w.out;
  }

  void add_work(const Work& w) {
    const auto key = [](const Work& x) {
      return std::tie(x.in, x.out, x.reduced, x.inside, x.together, x.m, x.n, x.k, x.dtype, x.item,
                      x.of_layer, x.awaited, x.gather_awaited, x.flops);
    };
    for (Work& x : to_.work) {
      if (key(x) != key(w)) continue;
      x.count += w.count;
      x.in_layers += w.in_layers;
      return;
    }
    to_.work.push_back(w);
  }

  /// Values that are kept from forward to backward: those alive at the node with most live bytes.
  /// Nodes in loops do not count.
  void read_kept() {
    std::vector<size_t> last(graph_.values().size(), 0);
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (!needed_[n]) continue;
      for (const int v : graph_.nodes()[n].in) last[v] = n;
    }
    const auto is_kept = [&](size_t n) {
      const Node& node = graph_.nodes()[n];
      return needed_[n] && node.loop < 0 && !node.in.empty();
    };
    std::map<size_t, std::vector<int>> ends;
    double now = 0, most = -1;
    size_t peak = 0;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (is_kept(n)) {
        for (const int v : graph_.nodes()[n].out) {
          if (last[v] <= n) continue;
          now += bytes_of(graph_.value(v));
          ends[last[v]].push_back(v);
        }
        if (now > most) most = now, peak = n;
      }
      for (const int v : ends[n]) now -= bytes_of(graph_.value(v));
      ends.erase(n);
    }
    for (size_t n = 0; n <= peak && n < graph_.nodes().size(); ++n) {
      if (!is_kept(n)) continue;
      for (const int v : graph_.nodes()[n].out) {
        if (last[v] > peak) add(to_.kept, set_of(graph_.value(v).shape), bytes_of(graph_.value(v)));
      }
    }
  }

  StepSummary& to_;
  const Graph& graph_;
  double factor_, in_layers_;
  std::set<int> over_layers_;
  const Machine& machine_;
  double fastest_;
  std::vector<char> needed_;
  std::set<int> becomes_gradient_;
};

}  // namespace

int StepSummary::find(const std::string& dim) const {
  const auto at = std::find(dims.begin(), dims.end(), dim);
  return at == dims.end() ? -1 : static_cast<int>(at - dims.begin());
}

double StepSummary::elements(DimSet set) const {
  double n = 1;
  for (; set != 0; set &= set - 1) n *= static_cast<double>(sizes[std::countr_zero(set)]);
  return n;
}

StepSummary summarize_step(const SummarizedGraph& one, const SummarizedGraph& two, int64_t layers,
                           const Machine& machine) {
  StepSummary summary;
  const double more = static_cast<double>(layers - 1);
  const bool same = &one.graph == &two.graph;
  const double all = same ? 0 : static_cast<double>(layers);
  Reader(summary, one, same ? 1 : 1 - more, -all, machine).read();
  if (!same) Reader(summary, two, more, all, machine).read();
  std::erase_if(summary.work, [](const Work& w) { return w.count < 0.5; });
  return summary;
}

void add_stages(const Graph& looped, StepSummary& summary) {
  const std::set<int> layers = loops_over_layers(looped);
  const auto number = [&](const Dim& dim) {
    int d = summary.find(dim.name);
    if (d < 0 && summary.dims.size() < kMostDims) {
      d = static_cast<int>(summary.dims.size());
      summary.dims.push_back(dim.name);
      summary.sizes.push_back(dim.size);
      summary.conflicts.push_back(0);
    }
    return d;
  };
  const auto set_of = [&](const Shape& shape) {
    DimSet set = 0;
    for (const Dim& dim : shape) {
      if (summary.find(dim.name) >= 0) set |= DimSet{1} << summary.find(dim.name);
    }
    return set;
  };
  for (const int l : layers) {
    const int d = number(loops_of(looped)[l].over);
    if (d >= 0) summary.stages |= DimSet{1} << d;
  }
  // Within its layers a stage's axis is free.
  for (const int l : layers) {
    const Loop& loop = loops_of(looped)[l];
    const int d = summary.find(loop.over.name);
    if (d < 0) continue;
    DimSet inside = 0;
    for (const Node& node : looped.nodes()) {
      bool is_inside = false;
      for (int at = node.loop; at >= 0; at = loops_of(looped)[at].parent) is_inside |= at == l;
      if (!is_inside) continue;
      for (const int v : node.out) inside |= set_of(looped.value(v).shape);
      if (node.op == &kLoopSlice) continue;
      for (const int v : node.in) inside |= set_of(looped.value(v).shape);
    }
    inside &= ~summary.stages;
    summary.conflicts[d] |= inside;
    for (DimSet rest = inside; rest != 0; rest &= rest - 1)
      summary.conflicts[std::countr_zero(rest)] |= DimSet{1} << d;
    for (const int v : loop.carries) {
      const Value& value = looped.value(v);
      const auto bytes = static_cast<double>(value.shape.elements() * size_of(value.dtype));
      summary.handed.push_back({set_of(value.shape), bytes, 1});
    }
  }
}

}  // namespace tessera
