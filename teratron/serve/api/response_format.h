// The field response_format: answers in JSON.
#pragma once

#include "teratron/generate/grammar/answer_form.h"
#include "teratron/generate/json/request_fields.h"
#include "teratron/serve/api/request_body.h"

namespace teratron {

/// {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": ...}}.
void read_response_format(RequestFields& fields, const RequestBody& body, AnswerForm& form);

/// UserError(data) with what is not supported in the schemas of a form.
void check_form(const AnswerForm& form);

}  // namespace teratron
