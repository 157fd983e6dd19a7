// --help of `pretrain` and `finetune` offers what their checks accept.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/base/strings.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/models/family.h"
#include "teratron/train/classification/classification.h"

namespace teratron {
namespace {

struct Offer {
  std::string flag;
  std::vector<std::string> choices;
};

// Flags with their choices: "  --device {auto|cpu|cuda}".
std::vector<Offer> offers_of(const std::string& help) {
  static const std::regex row(R"(^  (--[a-z0-9-]+).* \{([^}]*)\})");
  std::vector<Offer> offers;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, row)) offers.push_back({match[1], split(match[2].str(), '|')});
  }
  return offers;
}

// Whether the value itself is refused, not what it needs besides.
bool is_refused(const JobModel& model, const std::string& flag, const std::string& value) {
  try {
    pretrain_arguments(std::vector<std::string>{"--mock-data", flag, value}, 1, model);
  } catch (const UserError& error) {
    for (const Problem& problem : error.problems()) {
      if (problem.where == flag && problem.what.find(" needs ") == std::string::npos) return true;
    }
  }
  return false;
}

void expect_choices_accepted(const JobModel& model) {
  const std::vector<Offer> offers = offers_of(training_help("pretrain", model));
  EXPECT_GT(offers.size(), 15u);
  for (const auto& [flag, choices] : offers) {
    std::set<std::string> refused;
    for (const std::string& choice : choices) {
      if (is_refused(model, flag, choice)) refused.insert(choice);
    }
    if (refused.size() == choices.size()) refused.clear();  // the flag needs others
    for (const std::string& choice : refused)
      ADD_FAILURE() << model.family.name << ": " << flag << " " << choice;
  }
}

TEST(TrainingHelp, OffersWhatTheChecksAccept) {
  const Registry registry;
  for (const Family& family : families()) {
    expect_choices_accepted({family, registry});
    if (!family.classifier) continue;
    const ClassificationJob job = classification_job(family, "classification");
    expect_choices_accepted({job.family, job.registry});
  }
}

TEST(TrainingHelp, HasTheChoicesOfTheFamily) {
  const Registry registry;
  const auto positions = [&](const char* family) {
    for (const auto& [flag, choices] : offers_of(training_help("pretrain", {find_family(family), registry})))
      if (flag == "--position-embedding-type") return std::set<std::string>(choices.begin(), choices.end());
    return std::set<std::string>();
  };
  EXPECT_EQ(positions("gpt"), (std::set<std::string>{"learned_absolute", "rope", "yarn", "alibi", "none"}));
  EXPECT_EQ(positions("bert"), (std::set<std::string>{"learned_absolute", "rope", "yarn", "none"}));
  EXPECT_EQ(positions("t5"), (std::set<std::string>{"learned_absolute", "relative", "none"}));
}

// Choices are tried with the family's defaults, and a check may throw.
TEST(TrainingHelp, TriesChoicesWithTheDefaultsOfTheFamily) {
  const Registry registry;
  const Family own{.name = "own",
                   .args_defaults = {{"normalization", "RMSNorm"}},
                   .check = [](const Arguments& args, std::vector<Problem>& problems) {
                     if (args.position_embedding_type == "alibi") throw std::runtime_error("unset");
                     if (args.normalization == "RMSNorm" && args.optimizer == "sgd")
                       problems.push_back({"not with RMSNorm", "--optimizer", "Use adam"});
                   }};
  std::set<std::string> flags;
  for (const auto& [flag, choices] : offers_of(training_help("pretrain", {own, registry}))) {
    flags.insert(flag);
    if (flag == "--optimizer") {
      EXPECT_EQ(std::ranges::count(choices, "sgd"), 0);
    } else if (flag == "--position-embedding-type") {
      EXPECT_EQ(std::ranges::count(choices, "alibi"), 1);
    }
  }
  EXPECT_TRUE(flags.contains("--optimizer") && flags.contains("--position-embedding-type"));
}

TEST(TrainingHelp, ShowsTheDefaultTokenizerOfTheFamily) {
  const Registry registry;
  for (const auto& [family, tokenizer] :
       {std::pair("gpt", "[GPT2BPETokenizer]"), std::pair("bert", "[BertWordPieceLowerCase]")})
    EXPECT_NE(training_help("pretrain", {find_family(family), registry}).find(tokenizer), std::string::npos);
}

}  // namespace
}  // namespace teratron
