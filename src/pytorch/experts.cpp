// A row belongs to a choice of a token. Each value of rows is one of a few kinds (their numbers,
// tokens, experts, gates, what products made of them) in one of a few orders: that of choices, or
// one that a sort made. Both are found from operands to results. Where rows of outputs, weighted
// by gates, are summed over the choices of a token, the whole is one node.
#include "pytorch/experts.h"

#include <algorithm>
#include <numeric>

#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

/// A matrix for each expert, or one of the equal parts that its rows are.
struct Matrix {
  std::string value;
  bool turned = false;  ///< [experts, in, out]
  int64_t parts = 1, part = 0;
  bool strided = false;  ///< the part has every n-th row
};
struct Factor {
  Matrix matrix;
  std::string activation = "identity";
};

struct Rows {
  enum class Kind { slot, token, expert, gate, x, hidden, out, weighted } kind = Kind::slot;
  std::string order = {};    ///< "": of choices; a value: as a permutation; "~value": its inverse
  bool folded = false;       ///< [tokens, choices, ...]
  std::string choices = {};  ///< [tokens, choices] of experts
  std::string gates = {};    ///< the same of gates
  std::string x = {};        ///< [tokens, model]
  std::vector<Factor> factors = {};  ///< of hidden rows
  Matrix down = {};
};

class ExpertFinder : private Reading {
 public:
  ExpertFinder(ExportedProgram& program, const std::set<std::string>& changed)
      : Reading(program, changed) {}

  void run() {
    index();
    bool found = false;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].outputs.empty() || is_changed(graph_.nodes[i])) continue;
      read(graph_.nodes[i]);
      found = find_sum(i) || found;
    }
    if (found) rebuild();
  }

 private:
  using Kind = Rows::Kind;

  const Rows* rows(const std::string& value) const {
    const auto found = known_.find(value);
    return found == known_.end() ? nullptr : &found->second;
  }
  const Rows* rows(const std::string& value, Kind kind) const {
    const Rows* r = rows(value);
    return r && r->kind == kind ? r : nullptr;
  }
  bool is_float(const std::string& value) const {
    return meta(value).type != ScalarType::bool_ && is_floating(dtype_of(meta(value).type));
  }
  void know(const std::string& value, Rows rows) { known_[value] = std::move(rows); }

  /// What the rows of a node's results are.
  void read(const Node& node) {
    const std::string& y = node.outputs[0];
    const std::string self = tensor(node, "self");
    if (y.empty()) return;
    if (is(node,
           "to.dtype _to_copy.default float.default clone.default contiguous.default "
           "type_as.default alias.default detach.default")) {
      if (const Rows* r = rows(self)) know(y, *r);
      const auto counted = counts_.find(self);
      if (counted != counts_.end()) counts_[y] = counted->second;
    } else if (is(node,
                  "view.default reshape.default flatten.using_ints _unsafe_view.default "
                  "unsqueeze.default squeeze.dim squeeze.default expand.default")) {
      read_view(node, self, y);
    } else if (is(node, "sort.default sort.stable argsort.default argsort.stable")) {
      read_sort(node, self);
    } else if (is(node, "floor_divide.default div.Tensor_mode")) {
      const Rows* r = rows(self, Kind::slot);
      const std::optional<double> by = number(node, "other");
      if (r && by && *by == static_cast<double>(choices_in(r->choices)))
        know(y, {Kind::token, r->order, false, r->choices});
    } else if (is(node, "arange.default arange.start_step arange.start")) {
      slots_[y] = meta(y).sizes[0];
    } else if (is(node, "index.Tensor index_select.default gather.default")) {
      read_index(node, self, y);
    } else if (is(node, "index_put.default")) {
      read_inverse(node, y);
    } else if (is(node, "repeat_interleave.self_int")) {
      const std::optional<double> n = number(node, "repeats");
      if (!n) return;
      if (is_axis(node, "dim", self, 0) && rank(self) == 2 && is_float(self))
        know(y, {Kind::x, "", false, "", "", self});
      if (slots_.count(self) != 0) know(y, {Kind::token});
    } else if (is(node, "histc.default bincount.default")) {
      if (rows(self, Kind::expert)) counts_[y] = {rows(self)->choices, false};
    } else if (is(node, "cumsum.default")) {
      const auto counted = counts_.find(self);
      if (counted != counts_.end() && !counted->second.second)
        counts_[y] = {counted->second.first, true};
    } else if (node.target == "transformers.grouped_mm_fallback.default" ||
               is(node, "_grouped_mm.default")) {
      read_grouped(node, y);
    } else if (is(node, "bmm.default matmul.default")) {
      read_batched(node, y);
    } else if (is(node, "chunk.default split.Tensor slice.Tensor unbind.int select.int")) {
      read_parts(node, self);
    } else if (is(node, "silu.default gelu.default relu.default sigmoid.default tanh.default")) {
      read_activation(node, self, y);
    } else if (is(node, "mul.Tensor")) {
      read_product(self, tensor(node, "other"), y);
    }
  }

  /// [tokens, choices] as rows, and rows as [tokens, choices, ...].
  void read_view(const Node& node, const std::string& self, const std::string& y) {
    const std::vector<int64_t>&from = meta(self).sizes, &to = meta(y).sizes;
    const auto count = [](const std::vector<int64_t>& sizes) {
      return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    };
    if (count(from) != count(to)) return;
    if (const Rows* r = rows(self)) {
      Rows same = *r;
      const auto wide = [](const std::vector<int64_t>& sizes) {  // without axes of size 1 behind
        std::vector<int64_t> all = sizes;
        std::erase(all, 1);
        return all;
      };
      if (wide(from) == wide(to) && !r->folded) {
        know(y, same);
      } else if (r->order.empty() && to.size() == 3 && from.size() == 2 && to[2] == from[1] &&
                 !r->folded) {
        same.folded = true;
        if (meta(same.choices).sizes == std::vector<int64_t>{to[0], to[1]}) know(y, same);
      }
      return;
    }
    const bool flat = to.size() == 1 || (to.size() == 2 && to[1] == 1);
    if (from.size() == 2 && flat && from[0] > 1) {
      if (is_float(self)) {
        know(y, {Kind::gate, "", false, "", self});
      } else {
        know(y, {Kind::expert, "", false, self});
      }
    } else if (from.size() == 2 && to.size() == 3 && to[2] == 1 && is_float(self) &&
               node.target == "aten.unsqueeze.default") {
      know(y, {Kind::gate, "", true, "", self});
    }
  }

  void read_sort(const Node& node, const std::string& self) {
    const bool only_order = node.outputs.size() == 1;
    const std::string& order = only_order ? node.outputs[0] : node.outputs[1];
    const Argument* descending = node.find("descending");
    if (descending && std::holds_alternative<bool>(*descending) && std::get<bool>(*descending))
      return;
    if (const Rows* r = rows(self, Kind::expert); r && r->order.empty()) {
      know(order, {Kind::slot, order, false, r->choices});
      if (!only_order) know(node.outputs[0], {Kind::expert, order, false, r->choices});
    } else if (const Rows* s = rows(self, Kind::slot); s && s->order[0] != '~') {
      know(order, {Kind::slot, "~" + s->order, false, s->choices});
    }
  }

  int64_t choices_in(const std::string& choices) const { return meta(choices).sizes[1]; }

  void read_index(const Node& node, const std::string& self, const std::string& y) {
    std::string at = tensor(node, "index");
    if (const Argument* given = node.find("indices"))
      if (const auto* list = std::get_if<std::vector<TensorName>>(given); list && list->size() == 1)
        at = (*list)[0].name;
    if (at.empty() || (node.find("dim") && !is_axis(node, "dim", self, 0))) return;
    const Rows *of = rows(self), *by = rows(at);
    if (by && by->kind == Kind::expert && !of && rank(self) == 3) {
      looked_up_[y] = {self, *by};
    } else if (by && by->kind == Kind::token && !of && rank(self) == 2 && is_float(self)) {
      know(y, {Kind::x, by->order, false, by->choices, "", self});
    } else if (of && by && by->kind == Kind::slot && !of->folded) {
      if (of->order.empty()) {
        Rows moved = *of;
        moved.order = by->order;
        know(y, moved);
      } else if (by->order == "~" + of->order) {
        Rows moved = *of;
        moved.order.clear();
        know(y, moved);
      }
    }
  }

  /// empty[order] = 0, 1, 2, ...
  void read_inverse(const Node& node, const std::string& y) {
    const Argument* given = node.find("indices");
    const auto* list = given ? std::get_if<std::vector<TensorName>>(given) : nullptr;
    if (!list || list->size() != 1) return;
    const Rows* by = rows((*list)[0].name, Kind::slot);
    const auto all = slots_.find(tensor(node, "values"));
    if (by && by->order[0] != '~' && all != slots_.end() && all->second == meta(y).sizes[0])
      know(y, {Kind::slot, "~" + by->order, false, by->choices});
  }

  /// Rows times the matrices of their experts, which lie behind one another.
  void read_grouped(const Node& node, const std::string& y) {
    const std::string x = tensor(node, node.find("input") ? "input" : "self"),
                      w = tensor(node, node.find("weight") ? "weight" : "mat2");
    const auto ends = counts_.find(tensor(node, "offs"));
    const Rows* r = rows(x);
    if (!r || r->order.empty() || ends == counts_.end() || !ends->second.second) return;
    if (const Argument* bias = node.find("bias"); bias && !tensor(node, "bias").empty()) return;
    multiply(*r, ends->second.first, {w, true}, y);
  }

  /// Rows times the matrices that they looked up.
  void read_batched(const Node& node, const std::string& y) {
    const std::string a = tensor(node, "self"),
                      b = tensor(node, node.find("mat2") ? "mat2" : "other");
    if (a.empty() || b.empty() || rank(a) != 3 || rank(b) != 3) return;
    const bool turned = looked_up_.count(b) != 0;
    const auto w = looked_up_.find(turned ? b : a);
    const Rows* r = rows(turned ? a : b);
    const TensorMeta& vector = meta(turned ? a : b);
    if (w == looked_up_.end() || !r || vector.sizes[turned ? 1 : 2] != 1 ||
        r->order != w->second.second.order)
      return;
    multiply(*r, w->second.second.choices, {w->second.first, turned}, y);
  }

  void multiply(const Rows& r, const std::string& choices, Matrix w, const std::string& y) {
    while (const Node* turn = made_by(w.value, "transpose.int to.dtype")) {
      if (turn->target == "aten.transpose.int") {
        const bool last =
            (is_axis(*turn, "dim0", w.value, 1) && is_axis(*turn, "dim1", w.value, 2)) ||
            (is_axis(*turn, "dim0", w.value, 2) && is_axis(*turn, "dim1", w.value, 1));
        if (!last) return;
        w.turned = !w.turned;
      }
      w.value = tensor(*turn, "self");
    }
    Rows next = r;
    if (!r.choices.empty() && r.choices != choices) return;
    next.choices = choices;
    if (r.kind == Kind::x) {
      next.kind = Kind::hidden;
      next.factors = {{w}};
    } else if (r.kind == Kind::hidden) {
      next.kind = Kind::out;
      next.down = w;
    } else {
      return;
    }
    know(y, next);
  }

  /// Equal parts of what one product made.
  void read_parts(const Node& node, const std::string& self) {
    const Rows* r = rows(self, Kind::hidden);
    if (!r || r->factors.size() != 1 || r->factors[0].activation != "identity" ||
        r->factors[0].matrix.parts != 1 || !is_last_axis(node, "dim", self))
      return;
    const int64_t n = meta(self).sizes.back();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].empty()) continue;
      const int64_t size = meta(node.outputs[i]).sizes.back();
      Matrix part = r->factors[0].matrix;
      if (size < 1 || n % size != 0) return;
      part.parts = n / size, part.part = static_cast<int64_t>(i);
      if (node.target == "aten.slice.Tensor") {
        const auto step = static_cast<int64_t>(number(node, "step").value_or(1)),
                   start = static_cast<int64_t>(number(node, "start").value_or(0));
        part.strided = step != 1;
        if (step != 1 && step != part.parts) return;
        part.part = part.strided ? start : start / size;
        if (!part.strided && start % size != 0) return;
      }
      if (node.target.ends_with(".int") || part.part < 0 || part.part >= part.parts) return;
      Rows next = *r;
      next.factors = {{part}};
      know(node.outputs[i], next);
    }
  }

  void read_activation(const Node& node, const std::string& self, const std::string& y) {
    const Rows* r = rows(self, Kind::hidden);
    if (!r || r->factors.size() != 1 || r->factors[0].activation != "identity") return;
    Rows next = *r;
    std::string name = node.target.substr(5, node.target.find('.', 5) - 5);
    const Argument* kind = node.find("approximate");
    const bool tanh = kind && std::holds_alternative<std::string>(*kind) &&
                      std::get<std::string>(*kind) == "tanh";
    if (name == "gelu" && !tanh) name = "gelu_erf";
    next.factors[0].activation = name;
    know(y, next);
  }

  void read_product(const std::string& a, const std::string& b, const std::string& y) {
    const Rows *p = rows(a), *q = rows(b);
    if (!p || !q) return;
    if (p->kind == Kind::gate) std::swap(p, q);
    if (p->order != q->order || p->folded != q->folded) return;
    Rows next = *p;
    if (p->kind == Kind::out && q->kind == Kind::gate) {
      next.kind = Kind::weighted, next.gates = q->gates;
      if (meta(q->gates).sizes != meta(p->choices).sizes) return;
    } else if (p->kind == Kind::hidden && q->kind == Kind::hidden && p->x == q->x &&
               p->choices == q->choices) {
      next.factors.insert(next.factors.end(), q->factors.begin(), q->factors.end());
    } else {
      return;
    }
    know(y, next);
  }

  /// What topk chose of; "" if that is not known.
  std::string scores_of(std::string choices) const {
    while (const Node* step = made_by(choices, "to.dtype view.default reshape.default"))
      choices = tensor(*step, "self");
    const auto made = maker_.find(choices);
    if (made == maker_.end()) return "";
    const Node& node = graph_.nodes[made->second];
    const bool chooses = is(node, "topk.default") && node.outputs[1] == choices;
    const std::string scores = chooses ? tensor(node, "self") : "";
    const bool last = !scores.empty() && (!node.find("dim") || is_last_axis(node, "dim", scores));
    return last ? scores : "";
  }

  /// The sum over the choices of a token.
  bool find_sum(size_t at) {
    const Node& node = graph_.nodes[at];
    const Rows* r = nullptr;
    if (is(node, "sum.dim_IntList")) {
      const std::string self = tensor(node, "self");
      r = rows(self, Kind::weighted);
      const Argument* keeps = node.find("keepdim");
      const bool keep = keeps && std::holds_alternative<bool>(*keeps) && std::get<bool>(*keeps);
      if (!r || !r->folded || keep || !is_axis(node, "dim", self, 1)) return false;
    } else if (is(node, "index_add.default scatter_add.default")) {
      const bool adds_rows = is(node, "index_add.default");
      r = rows(tensor(node, adds_rows ? "source" : "src"), Kind::weighted);
      const Rows* to = rows(tensor(node, "index"), Kind::token);
      const Node* zeros =
          made_by(tensor(node, "self"), "zeros.default zeros_like.default new_zeros.default");
      if (!r || !to || !zeros || r->folded || to->order != r->order || number(node, "alpha") ||
          !is_axis(node, "dim", node.outputs[0], 0))
        return false;
    }
    if (!r || rank(node.outputs[0]) != 2 || meta(r->x).sizes != meta(node.outputs[0]).sizes ||
        meta(r->x).type != meta(node.outputs[0]).type ||
        meta(r->x).sizes[0] != meta(r->choices).sizes[0])
      return false;
    std::vector<TensorName> up;
    std::string activations;
    std::vector<int64_t> parts, part;
    for (const Factor& f : r->factors) {
      if (f.matrix.turned != r->factors[0].matrix.turned ||
          f.matrix.strided != r->factors[0].matrix.strided)
        return false;
      up.push_back({f.matrix.value});
      activations += (activations.empty() ? "" : " ") + f.activation;
      parts.push_back(f.matrix.parts), part.push_back(f.matrix.part);
    }
    const std::string scores = scores_of(r->choices);
    graph_.nodes[at] = replaced(at, "tessera.experts",
                                {{"x", TensorName{r->x}},
                                 {"scores", scores.empty() ? Argument() : TensorName{scores}},
                                 {"indices", TensorName{r->choices}},
                                 {"gates", TensorName{r->gates}},
                                 {"up", up},
                                 {"down", TensorName{r->down.value}},
                                 {"activations", activations},
                                 {"parts", parts},
                                 {"part", part},
                                 {"strided", r->factors[0].matrix.strided},
                                 {"up_turned", r->factors[0].matrix.turned},
                                 {"down_turned", r->down.turned}});
    return true;
  }

  std::map<std::string, Rows> known_;
  std::map<std::string, int64_t> slots_;  // 0, 1, 2, ...: how many
  /// Rows of each expert, and whether they are summed up to it; by the choices.
  std::map<std::string, std::pair<std::string, bool>> counts_;
  std::map<std::string, std::pair<std::string, Rows>> looked_up_;  // matrices of rows
};

}  // namespace

void find_experts(ExportedProgram& program, const std::set<std::string>& changed) {
  ExpertFinder(program, changed).run();
}

}  // namespace tessera::pytorch
