// An answer in OpenAI's form as server-sent events, while it is generated.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "teratron/serve/api/openai_answer.h"
#include "teratron/serve/service.h"

namespace teratron {

class EventStream {
 public:
  using Clock = std::chrono::steady_clock;

  /// `model` must outlive it. At `deadline` the stream ends with an error.
  EventStream(std::shared_ptr<const OpenAiRequest> request, const ServedModel& model,
              std::shared_ptr<PendingAnswer> answer, Clock::time_point deadline);
  /// The events that are new, after a short wait for one; a comment now and then, so that nothing in between
  /// takes the stream for dead. May be empty.
  std::string next();
  /// Nothing more will come.
  bool finished() const { return finished_; }

 private:
  std::shared_ptr<const OpenAiRequest> request_;
  OpenAiAnswer events_;
  std::shared_ptr<PendingAnswer> answer_;
  Clock::time_point deadline_, written_ = Clock::now();
  bool began_ = false, finished_ = false;
};

}  // namespace teratron
