#include "teratron/ckpt/async_save.h"

namespace teratron {

AsyncSave::AsyncSave(SaveRequest request, std::shared_ptr<const void> memory, HostGroup& group)
    : group_(group), memory_(std::move(memory)), save_(std::move(request), group) {
  start(&StagedSave::write);
}

void AsyncSave::start(void (StagedSave::*stage)()) {
  working_ = std::async(std::launch::async, [this, stage] {
    (save_.*stage)();
    ++progress_;
  });
}

std::optional<std::filesystem::path> AsyncSave::advance(int64_t least_progress) {
  if (least_progress <= passed_) return std::nullopt;
  working_.get();
  if (++passed_ == 2) return save_.finish(group_);
  memory_.reset();
  save_.gather(group_);
  start(&StagedSave::commit);
  return std::nullopt;
}

std::filesystem::path AsyncSave::finish() {
  while (true) {
    if (auto committed = advance(passed_ + 1)) return *committed;
  }
}

}  // namespace teratron
