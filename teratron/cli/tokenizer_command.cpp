#include <charconv>
#include <chrono>
#include <ctime>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/base/text_lines.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/tokenizer/chat_command.h"
#include "teratron/cli/tokenizer_flags.h"
#include "teratron/tokenizer/bpe/bpe_trainer.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {
namespace {

struct TrainFlags {
  std::vector<std::string> inputs;
  std::string output;
  std::string json_key = "text";
  BpeTrainerOptions options;
};

/// Documents of several files: texts of JSON lines, or plain text in blocks of whole lines.
class Documents {
 public:
  explicit Documents(const TrainFlags& flags) : flags_(flags) {}

  bool next(std::string& document) {
    for (; file_ < flags_.inputs.size(); ++file_) {
      if (!stream_.is_open()) open();
      if (is_json() ? next_json(document) : next_block(document)) return true;
      stream_.close();
      stream_.clear();
    }
    return false;
  }

 private:
  static constexpr size_t kBlock = size_t{1} << 20;

  bool is_json() const {
    return flags_.inputs[file_].ends_with(".jsonl") || flags_.inputs[file_].ends_with(".json");
  }

  void open() {
    stream_ = open_text(flags_.inputs[file_], ExitCode::data);
    line_ = 0;
  }

  bool next_json(std::string& document) {
    std::string line;
    while (next_line(stream_, line, flags_.inputs[file_])) {
      ++line_;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains(flags_.json_key) || !json[flags_.json_key].is_string()) {
        throw data_error(
            {.what = fmt::format("not a JSON object with a string under the key '{}'", flags_.json_key),
             .where = fmt::format("{}:{}", flags_.inputs[file_], line_),
             .fix = "Name the key with --json-key"});
      }
      document = json[flags_.json_key].get<std::string>();
      return true;
    }
    return false;
  }

  bool next_block(std::string& document) {
    document.clear();
    std::string line;
    while (document.size() < kBlock && next_line(stream_, line, flags_.inputs[file_])) {
      document += line;
      if (!stream_.eof()) document += '\n';
    }
    return !document.empty();
  }

  const TrainFlags& flags_;
  size_t file_ = 0;
  std::ifstream stream_;
  int64_t line_ = 0;
};

void train(const TrainFlags& flags) {
  Documents documents(flags);
  const TrainedBpe bpe = train_bpe([&](std::string& text) { return documents.next(text); }, flags.options);
  write_bpe(bpe, flags.output);
  if (static_cast<int64_t>(bpe.tokens.size()) < flags.options.vocab_size) {
    notice("the text yields only {} tokens, not {}", bpe.tokens.size(), flags.options.vocab_size);
  }
  print("wrote {} tokens, {} merges, {} special tokens to {}", bpe.tokens.size(), bpe.merges.size(),
        bpe.special_tokens.size(), flags.output);
}

struct EncodeFlags {
  bool whole_document = false;
  bool offsets = false;
  bool timing = false;
};

/// Calls `visit` for each document of stdin.
template <class Visit>
void for_each_document(bool whole, const Visit& visit) {
  if (whole) return visit(read_rest(std::cin, "standard input"));
  for (std::string line; next_line(std::cin, line, "standard input");) visit(line);
}

void print_line(const fmt::memory_buffer& line) {
  std::cout.write(line.data(), static_cast<std::streamsize>(line.size())).put('\n');
}

void encode_with_offsets(const Tokenizer& tokenizer, const EncodeFlags& flags) {
  for_each_document(flags.whole_document, [&](const std::string& text) {
    fmt::memory_buffer line;
    const char* blank = "";
    for (const TokenSpan& span : tokenizer.encode_with_offsets(text)) {
      fmt::format_to(std::back_inserter(line), "{}{}:{}-{}", blank, span.id, span.begin, span.end);
      blank = " ";
    }
    print_line(line);
  });
  std::cout.flush();
}

void encode(const Tokenizer& tokenizer, const EncodeFlags& flags) {
  std::vector<int32_t> ids;
  size_t bytes = 0;
  std::chrono::duration<double> spent{0};
  std::clock_t cpu = 0;
  for_each_document(flags.whole_document, [&](const std::string& text) {
    ids.clear();
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu_begin = std::clock();
    tokenizer.encode(text, ids);
    cpu += std::clock() - cpu_begin;
    spent += std::chrono::steady_clock::now() - begin;
    bytes += text.size();
    fmt::memory_buffer line;
    fmt::format_to(std::back_inserter(line), "{}", fmt::join(ids, " "));
    print_line(line);
  });
  std::cout.flush();
  if (flags.timing) {
    notice("{} bytes encoded in {:.6f} s, {:.6f} s of CPU time", bytes, spent.count(),
           static_cast<double>(cpu) / CLOCKS_PER_SEC);
  }
}

std::vector<int32_t> parse_ids(const std::string& line, int64_t number, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || *rest != 0 || id < 0 || id >= tokenizer.vocab_size()) {
      throw data_error({.what = fmt::format("'{}' is not an id from 0 to {}", printable(word, 40),
                                            tokenizer.vocab_size() - 1),
                        .where = fmt::format("stdin:{}", number),
                        .fix = "Separate ids by blanks"});
    }
    ids.push_back(id);
  }
  return ids;
}

void decode(const Tokenizer& tokenizer) {
  int64_t number = 0;
  for (std::string line; next_line(std::cin, line, "standard input");) {
    const std::string text = stdout_text(tokenizer.decode(parse_ids(line, ++number, tokenizer)));
    std::cout.write(text.data(), static_cast<std::streamsize>(text.size())).put('\n');
  }
  std::cout.flush();
}

void info(const Tokenizer& tokenizer, const TokenizerOptions& options) {
  print("type: {}", options.type);
  print("vocabulary: {} (padded to a multiple of 128: {})", tokenizer.vocab_size(),
        padded_vocab_size(tokenizer.vocab_size(), 128, 1));
  const SpecialTokens& special = tokenizer.special();
  const auto show = [](const char* name, const std::optional<int32_t>& id) {
    if (id) print("{}: {}", name, *id);
  };
  show("eod", special.eod);
  show("bos", special.bos);
  show("eos", special.eos);
  show("pad", special.pad);
  show("cls", special.cls);
  show("sep", special.sep);
  show("mask", special.mask);
  if (!special.additional.empty()) {
    print("additional: {} from {} to {}", special.additional.size(), special.additional.front(),
          special.additional.back());
  }
}

using Args = std::span<const std::string>;

int train_command(Args args) {
  TrainFlags flags;
  if (!read_command(
          {.name = "teratron tokenizer train",
           .example = "teratron tokenizer train --input text.jsonl --vocab-size 32768 --output my-tokenizer",
           .usage = "--input FILE... --vocab-size N --output FOLDER [FLAGS]",
           .summary = "Learn a byte-level BPE vocabulary from text.",
           .fields = {bound_field("input", &flags.inputs, "Text files, or JSON lines (*.jsonl, *.json)",
                                  {.required = true}),
                      bound_field("output", &flags.output,
                                  "Folder for vocab.json, merges.txt and tokenizer.json", {.required = true}),
                      bound_field("vocab_size", &flags.options.vocab_size,
                                  "Vocabulary size, with special tokens", {.required = true}),
                      bound_field("json_key", &flags.json_key, "Key of the text in JSON lines"),
                      bound_field("special_tokens", &flags.options.special_tokens,
                                  "Additional tokens that are never split"),
                      bound_field("min_frequency", &flags.options.min_frequency,
                                  "Minimum count of a pair to be merged")}},
          args))
    return 0;
  train(flags);
  return 0;
}

// A command that runs a tokenizer: its own fields, and those of the tokenizer.
struct TokenizerCommand {
  CommandLine line;
  std::function<void(const Tokenizer&, const TokenizerOptions&)> run;
  std::function<void()> check = nullptr;  // fields of the command itself

  int operator()(Args args) {
    TokenizerFlags flags;
    std::vector<Field> fields = flags.fields();
    fields.front().traits.required = true;  // the type
    line.fields = joined(std::move(line.fields), fields);
    if (!read_command(line, args)) return 0;
    if (check) check();
    const TokenizerOptions options = flags.options();
    run(*build_tokenizer(options), options);
    return 0;
  }
};

int encode_command(Args args) {
  EncodeFlags flags;
  const auto check = [&] {
    if (!flags.offsets || !flags.timing) return;
    throw config_error({.what = "offsets are not timed",
                        .where = "--timing",
                        .fix = "Give only one of --offsets and --timing"});
  };
  const auto run = [&](const Tokenizer& tokenizer, const TokenizerOptions&) {
    (flags.offsets ? encode_with_offsets : encode)(tokenizer, flags);
  };
  return TokenizerCommand{
      {.name = "teratron tokenizer encode",
       .example =
           "teratron tokenizer encode --tokenizer-type HuggingFaceTokenizer --tokenizer-model DIR < text.txt",
       .usage = "--tokenizer-type TYPE [FLAGS]",
       .summary = "Convert text from stdin to ids, one document per line.",
       .fields = {bound_field("document", &flags.whole_document, "Treat all of stdin as one document"),
                  bound_field("timing", &flags.timing, "Print the time spent encoding to stderr"),
                  bound_field("offsets", &flags.offsets,
                              "Print each token as id:begin-end, its range of characters in the text")}},
      run,
      check}(args);
}

int decode_command(Args args) {
  return TokenizerCommand{
      {.name = "teratron tokenizer decode",
       .example =
           "teratron tokenizer decode --tokenizer-type HuggingFaceTokenizer --tokenizer-model DIR < ids.txt",
       .usage = "--tokenizer-type TYPE [FLAGS]",
       .summary = "Convert ids from stdin to text, one document per line."},
      [](const Tokenizer& tokenizer, const TokenizerOptions&) { decode(tokenizer); }}(args);
}

int info_command(Args args) {
  return TokenizerCommand{
      {.name = "teratron tokenizer info",
       .example = "teratron tokenizer info --tokenizer-type HuggingFaceTokenizer --tokenizer-model DIR",
       .usage = "--tokenizer-type TYPE [FLAGS]",
       .summary = "Show vocabulary sizes and special tokens."},
      info}(args);
}

}  // namespace

int tokenizer_command(std::span<const std::string> args) {
  const Subcommand subcommands[] = {
      {"train", "learn a byte-level BPE vocabulary from text", train_command},
      {"encode", "convert text from stdin to ids", encode_command},
      {"decode", "convert ids from stdin to text", decode_command},
      {"info", "show vocabulary sizes and special tokens", info_command},
      {"chat", "print conversations as a chat template writes them", chat_command}};
  return run_subcommand(
      {"teratron tokenizer",
       "teratron tokenizer train --input text.jsonl --vocab-size 32768 --output my-tokenizer"},
      subcommands, args);
}

}  // namespace teratron
