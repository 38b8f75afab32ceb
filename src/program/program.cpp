#include "program/program.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/fail.h"
#include "base/hash.h"

namespace tessera {

int64_t IntExpr::eval(std::span<const int> coordinates, const int64_t* scalars) const {
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

bool IntExpr::operator==(const IntExpr& other) const {
  const auto formula = [](const IntExpr& e) {
    return std::tie(e.constant, e.axis_terms, e.scalar, e.scalar_factor, e.divisor, e.modulus, e.lo,
                    e.hi);
  };
  if (formula(*this) != formula(other) || !table != !other.table) return false;
  return table == other.table || *table == *other.table;
}

std::string IntExpr::to_string() const {
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

const char* to_string(Code code) { return info_of(code).name; }

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
  const auto* const spec = step.find<ContractSpec>();
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

namespace {

std::string print_view(const Program& program, const View& view) {
  std::string text =
      fmt::format("{}:{}[{}]", view.buffer < 0 ? "?" : program.buffers[view.buffer].name,
                  to_string(view.dtype), fmt::join(view.sizes, ","));
  text += fmt::format("/[{}]", fmt::join(view.strides, ","));
  if (view.offset != 0) text += fmt::format("+{}", view.offset);
  if (!(view.shift == IntExpr{})) text += "+" + view.shift.to_string();
  return text;
}

std::string print_pointwise(const PointwiseProgram& pointwise) {
  std::string text;
  for (size_t i = 0; i < pointwise.code.size(); ++i) {
    const Instr& instr = pointwise.code[i];
    text += fmt::format("{}r{}:{}={}(", i == 0 ? "" : "; ", i, to_string(instr.dtype),
                        to_string(instr.code));
    std::string args;
    auto add = [&](const std::string& arg) { args += (args.empty() ? "" : ",") + arg; };
    for (int reg : {instr.a, instr.b, instr.c}) {
      if (reg >= 0) add(fmt::format("r{}", reg));
    }
    if (instr.slot >= 0) add(fmt::format("#{}", instr.slot));
    if (instr.expr >= 0) add(fmt::format("e{}", instr.expr));
    if (instr.code == Code::constant || instr.code == Code::mask)
      add(fmt::format("{:.9g}", instr.imm));
    text += args + ")";
  }
  return text + fmt::format(" -> r{}", fmt::join(pointwise.outputs, ",r"));
}

/// " huber[batch=4,length=6]"
std::string print_host(const HostStep& host) {
  std::string dims;
  for (const auto& [name, size] : host.dims)
    dims += fmt::format("{}{}={}", dims.empty() ? "" : ",", name, size);
  return fmt::format(" {}[{}]", host.op, dims);
}

std::string print_loop(const Program& program, const LoopStep& loop, const Function& body) {
  std::string text = fmt::format(" {} iterations, s{} {}", loop.iterations, loop.counter,
                                 loop.reverse ? "down" : "up");
  for (const View& view : loop.condition) text += " while " + print_view(program, view);
  if (loop.end >= 0) text += fmt::format(" from {} below {}", loop.first.to_string(), loop.end);
  if (loop.stage_axis >= 0)
    text += fmt::format(" of stages along {}", program.axis_names[loop.stage_axis]);
  if (loop.share) text += loop.share->to_string();
  if (body.early > 0) text += fmt::format(", {} steps an iteration early", body.early);
  if (body.late > 0) text += fmt::format(", {} waits an iteration late", body.late);
  return text;
}

}  // namespace

std::string to_string(const Program& program, const Step& step) {
  if (step.kind == StepKind::wait) return fmt::format("wait #{}", step.number);
  std::string text;
  for (size_t i = 0; i < step.out.size(); ++i)
    text += (i ? ", " : "") + print_view(program, step.out[i]);
  text += " = " + name_of(step);
  if (step.host.function) text += print_host(step.host);
  if (!step.body.empty()) text += print_loop(program, step.loop, step.body[0]);
  if (step.kind == StepKind::collective) {
    text += fmt::format(" #{} over", step.number);
    for (int axis : step.axes) text += " " + program.axis_names[axis];
  }
  if (step.kind == StepKind::collective || info_of(step.kernel).combines) {
    text += fmt::format(" {}", to_string(step.combiner));
  }
  text += "(";
  for (size_t i = 0; i < step.in.size(); ++i)
    text += (i ? ", " : "") + print_view(program, step.in[i]);
  text += ")";
  if (!step.pointwise.code.empty()) text += " {" + print_pointwise(step.pointwise) + "}";
  text += to_string(step.spec);
  for (const Attrs* attrs : {&step.host.attrs, &step.attrs})
    if (!attrs->items().empty()) text += " " + attrs->to_string();
  if (step.max_bytes > 0) text += fmt::format(" max_bytes={}", step.max_bytes);
  for (size_t i = 0; i < step.exprs.size(); ++i)
    text += fmt::format(" e{}={}", i, step.exprs[i].to_string());
  return text;
}

namespace {

std::string print_steps(const Program& program, const std::vector<Step>& steps,
                        const std::string& indent) {
  std::string text;
  for (const Step& step : steps) {
    text += indent + to_string(program, step) + "\n";
    for (const Function& body : step.body) text += print_steps(program, body.steps, indent + "  ");
  }
  return text;
}

}  // namespace

std::string to_string(const Program& program) {
  std::string text = "mesh";
  for (size_t i = 0; i < program.axis_names.size(); ++i) {
    text += fmt::format(" {}:{}", program.axis_names[i], program.axis_sizes[i]);
  }
  text += fmt::format("\narenas persistent={} transient={}", program.persistent_bytes,
                      program.transient_bytes);
  if (program.offloaded_bytes > 0) text += fmt::format(" offloaded={}", program.offloaded_bytes);
  text += '\n';
  for (const Port& port : program.ports) {
    text += fmt::format("port {} {}", port.name, print_view(program, port.view));
    for (size_t d = 0; d < port.dims.size(); ++d) {
      text += fmt::format(" {}={}", port.dims[d], port.sizes[d]);
      for (int axis : port.axes[d]) text += "@" + program.axis_names[axis];
    }
    text += '\n';
  }
  for (const Buffer& b : program.buffers) {
    text += fmt::format("buffer {} {} {}+{}{}\n", b.name, to_string(b.arena), b.offset, b.bytes,
                        b.alternates ? " twice" : "");
  }
  for (const Function& f : program.functions) {
    text += fmt::format("function {}\n", f.name) + print_steps(program, f.steps, "  ");
  }
  return text;
}

uint64_t hash(const Program& program) { return hash_of(to_string(program)); }

}  // namespace tessera
