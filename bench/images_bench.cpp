// Images per second of one core, from a JPEG to the values that LLaVA takes (CLIP, 336 x 336).
//
//   images_bench FILE.jpg     CPU time of each step, so that a busy machine does not matter
#include <ctime>

#include "teratron/base/log.h"
#include "teratron/images/image_processor.h"

namespace teratron {
namespace {

double cpu_milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void measure(const std::string& path) {
  const std::string contents = read_image_file(path, {});
  ProcessorSettings settings;
  settings.shortest = 336;
  settings.crop = ImageSize{336, 336};
  const ImageProcessor processor(settings);
  constexpr int kImages = 500;
  double decode = 0, prepare = 0, write = 0;
  ImageSize size;
  for (int i = 0; i < kImages; ++i) {
    const double start = cpu_milliseconds();
    const Image image = decode_image(bytes_of(contents), path, {});
    const double decoded = cpu_milliseconds();
    const Image prepared = processor.prepare(image, path);
    const double ready = cpu_milliseconds();
    std::vector<float> values(static_cast<size_t>(prepared.size().pixels() * 3));
    processor.write_values(prepared, values.data());
    decode += decoded - start;
    prepare += ready - decoded;
    write += cpu_milliseconds() - ready;
    size = image.size();
  }
  print("{} x {}: decoding {:.2f} ms, resizing {:.2f} ms, values {:.2f} ms: {:.0f} images/s", size.width,
        size.height, decode / kImages, prepare / kImages, write / kImages,
        1e3 * kImages / (decode + prepare + write));
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  if (argc != 2) {
    teratron::print("usage: images_bench FILE.jpg");
    return 2;
  }
  teratron::measure(argv[1]);
  return 0;
}
