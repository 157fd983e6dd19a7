#include "teratron/models/masked_data/masked_dataset.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/testing/fixtures.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::TemporaryFolder;

json rows_of(const std::vector<SampleMappingRow>& rows) {
  json list = json::array();
  for (const SampleMappingRow& row : rows) list.push_back({row.first, row.last, row.target_length});
  return list;
}

std::string sha256_of_rows(const std::vector<SampleMappingRow>& rows) {
  std::vector<uint32_t> values;
  for (const SampleMappingRow& row : rows) {
    for (const int64_t value : {row.first, row.last, row.target_length})
      values.push_back(static_cast<uint32_t>(value));
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
    EXPECT_EQ(static_cast<int64_t>(rows.size()), c["shape"][0]);
  }
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
  return read_continuation_pieces(path.string());
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

std::vector<SampleMappingRow> rows_for(const IndexedDataset& data, const json& c, int64_t special) {
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

TEST(T5Dataset, SentinelsAndDecoderLength) {
  const auto data = std::make_shared<IndexedDataset>(fixture("corpora/forty").string());
  MaskedDatasetOptions options{.sequence_length = 64,
                               .max_ngram = 1,
                               .vocab_size = 100,
                               .pad_id = 0,
                               .decoder_sequence_length = 64,
                               .bos_id = 1,
                               .eos_id = 2};
  EXPECT_THROW(T5Dataset(data, {{1, 2, 62}}, options), UserError);
  options.sentinel_ids = {200, 201};
  const std::vector<SampleMappingRow> rows = {{7, 14, 62}};
  EXPECT_THROW(T5Dataset(data, rows, options).get(0), UserError);  // 9 spans
  options.sentinel_ids.resize(50, 202);
  options.decoder_sequence_length = 4;
  EXPECT_THROW(T5Dataset(data, rows, options).get(0), UserError);
  options.decoder_sequence_length = 64;
  EXPECT_EQ(T5Dataset(data, rows, options).get(0).text_enc.size(), 64u);
}

}  // namespace
}  // namespace teratron
