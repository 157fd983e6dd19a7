#include "teratron/images/image_processor.h"

#include <fstream>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::path(testing::TempDir()) / random_hex(12);
  Folder() { fs::create_directory(path); }
  ~Folder() { fs::remove_all(path); }
  void write(const char* name, const std::string& text) const { std::ofstream(path / name) << text; }
};

ProcessorSettings settings_of(const std::string& text) {
  const Folder folder;
  folder.write("preprocessor_config.json", text);
  return read_processor_settings(folder.path);
}

std::string settings_refusal(const std::string& text) {
  try {
    settings_of(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
  return "";
}

void expect_refusal(const std::string& keys, const std::string& reason, const char* type = "CLIP") {
  const std::string found = settings_refusal(R"({"image_processor_type": ")" + std::string(type) +
                                             "ImageProcessor\", " + keys + "}");
  EXPECT_NE(found.find(reason), std::string::npos) << found;
}

TEST(ProcessorSettings, DefaultsOfClasses) {
  const ProcessorSettings clip =
      settings_of(R"({"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 300})");
  EXPECT_EQ(clip.rule, SizeRule::shortest_edge);
  EXPECT_EQ(clip.shortest, 336);
  EXPECT_EQ(clip.crop, (ImageSize{300, 300}));
  const ProcessorSettings siglip = settings_of(
      R"({"image_processor_type": "SiglipImageProcessorFast", "size": {"height": 5, "width": 7}})");
  EXPECT_EQ(siglip.rule, SizeRule::exact);
  EXPECT_EQ(siglip.width, 7);
  EXPECT_FALSE(siglip.crop);
  const ProcessorSettings vit = settings_of(R"({"image_processor_type": "ViTImageProcessor", "size": 384})");
  EXPECT_EQ(vit.rule, SizeRule::exact);
  EXPECT_EQ(vit.height, 384);
  EXPECT_EQ(vit.filter, ResizeFilter::bilinear);
  const ProcessorSettings qwen = settings_of(
      R"({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 16, "image_mean": 0.25})");
  EXPECT_EQ(qwen.longest, 12845056);
  EXPECT_EQ(qwen.patch_size, 16);
  EXPECT_EQ(qwen.mean[2], 0.25);
}

TEST(ProcessorSettings, JointFileAndModelType) {
  const Folder folder;
  folder.write("processor_config.json", R"({"image_processor": {"do_pad": true}, "patch_size": 14})");
  folder.write("config.json", R"({"model_type": "llava"})");
  const ProcessorSettings llava = read_processor_settings(folder.path);
  EXPECT_EQ(llava.type, "LlavaImageProcessor");
  EXPECT_TRUE(llava.pad_to_square);
}

TEST(ProcessorSettings, RefusesByName) {
  EXPECT_NE(settings_refusal(R"({"image_processor_type": "Gemma3ImageProcessor"})")
                .find("Gemma3ImageProcessor is not supported"),
            std::string::npos);
  EXPECT_NE(settings_refusal("{}").find("does not name its class"), std::string::npos);
  EXPECT_NE(settings_refusal("[]").find("not an object"), std::string::npos);
  EXPECT_NE(settings_refusal("{").find("preprocessor_config.json:1:"), std::string::npos);
  EXPECT_THROW(read_processor_settings(Folder().path), UserError);
  expect_refusal(R"("do_image_splitting": true)", "do_image_splitting");
  EXPECT_EQ(
      settings_refusal(
          R"({"image_processor_type": "CLIPImageProcessor", "do_image_splitting": false, "pad_size": null})"),
      "");
  expect_refusal(R"("resample": 1)", "resample: 1 is not supported");
  expect_refusal(R"("do_pad": true)", "do_pad");
  expect_refusal(R"("size": {"longest_edge": 4})", "size");
  expect_refusal(R"("size": -3)", "size: -3 is not a number from 1 to 65500");
  expect_refusal(R"("crop_size": {"height": 3})", "crop_size");
  expect_refusal(R"("do_center_crop": true)", "crop_size", "Siglip");
  expect_refusal(R"("image_std": [1, 0, 1])", "image_std");
  expect_refusal(R"("image_mean": [1, 2])", "image_mean");
  expect_refusal(R"("do_resize": 1, "rescale_factor": 0)", "rescale_factor");
  expect_refusal(R"("size": {"shortest_edge": 9, "longest_edge": 5})", "at least 9 pixels, but at most 5",
                 "Qwen2VL");
  expect_refusal(R"("patch_size": 0)", "patch_size", "Qwen2VL");
}

ImageProcessor qwen() {
  return ImageProcessor(settings_of(R"({"image_processor_type": "Qwen2VLImageProcessor"})"));
}

TEST(ImageProcessor, ShapesWithoutPixels) {
  EXPECT_EQ(qwen().shape_of({97, 61}, "a").grid, (std::array<int64_t, 3>{1, 4, 6}));
  EXPECT_EQ(qwen().shape_of({4000, 3000}, "a").grid, (std::array<int64_t, 3>{1, 60, 82}));
  EXPECT_EQ(qwen().shape_of({1, 1}, "a").sizes, (std::vector<int64_t>{16, 1176}));
  EXPECT_THROW(qwen().shape_of({3000, 10}, "a"), UserError);
  const ImageProcessor clip((ProcessorSettings()));
  EXPECT_EQ(clip.shape_of({1, 65500}, "a").sizes, (std::vector<int64_t>{3, 224, 224}));
  EXPECT_EQ(clip.fixed_size(), (ImageSize{224, 224}));
  const ImageProcessor edge(
      settings_of(R"({"image_processor_type": "CLIPImageProcessor", "do_center_crop": false})"));
  EXPECT_EQ(edge.shape_of({100, 333}, "a").sizes, (std::vector<int64_t>{3, 745, 224}));
  EXPECT_THROW(edge.shape_of({1, 65500}, "a"), UserError);
  EXPECT_FALSE(edge.fixed_size());
  const ImageProcessor fit(settings_of(
      R"({"image_processor_type": "CLIPImageProcessor", "size": {"max_height": 10, "max_width": 30}})"));
  EXPECT_EQ(fit.shape_of({40, 30}, "a").sizes, (std::vector<int64_t>{3, 224, 224}));
  EXPECT_THROW(fit.shape_of({3, 500}, "a"), UserError) << "nothing is left of its width";
  const ImageProcessor pad(settings_of(R"({"image_processor_type": "LlavaImageProcessor", "do_pad": true})"));
  EXPECT_THROW(pad.shape_of({10, 65500}, "a"), UserError);
}

TEST(ImageProcessor, LongThinImagesCostOnlyTheirCrop) {
  const ImageProcessor clip((ProcessorSettings()));
  Image image({1, 65500});
  std::fill_n(image.row(0), 3 * 65500, uint8_t{9});
  const Image out = clip.prepare(image, "a");
  EXPECT_EQ(out.size(), (ImageSize{224, 224}));
  EXPECT_EQ(out.bytes()[1234], 9);
}

TEST(ImageProcessor, SmallImagesGetABorderAndOddPixelsTheirSide) {
  ProcessorSettings settings{
      .rule = SizeRule::keep, .crop = ImageSize{4, 4}, .rescale = {}, .normalize = false};
  Image image({1, 1});
  std::fill_n(image.row(0), 3, uint8_t{7});
  const auto at = [&](ResizeStyle style) {
    const PixelValues values = ImageProcessor(settings, style).process(image, "a");
    return std::find(values.values.begin(), values.values.end(), 7.0F) - values.values.begin();
  };
  EXPECT_EQ(at(ResizeStyle::pillow13), 2 * 4 + 2);
  EXPECT_EQ(at(ResizeStyle::torchvision), 1 * 4 + 1);
}

// Numbers of transformers; a fused multiply-add would give others.
TEST(ImageProcessor, ValuesAreRoundedAfterEachOperation) {
  Image image({1, 1});
  image.row(0)[0] = 91;
  image.row(0)[1] = 92;
  image.row(0)[2] = 11;
  const ProcessorSettings settings{.rule = SizeRule::keep, .crop = {}};
  EXPECT_EQ(ImageProcessor(settings, ResizeStyle::torchvision).process(image, "a").values,
            (std::vector<float>{-0.463805765F, -0.371382475F, -1.32379913F}));
  EXPECT_EQ(ImageProcessor(settings).process(image, "a").values,
            (std::vector<float>{-0.463805705F, -0.371382415F, -1.32379913F}));
}

}  // namespace
}  // namespace teratron
