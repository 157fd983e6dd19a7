// The images that lines of data name, as pixel values of a model.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "teratron/images/image_processor.h"

namespace teratron {

/// Thread-safe.
class ImageFiles {
 public:
  struct Options {
    std::filesystem::path folder;  // of the files
    bool confined = true;          // files outside the folder are refused
    ResizeStyle resize = ResizeStyle::pillow13;
    ImageLimits limits = {};
  };
  /// `size`: that of the model. UserError(config) if the processor gives images of another size.
  ImageFiles(const ProcessorSettings& processor, const Options& options, ImageSize size);

  /// Writes the values of an image, a file or a data: URI. UserError(data) that names `where` and the image.
  void read(const std::string& image, const std::string& where, std::span<float> values) const;

 private:
  Options options_;
  ImageProcessor processor_;
};

}  // namespace teratron
