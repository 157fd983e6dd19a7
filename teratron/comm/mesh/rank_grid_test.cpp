#include "teratron/comm/mesh/rank_grid.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using enum Axis;

nlohmann::json fixture(const std::string& name) {
  std::ifstream file(TERATRON_SOURCE_DIR "/tests/fixtures/layout/" + name);
  return nlohmann::json::parse(file);
}

/// Megatron-LM's names of groups; the view is the one that the axes lie in.
const std::map<std::string, std::vector<Axis>> kMegatronGroups = {
    {"TENSOR_MODEL_PARALLEL_GROUP", {tp}},
    {"CONTEXT_PARALLEL_GROUP", {cp}},
    {"DATA_PARALLEL_GROUP", {dp}},
    {"DATA_PARALLEL_GROUP_WITH_CP", {dp, cp}},
    {"PIPELINE_MODEL_PARALLEL_GROUP", {pp}},
    {"MODEL_PARALLEL_GROUP", {tp, pp}},
    {"TENSOR_AND_DATA_PARALLEL_GROUP", {tp, dp}},
    {"TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", {tp, dp, cp}},
    {"TENSOR_AND_CONTEXT_PARALLEL_GROUP", {tp, cp}},
    {"EXPERT_MODEL_PARALLEL_GROUP", {ep}},
    {"EXPERT_TENSOR_PARALLEL_GROUP", {etp}},
    {"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", {etp, ep}},
    {"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", {etp, ep, pp}},
    {"EXPERT_DATA_PARALLEL_GROUP", {edp}},
};

RankGroups list(const nlohmann::json& groups) {
  return groups.get<RankGroups>();
}

TEST(RankGrid, GroupsEqualMegatrons) {
  int layouts = 0, refused = 0;
  for (const auto& c : fixture("rank_groups.json")) {
    const MeshOptions options{.tp = c["tp"],
                              .pp = c["pp"],
                              .cp = c["cp"],
                              .ep = c["ep"],
                              .etp = c["etp"].is_null() ? 0 : c["etp"].get<int64_t>(),
                              .order = c["order"]};
    SCOPED_TRACE(c.dump().substr(0, 100));
    if (c.contains("error")) {
      EXPECT_THROW(RankGrid(options, c["world"]), UserError);
      ++refused;
      continue;
    }
    const RankGrid grid(options, c["world"]);
    for (const auto& [name, axes] : kMegatronGroups)
      EXPECT_EQ(grid.groups(axes), list(c["groups"][name])) << name;
    EXPECT_EQ(grid.embedding_groups(), list(c["groups"]["EMBEDDING_GROUP"]));
    ++layouts;
  }
  EXPECT_GT(layouts, 10);
  EXPECT_GT(refused, 2);
}

TEST(RankGrid, GroupsEqualThoseOfCore07) {
  const std::map<std::string, std::vector<Axis>> names = {
      {"dp", {dp}}, {"dp-cp", {dp, cp}},        {"cp", {cp}},        {"tp-pp", {tp, pp}}, {"tp", {tp}},
      {"pp", {pp}}, {"tp-cp-dp", {tp, cp, dp}}, {"tp-dp", {tp, dp}}, {"tp-cp", {tp, cp}},
  };
  // There the experts were carved out of dp and tensor-parallel like everything else; with cp the views
  // differ.
  const std::map<std::string, std::vector<Axis>> expert_names = {{"tp-ep independent_ep", {etp, ep}},
                                                                 {"tp-ep-pp independent_ep", {etp, ep, pp}},
                                                                 {"ep independent_ep", {ep}},
                                                                 {"dp independent_ep", {edp}}};
  int layouts = 0;
  for (const auto& c : fixture("rank_groups_core_v0.7.0.json")) {
    if (c.contains("error")) continue;
    const MeshOptions options{.tp = c["tp"],
                              .pp = c["pp"],
                              .cp = c["cp"],
                              .ep = c["ep"],
                              .etp = 0,
                              .dp = c["dp"],
                              .order = c["order"]};
    const RankGrid grid(options, c["world"]);
    for (const auto& [name, axes] : names) EXPECT_EQ(grid.groups(axes), list(c["groups"][name])) << name;
    for (const auto& [name, axes] : expert_names) {
      if (c["cp"] != 1) continue;
      EXPECT_EQ(grid.groups(axes), list(c["groups"][name])) << name;
    }
    ++layouts;
  }
  EXPECT_GE(layouts, 5);
}

TEST(RankGrid, SixteenGpusOfTheWellKnownExample) {
  const MeshOptions options{.tp = 2, .pp = 4};
  EXPECT_EQ(rank_groups(options, 16, {dp}),
            (RankGroups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(rank_groups(options, 16, {tp}),
            (RankGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(rank_groups(options, 16, {pp}),
            (RankGroups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(rank_groups(options, 16, {tp, pp}),
            (RankGroups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
}

TEST(RankGrid, EveryKindOfGroupPartitionsTheWorld) {
  const RankGrid grid({.tp = 2, .pp = 3, .cp = 2, .ep = 2, .etp = 1, .dp = 2, .order = "cp-dp-ep-tp-pp"}, 24);
  EXPECT_EQ(grid.size(edp), 4);
  for (const std::vector<Axis>& axes :
       {std::vector{tp}, {cp, dp}, {pp}, {tp, cp, dp, pp}, {ep, edp}, {etp}, {}}) {
    std::set<int64_t> seen;
    for (const auto& group : grid.groups(axes)) {
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      for (int64_t rank : group) EXPECT_TRUE(seen.insert(rank).second);
    }
    EXPECT_EQ(seen.size(), 24U);
    EXPECT_EQ(*seen.rbegin(), 23);
  }
}

/// The message of the UserError that these options give.
std::string refusal(const MeshOptions& options, int64_t world) {
  try {
    const RankGrid grid(options, world);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    return error.what();
  }
  return "accepted";
}

TEST(RankGrid, ChecksNeedNoLists) {
  const int64_t huge = int64_t{1} << 50;
  EXPECT_EQ(RankGrid({.tp = 8, .pp = 16}, huge).size(dp), huge / 128);
}

TEST(RankGrid, RefusalsShowTheArithmetic) {
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks\n" << part;
  };
  expect(refusal({.tp = 3, .pp = 2}, 8), "8 ranks are not a multiple of tp 3 x cp 1 x pp 2 = 6");
  expect(refusal({.ep = 3}, 8), "8 ranks are not a multiple of etp 1 x ep 3 x pp 1 = 3");
  expect(refusal({.tp = 2, .dp = 3}, 8), "dp = 3, but 8 ranks / (tp 2 x cp 1 x pp 1) leave 4");
  expect(refusal({.tp = 0, .pp = -1}, 8), "tp = 0 is less than 1");
  expect(refusal({.tp = 0, .pp = -1}, 8), "pp = -1 is less than 1");
  expect(refusal({.etp = -2}, 8), "etp = -2 is less than 1");
  expect(refusal({}, 0), "world size = 0 is less than 1");
  expect(refusal({.tp = int64_t{1} << 40, .pp = int64_t{1} << 40}, 8), "beyond 2^63");
  expect(refusal({.order = "tp-cp-xx-dp-pp"}, 8), "unknown axis 'xx'");
  expect(refusal({.order = ""}, 8), "unknown axis ''");
  expect(refusal({.order = "tp-tp-cp-ep-dp-pp"}, 8), "axis 'tp' appears twice");
  expect(refusal({.pp = 2, .order = "tp-dp"}, 8), "axis 'pp' of size 2 is missing");
  expect(refusal({.ep = 2, .order = "tp-dp"}, 8), "axis 'ep' of size 2 is missing");
  expect(refusal({.tp = 2, .pp = 2, .ep = 4, .order = "tp-cp-ep-pp-dp"}, 8), "different pipelines");
  EXPECT_EQ(refusal({.tp = 2, .order = "TP-dp"}, 8), "accepted");
}

TEST(RankGrid, DrawingNamesTheGroups) {
  EXPECT_EQ(to_string(RankGrid({.tp = 2, .pp = 2, .cp = 2}, 16)),
            R"(16 ranks = tp 2 x cp 2 x dp 2 x pp 2 (fastest first)
           dp 0            dp 1
pp 0        0  1 |  2  3    4  5 |  6  7
pp 1        8  9 | 10 11   12 13 | 14 15
tp         [0 1] [2 3] [4 5] [6 7] [8 9] [10 11] [12 13] [14 15]
cp         [0 2] [1 3] [4 6] [5 7] [8 10] [9 11] [12 14] [13 15]
dp         [0 4] [1 5] [2 6] [3 7] [8 12] [9 13] [10 14] [11 15]
pp         [0 8] [1 9] [2 10] [3 11] [4 12] [5 13] [6 14] [7 15]
tp+pp      [0 1 8 9] [2 3 10 11] [4 5 12 13] [6 7 14 15]
dp+cp      [0 2 4 6] [1 3 5 7] [8 10 12 14] [9 11 13 15]
embedding  [0 8] [1 9] [2 10] [3 11] [4 12] [5 13] [6 14] [7 15]
)");
  EXPECT_EQ(to_string(RankGrid({}, 1)),
            "1 rank = tp 1 x cp 1 x dp 1 x pp 1 (fastest first)\n           dp 0\npp 0       0\n");
  EXPECT_NE(to_string(RankGrid({.tp = 2, .pp = 4}, 16)).find("[0 1 4 5 8 9 12 13] [2 3 6 7 10 11 14 15]"),
            std::string::npos)
      << "the model-parallel groups of Megatron-LM's example";
  const std::string experts = to_string(RankGrid({.tp = 2, .ep = 4}, 8));
  EXPECT_NE(experts.find("experts: etp 1 x ep 4 x edp 2 x pp 1\nep         [0 1 2 3] [4 5 6 7]\n"),
            std::string::npos)
      << experts;
}

TEST(RankGrid, DrawingHas110Columns) {
  for (const auto& [options, ranks] :
       {std::pair(MeshOptions{.tp = 8, .pp = 32}, 16384), std::pair(MeshOptions{.tp = 8, .cp = 8}, 512),
        std::pair(MeshOptions{.tp = 64, .pp = 2}, 1 << 14), std::pair(MeshOptions{}, 1 << 17),
        std::pair(MeshOptions{.tp = 2, .ep = 16}, 256), std::pair(MeshOptions{.pp = 8, .cp = 128}, 8192)}) {
    std::istringstream lines(to_string(RankGrid(options, ranks)));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
  }
}

TEST(RankGrid, DrawingOfThousandsOfRanksIsShort) {
  const std::string text = to_string(RankGrid({.tp = 8, .pp = 32}, 16384));
  EXPECT_LT(text.size(), 8000U);
  EXPECT_NE(text.find("... dp 63"), std::string::npos) << text;
  EXPECT_NE(text.find("... pp 31"), std::string::npos) << text;
  EXPECT_NE(text.find("2048 groups of 8"), std::string::npos) << text;
}

}  // namespace
}  // namespace teratron
