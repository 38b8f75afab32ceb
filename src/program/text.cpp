// The writer. program/read_program.cpp has the reader; both name buffers by unique names.
#include "program/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "program/buffer_names.h"

namespace tessera {

namespace {

std::string text_of(const PointwiseProgram& pointwise) {
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
    if (instr.code == PointwiseOp::constant || instr.code == PointwiseOp::mask)
      add(fmt::format("{}", instr.imm));
    text += args + ")";
  }
  return text + fmt::format(" -> r{}", fmt::join(pointwise.outputs, ",r"));
}

/// " huber[batch=4,length=6]"
std::string text_of(const HostStep& host) {
  std::string dims;
  for (const auto& [name, size] : host.dims)
    dims += fmt::format("{}{}={}", dims.empty() ? "" : ",", name, size);
  return fmt::format(" {}[{}]", host.op, dims);
}

std::string flag(const char* name, bool is_set) { return is_set ? fmt::format(" {}", name) : ""; }
std::string number(const char* name, int64_t value) {
  return value == 0 ? "" : fmt::format(" {}={}", name, value);
}
std::string list(const char* name, const std::vector<int>& values) {
  return values.empty() ? "" : fmt::format(" {}=[{}]", name, fmt::join(values, ","));
}

/// 3, 0.5, "text", [1,2]; a whole double as 3.0, an empty list with the letter of its type.
struct AttrWriter {
  std::string operator()(int64_t v) const { return fmt::format("{}", v); }
  std::string operator()(double v) const {
    const std::string text = fmt::format("{}", v);
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const std::string& v) const { return quoted(v); }
  template <class T>
  std::string operator()(const std::vector<T>& v) const {
    constexpr char kLetter = std::is_same_v<T, int64_t>  ? 'i'
                             : std::is_same_v<T, double> ? 'd'
                                                         : 's';
    std::string text;
    for (const T& item : v) text += (text.empty() ? "" : ",") + (*this)(item);
    return fmt::format("[{}]{}", text, v.empty() ? std::string(1, kLetter) : "");
  }
};

class ProgramWriter {
 public:
  ProgramWriter(const Program& program, bool notes)
      : program_(program), names_(program.buffers), notes_(notes) {}

  std::string program() {
    text_ = "program 2\nmesh";
    for (size_t i = 0; i < program_.axis_names.size(); ++i)
      text_ += fmt::format(" {}:{}", program_.axis_names[i], program_.axis_sizes[i]);
    text_ +=
        fmt::format("\narenas persistent={} transient={} offloaded={}\n", program_.persistent_bytes,
                    program_.transient_bytes, program_.offloaded_bytes);
    for (const std::string& name : program_.scalars)
      text_ += fmt::format("scalar {}\n", name_text(name));
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      text_ += fmt::format("buffer {} {} {}+{}{}\n", names_.of(static_cast<int>(b)),
                           to_string(buffer.arena), buffer.offset, buffer.bytes,
                           flag("twice", buffer.alternates));
    }
    for (const Port& p : program_.ports) port(p);
    for (const int stored : program_.stored) text_ += fmt::format("stored {}\n", stored);
    for (const Function& f : program_.functions) function(f, "");
    return std::move(text_);
  }

  std::string step(const Step& step) const {
    if (step.kind == StepKind::wait) return fmt::format("wait #{}", step.number);
    std::string text = views(step.out) + " = " + name_of(step);
    if (step.host.function != nullptr || !step.host.dims.empty()) text += text_of(step.host);
    if (!step.body.empty()) text += loop(step.loop);
    if (step.kind == StepKind::collective) {
      text += fmt::format(" #{} over", step.number);
      for (int axis : step.axes) text += " " + this->axis(axis);
    }
    if (step.kind == StepKind::collective || info_of(step.kernel).combines)
      text += fmt::format(" {}", to_string(step.combiner));
    text += "(" + views(step.in) + ")";
    if (!step.pointwise.code.empty()) text += " {" + text_of(step.pointwise) + "}";
    text += to_string(step.spec) + to_string(step.order);
    for (const auto& [name, value] : step.host.attrs.items())
      text += fmt::format(" {}:{}", name_text(name), std::visit(AttrWriter(), value));
    text += number("max_bytes", step.max_bytes);
    for (size_t i = 0; i < step.exprs.size(); ++i)
      text += fmt::format(" e{}={}", i, step.exprs[i].to_string());
    if (step.workspace >= 0) text += " workspace=" + names_.of(step.workspace);
    return text;
  }

 private:
  std::string view(const View& view) const {
    std::string text = fmt::format("{}:{}[{}]/[{}]", names_.of(view.buffer), to_string(view.dtype),
                                   fmt::join(view.sizes, ","), fmt::join(view.strides, ","));
    if (view.offset != 0) text += fmt::format("+{}", view.offset);
    if (!(view.shift == AffineExpr{})) text += "+{" + view.shift.to_string() + "}";
    return text;
  }
  std::string views(const std::vector<View>& list) const {
    std::string text;
    for (const View& v : list) text += (text.empty() ? "" : ", ") + view(v);
    return text;
  }

  const std::string& axis(int a) const { return program_.axis_names[static_cast<size_t>(a)]; }

  std::string loop(const LoopStep& loop) const {
    std::string text = fmt::format(" {} iterations, s{} {}", loop.iterations, loop.counter,
                                   loop.reverse ? "down" : "up");
    for (const View& v : loop.condition) text += " while " + view(v);
    if (loop.end >= 0) text += fmt::format(" from {} below {}", loop.first.to_string(), loop.end);
    if (loop.stage_axis >= 0) text += " of stages along " + axis(loop.stage_axis);
    if (!loop.share) return text;
    text += loop.share->axis < 0 ? " each" : " along " + axis(loop.share->axis);
    return text + loop.share->to_string();
  }

  void port(const Port& port) {
    text_ += fmt::format("port {} {}", name_text(port.name), view(port.view));
    for (size_t d = 0; d < port.dims.size(); ++d) {
      text_ += fmt::format(" {}={}", name_text(port.dims[d]), port.sizes[d]);
      if (port.scalars[d] >= 0) text_ += fmt::format("<s{}", port.scalars[d]);
      for (int axis : port.axes[d]) text_ += "@" + this->axis(axis);
    }
    text_ += '\n';
  }

  void function(const Function& f, const std::string& indent) {
    static constexpr const char* kKinds[] = {"function", "init", "body"};
    text_ += indent + kKinds[static_cast<size_t>(f.kind)] + " " + name_text(f.name) +
             list("inputs", f.inputs) + list("outputs", f.outputs) + flag("updates", f.updates) +
             flag("by_microbatches", f.by_microbatches) + number("first_update", f.first_update) +
             list("outer", f.outer) + flag("overlaps", f.overlaps) + number("early", f.early) +
             number("late", f.late) + "\n";
    for (const Step& s : f.steps) {
      text_ += indent + "  " + step(s) + (notes_ ? notes(s) : "") + "\n";
      for (const Function& body : s.body) function(body, indent + "    ");
    }
  }

  /// "  # flops=8 unused=[1] | mlp.hidden | model.cpp:41 | rule 'batch:data'"
  static std::string notes(const Step& step) {
    const Origin& o = step.origin;
    const std::string numbers =
        number("flops", step.flops) + number("bytes", step.bytes) + list("unused", step.unused);
    if (numbers.empty() && o.name.empty() && o.source.empty() && o.reason.empty()) return "";
    return fmt::format("  #{} | {} | {} | {}", numbers, quoted(o.name), quoted(o.source),
                       quoted(o.reason));
  }

  const Program& program_;
  BufferNames names_;
  bool notes_;
  std::string text_ = {};
};

}  // namespace

std::string to_string(const Program& program) { return ProgramWriter(program, false).program(); }

std::string to_string(const Program& program, const Step& step) {
  return ProgramWriter(program, false).step(step);
}

std::string write_program(const Program& program) {
  const std::string text = ProgramWriter(program, true).program();
  return text + fmt::format("hash {:016x}\n", hash_of(text));
}

}  // namespace tessera
