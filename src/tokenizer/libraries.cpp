#include "base/fail.h"
#include "tokenizer/encoder.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/pattern.h"

namespace tessera {

std::string tokenizer_libraries() {
  const auto text = [](const char* name, const std::string& version, const char* package) {
    return version.empty() ? fmt::format("no {} (Debian: {})", name, package)
                           : fmt::format("{} {}", name, version);
  };
  return fmt::format("{}, {}, {}, Unicode {}", text("PCRE2", Pattern::library(), "libpcre2-dev"),
                     text("utf8proc", UnicodeNormalizer::library(), "libutf8proc-dev"),
                     text("SentencePiece", sentencepiece_version(), "libsentencepiece-dev"),
                     kUnicodeVersion);
}

}  // namespace tessera
