#include "teratron/tasks/zeroshot/zeroshot.h"

#include <algorithm>
#include <cmath>

#include "teratron/base/config/config.h"
#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/tasks/text/detokenizer.h"
#include "teratron/tasks/text/python_text.h"
#include "teratron/tasks/zeroshot/zeroshot_samples.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

constexpr double largest_exponent = 20.0;  // of perplexities, as in Megatron-LM

GenerationRequest scoring(ScoredTokens sample) {
  return {.prompt = std::move(sample.tokens),
          .max_new_tokens = 0,
          .logprobs = true,
          .logprobs_from = sample.first,
          .top_logprobs = 0};
}

std::string read_valid_text(const std::string& path) {
  std::string text = read_text(path, {});
  if (unicode::is_valid(text)) return text;
  throw data_error({.what = "the text is not valid UTF-8", .where = path, .fix = "Convert it to UTF-8"});
}

double ratio(int64_t of, int64_t to) {
  return static_cast<double>(of) / static_cast<double>(to);
}

}  // namespace

void ZeroShotSums::add(const ZeroShotSums& other) {
  loss += other.loss;
  tokens += other.tokens;
  original_tokens += other.original_tokens;
  texts += other.texts;
  correct += other.correct;
  examples += other.examples;
}

double ZeroShotSums::mean_loss() const {
  return loss / static_cast<double>(tokens - texts);
}

double ZeroShotSums::token_ratio() const {
  return ratio(tokens - texts, original_tokens - texts);
}

double ZeroShotSums::perplexity() const {
  return std::exp(std::min(largest_exponent, mean_loss()));
}

double ZeroShotSums::adjusted_perplexity() const {
  return std::exp(std::min(largest_exponent, mean_loss() * token_ratio()));
}

std::string zeroshot_line(const ZeroShotOptions& options, const ZeroShotSums& sums) {
  if (options.lambada) {
    return fmt::format(
        " validation results on LAMBADA | number correct: {:.4E} | total examples: {:.4E} | avg accuracy: "
        "{:.4E}",
        static_cast<double>(sums.correct), static_cast<double>(sums.examples), sums.accuracy());
  }
  return fmt::format(
      " validation results on WIKITEXT103 | avg loss: {:.4E} | ppl: {:.4E} | adjusted ppl: {:.4E} | token "
      "ratio: {} |",
      sums.mean_loss(), sums.perplexity(), sums.adjusted_perplexity(), python_str(Value(sums.token_ratio())));
}

nlohmann::ordered_json zeroshot_json(const ZeroShotOptions& options, const ZeroShotSums& sums) {
  if (options.lambada)
    return {{"accuracy", sums.accuracy()}, {"correct", sums.correct}, {"examples", sums.examples}};
  return {{"loss", sums.mean_loss()},
          {"perplexity", sums.perplexity()},
          {"adjusted_perplexity", sums.adjusted_perplexity()},
          {"token_ratio", sums.token_ratio()},
          {"tokens", sums.tokens},
          {"original_tokens", sums.original_tokens}};
}

ZeroShotTask::ZeroShotTask(const ZeroShotOptions& options, const Tokenizer& tokenizer,
                           const std::string& path, int64_t max_positions)
    : options_(options) {
  if (options.lambada) {
    read_lambada(tokenizer, path, max_positions);
    return;
  }
  if (options.seq_length > max_positions) {
    throw config_error({.what = fmt::format("windows of {} tokens exceed the model's {} positions",
                                            options.seq_length, max_positions),
                        .where = "--seq-length",
                        .fix = fmt::format("Use at most {}", max_positions)});
  }
  read_text_windows(tokenizer, path);
}

void ZeroShotTask::read_text_windows(const Tokenizer& tokenizer, const std::string& path) {
  const std::string text = read_valid_text(path);
  const std::string_view words = stripped(text);
  known_.texts = 1;
  known_.original_tokens = 1 + std::count(words.begin(), words.end(), ' ');
  std::vector<int32_t> tokens;
  tokenizer.encode(detokenize(text, path), tokens);
  known_.tokens = static_cast<int64_t>(tokens.size());
  if (known_.tokens < 2 || known_.original_tokens < 2) {
    throw data_error({.what = fmt::format("the text has {} tokens and {} words", known_.tokens,
                                          words.empty() ? 0 : known_.original_tokens),
                      .where = path,
                      .fix = "Give a text of several words"});
  }
  description_ = fmt::format(" > number of original tokens: {}, number of detokenized tokens: {}",
                             known_.original_tokens, known_.tokens);
  const auto windows =
      std::make_shared<const Windows>(std::move(tokens), options_.seq_length, options_.overlap);
  // Nothing counts in the last ones, those too short for the positions that count.
  size_ = windows->size();
  const auto counts = [&](int64_t i) {
    const ScoredTokens window = windows->get(i);
    return static_cast<int64_t>(window.tokens.size()) > window.first;
  };
  while (size_ > 0 && !counts(size_ - 1)) --size_;
  get_ = [windows](int64_t i) { return scoring(windows->get(i)); };
}

void ZeroShotTask::read_lambada(const Tokenizer& tokenizer, const std::string& path, int64_t max_positions) {
  const auto samples =
      std::make_shared<std::vector<ScoredTokens>>(lambada_samples(tokenizer, path, options_.strict));
  int64_t cut = 0;
  for (ScoredTokens& sample : *samples) {
    const int64_t more = static_cast<int64_t>(sample.tokens.size()) - (max_positions + 1);
    if (more <= 0 || more >= sample.first) continue;
    sample.tokens.erase(sample.tokens.begin(), sample.tokens.begin() + more);
    sample.first -= more;
    ++cut;
  }
  size_ = static_cast<int64_t>(samples->size());
  known_.examples = size_;
  description_ = fmt::format(" > found {} samples.", size_);
  if (cut > 0)
    description_ += fmt::format(" {} are longer than the model's positions and lose their beginning.", cut);
  get_ = [samples](int64_t i) {
    GenerationRequest request = scoring(samples->at(i));
    request.top_logprobs = 1;
    return request;
  };
}

RequestList ZeroShotTask::requests() const {
  return {.size = size_, .get = get_};
}

ZeroShotSums ZeroShotTask::sums_of(const std::vector<RequestOutcome>& outcomes) const {
  ZeroShotSums sums = known_;
  for (const RequestOutcome& outcome : outcomes) {
    if (options_.lambada) {
      sums.correct += outcome.most_probable ? 1 : 0;
    } else {
      sums.loss -= outcome.log_likelihood;
    }
  }
  return sums;
}

ZeroShotSums run_zeroshot(const ReplicatedModel& model, const ZeroShotTask& task,
                          const ZeroShotOptions& options) {
  const RequestList requests = task.requests();
  const int64_t replicas = model.ranks().replicas.size, batch = options.micro_batch_size * replicas;
  const int64_t iterations = (requests.size + batch - 1) / batch;
  int64_t iteration = 0;
  const auto on_progress = [&](int64_t answered) {
    if (model.mesh.rank() != 0) return;
    for (; iteration < iterations && iteration * options.micro_batch_size <= answered; ++iteration) {
      if (iteration % options.log_interval == 0) print("> working on iteration: {}", iteration);
    }
  };
  return task.sums_of(answer_requests(model, requests, on_progress));
}

}  // namespace teratron
