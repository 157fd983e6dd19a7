#include "teratron/data/blend.h"

#include <cmath>
#include <cstdlib>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/gpt/data/gpt_builder.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/samples.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::sha256_of;
using testing::TemporaryFolder;

template <typename T>
std::vector<T> all_of(const IndexArray& array) {
  const std::vector<int64_t> values = array.values(0, array.rows());
  return {values.begin(), values.end()};
}

void expect_index(const BlendIndex& index, const json& expected) {
  EXPECT_EQ(sha256_of(all_of<int16_t>(index.dataset_index)),
            expected["dataset_index_sha256"].get<std::string>());
  EXPECT_EQ(sha256_of(all_of<int64_t>(index.dataset_sample_index)),
            expected["dataset_sample_index_sha256"].get<std::string>());
  if (expected.contains("dataset_index")) {
    EXPECT_EQ(json(all_of<int64_t>(index.dataset_index)), expected["dataset_index"]);
  }
}

TEST(Blend, GreedyMatchesMegatron) {
  for (const json& c : testing::read_json(fixture("blend/greedy.json"))) {
    const auto weights = normalize_weights(c["weights"].get<std::vector<double>>());
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i], std::strtod(c["normalized_hex"][i].get<std::string>().c_str(), nullptr));
    }
    expect_index(build_blending_indices(weights, c["size"]), c);
  }
}

TEST(Blend, ExhaustiveMatchesMegatron) {
  for (const json& c : testing::read_json(fixture("blend/exhaustive.json"))) {
    expect_index(build_exhaustive_blending_indices(c["sizes"].get<std::vector<int64_t>>()), c);
  }
}

TEST(Blend, SizesMatchMegatron) {
  const json cases = testing::read_json(fixture("blend/small_functions.json"));
  for (const json& c : cases["sizes"]) {
    for (size_t d = 0; d < c["weights"].size(); ++d) {
      for (size_t s = 0; s < c["sizes"].size(); ++s) {
        EXPECT_EQ(samples_with_surplus(c["sizes"][s], c["weights"][d], c["surplus"]), c["result"][d][s]);
      }
    }
  }
}

TEST(Blend, DataPathsMatchMegatron) {
  const json cases = testing::read_json(fixture("blend/small_functions.json"));
  for (const json& c : cases["data_path"]) {
    SCOPED_TRACE(c["data_path"].dump());
    const auto items = c["data_path"].get<std::vector<std::string>>();
    if (c.contains("error")) {
      EXPECT_THROW(parse_data_path(items), UserError);
      continue;
    }
    const Blend blend = parse_data_path(items);
    EXPECT_EQ(json(blend.prefixes), c["result"][0]);
    EXPECT_EQ(blend.weights.has_value(), !c["result"][1].is_null());
    if (blend.weights) {
      EXPECT_EQ(json(*blend.weights), c["result"][1]);
    }
  }
  EXPECT_THROW(parse_data_path({}), UserError);
  const std::string weight_last[] = {"0.3", "a", "0.7"};
  EXPECT_NE(testing::message_of([&] { parse_data_path(weight_last); }, ExitCode::config)
                .find("\"0.7\" has no prefix"),
            std::string::npos);
}

TEST(Blend, PythonFloat) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{{"1", 1},
                                                                               {"+1.5", 1.5},
                                                                               {"-.5", -.5},
                                                                               {"5.", 5},
                                                                               {"1e3", 1000},
                                                                               {"1E-2", .01},
                                                                               {"1_000.2_5", 1000.25},
                                                                               {"\t2\n", 2},
                                                                               {"1e-400", 0},
                                                                               {"Infinity", HUGE_VAL},
                                                                               {"-inf", -HUGE_VAL},
                                                                               {"1e400", HUGE_VAL}}) {
    const auto parsed = python_float(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(*parsed, value) << text;
  }
  EXPECT_TRUE(std::isnan(*python_float("NaN")));
  for (const std::string text :
       {"", " ", "_1", "1_", "1__0", "0x10", "1 2", "1e", "--1", "+-1", "infin", "e5", ".", "1f", "1._5"}) {
    EXPECT_FALSE(python_float(text)) << text;
  }
}

GPTDataOptions builder_options(const json& c) {
  GPTDataOptions options{.sequence_length = c["sequence_length"], .seed = c["random_seed"]};
  const auto items = [](const json& blend) {
    std::vector<std::string> list;
    for (size_t i = 0; i < blend[0].size(); ++i) {
      if (!blend[1].is_null()) list.push_back(blend[1][i].dump());
      list.push_back(fixture(blend[0][i]).string());
    }
    return list;
  };
  if (c.contains("blend")) {
    options.sources.data_path = items(c["blend"]);
    options.sources.split = c["split"];
  } else {
    for (size_t s = 0; s < 3; ++s) {
      if (!c["blend_per_split"][s].is_null())
        options.sources.split_data_path[s] = items(c["blend_per_split"][s]);
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    options.sources.samples[s].reset();
    if (!c["sizes"][s].is_null()) options.sources.samples[s] = c["sizes"][s].get<int64_t>();
  }
  options.sources.surplus = c.value("mid_level_dataset_surplus", 0.005);
  options.masks = {.eod_id = 99, .vocab_size = 100};
  return options;
}

void expect_split(const Dataset* built, const json& expected) {
  if (expected.is_null()) {
    EXPECT_EQ(built, nullptr);
    return;
  }
  ASSERT_NE(built, nullptr);
  const auto length = expected.contains("size") ? expected["size"] : expected["length"];
  EXPECT_EQ(built->size(), length.get<int64_t>());
  if (expected.contains("dataset_index_sha256")) {
    const auto* blend = dynamic_cast<const BlendedDataset*>(built);
    ASSERT_NE(blend, nullptr);
    expect_index(blend->index(), expected);
    for (size_t i = 0; i < blend->parts().size(); ++i) {
      EXPECT_EQ(blend->parts()[i]->size(), expected["mid_level"][i]["length"]);
    }
  } else {
    EXPECT_EQ(dynamic_cast<const BlendedDataset*>(built), nullptr);
  }
  for (const json& c : expected.value("samples", json::array())) {
    EXPECT_EQ(json(read_sample(*built, c["i"], static_cast<int64_t>(c["tokens"].size())).tokens),
              c["tokens"]);
  }
}

TEST(GPTBuilder, MatchesMegatron) {
  for (const json& c : testing::read_json(fixture("blend/builder.json"))) {
    SCOPED_TRACE(c["case"].dump());
    for (const bool cached : {false, true}) {
      TemporaryFolder folder;
      GPTDataOptions options = builder_options(c);
      if (cached) options.cache = {IndexCache::Place::folder, folder / "cache"};
      const Datasets built = build_gpt_datasets(options);
      expect_split(built.train.get(), c["splits"]["train"]);
      expect_split(built.valid.get(), c["splits"]["valid"]);
      expect_split(built.test.get(), c["splits"]["test"]);
    }
  }
}

std::string error_of(const GPTDataOptions& options, ExitCode kind) {
  return testing::message_of([&] { build_gpt_datasets(options); }, kind);
}

TEST(GPTBuilder, InvalidOptions) {
  const std::string six = fixture("corpora/six").string();
  const GPTDataOptions good{.sources = {.data_path = {six}, .split = "1", .samples = {5, 0, 0}},
                            .sequence_length = 4};
  EXPECT_EQ(error_of(good, ExitCode::config), "");
  auto options = good;
  options.sequence_length = 0;
  options.sources.data_path = {};
  options.sources.samples[0] = -1;
  const std::string all = error_of(options, ExitCode::config);
  for (const char* part : {"no data given", "--seq-length", "-1 train samples"}) {
    EXPECT_NE(all.find(part), std::string::npos) << all;
  }
  options = good;
  options.sources.mock_data = true;
  EXPECT_NE(error_of(options, ExitCode::config).find("more than one source"), std::string::npos);
  options.sources.data_path.clear();
  EXPECT_NE(error_of(options, ExitCode::config).find("needs a vocabulary size"), std::string::npos);
  options = good;
  options.sources.data_path = {"0", six};
  EXPECT_NE(error_of(options, ExitCode::config).find("not a positive number"), std::string::npos);
  options.sources.data_path = {"1", six};
  options.sources.samples[0].reset();
  EXPECT_NE(error_of(options, ExitCode::config).find("number of train samples"), std::string::npos);
  options = good;
  options.sources.data_path = {six + "-missing"};
  EXPECT_NE(error_of(options, ExitCode::data).find("six-missing.idx"), std::string::npos);
}

TEST(GPTBuilder, SplitsWithoutSequences) {
  const std::string one = fixture("corpora/one").string();
  GPTDataOptions options{.sources = {.data_path = {one}, .split = "969,30,1", .samples = {5, 5, 5}},
                         .sequence_length = 4};
  const Datasets built = build_gpt_datasets(options);
  EXPECT_NE(built.train, nullptr);
  EXPECT_EQ(built.valid, nullptr);
  EXPECT_EQ(built.test, nullptr);
  options.sources.split = "1,98,1";
  EXPECT_NE(error_of(options, ExitCode::data).find("the train split has none"), std::string::npos);
}

TEST(GPTBuilder, SplitsWithoutSamplesAreNotBuiltAndOthersAreNamed) {
  TemporaryFolder folder;
  IndexedDatasetBuilder builder(folder / "a", Dtype::u16);
  for (const size_t length : {100, 1}) {
    builder.add_sequence(std::vector<int32_t>(length, 7));
    builder.end_document();
  }
  builder.finalize();
  GPTDataOptions options{.sources = {.data_path = {folder / "a"}, .split = "1,1", .samples = {5, 0, 0}},
                         .sequence_length = 4};
  const Datasets built = build_gpt_datasets(options);
  EXPECT_NE(built.train, nullptr);
  EXPECT_EQ(built.valid, nullptr);
  options.sources.samples[1] = 5;
  const std::string error = error_of(options, ExitCode::data);
  EXPECT_NE(error.find("the valid split: 1 sequences with 1 tokens"), std::string::npos) << error;
  EXPECT_NE(error.find("--eval-iters 0"), std::string::npos) << error;
}

TEST(GPTBuilder, PrefixMayHaveASuffix) {
  const std::string six = fixture("corpora/six").string();
  const GPTDataOptions options{.sources = {.data_path = {six + ".bin"}, .split = "1", .samples = {5, 0, 0}},
                               .sequence_length = 4};
  EXPECT_NE(build_gpt_datasets(options).train, nullptr);
}

TEST(GPTBuilder, DataPathsFromFiles) {
  TemporaryFolder folder;
  const auto write = [&](const std::string& text) {
    testing::write_bytes(folder / "paths", text);
    return folder / "paths";
  };
  using Items = std::vector<std::string>;
  EXPECT_EQ(read_data_args(write(" 0.3 a\n0.7\tb \n")), (Items{"0.3", "a", "0.7", "b"}));
  const auto items =
      read_per_split_data_args(write(R"({"train": ["1", "a"], "valid": "2 b", "test": null})"));
  EXPECT_EQ(items[0], (Items{"1", "a"}));
  EXPECT_EQ(items[1], (Items{"2", "b"}));
  EXPECT_TRUE(items[2].empty());
  const auto error_of = [](const auto& action) { return testing::message_of(action); };
  EXPECT_NE(error_of([&] { read_data_args(write(" \n")); }).find("contains no dataset"), std::string::npos);
  EXPECT_NE(error_of([&] { read_data_args(folder / "none"); }).find("none"), std::string::npos);
  for (const std::string text : {"[]", R"({"train": []})"}) {
    EXPECT_NE(error_of([&] { read_per_split_data_args(write(text)); }).find("is missing"), std::string::npos);
  }
  EXPECT_NE(
      error_of([&] { read_per_split_data_args(write(R"({"train": [1]})")); }).find("not a list of strings"),
      std::string::npos);
}

TEST(GPTBuilder, MockData) {
  const GPTDataOptions options{.sources = {.mock_data = true, .samples = {7, 3, 0}},
                               .sequence_length = 8,
                               .masks = {.vocab_size = 50}};
  const Datasets built = build_gpt_datasets(options);
  EXPECT_EQ(built.train->size(), 7);
  EXPECT_EQ(built.valid->size(), 3);
  EXPECT_EQ(built.test, nullptr);
}

TEST(BlendedDataset, OversampledDatasetIsNamed) {
  const auto part = std::make_shared<MockGPTDataset>(
      MockGPTDataset::Options{.samples = 3, .sequence_length = 4, .vocab_size = 10});
  try {
    BlendedDataset({part, part}, build_blending_indices(std::vector<double>{0.9, 0.1}, 10));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("--mid-level-dataset-surplus"), std::string::npos);
  }
}

}  // namespace
}  // namespace teratron
