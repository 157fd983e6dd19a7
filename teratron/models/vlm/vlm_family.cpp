#include "teratron/models/vlm/vlm_family.h"

#include <filesystem>

#include "teratron/images/resize.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/vlm/data/mock_vlm_dataset.h"
#include "teratron/models/vlm/data/vlm_conversations.h"
#include "teratron/models/vlm/vlm.h"
#include "teratron/models/vlm/vlm_inference.h"
#include "teratron/models/vlm/vlm_operators.h"
#include "teratron/settings/checks/validate.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

namespace {

ImageSizes image_sizes(const VisionConfig& vision) {
  return {.channels = vision.channels, .height = vision.height, .width = vision.width, .rows = vision.rows()};
}

ModelPlan plan_of(const Arguments& args, int64_t vocabulary) {
  const VlmConfig config = vlm_config(args, vocabulary);
  return vlm_plan(config,
                  vlm_schema(args.seq_length.value_or(0), image_sizes(config.vision), gpt_masks(args)));
}

// Where the processor of the images is: in the model's folder, or beside its tokenizer.
std::filesystem::path processor_folder(const Arguments& args) {
  return args.hf ? std::filesystem::path(*args.hf) : tokenizer_folder(tokenizer_options(args));
}

Datasets conversations_of(const DataRequest& request, const VlmConfig& config) {
  const Arguments& args = request.args;
  const VisionConfig& vision = config.vision;
  const ImageFiles::Options files{.folder = args.image_folder.value_or("."),
                                  .resize = *resize_style_of(args.image_resize),
                                  .limits = {.max_pixels = args.max_image_pixels}};
  std::optional<ChatTemplate> chat;
  if (args.chat_template != plain_template)
    chat = chat_template_of(args).with_marks(marks_of(request.tokenizer));
  return build_vlm_conversations(
      {.sources = data_sources(request),
       .sequence_length = args.seq_length.value(),
       .seed = static_cast<uint32_t>(args.seed),
       .packing = sft_packing(args),
       .overlong = overlong_conversations(args),
       .chat = chat ? &*chat : nullptr,
       .tokenizer = request.tokenizer,
       .image_token = config.image_token,
       .sizes = image_sizes(vision),
       .images = std::make_shared<ImageFiles>(read_processor_settings(processor_folder(args)), files,
                                              ImageSize{vision.width, vision.height})});
}

void check_mock(const MockVlmDataset::Options& options) {
  std::vector<Problem> problems;
  if (options.sequence_length <= options.sizes.rows) {
    problems.push_back({.what = fmt::format("{} tokens have no room for the {} rows of an image and text",
                                            options.sequence_length, options.sizes.rows),
                        .where = "--seq-length",
                        .fix = fmt::format("Use {} or more", options.sizes.rows + 1)});
  }
  if (options.vocab_size < 2) {
    problems.push_back({.what = "mock data needs a vocabulary size",
                        .where = "--vocab-size",
                        .fix = "Set the number of token ids, for example 32000"});
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

Datasets datasets_of(const DataRequest& request) {
  const Arguments& args = request.args;
  const VlmConfig config = vlm_config(args, request.tokenizer.vocab_size());
  if (args.sft) return conversations_of(request, config);
  if (!args.mock_data) {
    throw config_error({.what = "a dataset of token ids has no images",
                        .where = "--data-path",
                        .fix = "Use `teratron finetune vlm` with conversations, or --mock-data"});
  }
  const MockVlmDataset::Options options{.sequence_length = args.seq_length.value(),
                                        .vocab_size = request.tokenizer.vocab_size(),
                                        .seed = static_cast<uint64_t>(args.seed),
                                        .image_token = config.image_token,
                                        .sizes = image_sizes(config.vision)};
  check_mock(options);
  const auto make_mock = [options](size_t split, int64_t samples) -> std::shared_ptr<const Dataset> {
    MockVlmDataset::Options own = options;
    own.samples = samples;
    own.seed += split;
    return std::make_shared<MockVlmDataset>(own);
  };
  return build_datasets(data_sources(request), {.make_mock = make_mock, .cache = index_cache(request)});
}

std::string summary_of(const VlmConfig& config) {
  const GPTConfig& language = config.language;
  const TransformerConfig& blocks = config.vision.blocks;
  return fmt::format(
      "LLaVA: {} tower of {} layers, hidden {}, {} rows of each image of {} x {}; language model of {} "
      "layers, hidden {}, {} heads ({} key/value), ffn {}, vocabulary {}",
      config.vision.kind == VisionConfig::Kind::clip ? "CLIP" : "SigLIP", blocks.layers, blocks.hidden,
      config.vision.rows(), config.vision.width, config.vision.height, language.layers, language.hidden,
      language.heads, language.query_groups, language.ffn_hidden, language.vocabulary);
}

}  // namespace

Family vlm_family() {
  return {.name = "vlm",
          .summary = "language models that read images: LLaVA",
          .example =
              "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --dataloader-seq-length 64 "
              "--mock-data",
          .settings = {.names = {"training", "vlm"}, .derive = derive_vlm},
          .check = check_vlm,
          .plan = plan_of,
          .datasets = datasets_of,
          .generates = true,
          .learns_conversations = true};
}

ModelPlan vlm_plan(const VlmConfig& config, const BatchSchema& batch) {
  ModelPlan plan = gpt_plan(config.language, batch);
  plan.build = [config](const StageContext& part) { return std::make_unique<Vlm>(config, part); };
  plan.inference = vlm_inference(config);
  plan.text.images =
      ImageTokens{.token = config.image_token,
                  .rows = config.vision.rows(),
                  .shape = {config.vision.channels, config.vision.height, config.vision.width}};
  plan.operators = vlm_operators(config);
  plan.summary = summary_of(config);
  return plan;
}

}  // namespace teratron
