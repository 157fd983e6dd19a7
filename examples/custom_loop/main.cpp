// A custom training loop over the library's model, data and optimizer, with a metric that Megatron-LM does
// not log: the accuracy of the most likely next token.
//
//   custom_loop FLAGS...                (those of `teratron pretrain gpt`)
#include <ATen/ATen.h>

#include "teratron/base/log.h"
#include "teratron/cli/program.h"

using teratron::BatchSource;
using teratron::MicroBatch;
using teratron::Split;
using teratron::StepResult;
using teratron::Trainer;

namespace {

// Over the unmasked tokens of one micro-batch per data-parallel rank; 0 except on the last pipeline stage.
double accuracy(Trainer& trainer, BatchSource& source) {
  const MicroBatch batch = source.next();
  const at::Tensor logits_SBV = trainer.logits(batch);
  if (!logits_SBV.defined()) return 0.0;
  // gather() concatenates along dim 0, so the batch dimension goes first.
  const at::Tensor right = trainer.gather(logits_SBV.argmax(-1).eq(batch["labels"]).t().to(at::kFloat));
  const at::Tensor counted = trainer.gather(batch["loss_mask"].t());
  return ((right * counted).sum() / counted.sum().clamp_min(1.0)).item<double>();
}

void loop(Trainer& trainer) {
  const int64_t total = trainer.train_iters();
  const int64_t every = trainer.args().eval_interval.value_or(total);
  if (trainer.args().load) trainer.load();
  const auto train = trainer.open(Split::train);
  while (trainer.state().iteration < total) {
    const StepResult step = trainer.train_step(*train);
    if (trainer.state().iteration % every != 0) continue;
    const auto valid = trainer.open(Split::valid);
    const double loss = trainer.eval_step(*valid, trainer.args().eval_iters).loss;
    const double share = accuracy(trainer, *trainer.open(Split::valid));
    if (trainer.is_last_rank()) {
      teratron::print(
          "step {} of {}: batch {}, training loss {:.4f}, validation loss {:.4f}, accuracy {:.3f}",
          step.metrics.iteration, total, step.metrics.global_batch_size, step.loss, loss, share);
    }
  }
  if (trainer.args().save) trainer.save();
}

}  // namespace

int main(int argc, char** argv) {
  return teratron::run_loop(argc, argv, loop);
}
