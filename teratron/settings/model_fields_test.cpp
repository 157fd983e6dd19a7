#include "teratron/settings/model_fields.h"

#include <nlohmann/json.hpp>

#include "teratron/testing/validation.h"

namespace teratron {
namespace {

using nlohmann::json;

// The first model field in which two command lines differ, "" where they say the same model.
std::string difference(const Texts& saved, const Texts& current) {
  const json a = json::parse(plain_settings(to_json(finished(saved).args), "a"));
  const json b = json::parse(plain_settings(to_json(finished(current).args), "b"));
  for (const std::string& field : model_fields()) {
    if (a.contains(field) && b.contains(field) && a[field] != b[field]) return field;
  }
  return "";
}

TEST(ModelFields, SpellingsOfOneModelAreTheSame) {
  const std::vector<std::pair<Texts, Texts>> same = {
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
      {{"--window-size", "7,0", "--window-attn-skip-freq", "5"}, {"--window-size", "7,0"}}};
  for (const auto& [a, b] : same) {
    EXPECT_EQ(difference(a, b), "") << a[0];
    EXPECT_EQ(difference(b, a), "") << a[0];
  }
}

TEST(ModelFields, OtherModelsDiffer) {
  struct Pair {
    Texts saved;
    Texts current;
    const char* field;
  };
  const Texts rope = {"--position-embedding-type", "rope"};
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
       "window_attn_skip_freq"}};
  for (const auto& [saved, current, field] : others) {
    EXPECT_EQ(difference(saved, current), field);
    EXPECT_EQ(difference(current, saved), field);
  }
}

TEST(ModelFields, WhatHasNoTensorMayChange) {
  const std::string learned = to_json(finished({}).args);
  const std::string rope = to_json(finished({"--position-embedding-type", "rope"}).args);
  EXPECT_TRUE(free_fields(learned, true).empty()) << "a table of positions has a length";
  EXPECT_EQ(free_fields(rope, false), Texts{"max_position_embeddings"});
  EXPECT_EQ(free_fields(rope, true).size(), 5U);
}

// What another version or a converter left out is not guessed.
TEST(ModelFields, WhatIsNotSaidStaysUnsaid) {
  EXPECT_EQ(plain_settings("{}", "x"), "{}");
  EXPECT_EQ(json::parse(plain_settings(R"({"swiglu":true,"other":1})", "x")),
            json::parse(R"({"swiglu":true,"other":1})"));
}

}  // namespace
}  // namespace teratron
