#include "teratron/settings/arguments.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/file.h"
#include "teratron/base/strings.h"
#include "teratron/settings/secret_flags.h"
#include "teratron/testing/validation.h"

namespace teratron {
namespace {

ParsedArguments parse(const Args& args) {
  return parse_arguments(gpt_training, args);
}

std::vector<Problem> problems_of(const Args& args) {
  try {
    parse(args);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.problems();
  }
  return {};
}

std::string read_fixture(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(TERATRON_SOURCE_DIR) / name;
  return read_text(path, {.kind = ExitCode::config});
}

TEST(Arguments, NoFlagsGiveMegatronsDefaults) {
  const Arguments a = parse({}).args;
  EXPECT_EQ(a.tensor_model_parallel_size, 1);
  EXPECT_EQ(a.norm_epsilon, 1e-5);
  EXPECT_EQ(a.hidden_dropout, 0.1);
  EXPECT_EQ(a.seed, 1234);
  EXPECT_EQ(a.initial_loss_scale, 4294967296.0);
  EXPECT_EQ(a.position_embedding_type, "learned_absolute");
  EXPECT_EQ(a.make_vocab_size_divisible_by, 128);
  EXPECT_EQ(a.lr_decay_style, "linear");
  EXPECT_TRUE(a.add_bias_linear);
  EXPECT_FALSE(a.num_layers.has_value());
  EXPECT_FALSE(a.eval_interval.has_value());
}

// What `ps` must not show is hidden before the table exists.
TEST(Arguments, TheFlagsOfSecretsAreKnownEarly) {
  std::set<std::string> found;
  for (const Field& field : arguments_schema().fields()) {
    if (!field.traits.secret) continue;
    const std::string name(field.name);
    found.insert("--" + name);
    found.insert("--" + std::regex_replace(name, std::regex("_"), "-"));
  }
  EXPECT_EQ(found, std::set<std::string>(secret_flags.begin(), secret_flags.end()));
}

TEST(Arguments, SecretsAreHiddenInTheWordsOfTheProgram) {
  std::vector<std::string> words = {"teratron",      "serve",  "--api-key", "one",
                                    "--api_key=two", "--port", "5",         "--api-key="};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  hide_secrets(argv.data());
  EXPECT_EQ(words[3], "***");
  EXPECT_EQ(words[4], "--api_key=***");
  EXPECT_EQ(take_arguments(8, argv.data()),
            (Args{"serve", "--api-key", "one", "--api_key=two", "--port", "5", "--api-key="}));
  for (size_t i = 0; i < words.size(); ++i)
    if (argv[i] != words[i].data()) std::free(argv[i]);
}

struct Spelling {
  Args args;
  const char* field;
  const char* value;
};

class SpellingTest : public testing::TestWithParam<Spelling> {};

TEST_P(SpellingTest, SetsTheField) {
  const ParsedArguments parsed = parse_arguments(gpt_training, GetParam().args, {.refuse_planned = false});
  const Field& field = arguments_schema().field(GetParam().field);
  EXPECT_EQ(python_str(get_value(field, &parsed.args)), GetParam().value);
  EXPECT_EQ(parsed.sources.count(GetParam().field), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    All, SpellingTest,
    testing::Values(
        Spelling{{"--tp", "2"}, "tensor_model_parallel_size", "2"},
        Spelling{{"--tensor_model_parallel_size=4"}, "tensor_model_parallel_size", "4"},
        Spelling{{"--pp", "2"}, "pipeline_model_parallel_size", "2"}, Spelling{{"--bf16"}, "bf16", "True"},
        Spelling{{"--bf16=false"}, "bf16", "False"},
        Spelling{{"--disable-bias-linear"}, "add_bias_linear", "False"},
        Spelling{{"--no-position-embedding"}, "add_position_embedding", "False"},
        Spelling{{"--untie-embeddings-and-output-weights"}, "untie_embeddings_and_output_weights", "True"},
        Spelling{{"--no-check-for-nan-in-loss-and-grad"}, "check_for_nan_in_loss_and_grad", "False"},
        Spelling{{"--layernorm-epsilon", "1e-6"}, "norm_epsilon", "1e-06"},
        Spelling{{"--no-query-key-layer-scaling"}, "apply_query_key_layer_scaling", "False"},
        Spelling{{"--use-rotary-position-embeddings"}, "position_embedding_type", "rope"},
        Spelling{{"--position-embedding-type", "rotary"}, "position_embedding_type", "rope"},
        Spelling{{"--position_embedding_type", "absolute"}, "position_embedding_type", "learned_absolute"},
        Spelling{{"--attention_head_type", "multiquery"}, "attention_head_type", "multiquery"},
        Spelling{{"--override-opt_param-scheduler"}, "override_opt_param_scheduler", "True"},
        Spelling{{"--override-opt-param-scheduler"}, "override_opt_param_scheduler", "True"},
        Spelling{{"--override-lr-scheduler"}, "override_opt_param_scheduler", "True"},
        Spelling{{"--use-checkpoint-lr-scheduler"}, "use_checkpoint_opt_param_scheduler", "True"},
        Spelling{{"--checkpoint-activations"}, "recompute_granularity", "full"},
        Spelling{{"--checkpoint-activations"}, "recompute_method", "uniform"},
        Spelling{{"--checkpoint-num-layers", "3"}, "recompute_num_layers", "3"},
        Spelling{{"--activations-checkpoint-method", "block"}, "recompute_method", "block"},
        Spelling{{"--recompute-activations"}, "recompute_granularity", "selective"},
        Spelling{{"--distribute-checkpointed-activations"}, "distribute_saved_activations", "True"},
        Spelling{{"--fp8-e4m3"}, "fp8", "e4m3"}, Spelling{{"--fp8-hybrid"}, "fp8", "hybrid"},
        Spelling{{"--fp8-format", "hybrid"}, "fp8", "hybrid"},
        Spelling{{"--no-log-learnig-rate-to-tensorboard"}, "log_learning_rate_to_tensorboard", "False"},
        Spelling{{"--data-path", "0.3", "a", "0.7", "b"}, "data_path", "['0.3', 'a', '0.7', 'b']"},
        Spelling{{"--rampup-batch-size", "16", "16", "1000"}, "rampup_batch_size", "[16, 16, 1000]"},
        Spelling{{"--lr", "6.0e-5"}, "lr", "6e-05"},
        Spelling{{"--lr-warmup-fraction", ".01"}, "lr_warmup_fraction", "0.01"},
        Spelling{{"--top_p", "0.9"}, "top_p", "0.9"}));

TEST(Arguments, ShortenedAndMisspelledFlagsAreErrors) {
  for (const auto& [typed, meant] : std::vector<std::pair<std::string, std::string>>{
           {"--num-layer", "--num-layers"},
           {"--hidden", "--hidden-size"},
           {"--tensor-parallel-size", "--tensor-model-parallel-size"},
           {"--global-bach-size", "--global-batch-size"},
           {"--train-iter", "--train-iters"}}) {
    const std::vector<Problem> problems = problems_of({typed, "2"});
    ASSERT_EQ(problems.size(), 1u) << typed;
    EXPECT_EQ(problems[0].where, typed);
    EXPECT_EQ(problems[0].fix, "Did you mean " + meant + "?");
  }
}

TEST(Arguments, ReplacedAndLaterFlagsSuggestAFix) {
  EXPECT_NE(problems_of({"--batch-size", "4"}).at(0).what.find("--micro-batch-size"), std::string::npos);
  EXPECT_NE(problems_of({"--warmup", "0.1"}).at(0).what.find("--lr-warmup-fraction"), std::string::npos);
  EXPECT_NE(problems_of({"--model-parallel-size", "2"}).at(0).what.find("--tensor-model-parallel-size"),
            std::string::npos);
  EXPECT_NE(problems_of({"--qk-clip-alpha", "8"}).at(0).what.find("later Megatron-LM version"),
            std::string::npos);
  EXPECT_NE(problems_of({"--retro-add-retriever"}).at(0).what.find("Retro"), std::string::npos);
  EXPECT_EQ(problems_of({"--world-size", "8"}).at(0).what, "world_size is computed from other settings");
}

TEST(Arguments, EveryFlagUpToCore07IsKnown) {
  std::ifstream file(std::filesystem::path(TERATRON_SOURCE_DIR) / "tests/fixtures/cli/megatron_flags.txt");
  ASSERT_TRUE(file);
  std::string flag;
  int count = 0;
  while (std::getline(file, flag)) {
    ++count;
    EXPECT_NE(arguments_schema().find(flag), nullptr) << flag;
  }
  EXPECT_GT(count, 800);
}

TEST(Arguments, NoOpFlagsGiveNotices) {
  for (const CompatFlag& old : arguments_schema().compat_flags()) {
    if (old.verdict != CompatFlag::Verdict::no_op) continue;
    Args args{std::string(old.flag)};
    if (old.arity == 1) args.push_back(old.choices.empty() ? "1" : split(old.choices, '|').back());
    const ParsedArguments parsed = parse(args);
    ASSERT_EQ(parsed.notices.size(), 1u) << old.flag;
    EXPECT_TRUE(parsed.notices[0].starts_with(old.flag)) << parsed.notices[0];
    if (old.choices.empty()) continue;
    const std::vector<Problem> problems = problems_of({std::string(old.flag), "other"});
    ASSERT_EQ(problems.size(), 1u) << old.flag;
    EXPECT_EQ(problems[0].where, old.flag);
  }
}

TEST(Arguments, FieldsWithoutEffectGiveNotices) {
  for (const Field& field : arguments_schema().fields()) {
    if (field.type != FieldType::boolean || field.status == FieldStatus::derived ||
        !is_for(field, gpt_training.names))
      continue;
    const Arguments defaults;
    const bool initial = std::get<bool>(get_value(field, &defaults));
    const Args args{flag_of(field.name) + (initial ? "=false" : "")};
    if (field.status == FieldStatus::planned) {
      const std::vector<Problem> problems = problems_of(args);
      ASSERT_EQ(problems.size(), 1u) << field.name;
      EXPECT_NE(problems[0].what.find("not supported yet"), std::string::npos);
    } else if (field.status == FieldStatus::no_op) {
      EXPECT_EQ(parse(args).notices.size(), 1u) << field.name;
    } else {
      EXPECT_TRUE(parse(args).notices.empty()) << field.name;
    }
  }
}

TEST(Arguments, TableIsConsistent) {
  for (const Field& field : arguments_schema().fields()) {
    EXPECT_FALSE(field.help.empty()) << field.name;
    EXPECT_FALSE(field.help.ends_with('.')) << field.name;
    EXPECT_EQ(field.traits.off.empty(), field.traits.off_help.empty()) << field.name;
    EXPECT_FALSE(field.traits.program.empty()) << field.name;
    EXPECT_FALSE(field.since.empty()) << field.name;
    EXPECT_FALSE(field.group.empty()) << field.name;
    EXPECT_TRUE(field.status != FieldStatus::no_op || !field.traits.note.empty()) << field.name;
    // A default must be valid.
    const Arguments defaults;
    const Value initial = get_value(field, &defaults);
    std::string text = python_str(initial);
    if (text == "None") continue;  // not set
    std::vector<std::string> texts{text};
    if (is_list(field.type)) {
      std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '\'' || c == ','; });
      texts = split(text);
    }
    Problem problem;
    EXPECT_EQ(parse_value(field, texts, problem), initial) << field.name << ": " << problem.what;
  }
}

TEST(Arguments, AliasesSetFields) {
  for (const CompatFlag& old : arguments_schema().compat_flags()) {
    if (old.verdict != CompatFlag::Verdict::alias) continue;
    Args args{std::string(old.flag)};
    if (old.arity == 1) args.push_back(old.flag.find("method") != std::string::npos ? "uniform" : "1");
    const Program program = {.names = {"generate", "training"}};
    const ParsedArguments parsed = parse_arguments(program, args, {.refuse_planned = false});
    EXPECT_FALSE(parsed.sources.empty()) << old.flag;
    EXPECT_EQ(parsed.notices.size(), 1u) << old.flag;
  }
}

TEST(Arguments, ReportsInvalidValuesAndConflictsTogether) {
  const Args args = {"--num-layers",
                     "4",
                     "--hiden-size",
                     "64",
                     "--num-attention-heads",
                     "8",
                     "--seq-length",
                     "8",
                     "--lr",
                     "1e-3",
                     "--micro-batch-size",
                     "2",
                     "--mock-data",
                     "--bf16",
                     "--fp16",
                     "--lr-decay-style",
                     "cosin",
                     "--train-iters",
                     "many",
                     "--tokenizer-type",
                     "NullTokenizer",
                     "--vocab-size",
                     "9"};
  ParsedArguments parsed = parse_arguments(gpt_training, args, {.defer_problems = true});
  std::vector<std::string> problems;
  try {
    validate_arguments(parsed, 1);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) problems.push_back(problem.what);
  }
  // Problems that follow from the first three are not reported: hidden_size and train_iters are not set.
  EXPECT_EQ(problems,
            (std::vector<std::string>{
                "unknown flag --hiden-size", "lr_decay_style = 'cosin' is not a valid choice",
                "train_iters = 'many' is not a whole number", "--fp16 and --bf16 are mutually exclusive"}));
}

TEST(Arguments, ProgramsCanAddFlags) {
  double alpha = 0.25;
  std::vector<std::string> keywords;
  const std::vector<Field> extra = {{.name = "keyword_alpha",
                                     .type = FieldType::real,
                                     .help = "Weight",
                                     .traits = {.min = 0},
                                     .group = "Own",
                                     .storage = &alpha},
                                    {.name = "keywords",
                                     .type = FieldType::strings,
                                     .help = "Words",
                                     .group = "Own",
                                     .storage = &keywords}};
  const Args args = {"--keyword-alpha", "0.5", "--keywords", "a", "b", "--seed", "3"};
  const ParsedArguments parsed = parse_arguments(gpt_training, args, {.extra_fields = extra});
  EXPECT_EQ(alpha, 0.5);
  EXPECT_EQ(keywords, (Args{"a", "b"}));
  EXPECT_EQ(parsed.args.seed, 3);
  EXPECT_NE(dump(parsed).find("  keyword_alpha ................................... 0.5"), std::string::npos);
  EXPECT_NE(arguments_help({"program"}, extra).find("--keyword-alpha"), std::string::npos);
  const Args wrong = {"--keyword-alpha", "-1", "--keyword", "a"};
  try {
    parse_arguments(gpt_training, wrong, {.extra_fields = extra});
    FAIL();
  } catch (const UserError& error) {
    ASSERT_EQ(error.problems().size(), 2U);
    EXPECT_EQ(error.problems()[1].fix, "Did you mean --keywords?");
  }
}

TEST(Arguments, HelpSkipsChecks) {
  EXPECT_TRUE(parse({"--bogus", "--help"}).help);
  const std::string help = arguments_help({"teratron pretrain gpt [settings]", gpt_training.names});
  for (const Field& field : arguments_schema().fields()) {
    if (field.status == FieldStatus::derived || !is_for(field, gpt_training.names)) continue;
    EXPECT_NE(help.find(field.group), std::string::npos);
    const Arguments defaults;
    const bool on = get_value(field, &defaults) == Value(true);
    const std::string_view text = on && !field.traits.off.empty() ? field.traits.off_help : field.help;
    EXPECT_NE(help.find(text.substr(0, text.find(' '))), std::string::npos) << field.name;
  }
  EXPECT_NE(help.find("[aux_loss]"), std::string::npos) << "a default that is a list";
  size_t longest = 0;
  for (size_t begin = 0; begin < help.size();) {
    const size_t end = help.find('\n', begin);
    const std::string line = help.substr(begin, end - begin);
    if (line.find("--") == std::string::npos) longest = std::max(longest, line.size());
    begin = end + 1;
  }
  EXPECT_LE(longest, 100u);
}

TEST(Arguments, DumpListsEveryFieldSortedWithoutRegardToCase) {
  const std::string text = dump(parse({"--tp", "2", "--lr", "1.5e-4"}).args);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(to_lower(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  ASSERT_EQ(lines.size(), arguments_schema().fields().size() + 2);
  EXPECT_TRUE(std::is_sorted(lines.begin() + 1, lines.end() - 1));
  for (size_t i = 1; i + 1 < lines.size(); ++i) EXPECT_EQ(lines[i].find(". "), 50u) << lines[i];
  EXPECT_NE(text.find("  tensor_model_parallel_size ...................... 2\n"), std::string::npos);
  EXPECT_NE(text.find("  lr .............................................. 0.00015\n"), std::string::npos);
}

TEST(Arguments, JsonRoundTripKeepsEveryValue) {
  const Arguments a =
      parse({"--tp", "2", "--lr", "0.1", "--data-path", "a", "b", "--save", "/tmp/x y", "--bf16"}).args;
  const std::string text = to_json(a);
  std::vector<std::string> unknown;
  EXPECT_EQ(to_json(arguments_from_json(text, "manifest.json", &unknown)), text);
  EXPECT_TRUE(unknown.empty());
  EXPECT_THROW(arguments_from_json("{\"num_layers\": -1}", "manifest.json"), UserError);
}

TEST(Arguments, FlagsDocumentIsUpToDate) {
  EXPECT_EQ(read_fixture("docs/flags.md"), arguments_document())
      << "The table of settings changed. Regenerate docs/flags.md with the program flags_document.";
}

}  // namespace
}  // namespace teratron
