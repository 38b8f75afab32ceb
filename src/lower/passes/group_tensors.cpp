// Steps that read only stored tensors (casts of weights) move up to the first of their group, all
// others down to the last.
#include "lower/passes/group_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lower/passes/fuse_merge.h"
#include "lower/passes/liveness.h"
#include "lower/passes/step_bounds.h"

namespace tessera {

namespace {

/// The arguments of a kernel are at most 4 KB, an address each.
constexpr size_t kMostOperands = 480;

bool is_scalar(const View& v) {
  return std::all_of(v.strides.begin(), v.strides.end(), [](int64_t s) { return s == 0; });
}

/// True for instructions that depend on nothing but their operands, over contiguous tensors.
bool may_join(const Program& program, const Step& step) {
  if (step.kernel != KernelKind::pointwise || !step.exprs.empty() || step.out.empty()) return false;
  for (const Instr& instr : step.pointwise.code) {
    const bool plain = instr.code == PointwiseOp::load ||
                       !(is_positional(instr.code) || changes_with_layout(instr.code));
    if (!plain) return false;
  }
  const auto fits = [&](const View& v, bool may_be_scalar) {
    if (program.buffers[static_cast<size_t>(v.buffer)].arena == ArenaKind::offloaded) return false;
    if (may_be_scalar && is_scalar(v)) return true;
    return v.sizes == step.out[0].sizes && v.is_contiguous() && v.shift == AffineExpr{};
  };
  return step.out[0].elements() > 1 &&
         std::all_of(step.in.begin(), step.in.end(),
                     [&](const View& v) { return fits(v, true); }) &&
         std::all_of(step.out.begin(), step.out.end(),
                     [&](const View& v) { return fits(v, false); });
}

/// Equal for steps that one kernel can run.
std::string key_of(const Step& step) {
  std::string key = fmt::format("{}", step.out[0].elements() % 4 == 0);
  for (const Instr& i : step.pointwise.code)
    key += fmt::format(";{} {} {} {} {} {} {:a}", static_cast<int>(i.code),
                       static_cast<int>(i.dtype), i.a, i.b, i.c, i.slot, i.imm);
  for (const int reg : step.pointwise.outputs) key += fmt::format(">{}", reg);
  for (const View& v : step.out) key += fmt::format("o{}", static_cast<int>(v.dtype));
  for (const View& v : step.in) {
    key += fmt::format("i{}", static_cast<int>(v.dtype));
    if (is_scalar(v)) key += fmt::format("s{}+{}{}", v.buffer, v.offset, v.shift.to_string());
  }
  return key;
}

View flat(const View& v) {
  View line = v;
  line.sizes = {v.elements()};
  line.strides = {is_scalar(v) ? 0 : 1};
  return line;
}

/// "optimizer.gpt.*" of names that begin alike.
std::string common_name(const std::string& a, const std::string& b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  std::string name(a.begin(), differ);
  while (!name.empty() && name.back() != '.') name.pop_back();
  return name + "*";
}

Step group_of(const std::vector<const Step*>& members) {
  Step group = *members[0];
  group.spec = TensorGroup{static_cast<int64_t>(members.size())};
  group.in.clear();
  group.out.clear();
  group.flops = 0;
  std::vector<int> slots(members[0]->in.size(), -1);
  int next = 0;
  for (const bool scalars : {true, false}) {
    for (size_t k = 0; k < slots.size(); ++k) {
      if (is_scalar(members[0]->in[k]) != scalars) continue;
      slots[k] = next++;
      if (scalars) group.in.push_back(flat(members[0]->in[k]));
    }
  }
  for (Instr& instr : group.pointwise.code) {
    if (instr.code == PointwiseOp::load) instr.slot = slots[static_cast<size_t>(instr.slot)];
  }
  for (const Step* member : members) {
    for (const View& v : member->in) {
      if (!is_scalar(v)) group.in.push_back(flat(v));
    }
    for (const View& v : member->out) group.out.push_back(flat(v));
    group.flops += member->flops;
    group.origin.name = common_name(group.origin.name, member->origin.name);
    if (member->unused != group.unused) group.unused.clear();
  }
  return group;
}

class Grouper {
 public:
  Grouper(const Program& program, Function& function)
      : program_(program), function_(function), bounds_(program, function) {}

  void run() {
    const int stores = function_.first_update;
    gather(function_.early, stores - function_.late);
    gather(stores, count());
    put_together();
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  const Step& at(int place) const { return function_.steps[static_cast<size_t>(place)]; }

  bool reads_stored_only(const Step& step) const {
    return std::all_of(step.in.begin(), step.in.end(), [&](const View& v) {
      return program_.buffers[static_cast<size_t>(v.buffer)].arena == ArenaKind::persistent;
    });
  }

  void gather(int first, int last) {
    std::map<std::string, std::vector<int>> up, down;  // the open group of a key
    for (int s = first; s < last; ++s) {
      if (!may_join(program_, at(s)) || !reads_stored_only(at(s))) continue;
      std::vector<int>& open = up[key_of(at(s))];
      if (!open.empty() && (bounds_.of(s).first >= open[0] || is_full(open))) close(open, open[0]);
      open.push_back(s);
    }
    for (auto& [key, open] : up) close(open, open[0]);
    for (int s = last; s-- > first;) {
      if (!may_join(program_, at(s)) || reads_stored_only(at(s))) continue;
      std::vector<int>& open = down[key_of(at(s))];
      if (!open.empty() && (bounds_.of(s).second <= open[0] || is_full(open))) close(open, open[0]);
      open.push_back(s);
    }
    for (auto& [key, open] : down) close(open, open[0]);
  }

  bool is_full(const std::vector<int>& members) const {
    const size_t each = at(members[0]).in.size() + at(members[0]).out.size();
    return (members.size() + 1) * each > kMostOperands;
  }

  /// Makes a group of the members, at `place`.
  void close(std::vector<int>& members, int place) {
    std::sort(members.begin(), members.end());
    if (members.size() > 1) groups_[place] = members;
    members.clear();
  }

  void put_together() {
    std::vector<char> grouped(function_.steps.size(), 0);
    for (const auto& [place, members] : groups_) {
      for (const int m : members) grouped[static_cast<size_t>(m)] = 1;
    }
    std::vector<Step> steps;
    int stores = 0;
    for (int s = 0; s <= count(); ++s) {
      if (s == function_.first_update) stores = static_cast<int>(steps.size());
      if (s == count()) break;
      if (const auto it = groups_.find(s); it != groups_.end()) {
        std::vector<const Step*> members;
        for (const int m : it->second) members.push_back(&at(m));
        steps.push_back(group_of(members));
      } else if (!grouped[static_cast<size_t>(s)]) {
        steps.push_back(at(s));
      }
    }
    function_.steps = std::move(steps);
    function_.first_update = stores;
  }

  const Program& program_;
  Function& function_;
  StepBounds bounds_;
  std::map<int, std::vector<int>> groups_;  ///< by place
};

}  // namespace

void group_tensors(Program& program) {
  for (Function* f : all_functions(program.functions)) {
    const Function before = *f;
    const int64_t peak = peak_live_bytes(program, *f);
    Grouper(program, *f).run();
    if (peak_live_bytes(program, *f) > peak + peak / 64) *f = before;
  }
}

}  // namespace tessera
