#include "teratron/train/data/train_data.h"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "teratron/base/hash.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"
#include "teratron/comm/long_work.h"
#include "teratron/settings/component_options.h"

namespace teratron {

namespace {

using Splits = std::array<std::shared_ptr<const Dataset>, 3>;

// "96 samples (checksum 5d1e0c3a)".
std::string described(const Dataset* dataset, const BatchSchema& schema) {
  if (!dataset || dataset->size() == 0) return "no samples";
  const int64_t size = dataset->size();
  Hasher hasher;
  for (const int64_t i : {int64_t{0}, size / 2, size - 1}) {
    Batch batch(schema, 1);
    dataset->get(i, batch.sample(0));
    for (size_t c = 0; c < schema.size(); ++c) {
      if (schema[c].kind == Column::Kind::items) {
        const std::vector<std::byte>& items = batch.items(c)[0];
        hasher.update(items.data(), items.size());
      } else if (schema[c].is_read()) {
        hasher.update(batch.data(c), static_cast<size_t>(schema[c].numel() * element_size(schema[c].type)));
      }
    }
  }
  return fmt::format("{} samples (checksum {:.8})", size, hash_to_hex(hasher.digest()));
}

// Files of the same name may differ between machines: compares sizes and the tokens of some samples. `mine`:
// null on ranks that do not read. UserError(config) on every rank, naming the ranks, if they differ.
// Collective.
void check_same_data(const Splits* mine, const BatchSchema& schema, HostGroup& ranks) {
  if (ranks.size() == 1) return;
  NamedValues record;
  for (size_t split = 0; mine && split < kSplitNames.size(); ++split)
    record.emplace_back(kSplitNames[split], described((*mine)[split].get(), schema));
  const std::vector<std::string> differences = find_differences(ranks, record);
  if (differences.empty()) return;
  throw config_error({.what = fmt::format("the ranks read different data; {}", fmt::join(differences, "; ")),
                      .where = "ranks",
                      .fix = "Give all machines the same data files, and the same tokenizer"});
}

// consumed + a * b * c
int64_t samples_after(int64_t consumed, std::array<int64_t, 3> factors, const char* split) {
  int64_t samples = 1;
  bool overflow = false;
  for (const int64_t factor : factors)
    overflow = __builtin_mul_overflow(samples, factor, &samples) || overflow;
  overflow = __builtin_add_overflow(samples, consumed, &samples) || overflow;
  if (!overflow) return samples;
  throw config_error({.what = fmt::format("the samples of the {} split exceed 64 bits: {} + {}", split,
                                          consumed, fmt::join(factors, " x ")),
                      .where = std::string_view(split) == "train" ? "--train-iters" : "--eval-iters",
                      .fix = "Use fewer steps or a smaller batch"});
}

// All that are consumed after this many steps more.
int64_t train_samples(const Arguments& args, int64_t consumed, int64_t iterations) {
  if (args.train_samples) return *args.train_samples;
  if (args.step_batch_size_schedule || !args.rampup_batch_size.empty())
    return batch_schedule(args).consumed_after(iterations, consumed);
  return samples_after(consumed, {iterations, args.global_batch_size.value(), 1}, "train");
}

int64_t samples_per_epoch(const TrainContext& context, const Family& family,
                          std::shared_ptr<const ResizableDataset>& epoch) {
  std::string mine;
  HostGroup& ranks = *context.mesh.world().communicator;
  run_without_timeout(ranks, [&](const std::stop_token& stop) {
    if (context.mesh.group(Axis::tp).rank != 0) return;
    const Datasets built = family.datasets({context.args, context.tokenizer, {std::nullopt, 0, 0}, stop});
    mine = std::to_string(built.train ? built.train->size() : 0);
    epoch = std::dynamic_pointer_cast<const ResizableDataset>(built.train);
  });
  return std::stoll(broadcast_bytes(ranks, mine));
}

// Mock data has no end.
std::shared_ptr<const Dataset> whole_valid(const TrainContext& context, const Family& family,
                                           const std::shared_ptr<const Dataset>& part,
                                           const std::stop_token& stop) {
  if (context.args.mock_data) return part;
  if (const auto data = std::dynamic_pointer_cast<const ResizableDataset>(part)) return data->resized({});
  return family.datasets({context.args, context.tokenizer, {0, std::nullopt, 0}, stop}).valid;
}

void print_reports(const Splits& datasets) {
  for (size_t split = 0; split < datasets.size(); ++split) {
    const std::string report = datasets[split] ? datasets[split]->report() : "";
    if (!report.empty()) print(" > {} split: {}", kSplitNames[split], report);
  }
}

}  // namespace

SplitSamples split_samples(const Arguments& args, const TrainProgress& progress) {
  const int64_t batch = args.global_batch_size.value();
  const int64_t end = std::max(progress.train_iters, progress.iteration);
  const int64_t train = train_samples(args, progress.consumed_train_samples, end - progress.iteration);
  if (args.eval_iters == 0) return {train, 0, 0};
  const int64_t interval = args.eval_interval.value_or(std::numeric_limits<int64_t>::max());
  const int64_t evaluations = end / interval - progress.iteration / interval + 1;  // one at the end
  return {train,
          samples_after(progress.consumed_valid_samples, {evaluations, args.eval_iters, batch}, "valid"),
          samples_after(0, {1, args.eval_iters, batch}, "test")};
}

Arguments with_epochs(const TrainContext& context, const Family& family, TrainEpoch& epoch) {
  const Arguments& args = context.args;
  if (!args.num_train_epochs) return args;
  Arguments resolved = args;
  const int64_t per_epoch = samples_per_epoch(context, family, epoch.data);
  epoch.samples = per_epoch;
  if (args.train_iters) {
    epoch.steps = static_cast<double>(per_epoch) / static_cast<double>(*args.global_batch_size);
    return args;
  }
  int64_t samples = 0;
  if (__builtin_mul_overflow(per_epoch, *args.num_train_epochs, &samples) || samples == 0) {
    throw config_error(
        {.what = fmt::format("num_train_epochs = {} of {} samples is not a number of steps of {} samples",
                             *args.num_train_epochs, per_epoch, *args.global_batch_size),
         .where = "--num-train-epochs",
         .fix = "Use more data, or another number of epochs"});
  }
  resolved.train_iters = std::max<int64_t>(1, samples / *args.global_batch_size);
  if (samples < *args.global_batch_size && context.mesh.rank() == 0)
    notice(
        "{} epochs of {} samples are less than a step of {}: one step is taken; a smaller "
        "--global-batch-size "
        "takes more",
        *args.num_train_epochs, per_epoch, *args.global_batch_size);
  // A warm-up begins with a rate of 0, with which the only step would change nothing.
  if (*resolved.train_iters == 1) resolved.lr_warmup_fraction.reset();
  if (!resolved.lr_decay_iters) resolved.lr_decay_iters = resolved.train_iters;
  return resolved;
}

Arguments with_log_lines(Arguments args) {
  if (args.log_lines && args.train_iters)
    args.log_interval = std::max<int64_t>(1, *args.train_iters / *args.log_lines);
  return args;
}

TrainData::TrainData(const TrainContext& context, const Family& family, const Source& source)
    : args_(context.args), source_(source), mesh_(context.mesh) {
  const bool reads = reads_data(source.schema, mesh_);
  // An index may take minutes to build, on one rank for all.
  run_without_timeout(*mesh_.world().communicator, [&](const std::stop_token& stop) {
    if (reads) build(context, family, stop);
  });
  if (reads && mesh_.rank() == 0) print_reports(datasets_);
  check_same_data(reads ? &datasets_ : nullptr, source.schema, *mesh_.world().communicator);
  std::string present;  // of the reading rank, for all ranks
  for (const auto& dataset : datasets_) present += dataset ? '1' : '0';
  HostGroup& model = *mesh_.group({Axis::tp, Axis::pp}).communicator;
  present = broadcast_bytes(model, present);
  for (size_t i = 0; i < present_.size(); ++i) present_[i] = present.at(i) == '1';
  whole_valid_samples_ =
      std::stoll(broadcast_bytes(model, std::to_string(whole_valid_ ? whole_valid_->size() : 0)));
  if (has_whole_valid() && whole_valid_samples_ < mesh_.data_parallel().size) {
    throw data_error({.what = fmt::format("the validation split has {} samples, fewer than the {} "
                                          "data-parallel ranks that evaluate it",
                                          whole_valid_samples_, mesh_.data_parallel().size),
                      .where = "--data-path",
                      .fix = "Give it more data, or --eval-iters 0"});
  }
}

void TrainData::build(const TrainContext& context, const Family& family, const std::stop_token& stop) {
  const auto& [train, valid, test] = source_.samples;
  const int64_t new_train = source_.epoch ? 0 : train;
  Datasets built = family.datasets({args_, context.tokenizer, {new_train, valid, test}, stop});
  if (source_.epoch && train > 0) built.train = source_.epoch->resized(train);
  datasets_ = {std::move(built.train), std::move(built.valid), std::move(built.test)};
  if ((args_.num_train_epochs || args_.full_validation) && valid > 0)
    whole_valid_ = whole_valid(context, family, datasets_[1], stop);
}

std::unique_ptr<BatchSource> TrainData::open(Split split, int64_t consumed_samples) const {
  const char* const name = kSplitNames[static_cast<size_t>(split)];
  if (!has(split)) {
    throw data_error(
        {.what = fmt::format("there is no {} data", name),
         .where = "--data-path",
         .fix = fmt::format("Give --data-path with a --split that has a {} share, or --mock-data{}", name,
                            split == Split::train ? "" : ", and --eval-iters above 0")});
  }
  return std::make_unique<BatchSource>(datasets_[static_cast<size_t>(split)],
                                       source_options(split, sampler(consumed_samples)), mesh_);
}

std::unique_ptr<BatchSource> TrainData::open(Split split, int64_t consumed_samples,
                                             BatchReader reader) const {
  return std::make_unique<BatchSource>(std::move(reader), source_options(split, sampler(consumed_samples)),
                                       mesh_);
}

BatchReader TrainData::read(Split split, int64_t consumed_samples) const {
  if (!reads_data(source_.schema, mesh_)) return nullptr;
  const auto loader = std::make_shared<DataLoader>(datasets_[static_cast<size_t>(split)], source_.schema,
                                                   source_options(split, sampler(consumed_samples)).loader);
  return [loader] { return loader->next(); };
}

int64_t TrainData::whole_valid_microbatches(int64_t data_parallel_rank) const {
  const int64_t ranks = mesh_.data_parallel().size;
  return (whole_valid_samples_ - data_parallel_rank + ranks - 1) / ranks;
}

std::unique_ptr<BatchSource> TrainData::open_whole_valid() const {
  return std::make_unique<BatchSource>(
      whole_valid_, source_options(Split::valid, {.kind = SamplerKind::full_validation}), mesh_);
}

BatchSamplerOptions TrainData::sampler(int64_t consumed_samples) const {
  return {.kind = args_.dataloader_type == "cyclic" ? SamplerKind::cyclic : SamplerKind::single,
          .consumed_samples = consumed_samples,
          .micro_batch_size = args_.micro_batch_size.value(),
          .data_sharding = args_.data_sharding};
}

BatchSource::Options TrainData::source_options(Split split, const BatchSamplerOptions& sampler) const {
  BatchSource::Options options{
      .loader = {.sampler = sampler, .num_workers = static_cast<int>(args_.num_workers)},
      .split = kSplitNames[static_cast<size_t>(split)],
      .schema = source_.schema,
      .device = source_.device};
  options.loader.sampler.dp_rank = mesh_.data_parallel().rank;
  options.loader.sampler.dp_size = mesh_.data_parallel().size;
  return options;
}

}  // namespace teratron
