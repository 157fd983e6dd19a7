#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/json.h"
#include "teratron/images/image_processor.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* supported_classes =
    "CLIPImageProcessor, LlavaImageProcessor, SiglipImageProcessor, ViTImageProcessor, Qwen2VLImageProcessor";

// Keys that change no pixel here.
constexpr std::string_view neutral_keys[] = {"_valid_processor_keys",
                                             "auto_map",
                                             "data_format",
                                             "device",
                                             "disable_grouping",
                                             "do_convert_rgb",
                                             "feature_extractor_type",
                                             "image_processor_type",
                                             "image_seq_length",
                                             "input_data_format",
                                             "processor_class",
                                             "return_tensors"};

struct ProcessorFile {
  std::string where;
  json content;
};

// As transformers: the part of processor_config.json comes before preprocessor_config.json.
ProcessorFile read_file(const fs::path& folder) {
  const fs::path joint = folder / "processor_config.json", own = folder / "preprocessor_config.json";
  const JsonOptions options{.kind = ExitCode::config, .max_depth = 16, .max_bytes = 1 << 20};
  if (fs::exists(joint)) {
    json content = read_json(joint, options);
    if (content.is_object() && content.contains("image_processor"))
      return {joint.string() + ": image_processor", content["image_processor"]};
  }
  if (!fs::exists(own)) {
    throw config_error({.what = "there is neither preprocessor_config.json nor an image_processor in "
                                "processor_config.json",
                        .where = printable(folder.string(), 1000),
                        .fix = "Copy it from the model's page: it says how images become pixels"});
  }
  return {own.string(), read_json(own, options)};
}

// Class of the processor without the suffix of a backend.
std::string class_of(const json& content, const fs::path& folder) {
  const auto text = [](const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  std::string name = text(content, "image_processor_type");
  if (name.empty()) {
    name = text(content, "feature_extractor_type");
    if (const size_t at = name.find("FeatureExtractor"); at != std::string::npos)
      name.replace(at, 16, "ImageProcessor");
  }
  if (name.empty() && fs::exists(folder / "config.json")) {
    constexpr std::pair<const char*, const char*> classes[] = {
        {"clip", "CLIPImageProcessor"},
        {"clip_vision_model", "CLIPImageProcessor"},
        {"llava", "LlavaImageProcessor"},
        {"siglip", "SiglipImageProcessor"},
        {"siglip_vision_model", "SiglipImageProcessor"},
        {"vit", "ViTImageProcessor"},
        {"qwen2_vl", "Qwen2VLImageProcessor"},
        {"qwen2_5_vl", "Qwen2VLImageProcessor"},
        {"qwen3_vl", "Qwen2VLImageProcessor"}};
    const json config = read_json(folder / "config.json", {.kind = ExitCode::config});
    const std::string model = config.is_object() ? text(config, "model_type") : std::string();
    for (const auto& [type, processor] : classes) {
      if (model == type) name = processor;
    }
  }
  for (const std::string_view suffix : {"Fast", "Pil"}) {
    if (name.ends_with(suffix)) name = name.substr(0, name.size() - suffix.size());
  }
  return name;
}

std::optional<ProcessorSettings> defaults_of(const std::string& name) {
  ProcessorSettings settings{.type = name};
  if (name == "CLIPImageProcessor" || name == "LlavaImageProcessor") return settings;
  settings.crop.reset();
  if (name == "Qwen2VLImageProcessor") {
    settings.rule = SizeRule::area;
    settings.shortest = 56 * 56;
    settings.longest = 28 * 28 * 1280;
    settings.patches = true;
    return settings;
  }
  settings.rule = SizeRule::exact;
  settings.height = settings.width = 224;
  settings.mean = settings.deviation = {0.5, 0.5, 0.5};
  if (name == "SiglipImageProcessor") return settings;
  settings.filter = ResizeFilter::bilinear;
  return name == "ViTImageProcessor" ? std::optional(settings) : std::nullopt;
}

// Reads the keys one by one and collects what is wrong with them.
class SettingsReader {
 public:
  SettingsReader(const ProcessorFile& file, ProcessorSettings defaults)
      : file_(file), settings_(std::move(defaults)) {}

  ProcessorSettings read() {
    read_sizes();
    read_filter();
    read_values();
    if (settings_.patches) {
      read_count("patch_size", settings_.patch_size);
      read_count("temporal_patch_size", settings_.temporal_patch_size);
      read_count("merge_size", settings_.merge_size);
    }
    refuse_others();
    if (!problems_.empty()) throw UserError(ExitCode::config, std::move(problems_));
    return std::move(settings_);
  }

 private:
  static constexpr int64_t kMaxSide = 65'500;

  // The value of a key, or null. A null in the file is as none.
  const json* find(const char* key) {
    seen_.push_back(key);
    const auto found = file_.content.find(key);
    return found == file_.content.end() || found->is_null() ? nullptr : &*found;
  }
  void problem(const std::string& key, std::string what, std::string fix) {
    problems_.push_back({.what = std::move(what),
                         .where = printable(fmt::format("{}: {}", file_.where, key), 1000),
                         .fix = std::move(fix)});
  }

  bool flag(const char* key, bool otherwise) {
    const json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    problem(key, fmt::format("{} is neither true nor false", shown(*value)), "Write true or false");
    return otherwise;
  }
  static std::string shown(const json& value) { return printable(value.dump(), 80); }

  void read_count(const char* key, int64_t& out) {
    if (const json* const value = find(key)) read_side(key, *value, {1, 4096}, out);
  }
  struct Limits {
    int64_t least = 1, most = kMaxSide;
  };
  bool read_side(const std::string& key, const json& value, Limits limits, int64_t& out) {
    const bool fits = value.is_number_integer() && value >= limits.least && value <= limits.most;
    if (fits) {
      out = value.get<int64_t>();
    } else {
      problem(key, fmt::format("{} is not a number from {} to {}", shown(value), limits.least, limits.most),
              "Write an integer in this range");
    }
    return fits;
  }

  // {"height": h, "width": w}, or [h, w], or a number for both.
  std::optional<ImageSize> height_and_width(const std::string& key, const json& value) {
    ImageSize size;
    if (value.is_number()) {
      if (!read_side(key, value, {}, size.height)) return std::nullopt;
      size.width = size.height;
      return size;
    }
    const bool pair = value.is_array() && value.size() == 2;
    if (!pair && !has_keys(value, {"height", "width"})) {
      problem(key, fmt::format("{} has not a height and a width", shown(value)),
              "Write {\"height\": h, \"width\": w}");
      return std::nullopt;
    }
    const json& height = pair ? value[0] : value["height"];
    const json& width = pair ? value[1] : value["width"];
    const bool good = read_side(key + ".height", height, {}, size.height);
    return read_side(key + ".width", width, {}, size.width) && good ? std::optional(size) : std::nullopt;
  }
  static bool has_keys(const json& value, std::initializer_list<const char*> keys) {
    if (!value.is_object() || value.size() != keys.size()) return false;
    return std::ranges::all_of(keys, [&](const char* key) { return value.contains(key); });
  }

  void read_sizes() {
    const bool square = flag("default_to_square", settings_.type == "ViTImageProcessor");
    const json* const size = find("size");
    if (settings_.patches) {
      read_area(size);
    } else if (size != nullptr) {
      read_size(*size, square);
    }
    if (!flag("do_resize", true)) settings_.rule = SizeRule::keep;

    const json* const crop_size = find("crop_size");
    const bool crop = flag("do_center_crop", settings_.crop.has_value());
    if (crop && crop_size != nullptr) settings_.crop = height_and_width("crop_size", *crop_size);
    if (crop && settings_.patches)
      problem("do_center_crop", "images of patches are not cropped", "Write false");
    if (crop && !settings_.patches && crop_size == nullptr && !settings_.crop)
      problem("crop_size", "is missing, but do_center_crop is true", "Write the size of the crop");
    if (!crop) settings_.crop.reset();

    const bool pad = flag("do_pad", false);
    settings_.pad_to_square = pad && settings_.type == "LlavaImageProcessor";
    if (pad && !settings_.pad_to_square)
      problem("do_pad", fmt::format("padding of {} is not supported", settings_.type), "Write false");
    find("pad_size");  // without do_pad it does nothing; LlavaImageProcessor pads to a square
  }

  void read_size(const json& size, bool square) {
    if (size.is_number() && !square) {
      settings_.rule = SizeRule::shortest_edge;
      read_side("size", size, {}, settings_.shortest);
    } else if (has_keys(size, {"shortest_edge"})) {
      settings_.rule = SizeRule::shortest_edge;
      read_side("size.shortest_edge", size["shortest_edge"], {}, settings_.shortest);
    } else if (has_keys(size, {"shortest_edge", "longest_edge"})) {
      settings_.rule = SizeRule::both_edges;
      read_side("size.shortest_edge", size["shortest_edge"], {}, settings_.shortest);
      read_side("size.longest_edge", size["longest_edge"], {}, settings_.longest);
    } else if (has_keys(size, {"max_height", "max_width"})) {
      settings_.rule = SizeRule::at_most;
      read_side("size.max_height", size["max_height"], {}, settings_.height);
      read_side("size.max_width", size["max_width"], {}, settings_.width);
    } else if (const auto exact = height_and_width("size", size)) {
      settings_.rule = SizeRule::exact;
      settings_.height = exact->height;
      settings_.width = exact->width;
    }
  }

  // Qwen's bounds of the number of pixels.
  void read_area(const json* size) {
    constexpr Limits kPixels{1, int64_t{1} << 28};
    if (size != nullptr) {
      if (has_keys(*size, {"shortest_edge", "longest_edge"})) {
        read_side("size.shortest_edge", (*size)["shortest_edge"], kPixels, settings_.shortest);
        read_side("size.longest_edge", (*size)["longest_edge"], kPixels, settings_.longest);
      } else if (!file_.content.contains("min_pixels") || !file_.content.contains("max_pixels")) {
        problem("size", fmt::format("{} does not bound the pixels", shown(*size)),
                "Write {\"shortest_edge\": least, \"longest_edge\": most}, numbers of pixels");
      }
    }
    if (const json* const least = find("min_pixels"))
      read_side("min_pixels", *least, kPixels, settings_.shortest);
    if (const json* const most = find("max_pixels"))
      read_side("max_pixels", *most, kPixels, settings_.longest);
    if (settings_.shortest > settings_.longest) {
      problem("size",
              fmt::format("at least {} pixels, but at most {}", settings_.shortest, settings_.longest),
              "Exchange them");
    }
  }

  void read_filter() {
    const json* const value = find("resample");
    if (value == nullptr) return;
    if (*value == 2 || *value == "bilinear") {
      settings_.filter = ResizeFilter::bilinear;
    } else if (*value == 3 || *value == "bicubic") {
      settings_.filter = ResizeFilter::bicubic;
    } else {
      problem("resample", fmt::format("{} is not supported", shown(*value)),
              "Known: 2 (bilinear), 3 (bicubic)");
    }
  }

  void read_values() {
    const json* const factor = find("rescale_factor");
    if (factor != nullptr && (!factor->is_number() || factor->get<double>() == 0)) {
      problem("rescale_factor", fmt::format("{} is not a factor", shown(*factor)),
              "Usual: 0.00392156862745098");
    } else if (factor != nullptr) {
      settings_.rescale = factor->get<double>();
    }
    if (!flag("do_rescale", true)) settings_.rescale.reset();
    settings_.normalize = flag("do_normalize", true);
    read_channels("image_mean", settings_.mean);
    read_channels("image_std", settings_.deviation);
    if (std::ranges::count(settings_.deviation, 0.0) > 0)
      problem("image_std", "it has a zero, by which values would be divided", "Write the model's deviations");
  }

  void read_channels(const char* key, std::array<double, 3>& out) {
    const json* const value = find(key);
    if (value == nullptr) return;
    const bool list = value->is_array() && value->size() == 3 &&
                      std::ranges::all_of(*value, [](const json& each) { return each.is_number(); });
    if (value->is_number()) {
      out.fill(value->get<double>());
    } else if (list) {
      for (size_t c = 0; c < 3; ++c) out[c] = (*value)[c].get<double>();
    } else {
      problem(key, fmt::format("{} is not one number, nor three", shown(*value)), "Write [red, green, blue]");
    }
  }

  void refuse_others() {
    for (const auto& [key, value] : file_.content.items()) {
      const bool known = std::ranges::count(seen_, key) > 0 || std::ranges::count(neutral_keys, key) > 0;
      if (known || value.is_null() || value == false) continue;
      problem(printable(key), fmt::format("{} has no such setting here", settings_.type),
              "Remove it if it does not change pixels");
    }
  }

  const ProcessorFile& file_;
  ProcessorSettings settings_;
  std::vector<std::string> seen_;
  std::vector<Problem> problems_;
};

}  // namespace

ProcessorSettings read_processor_settings(const fs::path& folder) {
  const ProcessorFile file = read_file(folder);
  const std::string where = printable(file.where, 1000);
  if (!file.content.is_object()) {
    throw config_error({.what = "it is not an object with settings",
                        .where = where,
                        .fix = "Copy the file from the model's page"});
  }
  const std::string name = class_of(file.content, folder);
  const auto defaults = defaults_of(name);
  if (!defaults) {
    throw config_error({.what = name.empty() ? "it does not name its class (image_processor_type)"
                                             : fmt::format("the class {} is not supported", printable(name)),
                        .where = where,
                        .fix = fmt::format("Supported: {}", supported_classes)});
  }
  return SettingsReader(file, *defaults).read();
}

}  // namespace teratron
