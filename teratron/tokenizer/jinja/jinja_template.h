// Chat templates as they are published: Jinja, in the environment of transformers' apply_chat_template().
//
// Statements: for (else, if, recursive), if, set, macro, call, filter, with, raw, break, continue, and
// {% generation %}, which marks what a model writes. Expressions, filters and tests are Jinja's, and the
// methods those of Python's str, list and dict; what is not there is an error that names it. trim_blocks and
// lstrip_blocks are set. Globals: range, dict, namespace, raise_exception, strftime_now.
//
// Templates are untrusted: their time, memory and nesting are bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "teratron/tokenizer/jinja/renderer.h"

namespace teratron::jinja {

class Template {
 public:
  /// `name`: where it is from, in errors. UserError(data): not a template.
  Template(std::string_view source, std::string name);

  /// `variables`: an object with messages, tools, bos_token, ... UserError(data) for what raise_exception()
  /// says and for all that fails, with the line.
  Rendered render(const nlohmann::ordered_json& variables) const;
  /// Whether it marks what a model writes.
  bool marks_generation() const { return marks_generation_; }

 private:
  std::string name_;
  std::shared_ptr<const Body> body_;
  bool marks_generation_;
};

}  // namespace teratron::jinja
