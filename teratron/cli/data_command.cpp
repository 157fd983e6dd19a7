#include "teratron/cli/data_command.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>

#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/command_line.h"
#include "teratron/cli/tokenizer_flags.h"
#include "teratron/data/blend.h"
#include "teratron/data/gpt_index.h"
#include "teratron/data/indexed_dataset.h"
#include "teratron/data/indexed_dataset_builder.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kChunk = 1 << 20;

void inspect(const std::string& prefix) {
  const IndexedDataset dataset(strip_dataset_suffix(prefix));
  int64_t shortest = dataset.sequences() > 0 ? INT64_MAX : 0;
  int64_t longest = 0;
  int64_t empty = 0;
  for (int64_t first = 0; first < dataset.sequences(); first += kChunk) {
    for (const int32_t length : dataset.lengths(first, std::min(kChunk, dataset.sequences() - first))) {
      shortest = std::min<int64_t>(shortest, length);
      longest = std::max<int64_t>(longest, length);
      empty += length == 0 ? 1 : 0;
    }
  }
  print("{}", printable(dataset.prefix(), 1000));
  print("  element type      {}", name_of(dataset.dtype()));
  print("  tokens            {}", dataset.tokens());
  print("  sequences         {} ({} without tokens)", dataset.sequences(), empty);
  print("  documents         {}", dataset.documents());
  print("  sequence length   {} to {}, mean {:.1f}", shortest, longest,
        dataset.sequences() > 0
            ? static_cast<double>(dataset.tokens()) / static_cast<double>(dataset.sequences())
            : 0.0);
  print("  bytes             {} (.bin), {} (.idx)", dataset.bin().size(), dataset.idx().size());
}

void verify_tokens(const IndexedDataset& dataset, int64_t vocab_size) {
  std::vector<int64_t> tokens;
  for (int64_t sequence = 0; sequence < dataset.sequences(); ++sequence) {
    tokens.clear();
    dataset.read(sequence, 0, -1, tokens);
    const auto wrong = std::find_if(tokens.begin(), tokens.end(),
                                    [&](int64_t token) { return token < 0 || token >= vocab_size; });
    if (wrong == tokens.end()) continue;
    throw data_error(
        {.what =
             fmt::format("document {} (sequence {}), position {}: token id {} is outside the "
                         "vocabulary of {}",
                         dataset.document_of(sequence), sequence, wrong - tokens.begin(), *wrong, vocab_size),
         .where = printable(dataset.bin().path(), 1000),
         .fix = "Name the tokenizer that the data was made with"});
  }
}

void verify(const std::string& prefix, int64_t vocab_size) {
  const IndexedDataset dataset(strip_dataset_suffix(prefix));
  dataset.verify();
  if (vocab_size > 0) verify_tokens(dataset, vocab_size);
  print("{}: sound; {} tokens, {} sequences, {} documents{}", printable(dataset.prefix(), 1000),
        dataset.tokens(), dataset.sequences(), dataset.documents(),
        vocab_size > 0 ? ", all tokens checked" : "");
}

struct SampleFlags {
  std::string prefix;
  int64_t document = 0;
  int64_t count = 1;
  TokenizerOptions tokenizer;
};

void sample(const SampleFlags& flags) {
  const IndexedDataset dataset(strip_dataset_suffix(flags.prefix));
  if (flags.document < 0 || flags.document >= dataset.documents()) {
    throw config_error({.what = fmt::format("there is no document {}", flags.document),
                        .where = "--document",
                        .fix = fmt::format("Use 0 to {}", dataset.documents() - 1)});
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.tokenizer.type.empty()) tokenizer = build_tokenizer(flags.tokenizer);
  const int64_t end = flags.document + std::min(flags.count, dataset.documents() - flags.document);
  for (int64_t document = flags.document; document < end; ++document) {
    for (int64_t s = dataset.document_start(document); s < dataset.document_start(document + 1); ++s) {
      std::vector<int64_t> tokens;
      dataset.read(s, 0, -1, tokens);
      if (tokenizer == nullptr) {
        teratron::print("document {} sequence {}: {}", document, s, fmt::join(tokens, " "));
        continue;
      }
      const std::vector<int32_t> ids(tokens.begin(), tokens.end());
      if (std::any_of(ids.begin(), ids.end(),
                      [&](int32_t id) { return id < 0 || id >= tokenizer->vocab_size(); })) {
        verify_tokens(dataset, tokenizer->vocab_size());
      }
      print("document {} sequence {}: {}", document, s, tokenizer->decode(ids));
    }
  }
}

struct IndicesFlags {
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  int64_t sequence_length = 0;
  uint32_t seed = 1234;
  std::vector<int64_t> samples;  // train, valid, test; -1: one epoch
  std::string cache_path;
  int64_t rows = 10;
};

void show_array(const char* name, const IndexArray& array, int64_t rows) {
  std::string text;
  for (int64_t row = 0; row < std::min(rows, array.rows()); ++row) {
    text += array.columns() == 2 ? fmt::format(" ({},{})", array.at(row, 0), array.at(row, 1))
                                 : fmt::format(" {}", array.at(row));
  }
  print("    {:<16} {} {}:{}{}", name, array.rows(), array.descr(), text, array.rows() > rows ? " ..." : "");
}

void indices(const IndicesFlags& flags) {
  constexpr const char* kNames[] = {"train", "valid", "test"};
  const auto shares = parse_split(flags.split);
  for (const std::string& prefix : parse_data_path(flags.data_path).prefixes) {
    const IndexedDataset dataset(strip_dataset_suffix(prefix));
    print("{}", printable(dataset.prefix(), 1000));
    const auto ranges = split_ranges(shares, dataset.sequences());
    for (size_t i = 0; i < 3; ++i) {
      if (!ranges[i] || ranges[i]->size() == 0) {
        print("  {}: no sequences", kNames[i]);
        continue;
      }
      GPTIndexOptions options{.sequence_length = flags.sequence_length, .seed = flags.seed};
      if (i < flags.samples.size() && flags.samples[i] >= 0) options.samples = flags.samples[i];
      const GPTIndex index = cached_gpt_index(dataset, *ranges[i], options, flags.cache_path);
      print("  {}: sequences {} to {}, {} tokens per epoch, {} epochs, {} samples", kNames[i],
            ranges[i]->first, ranges[i]->last - 1, index.tokens_per_epoch, index.epochs, index.samples());
      show_array("document_index", index.document_index, flags.rows);
      show_array("sample_index", index.sample_index, flags.rows);
      show_array("shuffle_index", index.shuffle_index, flags.rows);
    }
  }
}

/// Prefixes of all datasets in a folder, sorted; a file without its partner is an error.
std::vector<std::string> datasets_in(const std::string& folder) {
  std::set<std::string> prefixes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.is_regular_file() && strip_dataset_suffix(path) != path)
      prefixes.insert(strip_dataset_suffix(path));
  }
  return {prefixes.begin(), prefixes.end()};
}

}  // namespace

int data_command(std::span<const std::string> args) {
  CLI::App app("Look at indexed datasets", "teratron data");
  app.require_subcommand(1);
  std::vector<std::string> prefixes;
  int64_t vocab_size = 0;
  CLI::App* const inspect_app = app.add_subcommand("inspect", "Sizes, element type, lengths");
  CLI::App* const verify_app = app.add_subcommand("verify", "Check every entry");
  for (CLI::App* const sub : {inspect_app, verify_app}) {
    sub->add_option("prefixes", prefixes, "paths without .bin and .idx")->required();
  }
  verify_app->add_option("--vocab-size", vocab_size, "check that every token id is below");

  SampleFlags sample_flags;
  CLI::App* const sample_app =
      app.add_subcommand("sample", "Print documents: ids, or text with tokenizer flags");
  sample_app->add_option("prefix", sample_flags.prefix, "path without .bin and .idx")->required();
  sample_app->add_option("--document", sample_flags.document, "first document")->capture_default_str();
  sample_app->add_option("--count", sample_flags.count, "how many")->check(CLI::Range(int64_t{1}, INT64_MAX));
  add_tokenizer_flags(*sample_app, sample_flags.tokenizer);

  IndicesFlags index_flags;
  CLI::App* const index_app = app.add_subcommand("indices", "The index arrays of a GPT dataset");
  index_app->add_option("prefixes,--data-path", index_flags.data_path, "prefixes, or weights and prefixes")
      ->required();
  index_app->add_option("--split", index_flags.split, "shares of train, valid and test")
      ->capture_default_str();
  index_app->add_option("--seq-length", index_flags.sequence_length, "tokens of a sample")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  index_app->add_option("--seed", index_flags.seed, "seed of the shuffles")->capture_default_str();
  index_app->add_option("--samples", index_flags.samples, "samples of train, valid and test; -1: one epoch")
      ->expected(1, 3);
  index_app->add_option("--data-cache-path", index_flags.cache_path, "folder to keep the arrays in, as .npy");
  index_app->add_option("--rows", index_flags.rows, "entries to print")->capture_default_str();
  if (!parse_command(app, args)) return static_cast<int>(ExitCode::ok);
  for (const std::string& prefix : prefixes)
    inspect_app->parsed() ? inspect(prefix) : verify(prefix, vocab_size);
  if (sample_app->parsed()) sample(sample_flags);
  if (index_app->parsed()) indices(index_flags);
  return static_cast<int>(ExitCode::ok);
}

int merge_command(std::span<const std::string> args) {
  CLI::App app("Join indexed datasets", "teratron merge");
  std::vector<std::string> inputs;
  std::string output;
  app.add_option("--input", inputs, "a folder (its datasets are joined by name) or prefixes in order")
      ->required();
  app.add_option("--output-prefix", output, "path of the result without .bin and .idx")->required();
  if (!parse_command(app, args)) return static_cast<int>(ExitCode::ok);
  if (inputs.size() == 1 && fs::is_directory(inputs[0])) inputs = datasets_in(inputs[0]);
  for (std::string& input : inputs) input = strip_dataset_suffix(input);
  if (inputs.empty()) {
    throw data_error(
        {.what = "the folder holds no dataset", .where = "--input", .fix = "Name another folder"});
  }
  if (std::find(inputs.begin(), inputs.end(), output) != inputs.end()) {
    throw config_error({.what = "the result would replace one of the inputs",
                        .where = "--output-prefix",
                        .fix = "Write it to another place"});
  }
  IndexedDatasetBuilder builder(output, IndexedDataset(inputs[0]).dtype());
  for (const std::string& input : inputs) builder.add_dataset(IndexedDataset(input));
  builder.finalize();
  print("{}: {} datasets, {} documents, {} sequences, {} tokens", output, inputs.size(), builder.documents(),
        builder.sequences(), builder.tokens());
  return static_cast<int>(ExitCode::ok);
}

}  // namespace teratron
