#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Several backends as one: connects Context::name and every other one that the scores
/// (Context::algorithms) name, and hands each operation to the one that the scores choose for its
/// kind and size. Context::name itself serves what no score gives to another, what the chosen one
/// does not serve, control messages, liveness and memory.
std::unique_ptr<Backend> connect_choice(const Context& context);

}  // namespace tutti
