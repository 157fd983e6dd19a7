#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include <unistd.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/tokenizer_flags.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/data/text/preprocess.h"
#include "teratron/data/text/punkt.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

struct Flags {
  PreprocessOptions options;
  TokenizerFlags tokenizer;
  std::vector<std::string> patterns;
  std::string implementation = "mmap";
  std::string language = "english";
  std::string punkt_model;
  int64_t workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int64_t partitions = 1;
  int64_t chunk_size = 25;
  bool keep_sequential = false;
  bool keep_newlines = false;
};

std::vector<Field> fields_of(Flags& flags) {
  PreprocessOptions& options = flags.options;
  return joined(
      {bound_field(
           "input", &flags.patterns,
           "JSON lines or plain text (*.txt, *.raw): files (also .gz .xz .zst), patterns, or - for standard "
           "input",
           {.required = true}),
       bound_field("json_keys", &options.json_keys, "Keys of the texts", {.aliases = "--json-key"}),
       bound_field("output_prefix", &options.output_prefix, "Output path without _<key>_document.bin",
                   {.required = true}),
       bound_field("append_eod", &options.append_eod, "End each document with the end-of-document token"),
       bound_field("block_size", &options.blocks.size,
                   "Cut the tokens of each 1000 documents into documents of this many, as run_clm does; drop "
                   "the rest",
                   {.min = 1}),
       bound_field("split_sentences", &options.split_sentences, "One sequence per sentence"),
       bound_field("keep_newlines", &flags.keep_newlines, "Keep newlines between sentences"),
       bound_field("punkt_model", &flags.punkt_model,
                   "Folder with a sentence splitter in nltk's punkt_tab format; default: the language's in "
                   "$NLTK_DATA, else built-in rules for English"),
       bound_field("lang", &flags.language, "Language of the text, for sentence splitting"),
       bound_field("workers", &flags.workers, "Tokenizer threads; the output does not depend on it",
                   {.min = 1, .max = 4096}),
       bound_field("partitions", &flags.partitions,
                   "Assign lines round-robin to this many partitions, then concatenate them",
                   {.min = 1, .max = 4096}),
       bound_field("keep_sequential_samples", &flags.keep_sequential,
                   "Keep the order of the lines with --partitions"),
       bound_field("log_interval", &options.log_interval, "Documents between progress lines", {.min = 1}),
       bound_field("max_bad", &options.max_bad, "Bad lines to skip before failing", {.min = 0}),
       bound_field("dataset_impl", &flags.implementation, "mmap, or cached or lazy for the legacy format",
                   {.choices = "mmap|cached|lazy"}),
       bound_field("chunk_size", &flags.chunk_size, "No effect: block sizes are automatic")},
      flags.tokenizer.fields());
}

/// Replaces inputs by `<name>_ss<extension>`, if it exists: the file already split into sentences.
void prefer_split_inputs(std::vector<std::string>& inputs) {
  for (std::string& input : inputs) {
    const std::filesystem::path path = input;
    auto split = path;
    split.replace_filename(path.stem().string() + "_ss" + path.extension().string());
    if (input == "-" || !std::filesystem::exists(split)) continue;
    notice("reading {}, the sentences of {}, instead", printable(split.string()), printable(input));
    input = split.string();
  }
}

void resolve(Flags& flags) {
  PreprocessOptions& options = flags.options;
  options.inputs = expand_patterns(flags.patterns);
  options.workers = static_cast<int>(flags.workers);
  options.partitions = static_cast<int>(flags.partitions);
  options.drop_empty_documents = flags.tokenizer.compat_version == "2.6";
  if (options.split_sentences) prefer_split_inputs(options.inputs);
  if (flags.keep_sequential) options.partitions = 1;
  if (options.blocks.size > 0) {
    options.partitions = 1;
    flags.tokenizer.include_special_tokens = false;
  }
  if (options.blocks.size > 0 && options.split_sentences) {
    throw config_error({.what = "blocks are cut across sentences",
                        .where = "--block-size",
                        .fix = "Leave out --split-sentences, or --block-size"});
  }
  if (flags.implementation != "mmap") options.format = IndexFormat::legacy;
  if (!flags.tokenizer.settings.tokenizer_type) {
    throw config_error({.what = "no tokenizer given",
                        .where = "--tokenizer-type",
                        .fix = "Add for example --tokenizer-type GPT2BPETokenizer"});
  }
}

/// The splitter given by flag, else nltk's for the language, else the built-in rules for English.
SentenceSplitter build_splitter(const Flags& flags) {
  std::string folder = flags.punkt_model;
  if (const char* nltk = std::getenv("NLTK_DATA"); folder.empty() && nltk != nullptr) {
    const auto found = std::filesystem::path(nltk) / "tokenizers" / "punkt_tab" / flags.language;
    if (std::filesystem::is_directory(found)) folder = found.string();
  }
  const SentenceWhitespace whitespace =
      flags.keep_newlines ? SentenceWhitespace::keep : SentenceWhitespace::drop;
  if (folder.empty() && flags.language != "english") {
    throw config_error(
        {.what = fmt::format("there is no sentence splitter for '{}'", printable(flags.language)),
         .where = "--lang",
         .fix = "Name a model folder with --punkt-model, or set NLTK_DATA"});
  }
  if (folder.empty())
    notice("splitting sentences by built-in rules for English (--punkt-model uses a model of nltk)");
  const auto splitter = std::make_shared<PunktSplitter>(folder.empty() ? PunktSplitter::english(whitespace)
                                                                       : PunktSplitter(folder, whitespace));
  return [splitter](std::string_view text) { return splitter->split(text); };
}

/// Rewrites one line on a terminal, prints plain lines elsewhere.
void show_progress(const PreprocessProgress& progress, bool terminal) {
  const double seconds = std::max(progress.seconds, 1e-9);
  const double megabytes = static_cast<double>(progress.bytes) / 1e6;
  std::string line = fmt::format("Processed {} documents ({:.1f} docs/s, {:.2f} MB/s).", progress.documents,
                                 static_cast<double>(progress.documents) / seconds, megabytes / seconds);
  if (progress.total_bytes > 0 && progress.bytes > 0) {
    const double share =
        std::min(1.0, static_cast<double>(progress.bytes) / static_cast<double>(progress.total_bytes));
    const auto left = static_cast<int64_t>(seconds / share * (1 - share));
    line += fmt::format(" {:.0f} %, ETA {}:{:02}:{:02}", 100 * share, left / 3600, left / 60 % 60, left % 60);
  }
  if (terminal) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

}  // namespace

int preprocess_command(std::span<const std::string> args) {
  Flags flags;
  if (!read_command(
          {.name = "teratron preprocess",
           .example = "teratron preprocess --input text.jsonl --output-prefix my --append-eod --workers 8 "
                      "\\\n    --tokenizer-type HuggingFaceTokenizer --tokenizer-model DIR",
           .usage = "--input FILE... --output-prefix PREFIX --tokenizer-type TYPE [FLAGS]",
           .summary = "Convert JSON lines or plain text to an indexed dataset.",
           .fields = fields_of(flags),
           .main_flags = {"--input", "--output-prefix", "--json-keys", "--append-eod", "--split-sentences",
                          "--keep-newlines", "--lang", "--workers", "--partitions", "--block-size",
                          "--max-bad", "--log-interval", "--tokenizer-type", "--tokenizer-model",
                          "--vocab-file", "--merge-file", "--vocab-extra-ids", "--vocab-size"}},
          args))
    return static_cast<int>(ExitCode::ok);
  resolve(flags);
  const auto tokenizer = build_tokenizer(flags.tokenizer.options());
  if (flags.options.split_sentences) flags.options.splitter = build_splitter(flags);
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  flags.options.progress = [terminal](const PreprocessProgress& progress) {
    show_progress(progress, terminal);
  };
  const PreprocessResult result = preprocess(flags.options, *tokenizer);
  if (terminal) std::fputc('\n', stderr);
  if (result.bad_lines > 0) warn("skipped {} bad lines", result.bad_lines);
  if (result.blank_lines > 0) notice("skipped {} blank lines", result.blank_lines);
  if (result.documents == 0) warn("the input has no documents: the output is empty");
  for (size_t i = 0; i < result.prefixes.size(); ++i) {
    print("{}: {} documents, {} sequences, {} tokens ({:.1f} s)", result.prefixes[i], result.documents,
          result.sequences[i], result.tokens[i], result.seconds);
  }
  return static_cast<int>(ExitCode::ok);
}

}  // namespace teratron
