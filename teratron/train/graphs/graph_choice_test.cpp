#include "teratron/train/graphs/graph_choice.h"

#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

namespace teratron {
namespace {

using Kind = GraphChoice::Outcome::Kind;

/// What a job's ranks see, and how long its steps take.
struct Job {
  std::vector<std::function<GraphChoice::Observation(int64_t step)>> ranks;
  double eager = 0.040, graphs = 0.016;
  std::vector<double> slower_on = {};  // with graphs, by rank; empty: `graphs` on all
  int64_t lag = 1;                     // steps launched before a result arrives
};

struct Story {
  std::vector<bool> replayed;  // by step
  std::optional<GraphChoice::Outcome> outcome;
  size_t outcomes = 0;
};

struct Launched {
  GraphChoice::Vote agreed;
  std::vector<double> seconds;
};

/// Runs the same steps on all ranks and checks that they agree.
Story run(const Job& job, int64_t watched = 3, int64_t steps = 20) {
  std::vector<GraphChoice> choices(job.ranks.size(), GraphChoice(watched));
  std::deque<Launched> in_flight;
  Story story;
  for (int64_t step = 0; step < steps; ++step) {
    const bool replays = choices[0].replays();
    story.replayed.push_back(replays);
    Launched launched{GraphChoice::Vote::none, {}};
    for (size_t rank = 0; rank < choices.size(); ++rank) {
      EXPECT_EQ(choices[rank].replays(), replays) << "rank " << rank << ", step " << step;
      launched.agreed = std::max(launched.agreed, choices[rank].launch(job.ranks[rank](step)));
      const double with_graphs = job.slower_on.empty() ? job.graphs : job.slower_on[rank];
      launched.seconds.push_back(step < 2 ? 1.0 : replays ? with_graphs : job.eager);
    }
    in_flight.push_back(launched);
    if (std::ssize(in_flight) <= job.lag) continue;
    for (size_t rank = 0; rank < choices.size(); ++rank) {
      const auto outcome = choices[rank].finish(in_flight.front().agreed, in_flight.front().seconds[rank]);
      if (!outcome || rank > 0) continue;
      story.outcome = outcome;
      story.outcomes += 1;
    }
    in_flight.pop_front();
  }
  return story;
}

GraphChoice::Observation waits(int64_t) {
  return {.gpu_waited = true};
}
GraphChoice::Observation busy(int64_t) {
  return {};
}
GraphChoice::Observation short_of_memory(int64_t) {
  return {.gpu_waited = true, .has_memory = false};
}

int64_t first_replay(const Story& story) {
  return std::ranges::find(story.replayed, true) - story.replayed.begin();
}

TEST(GraphChoice, KeepsGraphsWhereTheGpuWaits) {
  for (const int64_t lag : {0, 1, 3}) {
    SCOPED_TRACE(lag);
    const Story story = run({.ranks = {waits, waits}, .lag = lag});
    EXPECT_EQ(first_replay(story), 5 + lag) << "two unsteady steps and three that decide";
    EXPECT_TRUE(std::all_of(story.replayed.begin() + first_replay(story), story.replayed.end(),
                            [](bool replayed) { return replayed; }));
    ASSERT_TRUE(story.outcome);
    EXPECT_EQ(story.outcomes, 1);
    EXPECT_EQ(story.outcome->kind, Kind::kept);
    EXPECT_EQ(story.outcome->seconds_before, 0.040);
    EXPECT_EQ(story.outcome->seconds_after, 0.016);
    EXPECT_NE(to_string(*story.outcome).find("CUDA graphs: 16.0 ms per step instead of 40.0"),
              std::string::npos);
  }
}

TEST(GraphChoice, LeavesABusyGpuAlone) {
  const Story story = run({.ranks = {busy, busy}});
  EXPECT_EQ(first_replay(story), 20);
  EXPECT_FALSE(story.outcome);
}

TEST(GraphChoice, FollowsTheMajorityOfSteps) {
  const auto waits_before = [](int64_t end) {
    return [end](int64_t step) { return GraphChoice::Observation{.gpu_waited = step < end}; };
  };
  EXPECT_EQ(first_replay(run({.ranks = {waits_before(3)}})), 20) << "one of steps 2, 3 and 4";
  EXPECT_EQ(first_replay(run({.ranks = {waits_before(4)}})), 6);
  EXPECT_EQ(first_replay(run({.ranks = {busy, waits_before(4)}})), 6) << "the others wait for that rank";
}

TEST(GraphChoice, NeedsMemoryOnAllRanks) {
  const Story story = run({.ranks = {waits, short_of_memory}});
  EXPECT_EQ(first_replay(story), 20);
  ASSERT_TRUE(story.outcome);
  EXPECT_EQ(story.outcome->kind, Kind::no_memory);
  EXPECT_NE(to_string(*story.outcome).find("(40.0 ms per step), but CUDA graphs would need more memory"),
            std::string::npos);
  const auto full_but_busy = [](int64_t) { return GraphChoice::Observation{.has_memory = false}; };
  EXPECT_FALSE(run({.ranks = {full_but_busy}}).outcome) << "nothing to say";
}

TEST(GraphChoice, GivesUpGraphsThatSaveNoTime) {
  for (const std::vector<double>& slower_on : {std::vector{0.041, 0.041}, std::vector{0.016, 0.041}}) {
    const Story story = run({.ranks = {waits, waits}, .slower_on = slower_on});
    EXPECT_TRUE(story.replayed.at(static_cast<size_t>(first_replay(story))));
    EXPECT_FALSE(story.replayed.back());
    ASSERT_TRUE(story.outcome);
    EXPECT_EQ(story.outcomes, 1);
    EXPECT_EQ(story.outcome->kind, Kind::slower);
    EXPECT_NE(to_string(*story.outcome).find("off again"), std::string::npos);
  }
}

}  // namespace
}  // namespace teratron
