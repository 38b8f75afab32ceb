// Samples become tokens with a mark on each that is part of an answer. They are packed in their
// order: an example takes samples as long as they fit, so that no sample is cut in two.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/files.h"
#include "io/sft_samples.h"
#include "tessera/chat_template.h"
#include "tessera/sft_data.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;

void require_options(const SftOptions& o) {
  TESSERA_REQUIRE(o.length >= 1, "[data] examples of length {}; they have at least 1 token",
                  o.length);
  TESSERA_REQUIRE(o.first >= 0 && o.first < o.last && o.last <= 1,
                  "[data] the part {} to {} of the samples; it needs 0 <= first < last <= 1",
                  o.first, o.last);
}

/// Text with a mark on whether it is an answer.
struct Span {
  std::string text;
  bool counts = false;
};

/// Turns the lines of a file into spans of text.
class SampleReader {
 public:
  SampleReader(std::string path, std::string tokenizer)
      : path_(std::move(path)), tokenizer_(std::move(tokenizer)) {}

  bool is_conversation(const Json& sample) const { return sample.contains("messages"); }

  /// The text of a conversation, cut at the answers.
  std::vector<Span> spans_of(const Json& sample, const std::string& where) {
    const Json& list = sample.at("messages");
    if (!list.is_array() || list.empty())
      fail(ErrorKind::io, "[data] {}: 'messages' is no list with messages", where);
    std::vector<ChatTemplate::Message> messages;
    for (const Json& m : list) {
      if (!m.is_object())
        fail(ErrorKind::io, "[data] {}: a message is no object with role and content", where);
      require_keys(m, {"role", "content"}, "a message", where);
      messages.push_back({sample_text(m, "role", where), sample_text(m, "content", where)});
    }
    // A prompt that the conversation has, too, says nothing more.
    const bool is_known = std::ranges::any_of(messages, [&](const ChatTemplate::Message& m) {
      return sample.value("prompt", Json()) == m.content;
    });
    require_keys(sample, {"messages", is_known ? "prompt" : "messages"}, "the sample", where);
    if (!chat_) chat_.emplace(ChatTemplate::load(folder_of_tokenizer()));
    try {
      return cut(messages, where);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::io) throw;
      throw Error(e.kind(), fmt::format("[data] {}: {}", where, e.what()));
    }
  }

 private:
  std::string folder_of_tokenizer() const {
    if (is_folder(tokenizer_)) return tokenizer_;
    const std::string folder = fs::path(tokenizer_).parent_path().string();
    return folder.empty() ? "." : folder;
  }

  /// An answer is what the conversation up to it adds to the prompt before it. Where the template
  /// writes that prompt otherwise within a conversation, it is what begins with the content.
  std::vector<Span> cut(const std::vector<ChatTemplate::Message>& messages,
                        const std::string& where) const {
    std::vector<Span> spans;
    const std::string whole = chat_->render(messages);
    size_t done = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "assistant") continue;
      const std::vector<ChatTemplate::Message> before(messages.begin(),
                                                      messages.begin() + static_cast<long>(i)),
          with(messages.begin(), messages.begin() + static_cast<long>(i) + 1);
      const std::string answered = chat_->render(with), &content = messages[i].content;
      std::string prompt = chat_->render(before, true);
      if (!answered.starts_with(prompt)) {
        const size_t asked = std::max(done, chat_->render(before).size()),
                     at = answered.find(content, asked);
        if (at != answered.npos && answered.find(content, at + 1) == answered.npos)
          prompt = answered.substr(0, at);
      }
      if (!answered.starts_with(prompt) || !whole.starts_with(answered))
        fail(ErrorKind::unsupported,
             "the chat template writes message {} in another way when more follow, so that its "
             "answer has no place of its own; write the sample as prompt and completion",
             i + 1);
      spans.push_back({whole.substr(done, prompt.size() - done), false});
      spans.push_back({whole.substr(prompt.size(), answered.size() - prompt.size()), true});
      done = answered.size();
    }
    if (spans.empty())
      fail(ErrorKind::io, "[data] {}: no message is of the assistant, so nothing is learnt", where);
    return spans;
  }

  std::string path_, tokenizer_;
  std::optional<ChatTemplate> chat_;
};

/// The token of the beginning of a text, if the tokenizer's library adds it.
std::optional<int32_t> first_token(const Tokenizer& tokenizer) {
  const std::vector<int32_t> around = tokenizer.encode("", {.add_special = true});
  const bool adds = !around.empty() && tokenizer.bos() && around[0] == *tokenizer.bos();
  return adds ? tokenizer.bos() : std::nullopt;
}

}  // namespace

SftData::SftData(const std::string& path, const std::string& tokenizer_path,
                 const SftOptions& options)
    : options_(options) {
  require_options(options);
  const Tokenizer tokenizer = load_fitting_tokenizer(tokenizer_path, options.vocabulary);
  SampleReader reader(path, tokenizer_path);
  const std::optional<int32_t> bos = first_token(tokenizer);
  const auto is_special = [&](int32_t id) {
    return id == tokenizer.eos() ||
           tokenizer.decode(std::vector{id}, true) != tokenizer.decode(std::vector{id});
  };
  int64_t answers = 0, ends = 0;
  for_each_sample(path, [&](const Json& json, const std::string& where) {
    Sample sample;
    const auto append = [&](const std::string& part, bool counts) {
      tokenizer.encode_to(part, sample.tokens, {.special_in_text = reader.is_conversation(json)});
      sample.counts.resize(sample.tokens.size(), counts ? 1 : 0);
    };
    if (reader.is_conversation(json)) {
      for (const Span& span : reader.spans_of(json, where)) {
        const auto begin = std::ssize(sample.tokens);
        append(span.text, span.counts);
        answers += span.counts ? 1 : 0;
        ends += span.counts &&
                        std::any_of(sample.tokens.begin() + begin, sample.tokens.end(), is_special)
                    ? 1
                    : 0;
      }
    } else {
      if (bos) sample.tokens.push_back(*bos);
      append(sample_text(json, "prompt", where), false);
      append(sample_text(json, "completion", where), true);
      require_keys(json, {"prompt", "completion"}, "the sample", where);
      ++answers;
      ends += tokenizer.eos() ? 1 : 0;
      if (tokenizer.eos()) {
        sample.tokens.push_back(*tokenizer.eos());
        sample.counts.push_back(1);
      }
    }
    add(std::move(sample), where);
  });
  if (ends == 0)
    warning_ = fmt::format(
        "'{}': none of its {} answers ends with a special token, so the model does not learn where "
        "an answer ends; let the chat template write eos_token behind it, or name eos_token in "
        "tokenizer_config.json",
        path, answers);
  const auto [first, last] =
      part_of_samples(path, std::ssize(samples_), left_out_, options.first, options.last);
  samples_ = {std::make_move_iterator(samples_.begin() + first),
              std::make_move_iterator(samples_.begin() + last)};
  pack();
  const std::vector<Dim> dims = {Dim(options.dim, options.length)};
  for (const std::string* name :
       {&options_.inputs, &options_.targets, &options_.segments, &options_.positions})
    fields_.push_back({*name, DType::int32, dims});
  fields_.push_back({options_.weights, DType::float32, dims});
}

void SftData::add(Sample sample, const std::string& where) {
  const auto is_answer = [](char counts) { return counts != 0; };
  const auto any = [&] {
    return sample.counts.size() > 1 &&
           std::any_of(sample.counts.begin() + 1, sample.counts.end(), is_answer);
  };
  if (!any())
    fail(ErrorKind::io,
         "[data] {}: the sample has {} tokens, and no answer behind the first one; nothing is "
         "learnt from it",
         where, sample.tokens.size());
  if (sample.positions() > options_.length) {
    if (options_.too_long == SftOptions::TooLong::error)
      fail(ErrorKind::io,
           "[data] {}: the sample has {} tokens, but an example has {}; make examples longer, or "
           "say what to do with data.too_long=skip or truncate",
           where, sample.tokens.size(), options_.length + 1);
    const auto most = static_cast<size_t>(options_.length + 1);
    sample.tokens.resize(most);
    sample.counts.resize(most);
    if (options_.too_long == SftOptions::TooLong::skip || !any()) {
      ++left_out_;
      return;
    }
  }
  samples_.push_back(std::move(sample));
}

void SftData::pack() {
  uint32_t sum = 0;
  int64_t room = 0;
  for (int64_t i = 0; i < std::ssize(samples_); ++i) {
    const Sample& s = samples_[static_cast<size_t>(i)];
    if (s.positions() > room) {
      examples_.push_back({i, 0});
      room = options_.length;
    }
    ++examples_.back().samples;
    room -= s.positions();
    sum = crc32c(s.tokens.data(), s.tokens.size() * sizeof(int32_t), sum);
    sum = crc32c(s.counts.data(), s.counts.size(), sum);
  }
  fingerprint_ = fmt::format("{} samples, checksum {:08x}, examples of {}", samples_.size(), sum,
                             options_.length);
}

std::string SftData::fingerprint() const { return fingerprint_; }

int64_t SftData::sample_at(int64_t example, int64_t at) const {
  const Example& e = examples_[static_cast<size_t>(example)];
  int64_t begin = 0;
  for (int64_t i = e.first_sample; i < e.first_sample + e.samples; ++i) {
    begin += samples_[static_cast<size_t>(i)].positions();
    if (at < begin) return i;
  }
  return -1;
}

void SftData::read(int64_t example, int field, const DataBox& box) const {
  const Example& e = examples_[static_cast<size_t>(example)];
  int64_t sample = e.first_sample, begin = 0;  // of this sample, in positions of the example
  for (int64_t i = 0; i < box.extent[0]; ++i) {
    const int64_t at = box.offset[0] + i, last = e.first_sample + e.samples;
    while (sample < last && at - begin >= samples_[static_cast<size_t>(sample)].positions())
      begin += samples_[static_cast<size_t>(sample++)].positions();
    const Sample* s = sample < last ? &samples_[static_cast<size_t>(sample)] : nullptr;
    const auto p = static_cast<size_t>(at - begin);  // in the sample
    if (field == 4) {
      static_cast<float*>(box.data)[i * box.strides[0]] = s && s->counts[p + 1] != 0 ? 1.0F : 0.0F;
      continue;
    }
    int64_t value = 0;
    if (s && field == 0) value = s->tokens[p];
    if (s && field == 1) value = s->tokens[p + 1];
    if (s && field == 2) value = sample - e.first_sample + 1;
    if (field == 3) value = at - begin;
    static_cast<int32_t*>(box.data)[i * box.strides[0]] = static_cast<int32_t>(value);
  }
}

}  // namespace tessera
