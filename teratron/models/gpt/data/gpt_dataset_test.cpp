#include "teratron/models/gpt/data/gpt_dataset.h"

#include <cmath>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/samples.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::TemporaryFolder;

std::optional<int64_t> optional_int(const json& value) {
  if (value.is_null()) return {};
  return value.get<int64_t>();
}

GPTIndexOptions index_options(const json& c, size_t split) {
  GPTIndexOptions options{.sequence_length = c["sequence_length"], .seed = c["random_seed"]};
  options.samples = optional_int(c["num_samples"][split]);
  options.add_extra_token = c.value("add_extra_token_to_sequence", true);
  options.drop_last = split != 1 || c.value("drop_last_partial_validation_sequence", true);
  return options;
}

std::string npy_sha256(const IndexArray& array) {
  TemporaryFolder folder;
  array.save(folder / "a.npy");
  return testing::sha256(testing::read_bytes(folder / "a.npy"));
}

json values_of(const IndexArray& array) {
  json values = json::array();
  for (int64_t row = 0; row < array.rows(); ++row) {
    if (array.columns() == 0) {
      values.push_back(array.at(row));
    } else {
      values.push_back({array.at(row, 0), array.at(row, 1)});
    }
  }
  return values;
}

void expect_array(const IndexArray& array, const json& expected) {
  if (expected.contains("values")) {
    EXPECT_EQ(values_of(array), expected["values"]);
  }
  EXPECT_EQ(array.rows(), expected["shape"][0]);
  EXPECT_EQ(npy_sha256(array), expected["sha256"]);
}

TEST(GPTIndex, MatchesMegatron) {
  int checked = 0;
  for (const json& c : testing::read_json(fixture("gpt/indices.json"))) {
    SCOPED_TRACE(c["case"]);
    const IndexedDataset dataset(fixture(c["prefix"]).string());
    const auto ranges = split_ranges(parse_split(c["split"].get<std::string>()), dataset.sequences());
    for (size_t s = 0; s < 3; ++s) {
      SCOPED_TRACE(kSplitNames[s]);
      const json& expected = c["splits"][kSplitNames[s]];
      if (expected.is_null()) {
        EXPECT_TRUE(!ranges[s] || ranges[s]->size() == 0);
        continue;
      }
      ASSERT_TRUE(ranges[s]);
      EXPECT_EQ(ranges[s]->first, expected["first_sequence"]);
      EXPECT_EQ(ranges[s]->size(), expected["sequences"]);
      const auto lengths = dataset.lengths(ranges[s]->first, ranges[s]->size());
      const GPTIndex index = build_gpt_index(*ranges[s], lengths, index_options(c, s));
      EXPECT_EQ(index.tokens_per_epoch, expected["tokens_per_epoch"]);
      EXPECT_EQ(index.epochs, expected["epochs"]);
      expect_array(index.document_index, expected["document_index"]);
      expect_array(index.sample_index, expected["sample_index"]);
      expect_array(index.shuffle_index, expected["shuffle_index"]);
      ++checked;
    }
  }
  EXPECT_GT(checked, 40);
}

TEST(GPTIndex, SplitsOfSmallFunctions) {
  const json cases = testing::read_json(fixture("blend/small_functions.json"));
  for (const json& c : cases["split_matrix"]) {
    SCOPED_TRACE(c["split"]);
    const auto shares = parse_split(c["split"].get<std::string>());
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(shares[i], std::strtod(c["vector_hex"][i].get<std::string>().c_str(), nullptr));
    }
    for (const auto& [sequences, bounds] : c["bounds"].items()) {
      const auto ranges = split_ranges(shares, std::stoll(sequences));
      for (size_t i = 0; i < 3; ++i) {
        if (bounds[i].is_null()) {
          EXPECT_FALSE(ranges[i]);
        } else {
          ASSERT_TRUE(ranges[i]);
          EXPECT_EQ(ranges[i]->first, bounds[i][0]);
          EXPECT_EQ(ranges[i]->last, bounds[i][1]);
        }
      }
    }
  }
}

TEST(GPTIndex, InvalidSplits) {
  for (const std::string split : {"", "a", "1,2,3,4", "1.2.3", "0,0,0", "."}) {
    EXPECT_THROW(parse_split(split), UserError) << split;
  }
}

TEST(GPTIndex, TooLittleData) {
  const std::vector<int32_t> lengths = {0, 1, 0};
  EXPECT_THROW(build_gpt_index({0, 3}, lengths, {.sequence_length = 4}), UserError);
  EXPECT_THROW(build_gpt_index({0, 0}, {}, {.sequence_length = 4, .samples = 3}), UserError);
  const std::vector<int32_t> two = {2};
  EXPECT_THROW(build_gpt_index({0, 1}, two, {.sequence_length = 4, .samples = int64_t{1} << 62}), UserError);
}

GPTMaskOptions mask_options(const json& c) {
  const auto flag = [&](const char* name) {
    return c.contains(name) && (c[name].is_boolean() ? c[name].get<bool>() : c[name].get<int>() != 0);
  };
  return {.eod_id = c["eod"],
          .pad_id = c["pad"].is_null() ? -1 : c["pad"].get<int64_t>(),
          .reset_position_ids = flag("reset_position_ids"),
          .reset_attention_mask = flag("reset_attention_mask"),
          .eod_mask_loss = flag("eod_mask_loss"),
          .inter_document_masking = flag("inter_document_masking")};
}

void expect_sample(const GPTSample& sample, const json& expected) {
  SCOPED_TRACE(expected["i"]);
  EXPECT_EQ(json(sample.tokens), expected["tokens"]);
  EXPECT_EQ(json(sample.labels), expected["labels"]);
  EXPECT_EQ(json(sample.position_ids), expected["position_ids"]);
  EXPECT_EQ(sample.loss_mask, expected["loss_mask"].get<std::vector<float>>());
  if (expected.contains("first_visible")) {
    EXPECT_EQ(json(sample.segment_start), expected["first_visible"]);
  }
  if (expected.contains("cu_seqlens")) {
    std::vector<int64_t> bounds = {0};
    const auto length = static_cast<int64_t>(sample.tokens.size());
    for (const int64_t start : sample.segment_start) {
      if (start != bounds.back()) bounds.push_back(start);
    }
    bounds.resize(sample.tokens.size() + 1, length);
    EXPECT_EQ(json(bounds), expected["cu_seqlens"]);
  }
}

TEST(GPTDataset, SamplesMatchMegatron) {
  int checked = 0;
  for (const json& c : testing::read_json(fixture("gpt/samples.json"))) {
    if (!std::filesystem::exists(fixture(c["prefix"].get<std::string>() + ".idx"))) continue;
    const auto data = std::make_shared<IndexedDataset>(fixture(c["prefix"]).string());
    const size_t split = c["index_split"] == "train" ? 0 : c["index_split"] == "valid" ? 1 : 2;
    const auto range = split_ranges(parse_split(c["split"].get<std::string>()), data->sequences())[split];
    ASSERT_TRUE(range);
    const auto options = index_options(c, split);
    const GPTDataset dataset(data,
                             build_gpt_index(*range, data->lengths(range->first, range->size()), options),
                             options, mask_options(c));
    EXPECT_EQ(dataset.size(), c["length"]);
    for (const json& expected : c["samples"]) {
      expect_sample(read_sample(dataset, expected["i"], options.sequence_length), expected);
      ++checked;
    }
  }
  EXPECT_GT(checked, 80);
}

/// Reference implementation, token by token: the tokens of all epochs concatenated.
TEST(GPTDataset, AgreesWithAPlainConcatenation) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    TemporaryFolder folder;
    const int64_t documents = 1 + random() % 12;
    IndexedDatasetBuilder builder(folder / "a", Dtype::u16);
    std::vector<std::vector<int32_t>> texts;
    for (int64_t d = 0; d < documents; ++d) {
      std::vector<int32_t> text(random() % 9);
      for (auto& token : text) token = static_cast<int32_t>(1 + random() % 6);
      builder.add_sequence(text);
      builder.end_document();
      texts.push_back(text);
    }
    builder.add_sequence(texts.emplace_back(std::vector<int32_t>{3, 5}));
    builder.end_document();
    builder.finalize();
    const auto data = std::make_shared<IndexedDataset>(folder / "a");
    GPTIndexOptions options{.sequence_length = static_cast<int64_t>(1 + random() % 9),
                            .seed = static_cast<uint32_t>(random())};
    options.add_extra_token = random() % 3 != 0;
    options.drop_last = random() % 3 != 0;
    if (random() % 4 != 0) options.samples = 1 + random() % 40;
    const GPTMaskOptions masks{.eod_id = 6, .reset_attention_mask = true, .eod_mask_loss = true};
    const auto index = build_gpt_index({0, data->sequences()}, data->lengths(0, data->sequences()), options);
    std::vector<int64_t> row;
    for (int64_t e = 0; e < index.document_index.rows(); ++e) {
      const auto& text = texts[static_cast<size_t>(index.document_index.at(e))];
      row.insert(row.end(), text.begin(), text.end());
    }
    ASSERT_EQ(static_cast<int64_t>(row.size()), index.epochs * index.tokens_per_epoch);
    const GPTDataset dataset(data, index, options, masks);
    if (options.samples) {
      EXPECT_GE(dataset.size(), *options.samples);
    }
    std::vector<bool> seen(static_cast<size_t>(dataset.size()));
    for (int64_t i = 0; i < dataset.size(); ++i) {
      const GPTSample sample = read_sample(dataset, i, options.sequence_length);
      const int64_t number = index.shuffle_index.at(i);
      EXPECT_FALSE(seen[static_cast<size_t>(number)]);
      seen[static_cast<size_t>(number)] = true;
      int32_t start = 0;
      for (int64_t t = 0; t < options.sequence_length; ++t) {
        const auto at = static_cast<size_t>(number * options.sequence_length + t);
        const int64_t token = at < row.size() ? row[at] : 0;
        const bool has_label =
            at + 1 < row.size() && (options.add_extra_token || t + 1 < options.sequence_length);
        EXPECT_EQ(sample.tokens[t], token);
        EXPECT_EQ(sample.labels[t], has_label ? row[at + 1] : 0);
        EXPECT_EQ(sample.loss_mask[t], has_label && token != 6 ? 1 : 0);
        EXPECT_EQ(sample.segment_start[t], start);
        if (token == 6) start = static_cast<int32_t>(t + 1);
      }
    }
  }
}

TEST(GPTDataset, Fault27TokenOutsideTheVocabulary) {
  const auto data = std::make_shared<IndexedDataset>(fixture("corpora/six").string());
  const GPTIndexOptions options{.sequence_length = 4};
  const auto index = build_gpt_index({0, 6}, data->lengths(0, 6), options);
  const GPTDataset dataset(data, index, options, {.vocab_size = 99});
  std::string message;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    try {
      read_sample(dataset, i, 4);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
      message = error.what();
    }
  }
  for (const char* part : {"six.bin", "document", "position", "token id 99", "vocabulary of 99"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(GPTDataset, PadOfTheTokenizer) {
  EXPECT_EQ(dataset_pad_id({}, false), -1);
  EXPECT_EQ(dataset_pad_id({.eod = 5, .pad = 3}, false), 3);
  EXPECT_EQ(dataset_pad_id({.eod = 3, .pad = 3}, false), -1);
  EXPECT_EQ(dataset_pad_id({.eos = 3, .pad = 3}, false), -1);
  EXPECT_EQ(dataset_pad_id({.eod = 3, .pad = 3}, true), 3);
}

TEST(MockGPTDataset, DeterministicAndInsideTheVocabulary) {
  const MockGPTDataset dataset({.samples = 50, .sequence_length = 17, .vocab_size = 11, .seed = 3});
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const GPTSample a = read_sample(dataset, i, 17), b = read_sample(dataset, i, 17);
    EXPECT_EQ(a.tokens, b.tokens);
    for (size_t t = 0; t < a.tokens.size(); ++t) {
      EXPECT_GE(a.tokens[t], 0);
      EXPECT_LT(a.tokens[t], 11);
      if (t + 1 < a.tokens.size()) {
        EXPECT_EQ(a.labels[t], a.tokens[t + 1]);
      }
    }
  }
  EXPECT_NE(read_sample(dataset, 0, 17).tokens, read_sample(dataset, 1, 17).tokens);
}

TEST(GPTIndexCache, FilesEqualMegatronsArraysAndAreReused) {
  TemporaryFolder folder;
  const IndexedDataset dataset(fixture("corpora/forty").string());
  const GPTIndexOptions options{.sequence_length = 16, .seed = 1234, .samples = 60};
  for (int round = 0; round < 2; ++round) {
    const GPTIndex index =
        cached_gpt_index(dataset, {0, 39}, options, {IndexCache::Place::folder, folder / "cache"});
    EXPECT_EQ(index.samples(), 94);
    EXPECT_EQ(index.epochs, 1);
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    const std::string name = entry.path().filename().string();
    for (const std::string kind : {"document", "sample", "shuffle"}) {
      if (!name.ends_with(kind + "_index.npy")) continue;
      const auto megatron =
          fixture("gpt/cache/0aebe0304941ba3f6ca21f0c9c2c14d9-GPTDataset-train-" + kind + "_index.npy");
      EXPECT_EQ(testing::read_bytes(entry.path()), testing::read_bytes(megatron));
      ++files;
    }
  }
  EXPECT_EQ(files, 3);
}

TEST(GPTIndexCache, Fault25ChangedDataIsDetected) {
  TemporaryFolder folder;
  const auto write = [&](int32_t documents) {
    IndexedDatasetBuilder builder(folder / "a", Dtype::u16);
    for (int32_t d = 0; d < documents; ++d) {
      builder.add_sequence(std::vector<int32_t>{1, 2, d});
      builder.end_document();
    }
    builder.finalize();
  };
  write(4);
  const auto samples = [&](int64_t documents) {
    return cached_gpt_index(IndexedDataset(folder / "a"), {0, documents}, {.sequence_length = 2},
                            {IndexCache::Place::folder, folder / "cache"})
        .samples();
  };
  EXPECT_EQ(samples(4), 5);
  write(6);
  EXPECT_EQ(samples(4), 5);
  EXPECT_EQ(samples(6), 8);
  int descriptions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    descriptions += entry.path().extension() == ".json" ? 1 : 0;
  }
  EXPECT_EQ(descriptions, 3);
}

TEST(GPTIndexCache, DamagedFilesAreRebuilt) {
  TemporaryFolder folder;
  const IndexedDataset dataset(fixture("corpora/forty").string());
  const GPTIndexOptions options{.sequence_length = 16, .samples = 60};
  const auto build = [&] {
    return cached_gpt_index(dataset, {0, 39}, options, {IndexCache::Place::folder, folder / "cache"});
  };
  const json expected = values_of(build().sample_index);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    if (entry.path().extension() != ".lock") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 4u);
  for (const auto& file : files) {
    const std::string content = testing::read_bytes(file);
    for (const size_t size : {size_t{0}, size_t{9}, size_t{70}, content.size() - 1}) {
      testing::write_bytes(file, content.substr(0, std::min(size, content.size() - 1)));
      EXPECT_EQ(values_of(build().sample_index), expected);
      EXPECT_EQ(testing::read_bytes(file), content);
    }
  }
}

TEST(GPTIndexCache, InvalidEntriesAreErrors) {
  TemporaryFolder folder;
  const auto data = std::make_shared<IndexedDataset>(fixture("corpora/six").string());
  const GPTIndexOptions options{.sequence_length = 4};
  GPTIndex index = build_gpt_index({0, 6}, data->lengths(0, 6), options);
  index.document_index = IndexArray(std::vector<int32_t>(6, 1000));
  EXPECT_THROW(read_sample(GPTDataset(data, index, options, {}), 0, 4), UserError);
  index = build_gpt_index({0, 6}, data->lengths(0, 6), options);
  index.shuffle_index = IndexArray(std::vector<int64_t>(7, 1000));
  EXPECT_THROW(read_sample(GPTDataset(data, index, options, {}), 0, 4), UserError);
  index = build_gpt_index({0, 6}, data->lengths(0, 6), options);
  index.sample_index = IndexArray(std::vector<int64_t>(16, -5), 2);
  EXPECT_THROW(read_sample(GPTDataset(data, index, options, {}), 0, 4), UserError);
}

}  // namespace
}  // namespace teratron
