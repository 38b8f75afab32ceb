// Tokenizes texts into a corpus. One thread reads documents and collects them in blocks; a task for
// each block encodes it; results are appended in the order of the blocks. A commit notes where the
// next block begins, so that a second run of the same command goes on there.
#include <unistd.h>

#include <deque>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/documents.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "tessera/corpus.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr int64_t kCommitBytes = int64_t{8} << 20;  // of text, or after
constexpr double kCommitSeconds = 5;

struct TokenizeFlags : Invocation, TokenizerFlags, JsonFlag {
  std::vector<std::string> files;
  std::string out;                           ///< name of the corpus
  std::string documents, json_key = "text";  ///< jsonl, file or blank-lines; the key
  bool append_eod = false, skip_empty = false, special_in_text = false, add_special = false;
  int64_t threads = -1;
  void declare(FlagTable& table) {
    table.add({{"FILE",
                &files,
                kOneProcess,
                "Files of text. Each line of FILE.jsonl is a document, any other file is one.",
                {},
                true}});
    TokenizerFlags::declare(table, true);
    table.add(
        {{"--out CORPUS",
          &out,
          kOneProcess,
          "Name of the corpus. The same command continues one that was stopped.",
          {},
          true},
         {"--documents KIND", &documents, kOneProcess,
          "What is a document: a line (jsonl), a whole file (file), or text up to a blank line "
          "(blank-lines)."},
         {"--json-key KEY", &json_key, kOneProcess, "Key of the text in a line of jsonl (text)."},
         {"--append-eod", &append_eod, kOneProcess,
          "Ends every document with the tokenizer's token for the end of a text."},
         {"--add-special", &add_special, kOneProcess,
          "Adds the tokens that the tokenizer puts around a text."},
         {"--special-in-text", &special_in_text, kOneProcess,
          "Text that is written like a special token, such as <|endoftext|>, becomes it. Without, "
          "it is text."},
         {"--skip-empty", &skip_empty, kOneProcess, "Leaves out documents without text or tokens."},
         {"--threads", &threads, kOneProcess, "Number of threads (0: one for each core).",
          whole_number(0, kMostThreads)}});
    JsonFlag::declare(table);
  }
};

/// Documents that one task encodes, and where the reader was behind them.
struct Block {
  std::vector<RawDocument> documents;
  DocumentPlace end;
  int64_t bytes_read = 0;
};

/// The ids of all documents of a block, and how many each has.
struct Encoded {
  std::vector<int32_t> ids;
  std::vector<size_t> lengths;
  int64_t skipped = 0;
  DocumentPlace end;
  int64_t bytes_read = 0;
};

/// What a task needs; constant while tasks run.
struct TokenizeJob {
  const Tokenizer& tokenizer;
  const TokenizeFlags& args;
  const std::vector<std::string>& files;
  std::optional<int32_t> end_token;
};

std::string place_text(const TokenizeJob& job, const RawDocument& document) {
  return fmt::format("line {} of '{}'", document.line, job.files[document.file]);
}

/// The text of a line of JSON.
std::string text_in(const TokenizeJob& job, const RawDocument& document) {
  std::string twice;
  const nlohmann::json json = parse_json(document.text, &twice);
  if (!json.is_object())
    fail(ErrorKind::io,
         "{} is no JSON object: {}; mend the line, or read the file as text with "
         "--documents file",
         place_text(job, document),
         document.text.substr(0, std::min<size_t>(60, document.text.find_first_of("\r\n"))));
  if (!twice.empty())
    fail(ErrorKind::io, "{} has the key '{}' twice; take one of them out",
         place_text(job, document), twice);
  const auto it = json.find(job.args.json_key);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  if (it == json.end())
    fail(ErrorKind::io, "{} has no key '{}'; name the key of the text with --json-key{}",
         place_text(job, document), job.args.json_key, suggestion(job.args.json_key, keys));
  if (!it->is_string())
    fail(ErrorKind::io, "{}: the value of '{}' is no text but {}", place_text(job, document),
         job.args.json_key, it->type_name());
  return *it;
}

Encoded encode(const TokenizeJob& job, const Block& block) {
  Encoded result;
  result.end = block.end;
  result.bytes_read = block.bytes_read;
  const EncodeOptions options = {job.args.special_in_text, job.args.add_special};
  for (const RawDocument& document : block.documents) {
    const std::string from_json = document.json ? text_in(job, document) : "";
    const std::string& text = document.json ? from_json : document.text;
    if (text.empty()) {
      if (!job.args.skip_empty)
        fail(ErrorKind::io,
             "the document at {} is empty; leave such documents out with "
             "--skip-empty",
             place_text(job, document));
      ++result.skipped;
      continue;
    }
    const size_t before = result.ids.size();
    try {
      job.tokenizer.encode_to(text, result.ids, options);
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", place_text(job, document), e.what()));
    }
    if (job.end_token) result.ids.push_back(*job.end_token);
    if (result.ids.size() == before) {
      if (!job.args.skip_empty)
        fail(ErrorKind::io,
             "the document at {} has text, but no tokens in this vocabulary; leave "
             "such documents out with --skip-empty",
             place_text(job, document));
      ++result.skipped;
      continue;
    }
    result.lengths.push_back(result.ids.size() - before);
  }
  return result;
}

/// The next documents, of about kBlockBytes; none at the end.
Block read_block(DocumentReader& reader) {
  Block block;
  size_t bytes = 0;
  for (RawDocument document; bytes < kBlockBytes && reader.next(document);) {
    bytes += document.text.size();
    block.documents.push_back(std::move(document));
  }
  block.end = reader.place();
  block.bytes_read = reader.bytes_read();
  return block;
}

/// What makes the ids, besides the vocabulary; a corpus continues only if it is the same.
std::string job_text(const TokenizeFlags& args, const DocumentReader& reader) {
  std::string text =
      fmt::format("{} {} {} {} {} {}", args.json_key, args.documents, args.append_eod,
                  args.special_in_text, args.add_special, args.skip_empty);
  for (size_t f = 0; f < reader.files().size(); ++f)
    text += fmt::format("\n{} {}", reader.files()[f], reader.sizes()[f]);
  return fmt::format("{:08x}", crc32c(text.data(), text.size()));
}

std::string note_of(const std::string& job, const DocumentPlace& place) {
  return nlohmann::json{{"job", job}, {"file", place.file}, {"offset", place.offset}}.dump();
}

/// Moves the reader to where an earlier run stopped.
void resume(CorpusWriter& corpus, DocumentReader& reader, const std::string& job,
            const std::string& prefix) {
  if (corpus.note().empty()) return;
  const nlohmann::json note = parse_json(corpus.note());
  TESSERA_REQUIRE(
      note.is_object() && note.value("job", "") == job,
      "'{}.part.json' is of a run with other files or flags; repeat the first command, or "
      "remove '{}*.part*' to begin again",
      prefix, prefix);
  reader.seek({note["file"].get<size_t>(), note["offset"].get<int64_t>()});
  say("goes on at {:.1f} % of the text: {} documents, {} tokens are there\n",
      100.0 * static_cast<double>(reader.bytes_read()) /
          static_cast<double>(std::max<int64_t>(1, reader.bytes())),
      corpus.documents(), corpus.tokens());
}

/// A bar on a terminal; nothing else.
class Bar {
 public:
  Bar(int64_t from, int64_t bytes) : from_(from), bytes_(std::max<int64_t>(1, bytes)) {}
  ~Bar() {
    if (shown_) std::fputs("\n", stdout);
  }
  void show(int64_t done, int64_t tokens) {
    if (!terminal_ || seconds_since(last_) < 0.1) return;
    last_ = host_seconds();
    shown_ = true;
    constexpr int kWidth = 30;
    const double share = static_cast<double>(done) / static_cast<double>(bytes_);
    const double rate = static_cast<double>(done - from_) / seconds_since(start_);
    const auto full = static_cast<int>(share * kWidth);
    fmt::print("\r[{:#<{}}{:.<{}}] {:5.1f} %  {}  {} tokens  {} left   ", "", full, "",
               kWidth - full, 100 * share, with_unit(rate, "B/s"), tokens,
               duration(static_cast<double>(bytes_ - done) / std::max(rate, 1.0)));
    std::fflush(stdout);
  }

 private:
  int64_t from_, bytes_;
  bool terminal_ = isatty(STDOUT_FILENO) == 1, shown_ = false;
  double start_ = host_seconds(), last_ = 0;
};

DocumentKind parse_kind(const std::string& name) {
  if (name.empty()) return DocumentKind::by_name;
  if (name == "jsonl") return DocumentKind::jsonl;
  if (name == "file") return DocumentKind::file;
  TESSERA_REQUIRE(name == "blank-lines", "unknown --documents '{}'{}", name,
                  suggestion(name, {"jsonl", "file", "blank-lines"}));
  return DocumentKind::blank_lines;
}

/// Reads, encodes and appends all that is left. Returns the number of documents left out.
int64_t run(const TokenizeJob& job, DocumentReader& reader, CorpusWriter& corpus,
            const std::string& name, size_t threads) {
  std::deque<std::future<Encoded>> tasks;
  Bar bar(reader.bytes_read(), reader.bytes());
  double committed = host_seconds();
  int64_t committed_bytes = reader.bytes_read(), skipped = 0;
  for (bool more = true; more || !tasks.empty();) {
    while (more && tasks.size() < threads) {
      Block block = read_block(reader);
      more = !block.documents.empty();
      if (more)
        tasks.push_back(std::async(
            std::launch::async, [&job, block = std::move(block)] { return encode(job, block); }));
    }
    if (tasks.empty()) break;
    const Encoded done = tasks.front().get();
    tasks.pop_front();
    size_t at = 0;
    for (const size_t length : done.lengths) {
      corpus.add(std::span(done.ids).subspan(at, length));
      at += length;
    }
    skipped += done.skipped;
    bar.show(done.bytes_read, corpus.tokens());
    if (seconds_since(committed) < kCommitSeconds &&
        done.bytes_read - committed_bytes < kCommitBytes)
      continue;
    corpus.commit(note_of(name, done.end));
    committed = host_seconds();
    committed_bytes = done.bytes_read;
  }
  return skipped;
}

int run_tokenize(const TokenizeFlags& args, const std::vector<ModelSpec>&) {
  require_writable(args.json);
  DocumentReader reader(args.files, parse_kind(args.documents));
  const Tokenizer tokenizer = load_tokenizer(args);
  TokenizeJob job{tokenizer, args, reader.files(), std::nullopt};
  if (args.append_eod) {
    job.end_token = tokenizer.eos();
    TESSERA_REQUIRE(
        job.end_token.has_value(),
        "'{}' ({}) names no token for the end of a text, which --append-eod needs: {}, or leave "
        "--append-eod out",
        args.tokenizer, tokenizer.description(),
        args.tokenizer.ends_with(".json")
            ? "put it as \"eos_token\" into a tokenizer_config.json beside it"
            : "name one with --special-token");
  }
  const size_t threads = args.threads > 0 ? static_cast<size_t>(args.threads)
                                          : std::max(1u, std::thread::hardware_concurrency());
  CorpusWriter corpus(args.out, {tokenizer.vocab_size(), tokenizer.fingerprint(), job.end_token});
  const std::string name = job_text(args, reader);
  resume(corpus, reader, name, args.out);
  const int64_t before = reader.bytes_read(), tokens_before = corpus.tokens();
  const double start = host_seconds();
  const int64_t skipped = run(job, reader, corpus, name, threads);
  const double seconds = seconds_since(start);
  TESSERA_REQUIRE(corpus.documents() > 0, "there is no document in '{}'",
                  fmt::join(args.files, "', '"));
  const auto bytes = static_cast<double>(reader.bytes() - before);
  corpus.commit(note_of(name, reader.place()));
  corpus.finish();
  say("{}.idx: {} documents, {} tokens of a vocabulary of {} ({})\n", args.out, corpus.documents(),
      corpus.tokens(), tokenizer.vocab_size(), tokenizer.description());
  if (skipped > 0) say("left out {} empty documents\n", skipped);
  say("{} in {}, {} with {} threads; {:.2f} bytes a token\n", with_unit(bytes, "B"),
      duration(seconds), with_unit(bytes / seconds, "B/s"), threads,
      bytes / static_cast<double>(std::max<int64_t>(1, corpus.tokens() - tokens_before)));
  write_report(args.json, {{"corpus", args.out},
                           {"documents", corpus.documents()},
                           {"tokens", corpus.tokens()},
                           {"vocabulary", tokenizer.vocab_size()},
                           {"skipped", skipped},
                           {"bytes", bytes},
                           {"seconds", seconds},
                           {"threads", threads}});
  return 0;
}

}  // namespace

Tokenizer load_tokenizer(const TokenizerFlags& args) {
  return Tokenizer::load(args.tokenizer, {args.pattern, args.special});
}

Command tokenize_command() {
  return command(
      "tokenize", "Turns text into a corpus of tokens, CORPUS.bin and CORPUS.idx, for train.",
      "tessera tokenize --tokenizer tokenizer.json a.jsonl b.jsonl --out corpus --append-eod",
      Processes::first, run_tokenize);
}

}  // namespace tessera::cli
