#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tutti/core/agreement/request.h"

namespace tutti {

/// The requests of some ranks, each with its rank, in rank order.
using Voices = std::span<const std::pair<int, const Request*>>;

/// Checks the ranks' requests for one name. If they match, returns nothing. Otherwise returns the
/// error that every rank gets. It names the ranks and what each of them requested. Pure.
std::optional<Error> find_disagreement(const std::string& name, Voices voices, int size);

}  // namespace tutti
