// `teratron tokenizer chat`: conversations as the text that a chat template makes of them.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace teratron {

/// Adds the subcommand; returns what runs it once the command line is parsed: false if it is not given.
std::function<bool()> add_chat_command(CLI::App& app);

}  // namespace teratron
