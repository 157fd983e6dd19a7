#include "teratron/generate/stage_runner.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

// Logits of so many targets at once.
constexpr int64_t targets_at_once = 128;

at::Tensor long_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

// The hidden states of some tokens, as the output of the last stage.
Activations some_tokens(const LanguageModel& model, const Activations& output,
                        const std::vector<int64_t>& tokens) {
  const std::string& name = model.text.hidden;
  const at::Tensor& hidden = output[name];
  if (static_cast<int64_t>(tokens.size()) == hidden.size(0)) return output;
  return {{name, hidden.index_select(0, long_tensor(tokens, hidden.device()))}};
}

// Places of positions in a sequence's pages.
struct PagePlaces {
  const std::vector<int32_t>& pages;
  int64_t page_size;

  int64_t operator()(int64_t position) const {
    return int64_t{pages[position / page_size]} * page_size + position % page_size;
  }
  std::vector<int64_t> range(int64_t begin, int64_t end) const {
    std::vector<int64_t> places;
    for (int64_t i = begin; i < end; ++i) places.push_back((*this)(i));
    return places;
  }
  StoredTokens tokens(int64_t length, at::Device device) const {
    const int64_t used = (length + page_size - 1) / page_size;
    bool is_run = true;
    for (int64_t i = 1; i < used; ++i) is_run = is_run && pages[i] == pages[i - 1] + 1;
    if (is_run) return {.length = length, .first_place = (*this)(0)};
    return {.length = length, .places_L = long_tensor(range(0, length), device)};
  }
};

// The edits of choices [begin, end); empty if there are none.
std::vector<const LogitEdits*> edits_between(const std::vector<StepChoice>& choices, size_t begin,
                                             size_t end) {
  std::vector<const LogitEdits*> edits;
  bool any = false;
  for (size_t i = begin; i < end; ++i) {
    edits.push_back(&choices[i].edits);
    any = any || !choices[i].edits.empty();
  }
  if (!any) edits.clear();
  return edits;
}

// Watches the ranks that generate together, whose collectives are in the graphs.
std::function<void()> watch_of(const LanguageModel& model) {
  std::vector<std::shared_ptr<Communicator>> groups;
  for (const Group* group : {&model.tensor_parallel, &model.copies}) {
    if (group->size > 1) groups.push_back(group->communicator);
  }
  if (groups.empty()) return {};
  return [groups] {
    for (const auto& group : groups) group->watch_replay("replayed decode step");
  };
}

}  // namespace

StateNeeds state_needs(const LanguageModel& model) {
  StateNeeds needs;
  for (const auto& chunk : model.chunks) needs += chunk->make_states()->needs();
  return needs;
}

StageRunner::StageRunner(const LanguageModel& model, const Options& options)
    : model_(model), options_(options) {
  const StateCapacity& capacity = options.capacity;
  batch_->page_size = capacity.page_size;
  StateNeeds needs;
  has_tables_ = true;
  for (const auto& chunk : model.chunks) {
    LayerStates& states = *states_.emplace_back(chunk->make_states());
    needs += states.needs();
    has_tables_ = has_tables_ && states.decodes_from_tables();
    states.allocate(capacity);
  }
  keeps_slots_ = needs.per_sequence > 0;
  has_tables_ = has_tables_ && (needs.per_token > 0 || keeps_slots_);
  if (has_tables_) {
    const int64_t width = (model.max_positions + capacity.page_size - 1) / capacity.page_size;
    table_ = PageTable({options.max_rows, width, &StepRow::pages}, model.device);
    slots_ = RowNumbers(options.max_rows, model.device);
    if (model.source) sources_ = SourceTable(options.max_rows, width, model.device);
    if (options.graphs && model.pipeline.group.size == 1)
      graphs_ = std::make_unique<DecodeGraphs>(options.max_rows, model.device, watch_of(model));
  }
  if (model.pipeline.group.size > 1) connect_stages();
}

// Each link is first used here: by a token from each stage to the next, and from the last to the first where
// that has more chunks.
void StageRunner::connect_stages() const {
  const Group& stages = model_.pipeline.group;
  const bool ring = model_.chunks.size() > 1, first = stages.rank == 0, last = stages.rank == stages.size - 1;
  const at::Tensor token = at::zeros({1}, at::TensorOptions().dtype(model_.dtype).device(model_.device));
  const auto pass = [&](const Group& link, bool send) {
    link.communicator->batch_isend_irecv({{.tensor = token, .peer = send ? 1 : 0, .send = send}}).wait();
  };
  const bool out_first = stages.rank % 2 == 0;  // half of the links at a time
  const auto pass_out = [&] {
    if (!last || ring) pass(model_.pipeline.links.forward_out, true);
  };
  if (out_first) pass_out();
  if (!first || ring) pass(model_.pipeline.links.forward_in, false);
  if (!out_first) pass_out();
}

void StageRunner::describe_rows(const StepInput& part) {
  batch_->rows.clear();
  batch_->source_places_S = at::Tensor();
  std::vector<int64_t> places;
  int64_t decode_rows = 0;
  for (const StepRow& row : part.rows) {
    if (row.tokens == 1 && decode_rows == static_cast<int64_t>(batch_->rows.size())) decode_rows += 1;
    const PagePlaces pages{*row.pages, options_.capacity.page_size};
    const std::vector<int64_t> added = pages.range(row.length - row.tokens, row.length);
    places.insert(places.end(), added.begin(), added.end());
    GenerationRow& described =
        batch_->rows.emplace_back(GenerationRow{.first_token = row.first_token,
                                                .tokens = row.tokens,
                                                .sequence = pages.tokens(row.length, model_.device)});
    if (!model_.source) continue;
    const PagePlaces source{*row.source_pages, options_.capacity.page_size};
    described.source = source.tokens(row.source_length, model_.device);
    if (row.source_tokens)
      batch_->source_places_S = long_tensor(source.range(0, row.source_length), model_.device);
  }
  batch_->places_T = long_tensor(places, model_.device);
  batch_->decode_rows = std::min(decode_rows, options_.max_rows);
  batch_->table_RP = batch_->source_table_RP = at::Tensor();
  if (has_tables_ && batch_->decode_rows > 0) set_tables(part.rows, batch_->decode_rows, batch_->decode_rows);
  if (keeps_slots_) describe_slots(part);
}

void StageRunner::describe_slots(const StepInput& part) {
  std::vector<int64_t> slots, first, last;
  for (const StepRow& row : part.rows) slots.push_back(row.slot);
  batch_->slot_R = long_tensor(slots, model_.device);
  batch_->first_R = batch_->last_R = at::Tensor();
  if (batch_->has_single_tokens(static_cast<int64_t>(part.tokens.size()))) return;
  for (const StepRow& row : part.rows) {
    first.push_back(row.first_token);
    last.push_back(row.first_token + row.tokens - 1);
  }
  batch_->first_R = long_tensor(first, model_.device);
  batch_->last_R = long_tensor(last, model_.device);
}

// Sets the tables of the first `decoded` rows, and of others that pad them. Whether anything changed.
bool StageRunner::set_tables(const std::vector<StepRow>& rows, int64_t decoded, int64_t padded) {
  bool changed = table_.set(rows, decoded, padded);
  batch_->decode_rows = padded;
  batch_->table_RP = table_.rows(padded);
  if (!model_.source) return changed;
  changed = sources_.set(rows, decoded, padded) || changed;
  batch_->source_table_RP = sources_.pages(padded);
  batch_->source_last_R = sources_.last(padded);
  return changed;
}

// For a step of one token per row.
bool StageRunner::set_slots(const std::vector<StepRow>& rows, int64_t padded) {
  if (!keeps_slots_) return false;
  std::vector<int64_t> slots(static_cast<size_t>(padded), 0);
  std::ranges::transform(rows, slots.begin(), &StepRow::slot);
  const bool changed = slots_.set(slots);
  batch_->slot_R = slots_.rows(padded);
  batch_->first_R = batch_->last_R = at::Tensor();
  return changed;
}

MicroBatch StageRunner::batch_of(const StepInput& part) const {
  const at::Tensor tokens = long_tensor(part.tokens, model_.device),
                   positions = long_tensor(part.positions, model_.device);
  const std::vector<int32_t>* const source = part.rows.front().source_tokens;
  const at::Tensor encoded =
      source ? long_tensor({source->begin(), source->end()}, model_.device) : at::Tensor();
  MicroBatch batch = token_batch(model_, tokens, positions, encoded);
  batch.generation = batch_;
  return batch;
}

std::vector<Activations> StageRunner::run_chunks(const std::vector<StepInput>& parts) {
  std::vector<Activations> outputs;
  std::vector<Work> sent;
  for (size_t c = 0; c < model_.chunks.size(); ++c) {
    for (const StepInput& part : parts) {
      Model& chunk = *model_of(part).chunks[c];
      describe_rows(part);
      MicroBatch batch = batch_of(part);
      if (chunk.stage().embedding && model_.text.images)
        images_.insert(part, {chunk, model_.text.tokens, *model_.text.images}, batch);
      const Activations output = chunk.forward(receive_input(model_, chunk, batch), batch, states_[c].get());
      if (chunk.stage().head) {
        outputs.push_back(output);
      } else {
        sent.push_back(send_output(model_, chunk, batch, output));
      }
    }
  }
  for (Work& work : sent) work.wait();
  return outputs;
}

const LanguageModel& StageRunner::model_of(const StepInput& part) const {
  const int64_t adapter = part.rows.front().adapter;
  return adapter == 0 ? model_ : *options_.adapters[static_cast<size_t>(adapter) - 1];
}

// [rows that want one * H]
at::Tensor StageRunner::state_sums(const StepInput& part, const Activations& output) const {
  std::vector<at::Tensor> sums = {
      at::empty({0}, at::TensorOptions().dtype(at::kDouble).device(model_.device))};
  for (const StepRow& row : part.rows) {
    if (!row.sums) continue;
    const at::Tensor states_TH = output[model_.text.hidden].narrow(0, row.first_token, row.tokens);
    sums.push_back(states_TH.to(at::kDouble).sum(0).flatten());
  }
  return at::cat(sums);
}

// Stages without the head know it by what they send.
int64_t StageRunner::hidden_size(const StepInput& step) const {
  for (const Channel& channel : model_.channels) {
    if (channel.name == model_.text.hidden) return channel.shape(batch_of(step), 1).back();
  }
  return 0;
}

// Values in the order of the choices: id and log probability of each token.
at::Tensor StageRunner::next_tokens(const StepInput& part, const Activations& output) const {
  if (part.choices.empty())
    return at::empty({0}, at::TensorOptions().dtype(at::kDouble).device(model_.device));
  std::vector<int64_t> tokens;
  for (const StepChoice& choice : part.choices) tokens.push_back(choice.token);
  const at::Tensor logits_RV = gathered_logits(model_of(part), some_tokens(model_, output, tokens));
  std::vector<at::Tensor> values;
  for (size_t begin = 0; begin < part.choices.size();) {
    // Neighbors that are sampled, or one whose best tokens are wanted.
    size_t end = begin + 1;
    const int64_t best = part.choices[begin].best;
    while (best == 0 && end < part.choices.size() && part.choices[end].best == 0) ++end;
    const at::Tensor logits =
        logits_RV.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(end - begin));
    if (best > 0) {
      const auto [logprobs, ids] =
          logits.to(at::kDouble).log_softmax(1).topk(std::min(best, logits.size(1)), 1);
      values.push_back(at::stack({ids.squeeze(0).to(at::kDouble), logprobs.squeeze(0)}, 1).flatten());
    } else {
      std::vector<RowSampling> rows;
      for (size_t i = begin; i < end; ++i) rows.push_back(part.choices[i].sampling);
      SamplingNeeds needs = teratron::needs_of(rows);
      needs.logprobs = part.logprobs;
      needs.top = part.top;
      const at::Tensor parameters = sampling_parameters(rows).to(model_.device);
      const auto edits = edits_between(part.choices, begin, end);
      values.push_back((edits.empty() ? sample_rows(logits, parameters, needs)
                                      : sample_edited_rows(logits, parameters, needs, edits))
                           .t()
                           .flatten());
    }
    begin = end;
  }
  return at::cat(values);
}

at::Tensor StageRunner::target_logprobs(const StepInput& part, const Activations& output) const {
  std::vector<at::Tensor> values = {
      at::empty({0}, at::TensorOptions().dtype(at::kDouble).device(model_.device))};
  const auto count = static_cast<int64_t>(part.targets.size());
  for (int64_t begin = 0; begin < count; begin += targets_at_once) {
    std::vector<int64_t> tokens, next;
    for (int64_t i = begin; i < std::min(begin + targets_at_once, count); ++i) {
      tokens.push_back(part.targets[i].token);
      next.push_back(part.targets[i].next);
    }
    const at::Tensor logprobs =
        gathered_logits(model_of(part), some_tokens(model_, output, tokens)).to(at::kDouble).log_softmax(1);
    values.push_back(with_top_tokens(long_tensor(next, model_.device), logprobs, part.top).flatten());
  }
  return at::cat(values);
}

// The first of the ranks that compute the same dense layers decides: their GPUs may round differently.
at::Tensor StageRunner::agreed(const at::Tensor& values) const {
  const Group& copies = model_.copies;
  if (copies.size == 1 || values.numel() == 0) return values;
  at::Tensor first = values.contiguous();
  copies.communicator->broadcast(first, 0).wait();
  return first;
}

// Tokens that follow a choice, or a target, in the output.
int64_t StageRunner::tokens_of(const StepInput& step, const StepChoice& choice) const {
  return choice.best > 0 ? std::min(choice.best, model_.vocabulary)
                         : 1 + std::min(step.top, model_.vocabulary);
}

StepOutput StageRunner::unpack(const StepInput& step, const at::Tensor& values) const {
  const auto* next = values.const_data_ptr<double>();
  StepOutput output;
  const auto read = [&](int64_t count) {
    std::vector<StepOutput::Token> tokens;
    for (int64_t i = 0; i < count; ++i, next += 2) tokens.push_back({static_cast<int64_t>(next[0]), next[1]});
    return tokens;
  };
  for (const StepChoice& choice : step.choices) output.choices.push_back(read(tokens_of(step, choice)));
  for (size_t i = 0; i < step.targets.size(); ++i) output.targets.push_back(read(tokens_of(step, {})));
  const auto wanted = std::ranges::count_if(step.rows, [](const StepRow& row) { return row.sums; });
  const double* const end = values.const_data_ptr<double>() + values.numel();
  const int64_t size = wanted == 0 ? 0 : (end - next) / wanted;
  for (int64_t i = 0; i < wanted; ++i, next += size) output.sums.emplace_back(next, next + size);
  return output;
}

bool StageRunner::decodes_only(const StepInput& step) const {
  return step.targets.empty() && step.choices.size() == step.rows.size() &&
         step.tokens.size() == step.rows.size() &&
         static_cast<int64_t>(step.rows.size()) <= options_.max_rows &&
         std::all_of(step.choices.begin(), step.choices.end(),
                     [](const StepChoice& choice) { return choice.best == 0 && choice.edits.empty(); }) &&
         std::none_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) {
           return row.source_tokens != nullptr || row.images != nullptr || row.adapter != 0;
         });
}

StepOutput StageRunner::decode(const StepInput& step) {
  const auto rows = static_cast<int64_t>(step.rows.size());
  const int64_t padded = graphs_->padded_rows(rows);
  const bool new_pages = set_tables(step.rows, rows, padded), new_slots = set_slots(step.rows, padded);
  const at::Tensor output_NR =
      graphs_->run(step, !new_pages && !new_slots,
                   [&](const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& parameters,
                       const SamplingNeeds& needs) {
                     MicroBatch batch = token_batch(model_, tokens, positions);
                     batch.generation = batch_;
                     const Activations output = model_.whole().forward({}, batch, states_[0].get());
                     return agreed(sample_rows(gathered_logits(model_, output), parameters, needs));
                   });
  return unpack(step, output_NR.narrow(1, 0, rows).t().contiguous());
}

StepOutput StageRunner::run(const StepInput& step) {
  const at::NoGradGuard no_grad;
  if (graphs_ && decodes_only(step)) return decode(step);
  const Group& pipeline = model_.pipeline.group;
  const std::vector<StepInput> parts = split_step(step, pipeline.size);
  const std::vector<Activations> outputs = run_chunks(parts);
  std::vector<at::Tensor> choices, targets, sums;
  for (size_t i = 0; i < outputs.size(); ++i) {
    choices.push_back(next_tokens(parts[i], outputs[i]));
    targets.push_back(target_logprobs(parts[i], outputs[i]));
    sums.push_back(state_sums(parts[i], outputs[i]));
  }
  int64_t values = 0;
  for (const StepChoice& choice : step.choices) values += 2 * tokens_of(step, choice);
  values += 2 * tokens_of(step, {}) * static_cast<int64_t>(step.targets.size());
  const auto wanted = std::ranges::count_if(step.rows, [](const StepRow& row) { return row.sums; });
  at::Tensor result;
  if (model_.has_head()) {
    choices.insert(choices.end(), targets.begin(), targets.end());
    choices.insert(choices.end(), sums.begin(), sums.end());
    result = agreed(at::cat(choices));
  } else {
    if (wanted > 0) values += wanted * hidden_size(step);
    result = at::empty({values}, at::TensorOptions().dtype(at::kDouble).device(model_.device));
  }
  if (pipeline.size > 1 && values + wanted > 0)
    pipeline.communicator->broadcast(result, pipeline.size - 1).wait();
  return unpack(step, result.to(at::kCPU));
}

void StageRunner::copy_states(const StateCopies& copies) {
  for (const auto& states : states_) states->copy(copies);
}

}  // namespace teratron
