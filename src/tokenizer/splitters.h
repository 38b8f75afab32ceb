// Pre-tokenizers: each cuts a text into pieces, which no token crosses.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern.h"

namespace tessera {

/// Takes the pieces of a text in order.
class PieceSink {
 public:
  virtual ~PieceSink() = default;
  /// `first`: the piece begins where the whole input begins.
  virtual void take(std::string_view piece, bool first) = 0;
};

class Splitter {
 public:
  virtual ~Splitter() = default;
  /// `first`: the text begins where the whole input begins.
  virtual void split(std::string_view text, bool first, MatchSpace& space,
                     PieceSink& sink) const = 0;
};

/// What becomes of the matches of a pattern, with the words of Hugging Face tokenizers.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

/// Cuts at the matches of a pattern; `invert`: at what lies between them.
class PatternSplitter : public Splitter {
 public:
  PatternSplitter(const std::string& what, const std::string& expression, SplitBehavior behavior,
                  bool invert = false, Dialect dialect = Dialect::oniguruma)
      : pattern_(what, expression, dialect), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool first, MatchSpace& space, PieceSink& sink) const override;

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Puts a space in front of a piece that has none.
class PrefixSpace : public Splitter {
 public:
  void split(std::string_view text, bool first, MatchSpace& space, PieceSink& sink) const override;
};

/// Spaces become `mark`, one stands in front of the text, and pieces begin at marks.
class Metaspace : public Splitter {
 public:
  enum class Prepend { never, first, always };
  Metaspace(const std::string& mark, Prepend prepend, bool split)
      : mark_(mark), prepend_(prepend), split_(split) {}
  void split(std::string_view text, bool first, MatchSpace& space, PieceSink& sink) const override;

 private:
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

/// `text` with every `from` replaced by `to`. `from` is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);
/// The literal text as a regular expression.
std::string quoted_expression(std::string_view text);

}  // namespace tessera
