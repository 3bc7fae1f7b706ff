#pragma once

#include <functional>

#include "tutti/core/communicator.h"

namespace tutti::test {

using RankFunction = std::function<void(Communicator&)>;
using Tune = std::function<void(Options&)>;

/// Runs `body` on `size` ranks that are threads of this process, each with a Communicator of its
/// own over one memory store. What a rank throws becomes a test failure that names the rank; gtest
/// assertions inside `body` work (non-fatal ones, and fatal ones that end that rank's body). A run
/// that takes more than `seconds` ends the process, naming the ranks that are still in it.
void run_threads(int size, const RankFunction& body, const Tune& tune = {}, double seconds = 60);

}  // namespace tutti::test
