#include "teratron/models/vlm/data/image_lines.h"

#include <nlohmann/json.hpp>

namespace teratron {

namespace {

using nlohmann::json;

class LineReader {
 public:
  LineReader(json value, std::string where, std::vector<Problem>& problems)
      : value_(std::move(value)), where_(std::move(where)), problems_(problems) {}

  ImageLine read() {
    for (const char* const key : {"image", "images"}) take_list(key);
    const bool has_list = !images_.empty();
    for (const char* const key : {"messages", "prompt", "completion"}) join_parts(key);
    if (has_list && has_parts_) problem("images are named both beside the messages and in them");
    int64_t markers = 0;
    for_each_text([&](std::string& text, bool) { markers += count_markers(text); });
    if (markers == 0 && images_.size() == 1) markers = mark_first();
    if (markers != std::ssize(images_))
      problem(
          fmt::format("the text has {} {}, but there are {} images", markers, image_marker, images_.size()));
    return {value_.dump(-1, ' ', false, json::error_handler_t::replace), std::move(images_)};
  }

 private:
  void problem(std::string what) {
    problems_.push_back({.what = std::move(what),
                         .where = where_,
                         .fix = "Write <image> once for each image, in their order"});
  }

  void add_image(const json& image) {
    if (image.is_string()) return images_.push_back(image);
    problem("an image is neither the name of a file nor a data: URI");
  }

  void take_list(const char* key) {
    const auto found = value_.find(key);
    if (found == value_.end()) return;
    const json given = *found;
    value_.erase(key);
    if (given.is_null()) return;
    for (const json& image : given.is_array() ? given : json::array({given})) add_image(image);
  }

  std::string text_of_part(const json& part) {
    const std::string type = part.is_object() && part.contains("type") && part["type"].is_string()
                                 ? part["type"].get<std::string>()
                                 : "";
    if (type == "text" && part.contains("text") && part["text"].is_string()) return part["text"];
    if (type != "image" && type != "image_url") {
      problem(fmt::format("a part of a message has the type '{}'", printable(type, 40)));
      return "";
    }
    const json source = part.value(type, json());
    if (!source.is_null()) {
      has_parts_ = true;
      add_image(source.is_object() ? source.value("url", json()) : source);
    }
    return std::string(image_marker);
  }

  // Contents that are lists of parts become texts.
  void join_parts(const char* key) {
    const auto messages = value_.find(key);
    if (messages == value_.end() || !messages->is_array()) return;
    for (json& message : *messages) {
      if (!message.is_object() || !message.contains("content") || !message["content"].is_array()) continue;
      std::string text;
      for (const json& part : message["content"]) text += text_of_part(part);
      message["content"] = text;
    }
  }

  // Calls use(text, whether it is a question).
  template <typename Use>
  void for_each_text(const Use& use) {
    const auto use_text = [&use](json& holder, const char* key, bool asks) {
      if (!holder.contains(key) || !holder[key].is_string()) return;
      std::string text = holder[key];
      use(text, asks);
      holder[key] = text;
    };
    const auto use_list = [&](const char* key, const char* role, const char* content) {
      if (!value_.contains(key) || !value_[key].is_array()) return;
      for (json& message : value_[key]) {
        if (!message.is_object()) continue;
        const json from = message.value(role, json());
        use_text(message, content, from == "human" || from == "user");
      }
    };
    use_list("conversations", "from", "value");
    use_list("messages", "role", "content");
    use_list("prompt", "role", "content");
    use_list("completion", "role", "content");
    for (const char* const key : {"prompt", "instruction", "text"})
      use_text(value_, key, std::string_view(key) != "text");
  }

  int64_t mark_first() {
    int64_t marked = 0;
    for_each_text([&](std::string& text, bool asks) {
      if (marked > 0 || !asks) return;
      text = fmt::format("{}\n{}", image_marker, text);
      marked = 1;
    });
    return marked;
  }

  json value_;
  std::string where_;
  std::vector<Problem>& problems_;
  std::vector<std::string> images_;
  bool has_parts_ = false;
};

}  // namespace

int64_t count_markers(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(image_marker, at)) != text.npos; at += image_marker.size()) ++count;
  return count;
}

ImageLine read_image_line(const JsonLine& line, std::vector<Problem>& problems) {
  json value = json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return {line.text, {}};
  return LineReader(std::move(value), line.where, problems).read();
}

}  // namespace teratron
