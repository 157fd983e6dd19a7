#include "teratron/serve/event_stream.h"

#include <utility>

#include "teratron/serve/api/api_error.h"

namespace teratron {

namespace {

constexpr auto longest_wait = std::chrono::milliseconds(200);
constexpr auto longest_silence = std::chrono::seconds(15);

}  // namespace

EventStream::EventStream(std::shared_ptr<const OpenAiRequest> request, const ServedModel& model,
                         std::shared_ptr<PendingAnswer> answer, Clock::time_point deadline)
    : request_(std::move(request)),
      events_(*request_, model),
      answer_(std::move(answer)),
      deadline_(deadline) {}

std::string EventStream::next() {
  std::string events = began_ ? "" : events_.begin();
  began_ = true;
  const PendingAnswer::News news = answer_->wait(longest_wait);
  for (const PendingAnswer::Token& each : news.tokens)
    events += events_.add(each.request, each.choice, each.token);
  const bool late = Clock::now() > deadline_;
  finished_ = news.finished || late;
  if (!news.failure.empty()) {
    events += OpenAiAnswer::failed(ApiError(503, "the engine failed: " + news.failure).to_json());
  } else if (news.finished) {
    events += events_.end();
  } else if (late) {
    events += OpenAiAnswer::failed(ApiError(504, "the answer took too long (--answer-timeout)").to_json());
  }
  if (events.empty() && Clock::now() - written_ > longest_silence) events = ": waiting\n\n";
  if (!events.empty()) written_ = Clock::now();
  return events;
}

}  // namespace teratron
