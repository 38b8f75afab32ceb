// The instruction set that the CPU's kernels are made for.
#pragma once

namespace tessera {

/// In the order of their vectors' width. `avx2` includes FMA; `avx512` is F, BW, DQ and VL.
enum class Isa { base, avx2, avx512 };

/// "base", "avx2" or "avx512".
const char* to_string(Isa isa);

/// The widest one that this processor has, or the one that TESSERA_ISA names. Throws a usage error
/// if that is no instruction set, or none of this processor's. Looked up once.
Isa cpu_isa();

}  // namespace tessera
