#include "io/sft_samples.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"

namespace tessera {

using Json = nlohmann::json;

void for_each_sample(const std::string& path,
                     const std::function<void(const Json&, const std::string&)>& visit) {
  const std::string text = read_text_file("data", path);
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (row.find_first_not_of(" \t\r") == row.npos) continue;
    const std::string where = fmt::format("'{}' line {}", path, line);
    if (const std::string fault = utf8_fault(row); !fault.empty())
      fail(ErrorKind::io, "[data] {} {}", where, fault);
    std::string twice;
    const Json json = parse_json(row, &twice);
    if (!json.is_object())
      fail(ErrorKind::io, "[data] {} is no JSON object: {}; every line of jsonl is one sample",
           where, json_fault(row));
    if (!twice.empty())
      fail(ErrorKind::io, "[data] {} has the key '{}' twice; take one of them out", where, twice);
    visit(json, where);
  }
}

const std::string& sample_text(const Json& sample, const char* key, const std::string& where) {
  const auto it = sample.find(key);
  if (it == sample.end() || !it->is_string())
    fail(ErrorKind::io,
         "[data] {}: the sample has {} '{}'; it is {{\"prompt\": TEXT, \"completion\": TEXT}} or "
         "{{\"messages\": [{{\"role\": ROLE, \"content\": TEXT}}]}}",
         where, it == sample.end() ? "no" : "no text as", key);
  return it->get_ref<const std::string&>();
}

namespace {

/// Keys that say where a sample comes from, and change nothing.
const std::set<std::string> kOrigin = {
    "id",       "uuid",  "idx",      "source",    "dataset",         "url",       "license",
    "category", "split", "language", "prompt_id", "conversation_id", "timestamp", "metadata"};

}  // namespace

void require_keys(const nlohmann::json& of, const std::set<std::string>& used, const char* what,
                  const std::string& where) {
  for (const auto& [key, value] : of.items()) {
    if (used.contains(key) || value.is_null()) continue;
    if (!kOrigin.contains(key) || of.contains("role"))
      fail(ErrorKind::io,
           "[data] {}: {} has '{}', which is not read; take it out, or write it into the text",
           where, what, key);
  }
}

Tokenizer load_fitting_tokenizer(const std::string& path, int64_t vocabulary) {
  Tokenizer tokenizer = Tokenizer::load(path);
  TESSERA_REQUIRE(
      vocabulary == 0 || tokenizer.vocab_size() <= vocabulary,
      "[data] '{}' ({}) does not fit the model, whose vocabulary has {}; give the tokenizer of "
      "the model",
      path, tokenizer.description(), vocabulary);
  return tokenizer;
}

std::pair<int64_t, int64_t> part_of_samples(const std::string& path, int64_t count,
                                            int64_t left_out, double first, double last) {
  const auto place = [&](double share) {
    return static_cast<int64_t>(std::floor(share * static_cast<double>(count)));
  };
  if (place(first) >= place(last))
    fail(ErrorKind::io,
         "[data] '{}' has {} samples ({} more are too long), none of them from {} to {} of the "
         "file; use more samples or a larger part",
         path, count, left_out, first, last);
  return {place(first), place(last)};
}

}  // namespace tessera
