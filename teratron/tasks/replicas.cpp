#include "teratron/tasks/replicas.h"

#include <map>

#include <nlohmann/json.hpp>

#include "teratron/generate/ranked_engine.h"
#include "teratron/generate/texts.h"

namespace teratron {

namespace {

RequestOutcome outcome_of(const GenerationRequest& request, const GenerationResult& result,
                          const Tokenizer* tokenizer) {
  RequestOutcome outcome;
  const GeneratedChoice& choice = result.choices.front();
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  outcome.tokens = request.logprobs ? std::max<int64_t>(0, prompt - request.logprobs_from) : 0;
  for (int64_t i = 0; i < outcome.tokens; ++i) {
    outcome.log_likelihood += choice.logprobs.at(i);
    if (request.top_logprobs == 0) continue;
    outcome.most_probable =
        outcome.most_probable && choice.top.at(i).front().id == request.prompt.at(request.logprobs_from + i);
  }
  if (request.max_new_tokens > 0 && tokenizer) outcome.text = answer_text(*tokenizer, request, choice);
  return outcome;
}

// The share of this replica, on its first rank.
class Share {
 public:
  Share(RankedEngine& engine, const RequestList& requests, int64_t replica, int64_t replicas)
      : engine_(engine), requests_(requests), next_(replica), stride_(replicas) {}

  std::vector<RequestOutcome> run(const Tokenizer* tokenizer,
                                  const std::function<void(int64_t)>& on_progress) {
    // Far fewer than there may be requests: each holds its tokens.
    const auto ahead = static_cast<size_t>(2 * engine_.local().limits().max_rows);
    while (true) {
      while (next_ < requests_.size && pending_.size() < ahead) submit();
      if (!engine_.step()) break;
      for (const GenerationResult& result : engine_.take_results()) finish(result, tokenizer);
      if (on_progress) on_progress(finished_);
    }
    return std::move(outcomes_);
  }

 private:
  struct Pending {
    size_t place;
    GenerationRequest request;
  };

  void submit() {
    GenerationRequest request = requests_.get(next_);
    const int64_t id = engine_.submit(request);
    pending_.emplace(id, Pending{outcomes_.size(), std::move(request)});
    outcomes_.emplace_back();
    next_ += stride_;
  }

  void finish(const GenerationResult& result, const Tokenizer* tokenizer) {
    const auto found = pending_.find(result.id);
    outcomes_[found->second.place] = outcome_of(found->second.request, result, tokenizer);
    pending_.erase(found);
    finished_ += 1;
  }

  RankedEngine& engine_;
  const RequestList& requests_;
  int64_t next_, stride_, finished_ = 0;
  std::map<int64_t, Pending> pending_;
  std::vector<RequestOutcome> outcomes_;
};

// Doubles as bytes, since they must be exact.
std::string serialize(const std::vector<RequestOutcome>& outcomes) {
  nlohmann::json list = nlohmann::json::array();
  for (const RequestOutcome& o : outcomes)
    list.push_back({o.log_likelihood, o.tokens, o.most_probable,
                    nlohmann::json::binary({o.text.begin(), o.text.end()})});
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

std::vector<RequestOutcome> deserialize(const std::string& bytes) {
  std::vector<RequestOutcome> outcomes;
  for (const nlohmann::json& o : nlohmann::json::from_cbor(bytes)) {
    const nlohmann::json::binary_t& text = o[3].get_binary();
    outcomes.push_back({o[0], o[1], o[2], {text.begin(), text.end()}});
  }
  return outcomes;
}

}  // namespace

std::vector<RequestOutcome> answer_requests(const ReplicatedModel& model, const RequestList& requests,
                                            const std::function<void(int64_t)>& on_progress) {
  const ModelRanks ranks = model.ranks();
  const Group& replicas = ranks.replicas;
  std::string mine;
  {
    Engine local(model.model, model.settings, *ranks.all.communicator);
    RankedEngine engine(local, *ranks.all.communicator);
    if (ranks.all.rank == 0) {
      mine = serialize(
          Share(engine, requests, replicas.rank, replicas.size).run(model.settings.tokenizer, on_progress));
      engine.stop();
    } else {
      engine.follow();
    }
  }
  std::vector<RequestOutcome> all(requests.size);
  const std::vector<std::string> shares = model.mesh.world().communicator->all_gather_bytes(mine);
  const std::string replica = std::to_string(mine.empty() ? -1 : replicas.rank);
  const std::vector<std::string> owners = model.mesh.world().communicator->all_gather_bytes(replica);
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    int64_t i = std::stoll(owners[rank]);
    if (i < 0) continue;
    for (RequestOutcome& outcome : deserialize(shares[rank])) {
      all.at(i) = std::move(outcome);
      i += replicas.size;
    }
  }
  return all;
}

}  // namespace teratron
