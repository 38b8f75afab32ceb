#include "cli/say.h"

#include "base/printable.h"
#include "cli/columns.h"
#include "cli/progress_line.h"

namespace tessera::cli {

void write_safely(std::FILE* file, const std::string& text) {
  const std::string safe = wrapped(printable(text), terminal_width(fileno(file)));
  std::fwrite(safe.data(), 1, safe.size(), file);
}

}  // namespace tessera::cli
