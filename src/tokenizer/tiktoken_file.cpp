// A line of a tiktoken file is a token in base64 and its rank. Pattern and special tokens are not
// in the file: they come with the name of a pattern.
#include <algorithm>
#include <charconv>

#include "base/fail.h"
#include "tokenizer/ranks.h"

namespace tessera {

namespace {

constexpr const char* kGpt2 =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr const char* kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Special tokens and how far their ids lie behind the last rank.
using Specials = std::vector<std::pair<std::string, int32_t>>;

struct Named {
  const char* name;
  const char* pattern;
  int32_t ranks;  ///< of the vocabulary that goes with it; 0: any
  Specials (*specials)();
};

/// Numbers the tokens from 0; "name{}" with a count stands for name0, name1, ...
class Numbered {
 public:
  Numbered& add(std::initializer_list<const char*> names) {
    for (const char* name : names) list_.emplace_back(name, static_cast<int32_t>(list_.size()));
    return *this;
  }
  Numbered& reserve(const std::string& name, int first, int end) {
    for (int i = first; i < end; ++i)
      list_.emplace_back(fmt::format("<|{}_{}|>", name, i), static_cast<int32_t>(list_.size()));
    return *this;
  }
  int size() const { return static_cast<int>(list_.size()); }
  Specials list() const { return list_; }

 private:
  Specials list_;
};

Specials llama3_specials() {
  Numbered n;
  n.add({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
         "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
         "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
         "<|image|>"});
  return n.reserve("reserved_special_token", 2, 2 + 256 - n.size()).list();
}

Specials llama4_specials() {
  Numbered n;
  n.add({"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>",
         "<|fim_suffix|>", "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"});
  n.reserve("text_post_train_reserved_special_token", 0, 6);
  n.add({"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  n.reserve("text_post_train_reserved_special_token", 8, 69);
  n.add({"<|image_start|>", "<|image_end|>"}).reserve("vision_reserved_special_token", 0, 2);
  n.add({"<|tile_x_separator|>", "<|tile_y_separator|>"});
  n.reserve("vision_reserved_special_token", 2, 6).add({"<|image|>"});
  n.reserve("vision_reserved_special_token", 6, 7).add({"<|patch|>"});
  n.reserve("vision_reserved_special_token", 7, 1048);
  n.reserve("reasoning_reserved_special_token", 0, 8);
  n.add({"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  return n.reserve("reserved_special_token", 0, 2048 - n.size()).list();
}

Specials qwen_specials() {
  return Numbered()
      .add({"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
      .reserve("extra", 0, 205)
      .list();
}

const std::vector<Named>& named_patterns() {
  static const std::vector<Named> named = {
      {"gpt2", kGpt2, 50256,
       [] {
         return Specials{{"<|endoftext|>", 0}};
       }},
      {"cl100k", kCl100k, 100256,
       [] {
         return Specials{{"<|endoftext|>", 1},
                         {"<|fim_prefix|>", 2},
                         {"<|fim_middle|>", 3},
                         {"<|fim_suffix|>", 4},
                         {"<|endofprompt|>", 20}};
       }},
      {"o200k", kO200k, 199998,
       [] {
         return Specials{{"<|endoftext|>", 1}, {"<|endofprompt|>", 20}};
       }},
      {"llama3", kLlama3, 128000, llama3_specials},
      {"llama4", kO200k, 200000, llama4_specials},
      {"qwen", kQwen, 151643, qwen_specials}};
  return named;
}

std::string names_of_patterns() {
  std::vector<std::string> names;
  for (const Named& n : named_patterns()) names.push_back(n.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::pair<std::string, int32_t>> ranks_in(const std::string& path,
                                                      std::string_view text) {
  std::vector<std::pair<std::string, int32_t>> ranks;
  std::vector<bool> seen;
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view words = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (words.empty()) continue;
    const size_t space = std::min(words.find(' '), words.size());
    int32_t rank = -1;
    const std::string_view number = words.substr(std::min(space + 1, words.size()));
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    const auto bytes = base64_decoded(words.substr(0, space));
    if (error != std::errc() || stop != number.data() + number.size() || rank < 0 ||
        rank >= kMostTokens || !bytes || bytes->empty())
      fail(ErrorKind::io,
           "[tokenizer] line {} of '{}' is not a token in base64 and its rank; the file is "
           "truncated, or no vocabulary of tiktoken",
           line, path);
    if (seen.size() <= static_cast<size_t>(rank)) seen.resize(static_cast<size_t>(rank) + 1);
    if (seen[static_cast<size_t>(rank)])
      fail(ErrorKind::io, "[tokenizer] line {} of '{}' has rank {}, which an earlier line has",
           line, path, rank);
    seen[static_cast<size_t>(rank)] = true;
    ranks.emplace_back(*bytes, rank);
  }
  return ranks;
}

}  // namespace

LoadedTokenizer load_tiktoken(const std::string& path, const std::string& text,
                              const TokenizerOptions& options) {
  TESSERA_REQUIRE(
      !options.pattern.empty(),
      "[tokenizer] '{}' is a tiktoken file, which does not say how text is cut; give a pattern: "
      "{}, or a regular expression",
      path, names_of_patterns());
  const auto ranks = ranks_in(path, text);
  int32_t next = 0;
  for (const auto& [bytes, rank] : ranks) next = std::max(next, rank + 1);
  std::string pattern = options.pattern;
  Specials specials;
  for (const Named& named : named_patterns()) {
    if (options.pattern != named.name) continue;
    TESSERA_REQUIRE(
        next == named.ranks,
        "[tokenizer] the special tokens of '{}' follow a vocabulary of {} tokens, but '{}' has "
        "{}; give the pattern of its own vocabulary, or a regular expression",
        named.name, named.ranks, path, next);
    pattern = named.pattern;
    specials = named.specials();
  }
  const bool is_word =
      options.pattern.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == std::string::npos;
  TESSERA_REQUIRE(!is_word || pattern != options.pattern,
                  "[tokenizer] unknown pattern '{}'; known: {}, or a regular expression",
                  options.pattern, names_of_patterns());
  LoadedTokenizer loaded;
  loaded.kind = "tiktoken BPE";
  PipelineStages stages = stages_of_ranks(path, ranks, 0, pattern);
  for (const auto& [bytes, rank] : ranks) loaded.set(rank, bytes);
  std::vector<AddedToken> added;
  for (const auto& [name, behind] : specials) added.push_back({name, next + behind, true});
  int32_t last = added.empty() ? next - 1 : added.back().id;
  for (const std::string& name : options.special) added.push_back({name, ++last, true});
  for (const AddedToken& token : added) loaded.set_special(token.id, token.text, token.text);
  stages.added = AddedTokens(std::move(added));
  loaded.encoder = std::make_unique<TokenPipeline>(std::move(stages));
  return loaded;
}

}  // namespace tessera
