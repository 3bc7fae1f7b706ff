#pragma once

#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// The numeric address on which this rank listens: Context::network_interface (a name or an
/// address), else loopback if all ranks are on one host, else the address from which the store is
/// reached, else any that is not loopback. Throws Error(unavailable) that lists what there is.
std::string choose_listening_address(const Context& context);

}  // namespace tutti
