#include "teratron/generate/ranked_engine.h"

#include <nlohmann/json.hpp>

namespace teratron {

namespace {

constexpr char submit_mark = 's', cancel_mark = 'c', end_mark = 'e';

}  // namespace

int64_t RankedEngine::submit(GenerationRequest request) {
  const std::string text = ranks_.size() > 1 ? submit_mark + serialize(request) : "";
  const int64_t id = engine_.submit(std::move(request));
  if (ranks_.size() > 1) commands_.push_back(text);
  return id;
}

void RankedEngine::cancel(int64_t id) {
  engine_.cancel(id);
  if (ranks_.size() > 1) commands_.push_back(cancel_mark + std::to_string(id));
}

void RankedEngine::send() {
  if (ranks_.size() == 1) return;
  ranks_.all_gather_bytes(nlohmann::json(commands_).dump());
  commands_.clear();
}

bool RankedEngine::step() {
  if (engine_.idle() && commands_.empty()) return false;
  send();
  return engine_.step();
}

void RankedEngine::keep_alive() {
  send();
  engine_.step();
}

void RankedEngine::stop() {
  if (ranks_.size() == 1) return;
  commands_.push_back(std::string(1, end_mark));
  send();
}

void RankedEngine::follow() {
  while (true) {
    const std::vector<std::string> all = ranks_.all_gather_bytes("");
    for (const nlohmann::json& entry : nlohmann::json::parse(all.front())) {
      const std::string command = entry;
      const std::string argument = command.substr(1);
      if (command[0] == end_mark) return;
      if (command[0] == submit_mark) engine_.submit(deserialize_request(argument));
      if (command[0] == cancel_mark) engine_.cancel(std::stoll(argument));
    }
    engine_.step();
    engine_.take_results();
  }
}

}  // namespace teratron
