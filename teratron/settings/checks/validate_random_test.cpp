// Configurations that are valid by construction pass; broken ones do not.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

struct Random {
  std::mt19937 engine;
  int64_t pick(std::initializer_list<int64_t> values) {
    return *(values.begin() + static_cast<long>(engine() % values.size()));
  }
};

struct Layout {
  int64_t tp, pp, dp, groups, heads, micro, micro_batches;
  Args flags;
};

Layout random_layout(Random& random) {
  Layout l{};
  l.tp = random.pick({1, 2, 3, 4, 8});
  l.pp = random.pick({1, 2, 3, 5});
  l.dp = random.pick({1, 2, 7});
  l.groups = l.tp * random.pick({1, 2});
  l.heads = l.groups * random.pick({1, 2, 3});
  l.micro = random.pick({1, 2, 5});
  l.micro_batches = random.pick({1, 4, 9});
  const auto add = [&](const char* flag, int64_t value) {
    l.flags.emplace_back(flag);
    l.flags.push_back(std::to_string(value));
  };
  add("--tp", l.tp);
  add("--pp", l.pp);
  add("--num-attention-heads", l.heads);
  add("--hidden-size", l.heads * random.pick({2, 8, 64}));
  add("--ffn-hidden-size", l.tp * random.pick({7, 64}));
  add("--num-layers", l.pp * random.pick({1, 2, 6}));
  add("--seq-length", l.tp * random.pick({1, 16, 33}));
  add("--micro-batch-size", l.micro);
  add("--global-batch-size", l.micro * l.micro_batches * l.dp);
  if (random.engine() % 2) {
    l.flags.emplace_back("--group-query-attention");
    add("--num-query-groups", l.groups);
  }
  if (random.engine() % 2) l.flags.emplace_back("--sequence-parallel");
  if (random.engine() % 2) l.flags.insert(l.flags.end(), {"--position-embedding-type", "rope"});
  if (random.engine() % 2) l.flags.emplace_back("--swiglu");
  return l;
}

TEST(Validate, RandomValidConfigurationsPassAndTheirBreakagesDoNot) {
  Random random{std::mt19937(7)};
  for (int i = 0; i < 300; ++i) {
    const Layout l = random_layout(random);
    const int64_t world = l.tp * l.pp * l.dp;
    ParsedArguments p = validated(l.flags, world);
    EXPECT_EQ(p.args.data_parallel_size, l.dp);
    EXPECT_EQ(p.args.num_micro_batches, l.micro_batches);
    EXPECT_EQ(to_json(arguments_from_json(to_json(p.args), "x")), to_json(p.args));
    // Idempotent.
    const std::string before = to_json(p.args);
    validate_arguments(p, world);
    EXPECT_EQ(to_json(p.args), before);
    if (l.tp * l.pp > 1) {
      EXPECT_THROW(validated(l.flags, world + 1), UserError);
    }
    Args odd_batch = l.flags;
    odd_batch.insert(odd_batch.end(), {"--gbs", std::to_string(l.micro * l.dp * l.micro_batches + 1)});
    if (l.micro * l.dp > 1) {
      EXPECT_THROW(validated(odd_batch, world), UserError);
    }
  }
}

}  // namespace
}  // namespace teratron
