// Settings from files: plain, with bases, Accelerate's and Megatron-LM's YAML.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/settings/arguments.h"
#include "teratron/settings/config_file.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;

class ArgumentsFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("arguments_file_test_" + random_hex(12));
    fs::create_directories(folder_);
    path_ = (folder_ / "run.yaml").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  ParsedArguments parse(const std::string& yaml, std::vector<std::string> more = {}) {
    write_text(path_, yaml, ExitCode::config);
    std::vector<std::string> args{"--config-file", path_};
    args.insert(args.end(), more.begin(), more.end());
    return parse_arguments(gpt_training, args, {.refuse_planned = refuse_planned_});
  }

  std::vector<Problem> problems_of(const std::string& yaml) {
    try {
      parse(yaml);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::config);
      return error.problems();
    }
    return {};
  }

  fs::path folder_;
  std::string path_;
  bool refuse_planned_ = true;
};

TEST_F(ArgumentsFile, FlagsOverrideAndValuesHaveSources) {
  const ParsedArguments p = parse(
      "num_layers: 4\n"
      "hidden-size: 64\n"
      "lr: 1e-4\n"
      "bf16: true\n"
      "no_position_embedding: yes\n"
      "data_path: [0.5, a, 0.5, b]\n"
      "save: ~\n",
      {"--num-layers", "8"});
  EXPECT_EQ(p.args.num_layers, 8);
  EXPECT_EQ(p.args.hidden_size, 64);
  EXPECT_EQ(p.args.lr, 1e-4);
  EXPECT_TRUE(p.args.bf16);
  EXPECT_FALSE(p.args.add_position_embedding);
  EXPECT_EQ(p.args.data_path, (std::vector<std::string>{"0.5", "a", "0.5", "b"}));
  EXPECT_FALSE(p.args.save.has_value());
  EXPECT_EQ(p.sources.at("num_layers"), "--num-layers");
  EXPECT_EQ(p.sources.at("hidden_size"), path_ + ":2:14");
  EXPECT_EQ(p.sources.count("save"), 0u);
  EXPECT_EQ(p.sources.count("seed"), 0u);
}

TEST_F(ArgumentsFile, AnUnreadableFileIsTheOnlyError) {
  const std::vector<std::string> flags = {"--num-layers", "many", "--config-file"};
  write_text(folder_ / "broken.yaml", "num_layers: [\n", ExitCode::config);
  write_text(folder_ / "based.yaml", "seq_length: 8\nbase: none.yaml\n", ExitCode::config);
  for (const std::string name : {"none.yaml", "broken.yaml", "based.yaml", ""}) {
    std::vector<std::string> args = flags;
    args.push_back((folder_ / name).string());
    for (const bool defer : {false, true}) {
      try {
        parse_arguments(gpt_training, args, {.defer_problems = defer});
        FAIL() << name;
      } catch (const UserError& error) {
        EXPECT_EQ(error.problems().size(), 1u) << error.what();
        EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos) << error.what();
      }
    }
  }
}

TEST_F(ArgumentsFile, BaseIsOverriddenAndNullResets) {
  write_text(folder_ / "common.yaml", "num_layers: 2\nhidden_size: 32\nseed: 7\nload: somewhere\n",
             ExitCode::config);
  const ParsedArguments p = parse("base: common.yaml\nnum_layers: 3\nseed:\nload: null\n");
  EXPECT_EQ(p.args.num_layers, 3);
  EXPECT_EQ(p.args.hidden_size, 32);
  EXPECT_EQ(p.args.seed, 1234);
  EXPECT_FALSE(p.args.load.has_value());
  EXPECT_EQ(p.sources.at("hidden_size"), (folder_ / "common.yaml").string() + ":2:14");
}

TEST_F(ArgumentsFile, ReportsAllProblemsWithPositions) {
  const std::vector<Problem> problems = problems_of(
      "num_layer: 4\n"
      "hidden_size: big\n"
      "seed: 1\n"
      "seed: 2\n"
      "tensor_model_parallel_size: 0\n"
      "normalization: BatchNorm\n"
      "retro_add_retriever: true\n"
      "mystery_section:\n"
      "  a: 1\n"
      "  b: 2\n");
  ASSERT_EQ(problems.size(), 7u);
  const std::string expected[][2] = {
      {":4:1", "'seed' appears twice"},         {":1:1", "unknown key 'num_layer'"},
      {":2:14", "hidden_size = 'big'"},         {":5:29", "tensor_model_parallel_size = 0 is out of range"},
      {":6:16", "normalization = 'BatchNorm'"}, {":7:1", "--retro-add-retriever is not supported"},
      {":9:6", "section 'mystery_section'"}};
  for (size_t i = 0; i < problems.size(); ++i) {
    EXPECT_EQ(problems[i].where, path_ + expected[i][0]);
    EXPECT_NE(problems[i].what.find(expected[i][1]), std::string::npos) << problems[i].what;
  }
  EXPECT_EQ(problems[1].fix, "Did you mean num_layers?");
}

TEST_F(ArgumentsFile, NoOpKeysGiveNotices) {
  const ParsedArguments p =
      parse("masked_softmax_fusion: true\nno_bias_dropout_fusion: true\nuse_flash_attn: false\n");
  EXPECT_EQ(p.notices.size(), 2u);
}

TEST_F(ArgumentsFile, AccelerateConfigOfTheWizard) {
  const ParsedArguments p = parse(
      "compute_environment: LOCAL_MACHINE\n"
      "deepspeed_config: {}\n"
      "distributed_type: MEGATRON_LM\n"
      "downcast_bf16: 'no'\n"
      "fsdp_config: {}\n"
      "machine_rank: 0\n"
      "main_process_ip: null\n"
      "main_process_port: null\n"
      "main_training_function: main\n"
      "megatron_lm_config:\n"
      "  megatron_lm_gradient_clipping: 1.5\n"
      "  megatron_lm_num_micro_batches: 2\n"
      "  megatron_lm_pp_degree: 2\n"
      "  megatron_lm_recompute_activations: false\n"
      "  megatron_lm_sequence_parallelism: true\n"
      "  megatron_lm_tp_degree: 2\n"
      "  megatron_lm_use_distributed_optimizer: true\n"
      "mixed_precision: bf16\n"
      "num_machines: 1\n"
      "num_processes: 4\n"
      "rdzv_backend: static\n"
      "same_network: true\n"
      "use_cpu: false\n",
      {"--micro-batch-size", "3", "--num-layers", "4", "--hidden-size", "8", "--num-attention-heads", "2",
       "--seq-length", "8", "--train-iters", "1", "--lr", "1", "--mock-data", "--tokenizer-type",
       "NullTokenizer", "--vocab-size", "9"});
  EXPECT_EQ(p.args.tensor_model_parallel_size, 2);
  EXPECT_EQ(p.args.pipeline_model_parallel_size, 2);
  EXPECT_EQ(p.args.clip_grad, 1.5);
  EXPECT_TRUE(p.args.sequence_parallel);
  EXPECT_TRUE(p.args.use_distributed_optimizer);
  EXPECT_TRUE(p.args.bf16);
  EXPECT_EQ(p.args.device, "auto");
  ASSERT_EQ(p.notices.size(), 1u);
  EXPECT_EQ(p.notices[0],
            "only `teratron launch --config-file` uses: machine_rank, num_machines, num_processes");
  // Global batch = per-device batch x data-parallel size x micro-batches.
  ParsedArguments validated = p;
  validate_arguments(validated, 8);
  EXPECT_EQ(validated.args.data_parallel_size, 2);
  EXPECT_EQ(validated.args.global_batch_size, 3 * 2 * 2);
}

const std::vector<std::string> plugin_lines = {"tp_degree: 1",
                                               "pp_degree: 1",
                                               "use_custom_fsdp: false",
                                               "overlap_cpu_optimizer_d2h_h2d: false",
                                               "no_load_optim: true",
                                               "eod_mask_loss: true",
                                               "no_save_optim: true",
                                               "optimizer_cpu_offload: false",
                                               "use_precision_aware_optimizer: false",
                                               "decoder_last_pipeline_num_layers: ~",
                                               "recompute_granularity: full",
                                               "recompute_method: uniform",
                                               "recompute_num_layers: 1",
                                               "attention_backend: true",
                                               "expert_model_parallel_size: 1",
                                               "context_parallel_size: 1",
                                               "attention_dropout: 0.0",
                                               "hidden_dropout: 0.0",
                                               "attention_softmax_in_fp32: true",
                                               "expert_tensor_parallel_size: 1",
                                               "calculate_per_token_loss: false",
                                               "use_rotary_position_embeddings: false",
                                               "num_micro_batches: 2",
                                               "gradient_clipping: 0",
                                               "sequence_parallelism: false",
                                               "recompute_activations: false",
                                               "use_distributed_optimizer: true",
                                               "pipeline_model_parallel_split_rank: null",
                                               "num_layers_per_virtual_pipeline_stage: null",
                                               "is_train_batch_min: 'True'",
                                               "train_iters: 10",
                                               "train_samples: null",
                                               "weight_decay_incr_style: constant",
                                               "start_weight_decay: null",
                                               "end_weight_decay: null",
                                               "lr_decay_style: cosine",
                                               "lr_decay_iters: 5",
                                               "lr_decay_samples: null",
                                               "lr_warmup_iters: 1",
                                               "lr_warmup_samples: 0",
                                               "lr_warmup_fraction: null",
                                               "min_lr: 0",
                                               "consumed_samples: null",
                                               "no_wd_decay_cond: null",
                                               "scale_lr_cond: null",
                                               "lr_mult: 1.0",
                                               "megatron_dataset_flag: false",
                                               "seq_length: 64",
                                               "encoder_seq_length: 64",
                                               "decoder_seq_length: null",
                                               "tensorboard_dir: tb",
                                               "set_all_logging_options: false",
                                               "eval_iters: 3",
                                               "eval_interval: 4",
                                               "return_logits: false",
                                               "custom_train_step_class: null",
                                               "custom_train_step_kwargs: null",
                                               "custom_model_provider_function: null",
                                               "custom_prepare_model_function: null",
                                               "custom_megatron_datasets_provider_function: null",
                                               "custom_get_batch_function: null",
                                               "custom_loss_function: null"};

TEST_F(ArgumentsFile, KnowsAllFieldsOfTheAcceleratePlugin) {
  refuse_planned_ = false;
  std::string yaml = "megatron_lm_config:\n";
  for (const std::string& line : plugin_lines) {
    yaml += "  megatron_lm_" + line + "\n";
  }
  yaml +=
      "  megatron_lm_other_megatron_args:\n    position_embedding_type: alibi\n    attention_head_type: "
      "multiquery\n"
      "    vocab_file: v.json\n";
  const ParsedArguments p = parse(yaml);
  EXPECT_TRUE(p.args.no_load_optim);
  // attention_backend, attention_softmax_in_fp32, is_train_batch_min and megatron_dataset_flag.
  EXPECT_EQ(p.notices.size(), 4u);
  EXPECT_EQ(p.args.clip_grad, 0.0);
  EXPECT_EQ(p.args.num_micro_batches, 2);
  EXPECT_EQ(p.args.lr_decay_style, "cosine");
  EXPECT_EQ(p.args.position_embedding_type, "alibi");
  EXPECT_EQ(p.args.attention_head_type, "multiquery");
  EXPECT_EQ(p.args.vocab_file, "v.json");
}

struct BadKey {
  const char* yaml;
  const char* what;
};

class BadAccelerateTest : public ArgumentsFile, public testing::WithParamInterface<BadKey> {};

TEST_P(BadAccelerateTest, IsOneProblem) {
  const std::vector<Problem> problems = problems_of(GetParam().yaml);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].what.find(GetParam().what), std::string::npos) << problems[0].what;
  EXPECT_TRUE(problems[0].where.starts_with(path_ + ":")) << problems[0].where;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadAccelerateTest,
    testing::Values(
        BadKey{"distributed_type: DEEPSPEED\n", "distributed_type = 'DEEPSPEED' is not supported"},
        BadKey{"deepspeed_config:\n  zero_stage: 3\n  x: 1\n", "section 'deepspeed_config' is not supported"},
        BadKey{"mixed_precision: int4\n", "mixed_precision = 'int4'"},
        BadKey{"mixed_precision: [a, b]\n", "mixed_precision = "},
        BadKey{"use_cpu: [true, false]\n", "use_cpu takes one value"},
        BadKey{"use_cpu: perhaps\n", "use_cpu = 'perhaps'"},
        BadKey{"megatron_lm_config:\n  megatron_lm_tp_degre: 2\n", "unknown key"},
        BadKey{"megatron_lm_config:\n  megatron_lm_tp_degree: two\n", "tensor_model_parallel_size = 'two'"},
        BadKey{"megatron_lm_config:\n  custom_loss_function: f\n", "Accelerate's Python programs"},
        BadKey{"megatron_lm_config:\n  megatron_lm_use_custom_fsdp: true\n", "parameters are not sharded"},
        BadKey{"megatron_lm_config:\n  optimizer_cpu_offload: true\n",
               "optimizer_cpu_offload is not supported"},
        BadKey{"megatron_lm_config:\n  overlap_cpu_optimizer_d2h_h2d: true\n", "never copied to the host"},
        BadKey{"megatron_lm_config:\n  use_precision_aware_optimizer: true\n", "is in fp32"},
        BadKey{"megatron_lm_config:\n  consumed_samples: [8, 0, 0]\n", "has them from its checkpoint"},
        BadKey{"megatron_lm_config:\n  megatron_lm_lr_warmup:\n    iters: 2\n    more: 3\n",
               "'megatron_lm_lr_warmup' of megatron_lm_config holds keys"},
        BadKey{"megatron_lm_config:\n  custom_train_step_kwargs:\n    alpha: 0.25\n",
               "custom_train_step_kwargs is for Accelerate's Python programs"},
        BadKey{"megatron_lm_config:\n  tp_degree: 2\n  tp-degree: 3\n", "appears twice"},
        BadKey{"language_model:\n  activation_func: sine\n", "activation_func = 'sine'"}));

TEST_F(ArgumentsFile, MegatronsYaml) {
  const ParsedArguments p = parse(
      "language_model:\n"
      "  num_layers: 24\n"
      "  hidden_size: 1024\n"
      "  activation_func: swiglu\n"
      "  add_bias_linear: False\n"
      "  layernorm_epsilon: 1.e-5\n"
      "  masked_softmax_fusion: True\n"
      "model_parallel:\n"
      "  tensor_model_parallel_size: 4\n"
      "micro_batch_size: 2\n");
  EXPECT_EQ(p.args.num_layers, 24);
  EXPECT_TRUE(p.args.swiglu);
  EXPECT_FALSE(p.args.add_bias_linear);
  EXPECT_EQ(p.args.tensor_model_parallel_size, 4);
  EXPECT_EQ(p.args.micro_batch_size, 2);
}

TEST_F(ArgumentsFile, SpellingsOfOneFieldMustAgree) {
  const std::vector<Problem> problems = problems_of("tp: 2\nseed: 1\ntensor_model_parallel_size: 4\n");
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].where, path_ + ":3:29");
  EXPECT_EQ(problems[0].what, "tensor_model_parallel_size is set twice; first at " + path_ + ":1:5");
  EXPECT_TRUE(problems_of("tp: 2\ntensor_model_parallel_size: 2\n").empty());
}

TEST(AccelerateEnvironment, IsReadIfEnabled) {
  std::map<std::string, std::string> variables{{"MEGATRON_LM_TP_DEGREE", "2"},
                                               {"MEGATRON_LM_SEQUENCE_PARALLELISM", "true"},
                                               {"MEGATRON_LM_GRADIENT_CLIPPING", "0.5"},
                                               {"MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "false"},
                                               {"MEGATRON_LM_PP_DEGREE", "many"}};
  const auto get = [&](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
  ParseResult unused;
  read_accelerate_environment(get, unused);
  EXPECT_TRUE(unused.assignments.empty());
  variables["ACCELERATE_USE_MEGATRON_LM"] = "true";
  ParseResult settings;
  read_accelerate_environment(get, settings);
  Arguments args;
  const Sources sources = apply(settings, &args);
  EXPECT_EQ(args.tensor_model_parallel_size, 2);
  EXPECT_TRUE(args.sequence_parallel);
  EXPECT_EQ(args.clip_grad, 0.5);
  EXPECT_EQ(sources.at("clip_grad"), "MEGATRON_LM_GRADIENT_CLIPPING");
  ASSERT_EQ(settings.problems.size(), 1u);
  EXPECT_EQ(settings.problems[0].where, "MEGATRON_LM_PP_DEGREE");
}

TEST_F(ArgumentsFile, MissingFileNamesTheFlag) {
  try {
    parse_arguments(gpt_training, std::vector<std::string>{"--yaml-cfg", (folder_ / "none.yaml").string()});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.problems().at(0).where, "--yaml-cfg");
    EXPECT_NE(error.problems().at(0).what.find("none.yaml"), std::string::npos);
  }
}

}  // namespace
}  // namespace teratron
