#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "base/env.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/signals.h"
#include "cli/terminal.h"

namespace tessera::cli {

int report_error(ErrorKind kind, const char* what, bool is_peers) {
  constexpr auto kStay = std::chrono::seconds(6);
  const int rank = read_environment().rank;
  if (rank >= 0 && is_peers) std::this_thread::sleep_for(2 * kStay);
  if (rank > 0 && !is_peers) std::this_thread::sleep_for(kForRoot);
  const std::string label =
      styled(fmt::format("{} error:", to_string(kind)), Colour::red, is_coloured(STDERR_FILENO));
  const std::string text =
      wrapped(fmt::format("tessera: {} error: {}\n", to_string(kind), printable(what)),
              terminal_width(STDERR_FILENO));
  const size_t after = text.find("error:") + std::string("error:").size();
  std::fprintf(stderr, "tessera: %s%s", label.c_str(), text.substr(after).c_str());
  std::fflush(stderr);
  if (rank >= 0 && !is_peers && kind == ErrorKind::comm) std::this_thread::sleep_for(kStay);
  return kind == ErrorKind::comm || kind == ErrorKind::device ? kRankFailed : 1;
}

}  // namespace tessera::cli
