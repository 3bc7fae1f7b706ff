#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/backends/store.h"

namespace tutti {

/// A Store whose waits end when a launcher reports the death of a rank that is waited for: every
/// call throws Error(peer_lost) naming it. What ranks use while they meet, when nobody can see an
/// end of file yet.
/// `world_ranks[r]` is rank r's number in the job, under which its death is written in `deaths`.
std::shared_ptr<Store> make_watched_store(std::shared_ptr<Store> store,
                                          std::shared_ptr<Store> deaths,
                                          std::vector<int> world_ranks);

}  // namespace tutti
