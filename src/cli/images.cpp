#include <filesystem>

#include "base/fail.h"
#include "cli/transformer_keys.h"

namespace tessera::cli {

namespace fs = std::filesystem;

namespace {

const char kGray[] = "images-idx3-ubyte.gz", kChannels[] = "images-idx4-ubyte.gz";

bool has_images(const fs::path& folder) {
  std::error_code ignored;
  const std::string train = "train-";
  return fs::exists(folder / (train + kGray), ignored) ||
         fs::exists(folder / (train + kChannels), ignored);
}

void require_images(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || has_images(path)) return;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    TESSERA_REQUIRE(!has_images(entry.path()), "'{}' has no train-{}, but '{}' has; use --data {}",
                    path, kGray, entry.path().string(), entry.path().string());
  }
}

}  // namespace

std::unique_ptr<DataSource> open_images(const Config& config, bool held_out) {
  const std::string& path = config.text("data.path");
  TESSERA_REQUIRE(!path.empty(), "no data is given; use --data PATH");
  require_images(path);
  const std::string base = path + (held_out ? "/test-" : "/train-");
  std::error_code ignored;
  const bool has_channels = fs::exists(base + kChannels, ignored);
  return std::make_unique<IdxData>(base + (has_channels ? kChannels : kGray),
                                   base + "labels-idx1-ubyte.gz");
}

}  // namespace tessera::cli
