#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/transformer_keys.h"
#include "tessera/tokenizer.h"

namespace tessera::cli {

namespace fs = std::filesystem;

namespace {

const char kRoundsHelp[] =
    "How often each example of the data comes before it repeats, each time with other tokens to "
    "repair. Held-out data come once.";

/// The special tokens of a model's folder, from the first file there that names them. Texts need
/// not be tokenized here, so a tokenizer.json whose rules Tessera does not know names them too.
class SpecialTokens {
 public:
  explicit SpecialTokens(const ModelFolder& folder) {
    const fs::path path = folder.path();
    for (const char* file : {"tokenizer.json", "spiece.model", "tokenizer.model"}) {
      if (!is_there(path / file)) continue;
      file_ = file;
      try {
        tokenizer_ = Tokenizer::load(folder.path());
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::unsupported || file_ != "tokenizer.json") throw;
        read_added((path / file).string());
      }
      return;
    }
    if (!is_there(path / "vocab.txt")) return;
    file_ = "vocab.txt";
    read_lines((path / file_).string());
  }

  /// The file that they are from; "": none.
  const std::string& file() const { return file_; }

  std::optional<int32_t> find(const std::string& name) const {
    if (tokenizer_) return tokenizer_->special(name);
    const auto it = tokens_.find(name);
    return it == tokens_.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  void read_added(const std::string& path) {
    const nlohmann::json file = parse_json(read_text_file("tokenizer", path));
    for (const nlohmann::json& token : file.value("added_tokens", nlohmann::json::array())) {
      const auto name = token.find("content"), id = token.find("id");
      if (name == token.end() || !name->is_string() || id == token.end() ||
          !id->is_number_integer() || !std::in_range<int32_t>(id->get<int64_t>()))
        fail(ErrorKind::io, "[tokenizer] '{}': an element of added_tokens lacks content or id",
             path);
      tokens_[name->get<std::string>()] = id->get<int32_t>();
    }
  }

  /// The number of a line is its token.
  void read_lines(const std::string& path) {
    std::istringstream lines(read_text_file("tokenizer", path));
    int32_t id = 0;
    for (std::string line; std::getline(lines, line); ++id) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.starts_with('[') && line.ends_with(']')) tokens_.emplace(line, id);
    }
  }

  std::string file_;
  std::optional<Tokenizer> tokenizer_;
  std::map<std::string, int32_t> tokens_;  // without a tokenizer
};

/// The value of a key, or if it is auto the token `name` of the folder.
int32_t token_of(const Config& c, const std::string& key, const ModelFolder& folder,
                 const SpecialTokens& tokens, const char* name) {
  if (c.text(key) != "auto") {
    const int64_t token = c.integer(key);
    TESSERA_REQUIRE(token < folder.options().vocab, "{} is {}, and '{}' has a vocabulary of {}",
                    key, token, folder.path(), folder.options().vocab);
    return static_cast<int32_t>(token);
  }
  const std::optional<int32_t> token = tokens.find(name);
  TESSERA_REQUIRE(token.has_value(),
                  "no {} in '{}' has the token {}; give its number with --set {}=N",
                  tokens.file().empty() ? "file" : tokens.file(), folder.path(), name, key);
  return *token;
}

/// What does not depend on the tokenizer.
SpanCorruptionOptions spans_of(const nn::TransformerOptions& model, const Config& c) {
  SpanCorruptionOptions o;
  o.start = model.start_token;
  o.end = model.end_token;
  o.density = c.number("data.density");
  o.mean_span = c.number("data.mean_span");
  o.rounds = c.integer("data.rounds");
  o.seed = static_cast<uint64_t>(c.integer("train.seed"));
  return o;
}

MaskingOptions masking_of(const ModelFolder& folder, const Config& c) {
  const SpecialTokens tokens(folder);
  MaskingOptions o;
  o.mask_token = token_of(c, "data.mask_token", folder, tokens, "[MASK]");
  o.vocabulary = folder.options().vocab;
  for (const char* name : {"[CLS]", "[SEP]", "[PAD]"}) {
    const std::optional<int32_t> token = tokens.find(name);
    if (token) o.never.push_back(*token);
  }
  o.share = c.number("data.masked_share");
  o.rounds = c.integer("data.rounds");
  o.seed = static_cast<uint64_t>(c.integer("train.seed"));
  return o;
}

}  // namespace

std::vector<ConfigKey> denoising_keys(const nn::TransformerOptions& model) {
  const KeyRange token = KeyRange::whole(0, 2147483647.0, {"auto"});
  const ConfigKey rounds = {"data.rounds", "10", kRoundsHelp, KeyRange::whole(1, 1e9)};
  if (model.encoder_layers > 0) {
    return {{"data.first_sentinel", "auto",
             "Token in place of the first span; the next spans have the tokens below it. auto is "
             "<extra_id_0> of the folder's tokenizer.",
             token},
            {"data.answer_length", "128",
             "Most tokens of the completions of an example of FILE.jsonl, with their ends.",
             KeyRange::whole(1, 1e7)},
            {"data.density", "0.15", "Share of a text's tokens that are in spans.",
             KeyRange::number(0.001, 1)},
            {"data.mean_span", "3", "Number of tokens of a span, on average.", KeyRange::number(1)},
            rounds};
  }
  if (model.causal) return {};
  return {{"data.mask_token", "auto",
           "Token in place of most chosen ones. auto is [MASK] of the folder's tokenizer.", token},
          {"data.masked_share", "0.15", "Share of a text's tokens that are chosen.",
           KeyRange::number(0.001, 1)},
          rounds};
}

CorruptedLengths corrupted_lengths(const nn::TransformerOptions& model, const Config& c) {
  const SpanCorruptionOptions o = spans_of(model, c);
  CorruptedLengths lengths;
  lengths.text = SpanCorruptionData::text_length(c.integer("model.length"), o);
  std::tie(lengths.inputs, lengths.targets) = SpanCorruptionData::lengths(lengths.text, o);
  return lengths;
}

std::unique_ptr<DataSource> to_repair(std::unique_ptr<DataSource> texts, const ModelFolder& folder,
                                      const Config& c, bool held_out) {
  const nn::TransformerOptions& model = folder.options();
  if (!texts || (model.causal && model.encoder_layers == 0)) return texts;
  const std::shared_ptr<const DataSource> source = std::move(texts);
  if (!model.causal) {
    MaskingOptions o = masking_of(folder, c);
    if (held_out) o.rounds = 1;
    return std::make_unique<MaskedData>(source, o);
  }
  SpanCorruptionOptions o = spans_of(model, c);
  o.first_sentinel =
      token_of(c, "data.first_sentinel", folder, SpecialTokens(folder), "<extra_id_0>");
  if (held_out) o.rounds = 1;
  return std::make_unique<SpanCorruptionData>(source, o);
}

}  // namespace tessera::cli
