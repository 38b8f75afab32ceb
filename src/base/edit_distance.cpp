#include "base/edit_distance.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace tessera {

namespace {

std::string letters_of(std::string name) {
  std::erase_if(name, [](char c) { return std::isalpha(static_cast<unsigned char>(c)) == 0; });
  return name;
}

/// True if the names differ in a word of one letter: "len_q" and "len_k".
bool differ_in_short_word(const std::string& a, const std::string& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  const auto is_word = [&](const std::string& name) {
    const auto i = static_cast<size_t>(at);
    return i < name.size() && (i == 0 || name[i - 1] == '_') &&
           (i + 1 == name.size() || name[i + 1] == '_');
  };
  return a.size() == b.size() && is_word(a) && is_word(b);
}

}  // namespace

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before, above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j + 1] + 1, row[j] + 1, above[j] + (a[i] == b[j] ? 0 : 1)});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
    before = above;
    above = row;
  }
  return above.back();
}

bool is_near(const std::string& a, const std::string& b) {
  constexpr size_t kLetters = 4;
  if (a.size() + 1 == kLetters || b.size() + 1 == kLetters) return a + "s" == b || b + "s" == a;
  if (std::min(a.size(), b.size()) < kLetters || edit_distance(a, b) != 1) return false;
  return letters_of(a) != letters_of(b) && !differ_in_short_word(a, b);
}

}  // namespace tessera
