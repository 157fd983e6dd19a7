// Builds models from flags and writes their numerics for test_model_options.py, test_bert_parity.py and
// test_t5_parity.py.
//
//   parity_model CASES.json DIRECTORY
//
// CASES: a list of {"name", "flags", "dtype": "fp32" or "fp64", "steps"}. Writes DIRECTORY/name.safetensors:
// the weights as "weight.NAME", the tokens of each step [steps + 1, S + 1, B], logits and gradients of the
// first batch's mean loss, and with steps > 0 the loss and the gradient's norm of so many training steps.
//
// With "family" and "batches", a file of the columns of each step ("0.tokens", ...), any family: the weights,
// those of the file "weights" if given, logits, losses and gradients of the first batch, and the curve.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/base/tensor_dtype.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/hf/architecture.h"
#include "teratron/models/family.h"
#include "teratron/models/gpt/gpt.h"
#include "teratron/models/gpt/gpt_family.h"
#include "teratron/models/lora.h"
#include "teratron/models/precision.h"
#include "teratron/train/engine/engine.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {
namespace {

constexpr int64_t batch_size = 2;
constexpr int64_t vocabulary = 61;

using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

void write_tensors(const std::filesystem::path& path, const Outputs& tensors) {
  std::vector<SafetensorsWriter::Tensor> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, dtype_of(tensor.scalar_type()).value(), tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, entries, {});
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor whole = tensor.contiguous();
    writer.write(whole.const_data_ptr(), static_cast<int64_t>(whole.nbytes()));
  }
  writer.finish();
}

// Norms and biases are initialized to ones and zeros, which would hide errors.
void perturb_vectors(ParameterSet& parameters) {
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(11);
  for (Parameter& parameter : parameters.all()) {
    if (parameter.tensor.dim() != 1) continue;
    const at::Tensor noise = at::randn(parameter.tensor.sizes(), generator, at::kDouble);
    parameter.tensor.add_(0.1 * noise.to(parameter.tensor.scalar_type()));
  }
}

// Without padding rows.
at::Tensor logical(const Parameter& parameter, const at::Tensor& local) {
  return local.detach().narrow(0, 0, parameter.shard().global_shape[0]);
}

MicroBatch batch_of(const at::Tensor& text_SB) {
  const int64_t length = text_SB.size(0) - 1;
  const at::Tensor index_SB = at::arange(length, at::kLong).unsqueeze(1).expand({length, batch_size});
  return {.tensors = {{"tokens", text_SB.narrow(0, 0, length).contiguous()},
                      {"sequence_index", index_SB.contiguous()},
                      {"labels", text_SB.narrow(0, 1, length).contiguous()},
                      {"loss_mask", at::ones({length, batch_size})}}};
}

void add_first_batch(const GPTConfig& config, const ParameterSet::Options& options, const at::Tensor& text_SB,
                     Outputs& out) {
  ParameterSet parameters(options);
  GPT model(parameters, config, {.layers = config.layers}, {});
  perturb_vectors(parameters);
  const MicroBatch batch = batch_of(text_SB);
  for (const Parameter& parameter : parameters.all()) {
    out.emplace_back("weight." + parameter.name, logical(parameter, parameter.tensor).clone());
  }
  const at::Tensor logits = model.logits(model.forward({}, batch, nullptr));
  out.emplace_back("logits", logits.detach().narrow(2, 0, vocabulary).clone());
  for (Parameter& parameter : parameters.all()) parameter.pending_grads = 0;
  model.token_losses(model.forward({}, batch, nullptr), batch).mean().backward();
  for (const Parameter& parameter : parameters.all()) {
    out.emplace_back("gradient." + parameter.name, logical(parameter, parameter.main_grad).clone());
  }
}

void add_curve(const Arguments& args, const EngineOptions& options, const MicroBatches& batches,
               int64_t steps, Outputs& out) {
  const Mesh mesh;
  TrainEngine engine(options, mesh);
  perturb_vectors(engine.parameters());
  engine.optimizer().reset_master_weights();
  std::vector<double> losses;
  std::vector<double> norms;
  for (int64_t step = 0; step < steps; ++step) {
    const StepResult result =
        engine
            .train_step([&](int64_t) { return batches(step); },
                        {.hyper = {.lr = args.lr.value(), .weight_decay = args.weight_decay}})
            .wait();
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  out.emplace_back("losses", at::tensor(losses, fp64));
  out.emplace_back("norms", at::tensor(norms, fp64));
}

// ---- Any family ----

at::Tensor read_tensor(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor values = at::empty(entry.shape, scalar_type_of(entry.dtype).value());
  file.read(entry, 0, entry.bytes, values.mutable_data_ptr());
  return values;
}

MicroBatch read_batch(const SafetensorsFile& file, int64_t step) {
  const std::string prefix = fmt::format("{}.", step);
  MicroBatch batch;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.name.starts_with(prefix))
      batch.tensors.set(entry.name.substr(prefix.size()), read_tensor(file, entry));
  }
  return batch;
}

void load_weights(const std::string& path, ParameterSet& parameters) {
  const at::NoGradGuard no_grad;
  const SafetensorsFile file(path);
  for (Parameter& parameter : parameters.all()) {
    const SafetensorsEntry* const entry = file.find("weight." + parameter.name);
    TERATRON_ASSERT(entry, "no weight {}", parameter.name);
    parameter.tensor.narrow(0, 0, entry->shape[0]).copy_(read_tensor(file, *entry));
  }
  for (const Buffer& buffer : parameters.buffers()) {  // biases of experts
    const SafetensorsEntry* const entry = file.find("weight." + buffer.name);
    if (entry) buffer.tensor.copy_(read_tensor(file, *entry));
  }
}

void add_first_batch(const ModelPlan& plan, ParameterSet& parameters, const MicroBatch& batch, Outputs& out,
                     const std::string& weights) {
  const std::unique_ptr<Model> model = plan.build({parameters, {.layers = plan.layers()}, {}});
  if (weights.empty()) {
    perturb_vectors(parameters);
  } else {
    load_weights(weights, parameters);
  }
  for (const Parameter& parameter : parameters.all())
    out.emplace_back("weight." + parameter.name, logical(parameter, parameter.tensor).clone());
  const at::Tensor logits = model->logits(model->forward({}, batch, nullptr));
  out.emplace_back("logits", logits.detach().narrow(2, 0, plan.vocabulary).clone());
  for (Parameter& parameter : parameters.all()) parameter.pending_grads = 0;
  at::Tensor total;
  int64_t number = 0;
  for (const LossTerm& term : model->losses(model->forward({}, batch, nullptr), batch)) {
    const at::Tensor mean = term.sum / term.count;
    out.emplace_back(fmt::format("loss.{}", number++), mean.detach().clone());
    total = total.defined() ? total + mean : mean;
  }
  total.backward();
  for (Parameter& parameter : parameters.all()) {
    if (!parameter.options.trainable) continue;
    if (!parameter.main_grad.defined()) parameter.main_grad = at::zeros_like(parameter.tensor);
    out.emplace_back("gradient." + parameter.name, logical(parameter, parameter.main_grad).clone());
  }
}

void run_family_case(const nlohmann::json& request, const std::filesystem::path& directory) {
  const std::string name = request["family"];
  ParsedArguments parsed =
      parse_arguments(training_of(find_family(name)), request["flags"].get<std::vector<std::string>>(),
                      {.architecture = architecture_settings});
  validate_arguments(parsed, 1, {.needs_data = false});
  const Arguments& args = parsed.args;
  const at::ScalarType dtype = request["dtype"] == "fp64" ? at::kDouble : at::kFloat;
  const ModelPlan plan = find_family(name).plan(args, request.value("vocabulary", vocabulary));
  const SafetensorsFile batches(request["batches"].get<std::string>());
  Outputs out;
  ParameterSet parameters({.dtype = dtype, .seed = static_cast<uint64_t>(args.seed)});
  add_first_batch(plan, parameters, read_batch(batches, 0), out, request.value("weights", ""));
  if (const int64_t steps = request["steps"]; steps > 0) {
    const EngineOptions options{.model = plan,
                                .optimizer = optimizer_options(args),
                                .precision = {.dtype = dtype},
                                .seed = static_cast<uint64_t>(args.seed)};
    add_curve(args, options, [&](int64_t step) { return read_batch(batches, step); }, steps, out);
  }
  write_tensors(directory / (request["name"].get<std::string>() + ".safetensors"), out);
}

void run_case(const nlohmann::json& request, const std::filesystem::path& directory) {
  ParsedArguments parsed =
      parse_arguments(training_of(find_family("gpt")), request["flags"].get<std::vector<std::string>>(),
                      {.architecture = architecture_settings});
  validate_arguments(parsed, 1, {.needs_data = false});
  const Arguments& args = parsed.args;
  const at::ScalarType dtype = request["dtype"] == "fp64" ? at::kDouble : at::kFloat;
  const GPTConfig config = gpt_config(args, vocabulary);
  const int64_t steps = request["steps"].get<int64_t>();
  at::Generator generator = at::detail::createCPUGenerator(5);
  const at::Tensor texts =
      at::randint(0, vocabulary, {steps + 1, *args.seq_length + 1, batch_size}, generator, at::kLong);
  Outputs out = {{"texts", texts}};
  const std::optional<LoraOptions> lora = lora_options(args, gpt_plan(config, {}));
  const ParameterSet::Options parameters{
      .dtype = dtype, .seed = static_cast<uint64_t>(args.seed), .fp8 = fp8_options(args), .lora = lora};
  add_first_batch(config, parameters, texts[0], out);
  if (steps > 0) {
    add_curve(
        args,
        {.model = gpt_plan(config, {}),
         .optimizer = optimizer_options(args),
         .precision = {.dtype = dtype, .fp8 = fp8_options(args)},
         .lora = lora,
         .seed = static_cast<uint64_t>(args.seed)},
        [&](int64_t step) { return batch_of(texts[step]); }, steps, out);
  }
  write_tensors(directory / (request["name"].get<std::string>() + ".safetensors"), out);
}

}  // namespace
}  // namespace teratron

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  at::set_num_threads(1);
  try {
    for (const nlohmann::json& request : teratron::read_json(argv[1], {}))
      request.contains("family") ? teratron::run_family_case(request, argv[2])
                                 : teratron::run_case(request, argv[2]);
  } catch (const teratron::UserError& error) {
    teratron::print("{}", error.what());
    return static_cast<int>(error.exit_code());
  }
  return 0;
}
