#include "teratron/bench/generate_bench.h"

#include <algorithm>
#include <chrono>
#include <random>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "teratron/bench/kernel_profiler.h"
#include "teratron/device/device.h"
#include "teratron/generate/engine.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/models/family.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// The host's clock at the end of all work on the device.
Clock::time_point finished(at::Device device) {
  if (device.is_cuda()) at::zeros({1}, at::TensorOptions().device(device)).item<float>();
  return Clock::now();
}

double copy_rate(at::Device device) {
  const int64_t bytes = device.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 27;
  const at::Tensor from = at::ones({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  const at::Tensor to = at::empty_like(from);
  to.copy_(from);
  double best = 0.0;
  for (int i = 0; i < 5; ++i) {
    const Clock::time_point start = finished(device);
    for (int k = 0; k < 10; ++k) to.copy_(from);
    best = std::max(best, 20.0 * static_cast<double>(bytes) / seconds_between(start, finished(device)));
  }
  return best;
}

struct Timing {
  Clock::time_point start, first, end;
  int64_t tokens = 0;  // between `first` and `end`
};

using TokenCount = std::function<void(int64_t count)>;  // of the sequence, this token included

void submit_batch(const LanguageModel& model, Engine& engine, const GenerateBenchOptions& options,
                  const TokenCount& on_token) {
  std::mt19937 random(1);
  for (int64_t row = 0; row < options.batch; ++row) {
    const auto count = [on_token, tokens = int64_t{0}](int64_t, const GeneratedToken&) mutable {
      on_token(++tokens);
    };
    GenerationRequest request{
        .max_new_tokens = options.new_tokens, .sampling = {.top_k = 1}, .on_token = count};
    std::vector<int32_t>& tokens = model.source ? request.source : request.prompt;
    for (int64_t i = 0; i < options.prompt; ++i)
      tokens.push_back(static_cast<int32_t>(random() % model.vocabulary));
    if (model.source) request.prompt = {0};
    engine.submit(request);
  }
}

// Decoding is timed while all sequences decode: prompts are read in several steps, and those that are
// complete decode meanwhile.
Timing run_batch(const LanguageModel& model, Engine& engine, const GenerateBenchOptions& options) {
  Timing timing;
  int64_t begun = 0, ended = 0;
  bool counts = false;
  submit_batch(model, engine, options, [&](int64_t count) {
    timing.tokens += counts ? 1 : 0;
    begun += count == 1 ? 1 : 0;
    ended += count == options.new_tokens ? 1 : 0;
  });
  timing.start = finished(model.device);
  while (engine.step()) {
    if (timing.first == Clock::time_point() && begun == options.batch) {
      timing.first = finished(model.device);
      counts = true;
    } else if (counts && ended > 0) {
      timing.end = finished(model.device);
      counts = false;
    }
  }
  engine.take_results();
  return timing;
}

// Steps of one token per sequence.
void profile(const LanguageModel& model, Engine& engine, const GenerateBenchOptions& options,
             GenerateBenchResult& result) {
  int64_t tokens = 0;
  submit_batch(model, engine, options, [&](int64_t) { ++tokens; });
  while (tokens < 2 * options.batch && engine.step()) {
  }
  KernelProfiler profiler(model.device);
  profiler.start();
  while (result.profiled_steps < options.profiled_steps && engine.step()) ++result.profiled_steps;
  const std::vector<KernelEvent> events = profiler.stop();
  result.breakdown = break_down(events);
  result.kernels = kernel_totals(events);
}

// Micro-batches of as many tokens as the engine reads in a step, the best of three.
double forward_rate(const LanguageModel& model, const GenerateBenchOptions& options) {
  if (model.source || model.pipeline.group.size > 1) return 0.0;
  const at::NoGradGuard no_grad;
  constexpr int64_t tokens_at_once = 4096;
  const int64_t rows = std::clamp<int64_t>(tokens_at_once / options.prompt, 1, options.batch);
  const NamedTensors inputs = {
      {"tokens", at::randint(model.vocabulary, {rows, options.prompt},
                             at::TensorOptions().dtype(at::kLong).device(model.device))}};
  const MicroBatch batch = model.inference.batch(inputs, "bench");
  double best = 0.0;
  for (int i = 0; i < 4; ++i) {
    const Clock::time_point start = finished(model.device);
    model.whole().forward({}, batch, nullptr);
    const double rate =
        static_cast<double>(rows * options.prompt) / seconds_between(start, finished(model.device));
    if (i > 0) best = std::max(best, rate);  // the first warms up
  }
  return best;
}

// Bytes of the weights that a step reads: no encoder layers, and no embedding unless the output layer has the
// same weight, as a step reads a few of its rows.
double weight_bytes(const ParameterSet& parameters) {
  const auto& all = parameters.all();
  const bool untied = std::any_of(all.begin(), all.end(), [](const Parameter& parameter) {
    return parameter.name.starts_with("output_layer.");
  });
  double bytes = 0.0;
  for (const Parameter& parameter : all) {
    const bool is_unused = parameter.name.starts_with("embedding.position_embeddings") ||
                           parameter.name.starts_with("encoder.") ||
                           (untied && parameter.name.starts_with("embedding.word_embeddings."));
    if (!is_unused) bytes += static_cast<double>(parameter.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

double GenerateBenchResult::tokens_per_second() const {
  return static_cast<double>(decoded_tokens) / decode_seconds;
}

// A step yields one token of each sequence.
double GenerateBenchResult::share_of_limit() const {
  const double steps_per_second = tokens_per_second() / static_cast<double>(batch);
  return steps_per_second * bytes_per_step / copy_bytes_per_second;
}

double GenerateBenchResult::prompt_tokens_per_second() const {
  return static_cast<double>(batch * prompt) / first_token_seconds;
}

GenerateBenchResult bench_generate(const Arguments& given, const GenerateBenchOptions& options,
                                   const Mesh& mesh) {
  Arguments args = given;
  args.tensor_model_parallel_size = mesh.group(Axis::tp).size;
  args.expert_tensor_parallel_size = mesh.group(Axis::etp).size;
  const at::Device device = choose_device(args);
  ParameterSet parameters({.dtype = model_dtype(args), .device = device, .seed = 1});
  const ModelPlan plan = find_family(options.family).plan(args, args.vocab_size.value_or(1));
  const LanguageModel model = language_model(plan, parameters, inference_ranks(args, plan, mesh));
  Engine engine(model,
                {.max_rows = options.batch,
                 .longest = options.new_tokens + (model.source ? 1 : options.prompt),
                 .longest_source = options.prompt,
                 .graphs = options.graphs},
                *mesh.world().communicator);
  run_batch(model, engine, options);
  const Timing timing = run_batch(model, engine, options);
  const double cached = static_cast<double>(state_needs(model).per_token) *
                        static_cast<double>(options.prompt + options.new_tokens / 2);
  GenerateBenchResult result{
      .name = options.name,
      .device = device_name(device),
      .world_size = mesh.world().size,
      .batch = options.batch,
      .prompt = options.prompt,
      .new_tokens = options.new_tokens,
      .first_token_seconds = seconds_between(timing.start, timing.first),
      .decoded_tokens = timing.tokens,
      .decode_seconds = seconds_between(timing.first, timing.end),
      .bytes_per_step = weight_bytes(parameters) + static_cast<double>(options.batch) * cached,
      .copy_bytes_per_second = copy_rate(device),
      .forward_tokens_per_second = forward_rate(model, options)};
  if (options.profiled_steps > 0 && device.is_cuda()) profile(model, engine, options, result);
  return result;
}

namespace {

std::string forward_line(const GenerateBenchResult& r) {
  if (r.forward_tokens_per_second == 0.0) return "";
  return fmt::format("\nforward       {:.0f} tokens/s in training; {:.2f} of it while prompts are read",
                     r.forward_tokens_per_second, r.prompt_tokens_per_second() / r.forward_tokens_per_second);
}

// Time of the kernels per step.
std::string kernel_table(const GenerateBenchResult& r) {
  if (r.profiled_steps == 0) return "";
  const auto steps = static_cast<double>(r.profiled_steps);
  std::string text = fmt::format("\na step under the profiler: {:.1f} us, {:.1f} us of them without a kernel",
                                 1e3 * r.breakdown.total_ms / steps, 1e3 * r.breakdown.idle_ms / steps);
  for (const KernelTotal& kernel : r.kernels) {
    text +=
        fmt::format("\n{:9.1f} us {:6.1f} calls  {}", 1e3 * kernel.ms / steps,
                    static_cast<double>(kernel.calls) / steps, short_kernel_name(kernel.name).substr(0, 90));
  }
  return text;
}

}  // namespace

std::string to_string(const GenerateBenchResult& r) {
  return fmt::format(
             "{} on {} x {}, batch {}, {} + {} tokens\n"
             "first tokens  {:.1f} ms ({:.0f} prompt tokens/s)\n"
             "decoding      {:.0f} tokens/s, {:.3f} ms a step\n"
             "bytes         {:.2f} GB a step; copy {:.0f} GB/s; {:.2f} of the limit",
             r.name, r.world_size, r.device, r.batch, r.prompt, r.new_tokens, r.first_token_seconds * 1e3,
             r.prompt_tokens_per_second(), r.tokens_per_second(),
             1e3 * static_cast<double>(r.batch) / r.tokens_per_second(), r.bytes_per_step / 1e9,
             r.copy_bytes_per_second / 1e9, r.share_of_limit()) +
         forward_line(r) + kernel_table(r);
}

std::string to_json(const GenerateBenchResult& r) {
  const nlohmann::ordered_json value = {{"name", r.name},
                                        {"device", r.device},
                                        {"world_size", r.world_size},
                                        {"batch", r.batch},
                                        {"prompt", r.prompt},
                                        {"new_tokens", r.new_tokens},
                                        {"first_token_seconds", r.first_token_seconds},
                                        {"tokens_per_second", r.tokens_per_second()},
                                        {"bytes_per_step", r.bytes_per_step},
                                        {"copy_bytes_per_second", r.copy_bytes_per_second},
                                        {"share_of_limit", r.share_of_limit()},
                                        {"forward_tokens_per_second", r.forward_tokens_per_second}};
  return value.dump();
}

}  // namespace teratron
