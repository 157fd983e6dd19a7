#include "teratron/pipeline/pipeline_layout.h"

#include <gtest/gtest.h>

namespace teratron {
namespace {

// "E2 3 | 2 3L": layers per chunk and stage.
std::string drawn(const PipelineLayoutOptions& options) {
  const PipelineLayout layout = pipeline_layout(options);
  std::string text;
  for (int64_t stage = 0; stage < layout.stages; ++stage) {
    if (stage > 0) text += " |";
    for (const StageSpec& chunk : layout.chunks_of_stage(stage)) {
      text += fmt::format(" {}{}{}", chunk.embedding ? "E" : "", chunk.layers, chunk.head ? "L" : "");
    }
  }
  int64_t next = 0;
  for (const StageSpec& part : layout.virtual_stages) {
    EXPECT_EQ(part.first_layer, next);
    next += part.layers;
  }
  EXPECT_EQ(next, options.layers);
  return text.substr(1);
}

TEST(PipelineLayout, DividesLayersEvenly) {
  EXPECT_EQ(drawn({.layers = 4}), "E4L");
  EXPECT_EQ(drawn({.layers = 8, .stages = 4}), "E2 | 2 | 2 | 2L");
  EXPECT_EQ(drawn({.layers = 8, .stages = 2, .chunks = 2}), "E2 2 | 2 2L");
  EXPECT_EQ(drawn({.layers = 8, .stages = 2, .layers_per_chunk = 1}), "E1 1 1 1 | 1 1 1 1L");
}

TEST(PipelineLayout, FirstAndLastStageMayDiffer) {
  EXPECT_EQ(drawn({.layers = 10, .stages = 4, .first_stage_layers = 1, .last_stage_layers = 3}),
            "E1 | 3 | 3 | 3L");
  EXPECT_EQ(drawn({.layers = 10, .stages = 4, .first_stage_layers = 1}), "E1 | 3 | 3 | 3L");
  EXPECT_EQ(drawn({.layers = 5, .stages = 2, .first_stage_layers = 2, .last_stage_layers = 3}), "E2 | 3L");
  EXPECT_EQ(drawn({.layers = 14, .stages = 3, .chunks = 2, .first_stage_layers = 2, .last_stage_layers = 4}),
            "E1 1 | 4 4 | 2 2L");
}

TEST(PipelineLayout, EmbeddingAndLossMayCountAsLayers) {
  EXPECT_EQ(drawn({.layers = 7, .stages = 4, .embedding_counts = true}), "E1 | 2 | 2 | 2L");
  EXPECT_EQ(drawn({.layers = 6, .stages = 4, .embedding_counts = true, .loss_counts = true}),
            "E1 | 2 | 2 | 1L");
  EXPECT_EQ(drawn({.layers = 6, .stages = 2, .chunks = 2, .embedding_counts = true, .loss_counts = true}),
            "E1 2 | 2 1L");
  EXPECT_EQ(drawn({.layers = 2, .stages = 4, .embedding_counts = true, .loss_counts = true}),
            "E0 | 1 | 1 | 0L");
}

TEST(PipelineLayout, ParsesMegatronsText) {
  EXPECT_EQ(drawn({.layers = 4, .stages = 2, .text = "Ett|ttL"}), "E2 | 2L");
  EXPECT_EQ(drawn({.layers = 9, .stages = 2, .text = "Et*3|(tt|)*2,ttL"}), "E3 2 | 2 2L");
  EXPECT_EQ(drawn({.layers = 62, .stages = 16, .text = "Et*3|(tt|)*29,t|L"}).substr(0, 12), "E3 2 | 2 2 |");
  EXPECT_EQ(drawn({.layers = 3, .stages = 2, .text = "E|t,t|t|L"}), "E0 1 | 2 0L");
  EXPECT_EQ(drawn({.layers = 4, .stages = 2, .text = "Ett||tt|L"}), "E2 2 | 0 0L");
  EXPECT_EQ(drawn({.layers = 6, .stages = 1, .text = "E(t,t)*3L"}), "E6L");
}

struct Bad {
  PipelineLayoutOptions options;
  const char* where;
  const char* what;
};

class BadPipelineLayout : public testing::TestWithParam<Bad> {};

TEST_P(BadPipelineLayout, IsRejected) {
  try {
    pipeline_layout(GetParam().options);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
    EXPECT_EQ(error.problems().at(0).where, GetParam().where);
    EXPECT_NE(error.problems().at(0).what.find(GetParam().what), std::string::npos) << error.what();
    EXPECT_NE(error.problems().at(0).fix, "");
  }
}

constexpr const char* text_field = "pipeline_model_parallel_layout";

INSTANTIATE_TEST_SUITE_P(
    Numbers, BadPipelineLayout,
    testing::Values(
        Bad{{.layers = 5, .stages = 2}, "num_layers", "5 is not divisible"},
        Bad{{.layers = 4, .stages = 2, .embedding_counts = true}, "num_layers", "4 + 1 is not divisible"},
        Bad{{.layers = 4, .stages = 2, .first_stage_layers = 5}, "num_layers", "-1 layers for 1 stages"},
        Bad{{.layers = 4, .stages = 1LL << 60, .first_stage_layers = 4}, "num_layers", "leaves 0 layers"},
        Bad{{.layers = 4, .stages = 2, .chunks = 3}, "num_virtual_stages_per_pipeline_rank", "2 layers"},
        Bad{{.layers = 4, .stages = 2, .layers_per_chunk = 3},
            "num_layers_per_virtual_pipeline_stage",
            "2 layers"},
        Bad{{.layers = 4, .stages = 1, .chunks = 2}, "pipeline_model_parallel_size", "needs"},
        Bad{{.layers = 4, .stages = 2, .chunks = 2, .layers_per_chunk = 1},
            "num_virtual_stages_per_pipeline_rank",
            "both set"},
        Bad{{.layers = 4, .stages = 2, .first_stage_layers = 1, .loss_counts = true},
            "account_for_loss_in_pipeline_split",
            "both set"}));

INSTANTIATE_TEST_SUITE_P(
    Texts, BadPipelineLayout,
    testing::Values(
        Bad{{.layers = 4, .stages = 2, .chunks = 2, .text = "Ett|ttL"}, text_field, "both set"},
        Bad{{.layers = 4, .stages = 2, .text = "tt|ttL"}, text_field, "no E"},
        Bad{{.layers = 4, .stages = 2, .text = "Ett|tt"}, text_field, "not one L"},
        Bad{{.layers = 4, .stages = 2, .text = "EttL|tt"}, text_field, "not one L"},
        Bad{{.layers = 4, .stages = 2, .text = "EtEt|ttL"}, text_field, "only embedding"},
        Bad{{.layers = 4, .stages = 2, .text = "Ett|ttLt"}, text_field, "after the loss"},
        Bad{{.layers = 4, .stages = 2, .text = "Ett|ttLL"}, text_field, "more than one L"},
        Bad{{.layers = 4, .stages = 2, .text = "Ett|tmL"}, text_field, "no meaning"},
        Bad{{.layers = 5, .stages = 2, .text = "Ett|ttL"}, text_field, "4 layers and num_layers = 5"},
        Bad{{.layers = 4, .stages = 2, .text = "Et|t|ttL"}, text_field, "3 virtual stages"},
        Bad{{.layers = 4, .stages = 3, .text = "Ett||ttL"}, text_field, "stage 1 would be empty"},
        Bad{{.layers = 4, .stages = 2, .text = "Et*|ttL"}, text_field, "without a number"},
        Bad{{.layers = 4, .stages = 2, .text = "E(tt|ttL"}, text_field, "not closed"},
        Bad{{.layers = 4, .stages = 2, .text = "E(tt)|ttL"}, text_field, "group without"},
        Bad{{.layers = 4, .stages = 2, .text = "Et*99999999999999999999|ttL"}, text_field, "too often"},
        Bad{{.layers = 4, .stages = 2, .text = "E((t*2)*2)|ttL"}, text_field, "not closed"}));

// They would count layers that the split does not have.
TEST(PipelineLayout, RejectsOtherRulesBesideASplit) {
  const PipelineLayoutOptions split{
      .layers = 6, .stages = 2, .split = PipelineSplit{.layers = 3, .stages = 1}};
  std::vector<PipelineLayoutOptions> all(6, split);
  all[0].embedding_counts = true;
  all[1].loss_counts = true;
  all[2].first_stage_layers = 2;
  all[3].chunks = 3;
  all[4].layers_per_chunk = 1;
  all[5].text = "Ettt|tttL";
  for (const PipelineLayoutOptions& options : all) EXPECT_THROW(pipeline_layout(options), UserError);
  EXPECT_EQ(pipeline_layout(split).virtual_stages.size(), 2u);
}

TEST(PipelineLayout, SplitsEncoderAndDecoder) {
  const PipelineLayout layout =
      pipeline_layout({.layers = 10, .stages = 3, .split = PipelineSplit{.layers = 4, .stages = 2}});
  std::vector<StageSpec> expected = {{0, 2, true, false}, {2, 2, false, false}, {4, 6, false, true}};
  EXPECT_EQ(layout.virtual_stages, expected);
  EXPECT_EQ(
      pipeline_layout({.layers = 10, .split = PipelineSplit{.layers = 4, .stages = 1}}).virtual_stages.size(),
      1U)
      << "one stage holds both";
  for (const PipelineSplit& bad : {PipelineSplit{4, 3}, PipelineSplit{4, 0}, PipelineSplit{3, 2}}) {
    EXPECT_THROW(pipeline_layout({.layers = 10, .stages = 3, .split = bad}), UserError);
  }
}

}  // namespace
}  // namespace teratron
