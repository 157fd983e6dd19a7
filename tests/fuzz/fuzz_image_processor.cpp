// Any preprocessor_config.json: it is refused, or images of all shapes are refused or processed.
#include <algorithm>

#include "tests/fuzz/scratch.h"

#include "teratron/base/error.h"
#include "teratron/images/image_processor.h"

namespace {

void process(const teratron::ImageProcessor& processor, teratron::ImageSize size) {
  try {
    const teratron::PixelShape shape = processor.shape_of(size, "image");
    if (shape.numel() <= 0) std::abort();
    if (shape.numel() > 1 << 20) return;
    teratron::Image image(size);
    std::fill_n(image.row(0), size.pixels() * 3, uint8_t{77});
    if (processor.process(image, "image").shape.sizes != shape.sizes) std::abort();
  } catch (const teratron::UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const teratron::fuzz::Scratch scratch;
  scratch.write("preprocessor_config.json", {data, size});
  try {
    const teratron::ProcessorSettings settings = teratron::read_processor_settings(scratch.path("."));
    for (const auto style : {teratron::ResizeStyle::pillow13, teratron::ResizeStyle::torchvision}) {
      const teratron::ImageProcessor processor(settings, style);
      for (const teratron::ImageSize image : {teratron::ImageSize{1, 1}, {3, 500}, {40, 30}, {64, 1}})
        process(processor, image);
    }
  } catch (const teratron::UserError&) {
  }
  return 0;
}
