#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "cli/transformer_keys.h"

namespace tessera::cli {

namespace fs = std::filesystem;

namespace {

const char kGray[] = "images-idx3-ubyte.gz", kChannels[] = "images-idx4-ubyte.gz";

bool has_images(const fs::path& folder) {
  const std::string train = "train-";
  return is_there(folder / (train + kGray)) || is_there(folder / (train + kChannels));
}

void require_images(const std::string& path) {
  if (!is_folder(path) || has_images(path)) return;
  for (const std::string& name : names_in(path)) {
    const fs::path inner = fs::path(path) / name;
    TESSERA_REQUIRE(!has_images(inner), "'{}' has no train-{}, but '{}' has; use --data {}", path,
                    kGray, inner.string(), inner.string());
  }
}

}  // namespace

std::unique_ptr<DataSource> open_images(const Config& config, bool held_out) {
  const std::string& path = config.text("data.path");
  TESSERA_REQUIRE(!path.empty(), "no data is given; use --data PATH");
  require_images(path);
  const std::string base = path + (held_out ? "/test-" : "/train-");
  const bool has_channels = is_there(base + kChannels);
  return std::make_unique<IdxData>(base + (has_channels ? kChannels : kGray),
                                   base + "labels-idx1-ubyte.gz");
}

}  // namespace tessera::cli
