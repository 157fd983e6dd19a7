#include "teratron/serve/api/request_body.h"

#include "teratron/serve/api/api_error.h"
#include "teratron/tokenizer/chat/ordered_json.h"

namespace teratron {

RequestBody::RequestBody(std::string text) : text_(std::move(text)), fields_(parse_body(text_)) {}

const nlohmann::ordered_json& RequestBody::ordered(const char* name) const {
  static const nlohmann::ordered_json none;
  if (!fields_.contains(name)) return none;
  if (!ordered_)
    ordered_ =
        parse_ordered_json(text_.empty() ? fields_.dump() : text_, {.where = name, .kind = ExitCode::data});
  return ordered_->at(name);
}

}  // namespace teratron
