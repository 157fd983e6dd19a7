// The token that a T5's decoder starts with.
#pragma once

#include <optional>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

/// Megatron-LM's begin of a sequence, else [CLS], else padding, as published T5s have it; nullopt if there is
/// none of them.
inline std::optional<int32_t> decoder_start(const SpecialTokens& special) {
  return special.bos ? special.bos : special.cls ? special.cls : special.pad;
}

}  // namespace teratron
