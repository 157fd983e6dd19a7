#include <chrono>
#include <filesystem>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/text_lines.h"
#include "teratron/tasks/finetune/pair_samples.h"
#include "teratron/tasks/text/detokenizer.h"
#include "teratron/tasks/text/python_text.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr size_t race_choices = 4;
constexpr const char* race_form =
    "Write {\"article\": text, \"questions\": [text], \"options\": [[4 texts]], \"answers\": [A to D]}";

std::vector<int32_t> cleaned_tokens(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(clean_text(text), ids);
  return ids;
}

bool are_texts(const json& value, size_t count) {
  return value.is_array() && value.size() == count &&
         std::all_of(value.begin(), value.end(), [](const json& text) { return text.is_string(); });
}

// Why a line is not a document; empty if it is one.
std::string problem_of(const json& document) {
  if (!document.is_object()) return "the line is not a JSON object";
  for (const char* name : {"article", "questions", "options", "answers"})
    if (!document.contains(name)) return std::string("the line has no ") + name;
  if (!document["article"].is_string()) return "article is not a text";
  const json &questions = document["questions"], &options = document["options"],
             &answers = document["answers"];
  if (!questions.is_array() || !are_texts(questions, questions.size()))
    return "questions is not a list of texts";
  if (!options.is_array() || options.size() != questions.size())
    return "options has not a list for each question";
  if (!are_texts(answers, questions.size())) return "answers has not a letter for each question";
  for (size_t i = 0; i < questions.size(); ++i) {
    if (!are_texts(options[i], race_choices))
      return fmt::format("options of question {} are not 4 texts", i + 1);
    const auto answer = answers[i].get<std::string>();
    if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'D')
      return fmt::format("answer '{}' to question {} is not A, B, C or D", printable(answer, 20), i + 1);
  }
  return "";
}

// The option in place of each blank of a question, or after it.
std::string with_option(const std::string& question, const std::string& option) {
  return question.find('_') == std::string::npos ? question + " " + option
                                                 : replace_all(question, "_", option);
}

class RaceFolder {
 public:
  RaceFolder(const PairReader& reader, int64_t longest) : reader_(reader), longest_(longest) {
    samples_.pairs_per_sample = race_choices;
  }

  PairSamples read(const std::string& folder) {
    const auto start = std::chrono::steady_clock::now();
    reader_.log(fmt::format("   > working on {}", folder));
    for (const std::string& name : list_directory(folder, ExitCode::data))
      if (name.ends_with(".txt")) read_file((std::filesystem::path(folder) / name).string());
    if (samples_.samples.empty() && problems_.empty())
      problems_.push_back({"the folder has no questions in files *.txt", folder, "Name a folder of RACE"});
    if (!problems_.empty()) throw UserError(ExitCode::data, std::move(problems_));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    reader_.log(fmt::format("    > processed {} document, {} questions, and {} samples in {:.2f} seconds",
                            samples_.texts.size(), samples_.samples.size(), samples_.samples.size(),
                            seconds.count()));
    return std::move(samples_);
  }

 private:
  void read_file(const std::string& path) {
    std::ifstream file = open_text(path, ExitCode::data);
    int64_t number = 0;
    for (std::string line; next_line(file, line, path);) {
      const std::string where = fmt::format("{}:{}", path, ++number);
      if (stripped(line).empty()) continue;
      try {
        const json document = parse_json(line, {.where = where, .kind = ExitCode::data});
        const std::string problem = problem_of(document);
        if (problem.empty()) {
          add(document);
        } else {
          problems_.push_back({problem, where, race_form});
        }
      } catch (const UserError& error) {
        problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
      }
    }
  }

  void add(const json& document) {
    const auto article = static_cast<int64_t>(samples_.texts.size());
    samples_.texts.push_back(cleaned_tokens(reader_.tokenizer, document["article"]));
    for (size_t i = 0; i < document["questions"].size(); ++i) {
      samples_.samples.push_back({.id = static_cast<int64_t>(samples_.samples.size()),
                                  .label = document["answers"][i].get<std::string>()[0] - 'A',
                                  .first_pair = samples_.pairs.size()});
      for (const json& option : document["options"][i]) {
        std::vector<int32_t> tokens =
            cleaned_tokens(reader_.tokenizer, with_option(document["questions"][i], option));
        if (static_cast<int64_t>(tokens.size()) > longest_) tokens.resize(longest_);
        samples_.pairs.push_back({.first = std::move(tokens), .second = article});
      }
    }
  }

  const PairReader& reader_;
  int64_t longest_;
  PairSamples samples_;
  std::vector<Problem> problems_;
};

}  // namespace

PairSamples read_race(const std::string& folder, const PairReader& reader, int64_t longest) {
  PairSamples samples = RaceFolder(reader, longest).read(folder);
  const size_t task = folder.rfind("RACE");
  std::string name = task == std::string::npos ? folder : folder.substr(task + 4);
  const size_t begin = name.find_first_not_of('/'), end = name.find_last_not_of('/');
  name = begin == std::string::npos ? "" : name.substr(begin, end - begin + 1);
  samples.name = replace_all(name, "/", "-");
  return samples;
}

}  // namespace teratron
