#include "teratron/comm/collective_errors.h"

#include <algorithm>
#include <new>

#include <nlohmann/json.hpp>

#include "teratron/base/fault_point.h"

namespace teratron {

namespace {

using nlohmann::json;

json failure(const char* type, ExitCode code, std::vector<json> problems) {
  return {{"type", type}, {"code", static_cast<int>(code)}, {"problems", std::move(problems)}};
}

std::string encode(const json& error) {
  const std::vector<uint8_t> bytes = json::to_cbor(error);
  return "-" + std::string(bytes.begin(), bytes.end());
}

json failure_of(const UserError& error, const char* type) {
  std::vector<json> problems;
  for (const Problem& problem : error.problems())
    problems.push_back({problem.what, problem.where, problem.fix});
  return failure(type, error.exit_code(), std::move(problems));
}

constexpr size_t max_named = 16;  // ranks of one problem
constexpr size_t max_problems = 64;
constexpr size_t gathered_bytes = 1 << 20;  // of the errors of all ranks, where there are not too many
constexpr size_t fewest_bytes = 1 << 10;    // of the error of one

/// As many as stay within the bytes, and at least one; what is dropped is counted.
json shorten(const json& problems, size_t most_bytes) {
  const size_t most_of_text = most_bytes / 4;
  json kept = json::array();
  size_t bytes = 0;
  for (json problem : problems) {
    for (json& text : problem) {
      auto& whole = text.get_ref<std::string&>();
      if (whole.size() > most_of_text) whole = whole.substr(0, most_of_text) + "...";
      bytes += whole.size() + 16;
    }
    if (kept.empty() || bytes <= most_bytes) kept.push_back(std::move(problem));
  }
  if (kept.size() == problems.size()) return kept;
  auto& last = kept.back()[0].get_ref<std::string&>();
  last += fmt::format(", and {} other problems", problems.size() - kept.size());
  return kept;
}

/// Rank 0 holds the outcomes of all.
std::string bounded(const std::string& outcome, int64_t ranks) {
  const size_t most = std::max(gathered_bytes / static_cast<size_t>(ranks), fewest_bytes);
  if (outcome[0] == '+' || outcome.size() <= most) return outcome;
  json error = json::from_cbor(outcome.substr(1));
  error["problems"] = shorten(error["problems"], most);
  return encode(error);
}

std::string name_ranks(const std::vector<size_t>& ranks) {
  const size_t named = std::min(ranks.size(), max_named);
  const std::string list = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + named, ", "));
  if (named < ranks.size()) return fmt::format("ranks {} and {} others", list, ranks.size() - named);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list);
}

struct FoundProblem {
  json problem;
  std::vector<size_t> ranks;
};

/// Equal problems of several ranks are merged. Problems stay in their order, since the last one may hold the
/// fix of all.
void add_problem(const json& problem, size_t rank, std::vector<FoundProblem>& problems) {
  const auto known = std::ranges::find(problems, problem, &FoundProblem::problem);
  if (known != problems.end()) {
    known->ranks.push_back(rank);
  } else {
    problems.push_back({problem, {rank}});
  }
}

[[noreturn]] void rethrow(const std::vector<std::string>& outcomes) {
  std::vector<FoundProblem> problems;
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
      for (const json& problem : outcome["problems"]) add_problem(problem, rank, problems);
    }
    if (type == "damaged" && outcome["type"] == "user") type = "user";
  }
  std::vector<Problem> list;
  for (const auto& [problem, ranks] : problems) {
    if (list.size() == max_problems) {
      list.back().what += fmt::format(", and {} other problems", problems.size() - max_problems);
      break;
    }
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
    outcome = failure_of(error, "damaged");
  } catch (const UserError& error) {
    outcome = failure_of(error, "user");
  } catch (const Fault& error) {
    outcome = failure("fault", error.exit_code(), {{error.what(), "", ""}});
  } catch (const std::bad_alloc&) {
    outcome = failure("fault", ExitCode::out_of_memory, {{"out of host memory", "", ""}});
  } catch (const std::exception& error) {
    outcome = failure("fault", ExitCode::retryable, {{error.what(), "", ""}});
  }
  return encode(outcome);
}

std::string combine_outcomes(const std::string& mine, HostGroup& group, const Combine& combine) {
  std::vector<std::string> outcomes = group.gather_bytes(bounded(mine, group.size()));
  const auto agree = [&] {
    const bool failed = std::any_of(outcomes.begin(), outcomes.end(),
                                    [](const std::string& outcome) { return outcome[0] == '-'; });
    if (failed) rethrow(outcomes);
    for (std::string& outcome : outcomes) outcome.erase(0, 1);
    return combine(outcomes);
  };
  return broadcast_outcome(group.rank() == 0 ? capture(agree) : "", group);
}

std::string run_on_all_ranks(HostGroup& group, const std::function<std::string()>& work,
                             const Combine& combine) {
  return combine_outcomes(capture(work), group, combine);
}

void run_on_all_ranks(HostGroup& group, const std::function<void()>& work) {
  const auto without_result = [&work] {
    work();
    return std::string();
  };
  run_on_all_ranks(group, without_result, [](const std::vector<std::string>&) { return ""; });
}

std::string broadcast_outcome(const std::string& mine, HostGroup& group) {
  const std::string outcome = group.broadcast_bytes(mine);
  if (outcome[0] == '-') rethrow({outcome});
  return outcome.substr(1);
}

std::string run_on_rank_0(HostGroup& group, const std::function<std::string()>& work) {
  return broadcast_outcome(group.rank() == 0 ? capture(work) : "", group);
}

void JointSteps::run(const std::function<void()>& step) {
  if (outcome_ != "+") return;
  outcome_ = capture([&] {
    fault_point(fault_point_);
    step();
    return "";
  });
}

RankBytes JointSteps::exchange(const RankBytes& parts) {
  return exchange_bytes(group_, outcome_ == "+" ? parts : RankBytes());
}

void JointSteps::agree() {
  agree("", [](const std::vector<std::string>&) { return ""; });
}

std::string JointSteps::agree(const std::string& result, const Combine& combine) {
  return combine_outcomes(outcome_ == "+" ? outcome_ + result : outcome_, group_, combine);
}

}  // namespace teratron
