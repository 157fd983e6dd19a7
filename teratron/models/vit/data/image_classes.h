// Images in folders, one for each class:
//
//   train/cat/1.jpg   train/cat/2.png   train/dog/1.webp
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/data/dataset.h"
#include "teratron/data/epoch_order.h"
#include "teratron/images/image_processor.h"

namespace teratron {

struct Arguments;
struct VitConfig;

/// The folders in a folder, by name. UserError(data) if it cannot be read.
std::vector<std::string> class_folders(const std::filesystem::path& folder);

/// What makes pixel values of the images: the processor of --hf, else the middle of images that are 8/7 as
/// large, with the mean and deviation of ImageNet. UserError(config) if that of --hf makes another size than
/// the model takes.
ImageProcessor image_processor(const Arguments& args, const VitConfig& config);
/// --max-image-pixels.
ImageLimits image_limits(const Arguments& args);

class ImageClasses : public Dataset {
 public:
  struct Options {
    std::filesystem::path folder;
    std::vector<std::string> class_names = {};  // numbered; empty: those of the folder
    double classes_fraction = 1.0;              // the first classes
    double images_fraction = 1.0;               // the first images of each class
    std::optional<int64_t> samples = {};        // nullopt: one epoch
    std::optional<uint64_t> shuffle = {};       // the seed of the order of epochs; nullopt: in order
    bool augments = false;                      // random crops of 8 to 100 % of the image, mirrored at random
    std::shared_ptr<const ImageProcessor> processor;
    ImageLimits limits = {};
  };
  /// UserError(data) for a folder without classes, classes without images, and classes that have no number.
  explicit ImageClasses(Options options);

  int64_t size() const override { return order_->size(); }
  /// A damaged image is a UserError(data) that names it.
  void get(int64_t i, const Sample& sample) const override;
  std::string describe() const override;
  std::string report() const override { return report_; }

 private:
  struct File {
    std::filesystem::path path;
    int64_t label = 0;
  };
  void add_class(const std::string& name, int64_t label);
  Image augmented(const Image& image, int64_t i) const;

  Options options_;
  std::optional<ImageProcessor> of_crops_;
  std::vector<File> files_;
  int64_t classes_ = 0, others_ = 0;
  std::optional<EpochOrder> order_;
  std::string report_;
};

}  // namespace teratron
