// The documents of text files, in order, from any place on.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace tessera::cli {

enum class DocumentKind {
  by_name,      ///< lines of FILE.jsonl, else whole files
  jsonl,        ///< every line is JSON
  file,         ///< a whole file
  blank_lines,  ///< separated by blank lines
};

/// A place between two documents: file number, and byte in it.
struct DocumentPlace {
  size_t file = 0;
  int64_t offset = 0;
};

/// A document as it lies in its file.
struct RawDocument {
  std::string text;
  size_t file = 0;
  int64_t line = 0;   ///< where it begins, from 1
  bool json = false;  ///< `text` is a line of JSON
};

/// Reads the documents of several files. Throws io errors.
class DocumentReader {
 public:
  /// Throws an io error for a file that is missing, no regular file, or compressed.
  DocumentReader(std::vector<std::string> files, DocumentKind kind);
  ~DocumentReader();
  /// The next document; false at the end. A blank line of jsonl is none.
  bool next(RawDocument& document);
  /// Behind the last document.
  DocumentPlace place() const { return place_; }
  /// Continues at a place that place() gave. Counts the lines in front of it.
  void seek(const DocumentPlace& place);

  const std::vector<std::string>& files() const { return files_; }
  int64_t bytes() const { return bytes_; }  ///< of all files
  int64_t bytes_read() const;
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  bool open_next();
  bool read_line(std::string& line);
  bool is_json() const;

  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  DocumentKind kind_;
  int64_t bytes_ = 0, bytes_before_ = 0, line_ = 0;
  DocumentPlace place_;
  std::unique_ptr<std::FILE, CloseFile> open_;
};

}  // namespace tessera::cli
