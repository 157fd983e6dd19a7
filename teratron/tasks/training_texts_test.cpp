// Texts during training: the same in every layout, and a training that does not notice.
#include "teratron/tasks/training_texts.h"

#include <fstream>

#include <nlohmann/json.hpp>

#include "teratron/base/file.h"
#include "teratron/generate/engine.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/settings/component_options.h"
#include "teratron/testing/train_run.h"

namespace teratron {
namespace {

class TrainingTexts : public SmallRun {
 protected:
  using Texts = std::vector<std::pair<int64_t, std::string>>;

  std::vector<std::string> run_flags(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> all = flags(name, {"--train-iters", "6", "--lr-warmup-iters", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::string prompts(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    write_text(path, text, ExitCode::config);
    return path;
  }

  static void train_sampling(const std::vector<std::string>& args, int64_t ranks) {
    const Registry registry;
    const ParsedArguments parsed = pretrain_arguments(args, ranks, default_model(registry));
    const StopSignals signals;
    run_ranks(ranks, [&](World& world) {
      pretrain(parsed, world, signals, default_model(registry), make_text_sampler);
    });
  }

  // iteration, prompt|text of each sample in metrics.jsonl.
  Texts texts_of(const std::string& name) const {
    Texts texts;
    std::ifstream file(folder_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json event = nlohmann::json::parse(line);
      if (event["type"] != "sample") continue;
      texts.emplace_back(event["iteration"], std::string(event["prompt"]) + "|" + std::string(event["text"]));
    }
    return texts;
  }
};

const std::vector<std::string> sampling = {"--generate-interval", "2", "--generate-prompts"};

std::vector<std::string> with(std::vector<std::string> flags, const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

TEST_F(TrainingTexts, DoNotChangeTheTraining) {
  const std::string file = prompts("prompts.txt", "1 2 3\n\n7\n");
  const std::vector<std::string> options = {"--hidden-dropout", "0.1", "--attention-dropout", "0.1"};
  train_sampling(run_flags("plain", options), 1);
  train_sampling(run_flags("sampled", with(options, with(sampling, {file}))), 1);
  const RunLog plain = log("plain"), sampled = log("sampled");
  ASSERT_EQ(plain.steps.size(), 6U);
  for (size_t i = 0; i < plain.steps.size(); ++i) EXPECT_EQ(plain.steps[i].losses, sampled.steps[i].losses);
  EXPECT_EQ(tensors("plain", 6), tensors("sampled", 6));
  const Texts texts = texts_of("sampled");
  ASSERT_EQ(texts.size(), 6U);
  EXPECT_EQ(texts[0].first, 2);
  EXPECT_EQ(texts[0].second.substr(0, 6), "1 2 3|");
  EXPECT_EQ(texts[5].first, 6);
  EXPECT_EQ(texts[5].second.substr(0, 2), "7|");
  const std::string report = read_text(folder_ / "sampled" / "report.html", {});
  EXPECT_NE(report.find("1 2 3"), std::string::npos);
}

TEST_F(TrainingTexts, AreTheSameInEveryLayout) {
  const std::string file = prompts("prompts.jsonl",
                                   "{\"tokens\": [1, 2], \"top_k\": 1, \"max_new_tokens\": 5}\n"
                                   "{\"prompt\": \"3 4 5\", \"num_beams\": 2, \"max_new_tokens\": 4}\n"
                                   "{\"prompt\": \"6\", \"seed\": 3, \"max_new_tokens\": 6}\n");
  const std::vector<std::string> options =
      with({"--num-layers", "4", "--init-method-std", "0.3"}, with(sampling, {file}));
  train_sampling(run_flags("one", options), 1);
  const Texts expected = texts_of("one");
  ASSERT_EQ(expected.size(), 9U);
  struct Layout {
    const char* name;
    int64_t ranks;
    std::vector<std::string> flags;
  };
  const std::vector<Layout> layouts = {
      {"tp", 2, {"--tensor-model-parallel-size", "2", "--sequence-parallel"}},
      {"dp", 2, {"--use-distributed-optimizer", "--overlap-param-gather"}},
      {"pp", 2, {"--pipeline-model-parallel-size", "2"}},
      {"interleaved",
       2,
       {"--pipeline-model-parallel-size", "2", "--num-virtual-stages-per-pipeline-rank", "2"}},
      {"tp pp", 4, {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"}}};
  for (const Layout& layout : layouts) {
    train_sampling(run_flags(layout.name, with(options, layout.flags)), layout.ranks);
    EXPECT_EQ(texts_of(layout.name), expected) << layout.name;
  }
}

TEST_F(TrainingTexts, RejectWhatCannotBeGenerated) {
  const auto problem_of = [&](const std::string& file, const std::string& text) {
    try {
      train_sampling(run_flags("bad", with(sampling, {prompts(file, text)})), 1);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(problem_of("empty.txt", "\n").find("there is no prompt"), std::string::npos);
  EXPECT_NE(problem_of("a.jsonl", "{\"tokens\"").find("a.jsonl:1"), std::string::npos);
  EXPECT_NE(problem_of("b.jsonl", "{\"tokens\": [1], \"topk\": 2}").find("Did you mean top_k?"),
            std::string::npos);
  EXPECT_NE(problem_of("c.jsonl", "{\"tokens\": [999]}").find("prompt 1"), std::string::npos);
  EXPECT_NE(problem_of("d.txt", "1 2 3 4 5 6 7 8 9 10\n").find("prompt 1"), std::string::npos);
}

}  // namespace
}  // namespace teratron
