#include "teratron/data/text/block_tokenizer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <simdjson.h>

#include "teratron/base/error.h"
#include "teratron/data/text/python_json.h"
#include "teratron/tokenizer/json_problem.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

using simdjson::dom::element;

/// A line that is not a valid document; caught per line.
struct LineError {
  std::string what;
};

class BlockTokenizer {
 public:
  BlockTokenizer(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenizedBlock& result)
      : options_(options),
        tokenizer_(tokenizer),
        result_(result),
        is_text_(is_plain_text(options.inputs[result.file])) {}

  /// At least SIMDJSON_PADDING readable bytes follow `line`.
  void add_line(std::string_view line, int64_t number) {
    const bool is_blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    if (is_blank && !(is_text_ && options_.blocks.size > 0)) {
      ++result_.blank_lines;
      return;
    }
    Marks marks = mark();
    try {
      if (is_text_) {
        add_row(line, is_blank);
      } else {
        add_object(line);
      }
    } catch (const LineError& error) {
      roll_back(marks);
      result_.bad.push_back({number, error.what});
    }
  }

 private:
  struct Mark {
    size_t tokens, sequences, documents;
  };
  using Marks = std::vector<Mark>;

  Marks mark() const {
    Marks marks;
    for (const TokenizedKey& key : result_.keys) {
      marks.push_back({key.tokens.size(), key.sequence_lengths.size(), key.document_sequences.size()});
    }
    return marks;
  }

  void roll_back(const Marks& marks) {
    for (size_t i = 0; i < marks.size(); ++i) {
      result_.keys[i].tokens.resize(marks[i].tokens);
      result_.keys[i].sequence_lengths.resize(marks[i].sequences);
      result_.keys[i].document_sequences.resize(marks[i].documents);
    }
  }

  // A line of a text, before its line break.
  void add_row(std::string_view line, bool is_blank) {
    if (!simdjson::validate_utf8(line.data(), line.size())) throw LineError{"not UTF-8"};
    if (line.ends_with('\r')) line.remove_suffix(1);
    std::string text(line);
    if (!options_.blocks.drop_line_breaks) text += '\n';
    if (is_blank && options_.blocks.drop_blank_rows) text.clear();
    for (TokenizedKey& key : result_.keys) {
      const size_t first_sequence = key.sequence_lengths.size();
      add_text(text, key);
      end_document(first_sequence, key);
    }
  }

  void add_object(std::string_view line) {
    const element root = parse(line);
    simdjson::dom::object object;
    if (root.get(object)) throw LineError{"not a JSON object"};
    for (size_t i = 0; i < options_.json_keys.size(); ++i) {
      add_document(find(object, options_.json_keys[i]), options_.json_keys[i], result_.keys[i]);
    }
  }

  element parse(std::string_view line) {
    element root;
    const auto error = parser_.parse(line.data(), line.size(), false).get(root);
    lone_surrogates_ = false;
    if (!error) return root;
    if (const auto strict = to_strict_json(line)) {
      lone_surrogates_ = true;
      if (!parser_.parse(*strict).get(root)) return root;
    }
    if (line.starts_with("\xef\xbb\xbf")) throw LineError{"the line starts with a byte order mark"};
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != line.npos && line[begin] != '{' && line[begin] != '[')
      throw LineError{"plain text, not a JSON object such as {\"text\": \"...\"}"};
    throw LineError{fmt::format("broken JSON: {}", json_problem(error))};
  }

  /// As in Python, the last value of a repeated key wins.
  static element find(simdjson::dom::object object, const std::string& key) {
    std::optional<element> last;
    for (const auto field : object) {
      if (field.key == key) last = field.value;
    }
    if (!last) throw LineError{fmt::format("no key \"{}\"", printable(key))};
    return *last;
  }

  void add_document(element value, const std::string& name, TokenizedKey& key) {
    const size_t first_sequence = key.sequence_lengths.size();
    std::string_view text;
    simdjson::dom::array list;
    if (!value.get(text)) {
      add_text(text, key);
    } else if (!value.get(list)) {
      for (const element item : list) {
        if (item.get(text))
          throw LineError{
              fmt::format("the list under \"{}\" has an item that is not a string", printable(name))};
        add_sequence(text, key);
      }
    } else {
      throw LineError{fmt::format("\"{}\" is not a string", printable(name))};
    }
    end_document(first_sequence, key);
  }

  void end_document(size_t first_sequence, TokenizedKey& key) {
    if (options_.append_eod && key.sequence_lengths.size() > first_sequence) {
      key.tokens.push_back(*tokenizer_.special().eod);
      ++key.sequence_lengths.back();
    }
    key.document_sequences.push_back(static_cast<int32_t>(key.sequence_lengths.size() - first_sequence));
  }

  void add_text(std::string_view text, TokenizedKey& key) {
    if (!options_.split_sentences) {
      add_sequence(text, key);
      return;
    }
    if (!options_.splitter) throw LineError{"the text is not split into sentences"};
    for (const std::string& sentence : options_.splitter(text)) add_sequence(sentence, key);
  }

  void add_sequence(std::string_view text, TokenizedKey& key) {
    const size_t before = key.tokens.size();
    if (lone_surrogates_ && text.find(kLoneSurrogate) != text.npos) {
      throw LineError{"the text has a lone surrogate (\\ud800 to \\udfff), which is not a character"};
    }
    try {
      tokenizer_.encode(text, key.tokens);
    } catch (const UserError& error) {
      throw LineError{error.what()};
    }
    const size_t count = key.tokens.size() - before;
    if (count == 0) return;
    if (count >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) throw LineError{"too many tokens"};
    key.sequence_lengths.push_back(static_cast<int32_t>(count));
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  TokenizedBlock& result_;
  bool is_text_;
  simdjson::dom::parser parser_;
  bool lone_surrogates_ =
      false;  // the line was rewritten by to_strict_json: texts may contain kLoneSurrogate
};

}  // namespace

TokenizedBlock tokenize_block(LineBlock block, const PreprocessOptions& options, const Tokenizer& tokenizer) {
  TokenizedBlock result;
  result.file = block.file;
  result.keys.resize(options.json_keys.size());
  if (block.too_long != 0) {
    result.bad.push_back({block.too_long, fmt::format("longer than {} bytes", options.max_line_bytes)});
    return result;
  }
  const size_t size = block.text.size();
  block.text.append(simdjson::SIMDJSON_PADDING, '\0');
  BlockTokenizer lines(options, tokenizer, result);
  int64_t number = block.first_line;
  for (size_t start = 0; start < size; ++number) {
    const size_t end = block.text.find('\n', start);
    lines.add_line(std::string_view(block.text).substr(start, end - start), number);
    start = end + 1;
  }
  return result;
}

}  // namespace teratron
