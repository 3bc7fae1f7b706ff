#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"

namespace tutti {

/// Returns all ranks but this one.
std::vector<int> peers_of(const Context& context);

/// Makes the backend for what the library behind backend `name` does not run: our schedules over
/// the channels of backend hierarchical. Throws Error(unavailable) if this build does not have it.
std::unique_ptr<Backend> make_rest_backend(const Context& context, std::string name);

}  // namespace tutti
