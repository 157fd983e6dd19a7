// Prints docs/flags.md: flags_document > docs/flags.md
#include "teratron/base/log.h"
#include "teratron/settings/arguments.h"

int main() {
  std::string text = teratron::arguments_document();
  text.pop_back();  // print_line adds the newline
  teratron::print_line(text);
  return 0;
}
