// The hash that names and keys are made of: files, Programs, streams of random numbers. Its values
// are stored and compared between machines, so it never changes.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

constexpr uint64_t kHashStart = 14695981039346656037ull;

/// FNV-1a, 64 bits (Fowler, Noll and Vo 1991), of a text that goes on from what `hash` is of.
constexpr uint64_t hash_of(std::string_view text, uint64_t hash = kHashStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace tessera
