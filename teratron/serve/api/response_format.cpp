#include "teratron/serve/api/response_format.h"

namespace teratron {

namespace {

using nlohmann::json;

constexpr const char* field = "response_format";

// The schema is read where its members have an order.
void read_schema(RequestFields& fields, const json& format, const RequestBody& body, AnswerForm& form) {
  RequestFields inner(format, field);
  inner.ignore_text("name");
  inner.ignore_text("description");
  inner.ignore_flag("strict");
  bool found = false;
  inner.read<json>(
      "schema", "a JSON Schema", [](const json& v) { return v.is_object() || v.is_boolean(); },
      [&](const json&) {
        found = true;
        form.one_of.push_back(
            {.schema = body.ordered(field).at("json_schema").at("schema").dump(), .where = field});
      });
  if (!found) inner.problem("schema", "json_schema has no schema", "Add one");
  fields.add_problems_of(std::move(inner));
}

void read_format(RequestFields& fields, const json& format, const RequestBody& body, AnswerForm& form) {
  RequestFields outer(format, field);
  std::string type;
  outer.text("type", [&](const std::string& text) { type = text; });
  if (type == "json_object") {
    form.one_of.push_back({.schema = R"({"type": "object"})", .where = field});
  } else if (type == "json_schema") {
    outer.read<json>(
        "json_schema", "an object", [](const json& v) { return v.is_object(); },
        [&](const json& v) { read_schema(outer, v, body, form); });
    if (!outer.has("json_schema"))
      outer.problem("json_schema", "response_format has no json_schema", "Add {\"schema\": {...}}");
  } else if (type != "text") {
    outer.problem("type", fmt::format("there is no response_format of type '{}'", printable(type, 40)),
                  "Use text, json_object or json_schema");
  }
  fields.add_problems_of(std::move(outer));
}

}  // namespace

void read_response_format(RequestFields& fields, const RequestBody& body, AnswerForm& form) {
  fields.read<json>(
      field, "an object", [](const json& v) { return v.is_object(); },
      [&](const json& v) { read_format(fields, v, body, form); });
}

void check_form(const AnswerForm& form) {
  if (!form.empty()) answer_grammar(form);
}

}  // namespace teratron
