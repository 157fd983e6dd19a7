// Defaults of a program built on the library (ArgsDefault).
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/settings/arguments.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

TEST(ProgramDefaults, ComeBeforeTheTables) {
  const std::vector<ArgsDefault> defaults = {{"seq_length", "64"},  {"lr", "2e-5"},
                                             {"seq-length", "128"}, {"data_path", "0.3 a 0.7 b"},
                                             {"mask_prob", "0.2"},  {"bias_gelu_fusion", "false"}};
  const Args flags = {"--lr", "1e-3"};
  ParsedArguments parsed = parse_arguments(gpt_training, flags, {.defaults = defaults});
  EXPECT_EQ(parsed.args.seq_length, 128);
  EXPECT_EQ(parsed.args.lr, 1e-3);
  EXPECT_EQ(parsed.args.data_path, (Args{"0.3", "a", "0.7", "b"}));
  EXPECT_FALSE(parsed.args.bias_gelu_fusion);
  EXPECT_TRUE(parsed.notices.empty()) << "mask_prob has no effect on gpt, but the user did not set it";
  const std::string text = explain(parsed);
  EXPECT_NE(text.find("seq_length = 128  (default of the program)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("lr = 0.001  (--lr)\n"), std::string::npos) << text;
  const std::string help = arguments_help({"program", {"gpt", "training"}}, {}, defaults);
  EXPECT_NE(help.find(" [128]"), std::string::npos);
}

TEST(ProgramDefaults, ComeBeforeDerivedValuesAndAreNamedInErrors) {
  const std::vector<ArgsDefault> defaults = {
      {"tokenizer_type", "NullTokenizer"}, {"hidden_size", "60"}, {"train_iters", "7"}};
  const Args flags = {"--mock-data", "--num-layers", "1", "--num-attention-heads", "8"};
  ParsedArguments parsed = parse_arguments(gpt_training, flags, {.defaults = defaults});
  try {
    validate_arguments(parsed, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("--hidden-size (default of the program)"), std::string::npos)
        << error.what();
  }
  const Args valid = {"--mock-data", "--num-layers", "1", "--num-attention-heads", "4", "--vocab-size", "9"};
  parsed = parse_arguments(gpt_training, valid, {.defaults = defaults});
  validate_arguments(parsed, 1);
  EXPECT_EQ(parsed.args.train_iters, 7) << "not that of --mock-data";
  EXPECT_EQ(parsed.args.tokenizer_type, "NullTokenizer");
}

TEST(ProgramDefaults, AreChecked) {
  const std::vector<ArgsDefault> wrong = {{"seq_lenght", "64"}, {"micro_batch_size", "0"}};
  for (const bool help : {false, true}) {
    try {
      if (help) arguments_help({"program", {"gpt", "training"}}, {}, wrong);
      parse_arguments(gpt_training, Args{}, {.defaults = wrong});
      FAIL();
    } catch (const UserError& error) {
      ASSERT_EQ(error.problems().size(), 2U);
      EXPECT_EQ(error.problems()[0].fix, "Did you mean seq_length?");
      EXPECT_EQ(error.problems()[0].where, "default of the program");
    }
  }
}

}  // namespace
}  // namespace teratron
