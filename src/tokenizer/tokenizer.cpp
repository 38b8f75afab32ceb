// Tells the kinds of files apart by what they hold, and keeps what all of them become.
#include "tessera/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "tokenizer/encoder.h"
#include "tokenizer/utf8.h"

namespace tessera {

namespace fs = std::filesystem;

struct Tokenizer::Parts : LoadedTokenizer {
  uint32_t checksum = 0;
};

void LoadedTokenizer::set(int32_t id, std::string bytes) {
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  tokens[static_cast<size_t>(id)] = {std::move(bytes), TokenEntry::Kind::normal};
}

void LoadedTokenizer::set_special(int32_t id, std::string bytes, const std::string& name) {
  set(id, std::move(bytes));
  tokens[static_cast<size_t>(id)].kind = TokenEntry::Kind::special;
  specials[name] = id;
}

namespace {

/// The tokenizer of a folder; a file itself.
std::string file_of(const std::string& path) {
  if (!is_folder(path)) return path;
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model"}) {
    const fs::path file = fs::path(path) / name;
    if (is_there(file)) return file.string();
  }
  fail(ErrorKind::io,
       "[tokenizer] the folder '{}' has no tokenizer.json, tekken.json or tokenizer.model; give "
       "the file",
       path);
}

bool is_tiktoken(const std::string& text) {
  const std::string_view line = std::string_view(text).substr(0, text.find_first_of("\r\n"));
  const size_t space = line.find(' ');
  return space != line.npos && space > 0 && base64_decoded(line.substr(0, space)) &&
         line.find_first_not_of("0123456789", space + 1) == line.npos;
}

LoadedTokenizer load_json(const std::string& path, const std::string& text,
                          const TokenizerSettings& settings) {
  const nlohmann::json file = parse_json(text);
  if (!file.is_object())
    fail(ErrorKind::io,
         "[tokenizer] '{}' begins as JSON, but is none (or nests too deeply); it may be truncated "
         "at {} bytes",
         path, text.size());
  if (file.contains("model")) return load_tokenizer_json(path, file, settings);
  if (file.contains("config") && file["config"].is_object() && file.contains("vocab"))
    return load_tekken(path, file);
  fail(ErrorKind::unsupported,
       "[tokenizer] '{}' is JSON, but neither a tokenizer.json (it has no 'model') nor a "
       "tekken.json (it has no 'config' and 'vocab'); convert it with transformers: "
       "AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT)",
       path);
}

LoadedTokenizer load_file(const std::string& path, const std::string& text,
                          const TokenizerOptions& options, const TokenizerSettings& settings) {
  if (text.empty()) fail(ErrorKind::io, "[tokenizer] '{}' is empty", path);
  if (is_tiktoken(text)) return load_tiktoken(path, text, options);
  std::vector<std::string> given = options.special;
  if (!options.pattern.empty()) given.insert(given.begin(), options.pattern);
  TESSERA_REQUIRE(
      given.empty(),
      "[tokenizer] '{}' is no tiktoken file and has its own pattern and special tokens; leave "
      "'{}' out",
      path, fmt::join(given, "', '"));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{') return load_json(path, text, settings);
  return load_sentencepiece(path, text, settings);
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path, const TokenizerOptions& options) {
  const std::string file = file_of(path);
  const std::string text = read_text_file("tokenizer", file);
  auto parts = std::make_unique<Parts>();
  const TokenizerSettings settings = read_settings(file);
  static_cast<LoadedTokenizer&>(*parts) = load_file(file, text, options, settings);
  parts->checksum = crc32c(text.data(), text.size());
  for (const std::string& more : options.special)
    parts->checksum = crc32c(more.data(), more.size(), parts->checksum);
  parts->checksum = crc32c(options.pattern.data(), options.pattern.size(), parts->checksum);
  for (const auto& list : {parts->before, parts->after}) {
    for (const int32_t id : list) {
      if (id < 0 || id >= std::ssize(parts->tokens))
        fail(ErrorKind::io, "[tokenizer] '{}': the post-processor adds the id {}, beyond {} tokens",
             file, id, parts->tokens.size());
    }
  }
  const auto choose = [&](std::optional<int32_t>& id, const char* key,
                          std::initializer_list<const char*> usual) {
    if (const auto named = settings.named.find(key); named != settings.named.end())
      id = parts->specials.find(named->second)->second;
    for (const char* name : usual) {
      if (id) return;
      if (const auto it = parts->specials.find(name); it != parts->specials.end()) id = it->second;
    }
  };
  choose(parts->bos, "bos_token", {"<|begin_of_text|>", "<s>", "<bos>"});
  choose(parts->eos, "eos_token", {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"});
  choose(parts->pad, "pad_token", {"<pad>"});
  const auto around = [](bool adds, const std::optional<int32_t>& id) {
    return adds && id ? std::vector{*id} : std::vector<int32_t>();
  };
  if (settings.adds_bos) parts->before = around(*settings.adds_bos, parts->bos);
  if (settings.adds_eos) parts->after = around(*settings.adds_eos, parts->eos);
  return Tokenizer(std::move(parts));
}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& ids,
                          const EncodeOptions& options) const {
  if (options.add_special) ids.insert(ids.end(), parts_->before.begin(), parts_->before.end());
  if (valid_utf8(text) == text.size())
    parts_->encoder->encode(text, options.special_in_text, ids);
  else
    parts_->encoder->encode(replace_invalid_utf8(text), options.special_in_text, ids);
  if (options.add_special) ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  encode_to(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  bool first = true;
  for (const int32_t id : ids) {
    TESSERA_REQUIRE(id >= 0 && id < vocab_size(),
                    "[tokenizer] the id {} cannot be decoded; the vocabulary has {} tokens", id,
                    vocab_size());
    const TokenEntry& entry = parts_->tokens[static_cast<size_t>(id)];
    if (entry.kind == TokenEntry::Kind::none) continue;
    if (entry.kind == TokenEntry::Kind::special && skip_special) continue;
    std::string_view bytes = entry.bytes;
    if (first && parts_->drops_first_space && bytes.starts_with(' ')) bytes.remove_prefix(1);
    first = false;
    text += bytes;
  }
  return text;
}

int64_t Tokenizer::vocab_size() const { return std::ssize(parts_->tokens); }
std::optional<int32_t> Tokenizer::bos() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return parts_->eos; }
std::optional<int32_t> Tokenizer::pad() const { return parts_->pad; }

std::optional<int32_t> Tokenizer::special(std::string_view name) const {
  const auto it = parts_->specials.find(name);
  return it == parts_->specials.end() ? std::nullopt : std::optional(it->second);
}

std::string Tokenizer::description() const {
  return fmt::format("{}, {} tokens", parts_->kind, vocab_size());
}

std::string Tokenizer::fingerprint() const {
  return fmt::format("{}, crc32c {:08x}", description(), parts_->checksum);
}

}  // namespace tessera
