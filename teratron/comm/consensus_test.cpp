#include "teratron/comm/consensus.h"

#include <gtest/gtest.h>

#include "teratron/comm/host/thread_world.h"

namespace teratron {
namespace {

void on_three_ranks(const std::function<void(HostGroup&)>& body) {
  run_ranks(3, [&](World& world) { body(*world.group({0, 1, 2})); });
}

TEST(Consensus, ReducesSmallValues) {
  on_three_ranks([](HostGroup& group) {
    const int64_t rank = group.rank();
    EXPECT_EQ(broadcast_bytes(group, std::to_string(rank)), "0");
    EXPECT_TRUE(all_true(group, true));
    EXPECT_FALSE(all_true(group, rank != 1));
    EXPECT_EQ(all_reduce_min(group, 0.1 * static_cast<double>(3 - rank)), 0.1);
    EXPECT_EQ(first_nonempty(group, rank == 0 ? "" : std::to_string(rank)), "1");
    EXPECT_EQ(first_nonempty(group, ""), "");
  });
}

TEST(Consensus, MergesInTheOrderOfRanks) {
  run_ranks(11, [&](World& world) {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < 11; ++r) all.push_back(r);
    const auto group = world.group(all);
    const auto join = [](const std::string& lower, const std::string& higher) { return lower + higher; };
    EXPECT_EQ(merge_bytes(*group, std::string(1, static_cast<char>('a' + group->rank())), join),
              "abcdefghijk");
    EXPECT_EQ(union_of(*group, {std::to_string(group->rank() % 3)}), (std::set<std::string>{"0", "1", "2"}));
  });
  SingleHostGroup alone;
  EXPECT_EQ(union_of(alone, {"\"a\n"}), std::set<std::string>{"\"a\n"});
}

TEST(Consensus, NamesTheRanksOfDifferentValues) {
  on_three_ranks([](HostGroup& group) {
    const int64_t rank = group.rank();
    EXPECT_TRUE(find_differences(group, {{"a", "1"}}).empty());
    const NamedValues record = {
        {"z", std::to_string(rank % 2)}, {"same", "x"}, {rank == 2 ? "b" : "a", "\x01"}};
    EXPECT_EQ(find_differences(group, record),
              (std::vector<std::string>{"z: ranks 0, 2 have 0, rank 1 has 1",
                                        "a: ranks 0, 1 have \\x01, rank 2 has nothing",
                                        "b: ranks 0, 1 have nothing, rank 2 has \\x01"}));
    EXPECT_TRUE(find_differences(group, rank == 1 ? NamedValues{} : NamedValues{{"a", "1"}}).empty())
        << "abstains";
  });
}

}  // namespace
}  // namespace teratron
