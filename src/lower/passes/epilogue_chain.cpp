#include "lower/passes/epilogue_chain.h"

#include <algorithm>
#include <set>

#include "lower/passes/fuse_merge.h"

namespace tessera {

namespace {

/// For each dim of a matmul's result: the matching dim of the pointwise step, or -1 if it has size
/// 1 or stride 0. Nothing if `seen`, the pointwise step's view of the buffer, has other dims.
std::optional<std::vector<int>> dims_of(const View& result, const View& seen) {
  if (result.offset != seen.offset || !(result.shift == seen.shift)) return {};
  std::vector<int> dims;
  std::vector<char> used(seen.sizes.size(), 0);
  for (size_t d = 0; d < result.sizes.size(); ++d) {
    dims.push_back(-1);
    if (result.sizes[d] == 1 || result.strides[d] == 0) continue;
    for (size_t e = 0; e < seen.sizes.size() && dims.back() < 0; ++e) {
      if (used[e] || seen.sizes[e] != result.sizes[d] || seen.strides[e] != result.strides[d])
        continue;
      dims.back() = static_cast<int>(e);
      used[e] = 1;
    }
    if (dims.back() < 0) return {};
  }
  for (size_t e = 0; e < seen.sizes.size(); ++e) {
    if (!used[e] && seen.sizes[e] != 1) return {};
  }
  return dims;
}

Instr instruction(PointwiseOp code, DType dtype, int a) {
  Instr instr;
  instr.code = code;
  instr.dtype = dtype;
  instr.a = a;
  return instr;
}

/// Appends instructions of a chain to a matmul.
class MatmulBuilder {
 public:
  MatmulBuilder(const Step& matmul, const EpilogueChain& chain, std::vector<int> dims)
      : step_(matmul), y_(matmul.out[0]), chain_(chain), dims_(std::move(dims)) {
    code().push_back(instruction(PointwiseOp::load, y_.dtype, -1));
    code()[0].slot = 0;
    step_.out.clear();
  }

  /// Appends instruction `reg` of the chain; `value` is the register appended before it.
  void add(int reg, int value) {
    Instr instr = chain_.at(reg);
    instr.a = newest();
    if (instr.b >= 0) {
      const int second = chain_.other(reg, value);
      const bool slopes = chain_.at(second).code == PointwiseOp::gelu_grad;
      const int load = slopes ? chain_.at(second).a : second;
      code().push_back(chain_.at(load));
      code().back().slot = static_cast<int>(step_.in.size()) - 1;
      step_.in.push_back(along(chain_.view(load)));
      if (slopes)
        code().push_back(instruction(PointwiseOp::gelu_grad, chain_.at(second).dtype, newest()));
      instr.b = newest();
    }
    code().push_back(instr);
  }
  /// Stores the newest value.
  void store(const View& view) {
    step_.out.push_back(along(view));
    step_.pointwise.outputs.push_back(newest());
  }
  Step take() {
    std::rotate(step_.out.begin(), step_.out.end() - 1, step_.out.end());
    auto& outputs = step_.pointwise.outputs;
    std::rotate(outputs.begin(), outputs.end() - 1, outputs.end());
    return std::move(step_);
  }

 private:
  std::vector<Instr>& code() { return step_.pointwise.code; }
  int newest() { return static_cast<int>(code().size()) - 1; }
  /// A view of the pointwise step, rearranged to the dims of the matmul.
  View along(const View& view) const {
    View v = view;
    v.sizes = y_.sizes;
    v.strides.assign(dims_.size(), 0);
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d] >= 0) v.strides[d] = view.strides[static_cast<size_t>(dims_[d])];
    }
    return v;
  }

  Step step_;
  const View y_;
  const EpilogueChain& chain_;
  const std::vector<int> dims_;
};

/// The rest of the pointwise step, which loads the last register of the chain.
Step rest_of(const EpilogueChain& chain, const std::vector<int>& regs, const View& result) {
  Step rest = chain.step();
  Instr& last = rest.pointwise.code[static_cast<size_t>(regs.back())];
  last = instruction(PointwiseOp::load, result.dtype, -1);
  last.slot = static_cast<int>(rest.in.size());
  rest.in.push_back(result);
  std::set<int> stored;
  for (const int reg : regs) stored.insert(chain.output(reg));
  for (auto k = stored.rbegin(); k != stored.rend() && *k >= 0; ++k) {
    rest.out.erase(rest.out.begin() + *k);
    rest.pointwise.outputs.erase(rest.pointwise.outputs.begin() + *k);
  }
  return rest.out.empty() ? rest : with_sources(rest, {});
}

}  // namespace

int64_t touched_bytes(const View& view) {
  int64_t elements = 1;
  for (size_t d = 0; d < view.sizes.size(); ++d)
    elements *= view.strides[d] == 0 ? 1 : view.sizes[d];
  return elements * size_of(view.dtype);
}

int64_t touched_bytes(const Step& step) {
  int64_t bytes = 0;
  for (const auto* views : {&step.in, &step.out}) {
    for (const View& v : *views) bytes += touched_bytes(v);
  }
  return bytes;
}

EpilogueChain::EpilogueChain(const Step& step, int buffer)
    : step_(step), users_(step.pointwise.code.size()) {
  const auto& code = step.pointwise.code;
  for (size_t i = 0; i < code.size(); ++i) {
    for (const int r : {code[i].a, code[i].b, code[i].c}) {
      if (r >= 0) users_[static_cast<size_t>(r)].push_back(static_cast<int>(i));
    }
    if (code[i].code == PointwiseOp::load && view(static_cast<int>(i)).buffer == buffer)
      load_ = load_ == -1 ? static_cast<int>(i) : -2;
  }
  for (int reg = load_; reg >= 0;) {
    const std::vector<int>& users = users_[static_cast<size_t>(reg)];
    if (users.size() != 1 || !is_part(users[0], reg)) return;
    reg = users[0];
    regs_.push_back(reg);
  }
}

bool EpilogueChain::is_part(int next, int value) const {
  const Instr& instr = at(next);
  if (instr.code == PointwiseOp::cast || instr.code == PointwiseOp::gelu) return true;
  if (instr.code != PointwiseOp::add && instr.code != PointwiseOp::mul) return false;
  const int second = other(next, value);
  if (instr.code == PointwiseOp::add) return is_load(second);
  return at(second).code == PointwiseOp::gelu_grad && is_load(at(second).a) &&
         users_[static_cast<size_t>(second)].size() == 1;
}

int EpilogueChain::output(int reg) const {
  const auto& outputs = step_.pointwise.outputs;
  const auto it = std::find(outputs.begin(), outputs.end(), reg);
  return it == outputs.end() ? -1 : static_cast<int>(it - outputs.begin());
}

bool EpilogueChain::reads_only_there(int buffer, size_t count) const {
  const auto& code = step_.pointwise.code;
  const auto last = regs_.begin() + static_cast<std::ptrdiff_t>(count);
  const auto is_there = [&](int reg) { return std::find(regs_.begin(), last, reg) != last; };
  for (size_t i = 0; i < code.size(); ++i) {
    if (code[i].code != PointwiseOp::load || view(static_cast<int>(i)).buffer != buffer) continue;
    if (!std::all_of(users_[i].begin(), users_[i].end(), is_there)) return false;
    if (output(static_cast<int>(i)) >= 0) return false;
  }
  return true;
}

std::optional<FusedEpilogue> fuse_epilogue(const Step& matmul, const EpilogueChain& chain,
                                           const View& result, size_t count) {
  const auto dims = dims_of(matmul.out[0], chain.view(chain.load()));
  if (!dims) return {};
  const std::vector<int> regs(chain.regs().begin(),
                              chain.regs().begin() + static_cast<std::ptrdiff_t>(count));
  MatmulBuilder grown(matmul, chain, *dims);
  for (int value = chain.load(); const int reg : regs) {
    grown.add(reg, value);
    value = reg;
    const int kept = chain.output(reg);
    if (reg != regs.back() && kept >= 0) grown.store(chain.step().out[static_cast<size_t>(kept)]);
  }
  grown.store(result);
  FusedEpilogue fused{grown.take(), rest_of(chain, regs, result)};
  for (const View& v : fused.matmul.out) {
    if (!chain.reads_only_there(v.buffer, count)) return {};
  }
  for (const View& v : fused.rest.in) {
    if (!fused.rest.out.empty() && v.buffer == matmul.out[0].buffer) return {};
  }
  if (fused.rest.out.empty()) fused.matmul.flops += chain.step().flops;
  return fused;
}

Step with_slopes(const Step& step, int buffer) {
  Step changed = step;
  auto& code = changed.pointwise.code;
  std::vector<int> now;
  code.clear();
  for (Instr instr : step.pointwise.code) {
    for (int* r : {&instr.a, &instr.b, &instr.c}) {
      if (*r >= 0) *r = now[static_cast<size_t>(*r)];
    }
    code.push_back(instr);
    if (instr.code == PointwiseOp::load &&
        step.in[static_cast<size_t>(instr.slot)].buffer == buffer)
      code.push_back(
          instruction(PointwiseOp::gelu_grad, instr.dtype, static_cast<int>(code.size()) - 1));
    now.push_back(static_cast<int>(code.size()) - 1);
  }
  for (int& reg : changed.pointwise.outputs) reg = now[static_cast<size_t>(reg)];
  return changed;
}

}  // namespace tessera
