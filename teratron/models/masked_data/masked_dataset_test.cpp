#include "teratron/models/masked_data/masked_dataset.h"

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/bert/data/bert_dataset.h"
#include "teratron/models/t5/data/t5_dataset.h"
#include "teratron/testing/fixtures.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::TemporaryFolder;

json rows_of(const IndexArray& mapping) {
  json list = json::array();
  for (int64_t i = 0; i < mapping.rows(); ++i) {
    const SampleMappingRow row = row_at(mapping, i);
    list.push_back({row.first, row.last, row.target_length});
  }
  return list;
}

std::string sha256_of_rows(const IndexArray& mapping) {
  std::vector<uint32_t> values;
  for (int64_t i = 0; i < mapping.rows(); ++i) {
    for (int64_t column = 0; column < 3; ++column)
      values.push_back(static_cast<uint32_t>(mapping.at(i, column)));
  }
  return testing::sha256_of(values);
}

TEST(SampleMapping, MatchesMegatron) {
  for (const json& c : testing::read_json(fixture("masked/sample_maps.json"))) {
    const IndexedDataset dataset(fixture(c["prefix"]).string());
    const auto rows = build_sample_mapping(dataset, {c["documents"][0], c["documents"][1]},
                                           {.max_epochs = c["epochs"],
                                            .max_samples = c["max_num_samples"],
                                            .max_length = c["max_seq_length"],
                                            .short_sequence_probability = c["short_seq_prob"],
                                            .seed = c["seed"],
                                            .min_sentences = c["min_sentences"]});
    EXPECT_EQ(sha256_of_rows(rows), c["sha256"]);
    EXPECT_EQ(rows.rows(), c["shape"][0]);
  }
}

TEST(SampleMapping, IsCached) {
  TemporaryFolder folder;
  const IndexedDataset dataset(fixture("preprocess/bert-sentences.core_v0.7.0_text_sentence").string());
  const SampleMappingOptions options{.max_samples = 50, .max_length = 60, .min_sentences = 2};
  const json expected = rows_of(build_sample_mapping(dataset, {0, dataset.documents()}, options));
  for (int round = 0; round < 2; ++round)
    EXPECT_EQ(rows_of(cached_sample_mapping(dataset, {0, dataset.documents()}, options,
                                            {IndexCache::Place::folder, folder / "cache"})),
              expected);
  const auto files = std::distance(std::filesystem::directory_iterator(folder / "cache"),
                                   std::filesystem::directory_iterator());
  EXPECT_EQ(files, 2);  // description and array; the lock is gone
}

TEST(SampleMapping, DocumentsWithoutSentences) {
  const IndexedDataset dataset(fixture("corpora/forty").string());
  EXPECT_THROW(
      build_sample_mapping(dataset, {0, 40}, {.max_samples = 5, .max_length = 20, .min_sentences = 2}),
      UserError);
}

std::vector<bool> vocabulary() {
  const char* folder = std::getenv("TERATRON_TEST_DATA");
  const auto base = folder != nullptr ? std::filesystem::path(folder)
                                      : std::filesystem::path(TERATRON_SOURCE_DIR) / ".." / "shared" / "data";
  const auto path = base / "bert-uncased-vocab.txt";
  if (!std::filesystem::exists(path)) return {};
  return build_tokenizer({.type = "BertWordPieceLowerCase", .vocab_file = path.string()})
      ->continuation_pieces();
}

MaskedDatasetOptions options_of(const json& c) {
  MaskedDatasetOptions options{.sequence_length = c["sequence_length"], .seed = c["random_seed"]};
  options.masking_probability = c["masking_probability"];
  options.max_ngram = c["masking_max_ngram"];
  options.geometric_ngrams = c["masking_use_geometric_distribution"];
  options.longer_ngrams = c["masking_use_longer_ngrams"];
  if (c["masking_do_full_word"]) options.continues_word = vocabulary();
  options.vocab_size = c["vocab"];
  options.cls_id = c["cls"];
  options.sep_id = c["sep"];
  options.mask_id = c["mask"];
  options.pad_id = c["pad"];
  options.classification_head = c.value("classification_head", false);
  options.decoder_sequence_length = c.value("sequence_length_decoder", 0);
  options.bos_id = c.value("bos", -1);
  options.eos_id = c.value("eos", -1);
  if (c.contains("sentinels")) options.sentinel_ids = c["sentinels"].get<std::vector<int64_t>>();
  return options;
}

IndexArray rows_for(const IndexedDataset& data, const json& c, int64_t special) {
  const int64_t first = c["first_document"];
  const auto rows = build_sample_mapping(data, {first, first + c["documents"].get<int64_t>()},
                                         {.max_samples = c["num_samples"],
                                          .max_length = c["sequence_length"].get<int64_t>() - special,
                                          .short_sequence_probability = c["short_sequence_probability"],
                                          .seed = c["random_seed"],
                                          .min_sentences = c.value("classification_head", false) ? 2 : 1});
  EXPECT_EQ(rows_of(rows), c["sample_index"]);
  return rows;
}

TEST(BertDataset, MatchesMegatron) {
  if (vocabulary().empty()) GTEST_SKIP() << "no BERT vocabulary";
  int checked = 0;
  for (const json& c : testing::read_json(fixture("masked/bert_samples.json"))) {
    const auto data = std::make_shared<IndexedDataset>(fixture(c["prefix"]).string());
    const BertDataset dataset(data, rows_for(*data, c, 3), options_of(c));
    for (const json& expected : c["samples"]) {
      const BertSample sample = dataset.get(expected["i"]);
      EXPECT_EQ(json(sample.text), expected["text"]) << c["index_split"] << expected["i"];
      EXPECT_EQ(json(sample.types), expected["types"]);
      EXPECT_EQ(json(sample.labels), expected["labels"]);
      EXPECT_EQ(json(sample.padding_mask), expected["padding_mask"]);
      EXPECT_EQ(json(sample.loss_mask), expected["loss_mask"]);
      EXPECT_EQ(static_cast<int>(sample.is_random), expected["is_random"]);
      EXPECT_EQ(static_cast<int>(sample.truncated), expected["truncated"]);
      ++checked;
    }
  }
  EXPECT_GT(checked, 20);
}

TEST(BertSamples, FillTheColumns) {
  if (vocabulary().empty()) GTEST_SKIP() << "no BERT vocabulary";
  int padded = 0;
  for (const json& c : testing::read_json(fixture("masked/bert_samples.json"))) {
    const auto data = std::make_shared<IndexedDataset>(fixture(c["prefix"]).string());
    const MaskedDatasetOptions options = options_of(c);
    const BertSamples dataset(BertDataset(data, rows_for(*data, c, 3), options));
    const BatchSchema schema =
        bert_schema({.sequence_length = options.sequence_length,
                     .predictions = most_predictions(options.sequence_length, options.masking_probability),
                     .sentence_pairs = options.classification_head});
    for (const json& expected : c["samples"]) {
      Batch batch(schema, 1);
      dataset.get(expected["i"], batch.sample(0));
      const auto values = [&batch](const char* name) {
        const auto column = batch.values<int64_t>(name);
        return std::vector<int64_t>(column.begin(), column.end());
      };
      EXPECT_EQ(json(values("tokens")), expected["text"]);
      std::vector<int64_t> positions = values("masked_positions"), labels = values("masked_labels");
      size_t count = 0;
      for (size_t position = 0; position < expected["labels"].size(); ++position) {
        if (expected["loss_mask"][position] == 0) continue;
        ASSERT_LT(count, positions.size());
        EXPECT_EQ(positions[count], static_cast<int64_t>(position));
        EXPECT_EQ(labels[count], expected["labels"][position]);
        EXPECT_EQ(batch.values<float>("masked_loss_mask")[count++], 1.0F);
      }
      for (; count < positions.size(); ++count)
        EXPECT_EQ(batch.values<float>("masked_loss_mask")[count], 0.0F);
      const auto starts = batch.values<int32_t>("segment_start");
      for (size_t position = 0; position < starts.size(); ++position) {
        const bool real = expected["padding_mask"][position] == 1;
        EXPECT_EQ(starts[position] == 0, real);
        if (options.classification_head && real) {
          EXPECT_EQ(values("types")[position], expected["types"][position]);
        }
        padded += real ? 0 : 1;
      }
      if (options.classification_head) {
        EXPECT_EQ(values("is_random")[0], expected["is_random"]);
      }
    }
  }
  EXPECT_GT(padded, 0);
}

TEST(MockBertDataset, FillsRowsWithPairsAndMasks) {
  const MaskedDatasetOptions options{.sequence_length = 32, .vocab_size = 50};
  const MockBertDataset dataset(20, options);
  const BatchSchema schema =
      bert_schema({.sequence_length = 32, .predictions = most_predictions(32, 0.15), .padding = false});
  int64_t masked = 0, swapped = 0;
  for (int64_t i = 0; i < 20; ++i) {
    Batch batch(schema, 1), again(schema, 1);
    dataset.get(i, batch.sample(0));
    dataset.get(i, again.sample(0));
    const auto tokens = batch.values<int64_t>("tokens");
    EXPECT_TRUE(std::ranges::equal(tokens, again.values<int64_t>("tokens")));
    EXPECT_EQ(tokens[0], 1);
    EXPECT_EQ(std::ranges::count(tokens, 2), 2);
    EXPECT_EQ(tokens.back(), 2);
    EXPECT_EQ(batch.values<int64_t>("types").back(), 1);
    for (const float one : batch.values<float>("masked_loss_mask")) masked += one > 0.0F ? 1 : 0;
    swapped += batch.values<int64_t>("is_random")[0];
  }
  EXPECT_GT(masked, 40);
  EXPECT_GT(swapped, 0);
  EXPECT_LT(swapped, 20);
}

TEST(T5Dataset, MatchesMegatron) {
  if (vocabulary().empty()) GTEST_SKIP() << "no BERT vocabulary";
  int checked = 0;
  for (const json& c : testing::read_json(fixture("masked/t5_samples.json"))) {
    const auto data = std::make_shared<IndexedDataset>(fixture(c["prefix"]).string());
    const T5Dataset dataset(data, rows_for(*data, c, 2), options_of(c));
    for (const json& expected : c["samples"]) {
      const T5Sample sample = dataset.get(expected["i"]);
      EXPECT_EQ(json(sample.text_enc), expected["text_enc"]) << c["index_split"] << expected["i"];
      EXPECT_EQ(json(sample.text_dec), expected["text_dec"]);
      EXPECT_EQ(json(sample.labels), expected["labels"]);
      EXPECT_EQ(json(sample.loss_mask), expected["loss_mask"]);
      EXPECT_EQ(json(sample.enc_mask), expected["enc_mask"]);
      EXPECT_EQ(json(sample.dec_mask), expected["dec_mask"]);
      EXPECT_EQ(static_cast<int>(sample.truncated), expected["truncated"]);
      ++checked;
    }
  }
  EXPECT_GT(checked, 10);
}

TEST(T5Samples, FillTheColumns) {
  if (vocabulary().empty()) GTEST_SKIP() << "no BERT vocabulary";
  int padded = 0;
  for (const json& c : testing::read_json(fixture("masked/t5_samples.json"))) {
    const auto data = std::make_shared<IndexedDataset>(fixture(c["prefix"]).string());
    const MaskedDatasetOptions options = options_of(c);
    const T5Samples dataset(data, rows_for(*data, c, 2), options);
    const BatchSchema schema = t5_schema({options.sequence_length, options.decoder_sequence_length});
    for (const json& expected : c["samples"]) {
      Batch batch(schema, 1);
      dataset.get(expected["i"], batch.sample(0));
      const auto values = [&batch](const char* name) {
        const auto column = batch.values<int64_t>(name);
        return std::vector<int64_t>(column.begin(), column.end());
      };
      const auto mask = batch.values<float>("loss_mask");
      EXPECT_EQ(json(values("encoder_tokens")), expected["text_enc"]);
      EXPECT_EQ(json(values("decoder_tokens")), expected["text_dec"]);
      std::vector<int64_t> labels = expected["labels"], loss_mask = expected["loss_mask"],
                           source = expected["enc_mask"];
      for (int64_t& label : labels) label = std::max<int64_t>(label, 0);
      EXPECT_EQ(values("labels"), labels);
      EXPECT_TRUE(std::equal(mask.begin(), mask.end(), loss_mask.begin(), loss_mask.end()));
      const int64_t length = values("encoder_length")[0];
      EXPECT_EQ(length, std::count(source.begin(), source.end(), 1));
      padded += length < options.sequence_length ? 1 : 0;
    }
  }
  EXPECT_GT(padded, 3);
}

TEST(T5Dataset, SentinelsAndDecoderLength) {
  const auto data = std::make_shared<IndexedDataset>(fixture("corpora/forty").string());
  MaskedDatasetOptions options{.sequence_length = 64,
                               .max_ngram = 1,
                               .vocab_size = 100,
                               .pad_id = 0,
                               .decoder_sequence_length = 64,
                               .bos_id = 1,
                               .eos_id = 2};
  EXPECT_THROW(T5Dataset(data, IndexArray(std::vector<uint32_t>{1, 2, 62}, 3), options), UserError);
  options.sentinel_ids = {200, 201};
  const IndexArray rows(std::vector<uint32_t>{7, 14, 62}, 3);
  EXPECT_THROW(T5Dataset(data, rows, options).get(0), UserError);  // 9 spans
  options.sentinel_ids.resize(50, 202);
  options.decoder_sequence_length = 4;
  EXPECT_THROW(T5Dataset(data, rows, options).get(0), UserError);
  options.decoder_sequence_length = 64;
  EXPECT_EQ(T5Dataset(data, rows, options).get(0).text_enc.size(), 64u);
}

}  // namespace
}  // namespace teratron
