#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <memory>
#include <set>

#include <CLI/CLI.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/cli/at_least.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/tokenizer_flags.h"
#include "teratron/data/blend.h"
#include "teratron/data/dataset_builder.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/models/gpt/data/gpt_index.h"
#include "teratron/models/masked_data/masked_dataset.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kChunk = 1 << 20;

/// Histogram of lengths by powers of two: bucket b counts 2^(b-1) to 2^b - 1, the first one 0.
struct LengthStatistics {
  int64_t shortest = 0, longest = 0;
  std::array<int64_t, 33> buckets{};

  explicit LengthStatistics(const IndexedDataset& dataset) {
    if (dataset.sequences() > 0) shortest = INT64_MAX;
    for (int64_t first = 0; first < dataset.sequences(); first += kChunk) {
      for (const int32_t length : dataset.lengths(first, std::min(kChunk, dataset.sequences() - first))) {
        shortest = std::min<int64_t>(shortest, length);
        longest = std::max<int64_t>(longest, length);
        ++buckets[static_cast<size_t>(std::bit_width(static_cast<uint32_t>(length)))];
      }
    }
  }
};

void show_histogram(const LengthStatistics& statistics) {
  constexpr int64_t kWidth = 50;
  const int64_t most =
      std::max<int64_t>(1, *std::max_element(statistics.buckets.begin(), statistics.buckets.end()));
  print("  tokens            sequences");
  for (size_t b = 0; b < statistics.buckets.size(); ++b) {
    const int64_t count = statistics.buckets[b];
    if (count == 0) continue;
    const int64_t low = b == 0 ? 0 : int64_t{1} << (b - 1);
    const int64_t high = (int64_t{1} << b) - 1;
    const auto bar = static_cast<size_t>((static_cast<__int128>(count) * kWidth + most - 1) / most);
    print("    {:<15} {} {}", low == high ? fmt::to_string(low) : fmt::format("{}-{}", low, high), count,
          std::string(bar, '#'));
  }
}

/// Prints the sequences of a document, up to `limit` tokens of each, as text if there is a tokenizer.
void show_document(const IndexedDataset& dataset, int64_t document, const Tokenizer* tokenizer,
                   int64_t limit) {
  for (int64_t s = dataset.document_start(document); s < dataset.document_start(document + 1); ++s) {
    std::vector<int64_t> tokens;
    const int64_t count = std::min<int64_t>(dataset.length(s), limit);
    dataset.read(s, 0, count, tokens);
    const std::string head = fmt::format("document {} sequence {}", document, s);
    const char* const more = count < dataset.length(s) ? " ..." : "";
    if (tokenizer == nullptr) {
      teratron::print("{}: {}{}", head, fmt::join(tokens, " "), more);
      continue;
    }
    dataset.check_vocabulary(s, 0, tokens, tokenizer->vocab_size());
    print("{}: {}{}", head, tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end())), more);
  }
}

std::unique_ptr<Tokenizer> optional_tokenizer(const TokenizerOptions& options) {
  return options.type.empty() ? nullptr : build_tokenizer(options);
}

void inspect(const std::string& prefix, const Tokenizer* tokenizer) {
  constexpr int64_t kShownTokens = 64;
  const IndexedDataset dataset(strip_dataset_suffix(prefix));
  const LengthStatistics lengths(dataset);
  print("{}", printable(dataset.prefix(), 1000));
  print("  format            {}", dataset.format() == IndexFormat::mmap ? "mmap" : "cached, lazy");
  print("  element type      {}", name_of(dataset.dtype()));
  print("  tokens            {}", dataset.tokens());
  print("  sequences         {} ({} without tokens)", dataset.sequences(), lengths.buckets[0]);
  print("  documents         {}", dataset.documents());
  print("  sequence length   {} to {}, mean {:.1f}", lengths.shortest, lengths.longest,
        dataset.sequences() > 0
            ? static_cast<double>(dataset.tokens()) / static_cast<double>(dataset.sequences())
            : 0.0);
  print("  bytes             {} (.bin), {} (.idx)", dataset.bin().size(), dataset.idx().size());
  show_histogram(lengths);
  if (dataset.documents() > 0) show_document(dataset, 0, tokenizer, kShownTokens);
}

void verify(const std::string& prefix, int64_t vocab_size) {
  const IndexedDataset dataset(strip_dataset_suffix(prefix));
  dataset.verify();
  std::vector<int64_t> tokens;
  for (int64_t sequence = 0; vocab_size > 0 && sequence < dataset.sequences(); ++sequence) {
    tokens.clear();
    dataset.read(sequence, 0, -1, tokens);
    dataset.check_vocabulary(sequence, 0, tokens, vocab_size);
  }
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
  const auto tokenizer = optional_tokenizer(flags.tokenizer);
  const int64_t end = flags.document + std::min(flags.count, dataset.documents() - flags.document);
  for (int64_t document = flags.document; document < end; ++document)
    show_document(dataset, document, tokenizer.get(), INT64_MAX);
}

/// Which part of which dataset, and where to write arrays.
struct PartFlags {
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  std::string part = "train";
  std::string folder = ".";
  int64_t rows = 10;
};

struct IndicesFlags {
  PartFlags part;
  GPTIndexOptions index;
};

struct MappingFlags {
  PartFlags part;
  int64_t sequence_length = 0;
  std::optional<int64_t> samples;
  bool one_sentence = false;
  SampleMappingOptions mapping;
};

void show_array(const char* name, const IndexArray& array, int64_t rows) {
  std::string text;
  for (int64_t row = 0; row < std::min(rows, array.rows()); ++row) {
    std::vector<int64_t> values;
    values.push_back(array.at(row));
    for (int64_t column = 1; column < array.columns(); ++column) values.push_back(array.at(row, column));
    const bool several = values.size() > 1;
    text += fmt::format(" {}{}{}", several ? "(" : "", fmt::join(values, ","), several ? ")" : "");
  }
  print("    {:<16} {} {}:{}{}", name, array.rows(), array.descr(), text, array.rows() > rows ? " ..." : "");
}

IndexedDataset dataset_of(const PartFlags& flags) {
  const std::vector<std::string> prefixes = parse_data_path(flags.data_path).prefixes;
  if (prefixes.size() != 1) {
    throw config_error(
        {.what = fmt::format("{} datasets given, but an index belongs to one", prefixes.size()),
         .where = "--data-path",
         .fix = "Name one prefix"});
  }
  return IndexedDataset(strip_dataset_suffix(prefixes[0]));
}

/// Of `count` sequences or documents.
SequenceRange range_of(const PartFlags& flags, const IndexedDataset& dataset, int64_t count,
                       const char* unit) {
  const auto part = static_cast<size_t>(std::find(kSplitNames.begin(), kSplitNames.end(), flags.part) -
                                        kSplitNames.begin());
  const auto range = split_ranges(parse_split(flags.split), count)[part];
  if (!range || range->size() == 0) {
    throw data_error({.what = fmt::format("the {} part of {} {} is empty", flags.part, count, unit),
                      .where = printable(dataset.prefix(), 1000),
                      .fix = "Change --split or --split-part"});
  }
  return *range;
}

void write_array(const char* name, const IndexArray& array, const PartFlags& flags) {
  show_array(name, array, flags.rows);
  array.save((fs::path(flags.folder) / fmt::format("{}.npy", name)).string());
}

void indices(const IndicesFlags& flags) {
  const IndexedDataset dataset = dataset_of(flags.part);
  const SequenceRange range = range_of(flags.part, dataset, dataset.sequences(), "sequences");
  const GPTIndex index = build_gpt_index(range, dataset.lengths(range.first, range.size()), flags.index);
  make_directories(flags.part.folder, ExitCode::config);
  print("{}", printable(dataset.prefix(), 1000));
  print("  {}: sequences {} to {}, {} tokens per epoch, {} epochs, {} samples", flags.part.part, range.first,
        range.last - 1, index.tokens_per_epoch, index.epochs, index.samples());
  const std::pair<const char*, const IndexArray*> arrays[] = {{"document_index", &index.document_index},
                                                              {"sample_index", &index.sample_index},
                                                              {"shuffle_index", &index.shuffle_index}};
  for (const auto& [name, array] : arrays) write_array(name, *array, flags.part);
}

/// Builds the sample mappings of a part and writes each; of a blend also which sample of which dataset comes
/// when.
class MappingWriter {
 public:
  explicit MappingWriter(const MappingFlags& flags)
      : flags_(flags), blend_(parse_data_path(flags.part.data_path).prefixes.size() > 1) {}

  void run() {
    const auto part = std::ranges::find(kSplitNames, flags_.part.part) - kSplitNames.begin();
    DataSources sources{.data_path = flags_.part.data_path, .split = flags_.part.split};
    sources.samples[static_cast<size_t>(part)] = flags_.samples;
    make_directories(flags_.part.folder, ExitCode::config);
    const Datasets built = build_datasets(
        sources,
        {.unit = SplitUnit::documents, .make = [this](const DatasetPart& one) { return write(one); }});
    const auto& dataset = part == 0 ? built.train : part == 1 ? built.valid : built.test;
    if (!dataset) {
      throw data_error({.what = fmt::format("the {} part has no documents", flags_.part.part),
                        .where = "--data-path",
                        .fix = "Change --split or --split-part"});
    }
    if (!blend_) return;
    const BlendIndex& index = dynamic_cast<const BlendedDataset&>(*dataset).index();
    print("blend of {} samples", dataset->size());
    write_array("dataset_index", index.dataset_index, flags_.part);
    write_array("dataset_sample_index", index.dataset_sample_index, flags_.part);
  }

 private:
  /// A dataset that is counted, but not read.
  struct Samples : Dataset {
    explicit Samples(int64_t count) : count(count) {}
    int64_t size() const override { return count; }
    void get(int64_t, const Sample&) const override { TERATRON_ASSERT(false, "a mapping has no tokens"); }
    std::string describe() const override { return "sample mapping"; }
    int64_t count;
  };

  std::shared_ptr<const Dataset> write(const DatasetPart& part) {
    SampleMappingOptions options = flags_.mapping;
    options.max_length = flags_.sequence_length - bert_special_tokens;
    options.min_sentences = flags_.one_sentence ? 1 : 2;
    if (!part.samples) options.max_epochs = 1;
    options.max_samples = part.samples.value_or(INT64_MAX);
    const IndexArray array = build_sample_mapping(*part.data, part.range, options);
    print("{}", printable(part.data->prefix(), 1000));
    print("  {}: documents {} to {}, {} samples (first sentence, last + 1, tokens)", flags_.part.part,
          part.range.first, part.range.last - 1, array.rows());
    const std::string name = blend_ ? fmt::format("sample_mapping.{}", written_++) : "sample_mapping";
    write_array(name.c_str(), array, flags_.part);
    return std::make_shared<Samples>(array.rows());
  }

  const MappingFlags& flags_;
  bool blend_;
  int64_t written_ = 0;
};

void declare_part(CLI::App& app, PartFlags& flags) {
  app.add_option("prefixes,--data-path", flags.data_path, "prefix of the dataset, for a mapping also a blend")
      ->required();
  app.add_option("--split", flags.split, "shares of train, valid and test")->capture_default_str();
  app.add_option("--split-part", flags.part, "train, valid or test")
      ->check(CLI::IsMember(std::vector<std::string>(kSplitNames.begin(), kSplitNames.end())))
      ->capture_default_str();
  app.add_option("--output-dir,--output", flags.folder, "folder for the .npy files")->capture_default_str();
  app.add_option("--rows", flags.rows, "entries to print")->capture_default_str();
}

void declare_indices(CLI::App& app, IndicesFlags& flags) {
  declare_part(app, flags.part);
  app.add_option("--seq-length", flags.index.sequence_length, "tokens per sample")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  app.add_option("--num-samples", flags.index.samples, "requested samples; default: one epoch")
      ->check(at_least(0));
  app.add_option("--seed", flags.index.seed, "seed of the shuffles")->capture_default_str();
}

void declare_mapping(CLI::App& app, MappingFlags& flags) {
  declare_part(app, flags.part);
  app.add_option("--seq-length", flags.sequence_length, "tokens per sample, special tokens included")
      ->required()
      ->check(CLI::Range(bert_special_tokens + 2, int64_t{INT32_MAX}));
  app.add_option("--num-samples", flags.samples, "requested samples; default: one epoch")->check(at_least(1));
  app.add_option("--seed", flags.mapping.seed, "seed of lengths and shuffle")->capture_default_str();
  app.add_option("--short-seq-prob", flags.mapping.short_sequence_probability, "share of shorter samples")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--bert-no-binary-head", flags.one_sentence, "also samples of one sentence");
}

/// Prefixes of all .bin and .idx files in a folder, sorted.
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
  CLI::App app("Inspect indexed datasets", "teratron data");
  app.require_subcommand(1);
  std::vector<std::string> prefixes;
  int64_t vocab_size = 0;
  SampleFlags sample_flags;
  IndicesFlags index_flags;
  MappingFlags mapping_flags;
  CLI::App* const inspect_app = app.add_subcommand(
      "inspect", "Show sizes, element type, lengths and the first document (as text with tokenizer flags)");
  CLI::App* const verify_app = app.add_subcommand("verify", "Check every index entry");
  for (CLI::App* const sub : {inspect_app, verify_app}) {
    sub->add_option("prefixes", prefixes, "paths without .bin and .idx")->required();
  }
  add_tokenizer_flags(*inspect_app, sample_flags.tokenizer);
  verify_app->add_option("--vocab-size", vocab_size, "check that all token ids are below it");
  CLI::App* const sample_app =
      app.add_subcommand("sample", "Print documents: ids, or text with tokenizer flags");
  sample_app->add_option("prefix", sample_flags.prefix, "path without .bin and .idx")->required();
  sample_app->add_option("--document", sample_flags.document, "first document to print")
      ->capture_default_str();
  sample_app->add_option("--count", sample_flags.count, "number of documents")->check(at_least(1));
  add_tokenizer_flags(*sample_app, sample_flags.tokenizer);
  CLI::App* const index_app =
      app.add_subcommand("indices", "Write the index arrays of a GPT dataset as .npy");
  declare_indices(*index_app, index_flags);
  CLI::App* const mapping_app = app.add_subcommand(
      "mapping", "Write the sample mapping of a BERT dataset, or of each in a blend, as .npy");
  declare_mapping(*mapping_app, mapping_flags);
  if (!parse_command(app, args)) return static_cast<int>(ExitCode::ok);
  const auto tokenizer = inspect_app->parsed() ? optional_tokenizer(sample_flags.tokenizer) : nullptr;
  for (const std::string& prefix : prefixes)
    inspect_app->parsed() ? inspect(prefix, tokenizer.get()) : verify(prefix, vocab_size);
  if (sample_app->parsed()) sample(sample_flags);
  if (index_app->parsed()) indices(index_flags);
  if (mapping_app->parsed()) MappingWriter(mapping_flags).run();
  return static_cast<int>(ExitCode::ok);
}

int merge_command(std::span<const std::string> args) {
  CLI::App app("Concatenate indexed datasets", "teratron merge");
  std::vector<std::string> inputs;
  std::string output;
  app.add_option("--input", inputs, "a folder (all its datasets, by name) or prefixes in order")->required();
  app.add_option("--output-prefix", output, "output path without .bin and .idx")->required();
  if (!parse_command(app, args)) return static_cast<int>(ExitCode::ok);
  if (inputs.size() == 1 && fs::is_directory(inputs[0])) inputs = datasets_in(inputs[0]);
  for (std::string& input : inputs) input = strip_dataset_suffix(input);
  if (inputs.empty()) {
    throw data_error(
        {.what = "the folder has no datasets", .where = "--input", .fix = "Name another folder"});
  }
  if (std::find(inputs.begin(), inputs.end(), output) != inputs.end()) {
    throw config_error({.what = "the output would replace one of the inputs",
                        .where = "--output-prefix",
                        .fix = "Use another path"});
  }
  IndexedDatasetBuilder builder(output, IndexedDataset(inputs[0]).dtype());
  for (const std::string& input : inputs) builder.add_dataset(IndexedDataset(input));
  builder.finalize();
  print("{}: {} datasets, {} documents, {} sequences, {} tokens", output, inputs.size(), builder.documents(),
        builder.sequences(), builder.tokens());
  return static_cast<int>(ExitCode::ok);
}

}  // namespace teratron
