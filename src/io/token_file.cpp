#include "io/token_file.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"
#include "io/file.h"
#include "io/fingerprint.h"

namespace tessera {

namespace {

constexpr int64_t kHeader = 1024;  // of llm.c: 256 int32
constexpr int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801, kEvaluation = 20240522,
                  kModel = 20240326;

/// "corpus" for corpus.idx, for corpus.bin and for corpus itself, if corpus.idx is there; else "".
std::string megatron_prefix(const std::string& path) {
  std::string prefix = path;
  if (path.ends_with(".idx") || path.ends_with(".bin"))
    prefix.resize(prefix.size() - 4);
  else if (is_there(path))
    return "";
  return path.ends_with(".idx") || is_there(prefix + ".idx") ? prefix : "";
}

int32_t word(const MappedFile& file, int number) {
  int32_t value;
  std::memcpy(&value, file.data() + 4 * number, sizeof(value));
  return value;
}

bool is_llmc(const MappedFile& file) {
  if (file.size() < 4) return false;
  const int32_t magic = word(file, 0);
  return magic == kGpt2Magic || magic == kLlama3Magic || magic == kEvaluation || magic == kModel;
}

/// True if a file begins with letters, blanks and lines, as no file of tokens does: these have
/// zeros, or bytes above those of ASCII that are no UTF-8.
bool is_text(const MappedFile& file) {
  constexpr int64_t kLeast = 64, kMost = int64_t{64} << 10;
  if (file.size() < kLeast) return false;
  const std::string_view begin(reinterpret_cast<const char*>(file.data()),
                               static_cast<size_t>(std::min(file.size(), kMost)));
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  };
  return std::none_of(begin.begin(), begin.end(), is_control) &&
         valid_utf8(begin) + 4 > begin.size();  // a character may be cut at the end
}

}  // namespace

TokenFile::TokenFile(const std::string& path, int token_bytes)
    : path_(path), token_bytes_(token_bytes) {
  const std::string prefix = megatron_prefix(path);
  if (!prefix.empty()) {
    open_megatron(prefix);
    return;
  }
  file_ = std::make_unique<MappedFile>("data", path);
  data_ = file_->data();
  if (path.ends_with(".bin") && is_llmc(*file_)) {
    open_llmc();
    return;
  }
  if (path.ends_with(".bin") && token_bytes == 1 && file_->size() > 0)
    fail(ErrorKind::io,
         "[data] '{}' has no header of llm.c and no index '{}.idx' beside it; for tokens without a "
         "header set data.token_bytes (TextOptions::token_bytes) to 2 or 4; a text, or tokens of "
         "one "
         "byte, need another name than '*.bin'",
         path, path.substr(0, path.size() - 4));
  if (file_->size() % token_bytes != 0)
    fail(ErrorKind::io,
         "[data] '{}' has {} bytes, which are not whole uint{} tokens; the file is truncated, or a "
         "text of bytes (token_bytes = 1)",
         path, file_->size(), 8 * token_bytes);
  if (token_bytes > 1 && is_text(*file_))
    fail(ErrorKind::io,
         "[data] '{}' is a text, but tokens of {} bytes are read from it; make tokens of it: "
         "tessera tokenize '{}' --tokenizer DIR --out PREFIX",
         path, token_bytes, path);
  tokens_ = file_->size() / token_bytes;
}

void TokenFile::open_llmc() {
  const int32_t magic = word(*file_, 0);
  if (magic != kGpt2Magic && magic != kLlama3Magic)
    fail(ErrorKind::unsupported,
         "[data] '{}' is {} of llm.c (magic {}), not a file of tokens; give the tokens", path_,
         magic == kModel ? "a model" : "an evaluation", magic);
  if (file_->size() < kHeader)
    fail(ErrorKind::io, "[data] '{}' has {} bytes, less than the header of llm.c; it is truncated",
         path_, file_->size());
  raw_ = false;
  token_bytes_ = magic == kGpt2Magic ? 2 : 4;
  const int32_t version = word(*file_, 1), known = magic == kGpt2Magic ? 1 : 7;
  if (version != known)
    fail(ErrorKind::unsupported, "[data] '{}' has version {} of llm.c's magic {}; known is {}",
         path_, version, magic, known);
  const auto tokens = static_cast<uint32_t>(word(*file_, 2));
  const int64_t needed = kHeader + int64_t{tokens} * token_bytes_;
  if (file_->size() != needed)
    fail(ErrorKind::io,
         "[data] '{}' names {} tokens in its header, so {} bytes, but has {}; it is truncated or "
         "damaged",
         path_, tokens, needed, file_->size());
  offset_ = kHeader;
  tokens_ = tokens;
}

void TokenFile::open_megatron(const std::string& prefix) {
  raw_ = false;
  path_ = prefix + ".bin";
  index_ = std::make_unique<MegatronIndex>(prefix + ".idx");
  if (!is_there(path_))
    fail(ErrorKind::io,
         "[data] the index '{}.idx' is there, but the tokens '{}' are not; a corpus is both files, "
         "side by side",
         prefix, path_);
  file_ = std::make_unique<MappedFile>("data", path_);
  data_ = file_->data();
  token_bytes_ = index_->token_bytes();
  signed_ = index_->is_signed();
  tokens_ = index_->tokens();
  if (tokens_ * token_bytes_ != file_->size())
    fail(ErrorKind::io,
         "[data] the index '{}.idx' is of {} tokens of {} bytes, so of {} bytes, but '{}' has {}; "
         "they belong to different corpora, or one is truncated",
         prefix, tokens_, token_bytes_, tokens_ * token_bytes_, path_, file_->size());
  read_companion(prefix + ".json");
}

void TokenFile::read_companion(const std::string& path) {
  // Other tools may keep other files under this name, such as the text of the corpus.
  constexpr int64_t kLargest = int64_t{64} << 10;
  if (!is_there(path) || size_of_file(path) > kLargest) return;
  const std::string text = read_text_file("data", path);
  if (text.find("tessera corpus") == std::string::npos) return;
  const nlohmann::json json = parse_json(text);
  const auto whole = [&](const char* key, int64_t least, int64_t otherwise) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) return otherwise;
    if (!it->is_number_integer() || it->get<int64_t>() < least)
      fail(ErrorKind::io, "[data] '{}' is damaged: its {} is {}; restore it, or tokenize again",
           path, key, it->dump());
    return it->get<int64_t>();
  };
  if (!json.is_object())
    fail(ErrorKind::io, "[data] '{}' is damaged: it is no JSON; restore it, or tokenize again",
         path);
  companion_ = path;
  vocabulary_ = whole("vocabulary", 1, 0);
  document_end_ = whole("document_end", 0, -1);
  const int64_t tokens = whole("tokens", 0, tokens_);
  if (tokens != tokens_)
    fail(ErrorKind::io,
         "[data] '{}' was written for {} tokens, but '{}' has {}; they belong to different corpora",
         path, tokens, path_, tokens_);
}

int64_t TokenFile::most_values() const {
  return int64_t{1} << (raw_ ? std::min(8 * token_bytes_, 31) : 31);
}

int64_t TokenFile::token(int64_t position) const {
  const std::byte* at = data_ + offset_of(position);
  const auto load = [at](auto value) -> int64_t {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (token_bytes_) {
    case 1:
      return signed_ ? load(int8_t{}) : load(uint8_t{});
    case 2:
      return signed_ ? load(int16_t{}) : load(uint16_t{});
    case 4:
      return signed_ ? load(int32_t{}) : load(uint32_t{});
    default:
      return load(int64_t{});
  }
}

void TokenFile::count_read(bool of_documents) const {
  // The kernel maps 64 KiB around what is read; a search for documents reads at many places.
  constexpr int64_t kRead = int64_t{64} << 10, kSearch = int64_t{512} << 10;
  constexpr int64_t kMost = int64_t{64} << 20;
  const int64_t bytes = of_documents ? kSearch : kRead;
  if (touched_.fetch_add(bytes) + bytes < kMost) return;
  if (touched_.exchange(0) < kMost) return;  // another thread does it
  file_->give_back();
  if (index_) index_->give_back();
}

std::string TokenFile::fingerprint() const {
  const std::string bytes = fingerprint_of(file_->data(), file_->size());
  file_->give_back();
  return index_ ? fmt::format("{}, index {}", bytes, index_->fingerprint()) : bytes;
}

}  // namespace tessera
