// Keys of config.json that models of images share.
#pragma once

#include "teratron/models/hf_map.h"

namespace teratron::hf_rows {

/// HfKeyOptions::read and write of image_size: a number, or height and width; the settings img_h and img_w.
void read_image_size(std::string_view key, HfConfig& config);
void write_image_size(std::string_view key, HfConfig& config);

}  // namespace teratron::hf_rows
