#include "teratron/generate/json/request_fields.h"

#include <algorithm>
#include <limits>

#include "teratron/base/config/spelling.h"

namespace teratron {

using nlohmann::json;

bool RequestFields::has(const char* name) const {
  const auto found = value_.find(name);
  return found != value_.end() && !found->is_null();
}

const json* RequestFields::find(const char* name) {
  known_.emplace_back(name);
  return has(name) ? &value_[name] : nullptr;
}

void RequestFields::wrong_type(const char* name, const char* type, const json& value) {
  if (is_full()) return;
  const std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
  problem(name, fmt::format("{} is not {}: {}", name, type, printable(shown, 60)),
          fmt::format("Use {}", type));
}

void RequestFields::integer(const char* name, const std::function<void(const int64_t&)>& use) {
  read<int64_t>(name, "an integer", is_int64, use);
}

void RequestFields::real(const char* name, double& target) {
  read<double>(
      name, "a number", [](const json& v) { return v.is_number(); }, [&](const double& v) { target = v; });
}

void RequestFields::flag(const char* name, bool& target) {
  read<bool>(
      name, "true or false", [](const json& v) { return v.is_boolean(); },
      [&](const bool& v) { target = v; });
}

void RequestFields::text(const char* name, const std::function<void(const std::string&)>& use) {
  read<std::string>(name, "a text", [](const json& v) { return v.is_string(); }, use);
}

void RequestFields::texts(const char* name, std::vector<std::string>& target) {
  read<json>(name, "a text or a list of texts", are_texts, [&](const json& v) {
    target = v.is_string() ? std::vector<std::string>{v} : v.get<std::vector<std::string>>();
  });
}

void RequestFields::ignore_flag(const char* name) {
  bool ignored = false;
  flag(name, ignored);
}

void RequestFields::ignore_text(const char* name) {
  text(name, [](const std::string&) {});
}

void RequestFields::ignore_object(const char* name) {
  read<json>(name, "an object", [](const json& v) { return v.is_object(); }, [](const json&) {});
}

void RequestFields::unsupported(const char* name, const std::vector<json>& neutral, std::string fix) {
  const json* const found = find(name);
  if (!found || std::find(neutral.begin(), neutral.end(), *found) != neutral.end()) return;
  problem(name, fmt::format("{} is not supported", name), std::move(fix));
}

void RequestFields::problem(const std::string& name, std::string what, std::string fix) {
  if (is_full()) return;
  problems_.push_back(
      {.what = std::move(what), .where = where_.empty() ? name : where_, .fix = std::move(fix)});
}

void RequestFields::check_unknown() {
  for (const auto& [name, value] : value_.items()) {
    if (is_full()) break;
    if (value.is_null() || std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string nearest = nearest_spelling(name, known_);
    problem(printable(name, 60), fmt::format("unknown field '{}'", printable(name, 60)),
            nearest.empty() ? "Leave it out" : fmt::format("Did you mean {}?", nearest));
  }
}

void RequestFields::add_problems_of(RequestFields part) {
  part.check_unknown();
  for (Problem& each : part.problems_) problem(each.where, std::move(each.what), std::move(each.fix));
}

void RequestFields::finish() {
  check_unknown();
  if (!problems_.empty()) throw UserError(ExitCode::data, std::move(problems_));
}

bool RequestFields::is_int64(const json& v) {
  return v.is_number_integer() &&
         (!v.is_number_unsigned() || v.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
}

bool RequestFields::is_id(const json& v) {
  return is_int64(v) && v.get<int64_t>() >= 0 && v.get<int64_t>() <= std::numeric_limits<int32_t>::max();
}

bool RequestFields::are_texts(const json& v) {
  return v.is_string() ||
         (v.is_array() && std::all_of(v.begin(), v.end(), [](const json& t) { return t.is_string(); }));
}

bool RequestFields::are_ids(const json& v) {
  return v.is_array() && std::all_of(v.begin(), v.end(), is_id);
}

}  // namespace teratron
