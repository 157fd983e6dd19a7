#include "teratron/generate/engine.h"

#include <algorithm>

#include "teratron/base/fault_point.h"
#include "teratron/base/log.h"
#include "teratron/generate/engine_state.h"

namespace teratron {

namespace {

EngineSettings with_defaults(EngineSettings settings, const LanguageModel& model) {
  const bool gpu = model.device.is_cuda();
  if (settings.max_rows == 0) settings.max_rows = gpu ? 64 : 16;
  if (settings.prompt_tokens == 0) settings.prompt_tokens = gpu ? 4096 : 512;
  if (settings.longest == 0) settings.longest = model.max_positions;
  settings.longest = std::min(settings.longest, model.max_positions);
  if (settings.longest_source == 0) settings.longest_source = model.max_positions;
  return settings;
}

}  // namespace

Engine::Engine(const LanguageModel& model, const EngineSettings& settings, HostGroup& ranks)
    : model_(model),
      ranks_(ranks),
      settings_(with_defaults(settings, model)),
      rules_(settings.newlines, settings.tokenizer, model.vocabulary) {
  const bool widens = settings.max_rows == 0;
  const int64_t rows = widens ? std::max(most_request_rows, settings_.max_rows) : settings_.max_rows;
  const int64_t most_pages = widens ? fitting_pages(cache_of(rows), ranks) : 0;
  allocate(settings_.max_rows);
  limits_ = {.vocabulary = model.vocabulary,
             .max_positions = model.max_positions,
             .max_rows = rows,
             .max_tokens = (std::max(most_pages, pool_->pages()) - 1) * settings_.page_size,
             .has_tokenizer = settings_.tokenizer != nullptr,
             .has_source = model.source.has_value(),
             .images = model.text.images,
             .more_rows = "Raise --inference-max-requests"};
}

Engine::~Engine() = default;

CacheRequest Engine::cache_of(int64_t rows) const {
  const int64_t longest_source = model_.source ? std::min(settings_.longest_source, model_.max_positions) : 0;
  const StateNeeds needs = state_needs(model_);
  return {.bytes_per_page = std::max<int64_t>(needs.per_token, 1) * settings_.page_size,
          .bytes_of_slots = needs.per_sequence * (rows + 1),
          .page_size = settings_.page_size,
          .rows = rows,
          .longest = settings_.longest + longest_source,
          .cache_bytes = settings_.cache_bytes,
          .device = model_.device};
}

void Engine::allocate(int64_t rows) {
  runner_.reset();
  const int64_t pages = choose_pages(cache_of(rows), ranks_);
  pool_.emplace(pages);
  slots_.emplace(rows + 1);
  runner_ = std::make_unique<StageRunner>(
      model_, StageRunner::Options{
                  .capacity = {.page_size = settings_.page_size, .pages = pages, .slots = slots_->pages()},
                  .max_rows = rows,
                  .graphs = settings_.graphs,
                  .adapters = settings_.adapters});
  allocated_rows_ = rows;
}

RequestNeeds Engine::needs_of(const GenerationRequest& request) const {
  return teratron::needs_of(request, model_.max_positions, settings_.page_size);
}

std::vector<Problem> Engine::problems_of(const GenerationRequest& request) const {
  std::vector<Problem> problems = request_problems(request, limits_);
  if (problems.empty()) problems = rules_.form_problems(request.form);
  if (!problems.empty()) return problems;
  const int64_t tokens = needs_of(request).pages * settings_.page_size;
  if (tokens > limits_.max_tokens) {
    problems.push_back(
        {.what = fmt::format("the request needs memory for {} tokens, and there is memory for {}", tokens,
                             limits_.max_tokens),
         .where = "max_new_tokens",
         .fix = "Ask for fewer tokens or answers, or raise --inference-dynamic-batching-buffer-size-gb"});
  }
  return problems;
}

int64_t Engine::submit(GenerationRequest request) {
  std::vector<Problem> problems = problems_of(request);
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
  request.max_new_tokens = new_tokens_of(request, model_.max_positions);
  waiting_.emplace_back(next_id_, std::move(request));
  return next_id_++;
}

bool Engine::has_room(const RequestNeeds& needs) {
  if (active_.empty() && (needs.rows > allocated_rows_ || needs.pages > pool_->pages() - 1)) {
    allocate(std::max(needs.rows, allocated_rows_));
    if (needs.pages > pool_->pages() - 1) {
      throw Fault(fmt::format("memory for the states of {} tokens, which was free at the start, is not",
                              needs.pages * settings_.page_size),
                  ExitCode::out_of_memory);
    }
  }
  // A wide request is alone: others wait, as it waited for those before it.
  const bool may_join = active_.empty() || rows_ + needs.rows <= settings_.max_rows;
  return may_join && needs.pages <= pool_->free_pages();
}

void Engine::admit() {
  while (!waiting_.empty()) {
    const RequestNeeds needs = needs_of(waiting_.front().second);
    if (!has_room(needs)) return;
    auto [id, request] = std::move(waiting_.front());
    waiting_.pop_front();
    start(id, std::move(request), needs);
  }
}

void Engine::start(int64_t id, GenerationRequest given, const RequestNeeds& needs) {
  auto active = std::make_unique<Active>();
  active->id = id;
  active->request = std::move(given);
  active->rows = needs.rows;
  rows_ += needs.rows;
  const GenerationRequest& request = active->request;
  const bool beams = active->has_beams();
  active->source_pages = pool_->take(needs.source_pages);
  const int64_t own_pages = needs.pages - needs.source_pages;
  if (beams) {
    active->beam_pages = BeamPages(pool_->take(own_pages), slots_->take(needs.rows), settings_.page_size);
    active->hypotheses.emplace(request.beams.width, request.beams.length_penalty);
    active->scores = {0.0};
  }
  for (int64_t i = 0; i < (beams ? 1 : request.choices); ++i) {
    active->sequences.push_back({.tokens = request.prompt,
                                 .pages = beams ? active->beam_pages.first(active->prompt())
                                                : pool_->take(own_pages / request.choices),
                                 .slot = beams ? active->beam_pages.slots().front() : slots_->take(1).front(),
                                 .top_p = request.sampling.top_p,
                                 .progress = rules_.begin(request)});
  }
  active_.push_back(std::move(active));
}

void Engine::add_row(Plan& plan, Active& active, Sequence& sequence, int64_t tokens) {
  StepInput& step = plan.step;
  const auto first = static_cast<int64_t>(step.tokens.size());
  Plan::Entry entry{&active, &sequence};
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t position = sequence.cached + i;
    step.tokens.push_back(sequence.tokens[position]);
    step.positions.push_back(model_.text.row_of(position, active.longest(), model_.max_positions));
    if (!active.request.logprobs || active.has_beams() || position + 1 >= active.prompt()) continue;
    if (position + 1 < active.request.logprobs_from) continue;
    step.targets.push_back({first + i, active.request.prompt[position + 1]});
    step.top = std::max(step.top, top_of(active.request));
    entry.targets += 1;
  }
  StepRow& row =
      step.rows.emplace_back(StepRow{.first_token = first,
                                     .tokens = tokens,
                                     .length = sequence.cached + tokens,
                                     .pages = &sequence.pages,
                                     .slot = sequence.slot,
                                     .source_pages = &active.source_pages,
                                     .source_length = static_cast<int64_t>(active.request.source.size()),
                                     .adapter = active.request.adapter,
                                     .sums = active.request.embeds});
  if (active.request.images) active.add_images(sequence, model_.text.images->token, row);
  const bool is_first = &sequence == active.sequences.data();
  if (is_first && sequence.cached == 0 && model_.source) row.source_tokens = &active.request.source;
  if (tokens == active.left_to_run(sequence) && active.request.max_new_tokens > 0) {
    const auto index = static_cast<size_t>(&sequence - active.sequences.data());
    step.choices.push_back(
        rules_.choice(active.request, {index, sequence.tokens, sequence.progress, sequence.top_p}));
    step.choices.back().token = first + tokens - 1;
    step.logprobs = step.logprobs || active.request.logprobs;
    step.top = std::max(step.top, top_of(active.request));
    entry.chooses = true;
  }
  plan.entries.push_back(entry);
}

// Unless a stop ends a sequence, the next step has the same rows: no prompt is read, none can join, none is
// complete, and how a token is chosen does not depend on the one before.
bool Engine::continues(const Plan& plan) const {
  if (!waiting_.empty()) return false;
  return std::all_of(plan.entries.begin(), plan.entries.end(), [&](const Plan::Entry& entry) {
    const Active& active = *entry.active;
    const int64_t new_tokens = entry.sequence->length() - active.prompt();
    return entry.chooses && !active.has_beams() && !TokenRules::depends_on_tokens(active.request) &&
           entry.sequence->length() - entry.sequence->cached == 1 &&
           new_tokens + 1 < active.request.max_new_tokens;
  });
}

Engine::Plan Engine::plan_step() {
  Plan plan;
  const auto adapters = static_cast<int64_t>(settings_.adapters.size());
  for (int64_t adapter = 0; adapter <= adapters; ++adapter) {
    for (const auto& active : active_) {
      if (active->request.adapter != adapter) continue;
      for (Sequence& sequence : active->sequences) {
        if (!sequence.finish_reason && active->left_to_run(sequence) == 1)
          add_row(plan, *active, sequence, 1);
      }
    }
  }
  int64_t room = settings_.prompt_tokens;
  for (const auto& active : active_) {
    for (Sequence& sequence : active->sequences) {
      const int64_t left = active->left_to_run(sequence);
      if (sequence.finish_reason || left <= 1 || room < 2) continue;
      const int64_t tokens = std::min(left, room);
      add_row(plan, *active, sequence, tokens);
      room -= tokens;
    }
  }
  // Most probable tokens, of any target, come with those of all choices, which need log probabilities then.
  plan.step.logprobs = plan.step.logprobs || plan.step.top > 0;
  return plan;
}

bool Engine::step() {
  admit();
  if (active_.empty()) return false;
  fault_point("generate.step");
  Plan plan = plan_step();
  plan.step.continues = continues(plan);
  apply(plan, runner_->run(plan.step));
  retire_finished();
  return true;
}

void Engine::apply(const Plan& plan, const StepOutput& output) {
  size_t choice = 0, target = 0, sum = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const auto& [active, sequence, targets, chooses] = plan.entries[i];
    sequence->cached += plan.step.rows[i].tokens;
    for (size_t t = 0; t < targets; ++t)
      sequence->add_logprobs(output.targets[target++], active->request.top_logprobs);
    if (chooses && !active->has_beams()) apply_token(*active, *sequence, output.choices[choice]);
    if (chooses) ++choice;
    if (active->request.embeds) sequence->add_states(output.sums[sum++]);
    const bool scored = active->request.max_new_tokens == 0 && active->left_to_run(*sequence) <= 0;
    if (scored) sequence->finish_reason = "length";
  }
  // The beams of a search are neighbors.
  choice = 0;
  for (size_t i = 0; i < plan.entries.size();) {
    Active& active = *plan.entries[i].active;
    std::vector<std::vector<StepOutput::Token>> best;
    do {
      if (plan.entries[i].chooses) best.push_back(output.choices[choice++]);
      ++i;
    } while (i < plan.entries.size() && plan.entries[i].active == &active);
    if (active.has_beams() && !best.empty()) apply_beams(active, best);
  }
}

void Engine::apply_token(Active& active, Sequence& sequence, const std::vector<StepOutput::Token>& tokens) {
  const GenerationRequest& request = active.request;
  const int32_t before = sequence.tokens.back(), token = static_cast<int32_t>(tokens.front().id);
  sequence.tokens.push_back(token);
  sequence.top_p = decayed_top_p(sequence.top_p, request.sampling);
  if (request.logprobs) sequence.add_logprobs(tokens, request.top_logprobs);
  generated_ += 1;
  if (rules_.is_stop(request.stop, before, token, sequence.progress)) {
    sequence.finish_reason = "stop";
  } else if (sequence.length() - active.prompt() == request.max_new_tokens) {
    sequence.finish_reason = "length";
  }
  if (!request.on_token) return;
  GeneratedToken generated{.id = token, .logprob = tokens.front().logprob, .top = {}};
  if (!sequence.top.empty()) generated.top = sequence.top.back();
  if (sequence.finish_reason) generated.finish_reason = sequence.finish_reason;
  request.on_token(&sequence - active.sequences.data(), generated);
}

void Engine::apply_beams(Active& active, const std::vector<std::vector<StepOutput::Token>>& best) {
  const int64_t width = active.request.beams.width;
  std::vector<BeamCandidate> candidates;
  for (size_t beam = 0; beam < best.size(); ++beam) {
    for (const StepOutput::Token& token : best[beam]) {
      candidates.push_back(
          {active.scores[beam] + token.logprob, static_cast<int64_t>(beam), static_cast<int32_t>(token.id)});
    }
  }
  keep_best(candidates, 2 * width);
  const double top = candidates.front().score;
  const int64_t length = active.sequences.front().length() - active.prompt() + 1;
  const std::vector<BeamCandidate> next = next_beams(
      candidates, width, length,
      [&](const BeamCandidate& candidate) { return active.ended(candidate, rules_); }, *active.hypotheses);
  generated_ += 1;
  if (active.hypotheses->is_done(top, length) || next.empty()) {
    active.done = true;
    return;
  }
  std::vector<BeamPages::Beam> beams;
  for (const Sequence& sequence : active.sequences) beams.push_back({sequence.pages, sequence.slot});
  std::vector<int64_t> parents;
  for (const BeamCandidate& candidate : next) parents.push_back(candidate.beam);
  BeamPages::Fork fork = active.beam_pages.fork(beams, parents, active.sequences.front().cached);
  runner_->copy_states(fork.copies);
  std::vector<Sequence> sequences;
  active.scores.clear();
  for (size_t i = 0; i < next.size(); ++i) {
    Sequence& sequence = sequences.emplace_back(active.sequences[next[i].beam]);
    sequence.tokens.push_back(next[i].token);
    if (sequence.progress.text) sequence.progress.text->add(next[i].token);
    sequence.pages = std::move(fork.beams[i].table);
    sequence.slot = fork.beams[i].slot;
    active.scores.push_back(next[i].score);
  }
  active.sequences = std::move(sequences);
  if (length < active.request.max_new_tokens) return;
  for (size_t i = 0; i < next.size(); ++i)
    active.hypotheses->add(active.new_tokens(active.sequences[i]), next[i].score, length, "length");
  active.done = true;
}

void Engine::finish(Active& active, const char* reason) {
  GenerationResult result{.id = active.id, .choices = {}};
  if (active.has_beams()) {
    for (BeamHypotheses::Hypothesis& best : active.hypotheses->sorted()) {
      if (static_cast<int64_t>(result.choices.size()) == active.request.choices) break;
      result.choices.push_back({.tokens = std::move(best.tokens),
                                .finish_reason = best.finish_reason,
                                .logprobs = {},
                                .top = {},
                                .score = best.score});
    }
    for (const int32_t page : active.beam_pages.all()) pool_->give_back(page);
    for (const int32_t slot : active.beam_pages.slots()) slots_->give_back(slot);
  }
  for (Sequence& sequence : active.sequences) {
    if (active.has_beams()) break;
    result.choices.push_back({.tokens = active.new_tokens(sequence),
                              .finish_reason = sequence.finish_reason ? sequence.finish_reason : reason,
                              .logprobs = std::move(sequence.logprobs),
                              .top = std::move(sequence.top),
                              .embedding = sequence.mean_states(active.prompt())});
    for (const int32_t page : sequence.pages) pool_->give_back(page);
    slots_->give_back(sequence.slot);
  }
  for (const int32_t page : active.source_pages) pool_->give_back(page);
  rows_ -= active.rows;
  results_.push_back(std::move(result));
}

void Engine::retire_finished() {
  const auto is_finished = [](const Active& active) {
    if (active.has_beams()) return active.done;
    return std::all_of(active.sequences.begin(), active.sequences.end(),
                       [](const Sequence& sequence) { return sequence.finish_reason != nullptr; });
  };
  for (const auto& active : active_) {
    if (is_finished(*active)) finish(*active, "");
  }
  std::erase_if(active_, [&](const auto& active) { return is_finished(*active); });
}

void Engine::cancel(int64_t id) {
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w.first == id; });
  if (waiting != waiting_.end()) {
    GenerationResult result{.id = id, .choices = {}};
    result.choices.resize(waiting->second.choices,
                          {.tokens = {}, .finish_reason = "cancelled", .logprobs = {}, .top = {}});
    results_.push_back(std::move(result));
    waiting_.erase(waiting);
    return;
  }
  const auto active =
      std::find_if(active_.begin(), active_.end(), [&](const auto& a) { return a->id == id; });
  if (active == active_.end()) return;
  finish(**active, "cancelled");
  active_.erase(active);
}

EngineLoad Engine::load() const {
  return {.waiting = static_cast<int64_t>(waiting_.size()),
          .rows = rows_,
          .used_pages = pool_->pages() - 1 - pool_->free_pages(),
          .pages = pool_->pages() - 1};
}

std::vector<GenerationResult> Engine::take_results() {
  return std::exchange(results_, {});
}

}  // namespace teratron
