#include "teratron/models/t5/t5_family.h"

#include "teratron/models/hybrid_flags.h"
#include "teratron/models/t5/data/t5_dataset.h"
#include "teratron/models/t5/data/t5_pairs.h"
#include "teratron/models/t5/t5.h"
#include "teratron/models/t5/t5_inference.h"
#include "teratron/models/t5/t5_operators.h"
#include "teratron/models/transformer/language_model_plan.h"
#include "teratron/settings/checks/validate.h"
#include "teratron/tokenizer/decoder_start.h"

namespace teratron {

namespace {

// num_layers are the encoder's, as in Megatron-LM.
void derive_towers(Validation& v) {
  Arguments& a = v.args;
  if (a.num_layers && a.encoder_num_layers && *a.num_layers != *a.encoder_num_layers) {
    v.reject("encoder_num_layers",
             fmt::format("encoder_num_layers = {} and num_layers = {} differ", *a.encoder_num_layers,
                         *a.num_layers),
             "Set only one of them");
  }
  if (!a.num_layers && a.encoder_num_layers) v.derive("num_layers", a.num_layers, a.encoder_num_layers);
  if (!a.num_layers) return;
  if (!a.encoder_num_layers) v.derive("encoder_num_layers", a.encoder_num_layers, a.num_layers);
  if (!a.decoder_num_layers) v.derive("decoder_num_layers", a.decoder_num_layers, a.num_layers);
}

// Encoders use half of the buckets for each direction, and half of these for single distances.
void check_buckets(const Arguments& args, std::vector<Problem>& problems) {
  const int64_t buckets = args.relative_attention_num_buckets;
  if (buckets < 4 || buckets % 2 != 0)
    problems.push_back({.what = fmt::format("relative_attention_num_buckets = {}: both directions need half "
                                            "of the buckets, 2 or more",
                                            buckets),
                        .where = "--relative-attention-num-buckets",
                        .fix = "Use an even number, such as 32"});
  if (args.relative_attention_max_distance <= buckets / 2)
    problems.push_back(
        {.what =
             fmt::format("relative_attention_max_distance = {} must be above {}: each direction has half of "
                         "the buckets",
                         args.relative_attention_max_distance, buckets / 2),
         .where = "--relative-attention-max-distance",
         .fix = "Use a larger one, such as 128"});
}

void check_t5(const Arguments& args, std::vector<Problem>& problems) {
  if (args.num_experts) problems.push_back(no_experts());
  refuse_hybrids(args, problems);
  const auto reject = [&problems](bool wrong, const char* what, const char* flag, const char* fix) {
    if (wrong) problems.push_back({.what = what, .where = flag, .fix = fix});
  };
  const char* const leave_out = "Leave it out";
  const std::string& position = args.position_embedding_type;
  reject(position == "rope" || position == "yarn" || position == "alibi",
         "T5's encoder and decoder share learned positions, or have relative ones",
         "--position-embedding-type", "Use learned_absolute, relative or none");
  if (position == "relative") check_buckets(args, problems);
  reject(args.context_parallel_size > 1 && args.cp_comm_type.size() > 1,
         "encoder and decoder communicate in one way, but a list for layers is given", "--cp-comm-type",
         "Give one of p2p, all_gather and a2a");
  reject(args.window_size.has_value(),
         "sliding windows are for causal attention, and T5's encoder is not causal", "--window-size",
         leave_out);
  reject(args.loss_chunks > 1, "T5's decoder is short: its logits are not chunked", "--loss-chunks",
         leave_out);
  reject(args.fp8_output_proj, "T5's output layer has a bias, which it computes in the model's dtype",
         "--fp8-output-proj", leave_out);
  reject(args.pipeline_model_parallel_size > 1 && !args.pipeline_model_parallel_split_rank &&
             !args.pipeline_model_parallel_layout,
         "the pipeline has several stages, but the decoder's first is not given",
         "--pipeline-model-parallel-split-rank",
         "Give the number of stages of the encoder, or --pipeline-model-parallel-layout");
}

ModelPlan plan_of(const Arguments& args, int64_t vocabulary) {
  ModelPlan plan =
      t5_plan(t5_config(args, vocabulary), t5_schema({.encoder_length = args.seq_length.value_or(0),
                                                      .decoder_length = args.decoder_seq_length.value_or(0),
                                                      .padding = !args.mock_data}));
  if (args.pipeline_model_parallel_split_rank) {
    plan.split = PipelineSplit{.layers = plan.towers.front().layers,
                               .stages = *args.pipeline_model_parallel_split_rank};
  }
  // Encoder and decoder could begin on one rank, which would have two embeddings of one name.
  if (pipeline_layout(args, plan).chunks > 1) {
    throw config_error({.what = "T5 has no interleaved schedule, as in Megatron-LM",
                        .where = "--num-virtual-stages-per-pipeline-rank",
                        .fix = "Use one virtual stage per rank"});
  }
  return plan;
}

OverlongPairs overlong_pairs(const std::string& choice) {
  if (choice == "truncate") return OverlongPairs::truncate;
  return choice == "drop" ? OverlongPairs::drop : OverlongPairs::error;
}

Datasets datasets_of(const DataRequest& request) {
  const Arguments& args = request.args;
  if (!args.sft) return build_t5_datasets(t5_data_options(request));
  return build_t5_pairs(data_sources(request), {.encoder_length = args.seq_length.value(),
                                                .decoder_length = args.decoder_seq_length.value(),
                                                .overlong = overlong_pairs(args.sft_overlong),
                                                .shuffle = static_cast<uint64_t>(args.seed),
                                                .tokenizer = request.tokenizer});
}

std::vector<Channel> channels_of(const T5Config& config) {
  const int64_t source = config.encoder.layers, all = source + config.decoder.layers;
  Channel encoding = hidden_channel("hidden", "encoder_index", config.encoder);
  encoding.crosses = [source](int64_t layer) { return layer < source; };
  encoding.of_source = true;
  const Channel encoded{.name = "encoder_output",
                        .shape = encoding.shape,
                        .crosses = [source, all](int64_t layer) { return layer >= source && layer < all; },
                        .of_source = true};
  Channel decoding = hidden_channel("decoder_hidden", "decoder_index", config.decoder);
  decoding.crosses = [source](int64_t layer) { return layer > source; };
  return {encoding, encoded, decoding};
}

}  // namespace

Family t5_family() {
  return {.name = "t5",
          .summary = "encoders and decoders trained to restore spans of text: T5",
          .example =
              "--num-layers 2 --hidden-size 256 --num-attention-heads 4 --decoder-seq-length 64 --mock-data",
          .settings = {.names = {"training", "t5"},
                       .tokenizer_type = "BertWordPieceLowerCase",
                       .required = {{"encoder_num_layers", "the number of transformer layers"},
                                    {"hidden_size", "the hidden size of the transformer"},
                                    {"num_attention_heads", "the number of attention heads"},
                                    {"seq_length", "the sequence length in tokens"},
                                    {"decoder_seq_length", "the sequence length of the decoder in tokens"}},
                       .derive = derive_towers},
          .check = check_t5,
          .plan = plan_of,
          .datasets = datasets_of,
          .learns_conversations = true};
}

ModelPlan t5_plan(const T5Config& config, const BatchSchema& batch) {
  return {.towers = {{"encoder", config.encoder.layers}, {"decoder", config.decoder.layers}},
          .batch = batch,
          .channels = channels_of(config),
          .vocabulary = config.vocabulary,
          .padded_vocabulary = config.padded_vocabulary,
          .max_positions = config.max_positions,
          .text = {.tokens = "decoder_tokens", .index = "decoder_index", .hidden = "decoder_hidden"},
          .source = SourceOptions{.tokens = "encoder_tokens", .index = "encoder_index"},
          .build = [config](const StageContext& part) { return std::make_unique<T5>(config, part); },
          .inference = t5_inference(config),
          .operators = t5_operators(config, batch),
          .summary = fmt::format("T5: {} + {} layers, hidden {}, {} heads, ffn {}, vocabulary {}",
                                 config.encoder.layers, config.decoder.layers, config.encoder.hidden,
                                 config.encoder.heads, config.encoder.ffn_hidden, config.vocabulary)};
}

T5DataOptions t5_data_options(const DataRequest& request) {
  const Arguments& args = request.args;
  const SpecialTokens& special = request.tokenizer.special();
  const std::optional<int32_t> begin = decoder_start(special);
  return {.sources = data_sources(request),
          .samples = {.sequence_length = args.seq_length.value(),
                      .seed = static_cast<uint32_t>(args.seed),
                      .masking_probability = args.mask_prob,
                      .max_ngram = 10,
                      .geometric_ngrams = true,
                      .continues_word = request.tokenizer.continuation_pieces(),
                      .vocab_size = request.tokenizer.vocab_size(),
                      .cls_id = special.cls.value_or(-1),
                      .sep_id = special.sep.value_or(-1),
                      .mask_id = special.mask.value_or(-1),
                      .pad_id = special.pad.value_or(-1),
                      .classification_head = false,
                      .decoder_sequence_length = args.decoder_seq_length.value(),
                      .bos_id = begin.value_or(-1),
                      .eos_id = special.eos.value_or(special.sep.value_or(-1)),
                      .sentinel_ids = {special.additional.begin(), special.additional.end()}},
          .short_sequence_probability = args.short_seq_prob,
          .tokenizer = args.tokenizer_type.value_or(""),
          .cache = index_cache(request)};
}

}  // namespace teratron
