#include "teratron/models/transformer/layer_options.h"

#include <set>

#include <gtest/gtest.h>

#include "teratron/settings/arguments.h"

namespace teratron {
namespace {

TEST(DropoutSites, DifferBetweenLayersAndNumbers) {
  for (const bool cross_attention : {false, true}) {
    const TransformerConfig config{.cross_attention = cross_attention,
                                   .first_dropout_site = uint64_t{1} << 32};
    std::set<uint64_t> sites = {config.first_dropout_site};
    for (int64_t layer = 0; layer < 200; ++layer) {
      for (uint64_t number = 0; number < sites_of_layer; ++number)
        EXPECT_TRUE(sites.insert(dropout_site(config, layer, number)).second) << layer << " " << number;
    }
    EXPECT_LT(*sites.rbegin(), uint64_t{2} << 32) << "those of the next stack";
  }
}

// A run that is resumed draws the masks of earlier versions.
TEST(DropoutSites, KeepTheirNumbers) {
  const TransformerConfig encoder, decoder{.cross_attention = true, .first_dropout_site = 1000};
  EXPECT_EQ(dropout_site(encoder, 2, attention_scores), 12U);
  EXPECT_EQ(dropout_site(encoder, 2, attention_output), 13U);
  EXPECT_EQ(dropout_site(encoder, 2, mlp_output), 14U);
  EXPECT_EQ(dropout_site(decoder, 1, attention_scores), 1016U);
  EXPECT_EQ(dropout_site(decoder, 1, cross_output), 1020U);
}

TEST(TransformerConfig, NeedsNoHeadsWhereNoLayerHasAttention) {
  Arguments args;
  args.num_layers = 2;
  args.hidden_size = 8;
  args.ffn_hidden_size = 16;
  const TransformerConfig config = transformer_config(args);
  EXPECT_EQ(config.heads, 0);
  EXPECT_EQ(config.query_groups, 0);
  EXPECT_EQ(query_groups(args), 0);
}

}  // namespace
}  // namespace teratron
