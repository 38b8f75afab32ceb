// The text is cut into windows that share one token: window i starts at token i * length, and the
// target of a position is the next token, so every token but the first is a target exactly once.
// Windows are computed on demand from the mapped file; the operating system caches used pages.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "io/token_file.h"
#include "tessera/data.h"

namespace tessera {

namespace {

void require_options(const TextOptions& o) {
  TESSERA_REQUIRE(o.length >= 1, "[data] a text window of length {}; it has at least 1 token",
                  o.length);
  TESSERA_REQUIRE(
      o.token_bytes == 1 || o.token_bytes == 2 || o.token_bytes == 4,
      "[data] tokens of {} bytes; a text has 1 (bytes), 2 (little-endian uint16) or 4 (uint32)",
      o.token_bytes);
  TESSERA_REQUIRE(o.first >= 0 && o.first < o.last && o.last <= 1,
                  "[data] the part {} to {} of a text; it needs 0 <= first < last <= 1", o.first,
                  o.last);
}

void require_vocabulary(const TokenFile& file, int64_t vocabulary) {
  const int64_t most = file.most_values();
  TESSERA_REQUIRE(vocabulary >= 0 && vocabulary <= most,
                  "[data] a vocabulary of {}; tokens of {} byte(s) have 1 to {} values (0 for all)",
                  vocabulary, file.token_bytes(), most);
  TESSERA_REQUIRE(
      vocabulary == 0 || file.vocabulary() <= vocabulary,
      "[data] '{}' has tokens of a vocabulary of {} ('{}'), but the model's has {}; set "
      "model.vocab={}",
      file.path(), file.vocabulary(), file.companion(), vocabulary, file.vocabulary());
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
  file_ = std::make_shared<const TokenFile>(path, options.token_bytes);
  require_vocabulary(*file_, options.vocabulary);
  if (options_.vocabulary == 0)
    options_.vocabulary = file_->vocabulary() > 0 ? file_->vocabulary() : file_->most_values();
  if (options_.document_end < 0) options_.document_end = file_->document_end();
  const int64_t tokens = file_->tokens(), length = options.length;
  if (tokens == 0) {
    fail(ErrorKind::io, "[data] '{}' is empty; windows of length {} need at least {} tokens", path,
         length, length + 1);
  }
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
  const auto add = [&](const std::string& name, DType dtype, Content content) {
    if (name.empty()) return;
    TESSERA_REQUIRE(
        content <= Content::targets || file_->has_documents() || options_.document_end >= 0,
        "[data] the field '{}' is about documents, but '{}' does not say where they begin; set "
        "TextOptions::document_end to the token that ends each, or make a corpus with tessera "
        "tokenize",
        name, path);
    fields_.push_back({name, dtype, dims});
    contents_.push_back(content);
  };
  add(options.inputs, DType::int32, Content::inputs);
  add(options.targets, DType::int32, Content::targets);
  add(options.segments, DType::int32, Content::segments);
  add(options.positions, DType::int32, Content::positions);
  add(options.weights, DType::float32, Content::weights);
}

void TextData::read_tokens(int64_t start, const DataBox& box) const {
  auto* to = static_cast<int32_t*>(box.data);
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const int64_t value = file_->token(start + i);
    if (value < 0 || value >= options_.vocabulary) {
      fail(ErrorKind::io,
           "[data] token {} of '{}' (byte {}) is {}, but the vocabulary has {}; use the vocabulary "
           "of the file",
           start + i, file_->path(), file_->offset_of(start + i), value, options_.vocabulary);
    }
    to[i * box.strides[0]] = static_cast<int32_t>(value);
  }
}

void TextData::read_documents(int64_t window, Content content, const DataBox& box) const {
  const int64_t end = window + box.offset[0] + box.extent[0] + 1;  // of the last target
  std::vector<int64_t> begins;
  if (options_.document_end >= 0 && !file_->has_documents()) {
    for (int64_t i = window + 1; i < end; ++i) {
      if (file_->token(i - 1) == options_.document_end) begins.push_back(i);
    }
  } else {
    begins = file_->index().begins_in(window + 1, end);
  }
  begins.push_back(end);  // so that there is always a next one
  size_t next = 0;
  int64_t begin = window;
  for (int64_t at = window; at < end - 1; ++at) {
    if (at == begins[next]) begin = begins[next++];
    const int64_t i = at - window - box.offset[0];
    if (i < 0) continue;
    if (content == Content::weights) {
      static_cast<float*>(box.data)[i * box.strides[0]] = begins[next] == at + 1 ? 0.0F : 1.0F;
    } else {
      const int64_t value =
          content == Content::segments ? static_cast<int64_t>(next) + 1 : at - begin;
      static_cast<int32_t*>(box.data)[i * box.strides[0]] = static_cast<int32_t>(value);
    }
  }
}

void TextData::read(int64_t example, int field, const DataBox& box) const {
  const int64_t window = begin_ + example * options_.length;
  const Content content = contents_[static_cast<size_t>(field)];
  file_->count_read(content > Content::targets);
  if (content > Content::targets) return read_documents(window, content, box);
  read_tokens(window + box.offset[0] + (content == Content::targets ? 1 : 0), box);
}

std::string TextData::fingerprint() const {
  return fmt::format("{}, tokens of {} bytes, windows of {}, from {} to {}", file_->fingerprint(),
                     file_->token_bytes(), options_.length, options_.first, options_.last);
}

}  // namespace tessera
