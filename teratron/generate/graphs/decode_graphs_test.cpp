// Steps that are begun before the host knows their tokens, on the CPU, where a graph repeats its work.
#include "teratron/generate/graphs/decode_graphs.h"

#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace teratron {
namespace {

/// A "model" whose next token depends on the token, its position and the random number.
int64_t token_after(int64_t token, int64_t position, double uniform) {
  return (31 * token + 7 * position + static_cast<int64_t>(1000 * uniform)) % 97;
}

struct CountingModel {
  int64_t calls = 0;

  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& parameters,
                        const SamplingNeeds&) {
    ++calls;
    const at::Tensor out = at::zeros({2, tokens.size(0)}, at::kDouble);
    for (int64_t r = 0; r < tokens.size(0); ++r) {
      out[0][r] = token_after(tokens[r].item<int64_t>(), positions[r].item<int64_t>(),
                              parameters[r][3].item<double>());
    }
    return out;
  }
};

struct DecodedRow {
  int64_t token = 0, position = 0, left = 1;
  uint64_t seed = 0;

  double uniform(int64_t at) const { return uniform_of(seed, static_cast<uint64_t>(at)); }
};

StepInput step_of_rows(const std::vector<DecodedRow>& rows) {
  StepInput step{.continues = true};
  for (const DecodedRow& row : rows) {
    const auto index = static_cast<int64_t>(step.tokens.size());
    step.tokens.push_back(row.token);
    step.positions.push_back(row.position);
    step.rows.push_back({.first_token = index, .tokens = 1, .length = row.position + 1});
    step.choices.push_back({.token = index,
                            .sampling = {.uniform = row.uniform(row.position)},
                            .following = {.uniform = row.uniform(row.position + 1)}});
    step.continues = step.continues && row.left > 1;
  }
  return step;
}

/// One step of all rows; those that are complete leave.
void advance_rows(DecodeGraphs& graphs, std::vector<DecodedRow>& rows, bool same_pages,
                  CountingModel& model) {
  const at::Tensor out = graphs.run(step_of_rows(rows), same_pages, std::ref(model));
  for (size_t r = 0; r < rows.size(); ++r) {
    DecodedRow& row = rows[r];
    const int64_t expected = token_after(row.token, row.position, row.uniform(row.position));
    ASSERT_EQ(out[0][static_cast<int64_t>(r)].item<double>(), static_cast<double>(expected));
    row.token = expected;
    row.position += 1;
    row.left -= 1;
  }
  std::erase_if(rows, [](const DecodedRow& row) { return row.left == 0; });
}

TEST(DecodeGraphs, StepsThatContinueRunOnce) {
  DecodeGraphs graphs(4, at::kCPU);
  CountingModel model;
  std::vector<DecodedRow> rows = {{.token = 5, .position = 3, .left = 20, .seed = 1},
                                  {.token = 6, .left = 20, .seed = 2}};
  for (int64_t i = 0; i < 20; ++i) {
    advance_rows(graphs, rows, i > 0, model);
    EXPECT_EQ(model.calls, std::min<int64_t>(i + 2, 20));
  }
}

// Rows join, stop before their end or change, in between pages change.
TEST(DecodeGraphs, TokensDoNotDependOnWhatWasBegun) {
  std::mt19937 random(3);
  DecodeGraphs graphs(9, at::kCPU);
  CountingModel model;
  std::vector<DecodedRow> rows;
  for (int i = 0; i < 400; ++i) {
    bool same_pages = true;
    if (rows.empty() || (rows.size() < 9 && random() % 5 == 0)) {
      rows.push_back({.token = static_cast<int64_t>(random() % 97),
                      .position = static_cast<int64_t>(random() % 50),
                      .left = 1 + static_cast<int64_t>(random() % 30),
                      .seed = random()});
      same_pages = false;
    }
    if (rows.size() > 1 && random() % 7 == 0) {
      rows.erase(rows.begin() + static_cast<int64_t>(random() % rows.size()));
      same_pages = random() % 2 == 0;
    }
    if (random() % 11 == 0) rows[0].token = static_cast<int64_t>(random() % 97);
    if (random() % 11 == 0) rows[0].seed = random();
    advance_rows(graphs, rows, same_pages, model);
  }
}

}  // namespace
}  // namespace teratron
