#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/cli/at_least.h"
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
  TokenizerOptions tokenizer;
  std::vector<std::string> patterns;
  std::string implementation = "mmap";
  std::string language = "english";
  std::string punkt_model;
  int64_t chunk_size = 25;
  bool keep_sequential = false;
  bool keep_newlines = false;
};

void declare(CLI::App& app, Flags& flags) {
  PreprocessOptions& options = flags.options;
  app.add_option("--input", flags.patterns,
                 "JSON lines: files (also .gz .xz .zst), patterns, or - for standard input")
      ->required();
  app.add_option("--json-keys,--json-key", options.json_keys, "keys of the texts")->capture_default_str();
  app.add_option("--output-prefix", options.output_prefix, "output path without _<key>_document.bin")
      ->required();
  app.add_flag("--append-eod", options.append_eod, "end each document with the end-of-document token");
  app.add_flag("--split-sentences", options.split_sentences, "one sequence per sentence");
  app.add_flag("--keep-newlines", flags.keep_newlines, "keep newlines between sentences");
  app.add_option(
      "--punkt-model", flags.punkt_model,
      "folder with a sentence splitter model in nltk's punkt_tab format (default: the language's model in "
      "$NLTK_DATA, else built-in rules for English)");
  app.add_option("--lang", flags.language, "language of the text, for sentence splitting")
      ->capture_default_str();
  options.workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  app.add_option("--workers", options.workers, "tokenizer threads; the output does not depend on it")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--partitions", options.partitions,
                 "assign lines round-robin to this many partitions, then concatenate them")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_flag("--keep-sequential-samples", flags.keep_sequential,
               "keep the order of the lines with --partitions");
  app.add_option("--log-interval", options.log_interval, "documents between progress lines")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--max-bad", options.max_bad, "bad lines to skip before failing")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--dataset-impl", flags.implementation, "mmap, or cached or lazy for the legacy format")
      ->check(CLI::IsMember({"mmap", "cached", "lazy"}))
      ->capture_default_str();
  app.add_option("--chunk-size", flags.chunk_size, "no effect; block sizes are automatic");
  add_tokenizer_flags(app, flags.tokenizer);
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
  options.drop_empty_documents = flags.tokenizer.compat_version == "2.6";
  if (options.split_sentences) prefer_split_inputs(options.inputs);
  if (flags.keep_sequential) options.partitions = 1;
  if (flags.implementation != "mmap") options.format = IndexFormat::legacy;
  if (flags.tokenizer.type.empty()) {
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
  CLI::App app("Convert JSON lines to an indexed dataset", "teratron preprocess");
  Flags flags;
  declare(app, flags);
  if (!parse_command(app, args)) return static_cast<int>(ExitCode::ok);
  resolve(flags);
  const auto tokenizer = build_tokenizer(flags.tokenizer);
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
