// `teratron tokenizer chat`: conversations as the text that a chat template makes of them.
#pragma once

#include <span>
#include <string>

namespace teratron {

int chat_command(std::span<const std::string> args);

}  // namespace teratron
