// Binding of fused pointwise steps: chains. A loop over a block is bound by its loads and stores,
// which hide the arithmetic. So an instruction takes in the instructions that compute its operand,
// as far as a loop for the whole exists (ChainShape) and nothing else reads the intermediate
// values. An instruction that only adds or multiplies numbers of its row, such as x - mean, is free
// within a chain: if all its readers can take it in, each does, and it is never stored. Results are
// bitwise those of the single instructions.
#include <algorithm>

#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

bool is_joinable(const BoundInstr& op) {
  const Instr& instr = op.instr;
  if (op.unused || op.broadcast != Broadcast::none) return false;
  if (instr.dtype != DType::float32 && instr.dtype != DType::float64) return false;
  return instr.code == PointwiseOp::add || instr.code == PointwiseOp::sub ||
         instr.code == PointwiseOp::mul || instr.code == PointwiseOp::div ||
         instr.code == PointwiseOp::square || instr.code == PointwiseOp::sqrt ||
         instr.code == PointwiseOp::exp;
}

bool is_number(int reg) { return reg >= 0; }

bool is_division(Link link) { return link == Link::div || link == Link::rdiv; }

/// One instruction's operation on the value of a chain.
struct Stage {
  Link link = Link::none;
  int operand = -1;
  bool by_number = false, negative = false;
};

bool push(Chain& chain, const Stage& stage) {
  if (!stage.by_number) {
    if (chain.shape.first == Link::none) {
      chain.shape.first = stage.link;
      chain.y = stage.operand;
      return true;
    }
    if (chain.shape.second != Link::none && chain.shape.second != Link::affine) return false;
    const Link first = chain.shape.first;
    chain.shape.scaled |= chain.shape.second == Link::affine || is_division(stage.link) ||
                          first == Link::square || first == Link::sqrt;
    chain.shape.second = stage.link;
    chain.z = stage.operand;
    return true;
  }
  if (is_division(stage.link)) return false;
  const bool early = chain.shape.first == Link::none;
  if (!early && chain.shape.second != Link::none && chain.shape.second != Link::affine)
    return false;
  Affine& affine = early ? chain.before : chain.after;
  if (stage.link == Link::mul) {
    if (is_number(affine.factor)) return false;
    affine.factor = stage.operand;
  } else {
    if (is_number(affine.factor) || is_number(affine.summand)) return false;
    affine.summand = stage.operand;
    affine.negative = stage.negative;
  }
  if (!early && !chain.shape.scaled) chain.shape.second = Link::affine;
  return true;
}

class ChainMatcher {
 public:
  ChainMatcher(PointwisePlan& plan, const BlockOps& ops)
      : code_(plan.code), ops_(ops), readers_(code_.size(), 0), is_output_(code_.size(), 0) {
    for (const BoundInstr& op : code_) {
      for (int r : reads_of(op)) {
        if (r >= 0) ++readers_[r];
      }
    }
    for (const Output& out : plan.outputs) is_output_[out.reg] = 1;
  }

  void run() {
    const int count = static_cast<int>(code_.size());
    for (int i = count - 1; i >= 0; --i) join_backward(i);
    for (int i = 0; i < count; ++i) take_into_readers(i);
    for (BoundInstr& op : code_) {
      if (op.chain) op.chain->by_rows = reads_by_row(*op.chain);
    }
  }

 private:
  bool reads_by_row(const Chain& chain) const {
    const Reads read = chain.operands();
    return chain.shape.sum || std::any_of(read.begin(), read.end(), [&](int r) {
             return r >= 0 && code_[r].broadcast == Broadcast::along_row;
           });
  }
  bool is_full(int reg) const { return reg >= 0 && code_[reg].broadcast == Broadcast::none; }
  bool exists(const Chain& chain) const { return find(chain) != nullptr; }
  ChainFn find(const Chain& chain) const { return ops_.find_chain(chain.shape, type_of(chain)); }
  DType type_of(const Chain& chain) const { return stored_as(code_[chain.x].instr.dtype); }

  /// True if only one instruction reads it.
  bool may_vanish(int reg) const {
    return readers_[reg] == 1 && !is_output_[reg] && is_joinable(code_[reg]);
  }

  std::optional<Stage> stage_of(const Instr& instr, int path) const {
    if (instr.code == PointwiseOp::square) return Stage{Link::square};
    if (instr.code == PointwiseOp::sqrt) return Stage{Link::sqrt};
    if (instr.code == PointwiseOp::exp) return Stage{Link::exp};
    const int other = path == instr.a ? instr.b : instr.a;
    const bool by_number = !is_full(other);
    if (instr.code == PointwiseOp::add) return Stage{Link::add, other, by_number};
    if (instr.code == PointwiseOp::mul) return Stage{Link::mul, other, by_number};
    const bool div = instr.code == PointwiseOp::div;
    if (path == instr.a) return Stage{div ? Link::div : Link::sub, other, by_number, by_number};
    return by_number ? std::nullopt : std::optional(Stage{div ? Link::rdiv : Link::rsub, other});
  }

  /// If an operand is a register times a number and nothing else reads the product, takes the
  /// product in.
  void scale_operands(Chain& chain) const {
    scale_operand(chain, &Chain::y, &Chain::y_factor);
    scale_operand(chain, &Chain::z, &Chain::z_factor);
  }
  void scale_operand(Chain& chain, int Chain::*operand, int Chain::*factor) const {
    const int product = chain.*operand;
    if (product < 0 || is_number(chain.*factor) || !may_vanish(product)) return;
    const Instr& instr = code_[product].instr;
    if (instr.code != PointwiseOp::mul || is_full(instr.a) == is_full(instr.b)) return;
    Chain scaled = chain;
    scaled.*operand = is_full(instr.a) ? instr.a : instr.b;
    scaled.*factor = is_full(instr.a) ? instr.b : instr.a;
    scaled.shape.scaled = true;
    if (scaled.shape.second == Link::affine) scaled.shape.second = Link::none;
    scaled.taken.push_back(product);
    if (exists(scaled)) chain = std::move(scaled);
  }

  /// A chain of this instruction alone, or nothing.
  std::optional<Chain> single(int i, int path) const {
    Chain chain;
    chain.x = path;
    const std::optional<Stage> stage = stage_of(code_[i].instr, path);
    if (!stage || !push(chain, *stage) || !exists(chain)) return {};
    return chain;
  }

  /// The longest chain that ends with joinable instruction `i`.
  std::optional<Chain> longest(int i) const {
    const Instr& instr = code_[i].instr;
    std::optional<Chain> best;
    for (const int path : {instr.a, instr.b}) {
      if (!is_full(path)) continue;
      std::optional<Chain> chain = single(i, path);
      if (may_vanish(path)) {
        std::optional<Chain> longer = longest(path);
        const std::optional<Stage> stage = stage_of(instr, path);
        if (longer && stage && push(*longer, *stage) && exists(*longer)) {
          longer->taken.push_back(path);
          chain = std::move(longer);
        } else if (longer = single_below(i, path); longer) {
          chain = std::move(longer);
        }
      }
      if (!chain) continue;
      scale_operands(*chain);
      if (!best || chain->taken.size() > best->taken.size()) best = std::move(chain);
    }
    return best;
  }

  /// A chain of instruction `path` alone and then `i`.
  std::optional<Chain> single_below(int i, int path) const {
    const std::optional<Stage> stage = stage_of(code_[i].instr, path);
    for (const int leaf : {code_[path].instr.a, code_[path].instr.b}) {
      if (!is_full(leaf) || !stage) continue;
      std::optional<Chain> chain = single(path, leaf);
      if (!chain || !push(*chain, *stage) || !exists(*chain)) continue;
      chain->taken.push_back(path);
      return chain;
    }
    return {};
  }

  std::optional<Chain> longest_sum(int reg) const {
    if (!may_vanish(reg)) return {};
    std::optional<Chain> best;
    auto consider = [&](std::optional<Chain> chain) {
      if (!chain) return;
      chain->shape.sum = true;
      chain->taken.push_back(reg);
      if (exists(*chain) && (!best || chain->taken.size() > best->taken.size()))
        best = std::move(chain);
    };
    consider(longest(reg));
    for (const int path : {code_[reg].instr.a, code_[reg].instr.b}) {
      if (is_full(path)) consider(single(reg, path));
    }
    return best;
  }

  void join_backward(int i) {
    BoundInstr& op = code_[i];
    std::optional<Chain> chain;
    if (op.instr.code == PointwiseOp::row_sum) {
      chain = longest_sum(op.instr.a);
    } else if (is_joinable(op)) {
      chain = longest(i);
    }
    if (!chain || chain->taken.empty()) return;
    for (const int taken : chain->taken) code_[taken].unused = true;
    set(op, std::move(*chain));
  }

  void set(BoundInstr& op, Chain chain) {
    chain.fn = find(chain);
    op.chain = std::move(chain);
  }

  /// Instruction `i` as a chain that starts with `reg`; nothing if impossible.
  std::optional<Chain> starting_with(int i, int reg) const {
    const BoundInstr& op = code_[i];
    Chain chain;
    if (op.chain) {
      chain = *op.chain;
    } else if (op.instr.code == PointwiseOp::row_sum) {
      chain.x = op.instr.a;
      chain.shape.sum = true;
    } else if (is_joinable(op)) {
      std::optional<Chain> alone = single(i, reg);
      if (!alone) return {};
      chain = *alone;
    }
    if (chain.x != reg && chain.y == reg && !chain.before.any()) turn(chain);
    const auto all = chain.operands();
    if (chain.x != reg || std::count(all.begin(), all.end(), reg) != 1) return {};
    return chain;
  }

  static void turn(Chain& chain) {
    std::swap(chain.x, chain.y);
    std::swap(chain.before.factor, chain.y_factor);
    if (chain.shape.first == Link::sub) {
      chain.shape.first = Link::rsub;
    } else if (chain.shape.first == Link::rsub) {
      chain.shape.first = Link::sub;
    }
  }

  /// If `v` only adds or multiplies numbers of its row, and all readers of `v` can do that
  /// themselves, they do.
  void take_into_readers(int v) {
    BoundInstr& op = code_[v];
    if (!is_joinable(op) || is_output_[v]) return;
    std::optional<Chain> own = op.chain;
    if (!own) {
      const int path = is_full(op.instr.a) ? op.instr.a : op.instr.b;
      if (!is_full(path)) return;
      own = single(v, path);
    }
    if (!own || own->shape.first != Link::none) return;
    std::vector<std::pair<int, Chain>> changed;
    for (int i = v + 1; i < static_cast<int>(code_.size()); ++i) {
      const auto read = reads_of(code_[i]);
      if (code_[i].unused || std::find(read.begin(), read.end(), v) == read.end()) continue;
      std::optional<Chain> chain = starting_with(i, v);
      if (!chain || is_number(chain->before.summand) ||
          (is_number(chain->before.factor) && is_number(own->before.factor)))
        return;
      const int factor = chain->before.factor;
      chain->x = own->x;
      chain->before = own->before;
      if (is_number(factor)) chain->before.factor = factor;
      if (!exists(*chain)) return;
      changed.emplace_back(i, *chain);
    }
    op.unused = true;
    for (auto& [i, chain] : changed) set(code_[i], std::move(chain));
  }

  std::vector<BoundInstr>& code_;
  const BlockOps& ops_;
  std::vector<int> readers_;
  std::vector<char> is_output_;
};

}  // namespace

Reads reads_of(const BoundInstr& op) {
  if (op.chain && !op.unused) return op.chain->operands();
  Reads reads;
  reads.fill(-1);
  if (!op.unused)
    std::copy_n(std::array{op.instr.a, op.instr.b, op.instr.c}.begin(), 3, reads.begin());
  return reads;
}

void join_chains(PointwisePlan& plan, const BlockOps& ops) { ChainMatcher(plan, ops).run(); }

}  // namespace tessera::cpu
