#include "pytorch/plain_ops.h"

#include <map>
#include <set>

#include "base/fail.h"
#include "pytorch/names.h"
#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

/// Ops that are pieces of layers with kernels of their own, when a program writes these out.
struct Piece {
  const char* ops;
  const char* of;
};
constexpr Piece kPieces[] = {
    {"softmax.int _softmax.default", "of attention"},
    {"bmm.default baddbmm.default matmul.default", "of attention"},
    {"rsqrt.default var.correction var_mean.correction", "of a norm"},
    {"erf.default", "of an activation"},
    {"chosen_gates", "of a router, whose experts compute all tokens"},
    {"sort.default histc.default _grouped_mm.default grouped_mm_fallback.default", "of a router"},
};

}  // namespace

std::vector<std::string> find_plain_ops(const Import& import) {
  std::set<std::string> varying;  // what depends on an input
  for (const InputSpec& input : import.program().inputs)
    if (input.kind == InputSpec::Kind::user) varying.insert(input.value);
  std::map<std::string, int> count;
  std::vector<std::string> lines;
  for (const Node& node : import.program().graph.nodes) {
    int operands = 0;
    for (const std::string& operand : operands_of(node)) operands += varying.count(operand) != 0;
    if (operands > 0) varying.insert(node.outputs.begin(), node.outputs.end());
    for (const Piece& piece : kPieces) {
      const std::string op = node.target.substr(node.target.find('.') + 1);
      if ((" " + std::string(piece.ops) + " ").find(" " + op + " ") == std::string::npos) continue;
      const bool is_product = node.target.find("mm.") != std::string::npos ||
                              node.target.find("matmul") != std::string::npos;
      if (operands < (is_product ? 2 : 1)) continue;
      const std::string line = fmt::format(
          "{}, which may be {}",
          Node{node.target, {}, {}, pattern_of(node.module), {}, node.file, node.line}.place(),
          piece.of);
      if (++count[line] == 1) lines.push_back(line);
    }
  }
  for (std::string& line : lines)
    if (const int n = count[line]; n > 1) line += fmt::format(" ({} times)", n);
  return lines;
}

}  // namespace tessera::pytorch
