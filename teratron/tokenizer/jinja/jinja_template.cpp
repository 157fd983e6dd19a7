#include "teratron/tokenizer/jinja/jinja_template.h"

#include <algorithm>

#include "teratron/tokenizer/jinja/syntax/lexer.h"
#include "teratron/tokenizer/jinja/syntax/template_parser.h"
#include "teratron/tokenizer/jinja/values/json_text.h"
#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron::jinja {

namespace {

constexpr size_t longest_template = size_t{1} << 20;

bool has_generation(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const auto& statement) {
    return statement->type == StatementType::generation ||
           std::any_of(statement->bodies.begin(), statement->bodies.end(), has_generation);
  });
}

}  // namespace

Template::Template(std::string_view source, std::string name) : name_(std::move(name)) {
  if (source.size() > longest_template)
    throw syntax_error(name_, 1,
                       fmt::format("it has {} bytes, more than {}", source.size(), longest_template));
  body_ = std::make_shared<const Body>(parse_template(unicode::replace_invalid(source), name_));
  marks_generation_ = has_generation(*body_);
}

Rendered Template::render(const nlohmann::ordered_json& variables) const {
  Workspace workspace(name_);
  const Value values = value_of_json(workspace, variables);
  return Renderer(workspace).render(*body_, values);
}

}  // namespace teratron::jinja
