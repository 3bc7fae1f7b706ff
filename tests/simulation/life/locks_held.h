#pragma once

namespace tutti::simulation {

/// Says how many mutexes the calling thread has locked by pthread_mutex_lock() and not unlocked; 0
/// in a build with sanitizers, which have these functions for themselves.
int locks_held();

}  // namespace tutti::simulation
