#include "teratron/ckpt/collective_errors.h"

#include <map>
#include <new>

#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/ckpt/checkpoint.h"

namespace teratron {

namespace {

using nlohmann::json;

json failure(const char* type, ExitCode code, std::vector<json> problems) {
  return {{"type", type}, {"code", static_cast<int>(code)}, {"problems", std::move(problems)}};
}

json encode(const UserError& error, const char* type) {
  std::vector<json> problems;
  for (const Problem& problem : error.problems())
    problems.push_back({problem.what, problem.where, problem.fix});
  return failure(type, error.exit_code(), std::move(problems));
}

std::string name_ranks(const std::vector<size_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

[[noreturn]] void rethrow(const std::vector<std::string>& outcomes) {
  std::map<json, std::vector<size_t>> problems;  // equal problems of several ranks are merged
  std::string type;
  ExitCode code = ExitCode::retryable;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank][0] == '+') continue;
    const json outcome = json::from_cbor(outcomes[rank].substr(1));
    // A user error outranks a fault: a retry cannot help.
    if (type.empty() || (type == "fault" && outcome["type"] != "fault")) {
      type = outcome["type"];
      code = static_cast<ExitCode>(outcome["code"].get<int>());
      problems.clear();
    }
    if (outcome["type"] != "fault" || type == "fault") {
      for (const json& problem : outcome["problems"]) problems[problem].push_back(rank);
    }
    if (type == "damaged" && outcome["type"] == "user") type = "user";
  }
  std::vector<Problem> list;
  for (const auto& [problem, ranks] : problems) {
    std::string what = problem[0];
    if (ranks.size() < outcomes.size()) what = fmt::format("{} ({})", what, name_ranks(ranks));
    list.push_back({std::move(what), problem[1], problem[2]});
  }
  if (type == "damaged") throw CorruptCheckpoint(std::move(list));
  if (type == "user") throw UserError(code, std::move(list));
  throw Fault(list.front().what, code);
}

}  // namespace

// "+" and the result, or "-" and the error as CBOR, since its texts may hold any bytes.
std::string capture(const std::function<std::string()>& work) {
  json outcome;
  try {
    return "+" + work();
  } catch (const CorruptCheckpoint& error) {
    outcome = encode(error, "damaged");
  } catch (const UserError& error) {
    outcome = encode(error, "user");
  } catch (const Fault& error) {
    outcome = failure("fault", error.exit_code(), {{error.what(), "", ""}});
  } catch (const std::bad_alloc&) {
    outcome = failure("fault", ExitCode::out_of_memory, {{"out of host memory", "", ""}});
  } catch (const std::exception& error) {
    outcome = failure("fault", ExitCode::retryable, {{error.what(), "", ""}});
  }
  const std::vector<uint8_t> bytes = json::to_cbor(outcome);
  return "-" + std::string(bytes.begin(), bytes.end());
}

std::vector<std::string> gather_outcomes(const std::string& mine, HostGroup& group) {
  std::vector<std::string> outcomes = group.all_gather_bytes(mine);
  for (const std::string& outcome : outcomes) {
    if (outcome[0] == '-') rethrow(outcomes);
  }
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

std::vector<std::string> run_on_all_ranks(HostGroup& group, const std::function<std::string()>& work) {
  return gather_outcomes(capture(work), group);
}

std::string broadcast_outcome(const std::string& mine, HostGroup& group) {
  const std::string outcome = group.all_gather_bytes(group.rank() == 0 ? mine : "").at(0);
  if (outcome[0] == '-') rethrow({outcome});
  return outcome.substr(1);
}

std::string run_on_rank_0(HostGroup& group, const std::function<std::string()>& work) {
  return broadcast_outcome(group.rank() == 0 ? capture(work) : "", group);
}

}  // namespace teratron
