#include "plan/name_words.h"

#include <algorithm>
#include <cctype>

namespace tessera {

namespace {

constexpr size_t kShortest = 3;

bool is_plain(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

void add_words(const std::string& name, Words& words) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    std::string word = name.substr(begin, end - begin);
    while (!word.empty() && ((word.back() >= '0' && word.back() <= '9') || word.back() == '_'))
      word.pop_back();
    const bool is_scope = end < name.size();
    if (word.size() >= kShortest && std::all_of(word.begin(), word.end(), is_plain))
      words[word] |= is_scope;
    begin = end + 1;
  }
}

}  // namespace tessera
