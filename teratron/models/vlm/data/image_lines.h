// JSON lines of conversations about images, in any of these forms:
//
//   {"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\n..."}, {"from": "gpt", ...}]}
//   {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.jpg"}},
//                                              {"type": "text", "text": "..."}]}, ...]}
//   {"image": "a.jpg", "prompt": "...", "completion": "..."}
//
// "image" or "images" may be a list; {"type": "image", "image": "a.jpg"} is a part, too. An image is the name
// of a file or a data: URI. Where the text has no "<image>", one image comes before the first question.
#pragma once

#include <string>
#include <vector>

#include "teratron/models/labelled_data/json_lines.h"

namespace teratron {

inline constexpr std::string_view image_marker = "<image>";

/// A line as parse_conversations() reads it, with a marker in the place of each image.
struct ImageLine {
  std::string text;
  std::vector<std::string> images;  // in the order of the markers
};

/// What is wrong with the line is added to `problems`: markers and images of other numbers, parts without
/// contents. Broken JSON is left for parse_conversations().
ImageLine read_image_line(const JsonLine& line, std::vector<Problem>& problems);

/// How often the marker occurs.
int64_t count_markers(std::string_view text);

}  // namespace teratron
