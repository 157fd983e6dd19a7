#include "teratron/comm/ranks/tree.h"

#include <bit>
#include <set>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

std::vector<int64_t> numbers_to(int64_t n) {
  std::vector<int64_t> numbers(n);
  for (int64_t i = 0; i < n; ++i) numbers[i] = i;
  return numbers;
}

TEST(Tree, EveryRankIsBelowRankZeroAtMostLog2RanksAway) {
  for (const int64_t size : {1, 2, 3, 7, 8, 9, 1000, 16384}) {
    const auto rounds = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(size - 1)));
    std::multiset<int64_t> reached = {0};
    for (int64_t rank = 0; rank < size; ++rank) {
      const std::vector<int64_t> children = tree_children(rank, size);
      EXPECT_LE(std::ssize(children), rounds);
      for (const int64_t child : children) EXPECT_EQ(tree_parent(child), rank);
      reached.insert(children.begin(), children.end());
      int64_t depth = 0;
      for (int64_t r = rank; r > 0; r = tree_parent(r)) ++depth;
      EXPECT_LE(depth, rounds);
    }
    const std::vector<int64_t> all = numbers_to(size);
    EXPECT_EQ(std::vector<int64_t>(reached.begin(), reached.end()), all) << size;
  }
}

TEST(Tree, OnlyOneRankOfAHostTalksToOtherHosts) {
  for (int64_t rank = 0; rank < 1024; ++rank) {
    if (rank % 8 > 0) {
      EXPECT_EQ(tree_parent(rank) / 8, rank / 8);
    }
  }
}

/// What each rank sees of one round of everything; the bytes of rank r are r repeated r times.
std::string report_of(HostGroup& group) {
  const auto text_of = [](int64_t r) { return std::string(r * 3, static_cast<char>('a' + r)); };
  std::string report;
  for (const std::string& part : group.all_gather_bytes(text_of(group.rank()))) report += part + ".";
  for (const std::string& part : group.gather_bytes(text_of(group.rank()))) report += part + ",";
  report += group.broadcast_bytes(text_of(group.rank() + 1));
  const int64_t next = (group.rank() + 1) % group.size();
  if (next != group.rank()) {
    group.send_bytes(next, "from " + std::to_string(group.rank()));
    report += group.receive_bytes((group.rank() + group.size() - 1) % group.size());
  }
  return report;
}

std::string expected_report(int64_t rank, int64_t size) {
  std::string all, gathered;
  for (int64_t r = 0; r < size; ++r) {
    const std::string text(r * 3, static_cast<char>('a' + r));
    all += text + ".";
    gathered += text + ",";
  }
  const std::string message = size == 1 ? "" : "from " + std::to_string((rank + size - 1) % size);
  return all + (rank == 0 ? gathered : "") + "bbb" + message;
}

TEST(Tree, CollectivesOfBytesGiveTheSameOverSocketsAndThreads) {
  for (const int64_t size : {1, 2, 3, 5, 8, 13}) {
    on_worlds({.dp = size}, [&](const Mesh& mesh) {
      Communicator& group = *mesh.world().communicator;
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(report_of(group), expected_report(group.rank(), size));
        group.barrier();
      }
    });
  }
}

TEST(Tree, NamesRanksThatIssueAnotherCollective) {
  const auto fault = [](const std::function<void(Communicator&)>& odd) {
    return fault_over_sockets(6, [&](World& world, Communicator& group) {
      group.barrier();
      world.rank() == 3 ? odd(group) : group.barrier();
      group.barrier();
    });
  };
  EXPECT_EQ(fault([](Communicator& group) { group.all_gather_bytes("x"); }),
            "the ranks of group [0 1 2 3 4 5] differ at their collective 2: rank 2: barrier; rank 3: "
            "all_gather_bytes");
  EXPECT_EQ(
      fault([](Communicator& group) { group.gather_bytes("x"); }),
      "the ranks of group [0 1 2 3 4 5] differ at their collective 2: rank 2: barrier; rank 3: gather_bytes");
}

TEST(Tree, RejectsPartsOfAnotherNumber) {
  const std::string packed = pack_bytes({"a", "", "ccc"});
  EXPECT_EQ(unpack_gathered(packed, 3), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_THROW(unpack_gathered(packed, 2), Fault);
  EXPECT_THROW(unpack_gathered(packed, 4), Fault);
  EXPECT_THROW(unpack_gathered(packed.substr(0, packed.size() - 1), 3), Fault);
  EXPECT_THROW(unpack_gathered(std::string(12, '\xff'), 1), Fault);
}

}  // namespace
}  // namespace teratron
