#include "teratron/models/vlm/data/image_files.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/tokenizer/base64.h"

namespace teratron {

namespace fs = std::filesystem;

namespace {

UserError refuse(std::string what, const std::string& where, std::string fix) {
  return data_error({.what = std::move(what), .where = where, .fix = std::move(fix)});
}

// "data:image/png;base64,..."
std::string contents_of_uri(const std::string& uri, const std::string& where, const ImageLimits& limits) {
  const size_t comma = uri.find(',');
  const std::string_view kind = std::string_view(uri).substr(0, std::min(comma, uri.size()));
  if (comma == uri.npos || !kind.ends_with(";base64"))
    throw refuse("a data: URI is not base64", where, "Write data:image/png;base64,...");
  if (static_cast<int64_t>(uri.size() - comma) / 4 * 3 > limits.max_file_bytes)
    throw refuse("an image of a data: URI is too large", where, "Use a smaller image");
  const auto bytes = decode_base64(std::string_view(uri).substr(comma + 1));
  if (!bytes) throw refuse("a data: URI is not valid base64", where, "Write it again");
  return *bytes;
}

// With the line that names it.
std::string read_named(const fs::path& path, const std::string& where, const ImageLimits& limits) {
  try {
    return read_image_file(path, limits);
  } catch (const UserError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) problem.where = fmt::format("{}: {}", where, problem.where);
    throw UserError(ExitCode::data, std::move(problems));
  }
}

fs::path file_below(const ImageFiles::Options& options, const std::string& name, const std::string& where) {
  const fs::path path = name;
  const bool climbs = std::ranges::any_of(path, [](const fs::path& part) { return part == ".."; });
  if (name.find("://") != name.npos)
    throw refuse(fmt::format("{} is an address, and nothing is fetched", printable(name, 200)), where,
                 "Download the images and name the files");
  if (name.empty() || (options.confined && (path.is_absolute() || climbs)))
    throw refuse(fmt::format("'{}' does not lie below the folder of images", printable(name, 200)), where,
                 "Name files below --image-folder");
  return options.folder / path;
}

}  // namespace

ImageFiles::ImageFiles(const ProcessorSettings& processor, const Options& options, ImageSize size)
    : options_(options), processor_(processor, options.resize) {
  const std::optional<ImageSize> fixed = processor_.fixed_size();
  if (fixed == size && !processor_.settings().patches) return;
  throw config_error(
      {.what = fmt::format("the processor gives images of {}, but the model takes {} x {}",
                           fixed ? fmt::format("{} x {}", fixed->width, fixed->height) : "any size",
                           size.width, size.height),
       .where = "preprocessor_config.json",
       .fix = "Use the preprocessor_config.json of the model"});
}

void ImageFiles::read(const std::string& image, const std::string& where, std::span<float> values) const {
  const bool is_uri = image.starts_with("data:");
  const std::string name = is_uri ? where : fmt::format("{}: {}", where, printable(image, 200));
  const std::string bytes = is_uri ? contents_of_uri(image, where, options_.limits)
                                   : read_named(file_below(options_, image, where), where, options_.limits);
  const PixelValues pixels = processor_.process(decode_image(bytes_of(bytes), name, options_.limits), name);
  TERATRON_ASSERT(pixels.values.size() == values.size(), "{} values", pixels.values.size());
  std::ranges::copy(pixels.values, values.begin());
}

}  // namespace teratron
