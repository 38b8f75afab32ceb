// Compiler options for the rest of the including file: a product that is added is one instruction
// where the instruction set has it. GCC's pragma resets options that it does not name, so it
// repeats those of the build.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno", "fp-contract=fast")
#endif
