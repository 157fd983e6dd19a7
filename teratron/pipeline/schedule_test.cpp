#include "teratron/pipeline/schedule.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/testing/schedule_verify.h"

namespace teratron {
namespace {

nlohmann::json fixture(const std::string& name) {
  std::ifstream file(std::string(TERATRON_SOURCE_DIR) + "/tests/fixtures/layout/" + name);
  return nlohmann::json::parse(file);
}

// "F0.1 B0.1", as in the fixtures from Megatron-LM.
std::string computations(const Actions& actions, bool chunks) {
  std::string text;
  for (const Action& action : actions) {
    if (action.op != Op::forward && action.op != Op::backward) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}{}", action.op == Op::forward ? 'F' : 'B', action.microbatch);
    if (chunks) text += fmt::format(".{}", action.chunk);
  }
  return text;
}

TEST(Schedule, OrdersAreMegatrons) {
  int cases = 0;
  int rejected = 0;
  for (const nlohmann::json& c : fixture("pipeline_order.json")) {
    const ScheduleShape shape{.stages = c["pp"],
                              .chunks = c.value("vpp", 1),
                              .microbatches = c["microbatches"],
                              .microbatch_group = c.value("group", 0),
                              .forward_only = c["forward_only"]};
    if (c.contains("error")) {
      EXPECT_NE(interleaving_problem(shape), "") << c;
      ++rejected;
      continue;
    }
    EXPECT_EQ(computations(schedule(c["rank"], shape), shape.chunks > 1), c["order"].get<std::string>()) << c;
    ++cases;
  }
  EXPECT_GE(cases, 60);
  EXPECT_GE(rejected, 8);
}

TEST(Schedule, TableIsMegatrons) {
  for (const nlohmann::json& c : fixture("schedule_table.json")) {
    const ScheduleShape shape{.stages = 2,
                              .chunks = c["chunks"],
                              .microbatches = c["microbatches"],
                              .microbatch_group = c["group"],
                              .forward_only = true};
    nlohmann::json table = nlohmann::json::array();
    for (const Action& action : shape.chunks > 1 ? interleaved(0, shape) : one_f_one_b(0, shape)) {
      if (action.op == Op::forward) table.push_back({action.microbatch, action.chunk});
    }
    EXPECT_EQ(table, c["table_microbatch_chunk"]) << c;
  }
}

void expect_sound(const ScheduleShape& shape) {
  for (const bool early : {false, true}) {
    ScheduleShape s = shape;
    s.early_receives = early;
    const std::vector<std::string> problems = verify(s);
    EXPECT_TRUE(problems.empty()) << fmt::format(
        "{} stages, {} chunks, {} micro-batches in groups of {}, {}: {}", s.stages, s.chunks, s.microbatches,
        s.microbatch_group, early ? "early" : "late", fmt::join(problems, "; "));
  }
}

TEST(Schedule, VerifiesEverySmallSize) {
  for (int64_t stages = 1; stages <= 8; ++stages) {
    for (int64_t microbatches = 1; microbatches <= 32; ++microbatches) {
      for (const bool forward_only : {false, true}) {
        expect_sound({.stages = stages, .microbatches = microbatches, .forward_only = forward_only});
      }
    }
  }
}

TEST(Schedule, VerifiesEverySmallInterleaving) {
  int64_t shapes = 0;
  for (int64_t stages = 2; stages <= 8; ++stages) {
    for (int64_t chunks = 2; chunks <= 4; ++chunks) {
      for (int64_t microbatches = 1; microbatches <= 32; ++microbatches) {
        expect_sound(
            {.stages = stages, .chunks = chunks, .microbatches = microbatches, .forward_only = true});
        for (const int64_t group : std::set<int64_t>{stages, stages + 1, 2 * stages, microbatches}) {
          const ScheduleShape shape{
              .stages = stages, .chunks = chunks, .microbatches = microbatches, .microbatch_group = group};
          if (!interleaving_problem(shape).empty()) continue;
          expect_sound(shape);
          ++shapes;
        }
      }
    }
  }
  EXPECT_GT(shapes, 1000);
}

TEST(Schedule, PeakActivationsEqualTheFormula) {
  EXPECT_EQ(peak_activations(one_f_one_b(0, {.stages = 4, .microbatches = 8})), 4);
  EXPECT_EQ(peak_activations(one_f_one_b(3, {.stages = 4, .microbatches = 8})), 1);
  EXPECT_EQ(peak_activations(one_f_one_b(0, {.stages = 4, .microbatches = 2})), 2);
  // 2 * 3 + 4 warm-up forwards, and the next one.
  EXPECT_EQ(peak_activations(interleaved(0, {.stages = 4, .chunks = 2, .microbatches = 8})), 11);
  EXPECT_EQ(peak_activations(one_f_one_b(0, {.stages = 4, .microbatches = 8, .forward_only = true})), 0);
}

// Every missing or repeated action is found.
TEST(Verify, FindsMissingAndRepeatedActions) {
  const std::vector<Actions> sound = schedules({.stages = 3, .microbatches = 4});
  ASSERT_TRUE(verify(sound).empty());
  for (size_t stage = 0; stage < sound.size(); ++stage) {
    for (size_t i = 0; i < sound[stage].size(); ++i) {
      std::vector<Actions> missing = sound;
      missing[stage].erase(missing[stage].begin() + static_cast<long>(i));
      EXPECT_FALSE(verify(missing).empty()) << stage << " without " << i;
      std::vector<Actions> twice = sound;
      twice[stage].push_back(sound[stage][i]);
      EXPECT_FALSE(verify(twice).empty()) << stage << " with two of " << i;
    }
  }
}

TEST(Verify, FindsMessagesOutOfOrder) {
  std::vector<Actions> stages = schedules({.stages = 2, .microbatches = 2, .early_receives = false});
  for (Action& action : stages[1]) {
    if (action.op == Op::recv_forward) action.microbatch = 1 - action.microbatch;
  }
  EXPECT_FALSE(verify(stages).empty());
}

TEST(Verify, FindsDeadlocks) {
  // The second stage waits for its second micro-batch before it sends the first gradient, for which the first
  // stage waits before it starts the second micro-batch.
  const std::vector<Actions> stages = {{{Op::forward, 0, 0},
                                        {Op::send_forward, 0, 0},
                                        {Op::recv_backward, 0, 0},
                                        {Op::backward, 0, 0},
                                        {Op::forward, 0, 1},
                                        {Op::send_forward, 0, 1},
                                        {Op::recv_backward, 0, 1},
                                        {Op::backward, 0, 1}},
                                       {{Op::recv_forward, 0, 0},
                                        {Op::forward, 0, 0},
                                        {Op::recv_forward, 0, 1},
                                        {Op::forward, 0, 1},
                                        {Op::backward, 0, 0},
                                        {Op::send_backward, 0, 0},
                                        {Op::backward, 0, 1},
                                        {Op::send_backward, 0, 1}}};
  const std::vector<std::string> problems = verify(stages);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0], "stage 0: deadlocks at backward of micro-batch 0 in chunk 0");
  EXPECT_EQ(problems[1], "stage 1: deadlocks at forward of micro-batch 1 in chunk 0");
}

TEST(Draw, IsATimeline) {
  EXPECT_EQ(draw({.stages = 2, .microbatches = 2}),
            "stage 0  | F0 F1 .  .  B0 -- .  B1 --\n"
            "stage 1  | .  F0 B0 -- F1 B1 -- .  .\n"
            "idle: 33.3 % of the time\n");
}

TEST(Draw, IdleTimeShrinksWithChunks) {
  const auto idle = [](const ScheduleShape& shape) {
    const std::string picture = draw(shape);
    return std::stod(picture.substr(picture.find("idle: ") + 6));
  };
  // Narayanan et al. 2021: (P - 1) / V idle micro-batches for M busy ones.
  EXPECT_NEAR(idle({.stages = 4, .microbatches = 8}), 100.0 * 3 / 11, 0.06);
  EXPECT_NEAR(idle({.stages = 4, .chunks = 2, .microbatches = 8}), 100.0 * 1.5 / 9.5, 0.06);
}

}  // namespace
}  // namespace teratron
