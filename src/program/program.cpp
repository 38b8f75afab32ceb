#include "program/program.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/fail.h"
#include "base/hash.h"

namespace tessera {

int64_t AffineExpr::eval(std::span<const int> coordinates, const int64_t* scalars) const {
  uint64_t sum = static_cast<uint64_t>(constant);  // wraps around: streams and seeds are hashes
  const auto add = [&](int64_t factor, int64_t x) {
    sum += static_cast<uint64_t>(factor) * static_cast<uint64_t>(x);
  };
  for (const auto& [axis, factor] : axis_terms) add(factor, coordinates[axis]);
  if (scalar >= 0) add(scalar_factor, scalars[scalar]);
  int64_t value = static_cast<int64_t>(sum);
  if (divisor != 1) value = (value - ((value % divisor) + divisor) % divisor) / divisor;
  if (modulus != 0) value = ((value % modulus) + modulus) % modulus;
  value = std::clamp(value, lo, hi);
  return table ? table->at(static_cast<size_t>(value)) : value;
}

bool AffineExpr::operator==(const AffineExpr& other) const {
  const auto formula = [](const AffineExpr& e) {
    return std::tie(e.constant, e.axis_terms, e.scalar, e.scalar_factor, e.divisor, e.modulus, e.lo,
                    e.hi);
  };
  if (formula(*this) != formula(other) || !table != !other.table) return false;
  return table == other.table || *table == *other.table;
}

std::string AffineExpr::to_string() const {
  std::string text = fmt::format("{}", constant);
  for (const auto& [axis, factor] : axis_terms) text += fmt::format("+{}*c{}", factor, axis);
  if (scalar >= 0) text += fmt::format("+{}*s{}", scalar_factor, scalar);
  if (divisor != 1) text = fmt::format("({})/{}", text, divisor);
  if (modulus != 0) text = fmt::format("({})%{}", text, modulus);
  if (lo != std::numeric_limits<int64_t>::min() || hi != std::numeric_limits<int64_t>::max()) {
    text = fmt::format("clamp({},{},{})", text, lo, hi);
  }
  if (table) text = fmt::format("[{}][{}]", fmt::join(*table, " "), text);
  return text;
}

int64_t View::elements() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

bool View::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0; expected *= sizes[d]) {
    if (sizes[d] != 1 && strides[d] != expected) return false;
  }
  return true;
}

const char* to_string(PointwiseOp code) { return info_of(code).name; }

const char* to_string(ArenaKind arena) {
  static constexpr std::array names = {"persistent", "transient", "offloaded"};
  return names[static_cast<size_t>(arena)];
}

int row_dim(const PointwiseProgram& program) {
  for (const Instr& instr : program.code) {
    if (reduces_row(instr.code)) return instr.slot;
  }
  return -1;
}

std::string name_of(const Step& step) {
  if (step.kind == StepKind::wait) return "wait";
  if (step.kind == StepKind::collective) return to_string(step.collective);
  return step.kernel == KernelKind::none ? step.host.op : std::string(info_of(step.kernel).name);
}

bool is_collective(const Step& step, CollectiveKind kind) {
  return step.kind == StepKind::collective && step.collective == kind;
}

bool has_sums(const Step& step) {
  const auto* const spec = step.find<MatmulSpec>();
  return spec != nullptr && spec->sums >= 0;
}

const View& counted_operand(const Step& step) {
  return info_of(step.collective).grows ? step.out[0] : step.in[0];
}

std::vector<Function*> all_functions(std::vector<Function>& functions) {
  std::vector<Function*> all;
  for (Function& f : functions) {
    for (Step& step : f.steps) {
      const std::vector<Function*> inner = all_functions(step.body);
      all.insert(all.end(), inner.begin(), inner.end());
    }
    all.push_back(&f);
  }
  return all;
}

void visit_views(Step& step, const std::function<void(View&)>& visit) {
  for (auto* views : {&step.in, &step.out, &step.loop.condition})
    std::for_each(views->begin(), views->end(), visit);
  for (Function& body : step.body) {
    for (Step& inner : body.steps) visit_views(inner, visit);
  }
}

void visit_views(const Step& step, const std::function<void(const View&)>& visit) {
  visit_views(const_cast<Step&>(step), [&](View& view) { visit(view); });
}

void rename_in_bodies(Step& step, const std::function<void(int& buffer)>& rename) {
  for (View& view : step.loop.condition) rename(view.buffer);
  for (Function& body : step.body) {
    for (Step& inner : body.steps) {
      for (auto* views : {&inner.in, &inner.out}) {
        for (View& view : *views) rename(view.buffer);
      }
      rename_in_bodies(inner, rename);
    }
    std::for_each(body.outer.begin(), body.outer.end(), rename);
    std::sort(body.outer.begin(), body.outer.end());
  }
}

int Program::function(const std::string& name) const {
  for (size_t i = 0; i < functions.size(); ++i) {
    if (functions[i].name == name) return static_cast<int>(i);
  }
  std::vector<std::string> names;
  for (const Function& f : functions) names.push_back(f.name);
  fail(ErrorKind::usage, "the program has no function '{}'{}", name, suggestion(name, names));
}

uint64_t hash(const Program& program) { return hash_of(to_string(program)); }

}  // namespace tessera
