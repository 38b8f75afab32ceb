// Files of tokens, as one sequence: raw, of llm.c, of Megatron.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/file.h"

namespace tessera {

/// Where the documents of a Megatron corpus begin: its .idx file, mapped.
class MegatronIndex {
 public:
  /// Throws io errors for a file that is no index, truncated or of another version.
  explicit MegatronIndex(const std::string& path);
  int token_bytes() const { return token_bytes_; }
  bool is_signed() const { return signed_; }
  int64_t documents() const { return documents_; }
  /// The tokens of all sequences. Throws an io error if a sample of the sequences does not lie one
  /// behind the other.
  int64_t tokens() const;
  /// The first token of a document; that of number documents() is the end of the corpus.
  int64_t document_begin(int64_t document) const;
  /// The first tokens of documents in [first, end), ascending. Empty documents have none.
  std::vector<int64_t> begins_in(int64_t first, int64_t end) const;
  std::string fingerprint() const;
  void give_back() const { file_.give_back(); }

 private:
  template <class T>
  T load(int64_t offset) const;
  int64_t sequence_begin(int64_t sequence) const;
  int64_t sequence_length(int64_t sequence) const;
  [[noreturn]] void fail_damaged(const std::string& what) const;

  std::string path_;
  MappedFile file_;
  int token_bytes_ = 0;
  bool signed_ = false;
  int64_t sequences_ = 0, documents_ = 0;
};

class TokenFile {
 public:
  /// Opens a file by its name and what it begins with; `token_bytes`: of a file without a header.
  /// Throws io errors.
  TokenFile(const std::string& path, int token_bytes);

  int64_t tokens() const { return tokens_; }
  int token_bytes() const { return token_bytes_; }
  /// The number of values of a token that int32 can hold; of files with a header 2^31.
  int64_t most_values() const;
  /// The value of a token, as the file has it.
  int64_t token(int64_t position) const;
  /// The token's place in the file, in bytes.
  int64_t offset_of(int64_t position) const { return offset_ + position * token_bytes_; }
  const std::string& path() const { return path_; }

  /// Counts a read of tokens, or of where documents begin. Now and then it gives the memory of what
  /// was mapped back, so that a large corpus does not fill it. Threads may call it at once.
  void count_read(bool of_documents) const;

  /// Whether the file says where documents begin.
  bool has_documents() const { return index_ != nullptr; }
  const MegatronIndex& index() const { return *index_; }
  /// As the companion file says.
  int64_t vocabulary() const { return vocabulary_; }      ///< 0: it does not
  int64_t document_end() const { return document_end_; }  ///< -1: it does not
  const std::string& companion() const { return companion_; }
  std::string fingerprint() const;

 private:
  void open_llmc();
  void open_megatron(const std::string& prefix);
  void read_companion(const std::string& path);

  std::string path_, companion_;
  std::unique_ptr<const MappedFile> file_;
  std::unique_ptr<const MegatronIndex> index_;
  const std::byte* data_ = nullptr;
  int64_t offset_ = 0, tokens_ = 0, vocabulary_ = 0, document_end_ = -1;
  int token_bytes_ = 1;
  bool signed_ = false, raw_ = true;
  mutable std::atomic<int64_t> touched_ = 0;  // bytes, about, since memory was given back
};

}  // namespace tessera
