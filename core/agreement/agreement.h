#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// The requests of the ranks that made them, in rank order.
using Voices = std::span<const std::pair<int, const Request*>>;

/// The error that every rank gets if these requests for one name do not go together, naming which
/// rank asked for what; nothing if they do. Pure.
std::optional<Error> find_disagreement(const std::string& name, Voices voices, int size);

}  // namespace tutti
