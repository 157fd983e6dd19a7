#include "teratron/tasks/finetune/task_scores.h"

#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>

namespace teratron {

namespace {

int64_t rounded_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor * divisor;
}

// This rank's micro-batches of samples in order.
BatchSource open_in_order(const Trainer& trainer, std::shared_ptr<const Dataset> dataset) {
  const Arguments& args = trainer.args();
  const Group& replicas = trainer.mesh().data_parallel();
  return {std::move(dataset),
          {.loader = {.sampler = {.kind = SamplerKind::single,
                                  .micro_batch_size = args.micro_batch_size.value(),
                                  .dp_rank = replicas.rank,
                                  .dp_size = replicas.size},
                      .num_workers = static_cast<int>(args.num_workers)},
           .split = "valid",
           .schema = trainer.model().batch,
           .device = trainer.device()},
          trainer.mesh()};
}

// As bytes, those of all samples of this rank's micro-batches.
std::string bytes_of(const std::vector<at::Tensor>& probabilities) {
  if (probabilities.empty()) return "";
  const at::Tensor all = at::cat(probabilities).contiguous();
  return {static_cast<const char*>(all.const_data_ptr()), all.nbytes()};
}

}  // namespace

MicroBatch TaskStep::get_batch(BatchSource& source, Padding padding) {
  if (before_batch_) std::exchange(before_batch_, nullptr)();
  return ClassificationStep::get_batch(source, padding);
}

StepLoss TaskStep::forward_step(Model& model, const Activations& output, const MicroBatch& batch) {
  if (collects_) probabilities_.push_back(output["logits"].detach().to(at::kCPU, at::kDouble).softmax(1));
  return ClassificationStep::forward_step(model, output, batch);
}

int64_t most_probable(const std::vector<double>& probabilities) {
  return std::max_element(probabilities.begin(), probabilities.end()) - probabilities.begin();
}

Predictions predict(Trainer& trainer, TaskStep& step, const FinetuneTask& task,
                    const std::shared_ptr<const PairSamples>& samples) {
  const auto start = std::chrono::steady_clock::now();
  const Mesh& mesh = trainer.mesh();
  const auto count = static_cast<int64_t>(samples->samples.size());
  const int64_t rows = task.rows_per_sample(), batch = trainer.args().micro_batch_size.value() / rows;
  const int64_t replicas = mesh.data_parallel().size, stages = mesh.group(Axis::pp).size;
  // Interleaved schedules take a multiple of the stages.
  const int64_t batches = rounded_up((count + batch * replicas - 1) / (batch * replicas), stages);
  const auto order = std::make_shared<const TaskOrder>(
      TaskOrderOptions{.samples = count, .micro_batch = batch, .replicas = replicas});
  BatchSource source = open_in_order(
      trainer,
      std::make_shared<const TaskDataset>(TaskDataset::Rows{.samples = samples,
                                                            .order = order,
                                                            .special = trainer.tokenizer().special(),
                                                            .length = trainer.args().seq_length.value()},
                                          batches * batch * replicas * rows));
  step.collect(true);
  trainer.engine().evaluate(trainer.batches_from(source), batches);
  step.collect(false);
  const std::vector<at::Tensor> mine = step.take_probabilities();
  const bool reports = mesh.group(Axis::tp).rank == 0;
  const std::vector<std::string> shares =
      mesh.world().communicator->all_gather_bytes(reports ? bytes_of(mine) : "");
  const std::vector<std::string> replica_of =
      mesh.world().communicator->all_gather_bytes(std::to_string(mesh.data_parallel().rank));
  Predictions predictions{.probabilities = std::vector<std::vector<double>>(count)};
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    const auto* const values = reinterpret_cast<const double*>(shares[rank].data());
    const int64_t own = static_cast<int64_t>(shares[rank].size() / sizeof(double)) / task.classes;
    for (int64_t i = 0; i < own; ++i) {
      const int64_t sample = (i / batch * replicas + std::stoll(replica_of[rank])) * batch + i % batch;
      if (sample >= count) continue;
      predictions.probabilities[sample].assign(values + i * task.classes, values + (i + 1) * task.classes);
    }
  }
  for (int64_t i = 0; i < count; ++i)
    predictions.correct += most_probable(predictions.probabilities[i]) == samples->samples[i].label ? 1 : 0;
  predictions.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return predictions;
}

}  // namespace teratron
