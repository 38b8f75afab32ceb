// The ids of pieces that were met before. A word costs one look-up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tessera {

/// A direct-mapped cache of short pieces with few ids; a newer piece replaces an older one.
class PieceCache {
 public:
  static constexpr size_t kBytes = 28, kIds = 8;

  PieceCache() : entries_(kEntries) {}
  /// Appends the ids of `piece` and returns true, if it is known.
  bool find(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > kBytes) return false;
    const Entry& entry = entries_[slot_of(piece)];
    if (piece != std::string_view(entry.text, entry.bytes)) return false;
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return true;
  }
  void add(std::string_view piece, const int32_t* ids, size_t count) {
    if (piece.size() > kBytes || count > kIds) return;
    Entry& entry = entries_[slot_of(piece)];
    entry.bytes = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(count);
    std::copy_n(piece.data(), piece.size(), entry.text);
    std::copy_n(ids, count, entry.ids);  // null, if a piece has no ids
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 16;
  struct Entry {
    uint8_t bytes = 0, count = 0;  // bytes 0: empty
    char text[kBytes] = {};
    int32_t ids[kIds] = {};
  };
  static size_t slot_of(std::string_view piece) {
    uint64_t hash = piece.size() * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < piece.size(); i += 8) {
      uint64_t eight = 0;
      std::memcpy(&eight, piece.data() + i, std::min<size_t>(8, piece.size() - i));
      hash = (hash ^ eight) * 0xbf58476d1ce4e5b9u;
      hash ^= hash >> 29;
    }
    return hash & (kEntries - 1);
  }
  std::vector<Entry> entries_;
};

}  // namespace tessera
