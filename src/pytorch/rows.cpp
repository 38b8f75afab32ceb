// where(mask) [tokens, choices] gives numbers of tokens and of choices. x[tokens] are rows, and
// what is computed of rows each by itself are rows. Gates w[tokens, choices] may only scale them,
// so that the sum over a token's choices can be taken first. A mask is taken back to all rows if
// each of its values is read in one of these ways.
#include "pytorch/rows.h"

#include <algorithm>
#include <numeric>

#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

struct Chosen {
  enum class Kind { tokens, choices, rows, gates, weighted, sum } kind = Kind::rows;
  size_t axis = 0;  ///< that of the rows
};

class RowFinder : private Reading {
 public:
  RowFinder(ExportedProgram& program, const std::set<std::string>& changed)
      : Reading(program, changed) {}

  void run() {
    bool found = false;
    index();
    for (size_t at = 0; at < graph_.nodes.size(); ++at) {
      const Node& node = graph_.nodes[at];
      if (is(node, "where.default nonzero_numpy.default") && !is_changed(node))
        found = take_back(at) || found;
    }
    if (found) rebuild();
  }

 private:
  using Kind = Chosen::Kind;

  const Chosen* chosen(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? nullptr : &found->second;
  }
  const Chosen* chosen(const std::string& value, Kind kind) const {
    const Chosen* c = chosen(value);
    return c && c->kind == kind ? c : nullptr;
  }

  /// All that depends on the mask of node `at`; false if some of it is in another form.
  bool take_back(size_t at) {
    const Node& where = graph_.nodes[at];
    mask_ = tensor(where, where.find("condition") ? "condition" : "self");
    if (mask_.empty() || rank(mask_) != where.outputs.size() || rank(mask_) > 2) return false;
    for (const size_t tokens : {size_t{0}, rank(mask_) - 1}) {
      known_.clear(), replaced_.clear();
      turned_ = tokens == 1;
      rows_ = meta(mask_).sizes[tokens];
      for (size_t i = 0; i < where.outputs.size(); ++i)
        known_[where.outputs[i]] = {i == tokens ? Kind::tokens : Kind::choices};
      bool all = true;
      for (size_t i = at + 1; i < graph_.nodes.size() && all; ++i) all = follow(i);
      const auto is_known = [&](const std::string& output) { return chosen(output) != nullptr; };
      if (!all || std::any_of(program_.outputs.begin(), program_.outputs.end(), is_known)) continue;
      for (auto& [i, node] : replaced_) graph_.nodes[i] = node;
      for (const auto& [value, c] : known_) {
        TensorMeta& m = graph_.tensors.at(value);
        if (c.kind == Kind::tokens || c.kind == Kind::choices) continue;
        m.sizes[c.axis] = rows_, m.symbols[c.axis].clear();
      }
      return true;
    }
    return false;
  }

  /// Whether node `i` reads nothing of the mask, or what it makes of it is known.
  bool follow(size_t i) {
    const Node& node = graph_.nodes[i];
    const std::vector<std::string> operands = operands_of(node);
    if (!makes_tensors(node)) return true;
    if (std::none_of(operands.begin(), operands.end(), [&](const auto& o) { return chosen(o); }))
      return true;
    if (is_changed(node)) return false;
    if (is(node, "index.Tensor")) return follow_index(i);
    if (is(node, "index_select.default"))
      return chosen(tensor(node, "index"), Kind::tokens) && take_rows(i, 0);
    if (is(node, "index_add.default index_put.default")) return follow_sum(i);
    return follow_rows(node, operands);
  }

  static std::vector<std::string> indices_of(const Node& node) {
    std::vector<std::string> all;
    const Argument* given = node.find("indices");
    const auto* list = given ? std::get_if<std::vector<TensorName>>(given) : nullptr;
    if (list)
      for (const TensorName& t : *list) all.push_back(t.name);
    return all;
  }

  bool take_rows(size_t i, size_t axis) {
    const Node& node = graph_.nodes[i];
    const std::string self = tensor(node, "self");
    if (chosen(self) || rank(self) <= axis || meta(self).sizes[axis] != rows_) return false;
    replaced_[i] = replaced(i, "aten.alias.default", {{"self", TensorName{self}}});
    known_[node.outputs[0]] = {Kind::rows, axis};
    return true;
  }

  bool follow_index(size_t i) {
    const Node& node = graph_.nodes[i];
    const std::vector<std::string> at = indices_of(node);
    const std::string self = tensor(node, "self");
    if (self.empty() || chosen(self)) return false;
    if (at.size() == 1 && chosen(at[0], Kind::tokens)) return take_rows(i, 0);
    if (at.size() == 2 && at[0].empty() && chosen(at[1], Kind::tokens) && meta(self).sizes[0] == 1)
      return take_rows(i, 1);
    if (at.size() != 2 || !chosen(at[0], Kind::tokens) || !chosen(at[1], Kind::choices))
      return false;
    std::string gates = self;
    if (const Node* wide = made_by(self, "unsqueeze.default");
        wide && rank(self) == 3 && meta(self).sizes[2] == 1)
      gates = tensor(*wide, "self");
    const std::vector<int64_t>&sizes = meta(gates).sizes, &mask = meta(mask_).sizes;
    if (sizes.size() != 2 || sizes[0] != rows_ || sizes[1] != mask[turned_ ? 0 : 1]) return false;
    replaced_[i] =
        replaced(i, "tessera.chosen_gates",
                 {{"self", TensorName{gates}}, {"mask", TensorName{mask_}}, {"turned", turned_}});
    known_[node.outputs[0]] = {Kind::gates};
    return true;
  }

  /// total[tokens] += rows, or total[tokens] = total[tokens] + rows.
  bool follow_sum(size_t i) {
    const Node& node = graph_.nodes[i];
    const std::string total = tensor(node, "self");
    std::string rows = tensor(node, "source");
    if (chosen(total)) return false;
    if (is(node, "index_put.default")) {
      const std::vector<std::string> at = indices_of(node);
      const Argument* adds = node.find("accumulate");
      if (at.size() != 1 || !chosen(at[0], Kind::tokens) ||
          (adds && std::holds_alternative<bool>(*adds) && std::get<bool>(*adds)))
        return false;
      const Node* sum = made_by(tensor(node, "values"), "add.Tensor");
      if (!sum || number(*sum, "alpha")) return false;
      const std::string a = tensor(*sum, "self"), b = tensor(*sum, "other");
      const auto is_old = [&](const std::string& value) {
        const Node* old = made_by(value, "index.Tensor");
        return old && tensor(*old, "self") == total && indices_of(*old) == at;
      };
      rows = is_old(a) ? b : is_old(b) ? a : "";
    } else if (!chosen(tensor(node, "index"), Kind::tokens) || number(node, "alpha") ||
               !is_axis(node, "dim", total, 0)) {
      return false;
    }
    const Chosen* added = chosen(rows, Kind::weighted);
    if (!added || added->axis != 0) return false;
    replaced_[i] =
        replaced(i, "aten.add.Tensor", {{"self", TensorName{total}}, {"other", TensorName{rows}}});
    return true;
  }

  static int64_t behind_first(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin() + 1, sizes.end(), int64_t{1}, std::multiplies<>());
  }

  /// Ops whose results are rows that each depend on one row.
  bool follow_rows(const Node& node, const std::vector<std::string>& operands) {
    static const std::string kPointwise =
        "add.Tensor sub.Tensor mul.Tensor div.Tensor mul.Scalar add.Scalar to.dtype "
        "_to_copy.default "
        "float.default type_as.default relu.default gelu.default silu.default sigmoid.default "
        "tanh.default leaky_relu.default elu.default softplus.default mish.default "
        "hardswish.default "
        "dropout.default neg.default pow.Tensor_Scalar square.default exp.default rsqrt.default "
        "sqrt.default clamp.default alias.default clone.default contiguous.default detach.default";
    static const std::string kAlongLast =
        "linear.default layer_norm.default rms_norm.default chunk.default split.Tensor "
        "slice.Tensor "
        "softmax.int mean.dim sum.dim_IntList";
    static const std::string kViews =
        "view.default reshape.default _unsafe_view.default "
        "unsqueeze.default squeeze.dim";
    std::vector<Chosen> given;
    for (const std::string& operand : operands) {
      const Chosen* c = chosen(operand);
      if (!c && operand == operands[0] && is(node, kAlongLast)) return false;
      if (c) given.push_back(*c);
      if (!c && is(node, kPointwise) && rank(operand) > 1) return false;  // not of one row
    }
    const auto count = [&](Kind kind) {
      return std::count_if(given.begin(), given.end(),
                           [&](const Chosen& c) { return c.kind == kind; });
    };
    if (count(Kind::tokens) + count(Kind::choices) + count(Kind::sum) > 0) return false;
    Chosen result = given[0];
    for (const Chosen& c : given)
      if (c.axis != result.axis) return false;
    if (count(Kind::gates) + count(Kind::weighted) > 0) {
      const bool scales = is(node, "mul.Tensor") && given.size() == 2 && count(Kind::gates) == 1 &&
                          count(Kind::rows) == 1;
      const bool keeps = given.size() == 1 && operands.size() == 1 &&
                         is(node, "to.dtype _to_copy.default float.default " + kViews);
      const bool sums_old = is(node, "add.Tensor") && given.size() == 2 &&
                            count(Kind::weighted) == 1 && count(Kind::rows) == 1;
      if (!scales && !keeps && !sums_old) return false;
      result.kind = scales ? Kind::weighted : given[0].kind;
      if (sums_old) result.kind = Kind::sum;
    }
    const std::string& y = node.outputs[0];
    if (is(node, kViews)) {
      const std::vector<int64_t>&from = meta(operands[0]).sizes, &to = meta(y).sizes;
      if (from.size() == 3 && from[0] == 1 && to.size() == 2 && to[1] == from[2] &&
          result.axis == 1) {
        result.axis = 0;
      } else if (result.axis != 0 || to[0] != from[0] || behind_first(to) != behind_first(from)) {
        return false;
      }
    } else if (is(node, kAlongLast)) {
      const bool has_dim = node.find("dim") && !node.target.starts_with("aten.linear");
      if (rank(operands[0]) < 2 || (has_dim && !is_last_axis(node, "dim", operands[0])))
        return false;
    } else if (!is(node, kPointwise)) {
      return false;
    }
    for (const std::string& output : node.outputs)
      if (!output.empty()) known_[output] = result;
    return true;
  }

  std::string mask_;
  bool turned_ = false;  ///< [choices, tokens]
  int64_t rows_ = 0;
  std::map<std::string, Chosen> known_;
  std::map<size_t, Node> replaced_;
};

}  // namespace

void find_chosen_rows(ExportedProgram& program, const std::set<std::string>& changed) {
  RowFinder finder(program, changed);
  finder.run();
}

}  // namespace tessera::pytorch
