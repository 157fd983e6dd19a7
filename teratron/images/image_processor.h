// From an image to what a vision model takes, as the image processors of transformers do:
// CLIPImageProcessor, LlavaImageProcessor, SiglipImageProcessor, ViTImageProcessor and Qwen2VLImageProcessor
// (of Qwen2-VL, Qwen2.5-VL and Qwen3-VL), set up by preprocessor_config.json or processor_config.json.
//
//   const ImageProcessor processor(read_processor_settings("llava-1.5-7b-hf"), {});
//   const Image image = decode_image(bytes, "a.jpg", {});
//   const PixelValues values = processor.process(image, "a.jpg");  // [3, 336, 336]
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "teratron/images/image.h"
#include "teratron/images/resize.h"

namespace teratron {

/// How the size after resizing follows from that of the image.
enum class SizeRule : uint8_t {
  keep,           // no resizing
  exact,          // height, width
  shortest_edge,  // the shorter side becomes `shortest`, the longer follows
  both_edges,     // so, but the longer one at most `longest`
  at_most,        // as large as fits into height, width
  area,           // multiples of patch_size * merge_size with `shortest` to `longest` pixels in all (Qwen)
};

/// What a processor does, in this order, with the defaults of CLIPImageProcessor.
struct ProcessorSettings {
  std::string type = "CLIPImageProcessor";
  bool pad_to_square = false;  // first, with 255 * mean
  SizeRule rule = SizeRule::shortest_edge;
  int64_t height = 0, width = 0, shortest = 224, longest = 0;
  ResizeFilter filter = ResizeFilter::bicubic;
  std::optional<ImageSize> crop = ImageSize{224, 224};  // from the center; smaller images get a black border
  std::optional<double> rescale = 1.0 / 255;            // factor of bytes
  bool normalize = true;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> deviation = {0.26862954, 0.26130258, 0.27577711};
  /// Qwen: rows of patches instead of planes.
  bool patches = false;
  int64_t patch_size = 14, temporal_patch_size = 2, merge_size = 2;
};

/// Settings in a Hugging Face folder. UserError(config) that names each class, key or value which is not
/// supported.
ProcessorSettings read_processor_settings(const std::filesystem::path& folder);

/// Shape of the values of one image.
struct PixelShape {
  std::vector<int64_t> sizes;        // [3, H, W] of planes or [t * h * w, 3 * temporal_patch_size * patch^2]
  std::array<int64_t, 3> grid = {};  // t, h, w in patches (image_grid_thw); zeros of planes
  int64_t numel() const;
};

struct PixelValues {
  PixelShape shape;
  std::vector<float> values;
};

/// Thread-safe.
class ImageProcessor {
 public:
  /// torchvision's style stands for the fast processors, which also have other values by rounding and other
  /// borders of small images.
  explicit ImageProcessor(ProcessorSettings settings, ResizeStyle style = ResizeStyle::pillow13);

  const ProcessorSettings& settings() const { return settings_; }
  /// Size of all images, if it does not depend on theirs.
  std::optional<ImageSize> fixed_size() const;

  /// Shape for an image of this size (read_image_size()), without its pixels. UserError(data) that names
  /// `where` for an image that the processor refuses.
  PixelShape shape_of(ImageSize size, const std::string& where) const;
  /// Pixels after padding, resizing and cropping.
  Image prepare(const Image& image, const std::string& where) const;
  /// Values of prepared pixels into shape_of().numel() floats.
  void write_values(const Image& prepared, float* out) const;
  /// All of it.
  PixelValues process(const Image& image, const std::string& where) const;

 private:
  ImageSize resized_size(ImageSize size, const std::string& where) const;
  PixelShape shape_of_prepared(ImageSize size, const std::string& where) const;
  ProcessorSettings settings_;
  ResizeStyle style_;
  std::array<std::array<float, 256>, 3> values_;  // of a byte, by channel
};

}  // namespace teratron
