#include "cli/transformer_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/fail.h"
#include "tessera/sft_data.h"

namespace tessera::cli {

namespace {

/// The value of data.path is one of these, or a blend of several.
struct WeightedPath {
  double weight = 1;
  std::string path;
};

/// The weight and the path of "0.7:a.idx"; nullopt for another form.
std::optional<WeightedPath> weighted(const std::string& text) {
  WeightedPath result;
  const size_t colon = text.find(':');
  if (colon == text.npos || colon + 1 == text.size()) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + colon, result.weight);
  if (error != std::errc() || stop != text.data() + colon) return std::nullopt;
  result.path = text.substr(colon + 1);
  return result;
}

/// "corpus.idx" as one path; "0.7:a.idx,0.3:b.idx" as two with weights. Throws a usage error for an
/// element of a blend without a weight, and for a weight that is no number above 0.
std::vector<WeightedPath> parse_data_path(const std::string& text) {
  std::vector<WeightedPath> parts;
  std::string without;  // an element that has no weight
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string element = text.substr(start, end - start);
    if (const auto part = weighted(element))
      parts.push_back(*part);
    else
      without = element.empty() ? "(nothing)" : element;
    start = end + 1;
  }
  if (parts.empty()) return {{1, text}};
  TESSERA_REQUIRE(without.empty(),
                  "'{}' of the blend '{}' has no weight; every element is weight:path, as in "
                  "0.7:a.idx,0.3:b.idx",
                  without, text);
  for (const WeightedPath& part : parts)
    TESSERA_REQUIRE(
        part.weight > 0 && std::isfinite(part.weight),
        "'{}' has weight {} in the blend '{}'; a weight is a number above 0 (leave out what is "
        "not wanted)",
        part.path, part.weight, text);
  return parts;
}

/// One source as `open` opens it, or a BlendData of several; `held_out`: without repeating.
std::unique_ptr<DataSource> open_blend(
    const std::string& text, bool held_out,
    const std::function<std::unique_ptr<DataSource>(const std::string& path)>& open) {
  const std::vector<WeightedPath> paths = parse_data_path(text);
  if (paths.size() == 1) return open(paths[0].path);
  std::vector<BlendPart> parts;
  for (const WeightedPath& p : paths) parts.push_back({p.weight, open(p.path), p.path});
  return std::make_unique<BlendData>(std::move(parts), !held_out);
}

bool is_jsonl(const std::string& path) { return path.ends_with(".jsonl"); }

/// That of the samples in `path`: data.tokenizer or else `usual`.
const std::string& tokenizer_of(const Config& c, const std::string& path,
                                const std::string& usual) {
  const std::string& given = c.text("data.tokenizer");
  TESSERA_REQUIRE(!given.empty() || !usual.empty(),
                  "'{}' holds text, and the model has no tokenizer; give one with --set "
                  "data.tokenizer=PATH",
                  path);
  return given.empty() ? usual : given;
}

SftOptions::TooLong too_long_of(const Config& c) {
  const std::string& what = c.text("data.too_long");
  return what == "skip"       ? SftOptions::TooLong::skip
         : what == "truncate" ? SftOptions::TooLong::truncate
                              : SftOptions::TooLong::error;
}

std::unique_ptr<DataSource> open_samples(const Config& c, const std::string& path,
                                         const TextOptions& text, const std::string& tokenizer) {
  SftOptions o;
  o.length = text.length;
  o.vocabulary = text.vocabulary;
  o.first = text.first;
  o.last = text.last;
  o.too_long = too_long_of(c);
  return std::make_unique<SftData>(path, tokenizer_of(c, path, tokenizer), o);
}

}  // namespace

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const size_t first = text.find_first_not_of(' ', start);
    if (first < end) {
      const size_t last = text.find_last_not_of(' ', end - 1);
      items.push_back(text.substr(first, last - first + 1));
    }
    start = end + 1;
  }
  return items;
}

ConfigKey loss_blocks_key() {
  return {"model.loss_blocks", "1",
          "Number of blocks, a divisor of the length, in which head and loss are computed: with a "
          "large vocabulary no step holds all logits.",
          KeyRange::whole(1, 1e6)};
}

std::vector<ConfigKey> ahead_keys() {
  return {{"model.ahead", "0",
           "Number of modules that predict tokens further ahead than the next one, in the loss "
           "alone.",
           KeyRange::whole(0, 1e6)},
          {"model.ahead_kind", "chained",
           "What such a module reads: chained, the state of the one before it and the token so far "
           "ahead; parallel, what the last block reads.",
           KeyRange::one_of({"chained", "parallel"})},
          {"model.ahead_weight", "0.3",
           "Factor of the mean of their losses, which is added to the loss.", KeyRange::number(0)}};
}

nn::MultiTokenOptions ahead_of(const Config& c) {
  nn::MultiTokenOptions o;
  o.depth = c.integer("model.ahead");
  o.kind = c.text("model.ahead_kind") == "parallel" ? nn::MultiTokenOptions::Kind::parallel
                                                    : nn::MultiTokenOptions::Kind::chained;
  o.weight = c.number("model.ahead_weight");
  return o;
}

std::vector<ConfigKey> lora_keys() {
  return {
      {"model.lora_rank", "0",
       "Rank of the matrices that LoRA adds to dense layers of the blocks; only they are "
       "trained, and what train.trainable names. 0 adds none.",
       KeyRange::whole(0, 1e6)},
      {"model.lora_alpha", "16", "Scale of these matrices, divided by the rank.",
       KeyRange::number(0)},
      {"model.lora_dropout", "0",
       "Rate of dropout in front of these matrices, in training; below 1.", KeyRange::number(0, 1)},
      {"model.lora_targets", "",
       "The dense layers with LoRA, as globs of the ends of their names: query, value, mlp.*. "
       "Empty: all in the blocks."}};
}

nn::LoraOptions lora_of(const Config& c) {
  const auto has = [&](const char* name) {
    return std::any_of(c.keys().begin(), c.keys().end(),
                       [&](const ConfigKey& key) { return key.name == name; });
  };
  nn::LoraOptions o;
  if (!has("model.lora_rank")) return o;
  o.rank = c.integer("model.lora_rank");
  if (has("model.lora_alpha")) o.alpha = c.number("model.lora_alpha");
  if (has("model.lora_dropout")) o.dropout = c.number("model.lora_dropout");
  if (has("model.lora_targets")) o.targets = items_of(c.text("model.lora_targets"));
  return o;
}

bool is_of_samples(const Config& c) {
  const std::vector<WeightedPath> paths = parse_data_path(c.text("data.path"));
  return std::any_of(paths.begin(), paths.end(),
                     [](const WeightedPath& p) { return is_jsonl(p.path); });
}

bool is_packed(const Config& c) { return c.flag("data.packed") || is_of_samples(c); }

std::unique_ptr<DataSource> open_pairs(const Config& c, bool held_out,
                                       const nn::TransformerOptions& model,
                                       const std::string& tokenizer) {
  const double share = c.number("data.held_out"), split = 1 - share;
  if (held_out && share == 0) return nullptr;
  PairOptions o;
  (held_out ? o.first : o.last) = split;
  o.length = model.length;
  o.target_length = model.target_length;
  o.vocabulary = model.vocab;
  o.start = model.start_token;
  o.end = model.end_token;
  o.too_long = too_long_of(c);
  return open_blend(c.text("data.path"), held_out, [&](const std::string& path) {
    TESSERA_REQUIRE(
        is_jsonl(path),
        "'{}' is no FILE.jsonl, and other data are; a model with an encoder reads samples of "
        "prompts and completions, or texts to repair, and no blend of both",
        path);
    return std::make_unique<PairData>(path, tokenizer_of(c, path, tokenizer), o);
  });
}

std::unique_ptr<DataSource> open_tokens(const Config& c, bool held_out, TextOptions o,
                                        const std::string& tokenizer) {
  const std::string& path = c.text("data.path");
  TESSERA_REQUIRE(!path.empty(), "no data is given; use --data PATH");
  const double share = c.number("data.held_out"), split = 1 - share;
  if (held_out && share == 0) return nullptr;
  (held_out ? o.first : o.last) = split;
  if (is_packed(c)) {
    o.segments = "segments";
    o.positions = "positions";
    o.weights = "weights";
  }
  return open_blend(path, held_out, [&](const std::string& each) -> std::unique_ptr<DataSource> {
    if (is_jsonl(each)) return open_samples(c, each, o, tokenizer);
    return std::make_unique<TextData>(each, o);
  });
}

}  // namespace tessera::cli
