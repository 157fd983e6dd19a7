// The settings of the families: Megatron-LM's command lines, defaults, --help.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/models/family.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

int64_t ranks_of(const Arguments& a) {
  return a.tensor_model_parallel_size * a.pipeline_model_parallel_size * a.context_parallel_size *
         a.expert_model_parallel_size;
}

// The program that a script of Megatron-LM is here.
Program program_of(std::string_view script) {
  for (const Family& family : families()) {
    if (script == fmt::format("pretrain_{}.py", family.name)) return training_of(family);
  }
  return {.names = {"generate", "inference"}, .models_are_saved = true};
}

void expect_accepted(const std::string& script, const Args& args) {
  const Program program = program_of(script);
  ParsedArguments parsed = parse_arguments(program, args, {.refuse_planned = false});
  validate_arguments(parsed, ranks_of(parsed.args), {.needs_data = !program.models_are_saved});
  EXPECT_GE(*parsed.args.num_micro_batches, 1);
  // The only reason to reject one of them is a setting that is not implemented yet.
  try {
    parse_arguments(program, args);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems())
      EXPECT_NE(problem.what.find("is not supported yet"), std::string::npos) << problem.what;
  }
}

TEST(FamilySettings, MegatronsCommandLinesParse) {
  int count = 0;
  for (const char* name : {"commands.jsonl", "scripts.jsonl"}) {
    std::ifstream file(std::filesystem::path(TERATRON_SOURCE_DIR) / "tests/fixtures/cli" / name);
    ASSERT_TRUE(file);
    for (std::string line; std::getline(file, line); ++count) {
      const nlohmann::json command = nlohmann::json::parse(line);
      const Args args = command.at("args");
      EXPECT_NO_THROW(expect_accepted(command.at("program"), args)) << line;
    }
  }
  EXPECT_GE(count, 30);
}

TEST(FamilySettings, HaveADefaultTokenizer) {
  const auto tokenizer = [](const char* family) {
    const Args args = {"--vocab-file", "v", "--merge-file", "m"};
    ParsedArguments parsed = parse_arguments(training_of(find_family(family)), args);
    validate_arguments(parsed, 1, {.needs_model = false, .needs_data = false});
    return *parsed.args.tokenizer_type;
  };
  EXPECT_EQ(tokenizer("gpt"), "GPT2BPETokenizer");
  EXPECT_EQ(tokenizer("bert"), "BertWordPieceLowerCase");
  EXPECT_EQ(tokenizer("t5"), "BertWordPieceLowerCase");
}

/// Nobody knows which rows a program's family reads, unless it names their families.
TEST(FamilySettings, OfAnOwnFamilyHaveAnEffect) {
  const auto notices = [](const ProgramNames& names) {
    const Family own{.name = "own", .settings = {.names = names}};
    const Args args = {"--scale-embeddings", "--lr", "1e-3", "--mask-prob", "0.2"};
    return parse_arguments(training_of(own), args).notices;
  };
  using Notices = std::vector<std::string>;
  EXPECT_EQ(notices({}), Notices());
  EXPECT_EQ(notices({"training"}), Notices());
  EXPECT_EQ(notices({"training", "gpt"}), Notices({"--mask-prob has no effect on own"}));
  EXPECT_EQ(notices({"inference"}), Notices()) << "other programs are kept beside them";
  EXPECT_EQ(notices({"training", "own"}),
            Notices({"--mask-prob has no effect on own", "--scale-embeddings has no effect on own"}));
}

TEST(FamilySettings, OfAnOwnFamilyKeepItsPrograms) {
  const auto names = [](const ProgramNames& chosen) {
    return training_of({.name = "own", .settings = {.names = chosen}}).names;
  };
  EXPECT_EQ(names({"training", "own"}), (ProgramNames{"own", "training"}));
  const ProgramNames some = names({"inference"});
  EXPECT_EQ(some[0], "own");
  for (const char* name : {"inference", "gpt", "bert", "t5", "training"})
    EXPECT_EQ(std::ranges::count(some, name), 1) << name;
}

/// A flag that a checkpoint lacks has its default, not the value of a checkpoint read before.
TEST(FamilySettings, AreReadFromEachCheckpointAnew) {
  int64_t kinds = 2, layers = 3;
  const auto field = [](std::string_view name, int64_t* value) {
    return bound_field(name, value, "of a model", {.min = 1});
  };
  const Family own{.name = "own", .fields = {field("kinds", &kinds), field("own_layers", &layers)}};
  using Names = std::vector<std::string>;
  EXPECT_EQ(read_family_settings(own, R"({"kinds":5,"own_layers":7,"hidden_size":8})", "first"),
            (Names{"kinds", "own_layers"}));
  EXPECT_EQ(read_family_settings(own, R"({"own_layers":3})", "second"), Names());
  EXPECT_EQ(kinds, 2);
  EXPECT_EQ(layers, 3);
  layers = 4;  // the user's
  EXPECT_EQ(
      read_family_settings(own, R"({"kinds":5,"own_layers":7})", "third", {{"own_layers", "--own-layers"}}),
      Names{"kinds"});
  EXPECT_EQ(kinds, 5);
  EXPECT_EQ(layers, 4);
  EXPECT_THROW(read_family_settings(own, R"({"kinds":0})", "fourth"), UserError);
}

TEST(FamilySettings, HelpListsWhatAProgramUses) {
  const auto lists = [](const ProgramNames& program, const std::string& flag) {
    return arguments_help({"usage", program}).find("  " + flag + " ") != std::string::npos;
  };
  const ProgramNames gpt = training_of(find_family("gpt")).names, t5 = training_of(find_family("t5")).names;
  const ProgramNames eval = {"eval", "inference"};
  for (const char* flag : {"--num-layers", "--lr", "--load", "--scale-embeddings"})
    EXPECT_TRUE(lists(gpt, flag)) << flag;
  for (const char* flag : {"--port", "--prompt", "--decoder-seq-length"})
    EXPECT_FALSE(lists(gpt, flag)) << flag;
  EXPECT_TRUE(lists(t5, "--decoder-seq-length"));
  EXPECT_FALSE(lists(t5, "--scale-embeddings"));
  for (const char* flag : {"--load", "--bf16", "--temperature", "--data"})
    EXPECT_TRUE(lists(eval, flag)) << flag;
  for (const char* flag : {"--num-layers", "--lr", "--embedding-layernorm", "--port", "--eod-mask-loss"})
    EXPECT_FALSE(lists(eval, flag)) << flag;
}

}  // namespace
}  // namespace teratron
