#include "teratron/models/gpt/gpt_family.h"

#include <fmt/ranges.h>

#include "teratron/models/gpt/gpt.h"
#include "teratron/models/gpt/gpt_classifier.h"
#include "teratron/models/gpt/gpt_operators.h"
#include "teratron/models/gpt/latent_attention.h"
#include "teratron/models/gpt/linear_attention.h"
#include "teratron/models/gpt/sft/sft_dataset.h"
#include "teratron/models/hybrid_flags.h"
#include "teratron/models/transformer/expert_metrics.h"
#include "teratron/models/transformer/language_model_plan.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

ChatTemplate chat_template_of(const Arguments& args) {
  std::optional<std::string> format = args.sft_tokenizer_prompt_format;
  if (!format && !args.chat_template && args.tokenizer_type == "SFTTokenizer") format = "nemotron-h-aligned";
  if (format && *format != "default") return ChatTemplate::find(*format);
  const auto chosen = choose_chat_template(args.chat_template, args.tokenizer_model.value_or(""));
  if (chosen) return *chosen;
  throw config_error({.what = "the tokenizer has no chat template",
                      .where = "--chat-template",
                      .fix = fmt::format("Give a file with one, or the name of one: {}",
                                         fmt::join(ChatTemplate::names(), ", "))});
}

namespace {

// Before a model is built: without a template no conversation can be read. A tokenizer that cannot be read is
// reported when it is loaded.
void check_chat_template(const Arguments& args, std::vector<Problem>& problems) {
  if (!args.tokenizer_type && !args.tokenizer_model && !args.vocab_file) return;  // what is wrong is its lack
  try {
    chat_template_of(args);
  } catch (const UserError& error) {
    if (error.exit_code() == ExitCode::config)
      problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
}

}  // namespace

void check_decoder(const Arguments& args, std::vector<Problem>& problems) {
  if (args.position_embedding_type == "relative")
    problems.push_back({.what = "only T5 has relative positions",
                        .where = "--position-embedding-type",
                        .fix = "Use learned_absolute, rope, alibi or none"});
  if (args.chat_template && !args.sft)
    problems.push_back({.what = "a chat template is only used with conversations",
                        .where = "--chat-template",
                        .fix = "Add --sft, or leave it out"});
  if (args.sft) check_chat_template(args, problems);
}

namespace {

void check_gpt(const Arguments& args, std::vector<Problem>& problems) {
  refuse_hybrids(args, problems);
  check_decoder(args, problems);
}

void derive_attention(Validation& v) {
  check_latent_attention(v);
  derive_linear_attention(v);
}

ModelPlan plan(const Arguments& args, int64_t vocabulary) {
  return gpt_plan(gpt_config(args, vocabulary), gpt_schema(args.seq_length.value_or(0), gpt_masks(args)));
}

Datasets sft_datasets(const DataRequest& request) {
  const Arguments& args = request.args;
  const ChatTemplate chat = chat_template_of(args).with_marks(marks_of(request.tokenizer));
  const bool learns_all = args.sft_tokenizer_prompt_format == "default";
  return build_sft_datasets({.sources = data_sources(request),
                             .sequence_length = args.seq_length.value(),
                             .seed = static_cast<uint32_t>(args.seed),
                             .packing = sft_packing(args),
                             .overlong = overlong_conversations(args),
                             .learned = learns_all ? LearnedTokens::all : LearnedTokens::answers,
                             .chat = chat,
                             .tokenizer = request.tokenizer,
                             .cache = index_cache(request),
                             .tokenizer_fingerprint = tokenizer_fingerprint(tokenizer_options(args))});
}

}  // namespace

GPTMaskOptions gpt_masks(const Arguments& args) {
  return {.reset_position_ids = args.reset_position_ids || args.sft,
          .reset_attention_mask = args.reset_attention_mask || args.sft,
          .eod_mask_loss = args.eod_mask_loss};
}

Family gpt_family() {
  return {.name = "gpt",
          .summary = "decoder-only language models: GPT-2, Llama, Mistral, Qwen",
          .example = "--model-preset gpt2 --mock-data",
          .settings = {.names = {"training", "gpt"}, .derive = derive_attention},
          .check = check_gpt,
          .plan = plan,
          .datasets =
              [](const DataRequest& request) {
                return request.args.sft ? sft_datasets(request)
                                        : build_gpt_datasets(gpt_data_options(request));
              },
          .learns_conversations = true,
          .classifier = gpt_classifier_family};
}

ModelPlan gpt_plan(const GPTConfig& config, const BatchSchema& batch) {
  ModelPlan plan = language_model_plan(config, "decoder", batch);
  plan.layer_sums = with_mtp_sums(expert_sums(config.experts), config);
  if (config.mtp_layers > 0)
    plan.loss_counts = [depths = config.mtp_layers](const MicroBatch& batch) {
      return mtp_loss_counts(batch, depths);
    };
  if (!config.rope.longrope.short_factors.empty()) plan.text.longest_short = config.rope.longrope.positions;
  plan.build = [config](const StageContext& context) {
    return std::make_unique<GPT>(context.parameters, stage_config(config, context), context.stage,
                                 context.parallel, context.mesh);
  };
  plan.inference = token_inference(config.vocabulary);
  plan.operators = gpt_operators(config);
  plan.summary =
      fmt::format("GPT: {} layers, hidden {}, {} heads ({} key/value), ffn {}, vocabulary {}", config.layers,
                  config.hidden, config.heads, config.query_groups, config.ffn_hidden, config.vocabulary);
  return plan;
}

GPTDataOptions gpt_data_options(const DataRequest& request) {
  const Arguments& args = request.args;
  const SpecialTokens& special = request.tokenizer.special();
  GPTMaskOptions masks = gpt_masks(args);
  masks.eod_id = special.eod.value_or(-1);
  masks.pad_id = dataset_pad_id(special, false);
  masks.vocab_size = request.tokenizer.vocab_size();
  return {.sources = data_sources(request),
          .sequence_length = args.seq_length.value(),
          .seed = static_cast<uint32_t>(args.seed),
          .masks = masks,
          .cache = index_cache(request)};
}

SftPacking sft_packing(const Arguments& args) {
  return args.sft_packing == "lines" ? SftPacking::lines : SftPacking::best_fit;
}

OverlongConversations overlong_conversations(const Arguments& args) {
  if (args.sft_overlong == "truncate") return OverlongConversations::truncate;
  return args.sft_overlong == "drop" ? OverlongConversations::drop : OverlongConversations::error;
}

}  // namespace teratron
