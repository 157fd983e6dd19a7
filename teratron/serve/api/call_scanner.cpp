#include "teratron/serve/api/call_scanner.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace teratron {

namespace {

bool is_blank(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

// The text of a JSON string; empty if it is none.
std::string decoded(const std::string& json) {
  const nlohmann::json value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

bool CallScanner::add(char byte) {
  switch (place_) {
    case Place::start:
      place_ = byte == '{' ? Place::key : Place::failed;
      break;
    case Place::key:
      if (is_blank(byte)) break;
      if (byte == '}' && first_key_) {
        place_ = Place::done;
      } else {
        place_ = byte == '"' ? Place::in_key : Place::failed;
        raw_key_ = byte;
      }
      first_key_ = false;
      break;
    case Place::in_key:
      raw_key_ += byte;
      if (byte != '"' || escaped_) {
        escaped_ = byte == '\\' && !escaped_;
        break;
      }
      key_ = decoded(raw_key_);
      has_others_ = has_others_ || (key_ != "name" && key_ != "type" && key_ != "id" && !is_arguments());
      place_ = Place::colon;
      break;
    case Place::colon:
      if (!is_blank(byte)) place_ = byte == ':' ? Place::value : Place::failed;
      break;
    case Place::value:
      if (!is_blank(byte)) begin_value(byte);
      break;
    case Place::in_value:
      if (add_to_value(byte)) break;
      end_value();
      [[fallthrough]];
    case Place::behind:
      if (is_blank(byte)) break;
      place_ = byte == ',' ? Place::key : byte == '}' ? Place::done : Place::failed;
      break;
    default:
      return false;
  }
  return place_ != Place::failed;
}

void CallScanner::begin_value(char byte) {
  place_ = Place::in_value;
  value_.clear();
  depth_ = 0;
  in_string_ = escaped_ = false;
  add_to_value(byte);
}

// False: the value ended before this byte. One that ends with it is ended here.
bool CallScanner::add_to_value(char byte) {
  if (!in_string_ && depth_ == 0 && !value_.empty() && (byte == ',' || byte == '}' || is_blank(byte)))
    return false;
  const bool streams = is_arguments() && (value_.empty() ? byte : value_.front()) == '{';
  if (streams) {
    has_arguments_ = true;
    arguments_ += byte;
  }
  value_ += byte;
  if (in_string_) {
    if (byte == '"' && !escaped_) in_string_ = false;
    escaped_ = byte == '\\' && !escaped_;
  } else if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    depth_ += 1;
  } else if (byte == '}' || byte == ']') {
    depth_ -= 1;
  }
  const char first = value_.front();
  const bool closes = first == '{' || first == '[' || first == '"';
  if (closes && depth_ == 0 && !in_string_) {
    end_value();
    place_ = Place::behind;
  }
  return true;
}

void CallScanner::end_value() {
  if (key_ == "name" && value_.front() == '"') {
    name_ = decoded(value_);
    has_name_ = !name_.empty();
  } else if (is_arguments() && value_.front() == '"') {
    // Some models write them as a text of JSON.
    has_arguments_ = true;
    arguments_ = decoded(value_);
  }
}

std::string CallScanner::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace teratron
