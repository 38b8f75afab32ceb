// Writes a corpus of tokenized documents: the files that TextData and Megatron read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace tessera {

struct CorpusOptions {
  int64_t vocabulary = 0;      ///< ids are below it; below 65,500 a token takes 2 bytes, else 4
  std::string tokenizer = {};  ///< says which one, for CORPUS.json
  std::optional<int32_t> document_end = {};  ///< the token that ends each document, if one does
};

/// Writes PREFIX.bin and PREFIX.idx in Megatron's format, and PREFIX.json, which says how large the
/// vocabulary is. Until finish() the documents are in PREFIX.bin.part, and no file of these names
/// exists. After a restart a writer with the same prefix continues behind its last commit(). All
/// members throw io errors, which leave the parts as the last commit() saw them.
class CorpusWriter {
 public:
  /// Throws a usage error if PREFIX.idx or PREFIX.bin exists, if another process writes this
  /// corpus, or if its parts have other options.
  CorpusWriter(const std::string& prefix, const CorpusOptions& options);
  /// Without a commit() nothing of the corpus remains.
  ~CorpusWriter();
  CorpusWriter(CorpusWriter&&) noexcept;

  /// The note of the last commit() before a restart; empty: the corpus is new.
  const std::string& note() const;
  /// Appends a document. Throws a usage error for a document without tokens or with more than
  /// 2^31 - 1, and for an id outside of the vocabulary.
  void add(std::span<const int32_t> document);
  int64_t documents() const;
  int64_t tokens() const;
  /// Makes durable what was added, with a note: where the caller is in its input.
  void commit(const std::string& note);
  /// Makes the corpus complete: its files appear, and the parts are removed.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
