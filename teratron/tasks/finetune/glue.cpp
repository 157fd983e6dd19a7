#include <charconv>
#include <map>

#include "teratron/base/config/config.h"
#include "teratron/base/error.h"
#include "teratron/base/text_lines.h"
#include "teratron/tasks/finetune/pair_samples.h"
#include "teratron/tasks/text/detokenizer.h"
#include "teratron/tasks/text/python_text.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

using Row = std::vector<std::string>;

// What a table is like.
struct Table {
  const char* task;
  size_t test_columns;                      // of the header of a file without labels
  size_t columns;                           // at least
  std::array<size_t, 2> texts, test_texts;  // their columns
  std::map<std::string, int64_t, std::less<>> labels;
  int64_t test_label;
};

Row columns_of(std::string_view line) {
  Row row(1);
  for (const char c : stripped(line)) {
    if (c == '\t') {
      row.emplace_back();
    } else {
      row.back() += c;
    }
  }
  return row;
}

std::string header(const Row& row, size_t column) {
  return std::string(stripped(row.at(column)));
}

class TableReader {
 public:
  TableReader(const Table& table, const PairReader& reader, std::string file)
      : table_(table), reader_(reader), file_(std::move(file)) {}

  PairSamples read() {
    reader_.log(fmt::format(" > Processing {} ...", file_));
    std::ifstream stream = open_text(file_, ExitCode::data);
    std::string line;
    if (!next_line(stream, line, file_)) {
      reject("the file is empty", "Write a header and a line per sample");
    } else if (read_header(columns_of(line))) {
      while (next_line(stream, line, file_)) {
        ++number_;
        if (!stripped(line).empty()) read_line(line);
      }
    }
    if (samples_.samples.empty() && problems_.empty()) reject("the file has no samples", "Name another file");
    if (!problems_.empty()) throw UserError(ExitCode::data, std::move(problems_));
    reader_.log(fmt::format(" >> processed {} samples.", samples_.samples.size()));
    return std::move(samples_);
  }

 protected:
  // False: not a table of this task.
  virtual bool read_header(const Row& row) = 0;
  // Whether the row has a sample; reports what is wrong, if anything.
  virtual bool takes(const Row& row) = 0;
  ~TableReader() = default;

  void reject(std::string what, std::string fix) {
    problems_.push_back({std::move(what), fmt::format("{}:{}", file_, number_), std::move(fix)});
  }

  const Table& table_;
  const PairReader& reader_;
  bool is_test_ = false;

 private:
  void read_line(const std::string& line) {
    if (!unicode::is_valid(line)) return reject("the line is not valid UTF-8", "Convert the file to UTF-8");
    const Row row = columns_of(line);
    if (!takes(row)) return;
    const auto id = id_of(row[0]);
    if (!id) return;
    const auto label = label_of(row);
    if (!label) return;
    const auto& columns = is_test_ ? table_.test_texts : table_.texts;
    add(clean_text(stripped(row[columns[0]])), clean_text(stripped(row[columns[1]])), *id, *label);
  }

  std::optional<int64_t> id_of(const std::string& text) {
    const std::string_view digits = stripped(text);
    int64_t id = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (error == std::errc() && end == digits.data() + digits.size() && id >= 0) return id;
    reject(fmt::format("'{}' in the first column is not a number", printable(digits, 40)),
           "Write the number of the sample, from 0");
    return std::nullopt;
  }

  std::optional<int64_t> label_of(const Row& row) {
    if (is_test_) return table_.test_label;
    const auto found = table_.labels.find(stripped(row.back()));
    if (found != table_.labels.end()) return found->second;
    std::string known;
    for (const auto& [name, label] : table_.labels) known += (known.empty() ? "" : ", ") + name;
    reject(fmt::format("'{}' is not a label of {}", printable(row.back(), 40), table_.task),
           fmt::format("Write one of {} into the last column", known));
    return std::nullopt;
  }

  void add(const std::string& first, const std::string& second, int64_t id, int64_t label) {
    if (first.empty() || second.empty()) return reject("a text is empty", "Write both texts");
    samples_.samples.push_back({.id = id, .label = label, .first_pair = samples_.pairs.size()});
    TextPair& pair = samples_.pairs.emplace_back();
    reader_.tokenizer.encode(first, pair.first);
    pair.second = static_cast<int64_t>(samples_.texts.size());
    reader_.tokenizer.encode(second, samples_.texts.emplace_back());
    if (samples_.samples.size() % 50000 == 0)
      reader_.log(fmt::format("  > processed {} so far ...", samples_.samples.size()));
  }

  std::string file_;
  int64_t number_ = 1;
  PairSamples samples_;
  std::vector<Problem> problems_;
};

const Table mnli = {.task = "MNLI",
                    .test_columns = 10,
                    .columns = 10,
                    .texts = {8, 9},
                    .test_texts = {8, 9},
                    .labels = {{"contradiction", 0}, {"entailment", 1}, {"neutral", 2}},
                    .test_label = 0};
const Table qqp = {.task = "QQP",
                   .test_columns = 3,
                   .columns = 6,
                   .texts = {3, 4},
                   .test_texts = {1, 2},
                   .labels = {{"0", 0}, {"1", 1}},
                   .test_label = 0};

class MnliReader final : public TableReader {
 public:
  MnliReader(const PairReader& reader, const std::string& file) : TableReader(mnli, reader, file) {}

 private:
  bool read_header(const Row& row) override {
    if (row.size() < table_.columns) {
      reject(fmt::format("the header has {} columns", row.size()),
             "Name a file of MNLI: its texts are in columns 9 and 10 of at least 10");
      return false;
    }
    is_test_ = row.size() == table_.test_columns;
    if (is_test_) {
      reader_.log(fmt::format("   reading {}, {} and {} columns and setting labels to contradiction",
                              header(row, 0), header(row, 8), header(row, 9)));
    } else {
      reader_.log(fmt::format("    reading {} , {}, {}, and {} columns ...", header(row, 0), header(row, 8),
                              header(row, 9), header(row, row.size() - 1)));
    }
    return true;
  }

  bool takes(const Row& row) override {
    if (row.size() > (is_test_ ? 9U : 10U)) return true;
    reject(fmt::format("the line has {} columns", row.size()),
           "Write texts into columns 9 and 10, the label last");
    return false;
  }
};

class QqpReader final : public TableReader {
 public:
  QqpReader(const PairReader& reader, const std::string& file) : TableReader(qqp, reader, file) {}

 private:
  bool read_header(const Row& row) override {
    is_test_ = row.size() == table_.test_columns;
    if (is_test_) {
      reader_.log(fmt::format("   reading {}, {}, and {} columns and setting labels to 0", header(row, 0),
                              header(row, 1), header(row, 2)));
    } else if (row.size() == table_.columns) {
      reader_.log(fmt::format("    reading {}, {}, {}, and {} columns ...", header(row, 0), header(row, 3),
                              header(row, 4), header(row, 5)));
    } else {
      reject(fmt::format("the header has {} columns", row.size()), "Name a file of QQP, of 6 columns or 3");
      return false;
    }
    return true;
  }

  // Megatron-LM skips what is not complete.
  bool takes(const Row& row) override {
    const auto& texts = is_test_ ? table_.test_texts : table_.texts;
    const char* problem = nullptr;
    if (row.size() != (is_test_ ? table_.test_columns : table_.columns)) {
      problem = "index error";
    } else if (clean_text(stripped(row[texts[0]])).empty()) {
      problem = "zero length a";
    } else if (clean_text(stripped(row[texts[1]])).empty()) {
      problem = "zero length b";
    }
    if (problem) reader_.log(fmt::format("***WARNING*** {}, skipping: {}", problem, python_str(Value(row))));
    return problem == nullptr;
  }
};

std::string table_name(const std::string& file, const std::string& task) {
  const size_t found = file.rfind(task);
  std::string name = found == std::string::npos ? file : file.substr(found + task.size());
  if (name.ends_with(".tsv")) name.resize(name.size() - 4);
  const size_t begin = name.find_first_not_of('/');
  return replace_all(begin == std::string::npos ? "" : name.substr(begin), "_", "-");
}

}  // namespace

PairSamples read_mnli(const std::string& file, const PairReader& reader) {
  PairSamples samples = MnliReader(reader, file).read();
  samples.name = table_name(file, "MNLI");
  return samples;
}

PairSamples read_qqp(const std::string& file, const PairReader& reader) {
  PairSamples samples = QqpReader(reader, file).read();
  samples.name = table_name(file, "QQP");
  return samples;
}

}  // namespace teratron
