#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Connects Context::name and every other backend that the scores (Context::algorithms) name, and
/// returns them as one backend. Each operation runs in the backend that the scores choose for its
/// kind and size. Context::name serves everything else: operations without a score, operations on
/// devices, control messages, liveness and memory.
std::unique_ptr<Backend> connect_choice(const Context& context);

}  // namespace tutti
