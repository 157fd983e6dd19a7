#include "teratron/generate/language_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/models/context_parallel_batch.h"

namespace teratron {

LanguageModel language_model(const ModelPlan& plan, ParameterSet& parameters, const InferenceRanks& ranks) {
  InferencePipeline pipeline = ranks.pipeline;
  if (pipeline.chunks.empty()) pipeline.chunks = {{.layers = plan.layers()}};
  std::vector<std::unique_ptr<Model>> chunks;
  for (const StageSpec& stage : pipeline.chunks) {
    chunks.push_back(plan.build({.parameters = parameters,
                                 .stage = stage,
                                 .parallel = TensorParallel{ranks.tensor_parallel},
                                 .mesh = ranks.mesh,
                                 .same_tokens = true}));
  }
  return {.chunks = std::move(chunks),
          .vocabulary = plan.vocabulary,
          .max_positions = plan.max_positions,
          .inference = plan.inference,
          .tensor_parallel = ranks.tensor_parallel,
          .copies = ranks.copies,
          .device = parameters.options().device,
          .dtype = parameters.options().dtype,
          .channels = plan.channels,
          .text = plan.text,
          .source = plan.source,
          .pipeline = pipeline};
}

MicroBatch token_batch(const LanguageModel& model, const at::Tensor& tokens_T, const at::Tensor& positions_T,
                       const at::Tensor& source_S) {
  MicroBatch batch{
      .tensors = {{model.text.tokens, tokens_T.unsqueeze(1)}, {model.text.index, positions_T.unsqueeze(1)}},
      .training = false};
  if (!source_S.defined()) return batch;
  batch.tensors.set(model.source->tokens, source_S.unsqueeze(1));
  batch.tensors.set(model.source->index, at::arange(source_S.size(0), source_S.options()).unsqueeze(1));
  return batch;
}

at::Tensor gathered_logits(const LanguageModel& model, const Activations& output) {
  const at::Tensor local_SBV = model.chunks.back()->logits(output);
  return gather_from(local_SBV, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary).squeeze(1);
}

namespace {

// The channels that cross the bound before layer `layer` with this micro-batch.
std::vector<const Channel*> channels_at(const LanguageModel& model, const MicroBatch& batch, int64_t layer) {
  std::vector<const Channel*> channels;
  for (const Channel& channel : model.channels) {
    const bool exists =
        !channel.of_source || !batch.generation || batch.generation->source_places_S.defined();
    if (exists && (!channel.crosses || channel.crosses(layer))) channels.push_back(&channel);
  }
  return channels;
}

// For what the chunk receives.
Activations input_buffers(const LanguageModel& model, const Model& chunk, const MicroBatch& batch) {
  Activations buffers;
  for (const Channel* channel : channels_at(model, batch, chunk.stage().first_layer)) {
    buffers.set(
        channel->name,
        at::zeros(channel->shape(batch, 1),
                  at::TensorOptions().dtype(channel->dtype.value_or(model.dtype)).device(model.device)));
  }
  return buffers;
}

}  // namespace

Activations receive_input(const LanguageModel& model, const Model& chunk, const MicroBatch& batch) {
  if (chunk.stage().embedding) return {};
  Activations buffers = input_buffers(model, chunk, batch);
  std::vector<P2POp> ops;
  for (const auto& [name, buffer] : buffers) ops.push_back({.tensor = buffer, .peer = 0, .send = false});
  if (ops.empty()) return {};
  model.pipeline.links.forward_in.communicator->batch_isend_irecv(ops).wait();
  return buffers;
}

Work send_output(const LanguageModel& model, const Model& chunk, const MicroBatch& batch,
                 const Activations& output) {
  const StageSpec& stage = chunk.stage();
  Activations sent;  // in the order of receive_input()
  for (const Channel* channel : channels_at(model, batch, stage.first_layer + stage.layers))
    sent.set(channel->name, output[channel->name].contiguous());
  std::vector<P2POp> ops;
  for (const auto& [name, tensor] : sent) ops.push_back({.tensor = tensor, .peer = 1, .send = true});
  if (ops.empty()) return {};
  return model.pipeline.links.forward_out.communicator->batch_isend_irecv(ops);
}

Activations forward_stages(const LanguageModel& model, const MicroBatch& batch) {
  std::vector<Work> sent;
  Activations last;
  for (const auto& chunk : model.chunks) {
    const Activations output = chunk->forward(receive_input(model, *chunk, batch), batch, nullptr);
    if (chunk->stage().head) {
      last = output;
    } else {
      sent.push_back(send_output(model, *chunk, batch, output));
    }
  }
  for (Work& work : sent) work.wait();
  return last;
}

namespace {

// This rank's tokens of a batch [S, B], with padding after the last ones to a length that can be cut.
MicroBatch own_part(const LanguageModel& model, const MicroBatch& whole) {
  const Group& group = model.context_parallel;
  if (group.size == 1) return whole;
  const int64_t length = whole[model.text.index].size(0), step = 2 * group.size;
  const int64_t missing = (length + step - 1) / step * step - length;
  MicroBatch padded = whole;
  const int64_t samples = whole[model.text.index].size(1);
  for (const auto& [name, tensor] : whole.tensors) {
    const bool of_tokens = tensor.dim() == 2 && tensor.size(0) == length && tensor.size(1) == samples;
    if (!of_tokens) continue;  // images
    padded.tensors.set(name, at::cat({tensor, tensor.narrow(0, length - 1, 1).expand({missing, -1})}));
  }
  return cut_over_context(padded, group);
}

at::Tensor of_all_tokens(const at::Tensor& x_SB, const MicroBatch& own, int64_t length) {
  return own.context_parallel.size() == 1 ? x_SB
                                          : gather_tokens(x_SB, own.context_parallel).narrow(0, 0, length);
}

}  // namespace

at::Tensor logits_of(const LanguageModel& model, std::span<const int64_t> ids) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor tokens = at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size()));
  const at::Tensor positions = at::arange(length, at::kLong);
  const MicroBatch batch =
      own_part(model, token_batch(model, tokens.to(model.device), positions.to(model.device)));
  const Activations output = forward_stages(model, batch);
  if (!model.has_head()) return {};
  const at::Tensor logits = gathered_logits(model, output).unsqueeze(1);
  return of_all_tokens(logits, batch, length);
}

std::vector<InferenceOutput> outputs_of(const LanguageModel& model, const MicroBatch& whole) {
  const at::NoGradGuard no_grad;
  const MicroBatch batch = own_part(model, whole);
  const Activations last = forward_stages(model, batch);
  if (!model.has_head()) return {};
  std::vector<InferenceOutput> outputs = model.chunks.back()->inference_outputs(last);
  for (InferenceOutput& output : outputs) {
    if (output.vocabulary_parallel) {
      const at::Tensor logits_SBV =
          gather_from(output.tensor, 2, model.tensor_parallel).narrow(2, 0, model.vocabulary);
      // Only a batch that was cut is known to have this column.
      const int64_t length = model.context_parallel.size > 1 ? whole[model.text.index].size(0) : 0;
      output.tensor = of_all_tokens(logits_SBV, batch, length).transpose(0, 1);
    }
    output.tensor = output.tensor.to(at::kCPU, at::kFloat).contiguous();
  }
  return outputs;
}

at::Tensor text_embeddings_of(const LanguageModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  const Activations last = forward_stages(model, batch);
  if (!model.has_head()) return {};
  const at::Tensor embeddings = model.chunks.back()->text_embeddings(last);
  return embeddings.defined() ? embeddings.to(at::kCPU, at::kFloat).contiguous() : embeddings;
}

}  // namespace teratron
