// What a run says of segments that go back.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::kernels {

/// `of`: "queries" or "keys"; `position`: where, in the whole sequence, the id is `to` behind
/// `from`.
std::string segments_go_back(const char* of, int64_t from, int64_t to, int64_t position);

}  // namespace tessera::kernels
