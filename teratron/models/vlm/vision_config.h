// Configuration of a vision tower.
#pragma once

#include <cstdint>
#include <vector>

#include "teratron/models/transformer/config.h"

namespace teratron {

struct VisionConfig {
  enum class Kind : uint8_t { clip, siglip };  // CLIP: Radford et al. 2021; SigLIP: Zhai et al. 2023

  Kind kind = Kind::clip;
  TransformerConfig blocks;  // all of them
  int64_t height = 0, width = 0, channels = 3;
  int64_t patch = 0;  // side
  /// Hidden states whose rows are joined: 0 is the input of the first block, i the output of block i.
  std::vector<int64_t> feature_layers;
  bool drops_first_row = false;  // the class token, if there is one
  bool pixel_shuffle = false;    // squares of four rows become one
  bool has_head = false;         // SigLIP's, which nothing reads
  bool frozen = false;
  bool replicated = false;  // on tensor-parallel ranks that could divide it

  int64_t columns() const { return width / patch; }
  int64_t patches() const { return height / patch * columns(); }
  int64_t positions() const { return patches() + (kind == Kind::clip ? 1 : 0); }
  /// What an image has in the result.
  int64_t rows() const { return (positions() - (drops_first_row ? 1 : 0)) / (pixel_shuffle ? 4 : 1); }
  int64_t features() const {
    return blocks.hidden * static_cast<int64_t>(feature_layers.size()) * (pixel_shuffle ? 4 : 1);
  }
  /// Blocks whose output is read; those after them never run.
  int64_t used_blocks() const;
};

}  // namespace teratron
