// The hash behind names and keys of files, Programs and random streams. Its values are stored and
// compared between machines, so it must never change.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

constexpr uint64_t kHashStart = 14695981039346656037ull;

/// 64-bit FNV-1a (Fowler, Noll and Vo 1991) of a text, continuing from `hash`.
constexpr uint64_t hash_of(std::string_view text, uint64_t hash = kHashStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace tessera
