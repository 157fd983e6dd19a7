#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <memory>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/images/image_command.h"
#include "teratron/cli/tokenizer_flags.h"
#include "teratron/data/blend.h"
#include "teratron/data/dataset_builder.h"
#include "teratron/data/indexed/indexed_dataset.h"
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
    const std::string text = tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
    print("{}: {}{}", head, stdout_text(text), more);
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
  TokenizerFlags tokenizer;
};

void sample(const SampleFlags& flags) {
  const IndexedDataset dataset(strip_dataset_suffix(flags.prefix));
  if (flags.document < 0 || flags.document >= dataset.documents()) {
    throw config_error({.what = fmt::format("there is no document {}", flags.document),
                        .where = "--document",
                        .fix = fmt::format("Use 0 to {}", dataset.documents() - 1)});
  }
  const auto tokenizer = optional_tokenizer(flags.tokenizer.options());
  const int64_t end = flags.document + std::min(flags.count, dataset.documents() - flags.document);
  for (int64_t document = flags.document; document < end; ++document)
    show_document(dataset, document, tokenizer.get(), INT64_MAX);
}

/// Which part of which dataset, what is sampled from it, and where to write arrays.
struct PartFlags {
  Arguments settings = {};
  std::string part = "train";
  std::string folder = ".";
  int64_t rows = 10;
  std::optional<int64_t> samples;

  PartFlags() { settings.split = "969,30,1"; }
  std::vector<Field> fields(const FieldTraits& length);
  uint32_t seed() const { return static_cast<uint32_t>(settings.seed); }
};

std::vector<Field> PartFlags::fields(const FieldTraits& length) {
  Field data = bound_setting("data_path", &settings, "Prefix of the dataset, for a mapping also a blend");
  data.traits.positional = data.traits.required = true;
  Field tokens = bound_setting("seq_length", &settings, "Tokens of a sample, with special tokens");
  tokens.traits = length;
  return {data,
          tokens,
          bound_field("num_samples", &samples, "Number of samples; default: one epoch", {.min = 0}),
          bound_setting("seed", &settings, "Seed of the shuffles"),
          bound_setting("split", &settings, "Shares of train, valid and test"),
          bound_field("split_part", &part, "Part of the split", {.choices = "train|valid|test"}),
          bound_field("output_dir", &folder, "Folder for the .npy files", {.aliases = "--output"}),
          bound_field("rows", &rows, "Number of entries to print", {.min = 0})};
}

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
  const std::vector<std::string> prefixes = parse_data_path(flags.settings.data_path).prefixes;
  if (prefixes.size() != 1) {
    throw config_error(
        {.what = fmt::format("{} datasets given, but an index belongs to one", prefixes.size()),
         .where = "--data-path",
         .fix = "Name one prefix"});
  }
  return IndexedDataset(strip_dataset_suffix(prefixes[0]));
}

/// The part --split-part of `count` sequences or documents.
SequenceRange range_of(const PartFlags& flags, const IndexedDataset& dataset, int64_t count,
                       const char* unit) {
  const auto part = static_cast<size_t>(std::find(kSplitNames.begin(), kSplitNames.end(), flags.part) -
                                        kSplitNames.begin());
  const auto range = split_ranges(parse_split(*flags.settings.split), count)[part];
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

void indices(const PartFlags& flags) {
  const IndexedDataset dataset = dataset_of(flags);
  const SequenceRange range = range_of(flags, dataset, dataset.sequences(), "sequences");
  const GPTIndex index = build_gpt_index(
      range, dataset.lengths(range.first, range.size()),
      {.sequence_length = flags.settings.seq_length.value(), .seed = flags.seed(), .samples = flags.samples});
  make_directories(flags.folder, ExitCode::config);
  print("{}", printable(dataset.prefix(), 1000));
  print("  {}: sequences {} to {}, {} tokens per epoch, {} epochs, {} samples", flags.part, range.first,
        range.last - 1, index.tokens_per_epoch, index.epochs, index.samples());
  const std::pair<const char*, const IndexArray*> arrays[] = {{"document_index", &index.document_index},
                                                              {"sample_index", &index.sample_index},
                                                              {"shuffle_index", &index.shuffle_index}};
  for (const auto& [name, array] : arrays) write_array(name, *array, flags);
}

/// Builds the sample mappings of a part and writes each; of a blend also which sample of which dataset comes
/// when.
class MappingWriter {
 public:
  explicit MappingWriter(const PartFlags& flags)
      : flags_(flags), blend_(parse_data_path(flags.settings.data_path).prefixes.size() > 1) {}

  void run() {
    const auto part = std::ranges::find(kSplitNames, flags_.part) - kSplitNames.begin();
    DataSources sources{.data_path = flags_.settings.data_path, .split = *flags_.settings.split};
    sources.samples[static_cast<size_t>(part)] = flags_.samples;
    make_directories(flags_.folder, ExitCode::config);
    const Datasets built = build_datasets(
        sources,
        {.unit = SplitUnit::documents, .make = [this](const DatasetPart& one) { return write(one); }});
    const auto& dataset = part == 0 ? built.train : part == 1 ? built.valid : built.test;
    if (!dataset) {
      throw data_error({.what = fmt::format("the {} part has no documents", flags_.part),
                        .where = "--data-path",
                        .fix = "Change --split or --split-part"});
    }
    if (!blend_) return;
    const BlendIndex& index = dynamic_cast<const BlendedDataset&>(*dataset).index();
    print("blend of {} samples", dataset->size());
    write_array("dataset_index", index.dataset_index, flags_);
    write_array("dataset_sample_index", index.dataset_sample_index, flags_);
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
    SampleMappingOptions options{
        .max_length = flags_.settings.seq_length.value() - bert_special_tokens,
        .short_sequence_probability = flags_.settings.short_seq_prob,
        .seed = flags_.seed(),
        .min_sentences = flags_.settings.bert_binary_head ? 2 : 1,
    };
    if (!part.samples) options.max_epochs = 1;
    options.max_samples = part.samples.value_or(INT64_MAX);
    const IndexArray array = build_sample_mapping(*part.data, part.range, options);
    print("{}", printable(part.data->prefix(), 1000));
    print("  {}: documents {} to {}, {} samples (first sentence, last + 1, tokens)", flags_.part,
          part.range.first, part.range.last - 1, array.rows());
    const std::string name = blend_ ? fmt::format("sample_mapping.{}", written_++) : "sample_mapping";
    write_array(name.c_str(), array, flags_);
    return std::make_shared<Samples>(array.rows());
  }

  const PartFlags& flags_;
  bool blend_;
  int64_t written_ = 0;
};

using Args = std::span<const std::string>;

constexpr FieldTraits some_prefixes = {.required = true, .positional = true};

int inspect_command(Args args) {
  std::vector<std::string> prefixes;
  TokenizerFlags flags;
  const Field prefix = bound_field("prefixes", &prefixes, "Paths without .bin and .idx", some_prefixes);
  if (!read_command(
          {.name = "teratron data inspect",
           .example = "teratron data inspect my_text_document",
           .usage = "PREFIX... [FLAGS]",
           .summary = "Show sizes, element type, lengths and the first document (with tokenizer flags as "
                      "text).",
           .fields = joined({prefix}, flags.fields())},
          args))
    return 0;
  const auto tokenizer = optional_tokenizer(flags.options());
  for (const std::string& each : prefixes) inspect(each, tokenizer.get());
  return 0;
}

int verify_command(Args args) {
  std::vector<std::string> prefixes;
  std::optional<int64_t> vocab_size;
  if (!read_command(
          {.name = "teratron data verify",
           .example = "teratron data verify my_text_document",
           .usage = "PREFIX... [--vocab-size N]",
           .summary = "Check every index entry.",
           .fields = {bound_field("prefixes", &prefixes, "Paths without .bin and .idx", some_prefixes),
                      bound_field("vocab_size", &vocab_size, "Check that all token ids are below it",
                                  {.min = 0})}},
          args))
    return 0;
  for (const std::string& prefix : prefixes) verify(prefix, vocab_size.value_or(0));
  return 0;
}

int sample_command(Args args) {
  SampleFlags flags;
  const std::vector<Field> own = {
      bound_field("prefix", &flags.prefix, "Path without .bin and .idx", some_prefixes),
      bound_field("document", &flags.document, "First document to print"),
      bound_field("count", &flags.count, "Number of documents", {.min = 1})};
  if (!read_command({.name = "teratron data sample",
                     .example = "teratron data sample my_text_document --count 3",
                     .usage = "PREFIX [FLAGS]",
                     .summary = "Print documents: ids, or text with tokenizer flags.",
                     .fields = joined(own, flags.tokenizer.fields())},
                    args))
    return 0;
  sample(flags);
  return 0;
}

int indices_command(Args args) {
  PartFlags flags;
  if (!read_command({.name = "teratron data indices",
                     .example = "teratron data indices my_text_document --seq-length 1024 --num-samples 100",
                     .usage = "PREFIX --seq-length N [FLAGS]",
                     .summary = "Write the index arrays of a GPT dataset as .npy.",
                     .fields = flags.fields({.min = 1, .max = INT32_MAX, .required = true})},
                    args))
    return 0;
  indices(flags);
  return 0;
}

int mapping_command(Args args) {
  PartFlags flags;
  Field pairs = bound_setting("bert_binary_head", &flags.settings, "Samples of two sentences or more");
  pairs.traits.off_help = "Also samples of one sentence";
  const std::vector<Field> own = {bound_setting("short_seq_prob", &flags.settings), pairs};
  if (!read_command(
          {.name = "teratron data mapping",
           .example = "teratron data mapping my_text_sentence --seq-length 512 --num-samples 100",
           .usage = "PREFIX... --seq-length N [FLAGS]",
           .summary = "Write the sample mapping of a BERT dataset, or of each in a blend, as .npy.",
           .fields = joined(
               flags.fields({.min = bert_special_tokens + 2, .max = INT32_MAX, .required = true}), own)},
          args))
    return 0;
  MappingWriter(flags).run();
  return 0;
}

}  // namespace

int data_command(std::span<const std::string> args) {
  const Subcommand subcommands[] = {
      {"inspect", "show sizes, lengths and the first document", inspect_command},
      {"verify", "check every index entry", verify_command},
      {"sample", "print documents", sample_command},
      {"indices", "write the index arrays of a GPT dataset", indices_command},
      {"mapping", "write the sample mapping of a BERT dataset", mapping_command},
      {"image", "write images as the pixel values of a vision model", image_command}};
  return run_subcommand({"teratron data", "teratron data inspect my_text_document"}, subcommands, args);
}

}  // namespace teratron
