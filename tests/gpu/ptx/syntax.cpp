#include "gpu/ptx/syntax.h"

#include <cctype>
#include <cstring>

#include "base/fail.h"

namespace tessera::test::ptx {

namespace {

std::string trimmed(const std::string& text) {
  const char* white = " \t\r\n";
  const size_t first = text.find_first_not_of(white);
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(white) - first + 1);
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Module module() {
    Module m;
    while (skip(), at_ < text_.size()) {
      const std::string word = peek();
      if (word == ".version" || word == ".target" || word == ".address_size" || word == ".file") {
        rest_of_line();
      } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
        at_ += word.size();
      } else if (word == ".entry" || word == ".func") {
        function(m);
      } else if (word == ".global" || word == ".const" || word == ".shared") {
        m.variables.push_back(variable(until(';')));
      } else {
        wrong("is no declaration");
      }
    }
    return m;
  }

 private:
  [[noreturn]] void wrong(const char* what) const {
    fail(ErrorKind::internal, "PTX, line {}: '{}' {}", line_, trimmed(text_.substr(at_, 60)), what);
  }

  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') ++line_;
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return;
      }
    }
  }

  std::string peek() const {
    size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  void rest_of_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }

  /// The text up to `stop`, which is skipped.
  std::string until(char stop) {
    const size_t end = text_.find(stop, at_);
    if (end == std::string::npos) wrong("has no end");
    std::string found = text_.substr(at_, end - at_);
    for (const char c : found) line_ += c == '\n' ? 1 : 0;
    at_ = end + 1;
    return found;
  }

  std::vector<Variable> parameters() {
    std::vector<Variable> all;
    if (text_[at_] != '(') wrong("is no list of parameters");
    ++at_;
    for (const std::string& p : split_operands(until(')'))) all.push_back(variable(p));
    skip();
    return all;
  }

  void function(Module& m) {
    Function f;
    f.is_entry = peek() == ".entry";
    at_ += peek().size();
    skip();
    if (text_[at_] == '(') f.results = parameters();
    f.name = peek();
    at_ += f.name.size();
    skip();
    if (text_[at_] == '(') f.params = parameters();
    while (text_[at_] != '{' && text_[at_] != ';') {
      const std::string word = peek();
      if (word.empty()) wrong("is no attribute of a function");
      at_ += word.size();
      size_t end = at_;
      while (end < text_.size() && std::strchr("\n{;", text_[end]) == nullptr) ++end;
      if (word == ".maxntid" || word == ".reqntid")
        f.most_threads = std::stoi(text_.substr(at_, end - at_));
      at_ = end;
      skip();
    }
    const bool has_body = text_[at_++] == '{';
    if (has_body) body(f);
    if (has_body) m.functions.push_back(std::move(f));
  }

  void body(Function& f) {
    int depth = 1;
    while (depth > 0) {
      skip();
      if (at_ >= text_.size()) wrong("has no end");
      Statement s;
      s.line = line_;
      if (text_[at_] == '{' || text_[at_] == '}') {
        s.kind = text_[at_] == '{' ? Statement::Kind::open : Statement::Kind::close;
        depth += s.kind == Statement::Kind::open ? 1 : -1;
        ++at_;
        if (depth > 0) f.body.push_back(s);
        continue;
      }
      const std::string word = peek();
      if (word == ".loc" || word == ".file") {
        rest_of_line();
        continue;
      }
      size_t after = at_ + word.size();
      while (after < text_.size() && text_[after] == ' ') ++after;
      if (!word.empty() && word[0] != '.' && text_[after] == ':') {
        s.kind = Statement::Kind::label;
        s.opcode = word;
        at_ = after + 1;
        f.body.push_back(s);
        continue;
      }
      s.text = trimmed(until(';'));
      if (!statement(s)) continue;
      f.body.push_back(std::move(s));
    }
  }

  /// False: it means nothing here.
  static bool statement(Statement& s) {
    std::string rest = s.text;
    if (rest.starts_with(".pragma")) return false;
    if (rest.starts_with(".reg")) {
      const size_t dot = rest.find('.', 1);
      const size_t end = rest.find_first_of(" \t", dot);
      s.kind = Statement::Kind::registers;
      s.opcode = rest.substr(dot + 1, end - dot - 1);
      s.operands = split_operands(rest.substr(end));
      return true;
    }
    if (rest.starts_with(".branchtargets")) {
      s.kind = Statement::Kind::targets;
      s.operands = split_operands(rest.substr(std::strlen(".branchtargets")));
      return true;
    }
    if (rest[0] == '.') {
      s.kind = Statement::Kind::variable;
      s.variable = variable(rest);
      return true;
    }
    if (rest[0] == '@') {
      s.negated = rest[1] == '!';
      const size_t first = s.negated ? 2 : 1, end = rest.find_first_of(" \t", first);
      s.guard = rest.substr(first, end - first);
      rest = trimmed(rest.substr(end));
    }
    const size_t end = std::min(rest.find_first_of(" \t\n"), rest.size());
    s.opcode = rest.substr(0, end);
    s.operands = split_operands(rest.substr(end));
    return true;
  }

  /// ".global .align 4 .b8 name[24] = {1, 2}", or a parameter.
  static Variable variable(const std::string& text) {
    Variable v;
    const size_t equals = text.find('=');
    std::string declared = trimmed(text.substr(0, equals));
    int64_t item = 0, count = 1;
    for (size_t open; (open = declared.rfind('[')) != std::string::npos;) {
      const std::string size = declared.substr(open + 1, declared.rfind(']') - open - 1);
      count *= size.empty() ? 0 : std::stoll(size);
      declared = trimmed(declared.substr(0, open));
    }
    for (size_t at = 0; at < declared.size();) {
      const size_t end = std::min(declared.find_first_of(" \t\n", at), declared.size());
      const std::string word = declared.substr(at, end - at);
      at = std::min(declared.find_first_not_of(" \t\n", end), declared.size());
      if (word == ".align") {
        const size_t next = std::min(declared.find_first_of(" \t\n", at), declared.size());
        v.align = std::stoll(declared.substr(at, next - at));
        at = std::min(declared.find_first_not_of(" \t\n", next), declared.size());
      } else if (word[0] != '.') {
        v.name = word;
      } else if (v.space.empty()) {
        v.space = word.substr(1);
      } else if (word != ".ptr" && word != ".managed") {
        item = bytes_of_type(word.substr(1));
      }
    }
    v.align = std::max(v.align, item);
    v.bytes = item * count;
    if (equals != std::string::npos) fill(v, item, trimmed(text.substr(equals + 1)));
    return v;
  }

  static void fill(Variable& v, int64_t item, std::string values) {
    v.content.resize(static_cast<size_t>(v.bytes));
    if (values[0] == '{') values = values.substr(1, values.rfind('}') - 1);
    size_t at = 0;
    for (const std::string& value : split_operands(values)) {
      const bool is_bits = value.size() > 2 && value[0] == '0' && std::strchr("fFdD", value[1]);
      const uint64_t bits = is_bits           ? std::stoull(value.substr(2), nullptr, 16)
                            : value[0] == '-' ? static_cast<uint64_t>(std::stoll(value, nullptr, 0))
                                              : std::stoull(value, nullptr, 0);
      if (at + static_cast<size_t>(item) > v.content.size())
        fail(ErrorKind::internal, "PTX: '{}' has {} bytes and more values", v.name, v.bytes);
      std::memcpy(v.content.data() + at, &bits, static_cast<size_t>(item));
      at += static_cast<size_t>(item);
    }
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  for (const char c : text) {
    depth += std::strchr("{[(", c) != nullptr && c != 0 ? 1 : 0;
    depth -= std::strchr("}])", c) != nullptr && c != 0 ? 1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(trimmed(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!trimmed(part).empty()) parts.push_back(trimmed(part));
  return parts;
}

int bytes_of_type(const std::string& type) {
  if (type == "pred") return 0;
  if (type == "bf16" || type == "f16") return 2;
  if (type == "bf16x2" || type == "f16x2") return 4;
  if (type == "b128") return 16;
  const size_t digit = type.find_first_of("0123456789");
  const int bits = digit == std::string::npos ? 0 : std::atoi(type.c_str() + digit);
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
    fail(ErrorKind::internal, "PTX: '.{}' is no type that is known here", type);
  return bits / 8;
}

Module parse(const std::string& text) { return Parser(text).module(); }

}  // namespace tessera::test::ptx
