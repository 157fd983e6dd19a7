// The tokenizers against what Megatron-LM's preprocessing wrote, and what they promise beyond it.
#include "teratron/tokenizer/tokenizer.h"

#include <chrono>
#include <thread>

#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"
#include "teratron/tokenizer/bpe/bpe_model.h"

namespace teratron {
namespace {

using testing::data_file;
using testing::encode;
using testing::expect_user_error;
using testing::fixture;

TokenizerOptions gpt2_options(const std::string& version = "0.7") {
  return {.type = "GPT2BPETokenizer",
          .vocab_file = data_file("gpt2-vocab.json"),
          .merge_file = data_file("gpt2-merges.txt"),
          .compat_version = version};
}

TokenizerOptions bert_options(const std::string& version) {
  return {.type = "BertWordPieceLowerCase",
          .vocab_file = data_file("bert-uncased-vocab.txt"),
          .compat_version = version};
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream file(testing::read_file(path));
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The ids of an indexed dataset without its index: all sequences one after the other.
std::vector<int32_t> read_bin(const std::string& path) {
  const std::string bytes = testing::read_file(path);
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8);
  }
  return ids;
}

/// Ids of every text of a preprocessing input, one after the other. A text is a document or a list of
/// sentences.
std::vector<int32_t> encode_all(const Tokenizer& tokenizer, const std::string& input) {
  std::vector<int32_t> ids;
  for (const auto& line : read_lines(fixture("preprocess/" + input))) {
    const auto& text = line.at("text");
    if (text.is_string()) tokenizer.encode(text.get<std::string>(), ids);
    if (!text.is_array()) continue;
    for (const auto& sentence : text) tokenizer.encode(sentence.get<std::string>(), ids);
  }
  return ids;
}

TEST(Gpt2Bpe, WritesTheIdsOfMegatron) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  const auto head = build_tokenizer(gpt2_options("head"));
  const auto expected = read_lines(fixture("preprocess/docs.jsonl"));
  const auto tokens =
      nlohmann::json::parse(testing::read_file(fixture("preprocess/gpt2.HEAD_text_document.tokens.json")));
  ASSERT_EQ(expected.size(), tokens.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<int32_t> wanted;
    for (const auto& sequence : tokens[i]) {
      for (const auto& id : sequence) wanted.push_back(id.get<int32_t>());
    }
    EXPECT_EQ(encode(*head, expected[i]["text"].get<std::string>()), wanted) << "document " << i;
  }
  for (const char* const version : {"0.7", "2.6"}) {
    const auto old = build_tokenizer(gpt2_options(version));
    EXPECT_EQ(encode_all(*old, "docs.jsonl"),
              read_bin(fixture("preprocess/gpt2.core_v0.7.0_text_document.bin")));
  }
}

TEST(Gpt2Bpe, KnowsItsSpecialTokens) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  const auto old = build_tokenizer(gpt2_options());
  EXPECT_EQ(old->vocab_size(), 50257);
  EXPECT_EQ(old->special().eod, 50256);
  EXPECT_FALSE(old->special().pad.has_value());
  EXPECT_EQ(old->decode(std::vector<int32_t>{15496, 995, 50256}), "Hello world<|endoftext|>");
  EXPECT_EQ(encode(*old, "a<|endoftext|>").size(), 8u);
  EXPECT_EQ(encode(*build_tokenizer(gpt2_options("head")), "a<|endoftext|>"),
            (std::vector<int32_t>{64, 50256}));
}

TEST(Gpt2Bpe, DecodeIsTheInverse) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  const auto tokenizer = build_tokenizer(gpt2_options("head"));
  for (const char* const name : {"tinyshakespeare.txt", "wikitext2-test.txt"}) {
    const std::string text = testing::read_file(data_file(name));
    EXPECT_TRUE(tokenizer->decode(encode(*tokenizer, text)) == text) << name;
  }
  EXPECT_EQ(tokenizer->decode(encode(*tokenizer, "a\xff\xe2\x82z")), "a\xef\xbf\xbd\xef\xbf\xbdz");
}

TEST(Gpt2Bpe, TakesBoundedTimeForOddTexts) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  const auto tokenizer = build_tokenizer(gpt2_options());
  std::string mixed;
  for (int i = 0; mixed.size() < 1'000'000; ++i) mixed += static_cast<char>('a' + i * i % 26);
  const std::string texts[] = {std::string(1'000'000, 'x'),
                               std::string(100'000, '\n'),
                               std::string(1'000'000, ' '),
                               std::string(1'000'000, '\''),
                               mixed,
                               std::string(1'000'000, '\x80')};
  for (const std::string& text : texts) {
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = encode(*tokenizer, text);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 20.0);  // about half a second on an idle machine; quadratic work takes hours
    if (text[0] != '\x80') {
      EXPECT_TRUE(tokenizer->decode(ids) == text);
    }
  }
}

TEST(Gpt2Bpe, ServesSeveralThreads) {
  TERATRON_NEED_DATA("gpt2-vocab.json");
  const auto tokenizer = build_tokenizer(gpt2_options());
  const std::string text = testing::read_file(data_file("tinyshakespeare.txt")).substr(0, 100'000);
  const auto expected = encode(*tokenizer, text);
  std::vector<std::vector<int32_t>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = encode(*tokenizer, text); });
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Bert, WritesTheIdsOfMegatron) {
  TERATRON_NEED_DATA("bert-uncased-vocab.txt");
  const auto old = build_tokenizer(bert_options("0.7"));
  const auto head = build_tokenizer(bert_options("head"));
  TokenizerOptions plain_options = bert_options("head");
  plain_options.include_special_tokens = false;
  const auto plain = build_tokenizer(plain_options);
  const auto bin = [](const char* name) {
    return read_bin(fixture(std::string("preprocess/") + name + ".bin"));
  };
  EXPECT_EQ(encode_all(*head, "docs.jsonl"), bin("bert-documents.HEAD_text_document"));
  EXPECT_EQ(encode_all(*head, "sents_ss.jsonl"), bin("bert-sentences.HEAD_text_sentence"));
  EXPECT_EQ(encode_all(*plain, "sents_ss.jsonl"), bin("bert-sentences-plain.HEAD_text_sentence"));
  EXPECT_EQ(encode_all(*old, "sents_ss.jsonl"), bin("bert-sentences.core_v0.7.0_text_sentence"));
  const auto tokens = nlohmann::json::parse(
      testing::read_file(fixture("preprocess/bert-documents.core_v0.7.0_text_document.tokens.json")));
  const auto documents = read_lines(fixture("preprocess/docs.jsonl"));
  ASSERT_EQ(documents.size(), tokens.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto wanted = tokens[i].empty() ? std::vector<int32_t>() : tokens[i][0].get<std::vector<int32_t>>();
    EXPECT_EQ(encode(*old, documents[i]["text"].get<std::string>()), wanted) << "document " << i;
  }
}

TEST(Bert, AddsTokensAsTheVersionsDo) {
  TERATRON_NEED_DATA("bert-uncased-vocab.txt");
  TokenizerOptions options = bert_options("0.7");
  options.vocab_extra_ids = 100;
  const auto old = build_tokenizer(options);
  EXPECT_EQ(old->vocab_size(), 30522 + 2 + 100);
  EXPECT_EQ(old->special().bos, 30522);
  EXPECT_EQ(old->special().eos, 30523);
  EXPECT_EQ(old->special().additional.front(), 30524);
  EXPECT_EQ(old->special().cls, 101);
  EXPECT_EQ(old->special().mask, 103);
  EXPECT_FALSE(old->special().eod.has_value());
  EXPECT_EQ(build_tokenizer(bert_options("head"))->vocab_size(), 30522);
  options = bert_options("head");
  options.type = "BertWordPieceCase";
  const auto cased = build_tokenizer(options);
  EXPECT_EQ(cased->vocab_size(), 30622);
  EXPECT_EQ(cased->special().bos, 101);
  EXPECT_EQ(encode(*cased, "<extra_id_3>"), (std::vector<int32_t>{101, 30525, 102}));
  EXPECT_EQ(old->decode(std::vector<int32_t>{101, 7592, 22320, 2015, 102, 0}), "hello tiss [SEP]");
}

TEST(Bert, GivesUpOnLongWordsAndStaysQuick) {
  TERATRON_NEED_DATA("bert-uncased-vocab.txt");
  const auto old = build_tokenizer(bert_options("0.7"));
  const auto head = build_tokenizer(bert_options("head"));
  const std::string word(150, 'a');
  EXPECT_GT(encode(*old, word).size(), 1u);
  EXPECT_EQ(encode(*head, word), (std::vector<int32_t>{101, 100, 102}));
  EXPECT_EQ(encode(*old, std::string(201, 'a')), std::vector<int32_t>{100});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(*old, std::string(1'000'000, 'a')), std::vector<int32_t>{100});
  EXPECT_EQ(encode(*old, std::string(1'000'000, '!')).size(), 1'000'000u);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 20.0);
}

TEST(Null, CountsTheEndOfDocumentAsTheVersionsDo) {
  const auto old = build_tokenizer({.type = "NullTokenizer", .vocab_size = 65498});
  EXPECT_EQ(old->vocab_size(), 65499);
  EXPECT_EQ(old->special().eod, 65498);
  const auto head = build_tokenizer({.type = "NullTokenizer", .vocab_size = 65499, .compat_version = "head"});
  EXPECT_EQ(head->vocab_size(), 65499);
  EXPECT_EQ(head->special().eod, 65498);
  EXPECT_EQ(encode(*head, "500 65498 3  3\n3"), (std::vector<int32_t>{500, 65498, 3, 3, 3}));
  EXPECT_EQ(head->decode(std::vector<int32_t>{1, 2}), "1 2");
}

TEST(Null, RefusesWhatIsNoId) {
  const auto tokenizer =
      build_tokenizer({.type = "NullTokenizer", .vocab_size = 100, .compat_version = "head"});
  for (const char* const text : {"1 x", "-1", "100", "1.5", "99999999999999999999"}) {
    expect_user_error(ExitCode::data, "is not an id from 0 to 99", [&] { encode(*tokenizer, text); });
  }
}

TEST(BuildTokenizer, NamesWhatIsMissing) {
  const auto build = [](const TokenizerOptions& options) { return [options] { build_tokenizer(options); }; };
  expect_user_error(ExitCode::config, "unknown tokenizer type 'X'", build({.type = "X"}));
  expect_user_error(ExitCode::config, "requires --vocab-file", build({.type = "GPT2BPETokenizer"}));
  expect_user_error(ExitCode::config, "requires --merge-file",
                    build({.type = "GPT2BPETokenizer", .vocab_file = "v"}));
  expect_user_error(ExitCode::config, "requires --vocab-file", build({.type = "BertWordPieceCase"}));
  expect_user_error(ExitCode::config, "requires --tokenizer-model", build({.type = "HuggingFaceTokenizer"}));
  expect_user_error(ExitCode::config, "vocabulary size", build({.type = "NullTokenizer"}));
  expect_user_error(ExitCode::config, "unknown compatibility version '9'",
                    build({.type = "NullTokenizer", .vocab_size = 5, .compat_version = "9"}));
  expect_user_error(ExitCode::config, "sentinel tokens: -1",
                    build({.type = "BertWordPieceCase", .vocab_file = "v", .vocab_extra_ids = -1}));
  expect_user_error(
      ExitCode::data, "/nowhere/vocab.json",
      build({.type = "GPT2BPETokenizer", .vocab_file = "/nowhere/vocab.json", .merge_file = "m"}));
}

TEST(BuildTokenizer, RefusesDamagedFiles) {
  const testing::TemporaryFolder folder;
  const std::string good_merges = folder.write("merges.txt", "#version: 0.2\na b\n");
  const auto gpt2 = [&](const std::string& vocab, const std::string& merges) {
    return [vocab = folder.write("vocab.json", vocab), merges] {
      build_tokenizer({.type = "GPT2BPETokenizer", .vocab_file = vocab, .merge_file = merges});
    };
  };
  expect_user_error(ExitCode::data, "not a JSON object", gpt2("[1]", good_merges));
  expect_user_error(ExitCode::data, "not a JSON object", gpt2(R"({"a": 1)", good_merges));
  expect_user_error(ExitCode::data, "id of token 'a'", gpt2(R"({"a": -1})", good_merges));
  expect_user_error(ExitCode::data, "out of range", gpt2(R"({"a": 2000000000})", good_merges));
  expect_user_error(ExitCode::data, "appears twice", gpt2(R"({"a": 1, "a": 2})", good_merges));
  expect_user_error(ExitCode::data, "belongs to two tokens", gpt2(R"({"a": 1, "b": 1})", good_merges));
  expect_user_error(ExitCode::data, "token 'ab', which is not in", gpt2(R"({"a": 1, "b": 2})", good_merges));
  expect_user_error(ExitCode::data, "no <|endoftext|>", gpt2(R"({"a": 1, "b": 2, "ab": 3})", good_merges));
  const std::string odd_merges = folder.write("odd.txt", "#version: 0.2\na b c\n");
  expect_user_error(ExitCode::data, "odd.txt:2", gpt2(R"({"a": 1})", odd_merges));
  const std::string invalid = folder.write("invalid.txt", "a\xff b\n");
  expect_user_error(ExitCode::data, "not valid UTF-8", gpt2(R"({"a": 1})", invalid));
  const auto bert = [&](const std::string& vocab) {
    return [vocab = folder.write("vocab.txt", vocab)] {
      build_tokenizer({.type = "BertWordPieceLowerCase", .vocab_file = vocab});
    };
  };
  expect_user_error(ExitCode::data, "no [UNK]", bert("a\n"));
  expect_user_error(ExitCode::data, "no [CLS]", bert("[UNK]\n"));
}

TEST(BpeModel, RefusesMoreThanItsTablesHold) {
  BpeConfig spec{.vocab = {{"a", 0}}, .where = "test"};
  spec.merges.resize((size_t{1} << 22) - 1);
  expect_user_error(ExitCode::data, "merge 1 uses the token ''", [&] { BpeModel{spec}; });
  spec.merges.resize(spec.merges.size() + 1);
  expect_user_error(ExitCode::data, "4194304 merges exceed the limit of 4194303", [&] { BpeModel{spec}; });
  spec.merges.clear();
  for (int32_t id = 1; id < 300'000; ++id) spec.vocab.emplace_back(fmt::format("t{}", id), id);
  spec.vocab.back().second = (1 << 21) - 1;
  EXPECT_EQ(BpeModel(spec).id_bound(), 1 << 21);
  spec.vocab.back().second = 1 << 21;
  expect_user_error(ExitCode::data, "id 2097152 of token 't299999' is out of range", [&] { BpeModel{spec}; });
}

TEST(PaddedVocabSize, IsMegatrons) {
  const auto rows = nlohmann::json::parse(testing::read_file(fixture("layout/padded_vocab.json")));
  ASSERT_GT(rows.size(), 10u);
  for (const auto& row : rows) {
    if (!row[0].is_number()) continue;
    EXPECT_EQ(padded_vocab_size(row[0], row[1], row[2]), row[3].get<int64_t>()) << row;
  }
  expect_user_error(ExitCode::config, "cannot pad", [] { padded_vocab_size(10, 0, 1); });
  expect_user_error(ExitCode::config, "cannot pad", [] { padded_vocab_size(10, INT64_MAX, 2); });
}

}  // namespace
}  // namespace teratron
