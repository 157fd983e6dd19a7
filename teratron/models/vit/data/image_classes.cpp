#include "teratron/models/vit/data/image_classes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "teratron/base/error.h"
#include "teratron/base/philox.h"
#include "teratron/models/vit/vit_config.h"
#include "teratron/settings/arguments.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view endings[] = {".jpg", ".jpeg", ".png", ".webp"};

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::ranges::find(endings, ending) != std::end(endings);
}

// In order of their names.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> all;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    all.push_back(it->path());
  if (error) {
    throw data_error({.what = fmt::format("the folder cannot be read: {}", error.message()),
                      .where = folder.string(),
                      .fix = "Name a folder with a folder of images for each class"});
  }
  std::ranges::sort(all);
  return all;
}

int64_t part_of(int64_t count, double fraction) {
  return std::clamp<int64_t>(static_cast<int64_t>(std::floor(static_cast<double>(count) * fraction)), 1,
                             count);
}

struct Crop {
  int64_t left = 0, top = 0, width = 0, height = 0;
};

// 8 to 100 % of the image, 3/4 to 4/3 as wide as high (Szegedy et al. 2014); all of it if ten draws fail.
Crop random_crop(ImageSize size, const RandomKey& key) {
  for (uint64_t attempt = 0; attempt < 10; ++attempt) {
    const PhiloxWords random = philox(key, attempt + 1);
    const double area = static_cast<double>(size.pixels()) * (0.08 + 0.92 * uniform_from(random.word[0]));
    const double ratio = std::exp(std::log(4.0 / 3.0) * (2.0 * uniform_from(random.word[1]) - 1.0));
    const auto width = std::llround(std::sqrt(area * ratio)), height = std::llround(std::sqrt(area / ratio));
    if (width < 1 || height < 1 || width > size.width || height > size.height) continue;
    const auto below = [](uint32_t word, int64_t bound) { return static_cast<int64_t>(word) % bound; };
    return {below(random.word[2], size.width - width + 1), below(random.word[3], size.height - height + 1),
            width, height};
  }
  return {0, 0, size.width, size.height};
}

void copy_row(const uint8_t* from, int64_t pixels, bool mirrored, uint8_t* to) {
  if (!mirrored) {
    std::memcpy(to, from, static_cast<size_t>(3 * pixels));
    return;
  }
  for (int64_t x = 0; x < pixels; ++x) std::copy_n(from + 3 * (pixels - 1 - x), 3, to + 3 * x);
}

}  // namespace

std::vector<std::string> class_folders(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : entries(folder)) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) names.push_back(path.filename().string());
  }
  return names;
}

ImageLimits image_limits(const Arguments& args) {
  return {.max_pixels = args.max_image_pixels};
}

ImageProcessor image_processor(const Arguments& args, const VitConfig& config) {
  const ImageSize size{config.width, config.height};
  const ResizeStyle style = resize_style_of(args.image_resize).value();
  if (!args.hf) {
    // torchvision's references scale images to 256 where 224 are cut out.
    return ImageProcessor({.type = "ViTImageProcessor",
                           .shortest = std::max(size.width, size.height) * 8 / 7,
                           .filter = ResizeFilter::bilinear,
                           .crop = size,
                           .mean = {0.485, 0.456, 0.406},
                           .deviation = {0.229, 0.224, 0.225}},
                          style);
  }
  ImageProcessor processor(read_processor_settings(*args.hf), style);
  const std::optional<ImageSize> made = processor.fixed_size();
  if (made != size) {
    throw config_error(
        {.what = fmt::format(
             "the image processor makes {}, but the model takes images of {} x {}",
             made ? fmt::format("images of {} x {}", made->width, made->height) : "images of any size",
             size.width, size.height),
         .where = *args.hf + "/preprocessor_config.json",
         .fix = "Correct its size, or that of config.json"});
  }
  return processor;
}

ImageClasses::ImageClasses(Options options) : options_(std::move(options)) {
  if (options_.augments) {
    ProcessorSettings settings = options_.processor->settings();
    const ImageSize size = options_.processor->fixed_size().value();
    settings.rule = SizeRule::exact;
    settings.width = size.width;
    settings.height = size.height;
    settings.crop.reset();
    of_crops_.emplace(settings);
  }
  const std::vector<std::string> found = class_folders(options_.folder);
  if (options_.class_names.empty()) options_.class_names = found;
  const std::vector<std::string>& names = options_.class_names;
  if (found.empty()) {
    throw data_error({.what = "there is no folder of a class",
                      .where = options_.folder.string(),
                      .fix = "Put the images of each class into a folder with its name"});
  }
  for (const std::string& name : found) {
    if (std::ranges::find(names, name) != names.end()) continue;
    throw data_error(
        {.what = fmt::format("'{}' is a class that the model does not have", printable(name, 60)),
         .where = options_.folder.string(),
         .fix = "Move its folder elsewhere, or train a model on all classes"});
  }
  const int64_t classes = part_of(std::ssize(names), options_.classes_fraction);
  for (int64_t label = 0; label < classes; ++label) {
    const std::string& name = names[static_cast<size_t>(label)];
    if (std::ranges::find(found, name) != found.end()) add_class(name, label);
  }
  order_.emplace(EpochOrder::Options{
      .count = std::ssize(files_), .samples = options_.samples, .shuffle = options_.shuffle});
  report_ = fmt::format("{} images of {} classes", files_.size(), classes_);
  if (others_ > 0)
    report_ += fmt::format("; {} files without the ending of a JPEG, PNG or WebP were left out", others_);
}

void ImageClasses::add_class(const std::string& name, int64_t label) {
  const fs::path folder = options_.folder / name;
  std::vector<fs::path> images;
  for (const fs::path& path : entries(folder)) {
    if (is_image(path)) {
      images.push_back(path);
    } else {
      ++others_;
    }
  }
  if (images.empty()) {
    throw data_error({.what = "the class has no images",
                      .where = folder.string(),
                      .fix = "Put its JPEG, PNG or WebP files there, or remove the folder"});
  }
  images.resize(static_cast<size_t>(part_of(std::ssize(images), options_.images_fraction)));
  for (fs::path& path : images) files_.push_back({std::move(path), label});
  ++classes_;
}

Image ImageClasses::augmented(const Image& image, int64_t i) const {
  const RandomKey key{options_.shuffle.value_or(0), static_cast<uint64_t>(i)};
  const Crop crop = random_crop(image.size(), key);
  const bool mirrored = philox(key, 0).word[0] % 2 == 0;
  Image part({crop.width, crop.height});
  for (int64_t y = 0; y < crop.height; ++y)
    copy_row(image.row(crop.top + y) + 3 * crop.left, crop.width, mirrored, part.row(y));
  return part;
}

void ImageClasses::get(int64_t i, const Sample& sample) const {
  const File& file = files_[static_cast<size_t>(order_->at(i))];
  if (sample.has("labels")) sample.i64("labels")[0] = file.label;
  if (!sample.has("pixel_values")) return;
  const std::string where = file.path.string();
  const std::string bytes = read_image_file(file.path, options_.limits);
  Image image = decode_image(bytes_of(bytes), where, options_.limits);
  if (options_.augments) image = augmented(image, i);
  const ImageProcessor& processor = options_.augments ? *of_crops_ : *options_.processor;
  const Image prepared = processor.prepare(image, where);
  processor.write_values(prepared, sample.f32("pixel_values").data());
}

std::string ImageClasses::describe() const {
  return fmt::format("{}: {}", options_.folder.string(), report_);
}

}  // namespace teratron
