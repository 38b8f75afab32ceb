#include "tokenizer/wordpiece.h"

#include <algorithm>

namespace tessera {

WordPiece::WordPiece(WordPieceRules rules) : rules_(std::move(rules)) {
  for (const TokenIds* ids : {&rules_.ids, &rules_.inner}) {
    for (const auto& [token, id] : *ids) longest_ = std::max(longest_, token.size());
  }
}

void WordPiece::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  const auto begins = [&](size_t at) {
    return at == piece.size() || (static_cast<unsigned char>(piece[at]) & 0xC0) != 0x80;
  };
  int64_t characters = 0;
  for (size_t at = 0; at < piece.size(); ++at) characters += begins(at) ? 1 : 0;
  const size_t before = ids.size();
  if (characters > rules_.most_characters) return ids.push_back(rules_.unknown);
  for (size_t at = 0; at < piece.size();) {
    const TokenIds& tokens = at == 0 ? rules_.ids : rules_.inner;
    size_t end = std::min(piece.size(), at + longest_);
    auto found = tokens.end();
    for (; end > at; --end) {
      if (!begins(end)) continue;
      found = tokens.find(piece.substr(at, end - at));
      if (found != tokens.end()) break;
    }
    if (found == tokens.end()) {
      ids.resize(before);
      return ids.push_back(rules_.unknown);
    }
    ids.push_back(found->second);
    at = end;
  }
}

}  // namespace tessera
