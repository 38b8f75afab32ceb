#include "io/image_processor.h"

#include <cmath>
#include <filesystem>

#include "base/keyed_json.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// One number for each channel, or one for all.
std::vector<double> channels_of(KeyedJson& config, const char* key, int64_t channels,
                                double least) {
  const nlohmann::json value = config.value(key);
  if (value.is_null()) return std::vector<double>(static_cast<size_t>(channels), 0.5);
  std::vector<double> all;
  bool good = value.is_array();
  for (const nlohmann::json& each : value) {
    good = good && each.is_number() && each.get<double>() >= least;
    if (good) all.push_back(each.get<double>());
  }
  if (good && all.size() == 1) all.assign(static_cast<size_t>(channels), all[0]);
  if (!good || std::ssize(all) != channels)
    config.refuse(key,
                  fmt::format("it must be a list of {} numbers of at least {}", channels, least));
  return all;
}

}  // namespace

void read_image_processor(const std::string& folder, nn::ImageOptions& image) {
  const std::string path = (fs::path(folder) / "preprocessor_config.json").string();
  KeyedJson config = KeyedJson::read(path, KeyedJson::kModel);
  // Images are read from their files as numbers from 0 to 1.
  const double factor = config.number("rescale_factor", 1 / 255.0);
  if (!config.flag("do_rescale", true) || std::abs(factor * 255 - 1) > 1e-6)
    config.refuse("rescale_factor",
                  "Tessera reads pixels as numbers from 0 to 1, which is 1 / 255");
  const std::vector<double> mean = channels_of(config, "image_mean", image.channels, -1e6),
                            deviation = channels_of(config, "image_std", image.channels, 1e-6);
  if (config.flag("do_normalize", true)) image.mean = mean, image.deviation = deviation;
  config.require_all_read();
}

}  // namespace tessera
