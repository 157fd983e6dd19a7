#include "teratron/models/vlm/data/vlm_schema.h"

namespace teratron {

BatchSchema vlm_schema(int64_t sequence_length, const ImageSizes& sizes, const GPTMaskOptions& masks) {
  using Stages = Column::Stages;
  BatchSchema schema = gpt_schema(sequence_length, masks);
  schema.push_back({.name = "image_rows", .shape = {sequence_length}, .stages = Stages::first});
  schema.push_back({.name = "images", .shape = {1}, .kind = Column::Kind::sample, .stages = Stages::first});
  schema.push_back({.name = "pixel_values",
                    .type = ColumnType::f32,
                    .shape = {sizes.channels, sizes.height, sizes.width},
                    .kind = Column::Kind::items,
                    .stages = Stages::first});
  return schema;
}

int64_t number_image_rows(std::span<const int64_t> tokens, int64_t image_token, std::span<int64_t> rows) {
  int64_t count = 0;
  for (size_t i = 0; i < tokens.size(); ++i) rows[i] = tokens[i] == image_token ? count++ : -1;
  return count;
}

}  // namespace teratron
