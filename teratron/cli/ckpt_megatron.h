// ckpt convert --from-megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "teratron/base/dtype.h"
#include "teratron/hf/convert.h"

namespace teratron {

struct MegatronFlags {
  std::string source, save;
  std::optional<int64_t> step;
  std::optional<Dtype> dtype;
  std::span<const std::string> settings;  // flags of `pretrain`: what the checkpoint does not say
};

ConversionReport convert_from_megatron(const MegatronFlags& flags);

}  // namespace teratron
