// Flags of other programs.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/strings.h"
#include "teratron/settings/arguments.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

std::vector<Problem> problems_with(const std::vector<std::string>& flags) {
  try {
    parse_arguments(gpt_training, flags);
  } catch (const UserError& error) {
    return error.problems();
  }
  return {};
}

TEST(ForeignFlags, AreAnswered) {
  for (const auto& [typed, answer] : std::vector<std::pair<std::string, std::string>>{
           {"--learning-rate", "Teratron's is --lr"},
           {"--learning_rate", "Teratron's is --lr"},
           {"--max-steps", "Teratron's is --train-iters"},
           {"--epochs", "Teratron's is --num-train-epochs"},
           {"--n-layer", "Teratron's is --num-layers"},
           {"--dataset", "Teratron's is --data-path, with what `teratron preprocess` wrote, or JSON lines"},
           {"--model-name-or-path", "Teratron's is --hf"},
           {"--flash-attn", "Leave it out: attention is always fused"},
           {"--seed-everything", "Teratron's is --seed"},
           {"--no-sequence-parallel", "Leave it out: there is none without --sequence-parallel"},
           {"--base_model", "Teratron's is --hf"},
           {"--lora_r", "Teratron's is --lora-rank"},
           {"--zero-stage", "Use --use-distributed-optimizer"},
           {"--gradient-accumulation-steps", "Teratron's is --num-micro-batches"},
           {"--resume-from-checkpoint", "Teratron's is --load"},
           {"--max-length", "Teratron's is --out-seq-length"}}) {
    const std::vector<Problem> problems = problems_with({typed, "2"});
    ASSERT_EQ(problems.size(), 1u) << typed;
    EXPECT_EQ(problems[0].what, "unknown flag " + typed);
    EXPECT_TRUE(problems[0].fix.starts_with(answer)) << problems[0].fix;
  }
  EXPECT_NE(problems_with({"--batch-size", "4"}).at(0).fix.find("--micro-batch-size and --global-batch-size"),
            std::string::npos);
}

TEST(ForeignFlags, AnswersNameOurFlags) {
  for (const ForeignFlag& foreign : arguments_schema().foreign_flags()) {
    EXPECT_EQ(arguments_schema().find(foreign.name), nullptr) << foreign.name << " is a flag here";
    EXPECT_EQ(foreign.name, canonical_name(foreign.name));
    if (!foreign.answer.starts_with("--")) continue;
    const std::string flag = split(std::string(foreign.answer))[0];
    const Schema::Target* ours = arguments_schema().find(flag.substr(0, flag.find_first_of(",;")));
    ASSERT_TRUE(ours && ours->field) << foreign.answer;
    EXPECT_EQ(ours->field->status, FieldStatus::active) << foreign.answer;
  }
}

}  // namespace
}  // namespace teratron
