// From statements to a program: registers and constants get places in the register file of a warp,
// functions are inlined where they are called, and each instruction the function that executes it.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/fail.h"
#include "gpu/ptx/forms.h"
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
using Value = Program::Value;

/// Between variables in shared memory: an access beyond one is not in the next one.
constexpr int64_t kGap = 128;
constexpr int kDeepest = 8;  ///< calls

/// What a name stands for: a register, or where a variable lies.
struct Meaning {
  enum class What : uint8_t { reg, symbol, shared, local, argument, param } what = What::reg;
  Register reg;        ///< of a register or parameter, or one that holds the address
  int64_t offset = 0;  ///< of an argument, or in shared memory
};

class Decoder {
 public:
  explicit Decoder(const Module& module) : module_(module) {}

  Program program() {
    scopes_.emplace_back();
    for (const Variable& v : module_.variables) declare(v);
    const auto entry = std::find_if(module_.functions.begin(), module_.functions.end(),
                                    [](const Function& f) { return f.is_entry; });
    if (entry == module_.functions.end()) wrong("it has no .entry");
    program_.most_threads = entry->most_threads;
    scopes_.emplace_back();
    for (const Variable& p : entry->params) {
      program_.param_bytes = (program_.param_bytes + p.align - 1) / p.align * p.align;
      Meaning m{Meaning::What::argument, {}, program_.param_bytes};
      program_.param_bytes += p.bytes;
      scopes_.back()[p.name] = m;
    }
    body(*entry, 0);
    add_end();
    for (const auto& [from, label] : branches_) program_.code[from].target = label_at(label);
    for (const auto& [number, labels] : tables_) {
      for (const std::string& l : labels) program_.tables[number].push_back(label_at(l));
    }
    return std::move(program_);
  }

 private:
  using Scope = std::map<std::string, Meaning>;

  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorKind::internal,
         "PTX, line {}: '{}': {}; tests/gpu/ptx executes what generated kernels contain",
         now_ == nullptr ? 0 : now_->line, now_ == nullptr ? "" : now_->text, what);
  }

  // Places.

  Register new_register(int bytes, int64_t lanes = kLanes) {
    const auto size = static_cast<uint32_t>(bytes == 0 ? 4 : bytes * lanes);
    const uint32_t align = static_cast<uint32_t>(std::clamp(bytes, 4, 64));
    program_.register_bytes = (program_.register_bytes + align - 1) / align * align;
    const Register r{program_.register_bytes, static_cast<uint32_t>(bytes)};
    program_.register_bytes += size;
    return r;
  }

  Register constant(int bytes, uint64_t bits) {
    if (bytes == kPredicate) {
      bits = bits == 0 ? 0 : kAllLanes;
    } else if (bytes < 8) {
      bits &= (uint64_t{1} << 8 * bytes) - 1;
    }
    const auto [it, is_new] = constants_.try_emplace({bytes, bits});
    if (is_new) {
      it->second = new_register(bytes);
      program_.values.push_back({Value::Kind::constant, it->second, bits});
    }
    return it->second;
  }

  Register special(const std::string& name) {
    const auto [it, is_new] = specials_.try_emplace(name);
    if (!is_new) return it->second;
    static const std::map<std::string, Value::Kind> kinds = {
        {"%tid.x", Value::Kind::thread},   {"%ctaid.x", Value::Kind::block},
        {"%ntid.x", Value::Kind::threads}, {"%nctaid.x", Value::Kind::blocks},
        {"%laneid", Value::Kind::lane},    {"%warpid", Value::Kind::warp}};
    const auto kind = kinds.find(name);
    if (kind == kinds.end()) wrong(fmt::format("'{}' is not known", name));
    it->second = new_register(4);
    program_.values.push_back({kind->second, it->second, 0});
    return it->second;
  }

  // Names.

  const Meaning* find(const std::string& name) const {
    for (size_t s = scopes_.size(); s-- > 0;) {
      if (const auto it = scopes_[s].find(name); it != scopes_[s].end()) return &it->second;
      if (s == bottom_ && s > 0) s = 1;  // a function sees its own names and those of the module
    }
    return nullptr;
  }
  const Meaning& get(const std::string& name) const {
    const Meaning* m = find(name);
    if (m == nullptr) wrong(fmt::format("'{}' is not declared", name));
    return *m;
  }

  void declare(const Variable& v) {
    Meaning m;
    if (v.space == "shared") {
      int64_t& end = program_.shared_bytes;
      const int64_t align = std::max<int64_t>(v.align, 1);
      end = (end + (program_.shared.empty() ? 0 : kGap) + align - 1) / align * align;
      m = {Meaning::What::shared, {}, end};
      program_.shared.push_back({v.name, end, v.bytes});
      end += v.bytes;
    } else if (v.space == "local") {
      int64_t& end = program_.local_bytes;
      end = (end + 15) / 16 * 16;
      m = {Meaning::What::local, new_register(8), end};
      program_.values.push_back({Value::Kind::local, m.reg, static_cast<uint64_t>(end)});
      end += (v.bytes + 15) / 16 * 16;
    } else if (v.space == "param") {
      m = {Meaning::What::param, new_register(static_cast<int>(v.bytes))};
    } else {
      const auto words = static_cast<size_t>((v.bytes + 7) / 8 + 1);
      program_.memory.push_back(std::make_unique<std::vector<uint64_t>>(words));
      std::vector<uint64_t>& at = *program_.memory.back();
      if (!v.content.empty()) std::memcpy(at.data(), v.content.data(), v.content.size());
      const auto address = reinterpret_cast<uint64_t>(at.data());
      m = {Meaning::What::symbol, {}, static_cast<int64_t>(address)};
      program_.globals.push_back({v.name, m.offset, v.bytes});
    }
    scopes_.back()[v.name] = m;
  }

  void declare_registers(const Statement& s) {
    const int bytes = bytes_of_type(s.opcode);
    for (const std::string& name : s.operands) {
      const size_t open = name.find('<');
      if (open == std::string::npos) {
        scopes_.back()[name] = {Meaning::What::reg, new_register(bytes)};
        continue;
      }
      const int many = std::stoi(name.substr(open + 1));
      for (int k = 0; k < many; ++k)
        scopes_.back()[name.substr(0, open) + std::to_string(k)] = {Meaning::What::reg,
                                                                    new_register(bytes)};
    }
  }

  // Operands.

  static bool is_number(const std::string& text) {
    return std::isdigit(static_cast<unsigned char>(text[0])) != 0 ||
           (text[0] == '-' && text.size() > 1);
  }

  uint64_t number(const std::string& text, int bytes) const {
    const char second = text.size() > 2 ? text[1] : ' ';
    if (text[0] == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
      const bool is_single = second == 'f' || second == 'F';
      if (bytes != (is_single ? 4 : 8)) wrong(fmt::format("'{}' has not {} bytes", text, bytes));
      return std::stoull(text.substr(2), nullptr, 16);
    }
    return text[0] == '-' ? static_cast<uint64_t>(std::stoll(text, nullptr, 0))
                          : std::stoull(text, nullptr, 0);
  }

  /// A register or a constant of so many bytes; negative: of at least so many.
  Register operand(const std::string& text, int bytes) {
    const int width = std::abs(bytes);
    if (text == "_") return new_register(width);
    if (is_number(text)) return constant(width, number(text, width));
    if (text == "WARP_SZ") return constant(width, kLanes);
    if (const Meaning* m = find(text); m != nullptr && m->what == Meaning::What::reg) {
      const int has = static_cast<int>(m->reg.bytes);
      if (bytes < 0 ? has < width : has != width)
        wrong(fmt::format("'{}' has {} bytes, not {}", text, has, width));
      return m->reg;
    }
    if (text[0] == '%') {
      if (text.ends_with(".y") || text.ends_with(".z"))
        return constant(width, text.starts_with("%n") ? 1 : 0);
      const Register r = special(text);
      if (width != 4) wrong(fmt::format("'{}' has 4 bytes, not {}", text, width));
      return r;
    }
    if (bytes == kPredicate) wrong(fmt::format("'{}' is no predicate", text));
    return address_of(text, width);
  }

  /// Of a variable, or so many bytes behind its beginning.
  Register address_of(const std::string& text, int width) {
    const size_t plus = text.find('+');
    const Meaning& m = get(text.substr(0, plus));
    const int64_t more = plus == std::string::npos ? 0 : std::stoll(text.substr(plus + 1));
    switch (m.what) {
      case Meaning::What::symbol:
      case Meaning::What::shared:
      case Meaning::What::argument:
        return constant(width, static_cast<uint64_t>(m.offset + more));
      case Meaning::What::local:
        if (more == 0 && width == 8) return m.reg;
        break;
      default:
        break;
    }
    wrong(fmt::format("the address of '{}' in {} bytes", text, width));
  }

  /// "{a, b}" -> a, b; "a|b" -> a, b; "a" -> a.
  static std::vector<std::string> elements(const std::string& text) {
    if (text[0] == '{') return split_operands(text.substr(1, text.size() - 2));
    return split(text, '|');
  }

  struct Address {
    std::string base;
    int64_t offset = 0;
  };
  /// "[a+8]", "[a+-8]", "[a]".
  Address address(const std::string& text) const {
    if (text[0] != '[') wrong(fmt::format("'{}' is no address", text));
    const std::string in = text.substr(1, text.size() - 2);
    const size_t plus = in.find('+');
    Address a{split_operands(in.substr(0, plus)).at(0), 0};
    if (plus != std::string::npos) a.offset = std::stoll(in.substr(plus + 1));
    return a;
  }
  /// A register with the address; the offset goes into `number`.
  Register base_of(const Address& a) {
    if (is_number(a.base)) return constant(8, number(a.base, 8));
    const Meaning& m = get(a.base);
    if (m.what == Meaning::What::reg || m.what == Meaning::What::local) return m.reg;
    return address_of(a.base, 8);
  }

  // Statements.

  void body(const Function& f, int depth) {
    if (depth > kDeepest) wrong("calls are too deep");
    const size_t bottom = std::exchange(bottom_, scopes_.size() - 1);
    const std::string prefix = std::exchange(prefix_, fmt::format("{}:", inlined_++));
    const Statement* before = now_;
    // Variables that are declared behind their use: the whole body's come first.
    int open = 0;
    for (const Statement& s : f.body) {
      open += s.kind == Kind::open ? 1 : s.kind == Kind::close ? -1 : 0;
      if (open == 0 && s.kind == Kind::variable) declare(s.variable);
      if (open == 0 && s.kind == Kind::registers) declare_registers(s);
    }
    const size_t bottom_of_body = scopes_.size();
    for (size_t k = 0; k < f.body.size(); ++k) {
      const Statement& s = f.body[k];
      now_ = &s;
      switch (s.kind) {
        case Kind::open:
          scopes_.emplace_back();
          break;
        case Kind::close:
          scopes_.pop_back();
          break;
        case Kind::label:
          label(s.opcode, f.body, k);
          break;
        case Kind::registers:
          if (scopes_.size() > bottom_of_body) declare_registers(s);
          break;
        case Kind::variable:
          if (scopes_.size() > bottom_of_body) declare(s.variable);
          break;
        case Kind::targets:
          break;
        case Kind::instruction:
          instruction(s, f, depth);
          break;
      }
    }
    labels_[prefix_ + "end"] = static_cast<uint32_t>(program_.code.size());
    bottom_ = bottom;
    prefix_ = prefix;
    now_ = before;
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
      i.guard = operand(s.guard, kPredicate);
    }
    program_.code.push_back(i);
    program_.places.push_back({s.line, s.text, form_name(s.opcode)});
  }
  void add_end() {
    Instruction i;
    i.flow = Flow::end;
    program_.code.push_back(i);
    program_.places.push_back({0, "the end", "ret"});
  }
  /// Hints and the unsplit "uni" change nothing.
  static std::string form_name(const std::string& opcode) { return opcode; }

  void branch(const Statement& s, const std::string& label) {
    Instruction i;
    i.flow = Flow::branch;
    branches_.emplace_back(program_.code.size(), prefix_ + label);
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
      i.number = static_cast<int64_t>(number(texts.back(), 8));
      texts.pop_back();
    }
    std::vector<int> widths = form->widths;
    i.count = static_cast<uint8_t>(elements(s.operands.at(0)).size());
    if (i.count == 2 && texts.size() == widths.size() + 1)
      widths.insert(widths.begin() + 1, kPredicate);  // a|p
    if (texts.size() != widths.size() || texts.size() > i.r.size())
      wrong(fmt::format("it has {} operands, not {}", texts.size(), widths.size()));
    for (size_t k = 0; k < texts.size(); ++k) i.r[k] = operand(texts[k], widths[k]);
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
      i.r[0] = operand(s.operands.at(at++), kPredicate);
    } else if (!op.has("sync") && op.parts.size() > 1 && op.parts[1] != "cta") {
      wrong("it is not translated");
    }
    if (s.operands.at(at) != "0") wrong("only barrier 0 is translated");
    if (op.has("red")) i.r[1] = operand(s.operands.back(), kPredicate);
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
    const Address at = address(s.operands.at(loads ? 1 : 0));
    i.number = at.offset;
    for (size_t k = 0; k < values.size(); ++k)
      i.r[loads ? k : k + 1] = operand(values[k], -static_cast<int>(std::max(i.bytes, 1U)));
    if (i.space == Space::param) {
      const Meaning& m = get(at.base);
      const bool is_inlined = m.what == Meaning::What::param;
      i.r[loads ? i.count : 0U] = is_inlined ? m.reg : base_of(at);
      i.run = is_inlined ? (loads ? load_param : store_param) : (loads ? load_argument : nullptr);
    } else {
      i.r[loads ? i.count : 0U] = base_of(at);
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
    if (i.count == 1) i.r[0] = operand(s.operands.at(0), bytes);
    const Address at = address(s.operands.at(i.count));
    i.number = at.offset;
    i.r[i.count] = base_of(at);
    for (size_t k = i.count + 1U; k < s.operands.size(); ++k)
      i.r[k] = operand(s.operands[k], bytes);
    add(s, i);
  }

  void copy(const Statement& s, const Opcode& op) {
    Instruction i;
    if (op.has("wait_all") || op.has("wait_group")) {
      i.run = wait_copies;
      i.number = op.has("wait_all") ? -1 : static_cast<int64_t>(number(s.operands.at(0), 8));
    } else if (op.has("commit_group")) {
      i.run = commit_copies;
    } else {
      if (!op.has("async") || !op.has("shared") || !op.has("global") || s.operands.size() < 3)
        wrong("it is not translated");
      i.run = copy_async;
      const Address to = address(s.operands[0]), from = address(s.operands[1]);
      i.r[0] = base_of(to);
      i.number = to.offset;
      i.r[1] = base_of(from);
      i.target = static_cast<uint32_t>(from.offset);
      i.bytes = static_cast<uint32_t>(number(s.operands[2], 4));
      i.r[2] = operand(s.operands.size() > 3 ? s.operands[3] : s.operands[2], 4);
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
    for (size_t k = 0; k < to.size(); ++k) i.r[k] = operand(to[k], 4);
    const Address at = address(s.operands.at(1));
    i.r[i.count] = base_of(at);
    i.number = at.offset;
    i.target = op.has("trans") ? 1 : 0;
    add(s, i);
  }

  void generic(const Statement& s, const Opcode& op) {
    Instruction i;
    const bool shared = op.has("shared");
    i.run = !shared ? find_bits(Opcode("mov.b64"))->run : op.has("to") ? to_shared : from_shared;
    for (size_t k = 0; k < 2; ++k) i.r[k] = operand(s.operands.at(k), 8);
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
    i.r[packs ? 0U : i.count] = operand(s.operands[packs ? 0 : 1], whole);
    for (size_t k = 0; k < parts.size(); ++k) i.r[packs ? k + 1 : k] = operand(parts[k], part);
    add(s, i);
  }

  void brx(const Statement& s) {
    Instruction i;
    i.flow = Flow::table;
    i.r[0] = operand(s.operands.at(0), 4);
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
    Scope scope;
    for (size_t k = 0; k < lists[0].size(); ++k) scope[f->results[k].name] = get(lists[0][k]);
    for (size_t k = 0; k < lists[1].size(); ++k) scope[f->params[k].name] = get(lists[1][k]);
    scopes_.push_back(std::move(scope));
    body(*f, depth + 1);
    scopes_.pop_back();
  }

  const Module& module_;
  Program program_;
  std::vector<Scope> scopes_;
  size_t bottom_ = 0;  ///< where the scopes of the current function begin
  const Statement* now_ = nullptr;
  std::string prefix_;  ///< of the labels of the current function
  int inlined_ = 0;
  std::map<std::pair<int, uint64_t>, Register> constants_;
  std::map<std::string, Register> specials_;
  std::map<std::string, uint32_t> labels_, table_numbers_;
  std::vector<std::pair<size_t, std::string>> branches_;
  std::vector<std::pair<size_t, std::vector<std::string>>> tables_;
};

}  // namespace

Program decode(const std::string& text) {
  const Module module = parse(text);
  return Decoder(module).program();
}

}  // namespace tessera::test::ptx
