// Tokens and lengths are appended to two files. A commit makes them durable and then replaces a
// small state file that says how much of them counts; after a restart they are cut to that. Only
// finish() makes the index, and the three files get their names when all of them are durable: the
// index last, as nobody reads a corpus without it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "base/cache_file.h"
#include "base/fail.h"
#include "base/json.h"
#include "io/file.h"
#include "tessera/corpus.h"

namespace tessera {

namespace {

constexpr size_t kBuffer = size_t{1} << 20, kLargestState = size_t{1} << 24;
constexpr int64_t kTwoBytes = 65500;  // vocabularies below it: Megatron's own rule

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail(ErrorKind::io,
       "[corpus] '{}' could not be written: {}; make room and give the same command again, which "
       "goes on where it stopped",
       path, system_message(error));
}

/// A file that grows at its end.
class Appended {
 public:
  Appended(const std::string& path, int64_t keep) : path_(path) {
    file_ = FileHandle(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file_) fail_to_write(path, errno);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
      fail(ErrorKind::usage,
           "[corpus] another process writes '{}'; wait for it, or give another --out", path);
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) fail_to_write(path, errno);
    if (status.st_size < keep)
      fail(ErrorKind::io,
           "[corpus] '{}' has {} bytes, but {} were committed; remove '{}' and what belongs to it, "
           "and begin again",
           path, status.st_size, keep, path);
    if (::ftruncate(file_.get(), keep) != 0 || ::lseek(file_.get(), 0, SEEK_END) < 0)
      fail_to_write(path, errno);
  }
  void append(const void* data, size_t bytes) {
    buffer_.append(static_cast<const char*>(data), bytes);
    if (buffer_.size() >= kBuffer) flush();
  }
  void flush() {
    for (size_t done = 0; done < buffer_.size();) {
      const ssize_t bytes = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
      if (bytes < 0 && errno != EINTR) fail_to_write(path_, errno);
      if (bytes > 0) done += static_cast<size_t>(bytes);
    }
    buffer_.clear();
  }
  void make_durable() {
    flush();
    if (::fsync(file_.get()) != 0) fail_to_write(path_, errno);
  }
  /// Bytes from the beginning; fewer than `bytes` at the end. flush() comes before.
  size_t read(int64_t offset, void* to, size_t bytes) const {
    ssize_t done = 0;
    do done = ::pread(file_.get(), to, bytes, offset);
    while (done < 0 && errno == EINTR);
    if (done < 0)
      fail(ErrorKind::io, "[corpus] '{}' cannot be read: {}", path_, system_message(errno));
    return static_cast<size_t>(done);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileHandle file_;
  std::string buffer_;
};

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_to_write(to, errno);
}

void make_folder_durable(const std::string& prefix) {
  const std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
  const FileHandle file(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file) ::fsync(file.get());
}

}  // namespace

struct CorpusWriter::State {
  std::string prefix;
  CorpusOptions options;
  int token_bytes = 2;
  int64_t documents = 0, tokens = 0;
  std::string note;
  std::optional<Appended> bin, lengths;

  std::string file(const char* end) const { return prefix + end; }
  nlohmann::json describe() const;
  void restore();
  void write_index();
};

nlohmann::json CorpusWriter::State::describe() const {
  nlohmann::json json = {{"format", "tessera corpus"},
                         {"version", 1},
                         {"vocabulary", options.vocabulary},
                         {"tokenizer", options.tokenizer},
                         {"document_end", nullptr},
                         {"documents", documents},
                         {"tokens", tokens}};
  if (options.document_end) json["document_end"] = *options.document_end;
  return json;
}

void CorpusWriter::State::restore() {
  const auto text = read_cache_file(file(".part.json"), kLargestState);
  if (!text) return;
  const nlohmann::json json = parse_json(*text);
  const nlohmann::json now = describe();
  bool whole = json.is_object();
  for (const char* key : {"documents", "tokens"})
    whole = whole && json.contains(key) && json[key].is_number_integer() && json[key] >= 0;
  whole = whole && json.contains("note") && json["note"].is_string();
  if (!whole)
    fail(ErrorKind::io, "[corpus] '{}' is damaged; remove '{}*.part*' and begin again",
         file(".part.json"), prefix);
  for (const char* key : {"vocabulary", "tokenizer", "document_end"}) {
    TESSERA_REQUIRE(
        json.value(key, nlohmann::json()) == now[key],
        "[corpus] '{}' was begun with {} {}, and now it is {}; repeat the first command, or "
        "remove '{}*.part*' to begin again",
        prefix, key, json.value(key, nlohmann::json()).dump(), now[key].dump(), prefix);
  }
  documents = json["documents"];
  tokens = json["tokens"];
  note = json["note"];
}

CorpusWriter::CorpusWriter(const std::string& prefix, const CorpusOptions& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.prefix = prefix;
  s.options = options;
  TESSERA_REQUIRE(!prefix.empty(), "[corpus] no name is given for the corpus; use --out PREFIX");
  TESSERA_REQUIRE(
      options.vocabulary >= 1 && options.vocabulary <= std::numeric_limits<int32_t>::max(),
      "[corpus] a vocabulary of {}; it has 1 to 2^31 - 1 tokens", options.vocabulary);
  s.token_bytes = options.vocabulary < kTwoBytes ? 2 : 4;
  TESSERA_REQUIRE(!is_there(s.file(".idx")),
                  "[corpus] '{}' exists; remove it, or give another --out", s.file(".idx"));
  s.restore();
  // A finish() that was interrupted had begun to rename.
  if (!s.note.empty() && !is_there(s.file(".bin.part")) && is_there(s.file(".bin")))
    rename_file(s.file(".bin"), s.file(".bin.part"));
  TESSERA_REQUIRE(!is_there(s.file(".bin")),
                  "[corpus] '{}' exists; remove it, or give another --out", s.file(".bin"));
  s.bin.emplace(s.file(".bin.part"), s.tokens * s.token_bytes);
  s.lengths.emplace(s.file(".lengths.part"), 4 * s.documents);
}

CorpusWriter::~CorpusWriter() {
  if (!state_ || !state_->lengths || !state_->note.empty()) return;
  for (const char* end : {".bin.part", ".lengths.part"}) ::unlink(state_->file(end).c_str());
}
CorpusWriter::CorpusWriter(CorpusWriter&&) noexcept = default;

const std::string& CorpusWriter::note() const { return state_->note; }
int64_t CorpusWriter::documents() const { return state_->documents; }
int64_t CorpusWriter::tokens() const { return state_->tokens; }

void CorpusWriter::add(std::span<const int32_t> document) {
  State& s = *state_;
  TESSERA_REQUIRE(!document.empty() && document.size() <= std::numeric_limits<int32_t>::max(),
                  "[corpus] document {} has {} tokens; it has 1 to 2^31 - 1", s.documents,
                  document.size());
  for (const int32_t id : document) {
    TESSERA_REQUIRE(id >= 0 && id < s.options.vocabulary,
                    "[corpus] document {} has the id {}, but the vocabulary has {}", s.documents,
                    id, s.options.vocabulary);
  }
  if (s.token_bytes == 4) {
    s.bin->append(document.data(), 4 * document.size());
  } else {
    std::vector<uint16_t> narrow(document.begin(), document.end());
    s.bin->append(narrow.data(), 2 * narrow.size());
  }
  const auto length = static_cast<int32_t>(document.size());
  s.lengths->append(&length, sizeof(length));
  ++s.documents;
  s.tokens += length;
}

void CorpusWriter::commit(const std::string& note) {
  State& s = *state_;
  s.bin->make_durable();
  s.lengths->make_durable();
  s.note = note;
  nlohmann::json json = s.describe();
  json["note"] = note;
  write_cache_file(s.file(".part.json"), json.dump() + "\n");
}

void CorpusWriter::State::write_index() {
  Appended index(file(".idx.part"), 0);
  const auto put = [&](auto value) { index.append(&value, sizeof(value)); };
  index.append("MMIDIDX\0", 9);
  put(uint64_t{1});
  put(static_cast<uint8_t>(token_bytes == 2 ? 8 : 4));
  put(static_cast<uint64_t>(documents));
  put(static_cast<uint64_t>(documents) + 1);
  const auto each_length = [&](auto work) {
    std::vector<int32_t> some(kBuffer / 4);
    for (int64_t at = 0; at < documents;) {
      const size_t bytes = lengths->read(4 * at, some.data(), 4 * some.size());
      TESSERA_CHECK(bytes >= 4, "'{}' ends at document {} of {}", lengths->path(), at, documents);
      for (size_t i = 0; i < bytes / 4 && at < documents; ++i, ++at) work(some[i]);
    }
  };
  each_length([&](int32_t length) { put(length); });
  int64_t offset = 0;
  each_length([&](int32_t length) {
    put(offset);
    offset += int64_t{length} * token_bytes;
  });
  for (int64_t d = 0; d <= documents; ++d) put(d);
  index.make_durable();
}

void CorpusWriter::finish() {
  State& s = *state_;
  TESSERA_REQUIRE(s.documents > 0, "[corpus] '{}' has no documents; there is nothing to write",
                  s.prefix);
  commit(s.note.empty() ? "finished" : s.note);
  s.write_index();
  write_cache_file(s.file(".json"), s.describe().dump(2) + "\n");
  rename_file(s.file(".bin.part"), s.file(".bin"));
  rename_file(s.file(".idx.part"), s.file(".idx"));
  make_folder_durable(s.prefix);
  ::unlink(s.file(".lengths.part").c_str());
  ::unlink(s.file(".part.json").c_str());
}

}  // namespace tessera
