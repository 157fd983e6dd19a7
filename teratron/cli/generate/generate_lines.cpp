#include "teratron/cli/generate/generate_lines.h"

#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <utility>

#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/hash_name.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/base/text_lines.h"
#include "teratron/comm/collective_errors.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The number of lines, and a hash of all.
struct InputSummary {
  int64_t lines = 0;
  uint64_t hash = 0;
};

InputSummary summarize(const std::string& path, const std::string& salt) {
  InputSummary summary{.lines = 0, .hash = hash_name(salt)};
  std::ifstream file = open_text(path, ExitCode::data);
  for (std::string line; next_line(file, line, path); ++summary.lines)
    summary.hash = hash_name(line) ^ (summary.hash * 0x100000001b3U);
  return summary;
}

// What an interrupted run has written.
struct WrittenLines {
  int64_t lines = 0;
  int64_t errors = 0;  // among them
};

constexpr const char* error_key = "error";

bool is_error(const std::string& line) {
  const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return value.is_object() && value.contains(error_key);
}

// A line of the partial file; answers hold no tab, which JSON escapes.
std::string with_hash(int64_t number, const std::string& answer) {
  return fmt::format("{}\t{}\n", answer, hash_to_hex(hash_text(fmt::format("{} {}", number, answer))));
}

// The answer in such a line, without its end; nullopt if the line is damaged.
std::optional<std::string> checked_answer(int64_t number, const std::string& line) {
  std::string answer = line.substr(0, line.rfind('\t'));
  if (with_hash(number, answer) != line + "\n") return std::nullopt;
  return answer;
}

// Cuts off what an interruption left of another line, and what follows a damaged one.
WrittenLines keep_sound_lines(const fs::path& path) {
  if (!fs::exists(path)) return {};
  std::ifstream file = open_text(path, ExitCode::config);
  WrittenLines written;
  uintmax_t sound = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const std::optional<std::string> answer = checked_answer(written.lines + 1, line);
    if (!answer) {
      warn("{}:{} is damaged: it and the lines after it are answered again", path.string(),
           written.lines + 1);
      break;
    }
    written.lines += 1;
    written.errors += is_error(*answer) ? 1 : 0;
    sound += line.size() + 1;
  }
  if (sound < fs::file_size(path)) fs::resize_file(path, sound);
  return written;
}

// Writes the answers of a complete partial file.
void write_answers(const fs::path& partial, const std::string& output) {
  fs::path complete = partial;
  complete += ".complete";
  fs::remove(complete);  // of a run that was killed here
  std::ifstream file = open_text(partial, ExitCode::config);
  File answers = File::create(complete, ExitCode::config);
  for (std::string line; std::getline(file, line);) answers.write(line.substr(0, line.rfind('\t')) + "\n");
  answers.sync();
  answers.close();
  rename_path(complete, output, ExitCode::config);
  fs::remove(partial);
}

FileLock lock_output(const std::string& output) {
  if (std::optional<FileLock> lock = FileLock::try_acquire(output + ".lock")) return *std::move(lock);
  throw config_error({.what = "another run is writing it",
                      .where = fmt::format("--output {}", printable(output, 4096)),
                      .fix = "Wait for it, or name another file"});
}

nlohmann::json parse_line(const std::string& line, const std::string& where) {
  try {
    return parse_json(line, {.where = where, .kind = ExitCode::data});
  } catch (const UserError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) problem.fix = "Write one JSON object per line: {\"prompt\": ...}";
    throw UserError(ExitCode::data, std::move(problems));
  }
}

// Answers the lines of a file in order.
class LinesJob {
 public:
  LinesJob(const GenerateJob& job, RankedEngine& engine)
      : job_(job),
        engine_(engine),
        reader_(job.reader),
        input_(*job.args().input),
        output_(*job.args().output),
        file_(open_text(input_, ExitCode::data)) {
    const std::string salt = serialize(job.reader.defaults) + job.loaded.checkpoint.path.string();
    const InputSummary summary = summarize(input_, salt);
    total_ = summary.lines;
    partial_ = fmt::format("{}.{:016x}.partial", output_, summary.hash);
    const WrittenLines earlier = keep_sound_lines(partial_);
    written_ = earlier.lines;
    errors_ = earlier.errors;
    if (written_ > 0)
      notice("{} has the answers to {} of {} lines: going on", partial_.string(), written_, total_);
    answers_.emplace(File::append(partial_, ExitCode::config));
  }

  /// The number of lines with errors.
  int64_t run() {
    constexpr size_t requests_ahead = 256;
    const int64_t already = written_;
    bool more = true;
    while (more || !pending_.empty()) {
      while (more && pending_.size() < requests_ahead) more = read_line(already);
      engine_.step();
      for (GenerationResult& result : engine_.take_results()) finish(result);
      write_ready();
      show_progress();
    }
    status_line("");
    answers_->sync();
    answers_->close();
    write_answers(partial_, output_);
    const double seconds = seconds_since(start_);
    const int64_t tokens = engine_.local().generated_tokens();
    print("{}: {} answers, {} tokens in {:.1f} s ({:.0f} tokens/s)", output_, written_ - errors_, tokens,
          seconds, static_cast<double>(tokens) / seconds);
    if (errors_ > 0) warn("{} of {} lines have errors", errors_, total_);
    return errors_;
  }

 private:
  struct Pending {
    GenerationRequest request;
    std::string answer;  // empty: not yet
  };

  bool read_line(int64_t already) {
    std::string line;
    if (!next_line(file_, line, input_)) return false;
    const int64_t number = ++read_;
    reader_.defaults.sequence = std::exchange(sequences_, sequences_ + answers_to(line));
    if (number <= already) return true;
    const std::string where = fmt::format("{}:{}", input_, number);
    Pending& pending = pending_[number];
    try {
      const nlohmann::json value = parse_line(line, where);
      pending.request = request_from_json(value, reader_, where);
      line_of_[engine_.submit(pending.request)] = number;
    } catch (const UserError& error) {
      fail(pending, where, error);
    }
    return true;
  }

  // How many sequences of the file's random numbers a line takes.
  uint64_t answers_to(const std::string& line) const {
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = value.is_object() ? value.find("num_return_sequences") : value.end();
    const bool is_given = found != value.end() && found->is_number_unsigned() && *found < 1U << 20U;
    return is_given ? found->get<uint64_t>() : static_cast<uint64_t>(job_.reader.defaults.choices);
  }

  void fail(Pending& pending, const std::string& where, const UserError& error) {
    std::string all;
    for (const Problem& problem : error.problems()) {
      const std::string field =
          problem.where.starts_with(where) || problem.where.empty() ? "" : problem.where + ": ";
      all += (all.empty() ? "" : "; ") + field + problem.what + ". " + problem.fix;
    }
    error_line(fmt::format("{}: {}", where, all));
    pending.answer = dump_line({{error_key, all}});
    errors_ += 1;
  }

  void finish(const GenerationResult& result) {
    Pending& pending = pending_.at(line_of_.at(result.id));
    line_of_.erase(result.id);
    pending.answer = dump_line(answer_to_json(result, pending.request, job_.tokenizer.get()));
  }

  void write_ready() {
    while (!pending_.empty() && !pending_.begin()->second.answer.empty()) {
      written_ += 1;
      answers_->write(with_hash(written_, pending_.begin()->second.answer));
      pending_.erase(pending_.begin());
    }
  }

  void show_progress() {
    if (!has_status_line() || seconds_since(shown_) < 0.25) return;
    shown_ = Clock::now();
    status_line(fmt::format("{}/{} lines | {:.0f} tokens/s", written_, total_,
                            static_cast<double>(engine_.local().generated_tokens()) / seconds_since(start_)));
  }

  const GenerateJob& job_;
  RankedEngine& engine_;
  RequestReader reader_;
  uint64_t sequences_ = 0;  // of the lines before
  std::string input_, output_;
  std::ifstream file_;
  fs::path partial_;
  std::optional<File> answers_;
  int64_t total_ = 0, read_ = 0, written_ = 0, errors_ = 0;
  std::map<int64_t, Pending> pending_;  // by line
  std::map<int64_t, int64_t> line_of_;  // by request
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace

ExitCode generate_lines(const GenerateJob& job) {
  open_text(*job.args().input, ExitCode::data);  // all ranks say what is wrong with it
  std::optional<FileLock> lock;
  run_on_rank_0(job.ranks(), [&]() -> std::string {
    lock.emplace(lock_output(*job.args().output));
    return "";
  });
  ExitCode code = ExitCode::ok;
  with_engine(job, engine_settings(job), [&](RankedEngine& engine) {
    if (LinesJob(job, engine).run() > 0) code = ExitCode::data;
  });
  return code;
}

}  // namespace teratron
