#include "teratron/data/text/preprocess.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/log.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/data/ordered_map.h"
#include "teratron/data/text/block_tokenizer.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

FileLock lock_outputs(const fs::path& prefix) {
  auto lock =
      FileLock::try_acquire(prefix.parent_path() / fmt::format(".{}.lock", prefix.filename().string()));
  if (lock) return *std::move(lock);
  throw config_error({.what = "another process is writing these files",
                      .where = printable(prefix.string(), 1000),
                      .fix = "Wait for it, or use another --output-prefix"});
}

/// Removes the temporary files of a killed run: those of BinaryWriter, and folders of partitions.
void remove_leftovers(const fs::path& prefix) {
  const std::string name = prefix.filename().string();
  const auto is_leftover = [&](const std::string& found) {
    const bool file =
        found.starts_with(fmt::format(".{}.bin.", name)) || found.starts_with(fmt::format(".{}.idx.", name));
    return (file && found.ends_with(".tmp")) || found.starts_with(name + ".parts-");
  };
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  for (const std::string& found : list_directory(folder, ExitCode::config)) {
    std::error_code ignored;
    if (is_leftover(found)) fs::remove_all(folder / found, ignored);
  }
}

/// Cuts the tokens of rows into blocks.
class BlockCutter {
 public:
  BlockCutter(const BlockOptions& options, IndexedDatasetBuilder& builder)
      : options_(options), builder_(builder) {}

  void add_row(std::span<const int32_t> tokens) {
    const int64_t row = rows_++;
    if (row < options_.first_row || row >= options_.end_row) return;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if ((row - options_.first_row + 1) % rows_of_group == 0) cut();
  }

  /// The blocks of all rows since the last call; the rest is dropped.
  void cut() {
    const auto size = static_cast<size_t>(options_.size);
    for (std::span<const int32_t> left = tokens_; left.size() >= size; left = left.subspan(size)) {
      builder_.add_sequence(left.first(size));
      builder_.end_document();
      ++blocks_;
    }
    tokens_.clear();
  }

  int64_t blocks() const { return blocks_; }

 private:
  static constexpr int64_t rows_of_group = 1000;  // datasets.map()'s batch_size
  const BlockOptions& options_;
  IndexedDatasetBuilder& builder_;
  std::vector<int32_t> tokens_;
  int64_t rows_ = 0, blocks_ = 0;
};

/// The outputs of one key: one builder per partition.
class KeyWriter {
 public:
  KeyWriter(std::string prefix, const PreprocessOptions& options, Dtype dtype)
      : prefix_(std::move(prefix)),
        lock_(lock_outputs(prefix_)),
        options_(options),
        dtype_(dtype),
        folder_(prefix_ + ".parts-" + random_hex(8)) {
    remove_leftovers(prefix_);
    if (options.partitions > 1) make_directories(folder_, ExitCode::config);
    const IndexFormat format = options.partitions > 1 ? IndexFormat::mmap : options.format;
    for (int i = 0; i < options.partitions; ++i) {
      parts_.push_back(std::make_unique<IndexedDatasetBuilder>(part_prefix(i), dtype, format));
    }
    if (options.blocks.size > 0) cutter_.emplace(options.blocks, *parts_.front());
  }
  ~KeyWriter() {
    cutter_.reset();
    parts_.clear();
    std::error_code ignored;
    if (options_.partitions > 1) fs::remove_all(folder_, ignored);
  }
  KeyWriter(const KeyWriter&) = delete;
  KeyWriter& operator=(const KeyWriter&) = delete;

  /// `first_document` counts the documents before this block.
  void add(const TokenizedKey& key, int64_t first_document) {
    if (cutter_) return add_rows(key);
    auto tokens = std::span(key.tokens);
    auto lengths = std::span(key.sequence_lengths);
    for (size_t i = 0; i < key.document_sequences.size(); ++i) {
      const auto part = (first_document + static_cast<int64_t>(i)) % static_cast<int64_t>(parts_.size());
      IndexedDatasetBuilder& builder = *parts_[static_cast<size_t>(part)];
      const auto count = static_cast<size_t>(key.document_sequences[i]);
      for (const int32_t length : lengths.first(count)) {
        builder.add_sequence(tokens.first(static_cast<size_t>(length)));
        tokens = tokens.subspan(static_cast<size_t>(length));
      }
      lengths = lengths.subspan(count);
      if (count > 0 || !options_.drop_empty_documents) builder.end_document();
    }
    sequences_ += static_cast<int64_t>(key.sequence_lengths.size());
    tokens_ += static_cast<int64_t>(key.tokens.size());
  }

  void finalize() {
    if (cutter_) {
      cutter_->cut();
      sequences_ = cutter_->blocks();
      tokens_ = sequences_ * options_.blocks.size;
    }
    for (auto& part : parts_) part->finalize();
    if (parts_.size() == 1) return;
    IndexedDatasetBuilder whole(prefix_, dtype_, options_.format);
    for (int i = 0; i < options_.partitions; ++i) whole.add_dataset(IndexedDataset(part_prefix(i)));
    whole.finalize();
  }

  const std::string& prefix() const { return prefix_; }
  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }

 private:
  void add_rows(const TokenizedKey& key) {
    auto tokens = std::span(key.tokens);
    auto lengths = std::span(key.sequence_lengths);
    for (const int32_t sequences : key.document_sequences) {
      const auto count = static_cast<size_t>(sequences);
      size_t size = 0;
      for (const int32_t length : lengths.first(count)) size += static_cast<size_t>(length);
      cutter_->add_row(tokens.first(size));
      tokens = tokens.subspan(size);
      lengths = lengths.subspan(count);
    }
  }

  std::string part_prefix(int i) const {
    return options_.partitions == 1 ? prefix_ : fmt::format("{}/{}", folder_, i);
  }

  std::string prefix_;
  FileLock lock_;
  const PreprocessOptions& options_;
  Dtype dtype_;
  std::string folder_;
  std::vector<std::unique_ptr<IndexedDatasetBuilder>> parts_;
  std::optional<BlockCutter> cutter_;  // with --block-size
  int64_t sequences_ = 0;
  int64_t tokens_ = 0;
};

/// A block with the position of the reader after it.
struct ReadBlock {
  LineBlock block;
  int64_t position;
};

OrderedParallelMap<ReadBlock, TokenizedBlock> tokenized_blocks(LineReader& reader,
                                                               const PreprocessOptions& options,
                                                               const Tokenizer& tokenizer) {
  const auto read = [&reader]() -> std::optional<ReadBlock> {
    auto block = reader.next();
    if (!block) return {};
    return ReadBlock{*std::move(block), reader.position()};
  };
  const auto tokenize = [&options, &tokenizer](ReadBlock read) {
    TokenizedBlock result = tokenize_block(std::move(read.block), options, tokenizer);
    result.position = read.position;
    return result;
  };
  const int workers = std::max(options.workers, 1);
  return {workers, 2 * workers + 2, read, tokenize};
}

/// Counts and reports bad lines; throws at the first one beyond max_bad.
void count_bad_lines(const TokenizedBlock& block, const PreprocessOptions& options,
                     PreprocessResult& result) {
  constexpr int64_t kShown = 20;
  for (const BadLine& bad : block.bad) {
    const std::string where = fmt::format("{}:{}", printable(options.inputs[block.file], 1000), bad.line);
    if (++result.bad_lines > options.max_bad) {
      throw data_error({.what = bad.what,
                        .where = where,
                        .fix = options.max_bad == 0 ? "Fix the line, or allow some bad lines with --max-bad"
                                                    : fmt::format("This is bad line {}, more than --max-bad",
                                                                  result.bad_lines)});
    }
    if (result.bad_lines <= kShown) warn("{}: {}; skipping the line", where, bad.what);
    if (result.bad_lines == kShown) warn("further bad lines are only counted");
  }
}

int64_t total_bytes(const std::vector<std::string>& inputs) {
  int64_t total = 0;
  for (const std::string& input : inputs) {
    std::error_code error;
    const auto size = fs::file_size(input, error);
    if (error) return 0;
    total += static_cast<int64_t>(size);
  }
  return total;
}

void check(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  TERATRON_ASSERT(!options.inputs.empty() && !options.json_keys.empty() && options.partitions > 0);
  TERATRON_ASSERT(options.blocks.size == 0 || options.partitions == 1, "blocks are cut in order");
  if (options.append_eod && !tokenizer.special().eod) {
    throw config_error({.what = "the tokenizer has no end-of-document token",
                        .where = "--append-eod",
                        .fix = "Remove the flag or use another tokenizer"});
  }
}

}  // namespace

bool is_plain_text(std::string_view path) {
  for (const std::string_view compressed : {".gz", ".xz", ".zst"}) {
    if (path.ends_with(compressed)) path.remove_suffix(compressed.size());
  }
  return path.ends_with(".txt") || path.ends_with(".text") || path.ends_with(".raw");
}

PreprocessResult preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  check(options, tokenizer);
  const auto start = Clock::now();
  const auto folder = fs::path(options.output_prefix).parent_path();
  if (!folder.empty()) make_directories(folder, ExitCode::config);
  std::vector<std::unique_ptr<KeyWriter>> writers;
  for (const std::string& key : options.json_keys) {
    writers.push_back(
        std::make_unique<KeyWriter>(fmt::format("{}_{}_{}", options.output_prefix, key,
                                                options.split_sentences ? "sentence" : "document"),
                                    options, token_dtype(tokenizer.vocab_size(), options.format)));
  }
  PreprocessResult result;
  PreprocessProgress progress{.total_bytes = total_bytes(options.inputs)};
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int64_t reported = -1;  // documents when `progress` was last called
  const auto report = [&] {
    progress.seconds = seconds();
    reported = result.documents;
    if (options.progress) options.progress(progress);
  };
  {
    LineReader reader(options.inputs, options.max_line_bytes);
    auto blocks = tokenized_blocks(reader, options, tokenizer);
    while (const auto block = blocks.next()) {
      for (size_t i = 0; i < writers.size(); ++i) writers[i]->add(block->keys[i], result.documents);
      count_bad_lines(*block, options, result);
      const int64_t intervals = result.documents / options.log_interval;
      result.documents += static_cast<int64_t>(block->keys[0].document_sequences.size());
      result.blank_lines += block->blank_lines;
      progress.documents = result.documents;
      progress.bytes = block->position;
      if (result.documents / options.log_interval > intervals) report();
    }
  }
  for (const auto& writer : writers) {
    writer->finalize();
    result.sequences.push_back(writer->sequences());
    result.tokens.push_back(writer->tokens());
    result.prefixes.push_back(writer->prefix());
  }
  result.bytes = progress.bytes;
  if (reported != result.documents) report();
  result.seconds = seconds();
  return result;
}

}  // namespace teratron
