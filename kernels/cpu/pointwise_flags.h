// Compiler options of the pointwise loops, for the rest of the including file. Selects become
// vector selects only if the compiler need not preserve floating-point traps. GCC's pragma resets
// options that it does not name, so it repeats those of the build.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "no-math-errno", "fp-contract=off")
#endif
