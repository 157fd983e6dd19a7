// Who may use a server.
#pragma once

#include <string>

#include "teratron/serve/browser_policy.h"
#include "teratron/settings/arguments.h"

namespace teratron {

struct AccessOptions {
  std::string api_key = {};  // empty: none is needed
  BrowserPolicyOptions browsers = {};
};

/// From the settings and TERATRON_API_KEY. UserError(config).
AccessOptions access_options(const Arguments& args);

/// Whether only this machine reaches the address, or all addresses of the name.
bool is_loopback(const std::string& host);

}  // namespace teratron
