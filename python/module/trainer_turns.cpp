// Whose call works on a trainer.
#include <stdexcept>

#include "python/module/trainer.h"
#include <torch/csrc/autograd/graph_task.h>

namespace teratron::python {

TrainerHandle::Turn::Turn(TrainerHandle& trainer) : trainer_(trainer) {
  trainer_.begin_turn();
}

TrainerHandle::Turn::~Turn() {
  trainer_.end_turn();
}

TrainerHandle::Pause::Pause(TrainerHandle& trainer) : trainer_(trainer) {
  ++trainer_.pauses_;
  trainer_.end_turn();
}

TrainerHandle::Pause::~Pause() {
  trainer_.begin_turn();
  --trainer_.pauses_;
}

void TrainerHandle::begin_turn() {
  if (PythonDataset::is_called())
    throw std::runtime_error("a dataset uses a trainer, whose steps wait for the dataset. Use it elsewhere");
  std::unique_lock lock(turns_);
  if (worker_ == std::this_thread::get_id() || torch::autograd::get_current_graph_task_id() != -1)
    throw std::runtime_error(
        "the trainer is at work: one of its hooks called another of its methods. Call that after the first");
  turn_ended_.wait(lock, [&] { return worker_ == std::thread::id(); });
  worker_ = std::this_thread::get_id();
}

void TrainerHandle::end_turn() {
  {
    const std::lock_guard lock(turns_);
    worker_ = {};
  }
  turn_ended_.notify_one();
}

void TrainerHandle::close_in_turn() {
  const Turn turn(*this);
  if (pauses_ > 0)
    throw std::runtime_error(
        "train() is at work: return False from on_step() to end it, then close the trainer");
  close();
}

}  // namespace teratron::python
