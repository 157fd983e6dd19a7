// The questions of the wizard, and the file written from the answers.
#include <sstream>

#include <gtest/gtest.h>

#include "teratron/base/config/yaml.h"
#include "teratron/base/file.h"
#include "teratron/cli/config/config_layout.h"
#include "teratron/cli/config/config_update.h"
#include "teratron/cli/config/config_wizard.h"
#include "teratron/settings/arguments.h"

namespace teratron {
namespace {

WizardAnswers answers_to(const std::string& lines, std::string* asked = nullptr) {
  std::istringstream input(lines);
  std::ostringstream output;
  const WizardTerminal terminal{input, output};
  const WizardAnswers answers = ask(terminal, {.gpus = 4});
  if (asked) *asked = output.str();
  return answers;
}

std::string refusal_of(const std::string& lines) {
  try {
    answers_to(lines);
  } catch (const UserError& error) {
    return to_string(error.problems().front());
  }
  return "";
}

constexpr const char* accelerate_answers = "0\n2\n\n\n\nyes\n2\n\n2\n2\n\n\n\n4\nbf16\n";

TEST(Config, AnswersOfAcceleratesPageGiveItsFile) {
  std::string asked;
  EXPECT_EQ(accelerate_yaml(answers_to(accelerate_answers, &asked)), R"(compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
fsdp_config: {}
machine_rank: 0
main_process_ip: null
main_process_port: null
main_training_function: main
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
use_cpu: false
)");
  size_t at = 0;
  for (const char* question :
       {"In which compute environment are you running? ([0] This machine, [1] AWS (Amazon SageMaker)):",
        "Which type of machine are you using? ([0] No distributed training, [1] multi-CPU, [2] multi-GPU, "
        "[3] TPU):",
        "How many different machines will you use (use more than 1 for multi-node training)? [1]:",
        "Do you want to use DeepSpeed? [yes/NO]:", "Do you want to use FullyShardedDataParallel? [yes/NO]:",
        "Do you want to use Megatron-LM ? [yes/NO]:", "What is the Tensor Parallelism degree/size? [1]:",
        "Do you want to enable Sequence Parallelism? [YES/no]:",
        "What is the Pipeline Parallelism degree/size? [1]:", "What is the number of micro-batches? [1]:",
        "Do you want to enable selective activation recomputation? [YES/no]:",
        "Do you want to use distributed optimizer which shards optimizer state and gradients across data "
        "parallel ranks? [YES/no]:",
        "What is the gradient clipping value based on global L2 Norm (0 to disable)? [1.0]:",
        "How many GPU(s) should be used for distributed training? [4]:",
        "Do you wish to use FP16 or BF16 (mixed precision)? [NO/fp16/bf16"}) {
    const size_t found = asked.find(question, at);
    ASSERT_NE(found, std::string::npos) << question << " in " << asked;
    at = found;
  }
}

TEST(Config, TakesWordsAndNumbersAlike) {
  const std::string by_number = accelerate_yaml(answers_to("0\n1\n1\n1\n2\n0\n1\n1\n0\n0.5\n6\n3\n"));
  EXPECT_EQ(by_number,
            accelerate_yaml(answers_to("This machine\nmulti-CPU\n\nYES\n2\nno\n1\ny\nno\n0.5\n6\nFP8\n")));
  EXPECT_NE(by_number.find("use_cpu: true"), std::string::npos);
  EXPECT_EQ(by_number.find("num_micro_batches"), std::string::npos);  // not asked without a pipeline
}

TEST(Config, ExplainsInvalidAnswersAndAsksAgain) {
  std::string asked;
  const WizardAnswers answers = answers_to(
      "9\n0\nGPU\n2\n-3\nmany\n2\n2\n1\n\nhost 0\nhost0\n0\n1234\nno\nno\nyes\n2\n\n2\n2\n\n\nnan\n-1\n0\n"
      "6\n8\nbf17\nbf16\n",
      &asked);
  EXPECT_EQ(answers.machines, 2);
  EXPECT_EQ(answers.machine_rank, 1);
  EXPECT_EQ(answers.address, "host0");
  EXPECT_EQ(answers.port, 1234);
  EXPECT_EQ(answers.gradient_clipping, 0.0);
  EXPECT_EQ(answers.processes, 8);
  for (const char* reason :
       {"'9' is none of 0 (This machine)", "'GPU' is none of", "'-3' is not a number from 1",
        "'many' is not a number", "'2' is not a number from 0 to 1", "has no default",
        "'host 0' is neither an address", "'0' is not a number from 1 to 65535", "'nan' is not a number",
        "6 is not a multiple of 4 = 2 (tensor) x 2 (pipeline parallelism)", "'bf17' is none of 0 (no)"}) {
    EXPECT_NE(asked.find(reason), std::string::npos) << reason << " in " << asked;
  }
}

TEST(Config, EndsWithoutAnswersInsteadOfGuessing) {
  const std::string all = accelerate_answers;
  for (size_t end = 0; end + 1 < all.size(); ++end) {
    if (end > 0 && all[end - 1] != '\n') continue;  // whole answers only
    EXPECT_NE(refusal_of(all.substr(0, end)).find("the answers end here"), std::string::npos) << end;
  }
}

TEST(Config, RefusesWhatItDoesNotHave) {
  EXPECT_NE(refusal_of("0\n2\n\nyes\n").find("DeepSpeed is another engine"), std::string::npos);
  EXPECT_NE(refusal_of("0\n2\n\nno\nyes\n").find("not by FSDP"), std::string::npos);
  EXPECT_NE(refusal_of("0\nTPU\n").find("not for TPUs"), std::string::npos);
  EXPECT_NE(refusal_of("1\n").find("SageMaker"), std::string::npos);
}

TEST(Config, TheFileIsReadBack) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("config_test_" + random_hex(8) + ".yaml");
  WizardAnswers answers = answers_to("\n\n1\n\n\nyes\n2\nyes\n2\n3\nno\nyes\n0.5\n8\nfp16\n");
  write_text(path, accelerate_yaml(answers), ExitCode::config);
  const std::vector<std::string> flags = {"--config-file",    path.string(),   "--micro-batch-size", "2",
                                          "--tokenizer-type", "NullTokenizer", "--vocab-size",       "9"};
  ParsedArguments parsed = parse_arguments(training_of(find_family("gpt")), flags);
  std::filesystem::remove(path);
  validate_arguments(parsed, answers.processes, {.needs_model = false, .needs_data = false});
  EXPECT_EQ(parsed.args.tensor_model_parallel_size, 2);
  EXPECT_EQ(parsed.args.pipeline_model_parallel_size, 2);
  EXPECT_TRUE(parsed.args.sequence_parallel);
  EXPECT_TRUE(parsed.args.use_distributed_optimizer);
  EXPECT_EQ(parsed.args.clip_grad, 0.5);
  EXPECT_TRUE(parsed.args.fp16);
  EXPECT_EQ(parsed.args.global_batch_size, 2 * 2 * 3);
}

TEST(Config, UpdatingAddsWhatIsMissingAndKeepsTheRest) {
  const std::string old =
      "# mine\nmegatron-lm-config: {megatron_lm_tp_degree: 2}\nfp16: true\nnum_machines: 3";
  const UpdatedConfig updated = update_config(old, "old.yaml");
  EXPECT_TRUE(updated.text.starts_with(old + "\n"));
  EXPECT_NE(updated.text.find("\ndistributed_type: MEGATRON_LM\n"), std::string::npos);
  EXPECT_NE(updated.text.find("\nuse_cpu: false\n"), std::string::npos);
  for (const char* key : {"mixed_precision:", "num_machines: 1", "megatron_lm_config", "num_processes"}) {
    EXPECT_EQ(updated.text.find(key), std::string::npos) << key;
  }
  EXPECT_TRUE(update_config(updated.text, "new.yaml").added.empty());
  EXPECT_THROW(update_config("a: [", "bad.yaml"), UserError);
  EXPECT_THROW(update_config("num_machines: 1\n...\n", "ended.yaml"), UserError);
}

TEST(Config, ProposesTheSmallestLayoutThatFits) {
  const auto layout = [](const char* model, int64_t gpus, double gib) {
    return propose_layout({find_family("gpt"), {"--model-preset", model}, gpus, gib});
  };
  const ProposedLayout small = layout("gpt2", 8, 80);
  EXPECT_TRUE(small.fits);
  EXPECT_EQ(small.tensor_parallel * small.pipeline_parallel, 1);
  const ProposedLayout large = layout("llama3-8b", 8, 80);
  EXPECT_TRUE(large.fits);
  EXPECT_LE(large.needed_gib, 80);
  EXPECT_GT(large.tensor_parallel * large.pipeline_parallel, 1);
  EXPECT_FALSE(layout("llama3-70b", 8, 80).fits);
  EXPECT_THROW(layout("llama9", 8, 80), UserError);
}

}  // namespace
}  // namespace teratron
