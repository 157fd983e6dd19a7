#include "teratron/tokenizer/chat/chat_template.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/sha256.h"
#include "teratron/tokenizer/chat/built_in_templates.h"

namespace teratron {

using nlohmann::ordered_json;
using Messages = std::vector<ChatMessage>;

namespace {

constexpr size_t longest_file = size_t{1} << 24;

ordered_json json_of(const ChatMessage& message) {
  ordered_json object = {{"role", message.role}, {"content", message.content}};
  for (const auto& [name, value] : message.more.items()) object[name] = value;
  // transformers fills the standard name from older ones.
  for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = object.find(name);
    if (found == object.end() || found->is_null()) continue;
    const ordered_json reasoning = *found;
    object["reasoning_content"] = reasoning;
    if (!object.contains("thinking")) object["thinking"] = reasoning;
    break;
  }
  return object;
}

Chat with_messages(const Chat& chat, size_t count) {
  Chat part{.messages = {}, .tools = chat.tools, .variables = chat.variables};
  part.messages.assign(chat.messages.begin(), chat.messages.begin() + static_cast<ptrdiff_t>(count));
  return part;
}

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

// Ends between two characters.
size_t common_prefix(std::string_view a, std::string_view b) {
  auto size = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (size > 0 && size < a.size() && (static_cast<unsigned char>(a[size]) & 0xC0U) == 0x80U) --size;
  return size;
}

void add_part(std::vector<ChatPart>& parts, std::string_view text, bool is_answer) {
  if (!text.empty()) parts.push_back({std::string(text), is_answer});
}

// An answer and what ends it. White space behind that is not learned.
void add_answer(std::vector<ChatPart>& parts, std::string_view text, const ChatMessage& message) {
  const std::string_view learned = without_blanks_behind(text);
  const bool is_closed = !learned.ends_with(without_blanks_behind(message.content));
  add_part(parts, is_closed ? learned : text, true);
  if (is_closed) add_part(parts, text.substr(learned.size()), false);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view jinja, std::string name)
    : name_(std::move(name)), source_(jinja), template_(jinja, name_) {}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const BuiltInTemplate& each : built_in_templates()) all.emplace_back(each.name);
  return all;
}

ChatTemplate ChatTemplate::find(std::string_view name) {
  for (const BuiltInTemplate& each : built_in_templates()) {
    if (each.name != name) continue;
    ChatTemplate found(each.jinja, std::string(name));
    found.tokens_ = {{"bos_token", each.bos}, {"eos_token", each.eos}};
    found.end_ = each.end;
    found.pad_ = each.pad;
    return found;
  }
  if (name.find("{{") != name.npos || name.find("{%") != name.npos) return of_jinja(name, "--chat-template");
  const std::filesystem::path file = name;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(file, ignored))
    return of_jinja(read_text(file, {.kind = ExitCode::data, .max_bytes = longest_file}), file.string());
  throw config_error(
      {.what = fmt::format("'{}' is not a known chat template and not a file", printable(name, 60)),
       .where = "--chat-template",
       .fix = fmt::format("Give a file with a Jinja template, or one of {}", fmt::join(names(), ", "))});
}

ChatTemplate ChatTemplate::of_jinja(std::string_view jinja, std::string name, ordered_json tokens) {
  ChatTemplate made(jinja, std::move(name));
  made.has_own_tokens_ = !tokens.empty();
  made.tokens_ = std::move(tokens);
  return made;
}

std::string ChatTemplate::fingerprint() const {
  return fmt::format("{:02x}", fmt::join(sha256(source_ + tokens_.dump()), ""));
}

ChatTemplate ChatTemplate::with_marks(const ChatMarks& marks) const {
  ChatTemplate changed = *this;
  if (has_own_tokens_) return changed;
  if (!marks.bos.empty()) changed.tokens_["bos_token"] = marks.bos;
  if (!marks.eos.empty()) changed.tokens_["eos_token"] = marks.eos;
  return changed;
}

ChatMarks marks_of(const Tokenizer& tokenizer) {
  const auto text = [&](std::optional<int32_t> id) { return id ? tokenizer.decode({&*id, 1}) : ""; };
  return {.bos = text(tokenizer.special().bos), .eos = text(tokenizer.special().eos)};
}

jinja::Rendered ChatTemplate::render(const Chat& chat, bool asks) const {
  ordered_json values = tokens_.is_null() ? ordered_json::object() : tokens_;
  ordered_json messages = ordered_json::array();
  for (const ChatMessage& each : chat.messages) messages.push_back(json_of(each));
  values["messages"] = std::move(messages);
  values["tools"] = chat.tools;
  values["documents"] = nullptr;
  values["add_generation_prompt"] = asks;
  for (const auto& [name, value] : chat.variables.items()) values[name] = value;
  return template_.render(values);
}

std::string ChatTemplate::text(const Chat& chat, bool asks) const {
  return render(chat, asks).text;
}

std::vector<std::vector<ChatPart>> ChatTemplate::examples(const Chat& chat) const {
  const jinja::Rendered whole = render(chat, false);
  std::vector<ChatPart> parts;
  size_t at = 0;
  const auto add = [&](size_t begin, size_t end, const ChatMessage* answer) {
    add_part(parts, std::string_view(whole.text).substr(at, begin - at), false);
    const std::string_view text = std::string_view(whole.text).substr(begin, end - begin);
    answer == nullptr ? add_part(parts, text, true) : add_answer(parts, text, *answer);
    at = end;
  };
  if (template_.marks_generation()) {
    for (const auto& [begin, end] : whole.generated) add(begin, end, nullptr);
    add_part(parts, std::string_view(whole.text).substr(at), false);
    return {parts};
  }
  std::vector<std::vector<ChatPart>> separate;
  bool is_rewritten = false;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].role != "assistant") continue;
    separate.push_back(example(chat, i));
    std::string before, all;
    for (const ChatPart& each : separate.back()) all += each.text;
    before = separate.back().front().is_answer ? "" : separate.back().front().text;
    is_rewritten = is_rewritten || !whole.text.starts_with(all) || before.size() < at;
    if (!is_rewritten) add(before.size(), all.size(), &chat.messages[i]);
  }
  if (is_rewritten) return separate;
  add_part(parts, std::string_view(whole.text).substr(at), false);
  return {parts};
}

// The text that asks for an answer, and the answer.
std::vector<ChatPart> ChatTemplate::example(const Chat& chat, size_t answer) const {
  const std::string asked = text(with_messages(chat, answer), true);
  const std::string before = text(with_messages(chat, answer), false);
  const std::string answered = text(with_messages(chat, answer + 1), false);
  std::vector<ChatPart> parts;
  // Some write the beginning of a thought where they ask for it, and leave it out later.
  if (answered.starts_with(before)) {
    const size_t begin = std::max(common_prefix(asked, answered), before.size());
    add_part(parts, answered.substr(0, begin), false);
    add_answer(parts, std::string_view(answered).substr(begin), chat.messages[answer]);
    return parts;
  }
  // Others write something into the last question only: the answer follows what both texts have before it.
  constexpr size_t enough = 16;
  const std::string end = asked.substr(asked.size() - std::min(asked.size(), enough));
  const size_t found = answered.rfind(end);
  if (end.empty() || found == answered.npos) {
    throw data_error({.what = fmt::format(
                          "message {}: the chat template does not show where the answer begins", answer + 1),
                      .where = name_,
                      .fix = "Mark answers in it with {% generation %} ... {% endgeneration %}"});
  }
  add_part(parts, asked, false);
  add_answer(parts, std::string_view(answered).substr(found + end.size()), chat.messages[answer]);
  return parts;
}

std::vector<int32_t> ChatTemplate::encode(const Chat& chat, const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  tokenizer.encode(text(chat, true), ids);
  // Some tokenizers put a BOS before every text, and so do some templates.
  const std::optional<int32_t> bos = tokenizer.special().bos;
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
  return ids;
}

// What the template writes behind an answer.
std::string ChatTemplate::end_of_answer() const {
  if (!end_.empty()) return end_;
  const std::string answer = "ANSWER0123456789";
  try {
    const std::string written = text({.messages = {{"user", "Question"}, {"assistant", answer}}}, false);
    const size_t found = written.rfind(answer);
    if (found == written.npos) return "";
    const std::string end = written.substr(found + answer.size());
    return end.substr(std::min(end.find_first_not_of(" \t\r\n"), end.size()));
  } catch (const UserError&) {  // a template of other conversations
    return "";
  }
}

std::vector<int32_t> ChatTemplate::end_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ends;
  std::vector<int32_t> ids;
  try {
    tokenizer.encode(without_blanks_behind(end_of_answer()), ids);
  } catch (const UserError&) {  // a tokenizer of numbers
    return ends;
  }
  const std::optional<int32_t> bos = tokenizer.special().bos;
  if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());
  if (!ids.empty() && (ids.size() == 1 || tokenizer.is_special(ids.front()))) ends.push_back(ids.front());
  return ends;
}

namespace {

// "chat_template" is a text, or a list of named ones.
std::optional<std::string> jinja_of_config(const nlohmann::json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) return std::nullopt;
  for (const nlohmann::json& each : *found) {
    if (each.is_object() && each.value("name", nlohmann::json()) == "default" &&
        each.value("template", nlohmann::json()).is_string())
      return each.at("template").get<std::string>();
  }
  return std::nullopt;
}

// bos_token and others: texts, or objects with a content.
ordered_json tokens_of_config(const nlohmann::json& config) {
  ordered_json tokens = ordered_json::object();
  for (const auto& [name, value] : config.items()) {
    if (!name.ends_with("_token")) continue;
    if (value.is_string()) tokens[name] = value.get<std::string>();
    if (value.is_object() && value.contains("content") && value["content"].is_string())
      tokens[name] = value["content"].get<std::string>();
  }
  return tokens;
}

nlohmann::json members_of_file(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return nlohmann::json::object();
  nlohmann::json value = read_json(file, {.where = "", .kind = ExitCode::data, .max_bytes = longest_file});
  return value.is_object() ? value : nlohmann::json::object();
}

}  // namespace

std::optional<ChatTemplate> template_of_tokenizer(const std::filesystem::path& tokenizer) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  const nlohmann::json config = members_of_file(folder / "tokenizer_config.json");
  const fs::path file = folder / "chat_template.jinja";
  if (fs::exists(file)) {
    return ChatTemplate::of_jinja(read_text(file, {.kind = ExitCode::data, .max_bytes = longest_file}),
                                  "chat_template.jinja", tokens_of_config(config));
  }
  std::optional<std::string> jinja = jinja_of_config(config);
  const char* const name = jinja ? "tokenizer_config.json" : "chat_template.json";
  if (!jinja) jinja = jinja_of_config(members_of_file(folder / name));
  if (!jinja) return std::nullopt;
  return ChatTemplate::of_jinja(*jinja, name, tokens_of_config(config));
}

std::optional<ChatTemplate> choose_chat_template(const std::optional<std::string>& name,
                                                 const std::filesystem::path& tokenizer) {
  if (name) return ChatTemplate::find(*name);
  if (tokenizer.empty()) return std::nullopt;
  return template_of_tokenizer(tokenizer);
}

}  // namespace teratron
