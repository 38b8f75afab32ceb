// Byte pair encoding: symbols of a piece are merged by rank until no merge applies.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera {

/// Turns pieces into ids. Constant once it is built.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of a piece, which is not empty.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
};

struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using TokenIds = std::unordered_map<std::string, int32_t, BytesHash, std::equal_to<>>;

/// The merges: a pair of ids, and the id that it becomes. A lower rank goes first.
class MergeTable {
 public:
  struct Merge {
    uint64_t pair = kNone;
    uint32_t rank = 0;
    int32_t id = 0;
  };
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  void reserve(size_t merges);
  /// The first merge of a pair counts.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t id);
  /// nullptr: the two do not merge.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  size_t slot_of(uint64_t pair) const;
  std::vector<Merge> slots_;
  size_t used_ = 0;
};

struct BpeRules {
  TokenIds ids;  ///< by the bytes of a token; over characters: by its text
  MergeTable merges;
  bool over_bytes = true;      ///< symbols are bytes; false: characters
  bool whole_first = false;    ///< a piece that is a token is this token, merges or not
  bool byte_fallback = false;  ///< an unknown character becomes its tokens <0xXX>
  bool fuse_unknown = false;   ///< unknown characters in a row become one token
  int32_t unknown = -1;        ///< for unknown symbols; -1: they are left out
};

class Bpe : public TokenModel {
 public:
  explicit Bpe(BpeRules rules);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  void add_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;

  BpeRules rules_;
  std::array<int32_t, 256> byte_ids_;  ///< of single bytes, or of <0xXX>; -1: none
};

}  // namespace tessera
