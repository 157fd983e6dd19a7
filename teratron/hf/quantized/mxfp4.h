// Weights of experts in MXFP4 (OCP Microscaling Formats 1.0; gpt-oss), read as bf16, which holds them
// exactly: blocks of 32 numbers of 4 bits (0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives), the low half of a
// byte first, times 2^(scale - 127).
//
//   NAME_blocks  u8 [experts, out, in / 32, 16]    NAME_scales  u8 [experts, out, in / 32]
//
// stand for NAME, bf16 [experts, in, out].
#pragma once

#include "teratron/hf/weight_files.h"

namespace teratron {

/// Puts a tensor [in, out] for each expert in the place of each such pair. `part_of` makes the name of the
/// tensor of an expert from NAME. Pairs whose shapes do not fit stay as they are.
void read_mxfp4(WeightFiles& files,
                const std::function<std::string(const std::string& name, int64_t expert)>& part_of);

}  // namespace teratron
