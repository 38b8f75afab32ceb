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

std::string in_all_layers(const std::string& name) {
  std::string glob;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    const bool is_copy = end > i && end < name.size() && name[end] == '.';
    glob += is_copy ? "*" : end > i ? name.substr(i, end - i) : std::string(1, name[i]);
    i = std::max(end, i + 1);
  }
  return glob;
}

}  // namespace tessera
