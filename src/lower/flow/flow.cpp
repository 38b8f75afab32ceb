#include "lower/flow/flow.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/fail.h"

namespace tessera {

namespace {

struct FlowKindInfo {
  FlowKind kind;
  const char* name;
  std::optional<CollectiveKind> collective = {};
};

constexpr FlowKindInfo collective(FlowKind kind, CollectiveKind what) {
  return {kind, to_string(what), what};
}

constexpr std::array kKinds = {
    FlowKindInfo{FlowKind::input, "input"},
    FlowKindInfo{FlowKind::stored, "stored"},
    FlowKindInfo{FlowKind::op, "op"},
    collective(FlowKind::all_reduce, CollectiveKind::all_reduce),
    collective(FlowKind::reduce_scatter, CollectiveKind::reduce_scatter),
    collective(FlowKind::all_gather, CollectiveKind::all_gather),
    collective(FlowKind::all_to_all, CollectiveKind::all_to_all),
    FlowKindInfo{FlowKind::slice, "slice"},
    collective(FlowKind::exchange, CollectiveKind::exchange),
    FlowKindInfo{FlowKind::mask, "mask"},
    FlowKindInfo{FlowKind::first_only, "first_only"},
    FlowKindInfo{FlowKind::tree_sum, "tree_sum"},
    FlowKindInfo{FlowKind::loop, "loop"},
};
static_assert(std::all_of(kKinds.begin(), kKinds.end(), [](const FlowKindInfo& info) {
  return &info - kKinds.data() == static_cast<int>(info.kind);
}));

const FlowKindInfo& info_of(FlowKind kind) { return kKinds.at(static_cast<size_t>(kind)); }

}  // namespace

const char* to_string(FlowKind kind) { return info_of(kind).name; }
CollectiveKind collective_of(FlowKind kind) { return info_of(kind).collective.value(); }

namespace {

std::string print_node(const Flow& flow, const FlowNode& node, const Mesh& mesh,
                       const std::string& indent) {
  std::string text = indent;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const FlowValue& v = flow.values[node.out[i]];
    text += fmt::format("{}%{} {}:{}{}", i ? ", " : "", node.out[i], v.name, to_string(v.dtype),
                        v.layout.to_string(v.shape.names(), mesh));
  }
  text +=
      node.op ? fmt::format(" = {}(", node.op->name) : fmt::format(" = {}(", to_string(node.kind));
  for (size_t i = 0; i < node.in.size(); ++i)
    text += fmt::format("{}%{}", i ? ", " : "", node.in[i]);
  text += ")";
  for (size_t f = 0; f < node.splits.size(); ++f) {
    for (int axis : node.splits[f])
      text += fmt::format(" {}@{}", node.space.factors[f].name, mesh.axes()[axis].name);
  }
  for (int axis : node.axes) text += " " + mesh.axes()[axis].name;
  if (!node.origin.reason.empty()) text += " because " + node.origin.reason;
  text += " # " + node.origin.source + "\n";
  if (!node.loop) return text;
  for (const FlowLoop::Carry& c : node.loop->carries)
    text += fmt::format("{}  %{} begins as %{}, next %{}\n", indent, c.value, c.init, c.next);
  for (const FlowLoop::Slice& s : node.loop->slices)
    text += fmt::format("{}  %{} is a slice of %{}\n", indent, s.value, s.whole);
  if (node.loop->pipeline_axis >= 0) {
    for (const FlowNode& share : node.loop->body) {
      text += fmt::format("{}  {}:{}\n", indent, share.loop->name, share.loop->share->to_string());
    }
  }
  for (const auto* moves : {&node.loop->begin_to_next, &node.loop->begin_to_all}) {
    for (const FlowNode& move : *moves) text += print_node(flow, move, mesh, indent + "  ");
  }
  for (const FlowNode& inner : node.loop->body)
    text += print_node(flow, inner, mesh, indent + "  ");
  return text;
}

}  // namespace

std::vector<std::string> split_dims(const FlowValue& value) {
  std::vector<std::string> names;
  for (size_t d = 0; d < value.layout.dims.size(); ++d) {
    if (!value.layout.dims[d].empty()) names.push_back(value.shape[static_cast<int>(d)].name);
  }
  return names;
}

std::string to_string(const Flow& flow, const Mesh& mesh) {
  std::string text;
  for (const FlowFunction& f : flow.functions) {
    text += fmt::format("function {}\n", f.name);
    for (const FlowNode& node : f.nodes) text += print_node(flow, node, mesh, "  ");
    for (const auto& [name, value] : f.outputs)
      text += fmt::format("  output {} = %{}\n", name, value);
    for (const auto& [stored, value] : f.updates)
      text += fmt::format("  update {} = %{}\n", stored, value);
  }
  return text;
}

}  // namespace tessera
