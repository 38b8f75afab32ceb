// From statements to a program: registers and constants get places in the register file of a warp,
// functions are inlined where they are called, and each instruction the function that executes it.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/fail.h"
#include "gpu/ptx/forms.h"
#include "gpu/ptx/names.h"
#include "gpu/ptx/syntax.h"
#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

Opcode::Opcode(const std::string& opcode) : text(opcode), parts(split(opcode, '.')) {}

bool Opcode::has(const std::string& modifier) const {
  return std::find(parts.begin() + 1, parts.end(), modifier) != parts.end();
}

const std::string& Opcode::type(size_t from_last) const {
  return parts[parts.size() > from_last + 1 ? parts.size() - 1 - from_last : 0];
}

namespace {

using Kind = Statement::Kind;

constexpr int kDeepest = 8;  ///< calls

/// "{a, b}" -> a, b; "a|b" -> a, b; "a" -> a.
std::vector<std::string> elements(const std::string& text) {
  if (text[0] == '{') return split_operands(text.substr(1, text.size() - 2));
  return split(text, '|');
}

class Decoder {
 public:
  explicit Decoder(const Module& module) : module_(module) {}

  Program program() {
    for (const Variable& v : module_.variables) names_.declare(v);
    const auto entry = std::find_if(module_.functions.begin(), module_.functions.end(),
                                    [](const Function& f) { return f.is_entry; });
    if (entry == module_.functions.end()) wrong("it has no .entry");
    program_.most_threads = entry->most_threads;
    names_.open();
    for (const Variable& p : entry->params) names_.declare_argument(p);
    body(*entry, 0);
    add_end();
    for (const Branch& b : branches_) {
      names_.at(b.statement);
      program_.code[b.from].target = label_at(b.label);
    }
    for (const auto& [number, labels] : tables_) {
      for (const std::string& l : labels) program_.tables[number].push_back(label_at(l));
    }
    return std::move(program_);
  }

 private:
  struct Branch {
    size_t from = 0;
    std::string label;
    const Statement* statement = nullptr;
  };

  [[noreturn]] void wrong(const std::string& what) const { names_.wrong(what); }

  void body(const Function& f, int depth) {
    if (depth > kDeepest) wrong("calls are too deep");
    const size_t bottom = names_.see_last();
    const std::string prefix = std::exchange(prefix_, fmt::format("{}:", inlined_++));
    const Statement* before = names_.at(nullptr);
    // Variables that are declared behind their use: the whole body's come first.
    int open = 0;
    for (const Statement& s : f.body) {
      open += s.kind == Kind::open ? 1 : s.kind == Kind::close ? -1 : 0;
      if (open == 0 && s.kind == Kind::variable) names_.declare(s.variable);
      if (open == 0 && s.kind == Kind::registers) names_.declare_registers(s);
    }
    const size_t bottom_of_body = names_.depth();
    for (size_t k = 0; k < f.body.size(); ++k) {
      const Statement& s = f.body[k];
      names_.at(&s);
      switch (s.kind) {
        case Kind::open:
          names_.open();
          break;
        case Kind::close:
          names_.close();
          break;
        case Kind::label:
          label(s.opcode, f.body, k);
          break;
        case Kind::registers:
          if (names_.depth() > bottom_of_body) names_.declare_registers(s);
          break;
        case Kind::variable:
          if (names_.depth() > bottom_of_body) names_.declare(s.variable);
          break;
        case Kind::targets:
          break;
        case Kind::instruction:
          instruction(s, f, depth);
          break;
      }
    }
    labels_[prefix_ + "end"] = static_cast<uint32_t>(program_.code.size());
    names_.see_from(bottom);
    prefix_ = prefix;
    names_.at(before);
  }

  void label(const std::string& name, const std::vector<Statement>& all, size_t k) {
    if (k + 1 < all.size() && all[k + 1].kind == Kind::targets) {
      table_numbers_[prefix_ + name] = static_cast<uint32_t>(program_.tables.size());
      std::vector<std::string> labels;
      for (const std::string& l : all[k + 1].operands) labels.push_back(prefix_ + l);
      tables_.push_back({program_.tables.size(), labels});
      program_.tables.emplace_back();
      return;
    }
    labels_[prefix_ + name] = static_cast<uint32_t>(program_.code.size());
  }
  uint32_t label_at(const std::string& label) const {
    const auto it = labels_.find(label);
    if (it == labels_.end()) wrong(fmt::format("no label '{}'", label));
    return it->second;
  }

  void add(const Statement& s, Instruction i) {
    if (!s.guard.empty()) {
      i.guarded = true;
      i.negated = s.negated;
      i.guard = names_.operand(s.guard, kPredicate);
    }
    program_.code.push_back(i);
    program_.places.push_back({s.line, s.text, s.opcode});
  }
  void add_end() {
    Instruction i;
    i.flow = Flow::end;
    program_.code.push_back(i);
    program_.places.push_back({0, "the end", "ret"});
  }
  void branch(const Statement& s, const std::string& label) {
    Instruction i;
    i.flow = Flow::branch;
    branches_.push_back({program_.code.size(), prefix_ + label, &s});
    add(s, i);
  }

  void instruction(const Statement& s, const Function& f, int depth) {
    const Opcode op(s.opcode);
    const std::string& name = op.parts[0];
    if (name == "bra") return branch(s, s.operands.at(0));
    if (name == "ret" && !f.is_entry) return branch(s, "end");
    if (name == "ret" || name == "exit") {
      Instruction i;
      i.flow = Flow::end;
      return add(s, i);
    }
    if (name == "call") return call(s, depth);
    if (name == "brx") return brx(s);
    if (name == "trap" || name == "brkpt") {
      Instruction i;
      i.run = [](Warp& w, const Instruction& /*i*/) {
        if (w.active != 0)
          w.fail(static_cast<unsigned>(std::countr_zero(w.active)), "the kernel gives up");
      };
      return add(s, i);
    }
    if (name == "bar" && op.has("warp")) return by_form(s, op);
    if (name == "bar" || name == "barrier") return barrier(s, op);
    if (name == "ld" || name == "ldu" || name == "st") return access(s, op);
    if (name == "atom" || name == "red") return atomic(s, op);
    if (name == "cp") return copy(s, op);
    if (name == "ldmatrix") return matrix(s, op);
    if (name == "cvta") return generic(s, op);
    if (name == "membar" || name == "fence" || name == "prefetch" || name == "prefetchu") return;
    if (name == "mov" && !s.operands.empty() &&
        (s.operands[0][0] == '{' || s.operands.at(1)[0] == '{'))
      return move_parts(s);
    by_form(s, op);
  }

  void by_form(const Statement& s, const Opcode& op) {
    std::optional<Form> form;
    for (const FindForm find :
         {find_integer, find_floating, find_bits, find_predicate, find_conversion, find_warp}) {
      if (!form) form = find(op);
    }
    if (!form) wrong("it is not translated");
    Instruction i;
    i.run = form->run;
    i.flow = form->flow;
    i.number = form->number;
    std::vector<std::string> texts;
    for (const std::string& o : s.operands) {
      for (std::string& e : elements(o)) texts.push_back(std::move(e));
    }
    if (form->number_is_last) {
      i.number = static_cast<int64_t>(names_.number(texts.back(), 8));
      texts.pop_back();
    }
    std::vector<int> widths = form->widths;
    i.count = static_cast<uint8_t>(elements(s.operands.at(0)).size());
    if (i.count == 2 && texts.size() == widths.size() + 1)
      widths.insert(widths.begin() + 1, kPredicate);  // a|p
    if (texts.size() != widths.size() || texts.size() > i.r.size())
      wrong(fmt::format("it has {} operands, not {}", texts.size(), widths.size()));
    for (size_t k = 0; k < texts.size(); ++k) i.r[k] = names_.operand(texts[k], widths[k]);
    i.whole_warp = i.flow == Flow::warp && form->mask < 0;
    if (form->mask >= 0)
      i.mask = i.r[static_cast<size_t>(form->mask) + texts.size() - form->widths.size()];
    add(s, i);
  }

  void barrier(const Statement& s, const Opcode& op) {
    Instruction i;
    i.flow = Flow::block;
    size_t at = 0;
    if (op.has("red")) {
      if (!op.has("pred")) wrong("it is not translated");
      i.count = 1;
      i.number = op.has("or") ? 0 : 1;
      i.r[0] = names_.operand(s.operands.at(at++), kPredicate);
    } else if (!op.has("sync") && op.parts.size() > 1 && op.parts[1] != "cta") {
      wrong("it is not translated");
    }
    if (s.operands.at(at) != "0") wrong("only barrier 0 is translated");
    if (op.has("red")) i.r[1] = names_.operand(s.operands.back(), kPredicate);
    if (s.operands.size() > at + (op.has("red") ? 2 : 1))
      wrong("a barrier of some threads is not translated");
    add(s, i);
  }

  static Space space_of(const Opcode& op) {
    if (op.has("global")) return op.has("nc") ? Space::read_only : Space::global;
    if (op.has("shared") || op.has("shared::cta")) return Space::shared;
    if (op.has("local")) return Space::local;
    if (op.has("param")) return Space::param;
    if (op.has("const")) return Space::constant;
    return Space::generic;
  }

  void access(const Statement& s, const Opcode& op) {
    const bool loads = op.parts[0] != "st";
    Instruction i;
    i.space = space_of(op);
    i.bytes = static_cast<uint32_t>(bytes_of_type(op.type()));
    const std::vector<std::string> values = elements(s.operands.at(loads ? 0 : 1));
    const size_t wanted = op.has("v2") ? 2 : op.has("v4") ? 4 : op.has("v8") ? 8 : 1;
    if (values.size() != wanted)
      wrong(fmt::format("it has {} values, not {}", values.size(), wanted));
    i.count = static_cast<uint8_t>(values.size());
    const Names::Address at = names_.address(s.operands.at(loads ? 1 : 0));
    i.number = at.offset;
    for (size_t k = 0; k < values.size(); ++k)
      i.r[loads ? k : k + 1] = names_.operand(values[k], -static_cast<int>(std::max(i.bytes, 1U)));
    if (i.space == Space::param) {
      const Names::Meaning& m = names_.get(at.base);
      const bool is_inlined = m.what == Names::Meaning::What::param;
      i.r[loads ? i.count : 0U] = is_inlined ? m.reg : names_.base_of(at);
      i.run = is_inlined ? (loads ? load_param : store_param) : (loads ? load_argument : nullptr);
    } else {
      i.r[loads ? i.count : 0U] = names_.base_of(at);
      i.run = loads ? load_of(op.type()) : store_of(op.type());
    }
    if (i.run == nullptr) wrong("it is not translated");
    add(s, i);
  }

  void atomic(const Statement& s, const Opcode& op) {
    Instruction i;
    i.space = space_of(op);
    i.run = find_atomic(op);
    if (i.run == nullptr) wrong("it is not translated");
    i.count = op.parts[0] == "atom" ? 1 : 0;
    const int bytes = bytes_of_type(op.type());
    if (i.count == 1) i.r[0] = names_.operand(s.operands.at(0), bytes);
    const Names::Address at = names_.address(s.operands.at(i.count));
    i.number = at.offset;
    i.r[i.count] = names_.base_of(at);
    for (size_t k = i.count + 1U; k < s.operands.size(); ++k)
      i.r[k] = names_.operand(s.operands[k], bytes);
    add(s, i);
  }

  void copy(const Statement& s, const Opcode& op) {
    Instruction i;
    if (op.has("wait_all") || op.has("wait_group")) {
      i.run = wait_copies;
      i.number = op.has("wait_all") ? -1 : static_cast<int64_t>(names_.number(s.operands.at(0), 8));
    } else if (op.has("commit_group")) {
      i.run = commit_copies;
    } else {
      if (!op.has("async") || !op.has("shared") || !op.has("global") || s.operands.size() < 3)
        wrong("it is not translated");
      i.run = copy_async;
      const Names::Address to = names_.address(s.operands[0]), from = names_.address(s.operands[1]);
      i.r[0] = names_.base_of(to);
      i.number = to.offset;
      i.r[1] = names_.base_of(from);
      i.target = static_cast<uint32_t>(from.offset);
      i.bytes = static_cast<uint32_t>(names_.number(s.operands[2], 4));
      i.r[2] = names_.operand(s.operands.size() > 3 ? s.operands[3] : s.operands[2], 4);
      if (op.has("cg") && i.bytes != 16) wrong("cp.async.cg copies 16 bytes");
    }
    add(s, i);
  }

  void matrix(const Statement& s, const Opcode& op) {
    if (!op.has("m8n8") || op.type() != "b16" || !op.has("shared")) wrong("it is not translated");
    Instruction i;
    i.run = load_matrix;
    i.flow = Flow::warp;
    i.whole_warp = true;
    const std::vector<std::string> to = elements(s.operands.at(0));
    i.count = static_cast<uint8_t>(to.size());
    if (to.size() != (op.has("x4") ? 4U : op.has("x2") ? 2U : 1U)) wrong("it has other results");
    for (size_t k = 0; k < to.size(); ++k) i.r[k] = names_.operand(to[k], 4);
    const Names::Address at = names_.address(s.operands.at(1));
    i.r[i.count] = names_.base_of(at);
    i.number = at.offset;
    i.target = op.has("trans") ? 1 : 0;
    add(s, i);
  }

  void generic(const Statement& s, const Opcode& op) {
    Instruction i;
    const bool shared = op.has("shared");
    i.run = !shared ? find_bits(Opcode("mov.b64"))->run : op.has("to") ? to_shared : from_shared;
    for (size_t k = 0; k < 2; ++k) i.r[k] = names_.operand(s.operands.at(k), 8);
    add(s, i);
  }

  void move_parts(const Statement& s) {
    Instruction i;
    const bool packs = s.operands[1][0] == '{';
    const std::vector<std::string> parts = elements(s.operands[packs ? 1 : 0]);
    const int whole = bytes_of_type(Opcode(s.opcode).type());
    i.count = static_cast<uint8_t>(parts.size());
    const int part = whole / static_cast<int>(parts.size());
    if (part < 2) wrong("it is not translated");
    i.run = packs ? pack : unpack;
    i.r[packs ? 0U : i.count] = names_.operand(s.operands[packs ? 0 : 1], whole);
    for (size_t k = 0; k < parts.size(); ++k)
      i.r[packs ? k + 1 : k] = names_.operand(parts[k], part);
    add(s, i);
  }

  void brx(const Statement& s) {
    Instruction i;
    i.flow = Flow::table;
    i.r[0] = names_.operand(s.operands.at(0), 4);
    const auto it = table_numbers_.find(prefix_ + s.operands.at(1));
    if (it == table_numbers_.end()) wrong(fmt::format("no table '{}'", s.operands[1]));
    i.target = it->second;
    add(s, i);
  }

  /// (results), name, (params): its parameters are the caller's storage.
  void call(const Statement& s, int depth) {
    std::vector<std::string> lists[2];
    std::string name;
    for (const std::string& o : s.operands) {
      if (o[0] == '(') {
        lists[name.empty() ? 0 : 1] = split_operands(o.substr(1, o.size() - 2));
      } else if (name.empty()) {
        name = o;
      }
    }
    const auto f = std::find_if(module_.functions.begin(), module_.functions.end(),
                                [&](const Function& x) { return x.name == name; });
    if (f == module_.functions.end()) wrong(fmt::format("no function '{}'", name));
    if (lists[0].size() != f->results.size() || lists[1].size() != f->params.size())
      wrong("a call with other parameters");
    if (!s.guard.empty()) wrong("a call under a condition is not translated");
    Names::Scope scope;
    for (size_t k = 0; k < lists[0].size(); ++k)
      scope[f->results[k].name] = names_.get(lists[0][k]);
    for (size_t k = 0; k < lists[1].size(); ++k) scope[f->params[k].name] = names_.get(lists[1][k]);
    names_.open(std::move(scope));
    body(*f, depth + 1);
    names_.close();
  }

  const Module& module_;
  Program program_;
  Names names_{program_};
  std::string prefix_;  ///< of the labels of the current function
  int inlined_ = 0;
  std::map<std::string, uint32_t> labels_, table_numbers_;
  std::vector<Branch> branches_;
  std::vector<std::pair<size_t, std::vector<std::string>>> tables_;
};

}  // namespace

Program decode(const std::string& text) {
  const Module module = parse(text);
  return Decoder(module).program();
}

}  // namespace tessera::test::ptx
