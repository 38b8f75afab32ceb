#include "cli/documents.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "base/utf8.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

std::FILE* open_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (!file)
    fail(ErrorKind::io, "'{}' cannot be opened: {}; check the path", path, std::strerror(errno));
  return file;
}

/// The command that unpacks what begins with these bytes; nullptr for plain text.
const char* unpacking(const unsigned char* bytes, size_t count) {
  if (count >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B) return "gunzip";
  if (count >= 4 && bytes[0] == 0x28 && bytes[1] == 0xB5 && bytes[2] == 0x2F && bytes[3] == 0xFD)
    return "unzstd";
  if (count >= 4 && std::memcmp(bytes, "PAR1", 4) == 0) return "pandas.read_parquet(...).to_json";
  return nullptr;
}

}  // namespace

DocumentReader::DocumentReader(std::vector<std::string> files, DocumentKind kind)
    : files_(std::move(files)), kind_(kind) {
  for (const std::string& path : files_) {
    if (!is_file(path))
      fail(ErrorKind::io, "'{}' is {}; give files of text or jsonl", path,
           is_there(path) ? "not a regular file" : "missing");
    const std::unique_ptr<std::FILE, CloseFile> file(open_file(path));
    unsigned char first[4] = {};
    const size_t count = std::fread(first, 1, sizeof(first), file.get());
    if (const char* command = unpacking(first, count))
      fail(ErrorKind::unsupported, "'{}' is compressed or packed, not text; unpack it with {}",
           path, command);
    sizes_.push_back(size_of_file(path));
    bytes_ += sizes_.back();
  }
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::is_json() const {
  return kind_ == DocumentKind::jsonl ||
         (kind_ == DocumentKind::by_name && files_[place_.file].ends_with(".jsonl"));
}

bool DocumentReader::open_next() {
  while (place_.file < files_.size()) {
    if (!open_) {
      open_.reset(open_file(files_[place_.file]));
      line_ = place_.offset = 0;
    }
    if (place_.offset < sizes_[place_.file]) return true;
    open_.reset();
    bytes_before_ += sizes_[place_.file];
    place_ = {place_.file + 1, 0};
  }
  return false;
}

bool DocumentReader::read_line(std::string& line) {
  line.clear();
  char* buffer = nullptr;
  size_t room = 0;
  const ssize_t bytes = ::getline(&buffer, &room, open_.get());
  if (bytes > 0) line.assign(buffer, static_cast<size_t>(bytes));
  std::free(buffer);
  if (bytes <= 0 && std::ferror(open_.get()))
    fail(ErrorKind::io, "'{}' cannot be read at byte {}: {}", files_[place_.file], place_.offset,
         std::strerror(errno));
  if (bytes <= 0 && place_.offset < sizes_[place_.file])
    fail(ErrorKind::io, "'{}' ends at byte {}, but had {} when it was opened; leave it as it is",
         files_[place_.file], place_.offset, sizes_[place_.file]);
  if (bytes <= 0) return false;
  const bool is_first = place_.offset == 0;
  place_.offset += bytes;
  ++line_;
  if (is_first && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // a byte-order mark
  if (const std::string fault = utf8_fault(line); !fault.empty())
    fail(ErrorKind::io, "line {} of '{}' {}", line_, files_[place_.file], fault);
  return true;
}

bool DocumentReader::next(RawDocument& document) {
  std::string line;
  while (open_next()) {
    document = {"", place_.file, line_ + 1, is_json()};
    if (document.json) {
      if (!read_line(document.text)) continue;
      if (document.text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      return true;
    }
    const bool whole = kind_ != DocumentKind::blank_lines;
    while (place_.offset < sizes_[place_.file] && read_line(line)) {
      const bool blank = line.find_first_not_of(" \t\r\n") == std::string::npos;
      if (!whole && blank && document.text.empty())
        ++document.line;
      else if (!whole && blank)
        break;
      else
        document.text += line;
    }
    if (whole || !document.text.empty()) return true;
  }
  return false;
}

int64_t DocumentReader::bytes_read() const { return bytes_before_ + place_.offset; }

void DocumentReader::seek(const DocumentPlace& place) {
  bytes_before_ = line_ = 0;
  open_.reset();
  for (size_t f = 0; f < place.file && f < files_.size(); ++f) bytes_before_ += sizes_[f];
  place_ = {place.file, 0};
  std::string line;
  while (place_.offset < place.offset && open_next() && place_.file == place.file)
    if (!read_line(line)) break;
}

}  // namespace tessera::cli
