#include "teratron/models/vlm/vlm_family.h"

#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/vlm/data/mock_vlm_dataset.h"
#include "teratron/models/vlm/vlm.h"
#include "teratron/models/vlm/vlm_inference.h"
#include "teratron/models/vlm/vlm_operators.h"
#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

ImageSizes image_sizes(const VisionConfig& vision) {
  return {.channels = vision.channels, .height = vision.height, .width = vision.width, .rows = vision.rows()};
}

ModelPlan plan_of(const Arguments& args, int64_t vocabulary) {
  const VlmConfig config = vlm_config(args, vocabulary);
  return vlm_plan(config, vlm_schema(args.seq_length.value_or(0), image_sizes(config.vision)));
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
  if (!args.mock_data) {
    throw config_error(
        {.what = "a dataset of token ids has no images", .where = "--data-path", .fix = "Use --mock-data"});
  }
  const VlmConfig config = vlm_config(args, request.tokenizer.vocab_size());
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
          .generates = true};
}

ModelPlan vlm_plan(const VlmConfig& config, const BatchSchema& batch) {
  ModelPlan plan = gpt_plan(config.language, batch);
  plan.build = [config](const StageContext& part) { return std::make_unique<Vlm>(config, part); };
  plan.inference = vlm_inference(config);
  plan.operators = vlm_operators(config);
  plan.summary = summary_of(config);
  return plan;
}

}  // namespace teratron
