// Language models that read images in files of other programs.
#include "teratron/models/family_formats.h"
#include "teratron/models/vlm/hf_llava.h"

namespace teratron {

FamilyFormats vlm_formats() {
  constexpr std::string_view tiles = "images are cut into tiles", video = "there are no videos here";
  return {.hf = llava_families(),
          .refused_hf = {{"llava_next", tiles},
                         {"llava_onevision", tiles},
                         {"llava_next_video", video},
                         {"video_llava", video},
                         {"vipllava", "the projector normalizes the features of five layers"},
                         {"qwen2_vl", "rows of images have positions in three dimensions"},
                         {"qwen2_5_vl", "rows of images have positions in three dimensions"},
                         {"qwen3_vl", "rows of images have positions in three dimensions"},
                         {"qwen3_vl_moe", "rows of images have positions in three dimensions"},
                         {"internvl", "rows of images are shuffled and normalized before the projector"},
                         {"paligemma", "rows of an image see each other in both directions"},
                         {"idefics", "language layers attend to images"},
                         {"idefics2", "a resampler reads the rows of images"},
                         {"idefics3", tiles},
                         {"smolvlm", tiles},
                         {"mllama", "language layers attend to images"},
                         {"blip-2", "a transformer of queries reads the rows of images"},
                         {"instructblip", "a transformer of queries reads the rows of images"},
                         {"pixtral", "images have any size"},
                         {"mistral3", "images have any size"},
                         {"clip", "text and vision towers are not trained together here"},
                         {"clip_vision_model", "a vision tower is part of a llava"},
                         {"siglip", "text and vision towers are not trained together here"},
                         {"siglip_vision_model", "a vision tower is part of a llava"}}};
}

}  // namespace teratron
