// The targets of libFuzzer (tests/fuzz) on inputs of a seeded mutator: no crash, no hang, nothing
// thrown but Errors. TESSERA_FUZZ says how many inputs a target gets. And those that libFuzzer
// itself found.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <random>

#include "base/crc32c.h"
#include "cli/commands.h"
#include "fuzz/targets.h"
#include "io/manifest.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tokenizer/encoder.h"

using namespace tessera::test;

namespace TESSERA_FILE {

using Random = std::mt19937_64;

/// One change: a bit, a byte, a piece left out, doubled or put elsewhere, a word of the dictionary,
/// or a number next to a limit.
void mutate(std::string& text, const FuzzTarget& target, Random& random) {
  const auto place = [&] { return random() % (text.size() + 1); };
  const auto length = [&](size_t from) {
    return std::min<size_t>(text.size() - from, random() % 9);
  };
  const size_t at = place();
  switch (random() % 8) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      return;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      return;
    case 2:
      text.erase(at, length(at));
      return;
    case 3:
      text.insert(place(), text.substr(at, length(at)));
      return;
    case 4:
      text.resize(at);
      return;
    case 5: {
      const auto& words = target.dictionary;
      if (!words.empty()) text.insert(at, words[random() % words.size()]);
      return;
    }
    case 6: {
      const std::string& other = target.seeds[random() % target.seeds.size()];
      const size_t from = random() % (other.size() + 1);
      text = text.substr(0, at) + other.substr(from);
      return;
    }
    default: {
      const size_t digit = text.find_first_of("0123456789", at);
      if (digit == text.npos) return;
      const size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
      static const char* const numbers[] = {
          "0", "1", "255", "65536", "2147483648", "9223372036854775807", "18446744073709551615"};
      text.replace(digit, end - digit, numbers[random() % 7]);
    }
  }
}

/// Peak memory of the process, in MB.
double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

TEST_CASE("configurations: what a checkpoint keeps of them is read as it was") {
  tessera::Config config = tessera::cli::default_config(tessera::builtin_models()[0]);
  for (const std::string value : {"a \"b\" \\ c", "two\nlines\t", "\x01\x7f", "007", ".5", "1e-3",
                                  "infinity", "true", "-", "3", ""}) {
    INFO(value);
    config.set("data.path", value);
    tessera::Config again = tessera::cli::default_config(tessera::builtin_models()[0]);
    again.load_toml_text(config.to_toml(), "again");
    if (value == "1e-3") {
      CHECK(again.number("data.path") == 1e-3);
    } else {
      CHECK(again.text("data.path") == value);
    }
  }
}

TEST_CASE("manifests: numbers that are not whole are refused") {
  const std::string good = fuzz_targets()[1].seeds[0];
  auto answer = [&](const std::string& old, const std::string& wrong) -> std::string {
    std::string inner = good;
    const size_t at = inner.find(old);
    REQUIRE(at != std::string::npos);
    inner.replace(at, old.size(), wrong);
    try {
      tessera::parse_manifest(fmt::format("{{\"crc32c\":\"{:08x}\",\"manifest\":{}}}\n",
                                          tessera::crc32c(inner.data(), inner.size()), inner),
                              "m");
    } catch (const tessera::Error& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string in = "[checkpoint] the manifest 'm' has ",
                    stands = " where a whole number of 64 bits stands";
  CHECK(answer("[4,6]", "[4,6]") == "no error");
  CHECK(answer("\"serial\":0", "\"serial\":92233720368547758070") ==
        in + "9.223372036854776e+19" + stands);
  CHECK(answer("\"step\":0", "\"step\":9223372036854775808") ==
        in + "9223372036854775808" + stands);
  CHECK(answer("[4,6]", "[4,6.5]") == in + "6.5" + stands);
  CHECK(answer("\"bytes\":10", "\"bytes\":[]") == in + "array" + stands);
}

// An input a line, in base64: those that scripts/fuzz found to run a branch that no other one runs,
// and those with which it found a fault.
TEST_CASE("fuzz: what libFuzzer found is read or refused", "[fuzz]") {
  for (const FuzzTarget& target : fuzz_targets()) {
    DYNAMIC_SECTION(target.name) {
      std::ifstream file(std::string(TESSERA_SOURCE_DIR "/tests/fuzz/corpus/") + target.name);
      int number = 0;
      for (std::string line; std::getline(file, line);) {
        INFO("line " << ++number);
        const auto input = tessera::base64_decoded(line);
        REQUIRE(input);
        target.run(*input);
      }
      CHECK(number > 0);
    }
  }
}

TEST_CASE("fuzz: hostile files and texts are read or refused", "[fuzz]") {
  const char* wanted = std::getenv("TESSERA_FUZZ");
  const int64_t inputs = wanted ? std::atoll(wanted) : 4000;
  const uint64_t seed = seed_of_run(1);
  for (const FuzzTarget& target : fuzz_targets()) {
    DYNAMIC_SECTION(target.name) {
      INFO("seed " << seed);
      Random random(seed);
      const double before = peak_mb();
      for (const std::string& good : target.seeds) target.run(good);
      for (int64_t i = 0; i < inputs; ++i) {
        std::string text = target.seeds[random() % target.seeds.size()];
        for (uint64_t changes = 1 + random() % 6; changes > 0; --changes)
          mutate(text, target, random);
        target.run(text);
      }
      CHECK(peak_mb() - before < 200);
      if (wanted) WARN(target.name << ": " << inputs << " inputs, seed " << seed);
    }
  }
}

}  // namespace TESSERA_FILE
