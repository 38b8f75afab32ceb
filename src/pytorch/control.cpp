// Ops whose arguments are graphs: torch.cond, scan, and what wraps a graph.
#include "base/fail.h"
#include "pytorch/import.h"
#include "tessera/loops.h"

namespace tessera::pytorch {

std::vector<Value> Import::walk_inner(const Nodes& graph, const std::vector<Value>& operands) {
  std::map<std::string, Value> outer;
  const auto outer_views = std::exchange(views_, {});
  const auto outer_stale = std::exchange(stale_, {});
  outer.swap(values_);
  for (size_t i = 0; i < operands.size(); ++i) values_[graph.inputs[i]] = operands[i];
  ++inlined_;  // its constants are computed where it is
  walk(graph);
  --inlined_;
  std::vector<Value> results;
  for (const std::string& output : graph.outputs) results.push_back(value(output));
  outer.swap(values_);
  views_ = outer_views, stale_ = outer_stale;
  return results;
}

std::vector<Value> Import::run_graphs(Call& call) {
  std::vector<std::shared_ptr<const Nodes>> graphs;
  std::vector<Value> operands;
  std::vector<std::vector<Value>> lists;
  bool gradients = true;
  for (const auto& [name, arg] : call.node().args) {
    if (const auto* g = std::get_if<std::shared_ptr<const Nodes>>(&arg)) {
      graphs.push_back(*g);
    } else if (const auto* t = std::get_if<TensorName>(&arg)) {
      operands.push_back(value(t->name));
    } else if (const auto* all = std::get_if<std::vector<TensorName>>(&arg)) {
      lists.emplace_back();
      for (const TensorName& t : *all) lists.back().push_back(value(t.name));
    } else if (const auto* enabled = std::get_if<bool>(&arg);
               enabled && call.node().target.ends_with("set_grad_enabled")) {
      gradients = *enabled;
    }
  }
  const std::string& op = call.node().target;
  const auto fits = [&](size_t count) {
    for (const auto& graph : graphs)
      if (graph->inputs.size() != count)
        call.refuse("has no graph for its operands: Tessera does not know this op");
  };
  size_t listed = 0;
  for (const auto& list : lists) listed += list.size();
  if (op == "higher_order.cond" && graphs.size() == 2 && operands.size() == 1 &&
      lists.size() <= 1) {
    fits(listed);
    return run_branches(call, operands[0], *graphs[0], *graphs[1],
                        lists.empty() ? std::vector<Value>() : lists[0]);
  }
  if (op == "higher_order.scan" && graphs.size() == 1 && lists.size() >= 2) {
    fits(listed);
    return run_scan(call, *graphs[0], lists);
  }
  if (op == "higher_order.while_loop")
    call.refuse(
        "repeats as often as the data say, and Tessera plans a loop for a number of rounds: write "
        "it as scan() over that many, with torch.where() for those that do not count");
  if (graphs.size() != 1) call.refuse("has several graphs: Tessera does not know this op");
  fits(operands.size());
  std::vector<Value> results = walk_inner(*graphs[0], operands);
  for (Value& result : results)
    if (graph_ && !gradients && is_floating(result.dtype))
      result.tensor = stop_gradient(result.tensor);
  return results;
}

std::vector<Value> Import::run_branches(Call& call, const Value& predicate, const Nodes& then,
                                        const Nodes& otherwise,
                                        const std::vector<Value>& operands) {
  std::vector<Value> results;
  if (!graph_) {
    results = walk_inner(then, operands);
    const std::vector<Value> others = walk_inner(otherwise, operands);
    if (others.size() != results.size()) call.refuse("has branches with other results");
    for (size_t i = 0; i < results.size(); ++i)
      for (size_t a = 0; a < results[i].axes.size(); ++a)
        if (!results[i].axes[a].empty()) call.unify(results[i].axes[a], others[i].axes[a]);
    return results;
  }
  const auto branch = [&](const Nodes& nodes) {
    return [&, this] {
      std::vector<Tensor> tensors;
      const std::vector<Value> made = walk_inner(nodes, operands);
      results.resize(made.size());
      for (size_t i = 0; i < made.size(); ++i) {
        if (results[i].axes.empty()) {
          results[i] = made[i];
          results[i].axes = call.distinct(made[i].axes);
        }
        tensors.push_back(call.full(made[i], results[i].axes));
      }
      return tensors;
    };
  };
  const std::vector<Tensor> made = cond(predicate.tensor, branch(then), branch(otherwise));
  for (size_t i = 0; i < made.size(); ++i) results[i].tensor = made[i], results[i].array = nullptr;
  return results;
}

/// Operands: what is carried, what is cut along axis 0, and what all rounds read.
std::vector<Value> Import::run_scan(Call& call, const Nodes& body,
                                    const std::vector<std::vector<Value>>& operands) {
  const std::vector<Value>&starts = operands[0], &slices = operands[1];
  if (slices.empty() || slices[0].axes.empty()) call.refuse("is a loop over nothing");
  const Axis over = slices[0].axes[0];
  const auto inputs = [&](const Iteration* i) {
    std::vector<Value> all;
    for (size_t k = 0; k < starts.size(); ++k) {
      all.push_back(starts[k]);
      all.back().axes = call.distinct(starts[k].axes);
      if (i) all.back().tensor = i->carries[k];
    }
    for (size_t k = 0; k < slices.size(); ++k) {
      if (!slices[k].axes[0].empty() && !over.empty()) call.unify(over, slices[k].axes[0]);
      all.push_back(slices[k]);
      all.back().axes.erase(all.back().axes.begin());
      if (i) all.back().tensor = i->slices[k];
    }
    for (size_t k = 2; k < operands.size(); ++k)
      all.insert(all.end(), operands[k].begin(), operands[k].end());
    for (size_t k = 0; k < starts.size() + slices.size(); ++k)
      all[k].is_constant = false, all[k].array = nullptr;
    return all;
  };
  std::vector<Value> results;
  const auto with_over = [&](const Value& y) {
    AxisList axes = y.axes;
    axes.insert(axes.begin(), over);
    return call.distinct(axes);
  };
  if (!graph_) {
    results = walk_inner(body, inputs(nullptr));
    for (size_t k = 0; k < starts.size(); ++k)
      for (size_t a = 0; a < starts[k].axes.size(); ++a)
        if (!starts[k].axes[a].empty()) call.unify(starts[k].axes[a], results[k].axes[a]);
    for (size_t k = starts.size(); k < results.size(); ++k) results[k].axes = with_over(results[k]);
    return results;
  }
  const Dim rounds = merged(call.dims(over), "unit_rounds"), aside("scan__over", rounds.size);
  std::vector<Tensor> carried, cut;
  for (const Value& start : starts) {
    const Value seen = inputs(nullptr)[carried.size()];
    carried.push_back(call.full(start, seen.axes));
  }
  for (const Value& x : slices) cut.push_back(merge(call.full(x), call.dims(x.axes[0]), aside));
  const IterationResults made = scan(*graph_, aside, carried, cut, [&](const Iteration& i) {
    const std::vector<Value> all = inputs(&i);
    const std::vector<Value> values = walk_inner(body, all);
    IterationResults round;
    results = values;
    for (size_t k = 0; k < values.size(); ++k) {
      if (k < starts.size()) {
        results[k].axes = all[k].axes;
        round.carries.push_back(call.full(values[k], all[k].axes));
      } else {
        results[k].axes = with_over(values[k]);
        const AxisList rest(results[k].axes.begin() + 1, results[k].axes.end());
        round.stacked.push_back(call.full(values[k], rest));
      }
    }
    return round;
  });
  for (size_t k = 0; k < results.size(); ++k) {
    const bool is_carry = k < starts.size();
    results[k].tensor = is_carry ? made.carries[k] : made.stacked[k - starts.size()];
    if (!is_carry) {
      const std::vector<Dim> to = call.dims(results[k].axes[0]);
      results[k].tensor = to.empty() ? pick(results[k].tensor, aside.name, 0)
                                     : unmerge(results[k].tensor, aside, to);
    }
    results[k].array = nullptr, results[k].is_constant = false;
  }
  return results;
}

}  // namespace tessera::pytorch
