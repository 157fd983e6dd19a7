// Errors of many ranks at once: what rank 0 receives of them is bounded.
#include "teratron/comm/collective_errors.h"

#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "teratron/testing/counted_ranks.h"

namespace teratron {
namespace {

struct Result {
  std::set<std::string> errors = {};
  int64_t received = 0;  // bytes, by the rank with most
};

Result errors_of(int64_t ranks, const std::function<void(int64_t rank)>& work) {
  std::mutex mutex;
  Result result;
  run_counted_ranks(ranks, [&](CountedGroup& group) {
    std::string error = "no error";
    try {
      run_on_all_ranks(group, [&] { work(group.rank()); });
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    const std::lock_guard lock(mutex);
    result.errors.insert(error);
    result.received = std::max(result.received, group.cost().received);
  });
  return result;
}

[[noreturn]] void fail_with(int64_t count, const std::string& text) {
  std::vector<Problem> problems;
  for (int64_t i = 0; i < count; ++i)
    problems.push_back({.what = fmt::format("{} {}", count - i, text), .where = "here", .fix = "Do it"});
  throw UserError(ExitCode::config, std::move(problems));
}

TEST(CollectiveErrors, LongErrorsOfManyRanksAreShortened) {
  for (const int64_t ranks : {64, 512}) {
    const Result result = errors_of(
        ranks, [](int64_t rank) { fail_with(20, fmt::format("of {} {}", rank, std::string(50000, 'x'))); });
    ASSERT_EQ(result.errors.size(), 1U);
    EXPECT_LT(result.received, int64_t{4} << 20) << "of 1 MB from each rank";
    const std::string error = *result.errors.begin();
    EXPECT_NE(error.find("18 of 0 xxx"), std::string::npos) << error.substr(0, 200);
    EXPECT_NE(error.find("xxx..., and 17 other problems"), std::string::npos) << error.substr(0, 200);
  }
}

TEST(CollectiveErrors, OneLongFaultIsShortenedToo) {
  const Result result = errors_of(
      512, [](int64_t rank) { throw Fault(fmt::format("{} {}", rank, std::string(1 << 18, 'x'))); });
  ASSERT_EQ(result.errors.size(), 1U);
  EXPECT_TRUE(result.errors.begin()->starts_with("0 xxx"));
  EXPECT_LT(result.received, int64_t{4} << 20);
}

TEST(CollectiveErrors, ShortErrorsAreWholeAndEqualOnesAreMerged) {
  const std::string text(200, 'y');
  const Result all = errors_of(64, [&](int64_t) { fail_with(3, text); });
  const Result some = errors_of(64, [&](int64_t rank) {
    if (rank % 2 == 1) fail_with(3, text);
  });
  for (int i = 0; i < 3; ++i)
    EXPECT_NE(all.errors.begin()->find(fmt::format("here: {} {}. Do it", i + 1, text)), std::string::npos);
  EXPECT_NE(some.errors.begin()->find(text + " (ranks 1, 3, 5, 7, "), std::string::npos)
      << *some.errors.begin();
}

TEST(CollectiveErrors, ProblemsStayInTheirOrder) {
  const Result result = errors_of(2, [](int64_t) {
    throw UserError(ExitCode::config,
                    {{.what = "z"}, {.what = "a"}, {.what = "m", .fix = "Change all three"}});
  });
  EXPECT_EQ(*result.errors.begin(), "z.\na.\nm. Change all three.");
}

}  // namespace
}  // namespace teratron
