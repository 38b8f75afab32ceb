// Each node of the larger model is mapped to one of the smaller: itself, by name, or the one that
// it is a copy of. Where the operands of the two are not mapped to each other, a layer reads what
// another hands over: these are the seams. In the forward pass a copy reads the end of the first
// layer where the first layer reads the embedding. In the backward pass the first layer reads the
// gradient of the copy where, alone, it reads that of the head.
#include "plan/tensor_layouts/repeats.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

namespace tessera {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

using Names = std::map<std::string, int>;

/// The value that `name` is a copy of, or -1. Each number of the name in turn is made one less.
int original(const std::string& name, const Names& names) {
  if (const auto own = names.find(name); own != names.end()) return own->second;
  for (size_t begin = 0; begin < name.size(); ++begin) {
    if (!is_digit(name[begin]) || (begin > 0 && is_digit(name[begin - 1]))) continue;
    size_t end = begin;
    while (end < name.size() && is_digit(name[end])) ++end;
    if (end - begin > 9) continue;
    const int number = std::stoi(name.substr(begin, end - begin));
    if (number == 0) continue;
    const auto found =
        names.find(name.substr(0, begin) + std::to_string(number - 1) + name.substr(end));
    if (found != names.end()) return found->second;
  }
  return -1;
}

}  // namespace

Repeats repeats_of(const Graph& one, const Graph& two, int64_t layers) {
  Names names;
  for (size_t v = 0; v < one.values().size(); ++v)
    names.emplace(one.value(static_cast<int>(v)).name, static_cast<int>(v));
  std::vector<int> of(two.values().size());  // by value of `two`: that of `one`
  Repeats repeats;
  repeats.of_node.assign(one.nodes().size(), 1);
  for (size_t v = 0; v < two.values().size(); ++v) {
    const Value& value = two.value(static_cast<int>(v));
    of[v] = original(value.name, names);
    if (of[v] < 0) continue;
    const Value& like = one.value(of[v]);
    const bool is_copy = value.name != like.name;
    const bool is_first =
        two.nodes()[static_cast<size_t>(value.node)].out[0] == static_cast<int>(v);
    if (is_copy && is_first) repeats.of_node[static_cast<size_t>(like.node)] += layers - 1;
  }
  for (const Node& node : two.nodes()) {
    const int like = of[static_cast<size_t>(node.out[0])];
    if (like < 0) continue;
    const Node& own = one.producer(like);
    if (own.op != node.op || own.in.size() != node.in.size()) continue;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const int a = own.in[i], b = of[static_cast<size_t>(node.in[i])];
      if (b < 0 || a == b || one.value(a).shape != one.value(b).shape) continue;
      const std::pair<int, int> seam = std::minmax(a, b);
      auto& all = repeats.seams;
      if (std::find(all.begin(), all.end(), seam) == all.end()) all.push_back(seam);
    }
  }
  return repeats;
}

}  // namespace tessera
