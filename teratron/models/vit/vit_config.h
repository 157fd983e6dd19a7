// Configuration of a vision transformer with a classification head.
#pragma once

#include "teratron/models/transformer/config.h"

namespace teratron {

struct VitConfig : LanguageModelConfig {
  enum class HeadKind : uint8_t { mlp, linear };

  int64_t height = 0, width = 0, channels = 3;
  int64_t patch = 0;  // side
  int64_t classes = 0;
  HeadKind head = HeadKind::mlp;
  bool finetunes = false;  // the head begins at zero

  /// The patches of an image and the class token.
  int64_t rows() const { return (height / patch) * (width / patch) + 1; }
};

VitConfig vit_config(const Arguments& args);

}  // namespace teratron
