#include "cli/text_stream.h"

#include <algorithm>

namespace tessera::cli {

TextStream::TextStream(const TextTokens& vocabulary, std::vector<int32_t> prompt, bool shows_prompt,
                       std::vector<std::string> stops)
    : vocabulary_(vocabulary), tokens_(std::move(prompt)), stops_(std::move(stops)) {
  bytes_ = vocabulary_.bytes_of(tokens_);
  begin_ = bytes_.size();
  shown_ = shows_prompt ? 0 : begin_;
  show(begin_);
}

void TextStream::show(size_t end) {
  for (; shown_ < end; ++shown_) text_ += utf8_.push(static_cast<unsigned char>(bytes_[shown_]));
}

bool TextStream::push(int32_t token) {
  if (vocabulary_.ends_text(token)) return !(ended_ = true);
  tokens_.push_back(token);
  bytes_ = vocabulary_.bytes_of(tokens_);
  size_t end = bytes_.size(), first = std::string::npos;
  for (const std::string& stop : stops_) {
    first = std::min(first, bytes_.find(stop, begin_));
    for (size_t n = std::min(stop.size() - 1, bytes_.size() - begin_); n > 0; --n) {
      if (bytes_.compare(bytes_.size() - n, n, stop, 0, n) != 0) continue;
      end = std::min(end, bytes_.size() - n);
      break;
    }
  }
  ended_ = first != std::string::npos;
  if (ended_) bytes_.resize(std::min(first, bytes_.size()));
  show(ended_ ? bytes_.size() : end);
  return !ended_;
}

void TextStream::finish() {
  show(bytes_.size());
  text_ += utf8_.flush();
}

}  // namespace tessera::cli
