#include "teratron/data/text/preprocess.h"

#include <cstdlib>
#include <random>

#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "teratron/base/error.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/data/text/punkt.h"
#include "teratron/testing/fixtures.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

using nlohmann::json;
using testing::fixture;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::filesystem::path vocabulary(const std::string& name) {
  const char* folder = std::getenv("TERATRON_TEST_DATA");
  const auto base = folder != nullptr ? std::filesystem::path(folder)
                                      : std::filesystem::path(TERATRON_SOURCE_DIR) / ".." / "shared" / "data";
  return base / name;
}

struct PreprocessCase {
  PreprocessOptions options;
  TokenizerOptions tokenizer;
  SentenceWhitespace whitespace = SentenceWhitespace::drop;
};

PreprocessCase parse(const json& c, const std::string& version) {
  PreprocessCase command;
  command.options.json_keys = c["json_keys"].get<std::vector<std::string>>();
  command.tokenizer.compat_version = version == "HEAD" ? "head" : version == "v2.6" ? "2.6" : "0.7";
  command.options.drop_empty_documents = version == "v2.6";
  const auto args = c["args"].get<std::vector<std::string>>();
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& flag = args[i];
    if (flag == "--tokenizer-type") command.tokenizer.type = args[++i];
    if (flag == "--vocab-file") command.tokenizer.vocab_file = vocabulary(args[++i]).string();
    if (flag == "--merge-file") command.tokenizer.merge_file = vocabulary(args[++i]).string();
    if (flag == "--vocab-size") command.tokenizer.vocab_size = std::stoll(args[++i]);
    if (flag == "--partitions") command.options.partitions = std::stoi(args[++i]);
    if (flag == "--keep-sequential-samples") command.options.partitions = 1;
    if (flag == "--append-eod") command.options.append_eod = true;
    if (flag == "--split-sentences") command.options.split_sentences = true;
    if (flag == "--keep-newlines") command.whitespace = SentenceWhitespace::keep;
    if (flag == "--tokenizer-hf-no-include-special-tokens") command.tokenizer.include_special_tokens = false;
  }
  return command;
}

/// Runs a case of the manifest for one version and compares every file with Megatron's.
void expect_case(const json& c, const std::string& version, int workers) {
  SCOPED_TRACE(c["case"].get<std::string>() + " " + version);
  TemporaryFolder folder;
  PreprocessCase command = parse(c, version);
  command.options.inputs = {fixture("preprocess/" + c["input"].get<std::string>()).string()};
  command.options.output_prefix = folder / "out";
  command.options.workers = workers;
  const auto tokenizer = build_tokenizer(command.tokenizer);
  const PunktSplitter splitter(fixture("preprocess/punkt_tab").string(), command.whitespace);
  command.options.splitter = [&](std::string_view text) { return splitter.split(text); };
  const PreprocessResult result = preprocess(command.options, *tokenizer);
  for (const json& output : c["outputs"][version]) {
    if (output.contains("missing")) continue;
    const std::string level = command.options.split_sentences ? "sentence" : "document";
    const std::string prefix = folder / ("out_" + output["key"].get<std::string>() + "_" + level);
    for (const std::string kind : {"bin", "idx"}) {
      EXPECT_EQ(testing::sha256(read_bytes(prefix + "." + kind)), output[kind]["sha256"]) << prefix << kind;
    }
  }
  EXPECT_EQ(result.bad_lines, 0);
}

/// All cases whose tokenizer starts with `type`; returns how many outputs were compared.
int expect_cases(const std::string& type) {
  int checked = 0;
  for (const json& c : testing::read_json(fixture("preprocess/manifest.json"))) {
    if (c.contains("tool") || !c["args"][1].get<std::string>().starts_with(type)) continue;
    for (const auto& [version, outputs] : c["outputs"].items()) {
      expect_case(c, version, 1 + checked % 3);
      ++checked;
    }
  }
  return checked;
}

TEST(Preprocess, NullTokenizerMatchesMegatron) {
  EXPECT_EQ(expect_cases("Null"), 4);
}

TEST(Preprocess, Gpt2MatchesMegatron) {
  if (!std::filesystem::exists(vocabulary("gpt2-vocab.json"))) GTEST_SKIP() << "no GPT-2 vocabulary";
  EXPECT_EQ(expect_cases("GPT2"), 12);
}

TEST(Preprocess, BertMatchesMegatron) {
  if (!std::filesystem::exists(vocabulary("bert-uncased-vocab.txt"))) GTEST_SKIP() << "no BERT vocabulary";
  EXPECT_EQ(expect_cases("Bert"), 5);
}

TEST(Preprocess, MergeMatchesMegatron) {
  TemporaryFolder folder;
  IndexedDatasetBuilder builder(folder / "merged", Dtype::u16);
  for (const std::string part : {"null-65499.HEAD_text_document", "gpt2.HEAD_text_document",
                                 "gpt2-sentences-eod.HEAD_text_sentence", "gpt2-eod.HEAD_title_document"}) {
    builder.add_dataset(IndexedDataset(fixture("preprocess/" + part).string()));
  }
  builder.finalize();
  for (const std::string kind : {".bin", ".idx"}) {
    EXPECT_TRUE(read_bytes(folder / ("merged" + kind)) == read_bytes(fixture("preprocess/merged" + kind)));
  }
}

std::unique_ptr<Tokenizer> null_tokenizer() {
  return build_tokenizer({.type = "NullTokenizer", .vocab_size = 1000, .compat_version = "head"});
}

/// Lines of random lengths; many blocks when `count` is large.
std::string many_lines(int count) {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "{\"other\": [1, {}], \"text\": \"";
    const int length = static_cast<int>(random() % 40);
    for (int j = 0; j < length; ++j) text += (j == 0 ? "" : " ") + std::to_string(random() % 999);
    text += "\"}\n";
  }
  return text;
}

PreprocessOptions options_for(const TemporaryFolder& folder, const std::string& input) {
  PreprocessOptions options;
  options.inputs = {folder / input};
  options.output_prefix = folder / "out";
  options.append_eod = true;
  return options;
}

std::string both(const TemporaryFolder& folder, const std::string& prefix) {
  return read_bytes(folder / (prefix + "_text_document.bin")) +
         read_bytes(folder / (prefix + "_text_document.idx"));
}

TEST(Preprocess, BytesDoNotDependOnWorkersOrSplittingOfFiles) {
  TemporaryFolder folder;
  const auto tokenizer = null_tokenizer();
  const std::string text = many_lines(60000);
  write_bytes(folder / "all.jsonl", text);
  PreprocessOptions options = options_for(folder, "all.jsonl");
  const auto result = preprocess(options, *tokenizer);
  EXPECT_EQ(result.documents, 60000);
  const std::string expected = both(folder, "out");
  IndexedDataset(folder / "out_text_document").verify();
  for (const int workers : {2, 5}) {
    options.workers = workers;
    options.output_prefix = folder / "again";
    preprocess(options, *tokenizer);
    EXPECT_EQ(both(folder, "again"), expected);
  }
  const size_t cut = text.find('\n', text.size() / 3) + 1;
  write_bytes(folder / "a.jsonl", text.substr(0, cut - 1));  // no final newline
  write_bytes(folder / "b.jsonl", text.substr(cut));
  options.inputs = expand_patterns({folder / "[ab].jsonl"});
  EXPECT_EQ(options.inputs.size(), 2u);
  preprocess(options, *tokenizer);
  EXPECT_EQ(both(folder, "again"), expected);
}

TEST(Preprocess, PartitionsTakeLinesRoundRobin) {
  TemporaryFolder folder;
  write_bytes(folder / "in.jsonl",
              "{\"text\":\"0\"}\n{\"text\":\"1\"}\n{\"text\":\"2\"}\n{\"text\":\"3\"}\n{\"text\":\"4\"}\n");
  PreprocessOptions options = options_for(folder, "in.jsonl");
  options.append_eod = false;
  options.partitions = 2;
  preprocess(options, *null_tokenizer());
  const IndexedDataset dataset(folder / "out_text_document");
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < dataset.sequences(); ++i) dataset.read(i, 0, -1, tokens);
  EXPECT_EQ(tokens, (std::vector<int64_t>{0, 2, 4, 1, 3}));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++entries;
  EXPECT_EQ(entries, 3);  // the input and the two outputs: the partitions are removed
}

std::string error_of(const PreprocessOptions& options) {
  return testing::message_of([&] { preprocess(options, *null_tokenizer()); });
}

TEST(Preprocess, Fault28BrokenLinesNameFileAndLine) {
  const std::string good = "{\"text\": \"1 2\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": \"1\"", "broken JSON"},
      {"{\"text\": \"1\"} x", "broken JSON"},
      {"{\"text\": \"\xff\"}", "broken JSON"},
      {"{\"text\": \"\\ud800\"}", "lone surrogate"},
      {std::string("{\"text\": \"\0\"}", 13), "broken JSON"},
      {"[\"text\"]", "not a JSON object"},
      {"some text", "plain text, not a JSON object such as {\"text\": \"...\"}"},
      {"{\"body\": \"1\"}", "no key \"text\""},
      {"{\"text\": 5}", "is not a string"},
      {"{\"text\": [\"1\", 5]}", "has an item that is not a string"},
      {"{\"text\": \"1\", \"a\": " + std::string(100000, '[') + "}", "broken JSON"},
      {"{\"text\": \"1 x\"}", ""},
  };
  for (const auto& [line, expected] : cases) {
    SCOPED_TRACE(line.substr(0, 40));
    TemporaryFolder folder;
    write_bytes(folder / "in.jsonl", good + good + line + "\n" + good);
    PreprocessOptions options = options_for(folder, "in.jsonl");
    const std::string message = error_of(options);
    EXPECT_NE(message.find("in.jsonl:3: "), std::string::npos) << message;
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(folder / "out_text_document.idx"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out_text_document.bin"));
    options.max_bad = 1;
    const auto result = preprocess(options, *null_tokenizer());
    EXPECT_EQ(result.documents, 3);
    EXPECT_EQ(result.bad_lines, 1);
    EXPECT_EQ(IndexedDataset(folder / "out_text_document").tokens(), 9);
  }
}

TEST(Preprocess, Fault28OverlongLine) {
  TemporaryFolder folder;
  const std::string good = "{\"text\": \"1 2\"}\n";
  write_bytes(folder / "in.jsonl",
              good + "{\"text\": \"" + std::string(5 << 20, '7') + "\"}\n" + good + good);
  PreprocessOptions options = options_for(folder, "in.jsonl");
  options.max_line_bytes = 1 << 20;
  EXPECT_NE(error_of(options).find("in.jsonl:2: longer than"), std::string::npos);
  options.max_bad = 1;
  EXPECT_EQ(preprocess(options, *null_tokenizer()).documents, 3);
}

TEST(Preprocess, BlankLinesAndDuplicateKeys) {
  TemporaryFolder folder;
  write_bytes(folder / "in.jsonl", "\n{\"text\": \"1\", \"text\": \"2\"}\n  \r\n{\"text\": \"3\"}");
  const auto result = preprocess(options_for(folder, "in.jsonl"), *null_tokenizer());
  EXPECT_EQ(result.documents, 2);
  EXPECT_EQ(result.blank_lines, 2);
  std::vector<int64_t> tokens;
  IndexedDataset(folder / "out_text_document").read(0, 0, -1, tokens);
  EXPECT_EQ(tokens.front(), 2);
}

TEST(Preprocess, EmptyDocumentsByVersion) {
  TemporaryFolder folder;
  write_bytes(folder / "in.jsonl", "{\"text\": \"\"}\n{\"text\": \"1\"}\n{\"text\": []}\n");
  PreprocessOptions options = options_for(folder, "in.jsonl");
  preprocess(options, *null_tokenizer());
  EXPECT_EQ(IndexedDataset(folder / "out_text_document").documents(), 3);
  options.drop_empty_documents = true;
  preprocess(options, *null_tokenizer());
  EXPECT_EQ(IndexedDataset(folder / "out_text_document").documents(), 1);
}

TEST(Preprocess, SentencesWithoutASplitter) {
  TemporaryFolder folder;
  write_bytes(folder / "in.jsonl", "{\"text\": \"1\"}\n");
  PreprocessOptions options = options_for(folder, "in.jsonl");
  options.split_sentences = true;
  EXPECT_NE(error_of(options).find("not split into sentences"), std::string::npos);
}

std::string gzip(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.erase(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::string xz(const std::string& text) {
  std::string out(text.size() + 100000, '\0');
  size_t size = 0;
  lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                          text.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size());
  out.resize(size);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string read_all(const std::string& path) {
  const auto source = open_input(path);
  std::string text;
  char buffer[5000];
  while (const size_t count = source->read(buffer, sizeof(buffer))) text.append(buffer, count);
  return text;
}

TEST(LineReader, CompressedFilesOfSeveralMembers) {
  TemporaryFolder folder;
  const std::string text = many_lines(30000);
  const std::string more = many_lines(10);
  for (const auto compress : {gzip, xz, zstd}) {
    write_bytes(folder / "a", compress(text) + compress(more) + compress(""));
    EXPECT_EQ(read_all(folder / "a"), text + more);
    write_bytes(folder / "b", compress(""));
    EXPECT_EQ(read_all(folder / "b"), "");
  }
  for (const std::string& plain : {std::string(), std::string("x"), text}) {
    write_bytes(folder / "a", plain);
    EXPECT_EQ(read_all(folder / "a"), plain);
  }
}

TEST(LineReader, TruncatedOrDamagedCompressedFilesAreErrors) {
  TemporaryFolder folder;
  const std::string text = many_lines(300);
  for (const auto compress : {gzip, xz, zstd}) {
    const std::string whole = compress(text);
    for (size_t size = 8; size < whole.size(); size += 1 + whole.size() / 50) {
      write_bytes(folder / "a", whole.substr(0, size));
      EXPECT_THROW(read_all(folder / "a"), UserError) << size;
    }
    write_bytes(folder / "a", whole + "rubbish");
    EXPECT_THROW(read_all(folder / "a"), UserError);
    std::string changed = whole;
    changed[whole.size() / 2] = static_cast<char>(changed[whole.size() / 2] ^ 0x55);
    write_bytes(folder / "a", changed);
    try {  // zstd has no checksum by default
      EXPECT_NE(read_all(folder / "a"), text);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::data);
    }
  }
}

TEST(LineReader, PatternsAndMissingFiles) {
  TemporaryFolder folder;
  for (const std::string name : {"b.txt", "a.txt", "c[1].txt"}) write_bytes(folder / name, "");
  EXPECT_EQ(expand_patterns({folder / "?.txt"}),
            (std::vector<std::string>{folder / "a.txt", folder / "b.txt"}));
  EXPECT_EQ(expand_patterns({folder / "c[1].txt"}), (std::vector<std::string>{folder / "c[1].txt"}));
  EXPECT_THROW(expand_patterns({folder / "*.json"}), UserError);
  EXPECT_THROW(open_input(folder / "none"), UserError);
  EXPECT_THROW(read_all(folder.path().string()), UserError);
}

TEST(Preprocess, AppendEodNeedsAnEod) {
  class NoEod : public Tokenizer {
   public:
    void encode(std::string_view, std::vector<int32_t>&) const override {}
    std::vector<TokenSpan> encode_with_offsets(std::string_view) const override { return {}; }
    std::string decode(std::span<const int32_t>) const override { return ""; }
    int64_t vocab_size() const override { return 10; }
    const SpecialTokens& special() const override { return special_; }

   private:
    SpecialTokens special_;
  };
  TemporaryFolder folder;
  write_bytes(folder / "in.jsonl", "");
  try {
    preprocess(options_for(folder, "in.jsonl"), NoEod());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::config);
  }
}

}  // namespace
}  // namespace teratron
