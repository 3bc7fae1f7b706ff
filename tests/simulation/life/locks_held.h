#pragma once

namespace tutti::simulation {

/// Returns how many mutexes the calling thread has locked with pthread_mutex_lock() and not
/// unlocked. Returns 0 in a sanitizer build, because sanitizers define these functions themselves.
int locks_held();

}  // namespace tutti::simulation
