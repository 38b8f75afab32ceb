// What a person reads on a terminal: its width, its colours, and what is printed to it.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::cli {

/// Columns of a text in UTF-8 without control characters: two for an East Asian wide character or
/// an emoji, none for a mark that is drawn over the character before it.
int columns(std::string_view text);
/// The longest beginning of `text` that takes at most `width` columns.
std::string first_columns(std::string_view text, int width);
/// `text` with lines of at most `width` columns, broken between words; what goes on is indented two
/// columns more than the line, or as far as what stands behind its label ("layout  "). A longer
/// word stays whole, and so does what is there to be copied: flags from "--mesh" on, or a command
/// that begins with "tessera". `width` < 20: as it is.
std::string wrapped(std::string_view text, int width);

/// Whether output to `descriptor` is coloured: a terminal, NO_COLOR is unset or empty
/// (no-color.org), and TERM is not "dumb".
bool is_coloured(int descriptor);

enum class Colour { bold, faint, red, yellow, green };

/// `text` in this colour if `coloured`, else as it is.
std::string styled(std::string_view text, Colour colour, bool coloured);

/// The label at the beginning of a line of the log ("warning:", "error:", "mesh", "eval at step
/// 20:") in the colour of its kind.
std::string with_label(const std::string& line, bool coloured);

/// A part of the line. Of a terminal that is too narrow for all, those of a lower rank keep their
/// place first.
struct LinePart {
  std::string text;
  int rank = 0;
};

/// All parts in their order, two spaces between them.
std::string whole_line(const std::vector<LinePart>& parts);

/// The parts that fit `width` columns, in their order; behind a bar of `done` (0 to 1) if there is
/// room for all of them and the bar. The part of the lowest rank is cut if it alone is too wide.
/// `width` <= 0: unknown, all parts and the bar.
std::string fitted_line(const std::vector<LinePart>& parts, double done, int width);

/// The columns of the terminal at `descriptor`; 0 if it is none or does not say.
int terminal_width(int descriptor);

/// True if `descriptor` is a pipe or a connection that nobody reads any more: `head` has ended.
bool is_reader_gone(int descriptor);

/// Writes `text` to `file` with control characters as \xNN. On a terminal its lines are broken
/// between words: see wrapped().
void write_safely(std::FILE* file, const std::string& text);

/// Prints a formatted text to `file`, as write_safely() does.
template <class... Args>
void say_to(std::FILE* file, fmt::format_string<Args...> text, Args&&... args) {
  write_safely(file, fmt::format(text, std::forward<Args>(args)...));
}

/// The same to standard output.
template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  say_to(stdout, text, std::forward<Args>(args)...);
}

}  // namespace tessera::cli
