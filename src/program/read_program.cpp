// A line is read from left to right; lists of "key=value" are collected first and then given to the
// fields of what they describe. Bodies belong to the step above them, by indentation.
#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/fail.h"
#include "base/hash.h"
#include "program/buffer_names.h"
#include "program/read_spec.h"
#include "program/text.h"

namespace tessera {

namespace {

std::optional<PointwiseOp> find_code(std::string_view name) {
  for (size_t i = 0; i < std::size(kInstructions); ++i) {
    if (name == kInstructions[i].name) return static_cast<PointwiseOp>(i);
  }
  return {};
}

template <class E, size_t kCount>
E find_named(TextLine& line, const std::string& name, const char* what) {
  for (size_t i = 0; i < kCount; ++i) {
    if (name == to_string(static_cast<E>(i))) return static_cast<E>(i);
  }
  line.refuse("'{}' is no {}", name, what);
}
DType read_dtype(TextLine& line) {
  const std::string name = line.word("[=");
  try {
    return parse_dtype(name.c_str());
  } catch (const Error&) {
    line.refuse("'{}' is no dtype", name);
  }
}
Combiner read_combiner(TextLine& line, std::string_view ends) {
  return find_named<Combiner, static_cast<size_t>(Combiner::all) + 1>(line, line.word(ends),
                                                                      "combiner");
}

class Reader {
 public:
  explicit Reader(const std::string& text) {
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      lines_.emplace_back(std::string_view(text).substr(begin, end - begin));
    if (lines_.empty() || !lines_[0].starts_with("program "))
      line(0).refuse("it begins with no 'program'");
    if (lines_[0] != "program 2")
      line(0).refuse("'{}' is of another version; this one reads 'program 2'", lines_[0]);
    if (begin != text.size() || !lines_.back().starts_with("hash "))
      line(lines_.size()).refuse("the text ends without its hash, so a part is missing");
    const size_t last = text.rfind("hash ");
    const std::string found =
        fmt::format("{:016x}", hash_of(std::string_view(text).substr(0, last)));
    if (lines_.back().substr(5) != found)
      line(lines_.size() - 1)
          .refuse("the hash of the lines above is {}, so they were edited", found);
    lines_.pop_back();
  }

  Program program() {
    for (at_ = 1; at_ < lines_.size();) {
      TextLine l = line(at_);
      if (l.accept("mesh")) {
        read_mesh(l);
      } else if (l.accept("arenas ")) {
        read_arenas(l);
      } else if (l.accept("scalar ")) {
        program_.scalars.push_back(l.name(""));
      } else if (l.accept("buffer ")) {
        read_buffer(l);
      } else if (l.accept("port ")) {
        read_port(l);
      } else if (l.accept("stored ")) {
        program_.stored.push_back(l.index(program_.ports.size(), "port"));
      } else {
        program_.functions.push_back(function(0));
        continue;
      }
      end_of(l);
      ++at_;
    }
    return std::move(program_);
  }

 private:
  TextLine line(size_t at) const {
    return {at < lines_.size() ? lines_[at] : std::string_view(), static_cast<int>(at) + 1};
  }
  static void end_of(const TextLine& l) {
    if (!l.at_end()) l.refuse("'{}' is too much", l.rest());
  }

  void read_mesh(TextLine& l) {
    while (l.accept(" ")) {
      program_.axis_names.push_back(l.word(": "));
      l.expect(":");
      program_.axis_sizes.push_back(l.index(size_t{1} << 20, "ranks of an axis:"));
    }
  }
  void read_arenas(TextLine& l) {
    l.expect("persistent=");
    program_.persistent_bytes = l.integer();
    l.expect(" transient=");
    program_.transient_bytes = l.integer();
    l.expect(" offloaded=");
    program_.offloaded_bytes = l.integer();
  }
  void read_buffer(TextLine& l) {
    Buffer b;
    b.name = l.name(" ~");
    if (l.accept("~")) l.integer();
    l.expect(" ");
    b.arena = find_named<ArenaKind, static_cast<size_t>(ArenaKind::offloaded) + 1>(l, l.word(" "),
                                                                                   "memory");
    l.expect(" ");
    b.offset = l.integer();
    l.expect("+");
    b.bytes = l.integer();
    b.alternates = l.accept(" twice");
    buffers_[names_.add(b)] = static_cast<int>(program_.buffers.size());
    program_.buffers.push_back(std::move(b));
  }
  void read_port(TextLine& l) {
    Port p;
    p.name = l.name(" ");
    l.expect(" ");
    p.view = view(l);
    while (l.accept(" ")) {
      p.dims.push_back(l.name("="));
      l.expect("=");
      p.sizes.push_back(l.integer());
      p.scalars.push_back(l.accept("<s") ? l.index(program_.scalars.size(), "scalar") : -1);
      p.axes.emplace_back();
      while (l.accept("@")) p.axes.back().push_back(axis(l, "@ "));
    }
    program_.ports.push_back(std::move(p));
  }

  AffineExpr expr(TextLine& line, int depth = 0) {
    constexpr int kDeepest = 8;
    if (depth > kDeepest) line.refuse("an expression in more than {} brackets", kDeepest);
    AffineExpr e;
    if (line.accept("[")) {
      std::vector<int64_t> table;
      do table.push_back(line.integer());
      while (line.accept(" "));
      line.expect("][");
      e = expr(line, depth + 1);
      line.expect("]");
      e.table = std::make_shared<const std::vector<int64_t>>(std::move(table));
      return e;
    }
    if (line.accept("clamp(")) {
      e = expr(line, depth + 1);
      line.expect(",");
      e.lo = line.integer();
      line.expect(",");
      e.hi = line.integer();
      line.expect(")");
      return e;
    }
    if (line.accept("(")) {
      e = expr(line, depth + 1);
      line.expect(")");
      int64_t& number = line.accept("/") ? e.divisor : (line.expect("%"), e.modulus);
      number = line.integer();
      if (number == 0) line.refuse("a division by 0");
      return e;
    }
    e.constant = line.integer();
    while (line.accept("+")) {
      const int64_t factor = line.integer();
      if (line.accept("*c")) {
        e.axis_terms.emplace_back(line.index(program_.axis_names.size(), "axis"), factor);
      } else {
        line.expect("*s");
        e.scalar = line.index(program_.scalars.size(), "scalar");
        e.scalar_factor = factor;
      }
    }
    return e;
  }

  int axis(TextLine& l, std::string_view ends) {
    const std::string name = l.word(ends);
    for (size_t a = 0; a < program_.axis_names.size(); ++a) {
      if (program_.axis_names[a] == name) return static_cast<int>(a);
    }
    l.refuse("'{}' is no axis of the mesh", name);
  }

  int buffer(TextLine& l) {
    if (l.accept("?")) return -1;
    std::string text = name_text(l.name(":~ "));
    if (l.accept("~")) text += fmt::format("~{}", l.integer());
    const auto found = buffers_.find(text);
    if (found == buffers_.end()) l.refuse("there is no buffer {}", text);
    return found->second;
  }
  View view(TextLine& l) {
    View v;
    v.buffer = buffer(l);
    l.expect(":");
    v.dtype = read_dtype(l);
    l.list([&] { v.sizes.push_back(l.integer()); });
    l.expect("/");
    l.list([&] { v.strides.push_back(l.integer()); });
    if (v.sizes.size() != v.strides.size())
      l.refuse("{} sizes and {} strides", v.sizes.size(), v.strides.size());
    while (l.accept("+")) {
      if (l.accept("{")) {
        v.shift = expr(l);
        l.expect("}");
      } else {
        v.offset = l.integer();
      }
    }
    return v;
  }
  std::vector<View> views(TextLine& l, std::string_view end) {
    std::vector<View> list;
    if (l.accept(end)) return list;
    do list.push_back(view(l));
    while (l.accept(", "));
    l.expect(end);
    return list;
  }

  Function function(size_t indent) {
    TextLine l = line(at_);
    l.expect(std::string(indent, ' '));
    Function f;
    f.kind = l.accept("function ") ? FunctionKind::user
             : l.accept("init ")   ? FunctionKind::init
                                   : (l.expect("body "), FunctionKind::body);
    f.name = l.name(" ");
    const auto numbers = [&](const char* key, std::vector<int>& values, size_t end,
                             const char* what) {
      if (l.accept(key)) l.list([&] { values.push_back(l.index(end, what)); });
    };
    const auto number = [&](const char* key, int& value) {
      if (l.accept(key)) value = static_cast<int>(l.integer());
    };
    numbers(" inputs=", f.inputs, program_.ports.size(), "port");
    numbers(" outputs=", f.outputs, program_.ports.size(), "port");
    f.updates = l.accept(" updates");
    f.by_microbatches = l.accept(" by_microbatches");
    number(" first_update=", f.first_update);
    numbers(" outer=", f.outer, program_.buffers.size(), "buffer");
    f.overlaps = l.accept(" overlaps");
    number(" early=", f.early);
    number(" late=", f.late);
    end_of(l);
    const std::string inside(indent + 2, ' ');
    for (++at_; at_ < lines_.size() && lines_[at_].starts_with(inside);) {
      if (lines_[at_].substr(indent + 2).starts_with("  ")) {
        if (f.steps.empty()) line(at_).refuse("a body without its loop");
        f.steps.back().body.push_back(function(indent + 4));
        continue;
      }
      TextLine text = line(at_);
      text.expect(inside);
      f.steps.push_back(step(text));
      end_of(text);
      ++at_;
    }
    return f;
  }

  Step step(TextLine& l) {
    Step s;
    if (l.accept("wait #")) {
      s.kind = StepKind::wait;
      s.number = static_cast<int>(l.integer());
    } else {
      s.out = views(l, " = ");
      read_name(l, s);
      l.expect("(");
      s.in = views(l, ")");
      if (l.accept(" {")) s.pointwise = pointwise(l, s);
      read_values(l, s);
    }
    if (l.accept("  #")) read_notes(l, s);
    return s;
  }

  void read_name(TextLine& l, Step& s) {
    const std::string name = l.word(" (");
    if (const auto collective = find_collective(name)) {
      s.kind = StepKind::collective;
      s.collective = *collective;
      l.expect(" #");
      s.number = static_cast<int>(l.integer());
      l.expect(" over ");
      do s.axes.push_back(axis(l, " ("));
      while (l.accept(" ") && !at_combiner(l, s));
      return;
    }
    s.kernel = find_kernel(name).value_or(KernelKind::none);
    if (s.kernel == KernelKind::loop) return read_loop(l, s);
    if (s.kernel == KernelKind::none) s.host.op = name;
    if (s.kernel == KernelKind::host) read_host(l, s);
    if (info_of(s.kernel).combines) {
      l.expect(" ");
      s.combiner = read_combiner(l, "(");
    }
  }
  bool at_combiner(TextLine& l, Step& s) {
    TextLine ahead = l;
    const std::string name = ahead.word(" (");
    if (!ahead.accept("(")) return false;
    s.combiner = read_combiner(l, "(");
    return true;
  }

  void read_loop(TextLine& l, Step& s) {
    l.expect(" ");
    s.loop.iterations = l.integer();
    l.expect(" iterations, s");
    s.loop.counter = l.index(program_.scalars.size(), "scalar");
    s.loop.reverse = l.accept(" down") || (l.expect(" up"), false);
    while (l.accept(" while ")) s.loop.condition.push_back(view(l));
    if (l.accept(" from ")) {
      s.loop.first = expr(l);
      l.expect(" below ");
      s.loop.end = l.integer();
    }
    if (l.accept(" of stages along ")) s.loop.stage_axis = axis(l, " (");
    const bool is_each = l.accept(" each");
    if (is_each || l.accept(" along ")) s.loop.share = share(l, is_each ? -1 : axis(l, " "));
  }
  PipelineShare share(TextLine& l, int axis) {
    PipelineShare p;
    p.axis = axis;
    l.expect(" ");
    p.work = find_named<StageWork, static_cast<size_t>(StageWork::weights) + 1>(l, l.word(" "),
                                                                                "work of a stage");
    l.expect(" in ");
    p.ticks = l.integer();
    l.expect(" ticks s");
    p.tick = l.index(program_.scalars.size(), "scalar");
    if (l.accept(" sends ")) p.send_id = static_cast<int>(l.integer());
    if (l.accept(" awaits ")) p.recv_id = static_cast<int>(l.integer());
    l.expect(" [");
    constexpr int64_t kMostEntries = 1 << 24;
    const int columns = axis < 0 ? 1 : program_.axis_sizes[static_cast<size_t>(axis)];
    if (p.ticks < 1 || p.ticks > kMostEntries / std::max(1, columns))
      l.refuse("{} ticks of {} stages", p.ticks, columns);
    std::vector<int64_t> table(static_cast<size_t>(p.ticks * columns), -1);
    for (int stage = 0; stage < columns; ++stage) {
      if (stage > 0) l.expect("; ");
      while (!l.is_at(";") && !l.is_at("]")) {
        read_run(
            l,
            [&](int64_t tick) -> int64_t& {
              return table[static_cast<size_t>(tick * columns + stage)];
            },
            static_cast<size_t>(p.ticks));
        l.accept(" ");
      }
    }
    l.expect("]");
    p.table = std::make_shared<const std::vector<int64_t>>(std::move(table));
    return p;
  }
  /// "4+3@2/1": iterations 4, 5, 6 in ticks 2, 3, 4.
  template <class At>
  static void read_run(TextLine& l, const At& at, size_t ticks) {
    const int64_t first = l.index(size_t{1} << 30, "iteration");
    l.expect("+");
    const int count = l.index(ticks + 1, "number of ticks");
    l.expect("@");
    int64_t tick = l.index(ticks, "tick");
    l.expect("/");
    const int64_t stride = l.index(ticks + 1, "ticks between iterations:");
    for (int i = 0; i < count; ++i, tick += stride) {
      if (tick >= static_cast<int64_t>(ticks)) l.refuse("tick {} of {}", tick, ticks);
      at(tick) = first + i;
    }
  }

  static void read_host(TextLine& l, Step& s) {
    l.expect(" ");
    s.host.op = l.word("[");
    l.expect("[");
    if (l.accept("]")) return;
    do {
      std::string name = l.word("=");
      l.expect("=");
      s.host.dims.emplace_back(std::move(name), l.integer());
    } while (l.accept(","));
    l.expect("]");
  }

  /// "{r0:float32=load(#0); r1:float32=neg(r0) -> r1}", behind the brace.
  PointwiseProgram pointwise(TextLine& l, const Step& s) {
    PointwiseProgram p;
    const auto reg = [&] { return l.index(p.code.size(), "register"); };
    do {
      Instr instr;
      l.expect(fmt::format("r{}:", p.code.size()));
      instr.dtype = read_dtype(l);
      l.expect("=");
      const std::string name = l.word("(");
      const std::optional<PointwiseOp> code = find_code(name);
      if (!code) l.refuse("'{}' is no instruction", name);
      instr.code = *code;
      l.expect("(");
      int* const operands[] = {&instr.a, &instr.b, &instr.c};
      size_t n = 0;
      while (!l.accept(")")) {
        if (l.accept("r")) {
          if (n == std::size(operands)) l.refuse("'{}' has more than {} operands", name, n);
          *operands[n++] = reg();
        } else if (l.accept("#")) {
          instr.slot = static_cast<int>(l.integer());
          if (instr.code == PointwiseOp::load && instr.slot >= std::ssize(s.in))
            l.refuse("operand {} of {}", instr.slot, s.in.size());
        } else if (l.accept("e")) {
          instr.expr = static_cast<int>(l.integer());
        } else {
          instr.imm = l.value<double>();
        }
        l.accept(",");
      }
      p.code.push_back(instr);
    } while (l.accept("; "));
    l.expect(" -> ");
    do {
      l.expect("r");
      p.outputs.push_back(reg());
    } while (l.accept(","));
    l.expect("}");
    return p;
  }

  /// " kinds=[row,sum] alpha:0.5 e0=0+2*c1 workspace=x~2"
  void read_values(TextLine& l, Step& s) {
    Values values;
    while (!l.is_at("  #") && l.accept(" ")) {
      if (l.accept("workspace=")) {
        s.workspace = buffer(l);
        continue;
      }
      const std::string key = l.name("=: ");
      if (l.accept(":")) {
        s.host.attrs.set(key, read_attribute(l));
        continue;
      }
      l.expect("=");
      if (key == "max_bytes") {
        s.max_bytes = l.integer();
      } else if (key == fmt::format("e{}", s.exprs.size())) {
        s.exprs.push_back(expr(l));
      } else if (!values.emplace(key, l.word(" ")).second) {
        l.refuse("'{}' is there twice", key);
      }
    }
    read_spec(std::move(values), l, s);
    for (const Instr& instr : s.pointwise.code) {
      if (instr.expr >= std::ssize(s.exprs))
        l.refuse("expression {} of {}", instr.expr, s.exprs.size());
    }
  }

  static void read_notes(TextLine& l, Step& s) {
    if (l.accept(" flops=")) s.flops = l.integer();
    if (l.accept(" bytes=")) s.bytes = l.integer();
    if (l.accept(" unused=")) l.list([&] { s.unused.push_back(static_cast<int>(l.integer())); });
    for (std::string* text : {&s.origin.name, &s.origin.source, &s.origin.reason}) {
      l.expect(" | ");
      *text = l.name("");
    }
  }

  std::vector<std::string_view> lines_;
  size_t at_ = 0;
  Program program_;
  BufferNames names_;
  std::map<std::string, int> buffers_;  ///< by these
};

}  // namespace

Program read_program(const std::string& text) { return Reader(text).program(); }

}  // namespace tessera
