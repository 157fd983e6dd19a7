#include "teratron/tasks/eval/eval_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "teratron/tasks/text/python_text.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

using nlohmann::ordered_json;

// The first of the largest, each divided by a length.
template <typename Length>
size_t best_choice(const EvalSample& sample, std::span<const RequestOutcome> outcomes, const Length& length) {
  std::vector<double> scores;
  for (size_t i = 0; i < outcomes.size(); ++i)
    scores.push_back(outcomes[i].log_likelihood / static_cast<double>(length(sample.choices[i])));
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void score_choices(const EvalSample& sample, std::span<const RequestOutcome> outcomes, SampleScore& score) {
  const size_t sum = best_choice(sample, outcomes, [](const std::string&) { return 1; });
  const size_t norm =
      best_choice(sample, outcomes, [](const std::string& choice) { return code_points(choice); });
  const size_t bytes = best_choice(sample, outcomes, [](const std::string& choice) { return choice.size(); });
  const auto right = [&](size_t choice) { return choice == sample.answer ? 1.0 : 0.0; };
  score.values = {{"accuracy", right(sum)}, {"accuracy_norm", right(norm)}, {"accuracy_bytes", right(bytes)}};
  for (const RequestOutcome& outcome : outcomes)
    score.line["log_likelihoods"].push_back(outcome.log_likelihood);
  score.line["answer"] = sample.answer;
  score.line["prediction"] = sum;
  score.line["prediction_norm"] = norm;
  score.line["prediction_bytes"] = bytes;
  score.line["correct"] = sum == sample.answer;
}

void score_continuation(const RequestOutcome& outcome, SampleScore& score) {
  score.values = {{"greedy", outcome.most_probable ? 1.0 : 0.0}, {"log_likelihood", outcome.log_likelihood}};
  score.tokens = outcome.tokens;
  score.line["log_likelihood"] = outcome.log_likelihood;
  score.line["greedy"] = outcome.most_probable;
  score.line["tokens"] = outcome.tokens;
}

using Statistic = double (*)(double);

// A figure: a function of the mean of a value over the samples that have it.
struct Figure {
  std::string value;
  Statistic of_mean;
};

// The mean and its standard error.
struct Estimate {
  double figure = 0.0, error = 0.0;
};

Estimate estimate(const std::vector<double>& values, Statistic of_mean, uint64_t seed) {
  constexpr int resamples = 1000;
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  std::mt19937_64 random(seed);  // the same draws for all figures
  std::vector<double> figures;
  for (int r = 0; r < resamples; ++r) {
    double sum = 0.0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[((random() >> 32U) * values.size()) >> 32U];
    figures.push_back(of_mean(sum / count));
  }
  // Relative to one of them, so that equal figures have the error 0.
  const double first = figures.front();
  double center = 0.0;
  for (const double figure : figures) center += (figure - first) / resamples;
  center += first;
  double squares = 0.0;
  for (const double figure : figures) squares += (figure - center) * (figure - center);
  return {of_mean(mean), std::sqrt(squares / (resamples - 1))};
}

double same(double mean) {
  return mean;
}

double perplexity_of(double log_likelihood) {
  return std::exp(-log_likelihood);
}

}  // namespace

SampleScore score_of(const EvalSample& sample, const std::vector<RequestOutcome>& outcomes) {
  const std::span<const RequestOutcome> own(&outcomes.at(sample.first_request), sample.requests);
  SampleScore score;
  score.line["line"] = sample.line;
  if (!sample.id.is_null()) score.line["id"] = sample.id;
  if (!sample.choices.empty()) {
    score_choices(sample, own, score);
  } else if (sample.match) {
    const bool matches = sample.match->matches(own.front().text);
    score.values = {{"exact_match", matches ? 1.0 : 0.0}};
    score.line["text"] = unicode::replace_invalid(own.front().text);
    score.line["answer"] = sample.expected;
    score.line["correct"] = matches;
  } else {
    score_continuation(own.front(), score);
  }
  return score;
}

ordered_json figures_of(const std::vector<SampleScore>& scores, uint64_t seed) {
  std::map<std::string, std::vector<double>> values;
  double log_likelihood = 0.0;
  int64_t tokens = 0;
  for (const SampleScore& score : scores) {
    for (const auto& [name, value] : score.values) values[name].push_back(value);
    if (score.tokens > 0) log_likelihood += score.values.at("log_likelihood");
    tokens += score.tokens;
  }
  if (!values.contains("accuracy") && values.contains("greedy")) values["accuracy"] = values["greedy"];
  const std::pair<const char*, Figure> order[] = {{"accuracy", {"accuracy", same}},
                                                  {"accuracy_norm", {"accuracy_norm", same}},
                                                  {"accuracy_bytes", {"accuracy_bytes", same}},
                                                  {"greedy", {"greedy", same}},
                                                  {"exact_match", {"exact_match", same}},
                                                  {"log_likelihood", {"log_likelihood", same}},
                                                  {"perplexity", {"log_likelihood", perplexity_of}}};
  ordered_json figures, errors = ordered_json::object();
  for (const auto& [name, figure] : order) {
    const auto found = values.find(figure.value);
    if (found == values.end()) continue;
    const Estimate each = estimate(found->second, figure.of_mean, seed);
    figures[name] = each.figure;
    errors[name] = each.error;
  }
  if (tokens > 0) {
    figures["token_perplexity"] = std::exp(-log_likelihood / static_cast<double>(tokens));
    figures["tokens"] = tokens;
  }
  figures["samples"] = scores.size();
  figures["stderr"] = errors;
  return figures;
}

}  // namespace teratron
