#include "teratron/cli/images/image_command.h"

#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/images/image_processor.h"

namespace teratron {

namespace {

struct ImageFlags {
  std::vector<std::string> files;
  std::string folder, output, resize = "pillow13";
  ImageLimits limits;

  std::vector<Field> fields() {
    return {
        bound_field("files", &files, "JPEG, PNG and WebP files", {.required = true, .positional = true}),
        bound_field("hf", &folder, "Hugging Face folder with preprocessor_config.json", {.required = true}),
        bound_field("output", &output, "safetensors file to write", {.required = true}),
        bound_field("image_resize", &resize,
                    "Whose resampling: Pillow's from 13 on, Pillow's before, or that of torchvision with "
                    "the values of transformers' fast processors",
                    {.choices = "pillow13|pillow|torchvision"}),
        bound_field("max_image_pixels", &limits.max_pixels, "Refuse images with more pixels",
                    {.min = 1, .max = double{1 << 30}})};
  }
};

/// Shapes of all images, from their headers.
std::vector<PixelShape> shapes_of(const ImageFlags& flags, const ImageProcessor& processor) {
  std::vector<PixelShape> shapes;
  for (const std::string& file : flags.files) {
    const std::string contents = read_image_file(file, flags.limits);
    shapes.push_back(processor.shape_of(read_image_size(bytes_of(contents), file, flags.limits), file));
    const bool as_first = shapes.back().sizes == shapes.front().sizes;
    if (processor.settings().patches || as_first) continue;
    throw data_error(
        {.what = fmt::format("the pixels are [{}], but those of {} are [{}]",
                             fmt::join(shapes.back().sizes, ", "), printable(flags.files.front()),
                             fmt::join(shapes.front().sizes, ", ")),
         .where = printable(file, 1000),
         .fix =
             "Only images that the processor makes equally large go into one tensor: write one file each"});
  }
  return shapes;
}

std::vector<SafetensorsWriter::Tensor> tensors_of(const std::vector<PixelShape>& shapes, bool patches) {
  std::vector<int64_t> sizes = shapes.front().sizes;
  const auto images = static_cast<int64_t>(shapes.size());
  if (!patches) {
    sizes.insert(sizes.begin(), images);
    return {{.name = "pixel_values", .dtype = Dtype::f32, .shape = sizes}};
  }
  sizes[0] = 0;
  for (const PixelShape& shape : shapes) sizes[0] += shape.sizes[0];
  return {{.name = "image_grid_thw", .dtype = Dtype::i64, .shape = {images, 3}},
          {.name = "pixel_values", .dtype = Dtype::f32, .shape = sizes}};
}

void write_images(const ImageFlags& flags, const ImageProcessor& processor) {
  const std::vector<PixelShape> shapes = shapes_of(flags, processor);
  const bool patches = processor.settings().patches;
  TemporaryPath target(flags.output, ExitCode::config);
  SafetensorsWriter writer(target.path(), tensors_of(shapes, patches), {});
  if (patches) {
    for (const PixelShape& shape : shapes) writer.write(shape.grid.data(), sizeof shape.grid);
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string& file = flags.files[i];
    const std::string contents = read_image_file(file, flags.limits);
    const PixelValues pixels = processor.process(decode_image(bytes_of(contents), file, flags.limits), file);
    if (pixels.shape.sizes != shapes[i].sizes) {
      throw data_error({.what = "the file changed while it was read",
                        .where = printable(file, 1000),
                        .fix = "Start again when nothing writes it"});
    }
    writer.write(pixels.values.data(), static_cast<int64_t>(pixels.values.size() * sizeof(float)));
  }
  writer.finish();
  target.commit();
}

}  // namespace

int image_command(std::span<const std::string> args) {
  ImageFlags flags;
  if (!read_command({.name = "teratron data image",
                     .example = "teratron data image cat.jpg --hf llava-1.5-7b-hf --output cat.safetensors",
                     .usage = "FILE... --hf DIR --output FILE [FLAGS]",
                     .summary = "Write images as the pixel values that a vision model takes.",
                     .fields = flags.fields()},
                    args))
    return 0;
  const ImageProcessor processor(read_processor_settings(flags.folder), *resize_style_of(flags.resize));
  write_images(flags, processor);
  print("{}: {} images of {}", printable(flags.output, 1000), flags.files.size(), processor.settings().type);
  return 0;
}

}  // namespace teratron
