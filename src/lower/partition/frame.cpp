#include "lower/partition/frame.h"

#include <algorithm>

#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/layout/choose.h"

namespace tessera {

Frame::Frame(const Graph& walked, const std::vector<int>& roots, std::string name_prefix,
             std::string line, std::vector<std::string> preferred)
    : graph(walked),
      prefix(std::move(name_prefix)),
      source(std::move(line)),
      prefer(std::move(preferred)),
      env(graph.values().size(), -1),
      uses(graph.values().size()),
      escapes(graph.values().size(), 0),
      needed(needed_nodes(graph, roots)),
      read(graph.values().size(), 0) {
  for (int root : roots) escapes[root] = read[root] = 1;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    if (!needed[n]) continue;
    const Node& node = graph.nodes()[n];
    std::vector<char> counts(node.in.size(), 1);
    if (node.op == &kLoop) counts = needed_results(graph, node, read);
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (!counts[i]) continue;
      uses[node.in[i]].push_back(static_cast<int>(n));
      read[node.in[i]] = 1;
    }
  }
}

Origin Frame::origin(const Node& node, std::string reason) const {
  return {prefix + node.name, source.empty() ? node.at.to_string() : source, std::move(reason)};
}

int Frame::only_result(int value, Loop::Result kind) const {
  if (uses[value].size() != 1 || escapes[value]) return -1;
  const Node& node = graph.nodes()[uses[value][0]];
  if (node.op != &kLoop || loop_of(node) != graph.producer(value).loop) return -1;
  const Loop& record = loops_of(graph)[loop_of(node)];
  const auto in = std::find(node.in.begin(), node.in.end(), value) - node.in.begin();
  if (record.condition >= 0 && record.condition == value) return -1;
  return record.results[in] == kind ? node.out[in] : -1;
}

int Frame::summed_later(int value) const {
  if (const int sum = only_result(value, Loop::Result::sum); sum >= 0) {
    const int more = summed_later(sum);
    return more >= 0 ? more : sum;
  }
  if (const int stack = only_result(value, Loop::Result::stack); stack >= 0)
    return summed_later(stack);
  if (uses[value].size() != 1 || escapes[value]) return -1;
  const Node& node = graph.nodes()[uses[value][0]];
  const bool is_near = node.loop == graph.producer(value).loop;
  return is_near && widens(graph, node) ? summed_later(node.out[0]) : -1;
}

bool Frame::is_summed_later(int value) const {
  if (const auto result = returned.find(value); result != returned.end())
    return outer->is_summed_later(result->second);
  if (summed_later(value) >= 0) return true;
  const auto& readers = uses[static_cast<size_t>(value)];
  if (readers.size() != 1 || escapes[static_cast<size_t>(value)]) return false;
  const Node& node = graph.nodes()[static_cast<size_t>(readers[0])];
  uint32_t positions = 0;
  for (size_t i = 0; i < node.in.size(); ++i) positions |= node.in[i] == value ? 1u << i : 0;
  const bool is_linear =
      node.op->converts || (node.op->pointwise && linear_in(*node.op, positions));
  return is_linear && node.loop == graph.producer(value).loop && is_summed_later(node.out[0]);
}

bool widens(const Graph& graph, const Node& node) {
  return node.op->converts &&
         size_of(graph.value(node.out[0]).dtype) > size_of(graph.value(node.in[0]).dtype);
}

bool narrows(const Graph& graph, const Node& node) {
  return node.op->converts &&
         size_of(graph.value(node.out[0]).dtype) < size_of(graph.value(node.in[0]).dtype);
}

}  // namespace tessera
