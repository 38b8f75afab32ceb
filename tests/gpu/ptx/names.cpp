#include "gpu/ptx/names.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>

#include "base/fail.h"
#include "gpu/ptx/forms.h"
#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

namespace {

using Value = Program::Value;

/// Between variables in shared memory: an access beyond one is not in the next one.
constexpr int64_t kGap = 128;

bool is_number(const std::string& text) {
  return std::isdigit(static_cast<unsigned char>(text[0])) != 0 ||
         (text[0] == '-' && text.size() > 1);
}

}  // namespace

void Names::wrong(const std::string& what) const {
  fail(ErrorKind::internal,
       "PTX, line {}: '{}': {}; tests/gpu/ptx executes what generated kernels contain",
       now_ == nullptr ? 0 : now_->line, now_ == nullptr ? "" : now_->text, what);
}

void Names::declare_argument(const Variable& v) {
  int64_t& end = program_.param_bytes;
  end = (end + v.align - 1) / v.align * v.align;
  scopes_.back()[v.name] = {Meaning::What::argument, {}, end};
  end += v.bytes;
}

Register Names::new_register(int bytes) {
  const auto size = static_cast<uint32_t>(bytes == 0 ? 4 : bytes * static_cast<int>(kLanes));
  const uint32_t align = static_cast<uint32_t>(std::clamp(bytes, 4, 64));
  program_.register_bytes = (program_.register_bytes + align - 1) / align * align;
  const Register r{program_.register_bytes, static_cast<uint32_t>(bytes)};
  program_.register_bytes += size;
  return r;
}

Register Names::constant(int bytes, uint64_t bits) {
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

Register Names::special(const std::string& name) {
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

const Names::Meaning* Names::find(const std::string& name) const {
  for (size_t s = scopes_.size(); s-- > 0;) {
    if (const auto it = scopes_[s].find(name); it != scopes_[s].end()) return &it->second;
    if (s == bottom_ && s > 0) s = 1;  // a function sees its own names and those of the module
  }
  return nullptr;
}
const Names::Meaning& Names::get(const std::string& name) const {
  const Meaning* m = find(name);
  if (m == nullptr) wrong(fmt::format("'{}' is not declared", name));
  return *m;
}

void Names::declare(const Variable& v) {
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

void Names::declare_registers(const Statement& s) {
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

uint64_t Names::number(const std::string& text, int bytes) const {
  const char second = text.size() > 2 ? text[1] : ' ';
  if (text[0] == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    const bool is_single = second == 'f' || second == 'F';
    if (bytes != (is_single ? 4 : 8)) wrong(fmt::format("'{}' has not {} bytes", text, bytes));
    return std::stoull(text.substr(2), nullptr, 16);
  }
  return text[0] == '-' ? static_cast<uint64_t>(std::stoll(text, nullptr, 0))
                        : std::stoull(text, nullptr, 0);
}

Register Names::operand(const std::string& text, int bytes) {
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

Register Names::address_of(const std::string& text, int width) {
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

Names::Address Names::address(const std::string& text) const {
  if (text[0] != '[') wrong(fmt::format("'{}' is no address", text));
  const std::string in = text.substr(1, text.size() - 2);
  const size_t plus = in.find('+');
  Address a{split_operands(in.substr(0, plus)).at(0), 0};
  if (plus != std::string::npos) a.offset = std::stoll(in.substr(plus + 1));
  return a;
}
Register Names::base_of(const Address& a) {
  if (is_number(a.base)) return constant(8, number(a.base, 8));
  const Meaning& m = get(a.base);
  if (m.what == Meaning::What::reg || m.what == Meaning::What::local) return m.reg;
  return address_of(a.base, 8);
}

}  // namespace tessera::test::ptx
