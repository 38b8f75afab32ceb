// An index of Megatron: 9 bytes of magic; version 1 (u64); the dtype's code (u8); numbers of
// sequences and of document boundaries (u64 each); lengths (i32) and byte offsets (i64) of the
// sequences; the first sequence of each document, and the end (i64); at times modes (i8). Nothing
// is aligned. Sequences lie one behind the other in the .bin file, so a document begins at the
// offset of its first sequence. Pages are touched where they are asked for: opening costs the same
// for any size.
#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "io/fingerprint.h"
#include "io/token_file.h"

namespace tessera {

namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // and the zero that ends it: 9 bytes
constexpr int64_t kLengths = 34;        // where the lengths begin

}  // namespace

void MegatronIndex::fail_damaged(const std::string& what) const {
  fail(ErrorKind::io, "[data] the index '{}' of {} bytes {}; make the corpus again", path_,
       file_.size(), what);
}

template <class T>
T MegatronIndex::load(int64_t offset) const {
  T value;
  std::memcpy(&value, file_.data() + offset, sizeof(T));
  return value;
}

MegatronIndex::MegatronIndex(const std::string& path) : path_(path), file_("data", path) {
  if (file_.size() < kLengths || std::memcmp(file_.data(), kMagic, 9) != 0)
    fail_damaged("does not begin as an index of Megatron (MMIDIDX)");
  const auto version = load<uint64_t>(9);
  if (version != 1) fail_damaged(fmt::format("has version {}; known is 1", version));
  const auto code = load<uint8_t>(17);
  constexpr struct {
    int bytes;
    bool is_signed;
  } kKinds[] = {{1, false}, {1, true}, {2, true}, {4, true},
                {8, true},  {0, true}, {0, true}, {2, false}};
  if (code < 1 || code > 8 || kKinds[code - 1].bytes == 0)
    fail_damaged(
        fmt::format("has tokens of dtype code {}; known are the whole numbers 1 to 5 and 8", code));
  token_bytes_ = kKinds[code - 1].bytes;
  signed_ = kKinds[code - 1].is_signed;
  const auto sequences = load<uint64_t>(18), boundaries = load<uint64_t>(26);
  const auto most = static_cast<uint64_t>(file_.size());
  if (sequences > most / 12 || boundaries > most / 8 || boundaries < 1)
    fail_damaged(
        fmt::format("names {} sequences and {} document boundaries, for which it is too "
                    "short",
                    sequences, boundaries));
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
  const int64_t needed = kLengths + 12 * sequences_ + 8 * (documents_ + 1);
  if (file_.size() != needed && file_.size() != needed + sequences_)
    fail_damaged(
        fmt::format("should have {} bytes for {} sequences and {} documents; it is "
                    "truncated or damaged",
                    needed, sequences_, documents_));
  const int64_t table = kLengths + 12 * sequences_;
  if (load<int64_t>(table) != 0 || load<int64_t>(table + 8 * documents_) != sequences_)
    fail_damaged(fmt::format("has documents from sequence {} to {}, not from 0 to {}",
                             load<int64_t>(table), load<int64_t>(table + 8 * documents_),
                             sequences_));
}

int64_t MegatronIndex::sequence_length(int64_t sequence) const {
  const auto length = load<int32_t>(kLengths + 4 * sequence);
  if (length < 0) fail_damaged(fmt::format("has a length of {} in sequence {}", length, sequence));
  return length;
}

int64_t MegatronIndex::sequence_begin(int64_t sequence) const {
  if (sequence == sequences_)
    return sequences_ == 0 ? 0 : sequence_begin(sequence - 1) + sequence_length(sequence - 1);
  const auto bytes = load<int64_t>(kLengths + 4 * sequences_ + 8 * sequence);
  if (bytes < 0 || bytes % token_bytes_ != 0)
    fail_damaged(fmt::format("has an offset of {} bytes in sequence {}", bytes, sequence));
  return bytes / token_bytes_;
}

int64_t MegatronIndex::tokens() const {
  constexpr int64_t kLookedAt = 512;
  const int64_t step = std::max<int64_t>(1, sequences_ / kLookedAt);
  for (int64_t s = 0; s < sequences_; s += step) {
    const int64_t end = sequence_begin(s) + sequence_length(s);
    if ((s == 0 && sequence_begin(s) != 0) || sequence_begin(s + 1) != end)
      fail_damaged(fmt::format("has sequence {} from token {} to {}, but the next begins at {}", s,
                               sequence_begin(s), end, sequence_begin(s + 1)));
  }
  return sequence_begin(sequences_);
}

int64_t MegatronIndex::document_begin(int64_t document) const {
  const auto sequence = load<int64_t>(kLengths + 12 * sequences_ + 8 * document);
  if (sequence < 0 || sequence > sequences_)
    fail_damaged(
        fmt::format("has document {} at sequence {} of {}", document, sequence, sequences_));
  return sequence_begin(sequence);
}

std::vector<int64_t> MegatronIndex::begins_in(int64_t first, int64_t end) const {
  int64_t low = 0, high = documents_;  // the first document that begins at `first` or later
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    document_begin(middle) < first ? low = middle + 1 : high = middle;
  }
  std::vector<int64_t> begins;
  for (; low < documents_; ++low) {
    const int64_t begin = document_begin(low);
    if (begin >= end) break;
    if (begin < first || (!begins.empty() && begin < begins.back()))
      fail_damaged(
          fmt::format("has document {} at token {}, before the one in front of it", low, begin));
    if (begins.empty() || begin > begins.back()) begins.push_back(begin);
  }
  return begins;
}

std::string MegatronIndex::fingerprint() const {
  return fingerprint_of(file_.data(), file_.size());
}

}  // namespace tessera
