// The words of which names of nodes consist: what a glob of a scoped rule can say.
#pragma once

#include <map>
#include <string>

namespace tessera {

struct ByLength {
  bool operator()(const std::string& x, const std::string& y) const {
    return std::make_pair(x.size(), x) < std::make_pair(y.size(), y);
  }
};
/// Words, short ones first; true if the word is a scope somewhere.
using Words = std::map<std::string, bool, ByLength>;

/// Adds the words of a name without trailing numbers: "norm" of "norm1", "add" of "add_2". Words of
/// one or two letters are left out: they match by chance.
void add_words(const std::string& name, Words& words);

}  // namespace tessera
