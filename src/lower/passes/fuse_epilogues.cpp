// A matmul takes over instructions of the pointwise step that is the only reader of its result:
//   y = matmul(a, b)                      ->  d = matmul(a, b, c) {y + c}
//   d, e = pointwise(y, c, ...) {y + c ...}     e = pointwise(d, ...)
// An instruction may join if it is the only user of the value before it, starting from the load of
// y. The pass takes the longest epilogue that the device can run, that moves fewer bytes, and whose
// result the pointwise step stores. Instead of being stored, the result may also overwrite a matrix
// that the epilogue adds and that nothing reads afterwards; equally many bytes are enough then.
//
// The fused step stands at the matmul's place, or after the last step that computes one of its
// operands. It moves down only for operands that are smaller than its result (a bias), because its
// own operands live longer then. So if two matmuls are added, the later one takes over the sum.
// Where gelu can join a matmul this way, readers of gelu_grad(x) load x instead and compute
// gelu_grad themselves.
#include "lower/passes/fuse_epilogues.h"

#include <algorithm>
#include <map>
#include <set>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/epilogue_chain.h"
#include "lower/passes/fuse_merge.h"

namespace tessera {

namespace {

constexpr int kMatmulReach = 64;  ///< steps that a matmul may move down

class Epilogues {
 public:
  Epilogues(Program& program, Function& function, const std::function<bool(const Step&)>& takes)
      : program_(program),
        function_(function),
        takes_(takes),
        fixed_(fixed_buffers(program, function)),
        uses_(program.buffers.size()) {}

  void run() {
    std::map<int, std::vector<int>> started;
    for (int s = 0; s < count(); ++s) {
      const Step& step = function_.steps[s];
      note(step, s);
      if (step.kind == StepKind::collective) started[step.number].push_back(s);
      if (step.kind != StepKind::wait) continue;
      for (const int member : started[step.number]) note(function_.steps[member], s);
    }
    places_.resize(function_.steps.size());
    for (int s = 0; s < count(); ++s) places_[s].push_back(std::move(function_.steps[s]));
    for (int s = 0; s < count(); ++s) {
      if (info_of(at(s).kernel).fusion == Fusion::epilogue) extend(s);
    }
    put_together();
  }

 private:
  struct Use {
    int place;
    bool writes;
  };

  int count() const { return static_cast<int>(function_.steps.size()); }
  /// The step that was at `place` at first; steps moved there stand after it.
  Step& at(int place) { return places_[place][0]; }

  void note(const Step& step, int place) {
    for (const View& v : step.in) uses_[v.buffer].push_back({place, false});
    for (const View& v : step.out) uses_[v.buffer].push_back({place, true});
  }
  void forget(const Step& step, int place) {
    for (const auto& [views, writes] : {std::pair(&step.in, false), {&step.out, true}}) {
      for (const View& v : *views) {
        auto& uses = uses_[v.buffer];
        const auto it = std::find_if(uses.begin(), uses.end(), [&, w = writes](const Use& u) {
          return u.place == place && u.writes == w;
        });
        if (it != uses.end()) uses.erase(it);
      }
    }
  }

  /// The place of the only reader of a buffer that only the step at `place` writes; else -1.
  int reader_of(int buffer, int place) const {
    int reader = -1;
    for (const Use& use : uses_[buffer]) {
      if (use.writes ? use.place != place : reader >= 0) return -1;
      if (!use.writes) reader = use.place;
    }
    return fixed_[buffer] ? -1 : reader;
  }

  bool is_used(int buffer, int after, int before, bool writes_only) const {
    const auto& uses = uses_[buffer];
    return std::any_of(uses.begin(), uses.end(), [&](const Use& u) {
      return u.place > after && u.place < before && (u.writes || !writes_only);
    });
  }

  /// Gives the matmul at `place` an epilogue if possible.
  void extend(int place) {
    const int reader = reader_of(at(place).out[0].buffer, place);
    if (reader <= place || !is_pointwise(at(reader))) return;
    if (const std::optional<Step> without = without_slopes(reader);
        without && extend(place, reader, *without)) {
      for (auto& [lender, step] : lent_) at(lender) = std::move(step);
      for (const auto& [buffer, result] : now_operands_)
        program_.buffers[buffer].name = program_.buffers[result].name + ".operand";
      return;
    }
    extend(place, reader, Step(at(reader)));
  }

  bool extend(int place, int reader, const Step& step) {
    const Step& matmul = at(place);
    const EpilogueChain chain(step, matmul.out[0].buffer);
    if (chain.load() < 0 || chain.output(chain.load()) >= 0) return false;
    for (size_t count = chain.regs().size(); count > 0; --count) {
      const int last = chain.regs()[count - 1];
      const int stored = chain.output(last);
      const View* result = stored >= 0 ? &step.out[stored] : dying(chain, count, reader);
      if (result == nullptr || result->dtype != chain.at(last).dtype) continue;
      const std::optional<FusedEpilogue> fused = fuse_epilogue(matmul, chain, *result, count);
      if (!fused || !saves(matmul, step, *fused, stored < 0) || !takes_(fused->matmul)) continue;
      const int to = place_for(fused->matmul, place, reader);
      if (to < 0) continue;
      apply(*fused, place, to, reader);
      return true;
    }
    return false;
  }

  /// The matrix that the last of `count` instructions adds, if nothing reads it afterwards; else
  /// null.
  const View* dying(const EpilogueChain& chain, size_t count, int reader) const {
    const int last = chain.regs()[count - 1];
    if (chain.at(last).code != PointwiseOp::add) return nullptr;
    const View& v =
        chain.view(chain.other(last, count > 1 ? chain.regs()[count - 2] : chain.load()));
    const bool whole = v.is_contiguous() && v.offset == 0 && v.shift == AffineExpr{} &&
                       v.elements() * size_of(v.dtype) == program_.buffers[v.buffer].bytes;
    const bool dies = !fixed_[v.buffer] && !is_used(v.buffer, reader, this->count(), false);
    return whole && dies ? &v : nullptr;
  }

  static bool saves(const Step& matmul, const Step& step, const FusedEpilogue& fused,
                    bool in_place) {
    const int64_t before = touched_bytes(matmul) + touched_bytes(step);
    const int64_t after =
        touched_bytes(fused.matmul) + (fused.rest.out.empty() ? 0 : touched_bytes(fused.rest));
    return in_place ? after <= before : after < before;
  }

  /// The earliest place at which all operands of the matmul are ready; -1 if it cannot move there.
  int place_for(const Step& matmul, int from, int reader) const {
    int to = from;
    for (size_t k = 2; k < matmul.in.size(); ++k) {
      const View& v = matmul.in[k];
      for (const Use& use : uses_[v.buffer]) {
        if (!use.writes || use.place <= to || use.place >= reader) continue;
        if (touched_bytes(v) >= touched_bytes(matmul.out[0])) return -1;
        to = use.place;
      }
    }
    const int stores = function_.first_update;
    if (to - from > kMatmulReach || (from < stores && to >= stores)) return -1;
    const bool is_body = !function_.outer.empty();
    if (from < stores && reader >= stores && !is_body) return -1;  // would store before the test
    const auto overwritten = [&](const View& v) { return is_used(v.buffer, from, to + 1, true); };
    const auto in_use = [&](const View& v) { return is_used(v.buffer, to, reader, false); };
    return std::any_of(matmul.in.begin(), matmul.in.begin() + 2, overwritten) ||
                   std::any_of(matmul.out.begin(), matmul.out.end(), in_use)
               ? -1
               : to;
  }

  void apply(const FusedEpilogue& fused, int from, int to, int reader) {
    forget(at(from), from);
    forget(at(reader), reader);
    note(fused.matmul, to);
    if (!fused.rest.out.empty()) note(fused.rest, reader);
    at(reader) = fused.rest;
    if (to == from) {
      at(from) = fused.matmul;
    } else {
      at(from).kernel = KernelKind::none;
      places_[to].push_back(fused.matmul);
    }
  }

  /// The step at `place`, changed to store x instead of gelu_grad(x). lent_ gets the readers, which
  /// then compute gelu_grad(x) themselves.
  std::optional<Step> without_slopes(int place) {
    lent_.clear();
    now_operands_.clear();
    Step changed = at(place);
    const auto& code = at(place).pointwise.code;
    for (size_t k = 0; k < changed.out.size(); ++k) {
      const int buffer = changed.out[k].buffer;
      int& reg = changed.pointwise.outputs[k];
      if (code[reg].code != PointwiseOp::gelu_grad || fixed_[buffer] ||
          code[code[reg].a].dtype != code[reg].dtype || !may_lend(buffer, place))
        continue;
      reg = code[reg].a;
      for (size_t j = 0; j < changed.out.size(); ++j) {
        const Instr& other = code[at(place).pointwise.outputs[j]];
        if (other.code == PointwiseOp::gelu && other.a == reg)
          now_operands_[buffer] = changed.out[j].buffer;
      }
      for (const Use& use : uses_[buffer]) {
        if (use.writes) continue;
        const auto known = lent_.find(use.place);
        lent_.insert_or_assign(
            use.place, with_slopes(known == lent_.end() ? at(use.place) : known->second, buffer));
      }
    }
    if (lent_.empty()) return {};
    return with_sources(changed, {});
  }

  bool may_lend(int buffer, int place) {
    const auto& uses = uses_[buffer];
    return std::all_of(uses.begin(), uses.end(), [&](const Use& u) {
      return u.writes ? u.place == place : u.place > place && is_pointwise(at(u.place));
    });
  }

  void put_together() {
    std::vector<Step> steps;
    int stores = 0;
    for (int s = 0; s <= count(); ++s) {
      if (s == function_.first_update) stores = static_cast<int>(steps.size());
      if (s == count()) break;
      for (Step& step : places_[s]) {
        const bool gone =
            step.kind == StepKind::compute &&
            (step.kernel == KernelKind::none || (is_pointwise(step) && step.out.empty()));
        if (!gone) steps.push_back(std::move(step));
      }
    }
    function_.first_update = stores;
    function_.steps = std::move(steps);
  }

  Program& program_;
  Function& function_;
  const std::function<bool(const Step&)>& takes_;
  std::vector<char> fixed_;             ///< by buffer: also used outside of this function
  std::vector<std::vector<Use>> uses_;  ///< by buffer
  std::vector<std::vector<Step>> places_;
  std::map<int, Step> lent_;         ///< by place: changed readers
  std::map<int, int> now_operands_;  ///< buffer with the operand of gelu -> result of gelu
};

}  // namespace

void fuse_epilogues(Program& program, const std::function<bool(const Step&)>& takes) {
  if (!takes) return;
  for (Function* f : all_functions(program.functions)) Epilogues(program, *f, takes).run();
  drop_unused_buffers(program);
}

}  // namespace tessera
