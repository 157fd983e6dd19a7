#include "teratron/models/vit/vit_family.h"

#include <filesystem>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/models/hybrid_flags.h"
#include "teratron/models/transformer/language_model_plan.h"
#include "teratron/models/vit/data/image_classes.h"
#include "teratron/models/vit/data/mock_image_dataset.h"
#include "teratron/models/vit/vit.h"
#include "teratron/models/vit/vit_operators.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

int64_t rows_of_image(const Arguments& args) {
  const VitConfig sizes{{}, args.img_h, args.img_w, args.num_channels, args.patch_dim};
  return sizes.rows();
}

// The folders of train and valid.
std::array<std::string, 2> folders(const Arguments& args) {
  const auto at = [](const std::vector<std::string>& paths, size_t i) {
    return i < paths.size() ? paths[i] : std::string();
  };
  if (!args.data_path.empty()) return {at(args.data_path, 0), at(args.data_path, 1)};
  return {at(args.train_data_path, 0), at(args.valid_data_path, 0)};
}

// The classes of the images, unless the user names others: a finetuning learns other ones than the model has.
void derive_classes(Validation& v) {
  Arguments& a = v.args;
  const auto is_open = [&](const char* name) {
    const auto source = v.sources.find(name);
    const bool of_model = a.hf && source != v.sources.end() && source->second.starts_with(*a.hf);
    return !v.chosen(name) || (a.finetune && of_model);
  };
  const std::string train = folders(a)[0];
  std::error_code ignored;
  if (is_open("class_names") && !train.empty() && std::filesystem::is_directory(train, ignored)) {
    const std::vector<std::string> names = class_folders(train);
    const auto is_known = [&](const std::string& name) {
      return std::ranges::find(a.class_names, name) != a.class_names.end();
    };
    if (!std::ranges::all_of(names, is_known)) v.derive("class_names", a.class_names, names);
  }
  if (is_open("num_classes") && !a.class_names.empty())
    v.derive("num_classes", a.num_classes, static_cast<int64_t>(a.class_names.size()));
  const auto names = std::ssize(a.class_names);
  if (names > 0 && names != a.num_classes) {
    v.reject("num_classes", fmt::format("{} classes have {} names", a.num_classes, names),
             "Use as many as there are folders of training images, or leave it out");
  }
}

// There is no text: --seq-length is for that of other families' scripts, the rows of an image are one.
void derive_vit(Validation& v) {
  Arguments& a = v.args;
  v.derive("seq_length", a.seq_length, rows_of_image(a));
  v.derive("max_position_embeddings", a.max_position_embeddings, rows_of_image(a));
  a.encoder_seq_length.reset();
  v.derive("position_embedding_type", a.position_embedding_type, "none");
  if (!a.tokenizer_type) v.derive("tokenizer_type", a.tokenizer_type, "NullTokenizer");
  if (!a.vocab_size) v.derive("vocab_size", a.vocab_size, 1, program_default_source);
  derive_classes(v);
}

void check_sizes(const Arguments& args, std::vector<Problem>& problems) {
  const auto reject = [&problems](bool wrong, std::string what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = std::move(what), .where = flag, .fix = fix});
  };
  reject(args.patch_dim > std::min(args.img_h, args.img_w),
         fmt::format("a patch of {} pixels is larger than an image of {} x {}", args.patch_dim, args.img_h,
                     args.img_w),
         "--patch-dim", "Use smaller patches");
  reject(args.num_channels != 3, fmt::format("images have 3 channels, not {}", args.num_channels),
         "--num-channels", "Leave it out");
  reject(args.num_classes < 2, "one class leaves nothing to learn", "--num-classes", "Use 2 or more");
}

void check_vit(const Arguments& args, std::vector<Problem>& problems) {
  if (args.num_experts) problems.push_back(no_experts());
  refuse_hybrids(args, problems);
  check_sizes(args, problems);
  const auto reject = [&problems](bool wrong, const char* what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = what, .where = flag, .fix = fix});
  };
  const auto [train, valid] = folders(args);
  reject(train.empty() && !args.mock_data && !args.skip_train, "no images to train on are given",
         "--data-path",
         "Name a folder with a folder of images for each class, and another one to evaluate on");
  reject(args.data_path.size() > 2, "--data-path takes a folder to train on and one to evaluate on",
         "--data-path", "Leave the others out");
  reject(args.context_parallel_size > 1, "the rows of an image are attended to as a whole",
         "--context-parallel-size", "Leave it out");
  reject(args.calculate_per_token_loss, "the loss is one of images, not of tokens",
         "--calculate-per-token-loss", "Leave it out");
  reject(args.task && args.task != "classification", "images are only classified", "--task",
         "Use --task classification");
}

Datasets mock_datasets(const DataRequest& request, const VitConfig& config) {
  const auto make = [&](size_t split) -> std::shared_ptr<const Dataset> {
    const int64_t samples = request.samples[split].value_or(0);
    if (samples == 0) return nullptr;
    return std::make_shared<MockImageDataset>(
        MockImageDataset::Options{.samples = samples,
                                  .classes = config.classes,
                                  .seed = static_cast<uint64_t>(request.args.seed) + split});
  };
  return {make(0), make(1), make(2)};
}

Datasets datasets_of(const DataRequest& request) {
  const Arguments& args = request.args;
  const VitConfig config = vit_config(args);
  if (args.mock_data) return mock_datasets(request, config);
  const auto processor = std::make_shared<const ImageProcessor>(image_processor(args, config));
  const auto make = [&](size_t split) -> std::shared_ptr<const Dataset> {
    const std::string folder = split < 2 ? folders(args)[split] : std::string();
    if (folder.empty() || request.samples[split] == 0) return nullptr;
    const bool trains = split == 0;
    const auto seed = static_cast<uint64_t>(args.seed);
    return std::make_shared<ImageClasses>(
        ImageClasses::Options{.folder = folder,
                              .class_names = args.class_names,
                              .classes_fraction = args.classes_fraction,
                              .images_fraction = trains ? args.data_per_class_fraction : 1.0,
                              .samples = request.samples[split],
                              .shuffle = trains ? std::optional(seed) : std::nullopt,
                              .augments = trains && args.image_augmentation,
                              .processor = processor,
                              .limits = image_limits(args)});
  };
  return {make(0), make(1), nullptr};
}

}  // namespace

BatchSchema vit_schema(const VitConfig& config) {
  return {{.name = "pixel_values",
           .type = ColumnType::f32,
           .shape = {config.channels, config.height, config.width},
           .kind = Column::Kind::sample,
           .stages = Column::Stages::first},
          {.name = "sequence_index", .shape = {config.rows()}, .kind = Column::Kind::index},
          {.name = "labels", .shape = {1}, .kind = Column::Kind::sample, .stages = Column::Stages::last}};
}

ModelPlan vit_plan(const VitConfig& config) {
  ModelPlan plan = language_model_plan(config, "encoder", vit_schema(config));
  plan.losses = {"loss"};
  plan.build = [config](const StageContext& part) { return std::make_unique<Vit>(config, part); };
  plan.inference = vit_inference(config);
  plan.operators = vit_operators(config);
  plan.summary = fmt::format(
      "ViT: {} layers, hidden {}, {} heads, ffn {}, images of {} x {} in patches of {}, {} classes",
      config.layers, config.hidden, config.heads, config.ffn_hidden, config.width, config.height,
      config.patch, config.classes);
  return plan;
}

Family vit_family() {
  return {.name = "vit",
          .summary = "image classifiers: vision transformers",
          .example =
              "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --img-h 32 --img-w 32 --patch-dim 8 "
              "--mock-data",
          .settings = {.names = {"training", "vit"}, .tokenizer_type = "NullTokenizer", .derive = derive_vit},
          .check = check_vit,
          .plan = [](const Arguments& args, int64_t) { return vit_plan(vit_config(args)); },
          .datasets = datasets_of,
          .finetunes = {.starts_anew = {"classification_head."}},
          .generates = false,
          .classifier = vit_family};
}

}  // namespace teratron
