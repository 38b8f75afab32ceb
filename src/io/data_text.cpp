// The text is cut into windows that share one token: window i starts at token i * length, and the
// target of a position is the next token, so every token but the first is a target exactly once.
// Windows are computed on demand from the mapped file; the operating system caches used pages.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fail.h"
#include "io/file.h"
#include "io/fingerprint.h"
#include "tessera/data.h"

namespace tessera {

namespace {

constexpr int kTargets = 1;  // the field after the inputs

/// The number of values of a token; those of 4 bytes are read as int32.
int64_t most_tokens(int bytes) { return int64_t{1} << std::min(8 * bytes, 31); }

void require_options(const TextOptions& o) {
  require(o.length >= 1, "[data] a text window of length {}; it has at least 1 token", o.length);
  require(o.token_bytes == 1 || o.token_bytes == 2 || o.token_bytes == 4,
          "[data] tokens of {} bytes; a text has 1 (bytes), 2 (little-endian uint16) or 4 (uint32)",
          o.token_bytes);
  require(o.first >= 0 && o.first < o.last && o.last <= 1,
          "[data] the part {} to {} of a text; it needs 0 <= first < last <= 1", o.first, o.last);
  const int64_t most = most_tokens(o.token_bytes);
  require(o.vocabulary >= 0 && o.vocabulary <= most,
          "[data] a vocabulary of {}; tokens of {} byte(s) have 1 to {} values (0 for all)",
          o.vocabulary, o.token_bytes, most);
}

/// The token at a fraction of the file. Using one expression makes the end of one part the begin of
/// the next.
int64_t position_of(double fraction, int64_t tokens) {
  return static_cast<int64_t>(std::floor(fraction * static_cast<double>(tokens)));
}

}  // namespace

TextData::TextData(const std::string& path, const TextOptions& options)
    : path_(path), options_(options) {
  require_options(options);
  if (options_.vocabulary == 0) options_.vocabulary = most_tokens(options.token_bytes);
  file_ = std::make_shared<const MappedFile>("data", path);
  const int64_t bytes = file_->size();
  const int64_t length = options.length;
  if (bytes == 0) {
    fail(ErrorKind::io, "[data] '{}' is empty; windows of length {} need at least {} tokens", path,
         length, length + 1);
  }
  if (bytes % options.token_bytes != 0) {
    fail(ErrorKind::io,
         "[data] '{}' has {} bytes, which are not whole uint{} tokens; the file is truncated, or a "
         "text of bytes (token_bytes = 1)",
         path, bytes, 8 * options.token_bytes);
  }
  const int64_t tokens = bytes / options.token_bytes;
  begin_ = position_of(options.first, tokens);
  const int64_t used = position_of(options.last, tokens) - begin_;
  examples_ = used < 1 ? 0 : (used - 1) / length;
  if (examples_ == 0) {
    fail(
        ErrorKind::io,
        "[data] '{}' has {} tokens, {} of them from {} to {} of the file, but one window of length "
        "{} needs {}; use a longer text, a larger part of it, or a shorter length",
        path, tokens, used, options.first, options.last, length, length + 1);
  }
  const std::vector<Dim> dims = {Dim(options.dim, length)};
  fields_ = {{options.inputs, DType::int32, dims}, {options.targets, DType::int32, dims}};
}

int64_t TextData::token(int64_t position) const {
  const std::byte* at = file_->data() + position * options_.token_bytes;
  int64_t value = 0;
  for (int b = 0; b < options_.token_bytes; ++b)
    value |= std::to_integer<int64_t>(at[b]) << (8 * b);
  return value;
}

void TextData::read(int64_t example, int field, const DataBox& box) const {
  const int64_t start =
      begin_ + example * options_.length + box.offset[0] + (field == kTargets ? 1 : 0);
  auto* to = static_cast<int32_t*>(box.data);
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const int64_t value = token(start + i);
    if (value >= options_.vocabulary) {
      fail(ErrorKind::io,
           "[data] token {} of '{}' is {}, but the vocabulary has {}; use the vocabulary of the "
           "file",
           start + i, path_, value, options_.vocabulary);
    }
    to[i * box.strides[0]] = static_cast<int32_t>(value);
  }
}

std::string TextData::fingerprint() const {
  return fmt::format("{}, tokens of {} bytes, windows of {}, from {} to {}",
                     fingerprint_of(file_->data(), file_->size()), options_.token_bytes,
                     options_.length, options_.first, options_.last);
}

}  // namespace tessera
