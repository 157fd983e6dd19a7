#include "teratron/tokenizer/chat/chat_template.h"

#include <algorithm>

#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/json.h"
#include "teratron/base/sha256.h"

namespace teratron {

using Messages = std::vector<ChatMessage>;

struct ChatTemplate::Format {
  std::string name;
  ChatMarks marks;
  std::string end;  // of an answer; empty: marks.eos
  std::vector<ChatPart> (*write)(const Messages& messages, const ChatMarks& marks, bool asks);
  std::string pad = {};  // its token; empty: the tokenizer's
};

namespace {

using Parts = std::vector<ChatPart>;

UserError role_error(size_t index, const std::string& what, const std::string& fix) {
  return data_error({.what = what, .where = fmt::format("messages[{}]", index), .fix = fix});
}

// As Jinja's trim and Python's strip() of ASCII blanks.
std::string trimmed(const std::string& text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(blanks);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

void check_roles(const Messages& messages, const std::vector<std::string>& known) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (std::find(known.begin(), known.end(), messages[i].role) != known.end()) continue;
    throw role_error(i, fmt::format("the chat template has no role '{}'", printable(messages[i].role, 40)),
                     fmt::format("Use {}", fmt::join(known, ", ")));
  }
}

// user, assistant, user, ... from message `first` on.
void check_turns(const Messages& messages, size_t first) {
  if (messages.size() == first) throw role_error(first, "there is no message of a user", "Add one");
  for (size_t i = first; i < messages.size(); ++i) {
    const char* const expected = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role == expected) continue;
    throw role_error(
        i, fmt::format("the role is '{}', but '{}' is next", printable(messages[i].role, 40), expected),
        "Let user and assistant take turns, beginning with user");
  }
}

bool begins_with_system(const Messages& messages) {
  return !messages.empty() && messages.front().role == "system";
}

bool is_assistant(const ChatMessage& message) {
  return message.role == "assistant";
}

Parts write_chatml(const Messages& messages, const ChatMarks&, bool asks) {
  Parts parts;
  for (const ChatMessage& message : messages) {
    parts.push_back({"<|im_start|>" + message.role + "\n"});
    parts.push_back({message.content + "<|im_end|>", is_assistant(message)});
    parts.push_back({"\n"});
  }
  if (asks) parts.push_back({"<|im_start|>assistant\n"});
  return parts;
}

Parts write_llama2(const Messages& messages, const ChatMarks& marks, bool) {
  check_roles(messages, {"system", "user", "assistant"});
  const size_t first = begins_with_system(messages) ? 1 : 0;
  check_turns(messages, first);
  Parts parts;
  for (size_t i = first; i < messages.size(); ++i) {
    std::string content = messages[i].content;
    if (i == first && first == 1) content = "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n" + content;
    if (is_assistant(messages[i])) {
      parts.push_back({" " + trimmed(content) + " " + marks.eos, true});
    } else {
      parts.push_back({marks.bos + "[INST] " + trimmed(content) + " [/INST]"});
    }
  }
  return parts;
}

Parts write_llama3(const Messages& messages, const ChatMarks& marks, bool asks) {
  Parts parts = {{messages.empty() ? "" : marks.bos}};
  const auto head = [](const std::string& role) {
    return "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
  };
  for (const ChatMessage& message : messages) {
    parts.push_back({head(message.role)});
    parts.push_back({trimmed(message.content) + "<|eot_id|>", is_assistant(message)});
  }
  if (asks) parts.push_back({head("assistant")});
  return parts;
}

Parts write_mistral(const Messages& messages, const ChatMarks& marks, bool) {
  check_roles(messages, {"system", "user", "assistant"});
  const size_t first = begins_with_system(messages) ? 1 : 0;
  check_turns(messages, first);
  Parts parts = {{marks.bos}};
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string system = i == first && first == 1 ? messages[0].content + "\n\n" : "";
    if (is_assistant(messages[i])) {
      parts.push_back({messages[i].content + marks.eos, true});
    } else {
      parts.push_back({"[INST] " + system + messages[i].content + " [/INST]"});
    }
  }
  return parts;
}

Parts write_gemma(const Messages& messages, const ChatMarks& marks, bool asks) {
  check_roles(messages, {"user", "assistant"});
  check_turns(messages, 0);
  Parts parts = {{marks.bos}};
  for (const ChatMessage& message : messages) {
    parts.push_back({is_assistant(message) ? "<start_of_turn>model\n" : "<start_of_turn>user\n"});
    parts.push_back({trimmed(message.content) + "<end_of_turn>", is_assistant(message)});
    parts.push_back({"\n"});
  }
  if (asks) parts.push_back({"<start_of_turn>model\n"});
  return parts;
}

Parts write_zephyr(const Messages& messages, const ChatMarks& marks, bool asks) {
  check_roles(messages, {"system", "user", "assistant"});
  Parts parts;
  for (const ChatMessage& message : messages) {
    parts.push_back({"<|" + message.role + "|>\n"});
    parts.push_back({message.content + marks.eos, is_assistant(message)});
    parts.push_back({"\n"});
  }
  if (asks) parts.push_back({"<|assistant|>\n"});
  return parts;
}

// Megatron-LM's prompt formats. The first writes the beginning of an answer after the question.
Parts write_nemotron_h(const Messages& messages, const ChatMarks&, bool) {
  check_roles(messages, {"system", "user", "assistant"});
  Parts parts;
  for (const ChatMessage& message : messages) {
    const std::string line = trimmed(message.content) + "\n";
    if (is_assistant(message)) {
      parts.push_back({line, true});
    } else if (message.role == "system") {
      parts.push_back({"<SPECIAL_10>System\n" + line});
    } else {
      parts.push_back({"<SPECIAL_11>User\n" + line + "<SPECIAL_11>Assistant\n"});
    }
  }
  return parts;
}

std::string without(std::string text, std::string_view word) {
  for (size_t found = text.find(word); found != text.npos; found = text.find(word, found))
    text.erase(found, word.size());
  return text;
}

Parts write_nemotron_nano(const Messages& messages, const ChatMarks&, bool asks) {
  check_roles(messages, {"system", "user", "assistant"});
  Parts parts;
  for (const ChatMessage& message : messages) {
    if (is_assistant(message)) {
      parts.push_back({"<SPECIAL_11>Assistant\n"});
      parts.push_back({trimmed(message.content) + "\n<SPECIAL_12>\n", true});
    } else {
      const std::string content = trimmed(without(without(message.content, "/think"), "/no_think"));
      const char* const head = message.role == "system" ? "<SPECIAL_10>System\n" : "<SPECIAL_11>User\n";
      parts.push_back({head + content + "\n"});
    }
  }
  if (asks) parts.push_back({"<SPECIAL_11>Assistant\n"});
  return parts;
}

Parts write_identity(const Messages& messages, const ChatMarks&, bool) {
  Parts parts;
  for (const ChatMessage& message : messages) parts.push_back({message.content, is_assistant(message)});
  return parts;
}

// Texts of a template differ in white space, in how they write a newline in a string, and in quotes.
uint64_t jinja_hash(std::string_view text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "\\n") {
      ++i;
    } else if (text[i] == '"') {
      kept += '\'';
    } else if (std::string_view(" \t\r\n").find(text[i]) == std::string_view::npos) {
      kept += text[i];
    }
  }
  uint64_t hash = 0;
  const Sha256Digest digest = sha256(kept);
  for (size_t i = 0; i < 8; ++i) hash = hash << 8U | digest[i];
  return hash;
}

// Published texts of the templates.
struct KnownJinja {
  uint64_t hash;
  std::string_view name;
};
constexpr KnownJinja known_jinja[] = {
#define JINJA(hash, name) {hash, name},
#include "teratron/tokenizer/chat/known_jinja.def"
#undef JINJA
};

}  // namespace

const std::vector<ChatTemplate::Format>& ChatTemplate::formats() {
  static const std::vector<Format> all = {
      {"chatml", {"", "<|im_end|>"}, "<|im_end|>", write_chatml},
      {"llama2", {"<s>", "</s>"}, "", write_llama2},
      {"llama3", {"<|begin_of_text|>", "<|end_of_text|>"}, "<|eot_id|>", write_llama3},
      {"mistral", {"<s>", "</s>"}, "", write_mistral},
      {"gemma", {"<bos>", "<eos>"}, "<end_of_turn>", write_gemma},
      {"zephyr", {"<s>", "</s>"}, "", write_zephyr},
      {"nemotron-h-aligned", {}, "<SPECIAL_11>", write_nemotron_h, "<SPECIAL_233>"},
      {"nemotron-nano-v2", {}, "<SPECIAL_12>", write_nemotron_nano, "<unk>"},
      {"identity", {}, "", write_identity, "<unk>"},
  };
  return all;
}

ChatTemplate::ChatTemplate(const Format& format) : format_(&format), marks_(format.marks) {}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const Format& format : formats()) all.push_back(format.name);
  return all;
}

ChatTemplate ChatTemplate::find(std::string_view name) {
  for (const Format& format : formats()) {
    if (format.name == name) return ChatTemplate(format);
  }
  throw config_error({.what = fmt::format("'{}' is not a known chat template", printable(name, 60)),
                      .where = "--chat-template",
                      .fix = fmt::format("Use one of {}", fmt::join(names(), ", "))});
}

std::optional<ChatTemplate> ChatTemplate::of_jinja(std::string_view jinja) {
  const uint64_t hash = jinja_hash(jinja);
  for (const KnownJinja& known : known_jinja) {
    if (known.hash == hash) return find(known.name);
  }
  return std::nullopt;
}

const std::string& ChatTemplate::pad() const {
  return format_->pad;
}

const std::string& ChatTemplate::name() const {
  return format_->name;
}

ChatTemplate ChatTemplate::with_marks(const ChatMarks& marks) const {
  ChatTemplate changed = *this;
  if (!marks.bos.empty()) changed.marks_.bos = marks.bos;
  if (!marks.eos.empty()) changed.marks_.eos = marks.eos;
  return changed;
}

ChatMarks marks_of(const Tokenizer& tokenizer) {
  const auto text = [&](std::optional<int32_t> id) { return id ? tokenizer.decode({&*id, 1}) : ""; };
  return {.bos = text(tokenizer.special().bos), .eos = text(tokenizer.special().eos)};
}

std::vector<ChatPart> ChatTemplate::parts(const Messages& messages, bool asks) const {
  return format_->write(messages, marks_, asks);
}

std::string ChatTemplate::text(const Messages& messages, bool asks) const {
  std::string all;
  for (const ChatPart& part : parts(messages, asks)) all += part.text;
  return all;
}

std::vector<int32_t> ChatTemplate::encode(const Messages& messages, const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  tokenizer.encode(text(messages, true), ids);
  // Some tokenizers put a BOS before every text, and so do some templates.
  const std::optional<int32_t> bos = tokenizer.special().bos;
  if (bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
  return ids;
}

std::vector<int32_t> ChatTemplate::end_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ends;
  std::vector<int32_t> ids;
  try {
    tokenizer.encode(format_->end.empty() ? marks_.eos : format_->end, ids);
  } catch (const UserError&) {  // a tokenizer of numbers
    return ends;
  }
  const std::optional<int32_t> bos = tokenizer.special().bos;
  if (bos && !ids.empty() && ids.front() == *bos) ids.erase(ids.begin());
  if (ids.size() == 1) ends.push_back(ids.front());
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

}  // namespace

std::optional<std::string> jinja_of_tokenizer(const std::filesystem::path& tokenizer) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  const fs::path jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  constexpr size_t most = size_t{1} << 24;
  if (fs::exists(jinja)) return read_text(jinja, {.kind = ExitCode::data, .max_bytes = most});
  if (!fs::exists(config)) return std::nullopt;
  const nlohmann::json value = read_json(config, {.where = "", .kind = ExitCode::data, .max_bytes = most});
  return value.is_object() ? jinja_of_config(value) : std::nullopt;
}

std::optional<ChatTemplate> choose_chat_template(const std::optional<std::string>& name,
                                                 const std::filesystem::path& tokenizer) {
  if (name) return ChatTemplate::find(*name);
  if (tokenizer.empty()) return std::nullopt;
  const std::optional<std::string> jinja = jinja_of_tokenizer(tokenizer);
  if (!jinja) return std::nullopt;
  if (const std::optional<ChatTemplate> known = ChatTemplate::of_jinja(*jinja)) return known;
  throw config_error({.what = fmt::format("the tokenizer's chat template is none of {}",
                                          fmt::join(ChatTemplate::names(), ", ")),
                      .where = tokenizer.string(),
                      .fix = "Choose the one that the model was trained with: --chat-template NAME"});
}

}  // namespace teratron
