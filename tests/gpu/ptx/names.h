// What names and numbers in PTX stand for: places in the register file of a warp, and addresses of
// variables.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu/ptx/program.h"
#include "gpu/ptx/syntax.h"

namespace tessera::test::ptx {

class Names {
 public:
  /// A register, or where a variable lies.
  struct Meaning {
    enum class What : uint8_t { reg, symbol, shared, local, argument, param } what = What::reg;
    Register reg;        ///< of a register or parameter, or one that holds the address
    int64_t offset = 0;  ///< of an argument, or in shared memory
  };
  using Scope = std::map<std::string, Meaning>;
  struct Address {
    std::string base;
    int64_t offset = 0;
  };

  /// Adds what it declares to the program.
  explicit Names(Program& program) : program_(program), scopes_(1) {}

  /// Names that are declared from here on end with close().
  void open(Scope scope = {}) { scopes_.push_back(std::move(scope)); }
  void close() { scopes_.pop_back(); }
  size_t depth() const { return scopes_.size(); }
  /// From here on only names of the last scope, of later ones and of the module are seen. Returns
  /// what see_from() takes to go back.
  size_t see_last() { return std::exchange(bottom_, scopes_.size() - 1); }
  void see_from(size_t bottom) { bottom_ = bottom; }

  void declare(const Variable& v);
  /// A parameter of the kernel.
  void declare_argument(const Variable& v);
  void declare_registers(const Statement& s);

  /// Throws if it was not declared.
  const Meaning& get(const std::string& name) const;
  /// A register or a constant of so many bytes; negative: of at least so many.
  Register operand(const std::string& text, int bytes);
  uint64_t number(const std::string& text, int bytes) const;
  /// "[a+8]", "[a+-8]", "[a]".
  Address address(const std::string& text) const;
  /// A register with the base; the offset is the caller's.
  Register base_of(const Address& a);

  /// The statement that errors name; returns the one before.
  const Statement* at(const Statement* s) { return std::exchange(now_, s); }
  [[noreturn]] void wrong(const std::string& what) const;

 private:
  Register new_register(int bytes);
  Register constant(int bytes, uint64_t bits);
  Register special(const std::string& name);
  const Meaning* find(const std::string& name) const;
  Register address_of(const std::string& text, int width);

  Program& program_;
  std::vector<Scope> scopes_;
  size_t bottom_ = 0;  ///< where the scopes of the current function begin
  const Statement* now_ = nullptr;
  std::map<std::pair<int, uint64_t>, Register> constants_;
  std::map<std::string, Register> specials_;
};

}  // namespace tessera::test::ptx
