// The questions of the wizard, and the file written from the answers.
#include <sstream>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/cli/config_wizard.h"
#include "teratron/settings/arguments.h"

namespace teratron {
namespace {

WizardAnswers answers_to(const std::string& lines, std::string* asked = nullptr) {
  std::istringstream input(lines);
  std::ostringstream output;
  const WizardAnswers answers = ask(input, output, 4);
  if (asked) *asked = output.str();
  return answers;
}

TEST(Config, AsksWhatAccelerateAsks) {
  std::string asked;
  const WizardAnswers answers = answers_to("\n\n2\n\n2\n2\n\nno\n0\n4\nbf16\n", &asked);
  EXPECT_EQ(answers.tensor_parallel, 2);
  EXPECT_TRUE(answers.sequence_parallel);
  EXPECT_EQ(answers.pipeline_parallel, 2);
  EXPECT_EQ(answers.micro_batches, 2);
  EXPECT_TRUE(answers.recompute_activations);
  EXPECT_FALSE(answers.distributed_optimizer);
  EXPECT_EQ(answers.gradient_clipping, 0.0);
  EXPECT_EQ(answers.processes, 4);
  EXPECT_EQ(answers.mixed_precision, "bf16");
  size_t at = 0;
  for (const char* question :
       {"type of machine", "different machines", "Tensor Parallelism degree/size? [1]:",
        "Sequence Parallelism? [YES/no]:", "Pipeline Parallelism degree/size? [1]:",
        "number of micro-batches? [1]:", "activation recomputation? [YES/no]:", "distributed optimizer",
        "(0 to disable)? [1.0]:", "GPU(s) should be used", "mixed precision? [no/fp16/bf16/fp8]:"}) {
    const size_t found = asked.find(question, at);
    ASSERT_NE(found, std::string::npos) << question << " in " << asked;
    at = found;
  }
}

TEST(Config, SkipsQuestionsThatDoNotApplyAndRepeatsInvalidOnes) {
  std::string asked;
  const WizardAnswers answers = answers_to("multi-CPU\n-3\nmany\n2\n1\n1\n", &asked);
  EXPECT_TRUE(answers.use_cpu);
  EXPECT_EQ(answers.machines, 2);
  EXPECT_FALSE(answers.sequence_parallel);
  EXPECT_EQ(asked.find("Sequence Parallelism"), std::string::npos);
  EXPECT_EQ(asked.find("micro-batches"), std::string::npos);
  EXPECT_NE(asked.find("Not a valid answer"), std::string::npos);
}

TEST(Config, TheFileIsReadBack) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("config_test_" + random_hex(8) + ".yaml");
  WizardAnswers answers = answers_to("\n1\n2\nyes\n2\n3\nno\nyes\n0.5\n8\nfp16\n");
  write_text(path, accelerate_yaml(answers), ExitCode::config);
  const std::vector<std::string> flags = {"--config-file",    path.string(),   "--micro-batch-size", "2",
                                          "--tokenizer-type", "NullTokenizer", "--vocab-size",       "9"};
  ParsedArguments parsed = parse_arguments("pretrain gpt", flags);
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

}  // namespace
}  // namespace teratron
