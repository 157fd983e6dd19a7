#include "teratron/models/bert/bert_family.h"

#include "teratron/models/bert/bert.h"
#include "teratron/models/bert/bert_classifier.h"
#include "teratron/models/bert/bert_inference.h"
#include "teratron/models/bert/bert_operators.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/models/bert/data/bert_texts.h"
#include "teratron/models/hybrid_flags.h"
#include "teratron/models/transformer/language_model_plan.h"

namespace teratron {

namespace {

void check_bert(const Arguments& args, std::vector<Problem>& problems) {
  if (args.num_experts) problems.push_back(no_experts());
  refuse_hybrids(args, problems);
  const auto reject = [&problems](bool wrong, const char* what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = what, .where = flag, .fix = fix});
  };
  const char* const leave_out = "Leave it out";
  reject(args.position_embedding_type == "alibi", "ALiBi is for causal attention, and BERT's is not causal",
         "--position-embedding-type", "Use learned_absolute, rope or none");
  reject(args.position_embedding_type == "relative", "only T5 has relative positions",
         "--position-embedding-type", "Use learned_absolute, rope or none");
  reject(args.window_size.has_value(), "sliding windows are for causal attention, and BERT's is not causal",
         "--window-size", leave_out);
  reject(args.calculate_per_token_loss, "BERT's losses are means of each micro-batch",
         "--calculate-per-token-loss", leave_out);
  reject(args.loss_chunks > 1, "BERT's logits are those of the masked tokens alone, which are not chunked",
         "--loss-chunks", leave_out);
  reject(args.fp8_output_proj, "BERT's output layer has a bias, which it computes in the model's dtype",
         "--fp8-output-proj", leave_out);
  const std::optional<int64_t> length = args.seq_length ? args.seq_length : args.encoder_seq_length;
  if (length && *length < bert_special_tokens + 2)
    problems.push_back({.what = fmt::format("{} tokens have no room for [CLS] A [SEP] B [SEP]", *length),
                        .where = "--seq-length",
                        .fix = "Use 5 or more"});
}

ModelPlan plan_of(const Arguments& args, int64_t vocabulary) {
  const int64_t length = args.seq_length.value_or(0);
  return bert_plan(bert_config(args, vocabulary),
                   bert_schema({.sequence_length = length,
                                .predictions = most_predictions(length, args.mask_prob),
                                .sentence_pairs = args.bert_binary_head,
                                .padding = !args.mock_data}));
}

ModelPlan plan_on_texts(const Arguments& args, int64_t vocabulary) {
  const int64_t length = args.seq_length.value_or(0);
  BertConfig config = bert_config(args, vocabulary);
  config.learns_pairs = false;
  return bert_plan(config, bert_schema({.sequence_length = length,
                                        .predictions = most_predictions(length, args.mask_prob),
                                        .sentence_pairs = false}));
}

Datasets datasets_on_texts(const DataRequest& request) {
  const BertDataOptions options = bert_data_options(request);
  check_bert_data(options);
  return build_bert_texts(options.sources, request.tokenizer,
                          {.masking = options.samples, .shuffle = options.samples.seed});
}

}  // namespace

Family bert_family_on_texts() {
  Family family = bert_family();
  family.plan = plan_on_texts;
  family.datasets = datasets_on_texts;
  family.finetunes.starts_anew = {"lm_head.", "output_layer.", "pooler.", "binary_head."};
  return family;
}

Family bert_family() {
  return {
      .name = "bert",
      .summary = "encoders trained on masked tokens and sentence pairs: BERT, Megatron-BERT",
      .example = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --mock-data",
      .settings = {.names = {"training", "bert"}, .tokenizer_type = "BertWordPieceLowerCase"},
      .check = check_bert,
      .plan = plan_of,
      .datasets = [](const DataRequest& request) { return build_bert_datasets(bert_data_options(request)); },
      .generates = false,
      .classifier = bert_classifier_family,
      .on_texts = bert_family_on_texts};
}

ModelPlan bert_plan(const BertConfig& config, const BatchSchema& batch) {
  ModelPlan plan = language_model_plan(config, "encoder", batch);
  plan.packs_rows = true;
  if (config.binary_head && config.learns_pairs) plan.losses = {"lm loss", "sop loss"};
  plan.build = [config](const StageContext& part) { return std::make_unique<Bert>(config, part); };
  plan.inference = bert_inference(config);
  plan.operators = bert_operators(config, batch);
  plan.summary = fmt::format("BERT: {} layers, hidden {}, {} heads, ffn {}, vocabulary {}", config.layers,
                             config.hidden, config.heads, config.ffn_hidden, config.vocabulary);
  return plan;
}

BertDataOptions bert_data_options(const DataRequest& request) {
  const Arguments& args = request.args;
  const SpecialTokens& special = request.tokenizer.special();
  return {.sources = data_sources(request),
          .samples = {.sequence_length = args.seq_length.value(),
                      .seed = static_cast<uint32_t>(args.seed),
                      .masking_probability = args.mask_prob,
                      .continues_word = request.tokenizer.continuation_pieces(),
                      .vocab_size = request.tokenizer.vocab_size(),
                      .cls_id = special.cls.value_or(-1),
                      .sep_id = special.sep.value_or(-1),
                      .mask_id = special.mask.value_or(-1),
                      .pad_id = special.pad.value_or(-1),
                      .classification_head = args.bert_binary_head},
          .short_sequence_probability = args.short_seq_prob,
          .tokenizer = args.tokenizer_type.value_or(""),
          .cache = index_cache(request)};
}

}  // namespace teratron
