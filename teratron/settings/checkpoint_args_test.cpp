#include "teratron/settings/checkpoint_args.h"

#include <nlohmann/json.hpp>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

using nlohmann::json;

// The first model field that differs between two command lines, "" for equal models.
std::string difference(const Args& saved, const Args& current) {
  const json a = json::parse(canonical_config(to_json(validated(saved).args), "a"));
  const json b = json::parse(canonical_config(to_json(validated(current).args), "b"));
  for (const std::string& field : model_fields()) {
    if (a.contains(field) && b.contains(field) && a[field] != b[field]) return field;
  }
  return "";
}

TEST(CheckpointArgs, EquivalentSettingsAreEqual) {
  const std::vector<std::pair<Args, Args>> same = {
      {{"--group-query-attention", "--num-query-groups", "8"}, {}},
      {{"--num-query-groups", "2"}, {}},
      {{"--attention-head-type", "multiquery"}, {"--group-query-attention"}},
      {{"--swiglu"}, {"--swiglu", "--no-bias-gelu-fusion"}},
      {{"--openai-gelu", "--no-bias-gelu-fusion"}, {}},
      {{"--rotary-base", "500"}, {}},
      {{"--add-qkv-bias"}, {}},
      {{"--position-embedding-type", "rope", "--rope-scaling-factor", "2"},
       {"--position-embedding-type", "rope"}},
      {{"--position-embedding-type", "rope", "--rotary-seq-len-interpolation-factor", "1"},
       {"--position-embedding-type", "rope"}},
      {{"--window-size", "7,0"}, {"--window-size", "(7, 0)"}},
      {{"--window-size", "-1,0"}, {}},
      {{"--window-attn-skip-freq", "2"}, {}},
      {{"--window-size", "7,0", "--window-attn-skip-freq", "2"},
       {"--window-size", "7,0", "--window-attn-skip-freq", "[1, 0, 1, 0]"}},
      {{"--window-size", "7,0", "--window-attn-skip-freq", "5"}, {"--window-size", "7,0"}},
      {{"--moe-layer-freq", "2"}, {}},
      {{"--num-experts", "4", "--moe-layer-freq", "([1]*4)"}, {"--num-experts", "4"}},
      {{"--num-experts", "4", "--moe-layer-freq", "2"},
       {"--num-experts", "4", "--moe-layer-freq", "[1, 0]*2"}}};
  for (const auto& [a, b] : same) {
    EXPECT_EQ(difference(a, b), "") << a[0];
    EXPECT_EQ(difference(b, a), "") << a[0];
  }
}

TEST(CheckpointArgs, DifferentModelsDiffer) {
  struct Pair {
    Args saved;
    Args current;
    const char* field;
  };
  const Args rope = {"--position-embedding-type", "rope"};
  const std::vector<Pair> others = {
      {{"--group-query-attention", "--num-query-groups", "2"}, {}, "group_query_attention"},
      {{"--group-query-attention", "--num-query-groups", "2"},
       {"--group-query-attention", "--num-query-groups", "4"},
       "num_query_groups"},
      {{"--no-bias-gelu-fusion"}, {}, "bias_gelu_fusion"},
      {{"--no-bias-gelu-fusion"}, {"--openai-gelu"}, "bias_gelu_fusion"},
      {{"--swiglu"}, {"--geglu"}, "swiglu"},
      {{"--disable-bias-linear", "--add-qkv-bias"}, {"--disable-bias-linear"}, "add_qkv_bias"},
      {rope, {}, "position_embedding_type"},
      {{"--position-embedding-type", "rope", "--rotary-base", "500"}, rope, "rotary_base"},
      {{"--position-embedding-type", "rope", "--use-rope-scaling"}, rope, "use_rope_scaling"},
      {{"--position-embedding-type", "rope", "--rotary-seq-len-interpolation-factor", "2"},
       rope,
       "rotary_seq_len_interpolation_factor"},
      {{"--max-position-embeddings", "64"}, {}, "max_position_embeddings"},
      {{"--window-size", "7,0"}, {}, "window_size"},
      {{"--window-size", "7,0"}, {"--window-size", "8,0"}, "window_size"},
      {{"--window-size", "7,0", "--window-attn-skip-freq", "2"},
       {"--window-size", "7,0"},
       "window_attn_skip_freq"},
      {{"--num-experts", "4", "--moe-layer-freq", "2"}, {"--num-experts", "4"}, "moe_layer_freq"}};
  for (const auto& [saved, current, field] : others) {
    EXPECT_EQ(difference(saved, current), field);
    EXPECT_EQ(difference(current, saved), field);
  }
}

TEST(CheckpointArgs, SettingsWithoutTensorsCanChange) {
  const std::string learned = to_json(validated({}).args);
  const std::string rope = to_json(validated({"--position-embedding-type", "rope"}).args);
  EXPECT_TRUE(resumable_overrides(learned, true).empty()) << "learned positions have a tensor";
  EXPECT_EQ(resumable_overrides(rope, false), Args{"max_position_embeddings"});
  EXPECT_EQ(resumable_overrides(rope, true).size(), 13U);
  EXPECT_EQ(fixed_model_fields(learned, true), model_fields());
  EXPECT_EQ(fixed_model_fields(rope, true).size(), model_fields().size() - 13);
}

// Settings left out by another version or a converter stay unset.
TEST(CheckpointArgs, MissingSettingsStayMissing) {
  EXPECT_EQ(canonical_config("{}", "x"), "{}");
  EXPECT_EQ(json::parse(canonical_config(R"({"swiglu":true,"other":1})", "x")),
            json::parse(R"({"swiglu":true,"other":1})"));
}

}  // namespace
}  // namespace teratron
