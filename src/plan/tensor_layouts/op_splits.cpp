// A graph with one op is lowered once for each way to give the mesh axes to the op's factors, by
// layout rules that say so. What the partitioner moves behind the op is not counted: the result
// stays as computed, perhaps partial. So whatever lowering does inside an op (halo exchanges,
// masks, the body of a composite) is in its price.
//
// An op that is linear in some operands can also hand partial values on. The slices are then those
// of the axes that remain, so the price is that of the same way without these axes.
#include "plan/tensor_layouts/op_splits.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "ir/body.h"
#include "lower/layout/memo_key.h"
#include "lower/lowered_alone.h"

namespace tessera {

struct OpSplits::Site {
  const Op& op;
  const Attrs& attrs;
  const CallTypes& types;
  const std::vector<int>& operands;  ///< per operand: which distinct value it is
  const std::vector<char>& made;     ///< per result: true if something reads it
};

namespace {

/// What is in both.
LeastTimes least_of(const LeastTimes& a, const LeastTimes& b) {
  LeastTimes least{.kernels = std::min(a.kernels, b.kernels), .chain = std::min(a.chain, b.chain)};
  for (const auto& [lane, seconds] : a.sent) {
    for (const auto& [other, others] : b.sent) {
      if (other == lane) least.add(lane, std::min(seconds, others));
    }
  }
  return least;
}

}  // namespace

OpSplits::OpSplits(const Costs& costs, std::set<const Op*> kernels)
    : costs_(costs), kernels_(std::move(kernels)) {}

std::vector<OpSplits::Names> OpSplits::splittable(const OpCall& call, size_t& alone) const {
  const IndexSpace space = index_space(call);
  std::vector<Names> of_factor(space.factors.size());
  const auto look = [&](const std::vector<std::vector<std::vector<int>>>& operands,
                        const std::vector<ValueType>& types) {
    for (size_t i = 0; i < operands.size(); ++i) {
      for (size_t d = 0; d < operands[i].size(); ++d) {
        if (operands[i][d].empty()) continue;
        const auto f = static_cast<size_t>(operands[i][d][0]);
        const std::string& name = types[i].shape[static_cast<int>(d)].name;
        if (space.factors[f].role == Role::whole && !call.op.sharded_body) continue;
        if (std::find(of_factor[f].begin(), of_factor[f].end(), name) == of_factor[f].end())
          of_factor[f].push_back(name);
      }
    }
  };
  look(space.in, call.in);
  look(space.out, call.out);
  std::vector<Names> all;
  const auto add = [&](Names names) {
    std::sort(names.begin(), names.end());
    if (!names.empty() && std::find(all.begin(), all.end(), names) == all.end())
      all.push_back(std::move(names));
  };
  for (const Names& names : of_factor) add(names);
  alone = all.size();
  if (!may_be_sharded(call.op)) return all;
  for (size_t f = 0; f < space.factors.size(); ++f) {  // blockwise: a dim of each of two operands
    if (!is_inside(space.factors[f].role)) continue;
    for (size_t g = 0; g < space.factors.size(); ++g) {
      if (g == f || of_factor[f].empty() || of_factor[g].empty()) continue;
      const bool meets =
          call.in[0].shape.has(of_factor[g][0]) && !call.in[0].shape.has(of_factor[f][0]);
      if (!meets || !can_be_sharded(call, of_factor[f][0], of_factor[g][0], 2)) continue;
      Names both = of_factor[f];
      both.insert(both.end(), of_factor[g].begin(), of_factor[g].end());
      add(std::move(both));
    }
  }
  return all;
}

const std::vector<OpSplit>& OpSplits::of(const FlatOps& all, const FlatOp& op) {
  CallTypes types;
  std::vector<int> operands;
  std::vector<char> made;
  for (const int v : op.in) {
    const FlatValue& value = all.values[static_cast<size_t>(v)];
    types.in.push_back({value.shape, value.dtype});
    operands.push_back(static_cast<int>(std::find(op.in.begin(), op.in.end(), v) - op.in.begin()));
  }
  for (const int v : op.out) {
    const FlatValue& value = all.values[static_cast<size_t>(v)];
    types.out.push_back({value.shape, value.dtype});
    made.push_back(op.out.size() == 1 || !value.readers.empty());
  }
  const MemoKey key =
      MemoKey().add(op.op).add(types.in).add(types.out).add(op.attrs).add(operands).add(made);
  auto it = known_.find(key.text());
  if (it == known_.end())
    it = known_.emplace(key.text(), ways({*op.op, op.attrs, types, operands, made})).first;
  return it->second;
}

std::vector<OpSplit> OpSplits::ways(const Site& site) {
  const OpCall call{site.op, site.types.in, site.types.out, site.attrs};
  size_t alone = 0;
  const std::vector<Names> splittable = this->splittable(call, alone);
  // What an axis does: 0 nothing; then a group of dims; then a set of operands that stay partial.
  std::vector<uint32_t> linear;
  int64_t most = 0;
  for (const ValueType& out : site.types.out) most = std::max(most, out.shape.elements());
  for (uint32_t set : site.op.linear) {
    if (set == 0 || site.op.body || site.types.out.size() != 1) continue;
    for (size_t i = 0; i < site.types.in.size(); ++i) {
      const bool grows = site.types.in[i].shape.elements() < most;
      if ((set >> i & 1) && grows) set = 0;
    }
    if (set != 0) linear.push_back(set);
  }
  if (site.op.converts && site.types.in.size() == 1 &&
      size_of(site.types.in[0].dtype) < size_of(site.types.out[0].dtype))
    linear.push_back(1);
  std::vector<int> axes;
  for (int a = 0; a < costs_.mesh().rank(); ++a) {
    if (costs_.mesh().axes()[static_cast<size_t>(a)].size > 1) axes.push_back(a);
  }
  std::vector<OpSplit> ways;
  std::vector<size_t> pick(axes.size(), 0);
  const size_t groups = splittable.size() + 1, choices = groups + linear.size();
  while (true) {
    std::vector<Names> of_axes(static_cast<size_t>(costs_.mesh().rank()));
    std::vector<int> partial;
    uint32_t set = 0;
    bool fits = true;
    for (size_t k = 0; k < axes.size(); ++k) {
      if (pick[k] >= groups) {
        const uint32_t own = linear[pick[k] - groups];
        fits = fits && (set == 0 || set == own);
        set = own;
        partial.push_back(axes[k]);
      } else if (pick[k] > 0) {
        const bool in_blocks = pick[k] > alone;
        fits = fits && (!in_blocks ||
                        costs_.mesh().axes()[static_cast<size_t>(axes[k])].size <= kMostSlices);
        of_axes[static_cast<size_t>(axes[k])] = splittable[pick[k] - 1];
      }
    }
    if (fits) add(site, of_axes, partial, set, ways);
    size_t k = axes.size();
    while (k > 0 && ++pick[k - 1] == choices) pick[--k] = 0;
    if (k == 0) break;
  }
  TESSERA_CHECK(!ways.empty(), "[{}] has no way to be computed", site.op.name);
  return ways;
}

void OpSplits::add(const Site& site, const std::vector<Names>& of_axes,
                   const std::vector<int>& partial, uint32_t linear, std::vector<OpSplit>& ways) {
  std::map<std::string, std::string> of_dim;
  std::map<std::string, int64_t> slices;
  for (size_t a = 0; a < of_axes.size(); ++a) {
    for (const std::string& name : of_axes[a]) {
      slices.emplace(name, 1).first->second *= costs_.mesh().axes()[a].size;
      std::string& list = of_dim[name];
      list += (list.empty() ? "" : "+") + costs_.mesh().axes()[a].name;
    }
  }
  for (const auto* types : {&site.types.in, &site.types.out}) {
    for (const ValueType& type : *types) {
      for (const Dim& dim : type.shape) {
        const auto of = slices.find(dim.name);
        if (of != slices.end() && of->second > dim.size) return;  // some ranks would have nothing
      }
    }
  }
  std::string rules;
  for (const auto& [name, list] : of_dim)
    rules += fmt::format("{}{}:{}", rules.empty() ? "" : ";", name, list);
  OpSplit split;
  if (!price(site, rules, split)) return;
  for (size_t i = 0; i < split.in.size() && !partial.empty(); ++i) {
    if (!(linear >> i & 1)) continue;
    if (!split.in[i].partial.empty()) return;
    split.in[i].partial = partial;
  }
  for (TensorLayout& out : split.out) {
    if (partial.empty()) break;
    if (!out.partial.empty() && out.combiner != Combiner::sum) return;
    out.partial.insert(out.partial.end(), partial.begin(), partial.end());
    std::sort(out.partial.begin(), out.partial.end());
  }
  const auto like = std::find_if(ways.begin(), ways.end(), [&](const OpSplit& other) {
    return other.in == split.in && other.out == split.out;
  });
  if (like == ways.end()) {
    ways.push_back(std::move(split));
  } else {
    like->seconds = std::min(like->seconds, split.seconds);
    like->least = least_of(like->least, split.least);
  }
}

bool OpSplits::price(const Site& site, const std::string& rules, OpSplit& split) {
  Graph graph;
  std::vector<Tensor> in;
  for (size_t i = 0; i < site.types.in.size(); ++i) {
    const auto first = static_cast<size_t>(site.operands[i]);
    in.push_back(first < i ? in[first]
                           : graph.input(fmt::format("in{}", i), site.types.in[i].shape,
                                         site.types.in[i].dtype));
  }
  const std::vector<Tensor> out = graph.add(site.op, in, site.attrs, Loc::current());
  FunctionSpec spec{"op", {}, false};
  for (size_t i = 0; i < out.size(); ++i) {
    if (site.made[i]) spec.outputs.push_back(out[i]);
  }
  LoweredAlone alone;
  try {
    alone = lowered_alone(graph, spec, costs_.mesh(), Layout::parse(rules), kernels_);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return false;  // two dims of one tensor on one axis
  }
  size_t inputs = 0, made = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const auto first = static_cast<size_t>(site.operands[i]);
    split.in.push_back(first < i ? split.in[first] : alone.inputs[inputs++]);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    TensorLayout whole;
    whole.dims.resize(static_cast<size_t>(out[i].shape().rank()));
    split.out.push_back(site.made[i] ? alone.outputs[made++] : std::move(whole));
  }
  split.seconds = step_sum(alone.program.functions[0], costs_);
  split.least = least_times(alone.program.functions[0], costs_);
  return true;
}

}  // namespace tessera
