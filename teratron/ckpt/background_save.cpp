#include "teratron/ckpt/background_save.h"

namespace teratron {

BackgroundSave::BackgroundSave(SaveRequest request, std::shared_ptr<const void> memory, Peers& peers)
    : peers_(peers), memory_(std::move(memory)), save_(std::move(request), peers) {
  start(&CheckpointSave::write);
}

void BackgroundSave::start(void (CheckpointSave::*stage)()) {
  working_ = std::async(std::launch::async, [this, stage] {
    (save_.*stage)();
    ++progress_;
  });
}

std::optional<std::filesystem::path> BackgroundSave::advance(int64_t least_progress) {
  if (least_progress <= passed_) return std::nullopt;
  working_.get();
  if (++passed_ == 2) return save_.conclude(peers_);
  memory_.reset();
  save_.share(peers_);
  start(&CheckpointSave::commit);
  return std::nullopt;
}

std::filesystem::path BackgroundSave::finish() {
  while (true) {
    if (auto committed = advance(passed_ + 1)) return *committed;
  }
}

}  // namespace teratron
