// Two views have one value if they are the same slice of a buffer from outside that neither loop
// changes in between, or results of equal pointwise steps of such views (a weight in another
// dtype). The kept results get a buffer of one slice for each iteration, as stacked values have.
#include "lower/passes/save_expert_activations.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "lower/passes/liveness.h"
#include "program/windows.h"

namespace tessera {

namespace {

constexpr int64_t kAlignment = 64;

bool is_again(const Step& step) { return step.origin.name.find(".again") != std::string::npos; }

/// A loop whose iterations all run, one after the other.
bool is_plain_loop(const Step& step) {
  return step.kernel == KernelKind::loop && step.body.size() == 1 && !step.loop.share &&
         step.loop.end < 0 && step.loop.condition.empty() && step.loop.iterations > 1;
}

/// The body of a loop, with the step that writes each buffer of an iteration.
class Body {
 public:
  explicit Body(Step& loop)
      : loop_(&loop), outer_(loop.body[0].outer.begin(), loop.body[0].outer.end()) {
    for (const Step& step : function().steps) {
      for (const View& v : step.out) {
        const bool is_first = writers_.emplace(v.buffer, &step).second;
        if (!is_first) writers_[v.buffer] = nullptr;
      }
      visit_views(step, [&](const View& v) {
        if (v.shift != AffineExpr() || !step.body.empty()) fixed_.insert(v.buffer);
      });
    }
  }

  Step& loop() const { return *loop_; }
  Function& function() const { return loop_->body[0]; }
  int counter() const { return loop_->loop.counter; }

  bool is_outer(int buffer) const { return outer_.contains(buffer); }
  /// The only step that writes a buffer of an iteration, or null.
  const Step* writer(int buffer) const {
    const auto found = writers_.find(buffer);
    return is_outer(buffer) || found == writers_.end() ? nullptr : found->second;
  }
  /// Whether steps without bodies use the buffer where it begins.
  bool is_movable(int buffer) const { return !fixed_.contains(buffer); }

 private:
  Step* loop_;
  std::set<int> outer_, fixed_;
  std::map<int, const Step*> writers_;
};

/// Two loops of a function, of which the second may read what the first keeps.
class Pair {
 public:
  Pair(Program& program, const Function& function, size_t first, size_t second, Step& one,
       Step& two)
      : program_(program), first_(one), second_(two) {
    for (size_t s = first + 1; s <= second; ++s) {
      for (const View& v : function.steps[s].out) changed_.insert(v.buffer);
    }
  }

  void run() {
    std::vector<Step>& steps = second_.function().steps;
    for (size_t s = 0; s < steps.size();) {
      const Step* like = keepable(steps[s]) ? find_like(steps[s]) : nullptr;
      if (like == nullptr) {
        ++s;
        continue;
      }
      second_.loop().flops -= second_.loop().loop.iterations * steps[s].flops;
      const View result = steps[s].out[0];
      steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(s));
      int& first_update = second_.function().first_update;
      if (static_cast<int>(s) < first_update) --first_update;
      keep(like->out[0], result);
    }
  }

 private:
  static bool keepable(const Step& step) {
    return info_of(step.kernel).cost == KernelCost::grouped && step.out.size() == 1 &&
           !is_again(step);
  }

  /// The step of the first loop with the same operands, whose result has the same form.
  const Step* find_like(const Step& step) const {
    const int result = step.out[0].buffer;
    if (second_.writer(result) != &step || !second_.is_movable(result)) return nullptr;
    for (const Step& other : first_.function().steps) {
      const int kept = other.out.empty() ? -1 : other.out[0].buffer;
      if (!keepable(other) || first_.writer(kept) != &other || !first_.is_movable(kept)) continue;
      View out = step.out[0];
      out.buffer = other.out[0].buffer;
      if (out == other.out[0] && fills_buffer(program_, out) && are_alike(other, step))
        return &other;
    }
    return nullptr;
  }

  bool are_alike(const Step& a, const Step& b) const {
    if (a.kernel != b.kernel || a.kind != b.kind || a.in.size() != b.in.size() ||
        a.spec != b.spec || a.exprs != b.exprs || !(a.pointwise == b.pointwise) ||
        a.unused != b.unused)
      return false;
    const auto varies = [](const AffineExpr& e) { return e.depends_on_scalars(); };
    if (std::any_of(a.exprs.begin(), a.exprs.end(), varies)) return false;
    for (size_t i = 0; i < a.in.size(); ++i) {
      if (!is_one_value(a.in[i], b.in[i])) return false;
    }
    return true;
  }

  bool is_one_value(const View& a, const View& b) const {
    View there = b;
    if (there.shift.scalar == second_.counter()) there.shift.scalar = first_.counter();
    if (first_.is_outer(a.buffer) || second_.is_outer(b.buffer)) {
      if (!(there == a) || changed_.contains(a.buffer)) return false;
      // A carry is another value in every iteration.
      return !touches(first_.loop().out, a.buffer) || a.shift.scalar == first_.counter();
    }
    const Step *x = first_.writer(a.buffer), *y = second_.writer(b.buffer);
    there.buffer = a.buffer;
    if (x == nullptr || y == nullptr || !(there == a)) return false;
    return x->kernel == KernelKind::pointwise && x->out.size() == 1 && y->out.size() == 1 &&
           are_alike(*x, *y);
  }

  /// Gives each iteration its own `of_first`, and the second loop that in place of `of_second`.
  void keep(const View of_first, const View of_second) {
    const Buffer& one = program_.buffers[static_cast<size_t>(of_first.buffer)];
    const int64_t slice = (one.bytes + kAlignment - 1) / kAlignment * kAlignment;
    const Buffer kept{one.name + ".kept", ArenaKind::transient,
                      slice * first_.loop().loop.iterations};
    const auto buffer = static_cast<int>(program_.buffers.size());
    const int from = of_first.buffer, to = of_second.buffer;
    const int64_t stride = slice / size_of(of_first.dtype);
    program_.buffers.push_back(kept);
    first_.loop().out.push_back(replace(first_, from, buffer, stride));
    first_.loop().in.push_back(first_.loop().out.back());
    second_.loop().in.push_back(replace(second_, to, buffer, stride));
    first_ = Body(first_.loop());
    second_ = Body(second_.loop());
  }

  static View replace(Body& body, int from, int to, int64_t stride) {
    View last;
    for (Step& step : body.function().steps) {
      visit_views(step, [&](View& v) {
        if (v.buffer != from) return;
        v.buffer = to;
        v.shift.scalar = body.counter();
        v.shift.scalar_factor = stride;
        last = v;
      });
    }
    body.function().outer.push_back(to);
    return last;
  }

  Program& program_;
  Body first_, second_;
  std::set<int> changed_;  ///< buffers written after the first loop, until the end of the second
};

}  // namespace

void save_expert_activations(Program& program) {
  for (Function* f : all_functions(program.functions)) {
    for (size_t b = 0; b < f->steps.size(); ++b) {
      for (size_t a = 0; a < b && is_plain_loop(f->steps[b]); ++a) {
        Step &one = f->steps[a], &two = f->steps[b];
        if (is_plain_loop(one) && one.loop.iterations == two.loop.iterations)
          Pair(program, *f, a, b, one, two).run();
      }
    }
  }
}

}  // namespace tessera
