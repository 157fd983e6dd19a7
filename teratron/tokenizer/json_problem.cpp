#include "teratron/tokenizer/json_problem.h"

namespace teratron {

const char* json_problem(simdjson::error_code error) {
  switch (error) {
    case simdjson::NUMBER_ERROR:
    case simdjson::NUMBER_OUT_OF_RANGE:
      return "a number is malformed or out of range";
    case simdjson::INCORRECT_TYPE:
      return "the value has another type";
    case simdjson::STRING_ERROR:
    case simdjson::UNESCAPED_CHARS:
    case simdjson::UNCLOSED_STRING:
      return "a string is malformed or not closed";
    case simdjson::T_ATOM_ERROR:
    case simdjson::F_ATOM_ERROR:
    case simdjson::N_ATOM_ERROR:
      return "a word is none of true, false and null";
    case simdjson::UTF8_ERROR:
      return "it is not valid UTF-8";
    case simdjson::DEPTH_ERROR:
      return "it is nested too deep";
    case simdjson::EMPTY:
      return "it is empty";
    case simdjson::CAPACITY:
    case simdjson::MEMALLOC:
      return "it is too large";
    default:
      return "brackets, commas or colons are missing or superfluous";
  }
}

}  // namespace teratron
