#include "tokenizer/splitters.h"

#include <algorithm>
#include <cctype>

#include "tokenizer/utf8.h"

namespace tessera {

namespace {

/// A part of a text: a match, or what lies between two of them.
struct Part {
  TextRange range;
  bool is_match;
};

std::vector<Part> parts_of(std::string_view text, const Pattern& pattern, MatchSpace& space) {
  std::vector<Part> parts;
  size_t done = 0;
  pattern.for_each(text, space, [&](const TextRange& match) {
    if (match.begin > done) parts.push_back({{done, match.begin}, false});
    parts.push_back({match, true});
    done = match.end;
  });
  if (done < text.size()) parts.push_back({{done, text.size()}, false});
  return parts;
}

/// Matches are merged with the part on one side, unless that is a match too.
void merge_matches(std::vector<Part>& parts, bool with_previous) {
  if (!with_previous) std::reverse(parts.begin(), parts.end());
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.is_match && !after_match && !merged.empty()) {
      TextRange& last = merged.back().range;
      last = {std::min(last.begin, part.range.begin), std::max(last.end, part.range.end)};
    } else {
      merged.push_back({part.range, false});
    }
    after_match = part.is_match;
  }
  if (!with_previous) std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

void merge_equal(std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().is_match == part.is_match)
      merged.back().range.end = part.range.end;
    else
      merged.push_back(part);
  }
  parts = std::move(merged);
}

}  // namespace

void PatternSplitter::split(std::string_view text, bool first, MatchSpace& space,
                            PieceSink& sink) const {
  const auto give = [&](size_t begin, size_t end) {
    if (end > begin) sink.take(text.substr(begin, end - begin), first && begin == 0);
  };
  if (behavior_ == SplitBehavior::isolated) {  // the usual case keeps no list
    size_t done = 0;
    pattern_.for_each(text, space, [&](const TextRange& match) {
      give(done, match.begin);
      give(match.begin, match.end);
      done = match.end;
    });
    give(done, text.size());
    return;
  }
  std::vector<Part> parts = parts_of(text, pattern_, space);
  if (invert_)
    for (Part& part : parts) part.is_match = !part.is_match;
  if (behavior_ == SplitBehavior::contiguous) merge_equal(parts);
  if (behavior_ == SplitBehavior::merged_with_previous) merge_matches(parts, true);
  if (behavior_ == SplitBehavior::merged_with_next) merge_matches(parts, false);
  for (const Part& part : parts) {
    if (behavior_ != SplitBehavior::removed || !part.is_match)
      give(part.range.begin, part.range.end);
  }
}

void PrefixSpace::split(std::string_view text, bool first, MatchSpace&, PieceSink& sink) const {
  if (text.starts_with(' ')) return sink.take(text, first);
  sink.take(" " + std::string(text), first);
}

void Metaspace::split(std::string_view text, bool first, MatchSpace&, PieceSink& sink) const {
  std::string marked = replaced(text, " ", mark_);
  const bool prepends = prepend_ == Prepend::always || (prepend_ == Prepend::first && first);
  if (prepends && !marked.starts_with(mark_)) marked = mark_ + marked;
  if (!split_) return sink.take(marked, first);
  const std::string_view all = marked;
  size_t begin = 0;
  for (size_t at = 0; (at = all.find(mark_, at)) != all.npos; at += mark_.size()) {
    if (at > begin) sink.take(all.substr(begin, at - begin), first && begin == 0);
    begin = at;
  }
  if (begin < all.size()) sink.take(all.substr(begin), first && begin == 0);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != text.npos; done = at + from.size())
    (result += text.substr(done, at - done)) += to;
  return result += text.substr(done);
}

std::string quoted_expression(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))
      result += '\\';
    result += c;
  }
  return result;
}

}  // namespace tessera
