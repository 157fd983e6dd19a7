#include "teratron/models/hf_image_keys.h"

namespace teratron::hf_rows {

using nlohmann::json;

void read_image_size(std::string_view key, HfConfig& config) {
  const json size = config.has(key) ? config.keys[key] : json(224);
  const json& height = size.is_array() && size.size() == 2 ? size[0] : size;
  const json& wide = size.is_array() && size.size() == 2 ? size[1] : size;
  for (const auto& [setting, pixels] : {std::pair("img_h", &height), std::pair("img_w", &wide)}) {
    if (!pixels->is_number_integer() || *pixels < 1 || *pixels > 1 << 16) return config.unsupported(key);
    config.settings[setting] = *pixels;
  }
}
void write_image_size(std::string_view key, HfConfig& config) {
  const json &height = config.settings.at("img_h"), &wide = config.settings.at("img_w");
  if (height != wide) config.problem("images are {} x {}, not squares", wide.dump(), height.dump());
  config.keys[key] = height;
}

}  // namespace teratron::hf_rows
