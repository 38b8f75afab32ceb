#include "base/isa.h"

#include <array>

#include "base/env.h"
#include "base/fail.h"

namespace tessera {
namespace {

constexpr std::array kNames = {"base", "avx2", "avx512"};

Isa widest() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::base;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? Isa::avx512 : Isa::avx2;
#else
  return Isa::base;
#endif
}

Isa wanted() {
  const std::string name = wanted_isa();
  const Isa most = widest();
  if (name.empty()) return most;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name != kNames[i]) continue;
    TESSERA_REQUIRE(
        static_cast<Isa>(i) <= most,
        "TESSERA_ISA is {}, but this processor has at most {}; unset it or name that one", name,
        to_string(most));
    return static_cast<Isa>(i);
  }
  fail(ErrorKind::usage, "TESSERA_ISA is '{}'; it may be {}", name, fmt::join(kNames, ", "));
}

}  // namespace

const char* to_string(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa cpu_isa() {
  static const Isa isa = wanted();
  return isa;
}

}  // namespace tessera
