#include "teratron/optim/replica_agreement.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "teratron/base/hash.h"
#include "teratron/comm/ranks/rank_exchange.h"

namespace teratron {

namespace {

using nlohmann::json;

int64_t comparing_rank(const std::string& name, const HostGroup& group) {
  return static_cast<int64_t>(hash_text(name) % static_cast<uint64_t>(group.size()));
}

/// A tensor as its holders describe it.
struct Comparison {
  int64_t first = 0;  // of the group, that holds it
  HolderPlace first_place;
  std::string form;  // of the first holder
  std::set<int64_t> stages = {};
  struct Pipeline {
    HolderPlace first_place;
    std::set<int64_t> stages = {};
  };
  std::map<int64_t, Pipeline> pipelines = {};
};

std::string describe(const HolderPlace& place) {
  return fmt::format("rank {} (pipeline stage {})", place.rank, place.stage);
}

/// The tensors that this rank compares, by name.
class Comparisons {
 public:
  void add(int64_t from, const json& message) {
    const HolderPlace place{message.at(0), message.at(1), message.at(2)};
    for (const json& tensor : message.at(3)) add(from, place, {tensor.at(0), tensor.at(1)});
  }

  /// For each tensor of the message, in its order.
  json answer(int64_t to, const json& message) const {
    json answers = json::array();
    for (const json& tensor : message.at(3)) {
      const Comparison& found = all_.at(tensor.at(0).get<std::string>());
      answers.push_back({found.first == to, found.stages});
    }
    return answers;
  }

  std::string problem() const {
    if (!problem_.empty()) return problem_;
    for (const auto& [name, tensor] : all_) {
      for (const auto& [_, pipeline] : tensor.pipelines) {
        if (pipeline.stages == tensor.stages) continue;
        return fmt::format(
            "'{}' is shared by {} pipeline stages, but {} is in a pipeline that holds it in {}",
            without_index(name), tensor.stages.size(), describe(pipeline.first_place),
            pipeline.stages.size());
      }
    }
    return "";
  }

 private:
  static std::string without_index(const std::string& name) { return name.substr(name.find(' ') + 1); }

  void add(int64_t from, const HolderPlace& place, const HeldTensor& held) {
    const auto [found, is_new] = all_.try_emplace(held.name);
    Comparison& tensor = found->second;
    if (is_new) tensor = {.first = from, .first_place = place, .form = held.form};
    tensor.stages.insert(place.stage);
    tensor.pipelines.try_emplace(place.pipeline, Comparison::Pipeline{place})
        .first->second.stages.insert(place.stage);
    if (tensor.form == held.form || !problem_.empty()) return;
    problem_ = fmt::format("'{}' is {} on {}, but {} on {}", without_index(held.name), tensor.form,
                           describe(tensor.first_place), held.form, describe(place));
  }

  std::map<std::string, Comparison> all_;
  std::string problem_;
};

RankBytes dump(const std::map<int64_t, json>& messages) {
  RankBytes bytes;
  for (const auto& [rank, message] : messages) bytes[rank] = message.dump();
  return bytes;
}

std::map<int64_t, json> parse(const RankBytes& bytes) {
  std::map<int64_t, json> messages;
  for (const auto& [rank, text] : bytes) messages[rank] = json::parse(text);
  return messages;
}

}  // namespace

FoundHolders find_holders(HostGroup& group, const HolderPlace& place,
                          const std::vector<HeldTensor>& tensors) {
  std::map<int64_t, json> told;
  std::map<int64_t, std::vector<size_t>> asked;  // indices of tensors
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t to = comparing_rank(tensors[i].name, group);
    json& message =
        told.try_emplace(to, json{place.rank, place.stage, place.pipeline, json::array()}).first->second;
    message.at(3).push_back({tensors[i].name, tensors[i].form});
    asked[to].push_back(i);
  }
  const std::map<int64_t, json> received = parse(exchange_bytes(group, dump(told)));
  Comparisons comparisons;
  for (const auto& [from, message] : received) comparisons.add(from, message);
  std::map<int64_t, json> answers;
  for (const auto& [from, message] : received) answers[from] = comparisons.answer(from, message);

  FoundHolders found{.of = std::vector<Holders>(tensors.size()), .problem = comparisons.problem()};
  for (const auto& [from, answer] : parse(exchange_bytes(group, dump(answers)))) {
    const std::vector<size_t>& indices = asked.at(from);
    for (size_t k = 0; k < indices.size(); ++k)
      found.of[indices[k]] = {answer.at(k).at(0).get<bool>(), answer.at(k).at(1).get<std::set<int64_t>>()};
  }
  return found;
}

}  // namespace teratron
