#include "ir/scopes.h"

#include <utility>

#include "base/fail.h"

namespace tessera {

namespace {

/// Sets `variable`; what it returns sets it back.
template <class T>
std::function<void()> change(T& variable, T value) {
  return [&variable, old = std::exchange(variable, std::move(value))]() mutable {
    variable = std::move(old);
  };
}

std::function<void()> repeat_once(Graph& graph, const Repeat& repeat) {
  if (repeat.of == Repeat::Of::microbatch) {
    TESSERA_REQUIRE(open_microbatch(graph) == nullptr,
                    "[MicrobatchScope] a microbatch cannot be split into microbatches");
    TESSERA_REQUIRE(repeat.count >= 1 && repeat.index >= 0 && repeat.index < repeat.count,
                    "[MicrobatchScope] microbatch {} of {}: they are counted from 0", repeat.index,
                    repeat.count);
  }
  Building& building = GraphInternals::of(graph).building;
  if (building.repeats.empty() && repeat.index == 0) building.first_copy.clear();
  building.repeats.push_back(repeat);
  return [&building, uses = std::exchange(building.uses, {})]() mutable {
    building.repeats.pop_back();
    building.uses = std::move(uses);
  };
}

}  // namespace

Scope::Scope(Graph& graph, const std::string& name) {
  GraphInternals& g = GraphInternals::of(graph);
  undo_ = [&g, scope = g.scope, unnumbered = g.unnumbered_scope, copies = g.copies.size()] {
    g.scope = scope;
    g.unnumbered_scope = unnumbered;
    g.copies.resize(copies);
  };
  g.scope = g.scoped(name);
  g.unnumbered_scope += (g.unnumbered_scope.empty() ? "" : ".") + name;
}

Scope::Scope(Graph& graph, const std::string& name, int64_t copy, int64_t copies)
    : Scope(graph, name) {
  TESSERA_REQUIRE(copies >= 1 && copy >= 0 && copy < copies,
                  "[Scope] '{}' is copy {} of {}; copies are counted from 0", name, copy, copies);
  GraphInternals& g = GraphInternals::of(graph);
  g.scope += std::to_string(copy);
  g.copies.push_back({name, copies, copy});
}

MicrobatchScope::MicrobatchScope(Graph& graph, const std::string& dim, int64_t count, int64_t index,
                                 bool contiguous) {
  undo_ = repeat_once(graph, {dim, count, index, -1, Repeat::Of::microbatch, 0, contiguous});
}

PurposeScope::PurposeScope(Graph& graph, Purpose purpose) {
  undo_ = change(GraphInternals::of(graph).purpose, purpose);
}

UpdateScope::UpdateScope(Graph& graph, Tensor condition, Loc at) {
  TESSERA_REQUIRE(condition.dtype() == DType::bool_ && condition.shape().rank() == 0,
                  "[UpdateScope] the condition is {} {}; it must be a bool scalar ({})",
                  to_string(condition.dtype()), condition.shape().to_string(), where(at));
  undo_ = change(GraphInternals::of(graph).update_condition, condition.id());
}

PreferScope::PreferScope(Graph& graph, Tensor like) {
  undo_ = change(GraphInternals::of(graph).prefer, graph.value(like.id()).prefer);
}

RecomputeScope::RecomputeScope(Graph& graph, int group) {
  undo_ = change(GraphInternals::of(graph).recompute_group, group);
}

LoopScope::LoopScope(Graph& graph, int loop) {
  undo_ = change(GraphInternals::of(graph).building.open_loop, loop);
}

RepeatScope::RepeatScope(Graph& graph, const Repeat& repeat) { undo_ = repeat_once(graph, repeat); }

OutsideScope::OutsideScope(Graph& graph) { undo_ = change(GraphInternals::of(graph).building, {}); }

LineScope::LineScope(Graph& graph, Loc at) {
  GraphInternals& g = GraphInternals::of(graph);
  if (g.at.line == 0) undo_ = change(g.at, g.line_of(at));
}

LineScope::LineScope(Graph& graph, const SourceLine& line) {
  undo_ = change(GraphInternals::of(graph).at, line);
}

SourceScope::SourceScope(Graph& graph, const Node& node, const std::vector<std::string>& prefer,
                         const std::string& suffix) {
  GraphInternals& g = GraphInternals::of(graph);
  undo_ = [&g, at = std::exchange(g.at, node.at), old = std::exchange(g.prefer, prefer),
           scope = std::exchange(g.scope, node.name + suffix)] {
    g.at = at;
    g.prefer = old;
    g.scope = scope;
  };
}

}  // namespace tessera
